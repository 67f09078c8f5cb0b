//! A store on the crash double that was used for a while: its tree after each commit,
//! and the bytes of its journal.

use std::path::Path;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use mobifs_store::fuzzing::{Record, decode, scan};
use mobifs_store::lower::{Create, Lower};
use mobifs_store::{Gate, JournalOptions, JournalStore, Store};
use mobifs_testkit::crash::{CrashLower, Fate};
use mobifs_testkit::life::SteppingClock;
use mobifs_testkit::operations::{
    AllocateMode, FileRef, NodeKind, Operation, Payload, RenameMode, XattrMode,
};
use mobifs_testkit::target::{Target as _, VolumeTarget};
use mobifs_testkit::tree::{Compare, Tree};
use mobifs_volume::{Config, Volume, VolumeOptions};

use super::exposed::{Exposed, Transactions};

/// How stores are opened. The journal is small, so that damage matters.
pub(super) const OPTIONS: JournalOptions = JournalOptions {
    journal_bytes: 64 << 10,
    direct_bytes_max: Some(16 << 10),
    measuring: mobifs_store::Measuring::AtOpening,
    uuid_if_new: *b"a store to fuzz.",
    read_only: false,
    held_bytes_max: 256 << 20,
    reserve_bytes: 0,
    ahead_pages_min: 1,
    preallocation: mobifs_store::Preallocation::OFF,
};
/// What is compared: the lower filesystem keeps nothing of the root's own times.
const VIEW: Compare = Compare {
    root: false,
    ..Compare::ALL
};
/// One app and no policy: one transaction for each commit.
const CONFIG: &str = "apps = [\"none\"]\n[defaults]\nage_max_ms = 1000000000\n\
                      staleness_max_bytes = \"1TiB\"\nstaleness_min_bytes = \"1TiB\"\n";
const STEPS_MAX: usize = 40;
/// Few paths, so that operations meet.
const PATHS: [&str; 8] = ["a", "b", "f", "a/f", "a/g", "a/b", "a/b/f", "b/f"];

/// A store that no process has open, as after a power cut that lost nothing.
pub(super) struct History {
    /// The filesystem.
    pub(super) lower: CrashLower,
    /// The tree after each commit since the journal was empty last, the oldest first: what
    /// a mount may find.
    trees: Vec<Tree>,
}

impl History {
    /// Runs operations, commits and applies.
    pub(super) fn live(u: &mut Unstructured<'_>) -> Result<Self> {
        Self::live_on(CrashLower::new(), u, true)
    }

    /// As many commits as operations, and no applies: the journal has many transactions. With files
    /// that were there before, which the journal knows by their inodes and names, or without.
    pub(super) fn live_in_journal(u: &mut Unstructured<'_>, has_files: bool) -> Result<Self> {
        let lower = CrashLower::new();
        if has_files {
            lay_out(&lower).unwrap_or_else(|error| panic!("{error}"));
        }
        Self::live_on(lower, u, false)
    }

    fn live_on(lower: CrashLower, u: &mut Unstructured<'_>, applies: bool) -> Result<Self> {
        let operations_max = if applies { 8 } else { 5 };
        let (store, _report) = JournalStore::open(Gate::new(lower.clone()), &OPTIONS)
            .unwrap_or_else(|error| panic!("{error}"));
        let store = Arc::new(store);
        let mut target = start(Arc::clone(&store) as Arc<dyn Store>);
        let mut trees = vec![tree(&mut target)];
        for _ in 0..u.int_in_range(0..=STEPS_MAX)? {
            match u.int_in_range(0..=11)? {
                step if step <= operations_max => {
                    // Whether it succeeds is not what is tested here.
                    let _outcome = target.execute(&operation(u)?);
                }
                step if step <= 10 || !applies => {
                    let before = store.pending().journal_used_bytes;
                    commit(&target);
                    if store.pending().journal_used_bytes < before {
                        // There was no room: the earlier ones were applied first.
                        trees.drain(..trees.len() - 1);
                    }
                    trees.push(tree(&mut target));
                }
                _ => {
                    commit(&target);
                    store.apply().unwrap_or_else(|error| panic!("{error}"));
                    trees = vec![tree(&mut target)];
                }
            }
        }
        target.volume().cut_power();
        drop((target, store));
        Ok(Self {
            lower: lower.crash_image(&mut |_| Fate::Land),
            trees,
        })
    }

    /// Whether this is the tree after some commit, except for content that lost transactions may
    /// expose; if not, the difference from the last one.
    pub(super) fn explain(
        &self,
        found: &Tree,
        exposed: &Exposed,
    ) -> std::result::Result<(), String> {
        let mut last = String::new();
        for tree in &self.trees {
            match difference(&exposed.allow(tree.clone(), found), found) {
                None => return Ok(()),
                Some(difference) => last = difference,
            }
        }
        Err(last)
    }

    /// The bytes of the journal.
    pub(super) fn journal(&self) -> Vec<u8> {
        let (journal, size) = self.open_journal();
        let mut bytes = vec![0; size as usize];
        let count = self.lower.read_at(&journal, &mut bytes, 0);
        assert_eq!(count.ok(), Some(bytes.len()));
        bytes
    }

    /// The transactions of the journal as it was left.
    pub(super) fn transactions(&self) -> Transactions {
        let scanned = scan(&self.journal(), &mut |_, _| {});
        let mut transactions = scanned
            .unwrap_or_else(|error| panic!("{error}"))
            .transactions;
        for (_, records) in &mut transactions {
            if let &[
                Record::External {
                    file,
                    bytes,
                    records: count,
                    ..
                },
            ] = records.as_slice()
            {
                let overflow = self.overflow(file, bytes);
                *records = decode(&overflow, count).unwrap_or_else(|error| panic!("{error}"));
            }
        }
        transactions
    }

    fn overflow(&self, file: u64, bytes: u64) -> Vec<u8> {
        let mut overflow = vec![0; bytes as usize];
        let mut read = || {
            let mobifs = self.lower.open(&self.lower.root()?, b".mobifs", false)?;
            let stage = self.lower.open(&mobifs, b"stage", false)?;
            let name = format!("t{file}");
            let file = self.lower.open(&stage, name.as_bytes(), false)?;
            self.lower.read_at(&file, &mut overflow, 0)
        };
        let count = read().unwrap_or_else(|error: std::io::Error| panic!("{error}"));
        assert_eq!(count, overflow.len());
        overflow
    }

    /// Puts other bytes in the place of the journal.
    pub(super) fn set_journal(&self, bytes: &[u8]) {
        let (journal, _) = self.open_journal();
        let written = self.lower.write_at(&journal, bytes, 0);
        written.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Makes, or replaces, an overflow file.
    pub(super) fn set_overflow(&self, file: u64, bytes: &[u8]) {
        let write = || {
            let mobifs = self.lower.open(&self.lower.root()?, b".mobifs", true)?;
            let stage = self.lower.open(&mobifs, b"stage", true)?;
            let name = format!("t{file}");
            // It may be there.
            let _made = self.lower.create(&stage, name.as_bytes(), Create::Regular);
            let file = self.lower.open(&stage, name.as_bytes(), true)?;
            self.lower.truncate(&file, 0)?;
            self.lower.write_at(&file, bytes, 0)
        };
        write().unwrap_or_else(|error: std::io::Error| panic!("{error}"));
    }

    /// Removes the store's identity, or damages it.
    pub(super) fn harm_identity(&self, is_missing: bool) {
        let harm = || {
            let mobifs = self.lower.open(&self.lower.root()?, b".mobifs", true)?;
            if is_missing {
                return self.lower.unlink(&mobifs, b"id");
            }
            let identity = self.lower.open(&mobifs, b"id", true)?;
            self.lower.write_at(&identity, b"no digits", 3)
        };
        harm().unwrap_or_else(|error: std::io::Error| panic!("{error}"));
    }

    /// Removes the journal.
    pub(super) fn remove_journal(&self) {
        let remove = || {
            let mobifs = self.lower.open(&self.lower.root()?, b".mobifs", true)?;
            self.lower.unlink(&mobifs, b"journal")
        };
        remove().unwrap_or_else(|error: std::io::Error| panic!("{error}"));
    }

    fn open_journal(&self) -> (<CrashLower as Lower>::Handle, u64) {
        let open = || {
            let mobifs = self.lower.open(&self.lower.root()?, b".mobifs", true)?;
            let journal = self.lower.open(&mobifs, b"journal", true)?;
            let size = self.lower.stat(&journal)?.size;
            Ok::<_, std::io::Error>((journal, size))
        };
        open().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Files at most of the paths that operations use, and beside them at names that are one bit from
/// these: what a damaged name may mean.
fn lay_out(lower: &CrashLower) -> std::io::Result<()> {
    let root = lower.root()?;
    for directory in ["a", "b", "c", "q"] {
        lower.create(&root, directory.as_bytes(), Create::Directory)?;
        let handle = lower.open(&root, directory.as_bytes(), true)?;
        for name in ["f", "g", "d"] {
            lower.create(&handle, name.as_bytes(), Create::Regular)?;
            let file = lower.open(&handle, name.as_bytes(), true)?;
            lower.write_at(&file, format!("{directory}/{name}").as_bytes(), 0)?;
        }
    }
    lower.sync_all()
}

/// What of a tree that was found is not as expected.
pub(super) fn difference(expected: &Tree, found: &Tree) -> Option<String> {
    expected.difference(found, VIEW)
}

/// A volume over the store.
pub(super) fn start(store: Arc<dyn Store>) -> VolumeTarget {
    let config = Config::parse(CONFIG, Path::new("fuzzing.toml"));
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let options = VolumeOptions {
        background: false,
        clock: Arc::new(SteppingClock::default()),
        hash_seed: Some(7),
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(store, options).unwrap_or_else(|error| panic!("{error}"));
    VolumeTarget::new(volume)
}

/// What is there.
pub(super) fn tree(target: &mut VolumeTarget) -> Tree {
    target
        .tree()
        .unwrap_or_else(|error| panic!("the tree cannot be read: {error}"))
}

fn commit(target: &VolumeTarget) {
    let committed = target.volume().sync_app(None, false);
    committed.unwrap_or_else(|error| panic!("{error}"));
}

fn path(u: &mut Unstructured<'_>) -> Result<String> {
    Ok((*u.choose(&PATHS)?).to_owned())
}

fn file(u: &mut Unstructured<'_>) -> Result<FileRef> {
    path(u).map(FileRef::Path)
}

fn payload(u: &mut Unstructured<'_>, longest: u32) -> Result<Payload> {
    Ok(Payload {
        tag: u.int_in_range(0..=9)?,
        length: u.int_in_range(0..=longest)?,
    })
}

/// A call of a program.
fn operation(u: &mut Unstructured<'_>) -> Result<Operation> {
    let offset = |u: &mut Unstructured<'_>| u.int_in_range(0..=20_000_u64);
    Ok(match u.int_in_range(0..=15)? {
        0..=2 => Operation::CreateFile {
            path: path(u)?,
            mode: 0o644,
        },
        3 | 4 => Operation::MakeDirectory {
            path: path(u)?,
            mode: 0o755,
        },
        5 => Operation::MakeSymlink {
            path: path(u)?,
            target: "over/there".to_owned(),
        },
        6..=8 => Operation::Write {
            file: file(u)?,
            offset: offset(u)?,
            data: payload(u, 6000)?,
        },
        9 => Operation::Append {
            file: file(u)?,
            // Enough for data that is written in place.
            data: payload(u, 100_000)?,
        },
        10 => Operation::Truncate {
            file: file(u)?,
            size: offset(u)?,
        },
        11 => Operation::Rename {
            from: path(u)?,
            to: path(u)?,
            mode: *u.choose(&[RenameMode::Replace, RenameMode::Exchange])?,
        },
        12 => Operation::Unlink { path: path(u)? },
        13 => Operation::Link {
            from: path(u)?,
            to: path(u)?,
        },
        14 => rare_operation(u)?,
        _ => Operation::RemoveDirectory { path: path(u)? },
    })
}

fn rare_operation(u: &mut Unstructured<'_>) -> Result<Operation> {
    Ok(match u.int_in_range(0..=3)? {
        0 => Operation::SetXattr {
            path: path(u)?,
            name: "user.x".to_owned(),
            value: payload(u, 100)?,
            mode: XattrMode::Any,
        },
        1 => Operation::SetMode {
            path: path(u)?,
            mode: 0o600,
        },
        2 => Operation::Allocate {
            file: file(u)?,
            mode: AllocateMode::PunchHole,
            offset: u.int_in_range(0..=20_000)?,
            length: u.int_in_range(1..=20_000)?,
        },
        _ => Operation::MakeNode {
            path: path(u)?,
            mode: 0o600,
            kind: NodeKind::Fifo,
        },
    })
}
