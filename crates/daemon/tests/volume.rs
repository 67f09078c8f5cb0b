//! A volume over a store in memory, on a real mount, used as programs use it.
//!
//! What the engine decides is tested with the engine; here is what depends on the
//! kernel and the adapter agreeing: what the kernel caches, what it asks for, what it
//! leaves to the daemon.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mobifs_daemon::VolumeSession;
use mobifs_fuse::{MountOptions, SessionError, SessionHandle, UnmountError};
use mobifs_store::MemoryStore;
use mobifs_volume::{Config, Volume, VolumeOptions};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

/// `st_mode` of a character device.
const S_IFCHR: u32 = 0o020_000;
/// An ordinary user that every system has.
const NOBODY: u32 = 65_534;
/// How long a mount without users may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

struct Mounted {
    volume: Arc<Volume>,
    handle: SessionHandle,
    directory: TempDir,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Mounted {
    /// A mount with one app directory in it; none if this process may not mount.
    fn new(options: &str) -> Option<Self> {
        Self::with_durable(options, true)
    }

    fn with_durable(options: &str, allow_durable: bool) -> Option<Self> {
        if !mobifs_skip::can_mount() {
            return None;
        }
        let config = Config::defaults().unwrap();
        let store = Arc::new(MemoryStore::new());
        let volume_options = VolumeOptions {
            allow_durable,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(store, volume_options).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut mount_options = MountOptions::default();
        mount_options.apply(options).unwrap();
        let session = VolumeSession::mount(
            Arc::clone(&volume),
            directory.path(),
            &mount_options,
            None,
            None,
        )
        .unwrap();
        let handle = session.handle();
        let thread = Some(std::thread::spawn(move || session.run()));
        let mounted = Self {
            volume,
            handle,
            directory,
            thread,
        };
        fs::create_dir(mounted.path("")).unwrap();
        Some(mounted)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("app").join(name)
    }

    /// Unmounts. A process that another test is starting has all our files open until it executes
    /// its program: the mount may be busy for that long.
    fn end(mut self) {
        let start = Instant::now();
        while let Err(error) = self.handle.unmount(false) {
            let is_busy = matches!(error, UnmountError::Busy(_));
            assert!(is_busy && start.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.handle.abort();
            let _ = thread.join();
        }
    }
}

fn as_nobody(script: &str) -> bool {
    use std::os::unix::process::CommandExt;
    Command::new("/bin/sh")
        .args(["-c", script])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .status()
        .unwrap()
        .success()
}

#[test]
fn a_file_unlinked_while_open_lives_until_it_is_closed() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("gone");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(b"before ").unwrap();
    // Opened a second time: an open that the kernel does not send.
    let again = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"after").unwrap();
    drop(file);
    assert_eq!(std::io::read_to_string(again).unwrap(), "before after");
    assert!(!path.exists());
    mounted.end();
}

#[test]
fn a_directory_removed_while_open_is_empty() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("d");
    fs::create_dir(&path).unwrap();
    let open = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    let entries: Vec<_> = rustix::fs::Dir::read_from(&open).unwrap().collect();
    let names: Vec<_> = entries
        .iter()
        .flatten()
        .map(|e| e.file_name().to_owned())
        .collect();
    assert!(
        names
            .iter()
            .all(|name| matches!(name.to_bytes(), b"." | b"..")),
        "{names:?}"
    );
    let made = rustix::fs::openat(&open, "x", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU);
    assert_eq!(made.unwrap_err(), Errno::NOENT);
    drop(open);
    mounted.end();
}

#[test]
fn an_unnamed_file_can_be_given_a_name() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let unnamed = rustix::fs::open(mounted.path(""), flags, Mode::from(0o640)).unwrap();
    let mut file = File::from(unnamed);
    file.write_all(b"unnamed").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let proc_path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let name = mounted.path("named");
    rustix::fs::linkat(CWD, proc_path, CWD, &name, AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(&name).unwrap(), "unnamed");
    assert_eq!(fs::metadata(&name).unwrap().nlink(), 1);
    // One that never gets a name.
    drop(rustix::fs::open(mounted.path(""), flags, Mode::RUSR).unwrap());
    mounted.end();
}

/// The kernel sends the end of such a file only as long as it has not seen that OPEN is
/// not wanted.
#[test]
fn unnamed_files_that_are_closed_leave_memory() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let in_use = || mounted.volume.status().memory.deleted_in_use_bytes;
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    for has_opened_another in [false, true] {
        if has_opened_another {
            fs::write(mounted.path("another"), "").unwrap();
        }
        let unnamed = rustix::fs::open(mounted.path(""), flags, Mode::RUSR).unwrap();
        let file = File::from(unnamed);
        file.write_all_at(&[7; 8192], 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(in_use(), 8192);
        let mut content = [0; 8192];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content.iter().all(|&byte| byte == 7));
        drop(file);
        let start = Instant::now();
        while in_use() != 0 {
            assert!(start.elapsed() < PATIENCE, "{has_opened_another}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    mounted.end();
}

/// The kernel must not run a changed file with its owner's rights because a set-user-id bit that a
/// write removed is still cached.
#[test]
fn a_changed_program_no_longer_runs_as_its_owner() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("whoami");
    fs::copy("/usr/bin/id", &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    // The attributes that the kernel caches from here on have the bit.
    let program = path.display();
    assert!(as_nobody(&format!("test $({program} -u) = 0")));
    assert!(as_nobody(&format!(
        "echo changed >> {program} && test $({program} -u) = {NOBODY}"
    )));
    mounted.end();
}

#[test]
fn a_write_by_another_user_takes_the_set_id_bits() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let write = |path: &Path| format!("echo y >> {}", path.display());
    let allocate = |path: &Path| format!("fallocate -l 8192 {}", path.display());
    let truncate = |path: &Path| format!(": > {}", path.display());
    let changes: [&dyn Fn(&Path) -> String; 3] = [&write, &allocate, &truncate];
    for (number, change) in changes.into_iter().enumerate() {
        let path = mounted.path(&format!("program{number}"));
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        // Keeps the inode, and with it the cached attributes.
        let open = File::open(&path).unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o6777);
        assert!(as_nobody(&change(&path)), "{number}");
        assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o777, "{number}");
    }
    mounted.end();
}

/// The kernel decides that they must go, and sends a request that changes nothing.
#[test]
fn a_chown_to_the_same_owner_takes_the_set_id_bits_and_so_does_root_without_fsetid() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("program");
    let with_bits = || {
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    };
    let mode = || path.metadata().unwrap().mode() & 0o7777;
    with_bits();
    rustix::fs::chown(&path, None, None).unwrap();
    assert_eq!(mode(), 0o777);

    with_bits();
    let allocated = Command::new("setpriv")
        .args(["--bounding-set", "-fsetid", "fallocate", "-l", "8192"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(allocated.success());
    assert_eq!(mode(), 0o777);

    // A directory keeps its own, as everywhere.
    let directory = mounted.path("directory");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o6777)).unwrap();
    rustix::fs::chown(&directory, None, None).unwrap();
    assert_eq!(directory.metadata().unwrap().mode() & 0o7777, 0o6777);
    mounted.end();
}

/// xfstests' generic/683 to 688: where the group may not execute the file its bit stayed,
/// whichever user wrote, and a `chown` that names no owner left all bits.
#[test]
fn a_change_by_a_user_outside_the_files_group_clears_its_set_id_bit() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, "x").unwrap();
    let file = path.display();
    let mode_after = |group: u32, before: u32, groups: &str, change: &str| {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(group)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
        let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} {groups}");
        let changed = Command::new("/bin/sh")
            .args(["-c", &format!("{user} sh -c '{change}'")])
            .status()
            .unwrap();
        assert!(changed.success(), "{change}");
        fs::metadata(&path).unwrap().mode() & 0o7777
    };
    let alone = "--clear-groups";
    for change in [
        format!("echo y >> {file}"),
        format!("truncate -s 3 {file}"),
        format!("fallocate -l 8192 {file}"),
    ] {
        assert_eq!(mode_after(77, 0o2766, alone, &change), 0o766, "{change}");
        let member = mode_after(77, 0o2766, "--groups 5,77", &change);
        assert_eq!(member, 0o2766, "{change}");
        let own = mode_after(NOBODY, 0o2766, alone, &change);
        assert_eq!(own, 0o2766, "{change}");
    }
    let nobody = format!("python3 -c \"import os; os.chown(\\\"{file}\\\", -1, -1)\"");
    assert_eq!(mode_after(NOBODY, 0o6755, alone, &nobody), 0o755);
    mounted.end();
}

/// Only reading files moved access times.
#[test]
fn listing_and_reading_a_link_move_access_times() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let (directory, link) = (mounted.path("directory"), mounted.path("link"));
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("target", &link).unwrap();
    for path in [&directory, &link] {
        let accessed = || fs::symlink_metadata(path).unwrap().accessed().unwrap();
        let before = accessed();
        std::thread::sleep(Duration::from_millis(20));
        if path == &link {
            fs::read_link(path).unwrap();
        } else {
            fs::read_dir(path).unwrap().count();
        }
        assert!(accessed() > before, "{}", path.display());
    }
    let quiet = mounted.path("quiet");
    fs::write(&quiet, "x").unwrap();
    // What the kernel has of it was written, so it must be made to ask.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOATIME | OFlags::DIRECT).bits().cast_signed())
        .open(&quiet)
        .unwrap();
    let before = fs::metadata(&quiet).unwrap().accessed().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file.read_at(&mut [0; 8], 0).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&quiet).unwrap().accessed().unwrap(), before);
    mounted.end();
}

#[test]
fn modes_and_owners_are_enforced_for_other_users() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let secret = mounted.path("secret");
    fs::write(&secret, "mine").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&format!("cat {} 2>/dev/null", secret.display())));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o604)).unwrap();
    assert!(as_nobody(&format!("cat {} >/dev/null", secret.display())));
    assert!(!as_nobody(&format!(
        "echo x > {} 2>/dev/null",
        mounted.path("new").display()
    )));
    mounted.end();
}

#[test]
fn the_umask_and_default_acls_decide_the_mode_of_new_files() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let directory = mounted.path("d");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let make = |name: &str| {
        let path = directory.join(name);
        assert!(as_nobody(&format!("umask 027; touch {}", path.display())));
        fs::metadata(&path).unwrap()
    };
    let plain = make("plain");
    assert_eq!((plain.mode() & 0o7777, plain.uid()), (0o640, NOBODY));
    // user::rwx group::rwx other::r-x, as setfacl -d writes it.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, bits) in [(1_u16, 7_u16), (4, 7), (32, 5)] {
        acl.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        acl.extend(u32::MAX.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&directory, "system.posix_acl_default", &acl, flags).unwrap();
    assert_eq!(
        make("by-acl").mode() & 0o7777,
        0o664,
        "the umask does not count"
    );
    mounted.end();
}

#[test]
fn everything_that_changes_beside_the_request_shows_at_once() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = |name: &str| mounted.path(name);
    let stat = |name: &str| fs::metadata(mounted.path(name)).unwrap();
    fs::write(path("a"), "1").unwrap();
    fs::hard_link(path("a"), path("b")).unwrap();
    assert_eq!((stat("a").nlink(), stat("b").nlink()), (2, 2));
    let before = (stat("a").ctime(), stat("a").ctime_nsec());
    fs::rename(path("b"), path("c")).unwrap();
    assert!((stat("a").ctime(), stat("a").ctime_nsec()) > before);
    fs::remove_file(path("c")).unwrap();
    assert_eq!(stat("a").nlink(), 1);

    let links = stat("").nlink();
    fs::create_dir(path("d")).unwrap();
    fs::create_dir(path("e")).unwrap();
    assert_eq!(stat("").nlink(), links + 2);
    let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
    let before = times(&stat("d"));
    fs::rename(path("e"), path("d/e")).unwrap();
    assert_eq!((stat("").nlink(), stat("d").nlink()), (links + 1, 3));
    assert!(times(&stat("d")) > before);
    // A name known to be absent becomes present, and the other way round.
    assert!(!path("late").exists());
    fs::write(path("late"), "").unwrap();
    assert!(path("late").exists());
    fs::rename(path("late"), path("later")).unwrap();
    assert!(!path("late").exists() && path("later").exists());
    mounted.end();
}

#[test]
fn renames_obey_their_flags() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "b");
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(&b).unwrap(), "b");
    assert!(!a.exists());
    mounted.end();
}

/// Overlay filesystems take no upper directory without it.
#[test]
fn a_rename_may_leave_a_whiteout() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let over_existing = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename(over_existing), Err(Errno::EXIST));
    let senseless = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename(senseless), Err(Errno::INVAL));
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read_to_string(&b).unwrap(), "a");
    let left = rustix::fs::lstat(&a).unwrap();
    assert_eq!((left.st_mode, left.st_rdev), (S_IFCHR, 0));
    assert_eq!((left.st_nlink, left.st_size), (1, 0));
    fs::remove_file(&a).unwrap();
    mounted.end();
}

#[test]
fn a_large_directory_lists_whole_while_it_shrinks() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    const FILES: usize = 3000;
    for number in 0..FILES {
        File::create(mounted.path(&format!("a file with a long name {number}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(mounted.path("")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
        fs::remove_file(entry.path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, FILES);
    assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    mounted.end();
}

#[test]
fn appends_truncations_holes_and_copies_are_exact() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, "one").unwrap();
    let mut append = OpenOptions::new().append(true).open(&path).unwrap();
    append.write_all(b"two").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "onetwo");
    // O_TRUNC on an open that the kernel does not send.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    append.write_all(b"three").unwrap();
    file.write_all_at(b"far", 5 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (5 << 30) + 3);
    assert!(file.metadata().unwrap().blocks() < 64);
    let mut start = String::new();
    (&file).take(5).read_to_string(&mut start).unwrap();
    assert_eq!(start, "three");
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)).unwrap();
    assert!(
        (5..=4096).contains(&hole) && data == 5 << 30,
        "{hole} {data}"
    );
    let past = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(6 << 30)).unwrap_err();
    assert_eq!(past, Errno::NXIO);

    let copy = File::create(mounted.path("copy")).unwrap();
    let mut from = 5 << 30;
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, None, 1 << 20).unwrap();
    assert_eq!(
        (copied, fs::read_to_string(mounted.path("copy")).unwrap()),
        (3, "far".into())
    );
    drop((append, file, copy));
    mounted.end();
}

#[test]
fn direct_and_synchronous_writes_are_seen_by_cached_readers() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, vec![b'a'; 8192]).unwrap();
    assert_eq!(fs::read(&path).unwrap()[4096], b'a');
    let flags = (OFlags::DIRECT | OFlags::SYNC).bits() as i32;
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(&path)
        .unwrap();
    // The system refuses direct writes from memory that is not aligned.
    #[repr(align(4096))]
    struct Aligned([u8; 4096]);
    let block = Box::new(Aligned([b'd'; 4096]));
    assert_eq!(direct.write_at(&block.0, 4096).unwrap(), 4096);
    drop(direct);
    let content = fs::read(&path).unwrap();
    assert_eq!(
        (content[4095], content[4096], content[8191]),
        (b'a', b'd', b'd')
    );
    mounted.end();
}

#[test]
fn extended_attributes_are_sized_listed_and_hidden() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    setxattr(&path, "user.x", b"value", XattrFlags::CREATE).unwrap();
    setxattr(&path, "trusted.y", b"", XattrFlags::empty()).unwrap();
    assert_eq!(
        setxattr(&path, "user.x", b"", XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    assert_eq!(
        setxattr(&path, "user.z", b"", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    // Allowed, and never possible.
    let never = XattrFlags::CREATE | XattrFlags::REPLACE;
    let set = |name: &str| setxattr(&path, name, b"", never);
    assert_eq!(set("user.x"), Err(Errno::EXIST));
    assert_eq!(set("user.z"), Err(Errno::NODATA));
    let mut short = [0_u8; 3];
    assert_eq!(getxattr(&path, "user.x", &mut short), Err(Errno::RANGE));
    let mut room = [0_u8; 64];
    assert_eq!(getxattr(&path, "user.x", &mut room), Ok(5));
    assert_eq!(&room[..5], b"value");
    let length = listxattr(&path, &mut room).unwrap();
    assert_eq!(&room[..length], b"trusted.y\0user.x\0");
    // This program asks for the size first.
    let value = format!(
        "test \"$(getfattr --only-values -n user.x {})\" = value",
        path.display()
    );
    assert!(as_nobody(&value));
    let listed = format!(
        "test -z \"$(getfattr -m trusted {} 2>/dev/null)\"",
        path.display()
    );
    assert!(as_nobody(&listed));
    removexattr(&path, "user.x").unwrap();
    assert_eq!(getxattr(&path, "user.x", &mut room), Err(Errno::NODATA));
    mounted.end();
}

#[test]
fn the_stores_own_directory_is_hidden_and_statfs_shows_space() {
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let reserved = mounted.directory.path().join(".mobifs");
    assert!(!reserved.exists());
    let refused = fs::create_dir(&reserved).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
    let space = rustix::fs::statvfs(mounted.directory.path()).unwrap();
    assert!(space.f_bavail > 0 && space.f_namemax == 255);
    mounted.end();
}

/// Where no app can be durable, the kernel stops asking; callers must not notice.
#[test]
fn fsync_succeeds_whether_or_not_apps_may_be_durable() {
    for allow_durable in [true, false] {
        let Some(mounted) = Mounted::with_durable("", allow_durable) else {
            return;
        };
        let mut file = File::create(mounted.path("file")).unwrap();
        for _ in 0..2 {
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
            file.sync_data().unwrap();
            File::open(mounted.path("")).unwrap().sync_all().unwrap();
        }
        drop(file);
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"xx");
        mounted.end();
    }
}

/// Whether a thread of this process runs under `SCHED_IDLE`, as a leading worker does.
fn a_worker_has_low_priority() -> bool {
    const POLICY_AFTER_NAME: usize = 41 - 3;
    fs::read_dir("/proc/self/task").unwrap().any(|task| {
        let line = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        let policy = line
            .rsplit_once(')')
            .and_then(|(_, after)| after.split_ascii_whitespace().nth(POLICY_AFTER_NAME));
        policy == Some("5")
    })
}

/// The calling thread goes before all ordinary ones, and so do those that it starts.
fn take_high_priority() {
    let me = rustix::thread::gettid();
    rustix::process::setpriority_process(Some(me), -20).unwrap();
}

fn stay_on_first_cpu() {
    let usable = sched_getaffinity(None).unwrap();
    let mut first = CpuSet::new();
    first.set(
        (0..CpuSet::MAX_CPU)
            .find(|&cpu| usable.is_set(cpu))
            .unwrap(),
    );
    sched_setaffinity(None, &first).unwrap();
}

/// A worker that leads has given its priority up: a program that only computes takes its
/// CPU from it, and does not give it back as long as this test may take.
#[test]
fn a_program_that_computes_does_not_stop_the_worker_on_its_cpu() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let Some(mounted) = Mounted::new("") else {
        return;
    };
    let file = File::create(mounted.path("file")).unwrap();
    let (done, all_done) = channel();
    let computing = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&computing);
    let writer = std::thread::spawn(move || {
        stay_on_first_cpu();
        take_high_priority();
        let (start, started) = channel();
        let program = std::thread::spawn(move || {
            started.recv().unwrap();
            while still.load(Ordering::SeqCst) {}
        });
        // On a machine that does much else no leader lowers its priority.
        for number in 0..50_000 {
            file.write_all_at(b"x", number % 100).unwrap();
            if number % 64 == 0 && a_worker_has_low_priority() {
                break;
            }
        }
        start.send(()).unwrap();
        for number in 0..40 {
            file.write_all_at(b"y", number).unwrap();
        }
        done.send(()).unwrap();
        program.join().unwrap();
    });
    let in_time = all_done.recv_timeout(DEADLINE);
    computing.store(false, Ordering::SeqCst);
    writer.join().unwrap();
    in_time.unwrap();
    mounted.end();
}
