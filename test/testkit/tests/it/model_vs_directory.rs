//! The model agrees with a real filesystem: that is what makes it a reference.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its surroundings fail"
)]

use mobifs_testkit::harness::{agree_on_operations, check_scripts};
use mobifs_testkit::operations::Profile;
use mobifs_testkit::target::DirectoryTarget;
use mobifs_testkit::tree::Compare;

/// The files are made by a privileged caller on ext4 (or a filesystem that answers
/// like it); elsewhere there is nothing to compare with.
fn is_comparable(directory: &std::path::Path) -> bool {
    const EXT4_MAGIC: i64 = 0xef53;
    let statfs = rustix::fs::statfs(directory).unwrap();
    let is_ext4 = statfs.f_type as i64 == EXT4_MAGIC;
    let is_root = rustix::process::geteuid().is_root();
    if !is_ext4 || !is_root {
        mobifs_skip::skip(format_args!(
            "needs root (is: {is_root}) and ext4 (is: {is_ext4}) in {directory:?}"
        ));
    }
    is_ext4 && is_root
}

fn agrees(profile: &Profile, cases: u32, tree_every: usize) {
    let base = tempfile::tempdir().unwrap();
    if !is_comparable(base.path()) {
        return;
    }
    check_scripts(profile, cases, |script| {
        let root = tempfile::tempdir_in(base.path()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(root.path(), mode).unwrap();
        let mut target = DirectoryTarget::new(root.path()).unwrap();
        agree_on_operations(script, &mut target, Compare::ALL, tree_every)
    });
}

#[test]
fn short_histories_agree_after_every_operation() {
    agrees(
        &Profile {
            length: 60,
            ..Profile::default()
        },
        60,
        1,
    );
}

#[test]
fn long_histories_agree() {
    agrees(
        &Profile {
            length: 600,
            cross_percent: 30,
            ..Profile::default()
        },
        25,
        50,
    );
}
