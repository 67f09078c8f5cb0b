//! Mounts of ordinary users.
//!
//! The tests run as root like the others, start this test program again as another
//! user, and there run the test of the same name after `as_user_`.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::{FILE_CONTENT, OneFile, Served, can_mount};
use crate::mount::{MountError, is_mounted};
use crate::options::{MountOptions, SyncFsMode};
use crate::session::{Session, SessionHooks};

/// An ordinary user that every system has.
const NOBODY: u32 = 65_534;
/// Set for the second run.
const MARK: &str = "MOBIFS_TEST_AS_USER";

fn run_as_user(test: &str) {
    if !can_mount() {
        return;
    }
    if !Path::new("/usr/bin/fusermount3").exists() && !Path::new("/bin/fusermount3").exists() {
        mobifs_skip::skip("needs fusermount3");
        return;
    }
    let device_mode = fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if device_mode & 0o006 != 0o006 {
        mobifs_skip::skip("needs /dev/fuse open for everybody, as udev makes it");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([
            "--exact",
            &format!("tests::unprivileged::{test}"),
            "--nocapture",
        ])
        .env(MARK, "1")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && shown.contains("1 passed"),
        "{shown}"
    );
}

fn is_second_run() -> bool {
    let is_second = std::env::var_os(MARK).is_some();
    if !is_second {
        mobifs_skip::no_test();
    }
    is_second
}

#[test]
fn a_user_mounts_and_unmounts_through_the_helper() {
    run_as_user("as_user_a_mount_serves_until_it_is_unmounted");
}

#[test]
fn as_user_a_mount_serves_until_it_is_unmounted() {
    if !is_second_run() {
        return;
    }
    let mut options = MountOptions::default();
    options.apply("fsname=with\\,comma,noatime").unwrap();
    let mut served = Served::new(&options);
    assert!(!served.sync_reaches);
    assert_eq!(fs::read(served.path().join("hello")).unwrap(), FILE_CONTENT);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = served.path().to_str().unwrap();
    let line = table.lines().find(|line| line.contains(path)).unwrap();
    assert!(
        line.starts_with("with,comma ") && line.contains(" fuse.mobifs "),
        "{line}"
    );
    assert!(
        line.contains("default_permissions") && !line.contains("allow_other"),
        "{line}"
    );

    let file = File::open(served.path().join("hello")).unwrap();
    let busy = served.handle.unmount(false).unwrap_err();
    assert!(matches!(busy, crate::UnmountError::Busy(_)), "{busy}");
    drop(file);
    served.unmount();
    served.join().unwrap();
    let again = crate::unmount(served.path(), false).unwrap_err();
    assert!(
        matches!(again, crate::UnmountError::NotMounted(_)),
        "{again:?}"
    );
}

#[test]
fn a_user_ends_a_mount_at_once() {
    run_as_user("as_user_an_abort_ends_the_mount");
}

#[test]
fn as_user_an_abort_ends_the_mount() {
    if !is_second_run() {
        return;
    }
    let mut served = Served::new(&MountOptions::default());
    let file = File::open(served.path().join("hello")).unwrap();
    served.handle.abort().unwrap();
    file.metadata().unwrap_err();
    assert!(!is_mounted(served.path(), "mobifs"));
    drop(file);
    served.join().unwrap();
}

#[test]
fn a_user_learns_why_a_mount_is_refused() {
    run_as_user("as_user_each_refusal_has_its_error");
}

#[test]
fn as_user_each_refusal_has_its_error() {
    if !is_second_run() {
        return;
    }
    let try_mount = |path: &Path, options: &MountOptions| {
        let filesystem = OneFile(Default::default());
        Session::mount(filesystem, path, options, SessionHooks::default()).unwrap_err()
    };
    // A directory of another user.
    let error = try_mount(Path::new("/usr"), &MountOptions::default());
    assert!(matches!(&error, MountError::FusermountRefused(reason) if !reason.is_empty()));
    let directory = tempfile::tempdir().unwrap();
    let options = MountOptions {
        sync_fs: SyncFsMode::On,
        ..MountOptions::default()
    };
    let error = try_mount(directory.path(), &options);
    assert!(
        matches!(error, MountError::SyncFsNotPossible { .. }),
        "{error}"
    );
}
