//! What is committed and cannot be brought to its place is named, in errors and in the status.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_runtime::{Caller, Config, NodeSpec, Volume, VolumeOptions};
use mobifs_store::{JournalOptions, JournalStore};
use mobifs_testing::crash::{Calls, CrashLower, Fault, Harm};
use mobifs_types::{DeviceNumber, FileKind, ObjectId};

fn make(volume: &Volume, parent: ObjectId, name: &str, kind: FileKind) -> ObjectId {
    let spec = NodeSpec {
        kind,
        mode: 0o755,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    let made = volume.create(&Caller::default(), parent, name.as_bytes(), &spec);
    made.unwrap().id
}

/// The errors named an id, or only the last name.
#[test]
fn an_object_that_cannot_be_applied_is_named() {
    let lower = CrashLower::new();
    let (store, _) = JournalStore::open(lower.clone(), &JournalOptions::default()).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&Config::parse("", Path::new("test")).unwrap())
    };
    let volume = Volume::start(Arc::new(store), options).unwrap();
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    let inside = make(&volume, app, "inside", FileKind::Directory);
    volume.sync_app(None, true).unwrap();
    let file = make(&volume, inside, "file", FileKind::Regular);
    volume.sync_all().unwrap();

    // At whichever step of the apply: while the file is made, and when it gets its name.
    let mut named_at = 0;
    for number in 1.. {
        let first = lower.calls() + number;
        lower.set_fault(Some(Fault {
            first,
            count: u64::MAX,
            calls: Calls::Growing,
            errno: 28,
            harm: Harm::Nothing,
        }));
        let done = volume.sync_app(None, true);
        lower.set_fault(None);
        let Err(error) = done else { break };
        let error = error.to_string();
        let reason = volume.status().store.not_applied;
        assert_eq!(reason.as_deref(), Some(&*error), "call {number}");
        named_at += u64::from(error.contains("\"app/inside/file\""));
    }
    assert!(named_at > 1, "{named_at}");
    assert_eq!(volume.status().store.not_applied, None);
    assert_eq!(volume.attributes(file).unwrap().attributes.nlink, 1);
    volume.shutdown().unwrap();
}
