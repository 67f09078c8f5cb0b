//! Who uses a tree: programs that have something of it open, mapped, or as their directory.

use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::Descent;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use super::metadata::libc_mode;
use super::mounts::mount_using;
use super::user::User;

/// Files by device and inode number.
type Files = HashSet<(u64, u64)>;

/// The first user of what lies at this name; `path` is the same.
pub(super) fn first_user(
    directory: &OwnedFd,
    name: &OsStr,
    path: &Path,
) -> Result<Option<User>, Errno> {
    let files = files_of(directory, name)?;
    let own = std::process::id();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|&pid| pid != own) {
        if uses(pid, &files) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let name = name.trim().to_owned();
            return Ok(Some(User::Process { pid, name }));
        }
    }
    Ok(mount_using(path).or_else(|| kernel_user(&files)))
}

fn key(about: &fs::Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// All files of a tree.
fn files_of(directory: &OwnedFd, name: &OsStr) -> Result<Files, Errno> {
    let mut files = Files::new();
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    files.insert((stat.st_dev, stat.st_ino));
    if stat.st_mode & libc_mode::KIND != libc_mode::DIRECTORY {
        return Ok(files);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut tree = Descent::new(openat(directory, name, flags, Mode::empty())?);
    // Of each directory on the way, those in it that are still to be looked at.
    let mut waiting = vec![look(tree.directory(), &mut files)?];
    while let Some(level) = waiting.last_mut() {
        let Some(name) = level.pop() else {
            waiting.pop();
            if !waiting.is_empty() {
                tree.leave()?;
            }
            continue;
        };
        match tree.enter(&name) {
            // Removed meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            entered => entered?,
        }
        // The root of a mount has another number than the directory that it covers.
        let about = fstat(tree.directory())?;
        files.insert((about.st_dev, about.st_ino));
        waiting.push(look(tree.directory(), &mut files)?);
    }
    Ok(files)
}

/// Notes what is in a directory, and returns the directories in it.
fn look(directory: &OwnedFd, files: &mut Files) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        files.insert((stat.st_dev, stat.st_ino));
        if stat.st_mode & libc_mode::KIND == libc_mode::DIRECTORY {
            directories.push(name.to_owned());
        }
    }
    Ok(directories)
}

/// Whether a process has one of these files. A process that ends meanwhile has none.
fn uses(pid: u32, files: &Files) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let has = |link: PathBuf| fs::metadata(link).is_ok_and(|about| files.contains(&key(&about)));
    if ["cwd", "root", "exe"]
        .iter()
        .any(|link| has(process.join(link)))
    {
        return true;
    }
    ["fd", "map_files"].iter().any(|links| {
        let links = fs::read_dir(process.join(links)).into_iter().flatten();
        links.flatten().any(|link| has(link.path()))
    })
}

/// The table writes space, tab, newline and backslash as three octal digits.
fn unescaped(text: &str) -> String {
    let octal = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let unescape = |text: String, (code, plain): (&str, &str)| text.replace(code, plain);
    octal.into_iter().fold(text.to_owned(), unescape)
}

fn kernel_user(files: &Files) -> Option<User> {
    let has = |path: &Path| fs::metadata(path).is_ok_and(|about| files.contains(&key(&about)));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    let swap = swaps
        .map(|path| PathBuf::from(unescaped(path)))
        .find(|path| has(path));
    let devices = || {
        let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let mut backed = all.filter_map(|entry| {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            Some((
                entry.file_name(),
                PathBuf::from(backing.trim_end_matches('\n')),
            ))
        });
        let found = backed.find(|(_, backing)| has(backing));
        found.map(|(name, _)| User::LoopDevice(name.to_string_lossy().into_owned()))
    };
    swap.map(User::Swap).or_else(devices)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::fs::open;

    use super::*;

    fn user_of(base: &Path, name: &str) -> Option<User> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(base, flags, Mode::empty()).unwrap();
        first_user(&directory, OsStr::new(name), &base.join(name)).unwrap()
    }

    #[test]
    fn a_process_that_has_a_file_open_or_its_directory_there_is_found() {
        let base = tempfile::tempdir().unwrap();
        let inner = base.path().join("tree/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "content").unwrap();
        assert_eq!(user_of(base.path(), "tree"), None);
        let sleeping = |command: &mut Command| {
            let command = command.arg("60").stdout(Stdio::null());
            command.spawn().unwrap()
        };
        let mut commands = [Command::new("sleep"), Command::new("sleep")];
        commands[0].current_dir(&inner);
        commands[1].stdin(fs::File::open(inner.join("file")).unwrap());
        for mut command in commands {
            let mut process = sleeping(&mut command);
            // It keeps a file open itself for as long as it can start one.
            drop(command);
            let found = user_of(base.path(), "tree");
            let pid = process.id();
            process.kill().unwrap();
            process.wait().unwrap();
            let is_it = matches!(&found, Some(User::Process { pid: found, .. }) if *found == pid);
            assert!(is_it, "{found:?}");
        }
        assert_eq!(user_of(base.path(), "tree"), None);
    }
}
