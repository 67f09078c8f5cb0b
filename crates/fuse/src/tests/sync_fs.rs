//! Mounts that `sync(2)` reaches.

use std::fs::{self, File};
use std::sync::atomic::Ordering;

use super::{FILE_CONTENT, Served, can_mount, ordinary};
use crate::options::{MountOptions, SyncFsMode};

/// Loop devices that mounts of this process use.
fn our_loop_devices() -> usize {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return 0;
    };
    let backing = |entry: fs::DirEntry| {
        fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default()
    };
    entries
        .flatten()
        .map(backing)
        .filter(|path| path.contains("memfd:mobifs"))
        .count()
}

/// A mount that syncs reach, if this kernel has such.
fn reachable(list: &str) -> Option<Served> {
    if !can_mount() {
        return None;
    }
    let mut options = MountOptions {
        sync_fs: SyncFsMode::Auto,
        ..MountOptions::default()
    };
    options.apply(list).unwrap();
    let served = Served::new(&options);
    if !served.sync_reaches {
        mobifs_skip::skip("this kernel has no mounts that sync(2) reaches");
        return None;
    }
    Some(served)
}

#[test]
fn sync_and_syncfs_reach_the_filesystem_before_they_return() {
    let Some(mut served) = reachable("fsname=/srv/some store") else {
        return;
    };
    let seen = |served: &Served| served.seen.sync_fs.load(Ordering::SeqCst);
    let file = File::open(served.path().join("hello")).unwrap();
    assert_eq!(seen(&served), 0);
    rustix::fs::syncfs(&file).unwrap();
    assert_eq!(seen(&served), 1);
    rustix::fs::sync();
    assert!(seen(&served) >= 2);
    drop(file);
    served.unmount();
    served.join().unwrap();
}

#[test]
fn an_ordinary_mount_is_not_reached() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(&ordinary());
    rustix::fs::syncfs(File::open(served.path().join("hello")).unwrap()).unwrap();
    assert_eq!(served.seen.sync_fs.load(Ordering::SeqCst), 0);
    served.unmount();
    served.join().unwrap();
}

#[test]
fn the_mount_table_shows_the_source_and_not_the_loop_device() {
    let Some(mut served) = reachable("fsname=/srv/some store,subtype=mine,ro,nosuid") else {
        return;
    };
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = served.path().to_str().unwrap();
    let line = table.lines().find(|line| line.contains(path)).unwrap();
    assert!(line.starts_with("/srv/some\\040store "), "{line}");
    assert!(line.contains(" fuseblk.mine ro,nosuid,"), "{line}");
    assert!(line.contains("allow_other"), "{line}");
    served.unmount();
    served.join().unwrap();
}

#[test]
fn a_source_name_that_is_no_path_still_mounts() {
    for name in ["plain", "..", "/", "a/", "/a//b/./c"] {
        let Some(mut served) = reachable(&format!("fsname={name}")) else {
            return;
        };
        assert_eq!(
            fs::read(served.path().join("hello")).unwrap(),
            FILE_CONTENT,
            "{name}"
        );
        served.unmount();
        served.join().unwrap();
    }
}

#[test]
fn unmounting_waits_for_the_filesystem_and_frees_the_loop_device() {
    let before = our_loop_devices();
    let Some(mut served) = reachable("") else {
        return;
    };
    served.unmount();
    assert_eq!(served.seen.destroyed.load(Ordering::SeqCst), 1);
    served.join().unwrap();
    // Other tests run at the same time and have devices of their own; this mount's is
    // one more than there were only if it stayed.
    let path = served.path().to_str().unwrap();
    assert!(
        !fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .contains(path)
    );
    let mut tries = 0;
    while our_loop_devices() > before && tries < 500 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        tries += 1;
    }
    assert!(our_loop_devices() <= before);
}

#[test]
fn an_abort_takes_the_mount_away_even_in_use() {
    let Some(mut served) = reachable("") else {
        return;
    };
    let file = File::open(served.path().join("hello")).unwrap();
    served.handle.abort().unwrap();
    file.metadata().unwrap_err();
    served.join().unwrap();
    assert!(!crate::is_mounted(served.path(), "mobifs"));
}
