//! Images of ext4.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_fragmentation::{MeasureError, Options, measure};

use crate::disk::{Disk, interleave, measured, scratch};

fn error(path: &Path) -> MeasureError {
    measure(&[path.to_owned()], &Options::default(), None, &|_| {}).unwrap_err()
}

/// An image with files, made without a mount; none, and the test is skipped, where that cannot be.
fn image(base: &Path, options: &[&str]) -> Option<PathBuf> {
    let tree = base.join("tree");
    let inner = tree.join("in ner\nline");
    fs::create_dir_all(&inner).unwrap();
    fs::write(
        inner.join("database"),
        [b"SQLite format 3\0".as_slice(), &[0; 9000]].concat(),
    )
    .unwrap();
    fs::write(inner.join("new\nline.jpg"), vec![1; 5000]).unwrap();
    fs::write(
        tree.join("program"),
        [b"\x7fELF".as_slice(), &[0; 100]].concat(),
    )
    .unwrap();
    fs::write(tree.join("empty"), b"").unwrap();
    fs::hard_link(tree.join("program"), tree.join("again")).unwrap();
    std::os::unix::fs::symlink("program", tree.join("link")).unwrap();
    // A name that e2fsprogs would understand as options.
    let image = base.join("image?offset=1.img");
    File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F"]).args(options).arg("-d").arg(&tree);
    // mke2fs itself reads its argument in that way.
    mke2fs.arg(base.join("plain"));
    fs::rename(&image, base.join("plain")).unwrap();
    let is_made = mobifs_skip::can(mobifs_skip::why_fails(&mut mke2fs));
    fs::rename(base.join("plain"), &image).unwrap();
    is_made.then_some(image)
}

#[test]
fn images_of_ext4_and_ext2_are_measured_without_a_mount() {
    for options in [
        &["-t", "ext4"][..],
        &["-t", "ext2"],
        &["-t", "ext4", "-b", "4096"],
    ] {
        let base = scratch();
        let Some(image) = image(base.path(), options) else {
            return;
        };
        let before = fs::read(&image).unwrap();
        let (report, rows) = measured(&image);
        assert_eq!(report.files, 3, "{report:?}");
        let kind = |name: &str| rows[name].kind.as_str();
        assert_eq!(kind("database"), "sqlite");
        assert_eq!(kind("new\\x0aline.jpg"), "multimedia");
        let program = if rows.contains_key("program") {
            "program"
        } else {
            "again"
        };
        assert_eq!(kind(program), "executable");
        let left = &report.left_out;
        assert_eq!(
            (left.empty, left.further_links, left.no_files),
            (1, 1, 1),
            "{left:?}"
        );
        assert_eq!(left.damaged, 0);
        let free = report.filesystems[0].free.as_ref().unwrap();
        assert!(free.bytes > 20 << 20, "{free:?}");
        assert!(fs::read(&image).unwrap() == before, "the image was changed");
    }
}

#[test]
fn a_mounted_image_is_in_use() {
    let Some(mut disk) = Disk::new("ext4", &[], "") else {
        return;
    };
    interleave(&[disk.path().join("a"), disk.path().join("b")], 30, 4096);
    let error = error(&disk.image());
    let said = error.to_string();
    assert!(matches!(error, MeasureError::InUse { .. }), "{said}");
    let advice = format!("mobifs frag measure {}", disk.path().display());
    assert!(said.contains(&advice), "{said}");
    let (_, mounted) = measured(&disk.path());
    disk.unmount();
    let (report, rows) = measured(&disk.image());
    assert_eq!(rows, mounted);
    assert!(
        report.filesystems[0].is_image && rows["a"].extents > 3,
        "{rows:?}"
    );
}

#[test]
fn damaged_images_are_reported_and_never_changed() {
    let base = scratch();
    let Some(image) = image(base.path(), &["-t", "ext4", "-b", "1024"]) else {
        return;
    };
    let whole = fs::read(&image).unwrap();
    let write = |at: u64, bytes: &[u8]| {
        fs::write(&image, &whole).unwrap();
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    // Nothing but the magic number is left of the superblock.
    write(1024, &[0; 56]);
    let said = error(&image).to_string();
    assert!(said.contains("damaged"), "{said}");
    // Cut short.
    fs::write(&image, &whole[..40_000]).unwrap();
    let said = error(&image).to_string();
    assert!(said.contains("damaged"), "{said}");
    // A name without an inode, and a list of extents (of a file with two names) with a wrong magic
    // number: the rest is reported.
    let plain = base.path().join("plain");
    for (command, damaged) in [("clri /empty", 1), ("sif /program block[0] 0x1234", 2)] {
        fs::write(&plain, &whole).unwrap();
        let mut debugfs = Command::new("debugfs");
        let spoiled = debugfs.args(["-w", "-R", command]).arg(&plain).output();
        assert!(spoiled.unwrap().status.success());
        fs::rename(&plain, &image).unwrap();
        let report = measured(&image).0;
        assert_eq!(report.left_out.damaged, damaged, "{command}");
    }
    // Rubbish all over: a report or a sentence, and the image as it was.
    let mut state = 1_u64;
    for _ in 0..20 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        write(
            2048 + (state >> 33) % 400_000,
            &state.to_le_bytes().repeat(64),
        );
        let before = fs::read(&image).unwrap();
        let outcome = measure(
            std::slice::from_ref(&image),
            &Options::default(),
            None,
            &|_| {},
        );
        match outcome {
            Ok(outcome) => assert!(outcome.report.files <= 4, "{:?}", outcome.report),
            Err(error) => assert!(matches!(error, MeasureError::Damaged { .. }), "{error}"),
        }
        assert!(fs::read(&image).unwrap() == before);
    }
}

#[test]
fn an_image_of_another_filesystem_says_which() {
    let base = scratch();
    let path = base.path().join("x.img");
    File::create(&path).unwrap().set_len(400 << 20).unwrap();
    let mut mkfs = Command::new("mkfs.xfs");
    mkfs.args(["-q", "-f"]).arg(&path);
    if !mobifs_skip::can(mobifs_skip::why_fails(&mut mkfs)) {
        return;
    }
    let said = error(&path).to_string();
    assert!(said.contains("XFS") && said.contains("mount it"), "{said}");
}
