//! An overlay filesystem with its upper layer on a mount, as containers have it.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds};
use crate::kills::kill;

/// Ends with the value.
pub(crate) struct Overlay(pub(crate) PathBuf);

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

impl Overlay {
    /// Mounts an overlay of layers in one directory.
    pub(crate) fn of(layers: &Path, lower: &str, upper: &str, words: &str) -> Option<Self> {
        let at = layers.join(format!("merged-{upper}"));
        for path in [
            at.clone(),
            layers.join(upper),
            layers.join(format!("{upper}-work")),
        ] {
            fs::create_dir_all(path).unwrap();
        }
        let (lower, upper) = (layers.join(lower), layers.join(upper));
        let (lower, upper) = (lower.display(), upper.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={upper}-work{words}");
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "none", "-o", &options]);
        let done = command.arg(&at).output().unwrap();
        done.status.success().then(|| Self(at))
    }
}

/// Overlay filesystems with these layers can be mounted, as they cannot on another overlay.
pub(crate) fn layers(fixture: &Fixture) -> Option<PathBuf> {
    let layers = fixture.directory("layers");
    fs::create_dir_all(layers.join("lower/store/app/sub")).unwrap();
    fs::write(layers.join("lower/store/app/file"), "of the image").unwrap();
    if Overlay::of(&layers, "lower", "tried", "").is_none() {
        mobifs_skip::skip("no overlay filesystem");
        return None;
    }
    Some(layers)
}

fn refused(fixture: &Fixture, why: &str) {
    let refused = fixture.try_mount(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{why}");
    assert!(
        said.contains("is on overlayfs") && said.contains(why),
        "{said}"
    );
}

/// A directory of a lower layer could be moved on the mount and then never be applied: no sync,
/// unmount, mount or recovery succeeded again. Synced content of files of a lower layer was lost.
#[test]
fn a_store_that_may_have_objects_of_a_lower_layer_is_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let Some(layers) = layers(&fixture) else {
        return;
    };
    let overlay = Overlay::of(&layers, "lower", "upper", "").unwrap();
    fixture.store = overlay.0.join("store");
    refused(&fixture, "only an empty directory can become a store");
    assert!(
        !exists(&fixture.store.join(".mobifs")),
        "nothing was changed"
    );
    drop(overlay);
    let overlay = Overlay::of(&layers, "lower", "volatile", ",volatile").unwrap();
    fixture.store = overlay.0.join("new");
    fs::create_dir(&fixture.store).unwrap();
    refused(&fixture, "volatile");
    drop(overlay);
    if let Some(overlay) = Overlay::of(&layers, "lower", "redirects", ",redirect_dir=on") {
        fixture.store = overlay.0.join("new");
        fs::create_dir(&fixture.store).unwrap();
        refused(&fixture, "redirect_dir");
    }
    let memory = fixture.directory("memory");
    fixture.mount_other(&["-t", "tmpfs", "none"], &memory);
    let lower = layers.join("lower");
    let overlay = Overlay::of(&memory, lower.to_str().unwrap(), "upper", ",xino=off").unwrap();
    fixture.store = overlay.0.join("new");
    fs::create_dir(&fixture.store).unwrap();
    refused(&fixture, "layers on several filesystems");
    drop(overlay);
}

/// What is made through an overlay is in its upper layer: a container can have a store, until an
/// image is made of it.
#[test]
fn an_empty_directory_of_an_overlay_becomes_a_store_of_its_upper_layer_only() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let Some(layers) = layers(&fixture) else {
        return;
    };
    let overlay = Overlay::of(&layers, "lower", "upper", "").unwrap();
    fixture.store = overlay.0.join("new");
    fs::create_dir(&fixture.store).unwrap();
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir_all(app.join("sub")).unwrap();
    fs::write(app.join("sub/file"), "first").unwrap();
    fs::hard_link(app.join("sub/file"), app.join("link")).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fs::rename(app.join("sub"), app.join("moved")).unwrap();
    fs::write(app.join("link"), "second").unwrap();
    succeeds(&mobifs(&["sync", "--commit-only"], &fixture.mountpoint));
    fixture.cut_power();
    // Also after the overlay was mounted anew.
    drop(overlay);
    let overlay = Overlay::of(&layers, "lower", "upper", "").unwrap();
    fixture.mount(&[]);
    assert_eq!(fs::read(app.join("moved/file")).unwrap(), b"second");
    fixture.umount();
    assert_eq!(
        fs::read(fixture.store.join("app/moved/file")).unwrap(),
        b"second"
    );
    succeeds(&mobifs(&["check"], &fixture.store));
    drop(overlay);
    // The upper layer is a lower one of another overlay.
    let overlay = Overlay::of(&layers, "upper", "next", "").unwrap();
    fixture.store = overlay.0.join("new");
    refused(&fixture, "the store in it comes from a lower layer");
    drop(overlay);
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
