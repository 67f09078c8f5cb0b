//! What programs use by other names than the directory's own: overlay filesystems, hard links.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use crate::adopt::Adoption;
use crate::fixture::{IN_USE, fails, needs_mounts, succeeds};
use crate::overlay::Overlay;

/// It went on writing to its upper layer past the mount, and destroyed what was written through the mount.
#[test]
fn an_overlay_with_a_layer_inside_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let beside = adoption.fixture.directory("be, side");
    let upper = adoption.directory.join("up");
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir(adoption.directory.join("up-work")).unwrap();
    let layers = adoption.directory.to_str().unwrap();
    let options = format!("lowerdir={layers}/app,upperdir={layers}/up,workdir={layers}/up-work");
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "none", "-o", &options]);
    let mounted = mount.arg(&beside).output().unwrap();
    if !mobifs_skip::can((!mounted.status.success()).then_some("no overlay filesystems")) {
        return;
    }
    let overlay = Overlay(beside.clone());
    let advice = format!("End what uses it (umount '{}')", beside.display());
    let needles = ["the overlay at", "its layer", &advice];
    fails(&adoption.begin().output().unwrap(), IN_USE, &needles);
    drop(overlay);
    assert!(!adoption.store().exists() && !adoption.notes().exists());
    adoption.adopt();
    // A layer of the mount, which would live on when that is gone.
    let options = format!("lowerdir={layers}/app:{layers}/up");
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "none", "-o", &options]);
    succeeds(&mount.arg(&beside).output().unwrap());
    let overlay = Overlay(beside.clone());
    let needles = ["the overlay at", "stays adopted", &advice];
    fails(&adoption.unadopt(), IN_USE, &needles);
    assert!(adoption.is_served());
    drop(overlay);
    succeeds(&adoption.unadopt());
}

/// A program that wrote by the other name went on past the mount.
#[test]
fn a_file_that_is_written_by_a_hard_link_outside_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let outside = adoption.fixture.path("outside");
    fs::hard_link(adoption.directory.join("app/file"), &outside).unwrap();
    let before = adoption.seen();
    let run = |input: Stdio, output: Stdio| {
        let mut command = Command::new("sleep");
        let command = command.arg("1000").current_dir("/").stderr(Stdio::null());
        command.stdin(input).stdout(output).spawn().unwrap()
    };
    let open = || File::options().append(true).open(&outside).unwrap();
    for is_deleted in [false, true] {
        let mut writer = run(Stdio::null(), Stdio::from(open()));
        if is_deleted {
            fs::remove_file(&outside).unwrap();
            fs::remove_file(adoption.directory.join("app/deep/link")).unwrap();
        }
        let refused = adoption.begin().output().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let needles = ["outside", "is open for writing, which is", "a dir/app/"];
        fails(&refused, IN_USE, &needles);
        if !is_deleted {
            adoption.is_as_before(&before);
        }
    }
    // Who only reads changes nothing.
    fs::hard_link(adoption.directory.join("app/file"), &outside).unwrap();
    let mut reader = run(Stdio::from(File::open(&outside).unwrap()), Stdio::null());
    adoption.adopt();
    reader.kill().unwrap();
    reader.wait().unwrap();
    succeeds(&adoption.unadopt());
}
