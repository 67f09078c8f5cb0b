//! Another program changes the store's directory while it is mounted, against the rule: this is
//! reported, or visible, and other objects stay as they were. On the crash double and in a real
//! directory.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_store::lower::{Create, Lower};
use mobifs_store::{Gate, JournalOptions, JournalStore, PosixLower};
use mobifs_testkit::crash::CrashLower;
use mobifs_testkit::operations::{Answer, FileRef, Operation as Op, Payload};
use mobifs_testkit::target::{Target as _, VolumeTarget};
use mobifs_volume::{Config, Volume, VolumeOptions};

/// A mount, and the store's directory as another program sees it.
struct Place<L: Lower> {
    target: VolumeTarget,
    store: Arc<JournalStore<Gate<L>>>,
    outside: L,
}

const OPTIONS: JournalOptions = JournalOptions {
    journal_bytes: 1 << 20,
    direct_bytes_max: Some(8 << 10),
    measuring: mobifs_store::Measuring::AtOpening,
    uuid_if_new: [7; 16],
    read_only: false,
    held_bytes_max: 64 << 20,
    reserve_bytes: 64 << 10,
    ahead_pages_min: 1,
    preallocation: mobifs_store::Preallocation::OFF,
};

fn mount<L: Lower + 'static>(lower: L, outside: L) -> Result<(Place<L>, Vec<String>), String> {
    let (store, report) =
        JournalStore::open(Gate::new(lower), &OPTIONS).map_err(|error| error.to_string())?;
    let store = Arc::new(store);
    let config = Config::parse("", Path::new("test")).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(Arc::<JournalStore<Gate<L>>>::clone(&store), options).unwrap();
    let place = Place {
        target: VolumeTarget::new(volume),
        store,
        outside,
    };
    Ok((place, report.lost))
}

/// Runs a scenario on both kinds of lower filesystem; `lower` opens it once more.
fn on_both(on_double: impl Fn(&dyn Fn() -> CrashLower), on_disk: impl Fn(&dyn Fn() -> PosixLower)) {
    let double = CrashLower::new();
    on_double(&|| double.clone());
    let directory = tempfile::tempdir().unwrap();
    on_disk(&|| PosixLower::open(directory.path()).unwrap());
}

impl<L: Lower + 'static> Place<L> {
    /// Two apps with a file each, both in the lower filesystem.
    fn new(lower: &dyn Fn() -> L) -> Self {
        let mut place = mount(lower(), lower()).unwrap().0;
        for app in ["alpha", "beta"] {
            place.run(Op::MakeDirectory {
                path: app.into(),
                mode: 0o755,
            });
            place.run(Op::CreateFile {
                path: format!("{app}/file"),
                mode: 0o644,
            });
            place.write(&format!("{app}/file"), 1, 0, 20_000);
        }
        place.volume().sync_app(None, true).unwrap();
        place
    }

    fn volume(&self) -> &Arc<Volume> {
        self.target.volume()
    }

    fn run(&mut self, operation: Op) -> Answer {
        let outcome = self.target.execute(&operation);
        outcome.unwrap_or_else(|errno| panic!("{operation:?}: {errno}"))
    }

    fn write(&mut self, path: &str, tag: u32, offset: u64, length: u32) {
        self.run(Op::Write {
            file: FileRef::Path(path.into()),
            offset,
            data: Payload { tag, length },
        });
    }

    fn read(&mut self, path: &str) -> Vec<u8> {
        let read = Op::Read {
            file: FileRef::Path(path.into()),
            offset: 0,
            length: 1 << 20,
        };
        match self.run(read) {
            Answer::Data(content) => content,
            other => panic!("{other:?}"),
        }
    }

    /// A directory of the lower filesystem.
    fn below(&self, name: &str) -> L::Handle {
        let root = self.outside.root().unwrap();
        self.outside.open(&root, name.as_bytes(), true).unwrap()
    }

    /// Unmounts and mounts again; also says what is in `lost`.
    fn again(self, lower: &dyn Fn() -> L) -> (Self, Vec<String>) {
        self.volume().shutdown().unwrap();
        self.store.close().unwrap();
        drop(self);
        mount(lower(), lower()).unwrap()
    }
}

impl<L: Lower + 'static> Place<L> {
    /// The power is cut.
    fn cut(self) {
        self.volume().cut_power();
    }
}

fn payload(tag: u32, length: u32) -> Vec<u8> {
    Payload { tag, length }.bytes()
}

/// A file is truncated to nothing in the lower filesystem: later commits are in it, at their
/// offsets, and the truncated part reads as zeros, through the mount and after it.
fn truncated<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    place.write("alpha/file", 2, 8192, 4096);
    place.volume().sync_all().unwrap();
    let alpha = place.below("alpha");
    let file = place.outside.open(&alpha, b"file", true).unwrap();
    place.outside.truncate(&file, 0).unwrap();
    place.volume().sync_app(None, true).unwrap();
    let (mut place, _) = place.again(lower);
    let mut expected = vec![0; 20_000];
    expected[8192..8192 + 4096].copy_from_slice(&payload(2, 4096));
    assert_eq!(place.read("alpha/file"), expected);
    assert_eq!(place.read("beta/file"), payload(1, 20_000));
}

#[test]
fn a_file_that_is_truncated_keeps_what_is_committed_later() {
    on_both(truncated, truncated);
}

/// A foreign file stays where it is, and is visible after the next mount at the latest; in a
/// directory that is deleted through the mount it is moved to `lost`, which is reported.
fn stranger<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    // Known to the mount before the foreign file is made.
    place.read("alpha/file");
    for app in ["alpha", "beta"] {
        let directory = place.below(app);
        place
            .outside
            .create(&directory, b"stranger", Create::Regular)
            .unwrap();
    }
    place.run(Op::CreateFile {
        path: "beta/new".into(),
        mode: 0o600,
    });
    place.run(Op::Unlink {
        path: "alpha/file".into(),
    });
    place.run(Op::RemoveDirectory {
        path: "alpha".into(),
    });
    place.volume().sync_app(None, true).unwrap();
    let (mut place, lost) = place.again(lower);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(place.read("beta/stranger"), b"");
    assert_eq!(place.read("beta/file"), payload(1, 20_000));
    assert_eq!(place.read("beta/new"), b"");
    let root = place.outside.root().unwrap();
    let own = place.outside.open(&root, b".mobifs", true).unwrap();
    let kept = place.outside.open(&own, b"lost", true).unwrap();
    let kept = place.outside.open(&kept, lost[0].as_bytes(), true).unwrap();
    assert_eq!(place.outside.list(&kept).unwrap()[0].name, b"stranger");
}

#[test]
fn a_foreign_file_is_kept() {
    on_both(stranger, stranger);
}

/// A store that was restored from a copy has the inode number of a deleted directory in `lost/` already: each
/// mount was refused, as the directory could not be moved there.
fn kept_twice<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    place.read("alpha/file");
    let directory = place.below("alpha");
    let stranger = b"stranger";
    place
        .outside
        .create(&directory, stranger, Create::Regular)
        .unwrap();
    let root = place.outside.root().unwrap();
    let inode = place.outside.stat_at(&root, b"alpha").unwrap().inode;
    let own = place.outside.open(&root, b".mobifs", true).unwrap();
    let lost = place.outside.open(&own, b"lost", true).unwrap();
    for name in [inode.to_string(), format!("{inode}-1")] {
        place
            .outside
            .create(&lost, name.as_bytes(), Create::Directory)
            .unwrap();
        let made = place.outside.open(&lost, name.as_bytes(), true).unwrap();
        place
            .outside
            .create(&made, b"older", Create::Regular)
            .unwrap();
    }
    place.run(Op::Unlink {
        path: "alpha/file".into(),
    });
    place.run(Op::RemoveDirectory {
        path: "alpha".into(),
    });
    place.volume().sync_app(None, true).unwrap();
    let (place, mut found) = place.again(lower);
    found.sort();
    let expected = ["", "-1", "-2"].map(|end| format!("{inode}{end}"));
    assert_eq!(found, expected);
    let lost = place.outside.open(&own, b"lost", true).unwrap();
    let kept = format!("{inode}-2");
    let kept = place.outside.open(&lost, kept.as_bytes(), true).unwrap();
    assert_eq!(place.outside.list(&kept).unwrap()[0].name, stranger);
}

#[test]
fn what_is_kept_in_lost_gets_a_name_that_is_free_there() {
    on_both(kept_twice, kept_twice);
}

/// A file is moved to another directory: later commits to it go there, and this is reported.
fn moved_away<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    place.write("alpha/file", 2, 8192, 4096);
    place.write("beta/file", 3, 8192, 4096);
    place.volume().sync_app(None, false).unwrap();
    let (alpha, beta) = (place.below("alpha"), place.below("beta"));
    let moved = place.outside.rename(&alpha, b"file", &beta, b"taken");
    moved.unwrap();
    place.volume().sync_app(None, true).unwrap();
    assert_eq!(place.volume().status().store.externally_modified, 1);
    let mut expected = payload(1, 20_000);
    expected[8192..12_288].copy_from_slice(&payload(2, 4096));
    drop((alpha, beta));
    let (mut place, _) = place.again(lower);
    assert_eq!(place.read("beta/taken"), expected);
    expected[8192..12_288].copy_from_slice(&payload(3, 4096));
    assert_eq!(place.read("beta/file"), expected);
    assert_eq!(place.volume().status().store.externally_modified, 0);
}

#[test]
fn a_file_that_is_moved_away_is_reported() {
    on_both(moved_away, moved_away);
}

/// While the store is not mounted and its journal not applied, a file with committed changes is
/// removed, and another one made, which gets its inode number: the changes are lost with the file,
/// and are not applied to the other.
fn removed_after_a_cut<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    place.write("alpha/file", 2, 8192, 4096);
    place.volume().sync_app(None, false).unwrap();
    place.cut();
    let outside = lower();
    let root = outside.root().unwrap();
    let alpha = outside.open(&root, b"alpha", true).unwrap();
    let beta = outside.open(&root, b"beta", true).unwrap();
    outside.unlink(&alpha, b"file").unwrap();
    outside.create(&beta, b"other", Create::Regular).unwrap();
    let other = outside.open(&beta, b"other", true).unwrap();
    outside.write_at(&other, &payload(3, 9000), 0).unwrap();
    drop((root, alpha, beta, other, outside));
    let (mut place, _) = mount(lower(), lower()).unwrap();
    for reported in [1, 0] {
        assert_eq!(place.read("beta/other"), payload(3, 9000));
        assert_eq!(place.read("beta/file"), payload(1, 20_000));
        let gone = Op::Unlink {
            path: "alpha/file".into(),
        };
        place.target.execute(&gone).unwrap_err();
        place.volume().sync_app(None, true).unwrap();
        assert_eq!(place.volume().status().store.externally_modified, reported);
        place = place.again(lower).0;
    }
}

#[test]
fn a_file_that_is_removed_after_a_cut_takes_its_changes_with_it() {
    on_both(removed_after_a_cut, removed_after_a_cut);
}

/// While the store is not mounted and its journal not applied, a directory is removed in which a
/// new file belongs: the mount fails, and the error says why.
fn directory_gone_after_a_cut<L: Lower + 'static>(lower: &dyn Fn() -> L) {
    let mut place = Place::new(lower);
    place.run(Op::CreateFile {
        path: "alpha/new".into(),
        mode: 0o600,
    });
    place.volume().sync_app(None, false).unwrap();
    place.cut();
    let outside = lower();
    let root = outside.root().unwrap();
    let alpha = outside.open(&root, b"alpha", true).unwrap();
    outside.unlink(&alpha, b"file").unwrap();
    drop(alpha);
    outside.remove_directory(&root, b"alpha").unwrap();
    let Err(refused) = mount(lower(), lower()) else {
        panic!("mounted");
    };
    assert!(
        refused.contains("another program removed it from the store"),
        "{refused}"
    );
}

#[test]
fn a_needed_directory_that_disappears_after_a_cut_is_reported_by_the_mount() {
    on_both(directory_gone_after_a_cut, directory_gone_after_a_cut);
}
