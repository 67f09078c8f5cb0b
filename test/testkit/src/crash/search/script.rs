//! Scripted histories: the important patterns, cut at every call.

use mobifs_base::{FileKind, Name, PAGE_BYTES_U64};

use super::operation::{After, Operation, Verb};
use super::run::{Plan, Scene};
use super::tree::{NodeId, ROOT};
use super::world::{Demand, World, content_of};

/// A number for which page 2 is among the pages that are spilled.
const SPILLED_PAGE_2: u64 = 3;

/// What a transaction does, and what follows it.
type ScriptStep = (fn(&mut Pen), After);

/// One scripted history.
#[derive(Clone, Copy)]
pub(super) struct Script {
    pub(super) name: &'static str,
    /// What makes the tree that is there before the store is.
    before: fn(&mut Pen),
    journal_bytes: u64,
    /// Transactions, and what follows each.
    steps: &'static [ScriptStep],
}

/// Writes on a world by paths.
struct Pen<'w> {
    world: &'w mut World,
    /// What the store has to do before the transaction.
    demands: Vec<Demand>,
}

impl<'w> Pen<'w> {
    const fn new(world: &'w mut World) -> Self {
        Self {
            world,
            demands: Vec::new(),
        }
    }

    fn find(&self, path: &str) -> NodeId {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(ROOT, |at, name| {
            self.world.tree.node(at).entries[name.as_bytes()]
        })
    }

    fn split(&self, path: &str) -> (NodeId, Name) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        #[expect(clippy::expect_used, reason = "scripts hold valid names only")]
        let name = Name::new(name.as_bytes()).expect("a valid name");
        (self.find(parent), name)
    }

    fn make(&mut self, path: &str, kind: FileKind) -> NodeId {
        let (parent, name) = self.split(path);
        let node = self.world.new_node(kind);
        self.world.insert(node, parent, name)
    }

    fn directory(&mut self, path: &str) {
        self.make(path, FileKind::Directory);
    }

    fn file(&mut self, path: &str, bytes: u64) {
        let id = self.make(path, FileKind::Regular);
        self.world.write(id, 0, &content_of(bytes + 1, bytes));
    }

    fn write(&mut self, path: &str, offset: u64, bytes: u64) {
        let id = self.find(path);
        self.world
            .write(id, offset, &content_of(offset ^ bytes ^ 77, bytes));
    }

    fn truncate(&mut self, path: &str, size: u64) {
        let id = self.find(path);
        self.world.truncate(id, size);
    }

    fn remove(&mut self, path: &str) {
        let (parent, name) = self.split(path);
        self.world.remove(parent, &name);
    }

    /// The file stays open.
    fn remove_open(&mut self, path: &str) {
        let (id, (parent, name)) = (self.find(path), self.split(path));
        self.demands
            .extend(self.world.unlink_open(parent, &name, id));
    }

    /// Spills pages of the file that was removed first.
    fn spill_removed(&mut self, pages: u64) {
        let operation = Operation {
            verb: Verb::SpillRemoved,
            numbers: [0, pages, 5, 0],
        };
        self.demands.extend(self.world.perform(&operation));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (id, (parent, name)) = (self.find(from), self.split(from));
        let (to_parent, to_name) = self.split(to);
        self.world.remove(to_parent, &to_name);
        self.world.take_entry(parent, &name);
        self.world.add_entry(to_parent, to_name, id);
    }

    fn exchange(&mut self, one: &str, other: &str) {
        let (first, second) = (self.find(one), self.find(other));
        let ((parent, name), (to_parent, to_name)) = (self.split(one), self.split(other));
        self.world.take_entry(parent, &name);
        self.world.take_entry(to_parent, &to_name);
        self.world.add_entry(to_parent, to_name, first);
        self.world.add_entry(parent, name, second);
    }

    /// A transaction in the log of the database `db` in the root, which is made if there is none.
    fn log_page(&mut self, page: u64, row: u64) {
        self.world.log_pages([0, page, row, 99]);
    }

    fn link(&mut self, from: &str, to: &str) {
        let (id, (parent, name)) = (self.find(from), self.split(to));
        self.world.add_entry(parent, name, id);
    }
}

impl Plan for Script {
    fn limits(&self) -> [u64; 3] {
        [self.journal_bytes, 8 << 10, 1 << 30]
    }

    fn prepare(&self, world: &mut World) {
        (self.before)(&mut Pen::new(world));
    }

    fn steps(&self) -> usize {
        self.steps.len()
    }

    fn perform(&self, step: usize, scene: &mut dyn Scene) -> Result<(), String> {
        let mut pen = Pen::new(scene.world());
        (self.steps[step].0)(&mut pen);
        let demands = pen.demands;
        scene.meet(&demands)
    }

    fn after(&self, step: usize) -> After {
        self.steps[step].1
    }
}

/// All scripts.
pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "a file is saved by renaming a new one over it",
        before: |pen| pen.file("text", 5000),
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.file("text.new", 6000), After::Nothing),
            (|pen| pen.rename("text.new", "text"), After::Nothing),
            (
                |pen| {
                    pen.file("text.new", 7000);
                    pen.rename("text.new", "text");
                },
                After::Apply,
            ),
            (|pen| pen.file("other", 1), After::Nothing),
        ],
    },
    Script {
        name: "a database with a rollback journal",
        before: |pen| pen.file("db", 8 * PAGE_BYTES_U64),
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.file("db-journal", 9000), After::Nothing),
            (
                |pen| {
                    pen.write("db", 24, 4);
                    pen.write("db", 3 * PAGE_BYTES_U64 + 100, 50);
                    pen.write("db", 8 * PAGE_BYTES_U64, PAGE_BYTES_U64);
                },
                After::Nothing,
            ),
            (|pen| pen.truncate("db-journal", 0), After::Apply),
            (|pen| pen.remove("db-journal"), After::Nothing),
        ],
    },
    Script {
        name: "directories change places",
        before: |pen| {
            pen.directory("a");
            pen.directory("a/b");
            pen.directory("a/b/c");
            pen.file("a/b/c/file", 10);
            pen.directory("z");
        },
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.exchange("a/b/c", "z"), After::Nothing),
            (
                |pen| {
                    pen.rename("z/file", "a/file");
                    pen.rename("a/b", "z/b");
                    pen.rename("a", "z/b/a");
                },
                After::Apply,
            ),
            (|pen| pen.exchange("z/b/a", "z/b/c"), After::Drop),
        ],
    },
    Script {
        // Found by the search: the final parent of the outer directory was looked for
        // in the outer directory, and so on for ever.
        name: "a directory moves into one that was below it",
        before: |pen| {
            pen.directory("outer");
            pen.directory("outer/inner");
            pen.file("outer/inner/file", 10);
            pen.file("outer/other", 20);
        },
        journal_bytes: 64 << 10,
        steps: &[(
            |pen| {
                pen.rename("outer/inner", "inner");
                pen.rename("outer", "inner/outer");
                pen.file("outer", 30);
            },
            After::Apply,
        )],
    },
    Script {
        name: "hard links come and go",
        before: |pen| {
            pen.file("one", 100);
            pen.link("one", "two");
            pen.directory("d");
        },
        journal_bytes: 64 << 10,
        steps: &[
            (
                |pen| {
                    pen.link("one", "d/three");
                    pen.remove("one");
                    pen.rename("two", "one");
                },
                After::Nothing,
            ),
            (
                |pen| {
                    pen.file("two", 50);
                    pen.exchange("two", "d/three");
                    pen.link("d/three", "four");
                },
                After::Apply,
            ),
            (
                |pen| {
                    pen.remove("one");
                    pen.remove("two");
                    pen.remove("four");
                },
                After::Nothing,
            ),
        ],
    },
    Script {
        name: "new data goes to its place, then is cut and overwritten",
        before: |pen| pen.file("old", 30_000),
        journal_bytes: 64 << 10,
        steps: &[
            (
                |pen| {
                    pen.file("new", 100_000);
                    pen.write("old", 30_000, 90_000);
                },
                After::Nothing,
            ),
            (
                |pen| {
                    pen.truncate("new", 50_000);
                    pen.write("old", 60_000, 10);
                },
                After::Nothing,
            ),
            (
                |pen| {
                    pen.truncate("new", 90_000);
                    pen.truncate("old", 100);
                    pen.write("old", 70_000, 80_000);
                },
                After::Apply,
            ),
            (|pen| pen.rename("new", "old"), After::Nothing),
        ],
    },
    Script {
        name: "a tree is deleted and made again under the same names",
        before: |pen| {
            pen.directory("t");
            pen.directory("t/u");
            pen.file("t/u/f", 10);
            pen.file("t/g", 20);
        },
        journal_bytes: 64 << 10,
        steps: &[
            (
                |pen| {
                    pen.remove("t");
                    pen.directory("t");
                    pen.file("t/u", 30);
                    pen.directory("t/g");
                },
                After::Nothing,
            ),
            (
                |pen| {
                    pen.remove("t");
                    pen.file("t", 40);
                },
                After::Apply,
            ),
            (
                |pen| {
                    pen.remove("t");
                    pen.directory("t");
                    pen.directory("t/u");
                },
                After::Drop,
            ),
        ],
    },
    Script {
        // Found by the search: a torn transaction that recovery had discarded stayed
        // in the journal if nothing else was there.
        name: "the first transaction is torn",
        before: |_| {},
        journal_bytes: 64 << 10,
        steps: &[(|pen| pen.file("f", 12_000), After::Nothing)],
    },
    Script {
        // Found by the kill search: the database was found again under another id, and the write in place
        // was not known as one to what the journal copies from.
        name: "a database is forgotten, and overwritten in place, while the journal copies from it",
        before: |_| {},
        // Room for a write in place without an apply before it.
        journal_bytes: 512 << 10,
        steps: &[
            (|pen| pen.log_page(1, 5), After::Apply),
            (|pen| pen.log_page(2, 6), After::Forget),
            (|pen| pen.log_page(3, 7), After::Nothing),
            (|pen| pen.truncate("db", 0), After::Nothing),
            (|pen| pen.write("db", 0, 80_000), After::Nothing),
            (|pen| pen.log_page(4, 8), After::Apply),
        ],
    },
    Script {
        // Found by the kill search: a successor listed it under the id that the journal has.
        name: "a database is forgotten after its copies were materialized",
        before: |_| {},
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.log_page(1, 5), After::Apply),
            (|pen| pen.log_page(2, 6), After::WriteAhead),
            (|pen| pen.file("other", 10), After::Forget),
            (|pen| pen.log_page(3, 7), After::Nothing),
            (|pen| pen.file("more", 10), After::Apply),
        ],
    },
    Script {
        // Found by the kill search: recovery does not know the database before the transaction that makes it.
        name: "a new database is large, and its log is made in the same transaction",
        before: |_| {},
        // Room for the transaction as if all of it went there.
        journal_bytes: 1 << 20,
        steps: &[
            (
                |pen| {
                    pen.file("db", 360_000);
                    pen.log_page(2, 6);
                },
                After::Drop,
            ),
            (|pen| pen.log_page(3, 7), After::Apply),
        ],
    },
    Script {
        name: "a database that the journal copies from is deleted while it is open, and spilled",
        before: |_| {},
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.log_page(1, 5), After::Apply),
            (|pen| pen.log_page(2, 6), After::Nothing),
            (|pen| pen.remove_open("db"), After::Nothing),
            (|pen| pen.spill_removed(SPILLED_PAGE_2), After::Nothing),
            (|pen| pen.file("other", 10), After::Apply),
        ],
    },
    Script {
        name: "a database from which the journal of an earlier mount copies is forgotten, and overwritten in place",
        before: |_| {},
        // Room for a write in place without an apply before it.
        journal_bytes: 512 << 10,
        steps: &[
            (|pen| pen.log_page(1, 5), After::Apply),
            (|pen| pen.log_page(2, 6), After::Drop),
            (|pen| pen.file("other", 10), After::Forget),
            (|pen| pen.truncate("db", 0), After::Nothing),
            (|pen| pen.write("db", 0, 80_000), After::Nothing),
            (|pen| pen.log_page(4, 8), After::Apply),
        ],
    },
    Script {
        // Found by the search: what lies in limbo is not found in a copy of the store.
        name: "a database was deleted while it was open, and its log goes on with another one",
        before: |_| {},
        journal_bytes: 64 << 10,
        steps: &[
            (|pen| pen.log_page(1, 5), After::Apply),
            (|pen| pen.remove_open("db"), After::Apply),
            (|pen| pen.log_page(2, 6), After::Nothing),
            (|pen| pen.file("other", 10), After::Nothing),
            (|pen| pen.log_page(3, 7), After::Apply),
        ],
    },
];
