//! What `mobifs adopt` refuses, `--dry-run` and `mobifs doctor` refuse, too: both said that it could be done.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::Value;

use crate::adopt::{Adoption, is_immutable, set_immutable};
use crate::fixture::{mobifs, needs_mounts, succeeds};
use crate::overlay::{Overlay, layers};

const FAILED: i32 = 1;

fn doctor(words: &[&str], place: &Path) -> Value {
    let output = mobifs(&[&["doctor", "--json"], words].concat(), place);
    succeeds(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What is said of a mount: its state and a sentence.
fn mount_of(found: &Value) -> (&str, &str) {
    let mount = &found["ways"]["mount"];
    let text = |name: &str| mount[name].as_str().unwrap();
    (text("state"), text("sentence"))
}

/// Free at the end of a test, so that it can be deleted.
struct Immutable<'a>(&'a Path);

impl Drop for Immutable<'_> {
    fn drop(&mut self) {
        set_immutable(self.0, false);
    }
}

#[test]
fn an_immutable_directory_is_neither_renamed_nor_a_store() {
    needs_mounts!();
    let adoption = Adoption::new();
    let above = adoption.fixture.directory("above");
    let directory = above.join("inner");
    fs::create_dir(&directory).unwrap();
    set_immutable(&above, true);
    let fixed = Immutable(&above);
    if !mobifs_skip::can((!is_immutable(&above)).then_some("no immutable directories")) {
        return;
    }
    let needles = [
        "inner is to be renamed, and",
        "is immutable",
        "chattr -i -a",
    ];
    adoption.refuses(&directory, FAILED, &needles);
    let found = doctor(&[], &directory);
    let (state, sentence) = mount_of(&found);
    assert_eq!(state, "possible", "{found}");
    assert!(sentence.contains("cannot be adopted: "), "{sentence}");
    let command = found["commands"][0].as_str().unwrap();
    assert!(!command.starts_with("mobifs adopt"), "{found}");
    drop(fixed);
    set_immutable(&directory, true);
    let _fixed = Immutable(&directory);
    let found = doctor(&[], &directory);
    let (state, sentence) = mount_of(&found);
    assert_eq!(state, "not_here", "{found}");
    assert!(sentence.contains("is immutable"), "{sentence}");
}

#[test]
fn a_small_disk_has_no_room_for_a_journal() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let image = adoption.fixture.path("image");
    let disk = adoption.fixture.directory("disk");
    File::create(&image).unwrap().set_len(40 << 20).unwrap();
    let mut make = Command::new("mkfs.ext4");
    make.arg("-q").arg(&image);
    if !mobifs_skip::can(mobifs_skip::why_fails(&mut make)) {
        return;
    }
    let words = ["-o", "loop", image.to_str().unwrap()];
    adoption.fixture.mount_other(&words, &disk);
    let directory = disk.join("inner");
    fs::create_dir(&directory).unwrap();
    let needles = ["bytes free", "takes 67108864", "smaller journal_bytes"];
    adoption.refuses(&directory, FAILED, &needles);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let found = doctor(&[], &directory);
    let (state, sentence) = mount_of(&found);
    assert_eq!(state, "not_here", "{found}");
    assert!(sentence.contains("bytes free"), "{sentence}");
    // A smaller one.
    adoption.directory = directory;
    succeeds(&adoption.begin().arg("--dry-run").output().unwrap());
    let config = adoption.fixture.config("journal_bytes = \"1MiB\"\n");
    let found = doctor(&["--config", config.to_str().unwrap()], &adoption.directory);
    assert_eq!(mount_of(&found).0, "possible", "{found}");
    adoption.fixture.unmount_at_end(&adoption.directory);
    adoption.adopt();
    succeeds(&adoption.unadopt());
}

#[test]
fn an_overlay_with_layers_on_several_filesystems_is_no_store() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let Some(layers) = layers(&adoption.fixture) else {
        return;
    };
    let memory = adoption.fixture.directory("memory");
    adoption
        .fixture
        .mount_other(&["-t", "tmpfs", "none"], &memory);
    let lower = layers.join("lower");
    let overlay = Overlay::of(&memory, lower.to_str().unwrap(), "upper", ",xino=off").unwrap();
    let directory = overlay.0.join("new");
    fs::create_dir(&directory).unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let unnamed = openat(CWD, &directory, flags, Mode::RUSR);
    if !mobifs_skip::can(unnamed.is_err().then_some("no unnamed files on overlays")) {
        return;
    }
    drop(unnamed);
    let needles = ["is on overlayfs", "layers on several filesystems"];
    adoption.refuses(&directory, FAILED, &needles);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let found = doctor(&[], &directory);
    let (state, sentence) = mount_of(&found);
    assert_eq!(state, "not_here", "{found}");
    assert!(sentence.contains(needles[1]), "{sentence}");
}

/// Everything in it could not be reached through the mount, and was hidden by a directory that was made over it.
#[test]
fn a_directory_with_a_subvolume_of_btrfs_inside_is_refused() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    if !adoption.put_on_btrfs() {
        return;
    }
    let subvolume = adoption.directory.join("app/sub");
    fs::create_dir_all(subvolume.parent().unwrap()).unwrap();
    let mut create = Command::new("btrfs");
    create.args(["subvolume", "create"]).arg(&subvolume);
    succeeds(&create.output().unwrap());
    fs::write(subvolume.join("file"), "kept").unwrap();
    let needles = ["app/sub is a subvolume of btrfs in", "adopt a directory"];
    adoption.refuses(&adoption.directory, FAILED, &needles);
    let found = doctor(&[], &adoption.directory);
    assert!(
        found.to_string().contains("is a subvolume of btrfs in"),
        "{found}"
    );
    assert_eq!(fs::read(subvolume.join("file")).unwrap(), b"kept");
    let mut delete = Command::new("btrfs");
    delete.args(["subvolume", "delete"]).arg(&subvolume);
    succeeds(&delete.output().unwrap());
    adoption.adopt();
    succeeds(&adoption.unadopt());
}

/// The advice was an option that the command refuses; of a read-only directory of notes nothing was said.
#[test]
fn what_is_read_only_is_said_with_what_helps() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let (files, fixed) = (
        adoption.directory.clone(),
        adoption.fixture.directory("fixed"),
    );
    fs::create_dir(files.join("inner")).unwrap();
    let words = ["--bind", "-o", "ro", files.to_str().unwrap()];
    adoption.fixture.mount_other(&words, &fixed);
    let needles = ["on a read-only filesystem; make that writable"];
    adoption.refuses(&fixed.join("inner"), FAILED, &needles);
    let mut command = Command::new(crate::fixture::PROGRAM);
    command
        .args(["adopt", "--dry-run", "--notes"])
        .arg(fixed.join("mobifs/adopted"));
    let output = command.arg(files.join("inner")).output().unwrap();
    crate::fixture::fails(&output, FAILED, &["is noted in", "read-only filesystem"]);
}
