//! `mobifs frag waits`: aged images are used, on copies, and stay as they were.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::age::{Phone, errors, has_mobifs};

fn waits(images: &[&Path], more: &[&str], scratch: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.args(["frag", "waits"]).args(images).args(more);
    command.env("MOBIFS_SCRATCH", scratch).output().unwrap()
}

/// Measures an image that was aged through this; what was found of it.
fn measured(through: &str) -> Option<Value> {
    let phone = Phone::new()?;
    let checksums = phone.aged(through);
    let (image, scratch) = (phone.image(), tempfile::tempdir_in("/var/tmp").unwrap());
    let before = fs::read(&image).unwrap();
    let output = waits(&[&image], &["--rounds", "1", "--json"], scratch.path());
    assert!(output.status.success(), "{}", errors(&output));
    assert!(fs::read(&image).unwrap() == before, "the image has changed");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(scratch.path().to_str().unwrap()),
        "{mounts}"
    );
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = document["images"][0].clone();
    assert_eq!(found["through"], through);
    assert_eq!(found["checksum"], **checksums.last().unwrap());
    let round = &found["rounds"][0];
    assert_eq!(round["installed"]["files"], 22, "{round}");
    let number = |what: &str, count: &str| round[what][count].as_u64().unwrap();
    let bytes = |what: &str| found[what]["bytes"].as_u64().unwrap();
    // Nothing was in memory.
    assert!(number("launch", "bytes_read") >= bytes("executables"));
    assert!(number("scan", "bytes_read") >= bytes("databases") / 2);
    let durable = number("install_durable", "bytes_written");
    assert!(durable >= round["installed"]["bytes"].as_u64().unwrap());
    assert!(number("install", "bytes_written") <= durable);
    Some(found)
}

#[test]
fn an_aged_image_is_used_on_a_copy() {
    measured("plain");
}

#[test]
fn what_was_aged_through_a_mount_is_used_through_one() {
    if has_mobifs() {
        measured("mount");
    }
}

#[test]
fn images_that_cannot_be_used_are_refused_in_one_sentence() {
    let base = tempfile::tempdir().unwrap();
    let refused = |image: &Path, code: i32, words: &str| {
        let output = waits(&[image], &[], base.path());
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    let missing = base.path().join("missing.img");
    refused(&missing, 2, "was not aged");
    fs::write(&missing, [0; 4096]).unwrap();
    refused(&missing, 2, "was not aged");
    let kept = base.path().join("missing.img.age");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("state.json"), "{}").unwrap();
    refused(&missing, 4, "is damaged");
    let Some(phone) = Phone::new() else {
        return;
    };
    phone.aged("plain");
    let (image, at) = (phone.image(), base.path().join("at"));
    fs::create_dir(&at).unwrap();
    let mount = |program: &str, words: &[&Path]| {
        let mut command = Command::new(program);
        assert!(command.args(words).status().unwrap().success());
    };
    mount("mount", &[Path::new("-oloop"), &image, &at]);
    refused(&image, 3, "is in use (by /dev/loop");
    mount("umount", &[&at]);
}
