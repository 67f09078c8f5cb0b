//! From mount to unmount.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use super::{FILE_CONTENT, Served, can_mount, ordinary};
use crate::error::SessionError;
use crate::mount::{MountError, UnmountError, is_mounted, unmount};
use crate::options::{MountOptions, WorkerPlacement};
use crate::session::{Session, SessionHooks};

#[test]
fn a_mount_serves_until_it_is_unmounted() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(&ordinary());
    assert!(!served.sync_reaches);
    assert!(is_mounted(served.path(), "mobifs"));
    assert_eq!(fs::read(served.path().join("hello")).unwrap(), FILE_CONTENT);
    assert_eq!(fs::metadata(served.path().join("hello")).unwrap().ino(), 2);
    assert!(!served.path().join("other").exists());
    let space = rustix::fs::statvfs(served.path()).unwrap();
    assert_eq!((space.f_blocks, space.f_namemax), (1000, 255));
    served.unmount();
    served.join().unwrap();
    assert!(!is_mounted(served.path(), "mobifs"));
}

#[test]
fn a_mount_in_use_is_busy_and_can_be_unmounted_lazily() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(&ordinary());
    let file = File::open(served.path().join("hello")).unwrap();
    let refused = served.handle.unmount(false).unwrap_err();
    assert!(matches!(refused, UnmountError::Busy(_)), "{refused}");
    served.handle.unmount(true).unwrap();
    assert!(!is_mounted(served.path(), "mobifs"));
    assert_eq!(
        std::io::read_to_string(&file).unwrap().as_bytes(),
        FILE_CONTENT
    );
    drop(file);
    served.join().unwrap();
}

#[test]
fn an_abort_ends_requests_under_way_and_all_later_ones() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(&ordinary());
    let path = served.path().join("hello");
    let file = File::open(&path).unwrap();
    let waiting = std::thread::spawn({
        let file = file.try_clone().unwrap();
        move || file.sync_all()
    });
    served.seen.fsyncs.wait_for(1);
    served.handle.abort().unwrap();
    waiting.join().unwrap().unwrap_err();
    file.metadata().unwrap_err();
    assert!(!path.exists());
    assert!(!is_mounted(served.path(), "mobifs"));
    served.seen.fsyncs.open();
    served.join().unwrap();
}

/// All workers are stuck; a request that needs none of what they wait for must not be.
#[test]
fn blocked_requests_do_not_hold_up_the_others() {
    if !can_mount() {
        return;
    }
    for workers in [
        WorkerPlacement::Pinned,
        WorkerPlacement::Floating,
        WorkerPlacement::Single,
    ] {
        let options = MountOptions {
            workers,
            ..ordinary()
        };
        answers_while_blocked(Served::new(&options));
    }
}

fn answers_while_blocked(mut served: Served) {
    let blocked = crate::workers::cpu::usable().len() + 3;
    // A file each: the kernel lets one fsync of a file through at a time.
    let waiting: Vec<_> = (1..=blocked)
        .map(|number| {
            let file = File::open(served.path().join(format!("hello{number}"))).unwrap();
            std::thread::spawn(move || file.sync_all())
        })
        .collect();
    served.seen.fsyncs.wait_for(blocked);
    assert_eq!(fs::metadata(served.path().join("hello")).unwrap().ino(), 2);
    served.seen.fsyncs.open();
    for thread in waiting {
        thread.join().unwrap().unwrap();
    }
    served.unmount();
    served.join().unwrap();
}

#[test]
fn a_panic_ends_the_mount_and_every_request() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(&ordinary());
    fs::metadata(served.path().join("poison")).unwrap_err();
    assert!(matches!(served.join(), Err(SessionError::Panicked)));
    assert!(!is_mounted(served.path(), "mobifs"));
}

#[test]
fn mount_options_show_in_the_mount_table() {
    if !can_mount() {
        return;
    }
    let mut options = ordinary();
    options
        .apply("ro,nosuid,nodev,noexec,noatime,fsname=a name,subtype=other")
        .unwrap();
    let mut served = Served::new(&options);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = served.path().to_str().unwrap();
    let line = table.lines().find(|line| line.contains(path)).unwrap();
    assert!(line.starts_with("a\\040name "), "{line}");
    for expected in [
        " fuse.other ",
        "ro,nosuid,nodev,noexec,noatime",
        "default_permissions",
        "allow_other",
    ] {
        assert!(line.contains(expected), "{expected} in {line}");
    }
    served.unmount();
    served.join().unwrap();
}

#[test]
fn each_bad_mountpoint_has_its_error() {
    if !can_mount() {
        return;
    }
    let try_mount = |path: &std::path::Path| {
        let filesystem = super::OneFile(Default::default());
        Session::mount(filesystem, path, &ordinary(), SessionHooks::default()).unwrap_err()
    };
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(matches!(
        try_mount(&missing),
        MountError::MountpointMissing(_)
    ));
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(
        try_mount(&file),
        MountError::MountpointNotDirectory(_)
    ));
    assert!(matches!(
        try_mount(&file.join("x")),
        MountError::MountpointNotDirectory(_)
    ));

    let mut served = Served::new(&MountOptions::default());
    assert!(matches!(
        try_mount(served.path()),
        MountError::AlreadyMounted(_)
    ));
    served.unmount();
    served.join().unwrap();
    let again = unmount(served.path(), false).unwrap_err();
    assert!(matches!(again, UnmountError::NotMounted(_)), "{again}");
}
