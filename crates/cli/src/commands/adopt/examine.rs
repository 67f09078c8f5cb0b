//! Whether a directory can be adopted. Nothing is changed.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_daemon::{Code, ConfigText, Failure, check_store};
use mobifs_host::{find_below, mounts, shell_path};
use mobifs_store::PosixLower;
use mobifs_volume::OpenOptions;
use rustix::fs::{Access, AtFlags, FileType, StatVfsMountFlags, access, statat};

use super::directory::Directory;
use super::durable::cannot;
use super::note::Notes;
use super::other_paths::overlap;
use super::place::{Place, refused};
use super::standing::is_over;
use crate::mount_options::Options;

/// The longest path that calls of the kernel take: `PATH_MAX` without the byte that ends it.
const PATH_BYTES_MAX: usize = 4095;
/// More than the paths of MobiFS's own files have after that of the store: `/.mobifs/lost/journal.damaged-N`.
const OWN_BYTES: usize = 80;
/// What `statfs` says of btrfs.
const BTRFS_MAGIC: u32 = 0x9123_683e;
/// The number of the root of each of its subvolumes, and of nothing else in it.
const SUBVOLUME_INODE: u64 = 256;
/// The bit of a directory's mode by which what is made in it has its group.
const SET_GROUP_ID: u32 = 0o2000;

/// Fails if the directory cannot be adopted, with what to do about it.
pub(super) fn examine(place: &Place, notes: &Notes, options: &str) -> Result<(), Failure> {
    nameable(place)?;
    without_mounts(place)?;
    without_subvolumes(place)?;
    not_needed(place, notes)?;
    apart_from_others(place, notes)?;
    writable(place, notes)?;
    changeable(place)?;
    suitable(place)?;
    let name = place.store();
    if name.symlink_metadata().is_ok() {
        let name = name.display();
        return Err(refused(&format!(
            "{name} is there already, and is where the files would be: move it away"
        )));
    }
    has_room(place, options)?;
    mobifs_fuse::check_permitted()?;
    Ok(())
}

/// The journal fits into the filesystem.
fn has_room(place: &Place, options: &str) -> Result<(), Failure> {
    let options = Options::parse(&[options.to_owned()], false)?;
    let config = ConfigText::load(options.config.as_deref())?;
    let directory = place.directory();
    OpenOptions::new(&config.config)
        .check_room(directory)
        .map_err(|error| Failure::of_store(directory, &error))
}

/// Checks that what is MobiFS's own in the store has a path that the kernel takes, so that there is a way back.
fn nameable(place: &Place) -> Result<(), Failure> {
    let store_bytes = place.store().as_os_str().len();
    let excess = (store_bytes + OWN_BYTES).saturating_sub(PATH_BYTES_MAX);
    if excess == 0 {
        return Ok(());
    }
    let directory = place.directory();
    let bytes = directory.as_os_str().len();
    Err(refused(&format!(
        "{} cannot be adopted: its path of {bytes} bytes is too long by {excess}, as files in its store would have \
         paths that cannot be opened; shorten a name on it",
        directory.display()
    )))
}

/// Checks that the directory is no mount point, and has none in it: renaming it would take them
/// along, and a store does not show them.
pub(super) fn without_mounts(place: &Place) -> Result<(), Failure> {
    let directory = place.directory();
    let table = mounts().map_err(cannot("look for mounts in", directory))?;
    let shown = directory.display();
    let at = table.iter().rfind(|mount| mount.mountpoint == directory);
    let inside = || {
        table
            .iter()
            .rfind(|mount| mount.mountpoint.starts_with(directory))
    };
    match at.or_else(inside) {
        None => Ok(()),
        Some(mount) if mount.mountpoint == directory && mount.has_subtype("mobifs") => {
            Err(Failure::new(
                Code::InUse,
                format!(
                    "{shown} is a MobiFS mount already, of the store {}: there is nothing to adopt",
                    mount.source.display()
                ),
            ))
        }
        Some(mount) if mount.mountpoint == directory => Err(refused(&format!(
            "{shown} is a mount point ({}), which keeps its name: adopt a directory in it",
            mount.kind
        ))),
        Some(mount) => Err(Failure::new(
            Code::InUse,
            format!(
                "{} is mounted in {shown}: unmount it first, or adopt a directory without mounts in it",
                mount.mountpoint.display()
            ),
        )),
    }
}

/// Checks that no subvolume of btrfs lies in the directory: a store does not reach into other filesystems, and to it a
/// subvolume is one.
pub(super) fn without_subvolumes(place: &Place) -> Result<(), Failure> {
    let directory = place.directory();
    let about = rustix::fs::statfs(directory).map_err(cannot("examine", directory))?;
    if about.f_type as u32 != BTRFS_MAGIC {
        return Ok(());
    }
    let found = find_below(directory, |parent, entry| {
        let may_be = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        may_be
            && statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|about| about.st_ino == SUBVOLUME_INODE)
    });
    let Some(subvolume) = found.map_err(cannot("look for subvolumes in", directory))? else {
        return Ok(());
    };
    Err(refused(&format!(
        "{} is a subvolume of btrfs in {}, into which a store does not reach: adopt a directory without subvolumes \
         in it, or the subvolume itself",
        subvolume.display(),
        directory.display()
    )))
}

/// Nothing lies in it that is needed to mount it.
fn not_needed(place: &Place, notes: &Notes) -> Result<(), Failure> {
    let mut needed: Vec<PathBuf> = [
        "/dev",
        "/proc",
        "/sys",
        "/run",
        "/etc",
        "/usr/lib/systemd",
        "/boot",
    ]
    .map(PathBuf::from)
    .into();
    needed.push(notes.directory().to_owned());
    needed.extend(std::env::current_exe().and_then(|path| path.canonicalize()));
    let found = needed
        .iter()
        .find(|path| path.starts_with(place.directory()));
    found.map_or(Ok(()), |path| {
        let why = if path == place.directory() {
            "it is".to_owned()
        } else {
            format!("{} lies in it, which is", path.display())
        };
        Err(refused(&format!(
            "{} cannot be adopted: {why} needed before it is mounted; adopt the directories in it \
             that programs write to",
            place.directory().display()
        )))
    })
}

/// No other adopted directory lies in it, or around it.
fn apart_from_others(place: &Place, notes: &Notes) -> Result<(), Failure> {
    let mut others = Vec::new();
    for note in notes.all()? {
        let other = Place::of(note.directory().to_owned())?;
        if !is_over(&other, &note)? {
            others.push(other);
        }
    }
    // What is adopted by a note that is damaged is so all the same.
    let damaged = notes.damaged()?.into_iter();
    let damaged = damaged.filter_map(|note| Place::of(note.directory?).ok());
    others.extend(damaged.filter(Place::is_exchanged));
    for other in others {
        let overlaps = place.overlaps(other.directory())
            || place.overlaps(other.store())
            || overlap(place, &other)?;
        if other != *place && overlaps {
            let shown = place.directory().display();
            let (other, word) = (other.directory().display(), shell_path(other.directory()));
            return Err(Failure::new(
                Code::InUse,
                format!(
                    "{shown} cannot be adopted, because {other} is, and one lies in the other: mobifs unadopt \
                     {word} first"
                ),
            ));
        }
    }
    Ok(())
}

/// Neither the directory nor that of the notes is on a filesystem that is read-only.
fn writable(place: &Place, notes: &Notes) -> Result<(), Failure> {
    let is_read_only = |path: &Path| {
        let about = rustix::fs::statvfs(path);
        about.is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::RDONLY))
    };
    let directory = place.directory();
    if is_read_only(directory) {
        return Err(refused(&format!(
            "{} cannot be adopted: it is on a read-only filesystem; make that writable first",
            directory.display()
        )));
    }
    let mut above = notes.directory().ancestors();
    let there = above.find(|path| path.exists());
    if there.is_some_and(is_read_only) {
        return Err(refused(&format!(
            "{} cannot be adopted: what is adopted is noted in {}, which is on a read-only filesystem",
            directory.display(),
            notes.directory().display()
        )));
    }
    Ok(())
}

/// This user may rename it.
fn changeable(place: &Place) -> Result<(), Failure> {
    let (directory, parent) = (place.directory(), place.parent());
    let (shown, above) = (directory.display(), parent.display());
    let about = directory.metadata().map_err(cannot("examine", directory))?;
    let user = rustix::process::geteuid();
    let word = shell_path(directory);
    let as_root = format!("as root: sudo mobifs adopt {word}");
    if !user.is_root() {
        if about.uid() != user.as_raw() {
            return Err(refused(&format!(
                "{shown} belongs to user {}, not to you; {as_root}",
                about.uid()
            )));
        }
        if access(parent, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return Err(refused(&format!(
                "{shown} is to be renamed, and you may not write to {above}; {as_root}"
            )));
        }
        place.opened_parent()?;
        if access(
            directory,
            Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
        )
        .is_err()
        {
            return Err(refused(&format!(
                "{shown} is yours, and its mode does not let you read, write and enter it: chmod u+rwx {word}"
            )));
        }
        if !gets_group(about.gid(), parent) {
            return Err(refused(&format!(
                "{shown} has the group {}, which you are not in, so the directory to mount on cannot have it; \
                 {as_root}",
                about.gid()
            )));
        }
    }
    if Directory::open(directory).is_ok_and(|opened| opened.is_fixed()) {
        return Err(refused(&format!(
            "{shown} is immutable or append-only, so it cannot be renamed: chattr -i -a {word}"
        )));
    }
    if Directory::open(parent).is_ok_and(|opened| opened.is_fixed()) {
        let parent = shell_path(parent);
        return Err(refused(&format!(
            "{shown} is to be renamed, and {above} is immutable or append-only: chattr -i -a {parent}"
        )));
    }
    Ok(())
}

/// Whether what this user makes in `parent` has this group, or can be given it.
fn gets_group(group: u32, parent: &Path) -> bool {
    let is_inherited = parent
        .metadata()
        .is_ok_and(|about| about.mode() & SET_GROUP_ID != 0 && about.gid() == group);
    let groups = rustix::process::getgroups().unwrap_or_default();
    is_inherited
        || rustix::process::getegid().as_raw() == group
        || groups.iter().any(|own| own.as_raw() == group)
}

/// Checks that the directory can be the store of a mount, and is none yet.
fn suitable(place: &Place) -> Result<(), Failure> {
    let directory = place.directory();
    let shown = directory.display();
    check_store(directory, false)?;
    if mobifs_store::is_in_memory(directory) {
        return Err(refused(&format!(
            "{shown} is in memory (tmpfs or ramfs): it is as fast as it can be, wears nothing, and a reboot takes \
             it; there is nothing to gain"
        )));
    }
    if place.is_prepared() {
        return Err(refused(&format!(
            "{shown} is a MobiFS store: mount it somewhere (mobifs mount), or make it an ordinary directory again \
             (mobifs recover {}, then rm -r {})",
            shell_path(directory),
            shell_path(place.own_in_directory())
        )));
    }
    PosixLower::open(directory).map_err(|error| Failure::of_store(directory, &error))?;
    Ok(())
}

/// What is worth knowing before.
pub(super) fn warnings() -> Vec<&'static str> {
    let enforces = std::fs::read_to_string("/sys/fs/selinux/enforce");
    if enforces.is_ok_and(|text| text.trim() == "1") {
        vec![
            "SELinux is enforcing, and a FUSE mount has one label for all files unless the policy says otherwise: \
             confined services may be refused there (not tried)",
        ]
    } else {
        Vec::new()
    }
}
