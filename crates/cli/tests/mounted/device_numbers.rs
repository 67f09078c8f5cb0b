//! A mount whose daemon lives on after the unmount, and another filesystem that has got its device
//! number.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::fixture::{mobifs, needs_mounts};
use crate::full::{EXT4, Filled, MIB};

/// The daemon of a mount that had left the tree and could not commit answered for an ext4 that had got
/// its device number: `drill power-cut` of that one discarded what the daemon held.
#[test]
fn a_filesystem_that_got_the_number_of_a_mount_that_left_the_tree_is_not_that_mount() {
    needs_mounts!();
    let Some(filled) = Filled::new(&EXT4, 128 * MIB) else {
        return;
    };
    let app = filled.write_without_room();
    let number = fs::symlink_metadata(&filled.fixture.mountpoint)
        .unwrap()
        .dev();
    let run = |program: &str, arguments: &[&Path]| {
        let output = std::process::Command::new(program)
            .args(arguments)
            .output()
            .unwrap();
        output.status.success()
    };
    assert!(run("umount", &[&filled.fixture.mountpoint]));
    let image = filled.fixture.path("other.img");
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let device = PathBuf::from(format!("/dev/loop{}", rustix::fs::minor(number)));
    // Before another test takes it.
    if rustix::fs::major(number) != 7 || !run("losetup", &[&device, &image]) {
        mobifs_skip::skip_part("the mount's number is not that of a free loop device");
        fs::remove_file(filled.filler()).unwrap();
        return;
    }
    let other = filled.fixture.path("other");
    fs::create_dir(&other).unwrap();
    assert!(run("mkfs.ext4", &[Path::new("-q"), &device]) && run("mount", &[&device, &other]));
    assert_eq!(fs::symlink_metadata(&other).unwrap().dev(), number);
    for command in [
        &["status"][..],
        &["sync"],
        &["set", "--app", "app", "--class", "relaxed"],
        &["drill", "power-cut", "--yes"],
        &["umount"],
        &["steer", "--stop"],
    ] {
        let refused = mobifs(command, &other);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{command:?}");
        assert!(
            said.contains("is not a MobiFS mount") || said.contains("is not steered"),
            "{command:?}: {said}"
        );
    }
    let listed = std::process::Command::new(crate::fixture::PROGRAM)
        .arg("status")
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let store = filled.fixture.store.display().to_string();
    assert!(listed.contains(&store), "the daemon is reached: {listed}");
    assert!(run("umount", &[&other]) && run("losetup", &[Path::new("-d"), &device]));
    fs::remove_file(filled.filler()).unwrap();
    filled.mount();
    assert!(fs::read(app.join("big")).unwrap() == vec![1; 16 << 20]);
    filled.fixture.umount();
}
