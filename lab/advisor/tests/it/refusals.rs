//! What cannot be advised on, and what has to be known besides.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use mobifs_advisor::{Options, advise, table};

use crate::disk::{Disk, succeed};

fn refused(path: &Path) -> String {
    advise(path, &Options::default(), &|_| {})
        .unwrap_err()
        .to_string()
}

#[test]
fn what_has_no_advice_is_said_in_a_sentence() {
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    std::os::unix::fs::symlink("elsewhere", path("link")).unwrap();
    fs::write(path("x.img"), b"").unwrap();
    assert!(refused(&path("missing")).contains("No such file"));
    assert!(refused(&path("link")).contains("symbolic link"));
    assert!(refused(&path("x.img")).contains("image"));
    assert!(refused(Path::new("/dev/null")).contains("no extents"));
    assert!(refused(Path::new("/proc")).contains("no FIEMAP"));
}

/// Pieces of one page, in two files.
fn tear(directory: &Path) {
    let open = |name: &str| fs::File::create(directory.join(name)).unwrap();
    let mut files = [open("a"), open("b")];
    for _ in 0..40 {
        for file in &mut files {
            file.write_all(&[1; 4096]).unwrap();
            file.sync_data().unwrap();
        }
    }
}

#[test]
fn what_is_read_only_is_to_be_remounted_and_a_store_is_the_mounts() {
    let Some(disk) = Disk::plain("ext4", 64, &["-F", "-b", "4096"]) else {
        return;
    };
    tear(&disk.path());
    fs::create_dir(disk.path().join(".mobifs")).unwrap();
    let report = disk.advise(&Options::default());
    let said = table(&report);
    assert!(said.contains("preallocate_large_bytes"), "{said}");
    assert!(said.contains("unmount it before"), "{said}");
    assert!(said.contains("mobifs frag defrag --copy"), "{said}");
    let mountpoint = disk.path();
    let mut remount = Command::new("mount");
    succeed(remount.args(["-o", "remount,ro"]).arg(&mountpoint));
    let report = disk.advise(&Options::default());
    let said = table(&report);
    let command = format!("mount -o remount,rw {}", mountpoint.display());
    assert!(report.is_read_only && said.contains(&command), "{said}");
}

#[test]
fn of_btrfs_it_is_said_what_is_not_known() {
    let Some(disk) = Disk::plain("btrfs", 300, &["-f"]) else {
        return;
    };
    tear(&disk.path());
    let report = disk.advise(&Options::default());
    let said = table(&report);
    assert!(said.contains("does not report its free room"), "{said}");
    assert!(said.contains("shared with other files"), "{said}");
    assert!(said.contains("chattr +C"), "{said}");
    assert!(
        !said.contains("preallocat") || said.contains("not predicted"),
        "{said}"
    );
}

/// It advised what `defrag` then refused.
#[test]
fn nothing_is_advised_that_ext4_does_not_move() {
    let Some(disk) = Disk::plain(
        "ext4",
        64,
        &["-F", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
    ) else {
        return;
    };
    let open = |name: &str| fs::File::create(disk.path().join(name)).unwrap();
    let mut files = [open("a"), open("b")];
    for _ in 0..40 {
        for file in &mut files {
            file.write_all(&[1; 16384]).unwrap();
            file.sync_data().unwrap();
        }
    }
    let said = table(&disk.advise(&Options::default()));
    assert!(!said.contains("mobifs frag defrag --copy"), "{said}");
    assert!(said.contains("nothing can be defragmented here"), "{said}");
    assert!(said.contains("bigalloc"), "{said}");
}
