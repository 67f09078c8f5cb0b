//! What only some programs ask for: driven by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{DeviceNumber, Entry, FileKind};
use mobifs_engine::{AppPolicy, Caller, FsError, Limits, NodeSpec, RenameMode, Stop, XattrMode};

#[test]
fn a_whiteout_comes_with_the_rename_that_leaves_it() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "old");
    bed.checkpoint();
    let mode = RenameMode::Whiteout(Caller {
        uid: 7,
        gid: 8,
        umask: 0,
    });
    let moment = bed.moment();
    bed.engine
        .rename(moment, (app, b"old"), (app, b"new"), mode)
        .unwrap();
    let left = bed.engine.lookup(app, b"old").unwrap();
    let attributes = left.attributes;
    assert_eq!(attributes.kind, FileKind::CharDevice);
    assert_eq!((attributes.mode, attributes.rdev.0), (0, 0));
    assert_eq!((attributes.uid, attributes.gid), (7, 8));
    assert_eq!(bed.engine.lookup(app, b"new").unwrap().id, file);
    let commits = bed.checkpoint();
    assert_eq!(commits.len(), 1);
    let mut names: Vec<_> = commits[0]
        .to_transaction()
        .entries()
        .filter_map(|entry| match entry {
            Entry::Dentry { name, child, .. } => Some((name.to_string(), child)),
            _ => None,
        })
        .collect();
    names.sort();
    let expected = [("new", file), ("old", left.id)];
    let expected = expected.map(|(name, id)| (name.to_owned(), Some(id)));
    assert_eq!(names, expected);
}

#[test]
fn a_whiteout_that_cannot_be_made_changes_nothing() {
    let limits = Limits {
        privileged: false,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "old");
    let mode = RenameMode::Whiteout(Caller::default());
    let moment = bed.moment();
    let renamed = bed
        .engine
        .rename(moment, (app, b"old"), (app, b"new"), mode);
    assert_eq!(renamed, Err(Stop::Fail(FsError::NotPermitted)));
    assert_eq!(bed.engine.lookup(app, b"old").unwrap().id, file);
}

#[test]
fn attributes_of_no_namespace_are_not_supported() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    for name in [&b"foo.a"[..], b"system.a", b"USER.a", b"user"] {
        let got = bed.engine.get_xattr(file, name);
        assert_eq!(got, Err(Stop::Fail(FsError::NotSupported)));
        let moment = bed.moment();
        let removed = bed.engine.remove_xattr(moment, file, name);
        assert_eq!(removed, Err(Stop::Fail(FsError::NotSupported)));
    }
    let got = bed.engine.get_xattr(file, b"user.a");
    assert_eq!(got, Err(Stop::Fail(FsError::NoXattr)));
}

#[test]
fn an_attribute_has_a_name_beside_its_namespace() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    let moment = bed.moment();
    for name in [&b"user."[..], b"trusted.", b"security."] {
        let set = bed
            .engine
            .set_xattr(moment, file, name, b"1", XattrMode::Any, false);
        assert_eq!(set, Err(Stop::Fail(FsError::InvalidArgument)));
        let got = bed.engine.get_xattr(file, name);
        assert_eq!(got, Err(Stop::Fail(FsError::InvalidArgument)));
    }
}

/// Found on XFS: `mknod c 100 300000` was acknowledged, and then nothing could be applied.
#[test]
fn a_device_number_that_the_filesystem_below_does_not_keep_is_refused() {
    let most = DeviceNumber::new(511, (1 << 18) - 1);
    let limits = Limits {
        device_max: most,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let app = bed.directory(ROOT, "app");
    let numbers = [(100, 300_000), (512, 0), (511, (1 << 18) - 1)];
    for ((major, minor), kind) in numbers.into_iter().zip([
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::CharDevice,
    ]) {
        let rdev = DeviceNumber::new(major, minor);
        let spec = NodeSpec {
            kind,
            mode: 0o600,
            rdev,
            symlink_target: None,
        };
        let (caller, moment) = (Caller::default(), bed.moment());
        let made = bed.engine.create(&caller, moment, app, b"device", &spec);
        if rdev.is_within(most) {
            made.unwrap();
        } else {
            assert_eq!(made.unwrap_err(), Stop::Fail(FsError::InvalidArgument));
        }
    }
}

#[test]
fn names_and_targets_are_as_long_as_the_filesystem_below_keeps() {
    let limits = Limits {
        name_bytes_max: 100,
        symlink_bytes_max: 200,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let app = bed.directory(ROOT, "app");
    let fits = "n".repeat(100);
    let file = bed.file(app, &fits);
    let long = "n".repeat(101);
    let too_long = Stop::Fail(FsError::NameTooLong);
    let (caller, moment) = (Caller::default(), bed.moment());
    let engine = &mut bed.engine;
    let mut spec = |target: &[u8], name: &str| {
        let spec = NodeSpec {
            kind: FileKind::Symlink,
            mode: 0o777,
            rdev: DeviceNumber(0),
            symlink_target: Some(target),
        };
        let made = engine.create(&caller, moment, app, name.as_bytes(), &spec);
        made.map(|_| ()).err()
    };
    assert_eq!(spec(&[b't'; 200], "fits"), None);
    assert_eq!(spec(&[b't'; 201], "long"), Some(too_long));
    assert_eq!(spec(b"target", &long), Some(too_long));
    let (from, to) = ((app, fits.as_bytes()), (app, long.as_bytes()));
    let renamed = engine.rename(moment, from, to, RenameMode::Replace);
    assert_eq!(renamed, Err(too_long));
    let linked = engine.link(moment, file, app, long.as_bytes());
    assert_eq!(linked.map(|_| ()), Err(too_long));
}

#[test]
fn an_object_that_could_not_be_given_to_its_creator_is_refused() {
    let limits = Limits {
        privileged: false,
        owner_uid: 1000,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let moment = bed.moment();
    let spec = NodeSpec {
        kind: FileKind::Regular,
        mode: 0o644,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    for (uid, expected) in [
        (1000, Ok(())),
        (0, Err(Stop::Fail(FsError::NotPermitted))),
        (1001, Err(Stop::Fail(FsError::NotPermitted))),
    ] {
        let caller = Caller {
            uid,
            ..Caller::default()
        };
        let name = uid.to_string();
        let _need = bed.engine.lookup(ROOT, name.as_bytes());
        let made = bed
            .engine
            .create(&caller, moment, ROOT, name.as_bytes(), &spec);
        assert_eq!(made.map(|_| ()), expected, "{uid}");
        let made = bed.engine.create_unnamed(&caller, moment, ROOT, 0o600);
        assert_eq!(made.map(|_| ()), expected, "{uid}");
    }
}
