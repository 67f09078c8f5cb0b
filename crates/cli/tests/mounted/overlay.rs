//! An overlay filesystem with its upper layer on a mount, as containers have it.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds};
use crate::kills::kill;

/// Ends with the value.
struct Overlay(PathBuf);

impl Overlay {
    /// None where the kernel has no overlay filesystem.
    fn mount(fixture: &Fixture) -> Option<Self> {
        let directory = fixture.directory("merged");
        let layers = fixture.mountpoint.join("app");
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            fixture.directory("lower").display(),
            layers.join("upper").display(),
            layers.join("work").display()
        );
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.contains("overlay") {
            let loaded = Command::new("modprobe").arg("overlay").output();
            if !loaded.is_ok_and(|output| output.status.success()) {
                return None;
            }
        }
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "none", "-o", &options]);
        succeeds(&command.arg(&directory).output().unwrap());
        Some(Self(directory))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ended = Command::new("umount").arg(&self.0).output();
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Found by trying programs: the kernel refused the mount, because a rename left no whiteout.
#[test]
fn an_overlay_may_have_its_upper_layer_on_a_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let lower = fixture.directory("lower");
    fs::create_dir(lower.join("directory")).unwrap();
    for name in ["changed", "removed", "renamed", "directory/in"] {
        fs::write(lower.join(name), name).unwrap();
    }
    let layers = fixture.mountpoint.join("app");
    fs::create_dir_all(layers.join("upper")).unwrap();
    fs::create_dir(layers.join("work")).unwrap();
    let Some(overlay) = Overlay::mount(&fixture) else {
        mobifs_skip::skip("no overlay filesystem");
        return fixture.umount();
    };
    let merged = overlay.0.clone();
    fs::write(merged.join("changed"), "anew").unwrap();
    fs::remove_file(merged.join("removed")).unwrap();
    kill(fixture.daemon_pid());
    fs::rename(merged.join("renamed"), merged.join("name")).unwrap();
    fs::remove_dir_all(merged.join("directory")).unwrap();
    fs::create_dir(merged.join("directory")).unwrap();
    let check = |merged: &Path| {
        assert_eq!(fs::read(merged.join("changed")).unwrap(), b"anew");
        assert_eq!(fs::read(merged.join("name")).unwrap(), b"renamed");
        assert!(!exists(&merged.join("removed")) && !exists(&merged.join("renamed")));
        let listed = fs::read_dir(merged.join("directory")).unwrap();
        assert_eq!(listed.count(), 0);
    };
    check(&merged);
    drop(overlay);
    succeeds(&mobifs(&["sync", "--commit-only"], &fixture.mountpoint));
    fixture.cut_power();
    fixture.mount(&[]);
    for name in ["removed", "renamed"] {
        let whiteout = fs::symlink_metadata(layers.join("upper").join(name)).unwrap();
        assert!(whiteout.file_type().is_char_device(), "{name}");
    }
    let overlay = Overlay::mount(&fixture).unwrap();
    check(&overlay.0);
    drop(overlay);
    fixture.umount();
}
