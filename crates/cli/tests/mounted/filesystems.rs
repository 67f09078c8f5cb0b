//! What some filesystems below cannot keep is refused when it is asked for, or with the whole
//! store. Tests are skipped where the kernel does not have the filesystem.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Fixture, fails, mobifs, needs_mounts, succeeds};

/// The store is on a new filesystem of this kind; false, with a message, if that cannot be.
fn put_store_on(fixture: &mut Fixture, make: &[&str]) -> bool {
    let image = fixture.path("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(512 << 20).unwrap();
    let at = fixture.directory("disk");
    let is_made = runs(Command::new(make[0]).args(&make[1..]).arg(&image));
    if !is_made
        || !runs(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&at),
        )
    {
        eprintln!("skipped: {make:?} or its mount fails here");
        return false;
    }
    fixture.unmount_at_end(&at);
    fixture.store = at.join("store");
    fs::create_dir(&fixture.store).unwrap();
    true
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn fold_case(directory: &Path) {
    succeeds(
        &Command::new("chattr")
            .arg("+F")
            .arg(directory)
            .output()
            .unwrap(),
    );
}

fn names(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Found by trying: of two names that differed in case, one was lost, and files of FAT were
/// not found any more after a while.
#[test]
fn a_store_on_fat_is_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if put_store_on(&mut fixture, &["mkfs.vfat"]) {
        fails(&fixture.try_mount(&[]), 1, &["FAT", "ext4"]);
        assert_eq!(names(&fixture.store), 0);
    }
}

#[test]
fn directories_that_fold_case_are_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q", "-O", "casefold"]) {
        return;
    }
    let inside = fixture.store.join("inside");
    fs::create_dir(&inside).unwrap();
    fold_case(&inside);
    fs::write(inside.join("file"), "content").unwrap();
    // One inside the store stays as it is.
    fixture.mount(&[]);
    let shown = fixture.mountpoint.join("inside");
    assert!(fs::read_dir(&shown).is_ok_and(|mut entries| entries.all(|entry| entry.is_err())));
    fs::write(shown.join("FILE"), "other").unwrap_err();
    fs::write(fixture.mountpoint.join("FILE"), "one").unwrap();
    fs::write(fixture.mountpoint.join("file"), "two").unwrap();
    fixture.umount();
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"content");
    assert_eq!(fs::read(fixture.store.join("FILE")).unwrap(), b"one");
    assert_eq!(fs::read(fixture.store.join("file")).unwrap(), b"two");
    // As a store it is refused.
    let folding = fixture.store.join("folding");
    fs::create_dir(&folding).unwrap();
    fold_case(&folding);
    fixture.store = folding;
    fails(
        &fixture.try_mount(&[]),
        1,
        &["upper and lower case", "chattr +F"],
    );
    assert_eq!(names(&fixture.store), 0);
}

/// Found by trying: XFS takes targets of 1,023 bytes. A longer one was acknowledged, and could
/// neither be applied nor recovered.
#[test]
fn symlinks_are_as_long_as_the_filesystem_below_keeps() {
    needs_mounts!();
    for (make, longest) in [
        (&["mkfs.xfs", "-q", "-f"][..], 1023),
        (&["mkfs.ext4", "-q", "-b", "1024"], 1023),
        (&["mkfs.ext4", "-q"], 4095),
        (&["mkfs.btrfs", "-q", "-f"], 4095),
    ] {
        let mut fixture = Fixture::new();
        if !put_store_on(&mut fixture, make) {
            continue;
        }
        fixture.mount(&[]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        for bytes in [longest, longest + 1] {
            let made = symlink("x".repeat(bytes), app.join(bytes.to_string()));
            assert_eq!(
                made.is_ok(),
                bytes == longest,
                "{make:?}: {bytes}: {made:?}"
            );
        }
        fixture.cut_power();
        succeeds(&mobifs(&["recover"], &fixture.store));
    }
}
