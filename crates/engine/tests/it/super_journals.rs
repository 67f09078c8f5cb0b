//! Transactions of SQLite over databases in several apps: what a power cut may leave of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use mobifs_base::{Entry, ObjectId};
use mobifs_engine::{AttributeChange, Commit, SyncPoint};
use mobifs_numerics::Random;

use crate::saved::Records;
use crate::support::{Bed, ROOT};

const SUPER: &str = "db-mj00000190A";
const JOURNAL: &str = "db-journal";

/// Apps `a`, `b`, `c` and so on.
fn apps<const COUNT: usize>(bed: &mut Bed) -> [ObjectId; COUNT] {
    let apps = std::array::from_fn(|app| bed.directory(ROOT, app_name(app)));
    bed.checkpoint();
    apps
}

fn app_name(app: usize) -> &'static str {
    ["a", "b", "c", "d"][app]
}

/// The apps of each commit.
fn apps_of(commits: &[Commit]) -> BTreeSet<BTreeSet<String>> {
    let names = |commit: &Commit| {
        let apps = commit.apps.iter();
        apps.map(|path| String::from_utf8(path.clone()).unwrap())
            .collect()
    };
    commits.iter().map(names).collect()
}

fn sets<const COUNT: usize>(expected: [&[&str]; COUNT]) -> BTreeSet<BTreeSet<String>> {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    expected.into_iter().map(set).collect()
}

/// A whole page: no other is needed to write it.
fn page(bytes: &[u8]) -> Vec<u8> {
    let mut page = bytes.to_vec();
    page.resize(PAGE_BYTES as usize, 0);
    page
}

/// A transaction over databases of two apps begins: the super-journal is there, and a journal of the other one names
/// it. Returns that one's database.
fn begin(bed: &mut Bed, home: ObjectId, other: ObjectId) -> ObjectId {
    bed.file(home, SUPER);
    let journal = bed.file(other, JOURNAL);
    bed.write(journal, 0, b"names it");
    bed.file(other, "db")
}

#[test]
fn a_journal_is_committed_with_the_super_journal_that_it_may_name() {
    let mut bed = Bed::relaxed();
    let [a, b, c] = apps(&mut bed);
    let journal = bed.file(b, JOURNAL);
    bed.file(c, "other");
    bed.file(a, SUPER);
    bed.write(journal, 0, &page(b"names it"));
    assert_eq!(
        apps_of(&bed.checkpoint()),
        sets([&["a", "b"], &["c"]]),
        "the app without a journal is on its own"
    );
    // Committed: what follows needs nothing of it.
    bed.write(journal, 0, &page(b"goes on"));
    bed.file(a, "more");
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a"], &["b"]]));
}

/// The names in it are as necessary as the file: without them, whoever has rolled one database back
/// removes it.
#[test]
fn a_journal_is_committed_after_what_a_super_journal_says() {
    let mut bed = Bed::relaxed();
    let [a, b] = apps(&mut bed);
    let journal = bed.file(b, JOURNAL);
    let names = bed.file(a, SUPER);
    bed.checkpoint();
    bed.write(names, 0, b"/a/db-journal /b/db-journal");
    bed.engine.close_app(b"a");
    bed.write(journal, 0, b"names it");
    let Some(SyncPoint::Committed(of_b)) = bed.engine.close_app(b"b") else {
        panic!("something was changed");
    };
    let first = bed.engine.next_commit(of_b.last().copied()).unwrap();
    assert_eq!(apps_of(&[first]), sets([&["a"]]), "what it says");
}

#[test]
fn the_end_of_a_super_journal_is_committed_with_all_databases() {
    let mut bed = Bed::relaxed();
    let [a, b, c] = apps(&mut bed);
    let database = begin(&mut bed, a, b);
    bed.checkpoint();
    bed.write(database, 0, b"row");
    bed.file(c, "other");
    bed.unlink(a, SUPER);
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "b"], &["c"]]));
    // Apart again afterwards.
    bed.write(database, 0, b"raw");
    bed.file(a, "more");
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a"], &["b"]]));
}

#[test]
fn the_end_of_a_super_journal_waits_for_what_is_closed() {
    let mut bed = Bed::relaxed();
    let [a, b] = apps(&mut bed);
    let database = begin(&mut bed, a, b);
    bed.checkpoint();
    bed.write(database, 0, b"row");
    bed.engine.close_app(b"b");
    bed.unlink(a, SUPER);
    bed.engine.close_app(b"a");
    let order: Vec<_> = bed.drain();
    assert_eq!(apps_of(&order[..1]), sets([&["b"]]));
    assert_eq!(apps_of(&order[1..]), sets([&["a", "b"]]));
}

#[test]
fn the_end_of_a_super_journal_that_was_not_followed_concerns_all_apps() {
    let mut bed = Bed::saved();
    let [a, b, c] = apps(&mut bed);
    let database = begin(&mut bed, a, b);
    bed.checkpoint();
    restart(&mut bed);
    bed.write(database, 0, b"row");
    bed.file(c, "other");
    bed.unlink(a, SUPER);
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "b", "c"]]));
}

#[test]
fn a_super_journal_that_a_predecessor_has_not_committed_is_followed() {
    let mut bed = Bed::saved();
    let [a, b] = apps(&mut bed);
    bed.file(a, SUPER);
    let journal = bed.file(b, JOURNAL);
    restart(&mut bed);
    bed.write(journal, 0, b"names it");
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "b"]]));
}

/// The journal's app has another name, and with it another number.
#[test]
fn the_end_of_a_super_journal_concerns_all_apps_after_a_directory_has_moved() {
    let mut bed = Bed::relaxed();
    let [a, b] = apps(&mut bed);
    let database = begin(&mut bed, a, b);
    bed.rename((ROOT, "b"), (ROOT, "moved"));
    bed.checkpoint();
    bed.write(database, 0, b"row");
    bed.unlink(a, SUPER);
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "moved"]]));
}

#[test]
fn super_journals_that_are_too_many_to_be_followed_concern_all_apps() {
    let mut bed = Bed::relaxed();
    let [a, b] = apps(&mut bed);
    let name = |number: u64| format!("db-mj{number:06X}90A");
    let files: Vec<ObjectId> = (0..64).map(|number| bed.file(a, &name(number))).collect();
    bed.file(b, "other");
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a"], &["b"]]));
    for &file in &files {
        bed.write(file, 0, b"uncommitted");
    }
    bed.file(b, "more");
    let last = bed.file(a, &name(64));
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "b"]]));
    for &file in files.iter().chain([&last]) {
        bed.write(file, 0, b"uncommitted");
    }
    bed.file(b, "and more");
    bed.write(last, 0, b"of one that is too many");
    assert_eq!(apps_of(&bed.checkpoint()), sets([&["a", "b"]]));
}

fn restart(bed: &mut Bed) {
    let mut records = Records::default();
    bed.engine.save_all(&mut records);
    bed.engine = records.restored().unwrap();
}

const APPS: usize = 4;
const PAGES: u64 = 3;
const PAGE_BYTES: u64 = 4096;

/// The program was killed here.
struct Killed;

/// What is committed.
#[derive(Clone, Default)]
struct Image {
    entries: BTreeMap<(ObjectId, String), ObjectId>,
    pages: BTreeMap<(ObjectId, u64), Vec<u8>>,
}

impl Image {
    fn apply(&mut self, commit: &Commit) {
        for entry in commit.to_transaction().entries() {
            match entry {
                Entry::Dentry {
                    parent,
                    name,
                    child,
                } => {
                    let key = (parent, name.to_string());
                    match child {
                        Some(child) => drop(self.entries.insert(key, child)),
                        None => drop(self.entries.remove(&key)),
                    }
                }
                Entry::Object(state) => {
                    for zeroed in &state.zeroed {
                        self.pages.retain(|(id, index), _| {
                            let at = index * PAGE_BYTES;
                            *id != state.id || at < zeroed.start || at >= zeroed.end
                        });
                    }
                }
                Entry::Page { .. } => {}
            }
        }
        // After what is zeroed.
        for entry in commit.to_transaction().entries() {
            if let Entry::Page {
                object,
                index,
                page,
            } = entry
            {
                self.pages.insert((object, index.0), page.stored().to_vec());
            }
        }
    }

    /// A byte of a file; 0 after its end.
    fn byte(&self, file: ObjectId, page: u64, at: usize) -> u8 {
        let page = self.pages.get(&(file, page));
        page.and_then(|page| page.get(at)).copied().unwrap_or(0)
    }

    fn find(&self, directory: ObjectId, name: &str) -> Option<ObjectId> {
        self.entries.get(&(directory, name.to_owned())).copied()
    }
}

/// A journal: the first page says whether it is valid and what the database's pages were; the second
/// names a super-journal.
#[derive(Clone, Copy)]
struct Journal {
    is_valid: bool,
    before: u8,
    names: Option<Super>,
}

/// A super-journal: beside a database of this app, the number of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Super {
    home: usize,
    number: u8,
}

impl Super {
    fn name(self) -> String {
        format!("db-mj{:06X}9{:02X}", self.number, self.home)
    }
}

/// Databases of one program, each in an app of its own; each page of a database holds the number of the
/// last transaction that changed it.
struct World {
    bed: Bed,
    dice: Random,
    image: Image,
    directories: [ObjectId; APPS],
    databases: [ObjectId; APPS],
    /// Numbers in the databases, as programs see them.
    numbers: [u8; APPS],
    /// The journals as programs see them.
    journals: [Option<(ObjectId, Journal)>; APPS],
    /// The super-journals as programs see them, with the apps that they name.
    supers: Vec<(Super, ObjectId, Vec<usize>)>,
    /// The apps of each transaction.
    transactions: Vec<Vec<usize>>,
    /// The last transaction is committed, as programs see it.
    is_committed: bool,
    /// After so many changes the program is killed.
    lives_for: u64,
    records: Records,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut bed = Bed::saved();
        let mut image = Image::default();
        let directories = std::array::from_fn(|app| bed.directory(ROOT, app_name(app)));
        let databases = directories.map(|directory| {
            let database = bed.file(directory, "db");
            for index in 0..PAGES {
                bed.write(database, index * PAGE_BYTES, &page(&[0]));
            }
            database
        });
        for commit in bed.checkpoint() {
            image.apply(&commit);
        }
        Self {
            bed,
            dice: Random::new(seed),
            image,
            directories,
            databases,
            numbers: [0; APPS],
            journals: [None; APPS],
            supers: Vec::new(),
            transactions: vec![Vec::new()],
            is_committed: false,
            lives_for: u64::MAX,
            records: Records::default(),
        }
    }

    /// What may happen between two changes. Whatever is committed, a power cut is survived.
    fn between(&mut self) -> Result<(), Killed> {
        for _ in 0..self.dice.below(3) {
            match self.dice.below(10) {
                0..4 => {
                    let app = app_name(self.dice.below(APPS as u64) as usize);
                    self.bed.engine.close_app(app.as_bytes());
                }
                4..9 => {
                    let waiting = self.bed.engine.waiting();
                    let towards = (!waiting.is_empty()).then(|| self.dice.pick(&waiting).id);
                    if let Some(commit) = self.bed.engine.next_commit(towards) {
                        self.bed.engine.committed(commit.transaction);
                        self.image.apply(&commit);
                        self.check();
                    }
                }
                _ => {
                    self.bed.engine.save(&mut self.records);
                    self.bed.engine = self.records.restored().unwrap();
                }
            }
        }
        self.lives_for -= 1;
        if self.lives_for == 0 {
            return Err(Killed);
        }
        Ok(())
    }

    fn write_journal(&mut self, app: usize, journal: Journal) -> Result<(), Killed> {
        let file = match self.journals[app] {
            Some((file, _)) => file,
            None => self.bed.file(self.directories[app], JOURNAL),
        };
        self.journals[app] = Some((file, journal));
        // The name first: a header makes a journal valid at once.
        let names = journal.names;
        if let Some(Super { home, number }) = names {
            self.bed
                .write(file, PAGE_BYTES, &page(&[1, home as u8, number]));
        }
        self.bed.write(
            file,
            0,
            &page(&[u8::from(journal.is_valid), journal.before]),
        );
        self.between()
    }

    fn write_database(&mut self, app: usize, number: u8) -> Result<(), Killed> {
        for index in 0..PAGES {
            self.bed
                .write(self.databases[app], index * PAGE_BYTES, &page(&[number]));
            self.between()?;
        }
        self.numbers[app] = number;
        Ok(())
    }

    fn end_journal(&mut self, app: usize) -> Result<(), Killed> {
        let (file, journal) = self.journals[app].unwrap();
        self.is_committed |= journal.names.is_none();
        match self.dice.below(3) {
            // The size, as with a super-journal in each of SQLite's modes that keep the file.
            0 => {
                let change = AttributeChange {
                    size: Some(0),
                    ..AttributeChange::default()
                };
                let moment = self.bed.moment();
                self.bed
                    .engine
                    .set_attributes(moment, file, &change)
                    .unwrap();
                let empty = Journal {
                    is_valid: false,
                    before: 0,
                    names: None,
                };
                self.journals[app] = Some((file, empty));
            }
            1 if journal.names.is_none() => {
                self.bed.write(file, 0, &page(&[0]));
                let is_valid = false;
                self.journals[app] = Some((
                    file,
                    Journal {
                        is_valid,
                        ..journal
                    },
                ));
            }
            _ => {
                self.bed.unlink(self.directories[app], JOURNAL);
                self.bed.engine.forget(file, 1);
                self.journals[app] = None;
            }
        }
        self.between()
    }

    fn remove_super(&mut self, which: Super) -> Result<(), Killed> {
        let at = self.supers.iter().position(|(one, ..)| *one == which);
        let (_, file, _) = self.supers.remove(at.unwrap());
        let directory = self.directories[which.home];
        self.bed.unlink(directory, &which.name());
        self.bed.engine.forget(file, 1);
        self.is_committed = true;
        self.between()
    }

    /// A transaction over databases of these apps. The main database, beside which the super-journal is,
    /// need not be one of them.
    fn transaction(&mut self, apps: &[usize]) -> Result<(), Killed> {
        let number = self.transactions.len() as u8;
        self.transactions.push(apps.to_vec());
        self.is_committed = false;
        let before = self.numbers;
        let journal = |app: usize, names| Journal {
            is_valid: true,
            before: before[app],
            names,
        };
        for &app in apps {
            self.write_journal(app, journal(app, None))?;
            if self.dice.chance(20) {
                // More is changed than the cache holds.
                let at = self.dice.below(PAGES) * PAGE_BYTES;
                self.bed.write(self.databases[app], at, &page(&[number]));
                self.between()?;
            }
        }
        let mut names = None;
        if apps.len() > 1 {
            let home = self.dice.below(APPS as u64) as usize;
            let joint = Super { home, number };
            names = Some(joint);
            let file = self.bed.file(self.directories[home], &joint.name());
            self.supers.push((joint, file, Vec::new()));
            self.between()?;
            let named: Vec<u8> = apps.iter().map(|&app| app as u8 + 1).collect();
            self.bed.write(file, 0, &page(&named));
            self.supers.last_mut().unwrap().2 = apps.to_vec();
            self.between()?;
        }
        for &app in apps {
            self.write_journal(app, journal(app, names))?;
            self.write_database(app, number)?;
        }
        if let Some(joint) = names {
            self.remove_super(joint)?;
        }
        for &app in apps {
            self.end_journal(app)?;
        }
        Ok(())
    }

    /// What the next programs do with what a killed one has left.
    fn recover(&mut self) -> Result<(), Killed> {
        for app in self.order() {
            let Some((_, journal)) = self.journals[app] else {
                continue;
            };
            if !journal.is_valid {
                continue;
            }
            let names = journal.names;
            let is_there = |named| self.supers.iter().any(|(one, ..)| *one == named);
            if names.is_none_or(is_there) {
                self.write_database(app, journal.before)?;
            }
            self.end_journal(app)?;
            if let Some((joint, _, named)) = self
                .supers
                .iter()
                .find(|(one, ..)| Some(*one) == names)
                .cloned()
                && !named.iter().any(|&app| self.names(app, joint))
            {
                self.remove_super(joint)?;
            }
        }
        // A super-journal that no journal names yet stays; the numbers are those of the files.
        Ok(())
    }

    fn names(&self, app: usize, joint: Super) -> bool {
        self.journals[app]
            .is_some_and(|(_, journal)| journal.is_valid && journal.names == Some(joint))
    }

    fn order(&mut self) -> Vec<usize> {
        let mut rest: Vec<usize> = (0..APPS).collect();
        let mut order = Vec::new();
        while !rest.is_empty() {
            let at = self.dice.below(rest.len() as u64) as usize;
            order.push(rest.remove(at));
        }
        order
    }

    /// What programs find after a power cut now: each database whole, each transaction in all of its
    /// databases or in none.
    fn check(&mut self) {
        let order = self.order();
        let mut image = self.image.clone();
        let directories = self.directories;
        let journal_of = |image: &Image, app: usize| {
            let file = image.find(directories[app], JOURNAL)?;
            let [names, home, number] = [0, 1, 2].map(|at| image.byte(file, 1, at));
            let home = usize::from(home);
            let names = (names == 1).then_some(Super { home, number });
            (image.byte(file, 0, 0) == 1).then(|| (image.byte(file, 0, 1), names))
        };
        let mut found = [0; APPS];
        for app in order {
            let pages = [0, 1, 2].map(|page| image.byte(self.databases[app], page, 0));
            let journal = journal_of(&image, app);
            let joint = journal.and_then(|(_, names)| names);
            let super_file =
                joint.and_then(|joint| image.find(directories[joint.home], &joint.name()));
            match journal {
                Some((before, _)) if joint.is_none() || super_file.is_some() => found[app] = before,
                _ => {
                    assert!(
                        pages.iter().all(|page| *page == pages[0]),
                        "the database of {} is malformed: {pages:?}",
                        app_name(app)
                    );
                    found[app] = pages[0];
                }
            }
            image
                .entries
                .remove(&(directories[app], JOURNAL.to_owned()));
            if let (Some(file), Some(joint)) = (super_file, joint) {
                let named = (0..APPS).map(|at| image.byte(file, 0, at));
                let named: Vec<u8> = named.filter(|&app| app > 0).collect();
                let is_named = |&app: &u8| {
                    let journal = journal_of(&image, usize::from(app) - 1);
                    journal.is_some_and(|(_, names)| names == Some(joint))
                };
                if !named.iter().any(is_named) {
                    let key = (directories[joint.home], joint.name());
                    image.entries.remove(&key);
                }
            }
        }
        for (app, &number) in found.iter().enumerate() {
            let number = usize::from(number);
            let is_its_own = number == 0 || self.transactions[number].contains(&app);
            assert!(is_its_own, "transaction {number} was rolled back");
        }
        for (number, apps) in self.transactions.iter().enumerate() {
            let has: BTreeSet<bool> = apps
                .iter()
                .map(|&app| usize::from(found[app]) >= number)
                .collect();
            assert!(
                has.len() <= 1,
                "transaction {number} of {apps:?} is in a part of its databases: {found:?}"
            );
        }
    }
}

#[test]
fn a_cut_leaves_transactions_over_databases_of_several_apps_whole() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        let mut killed = 0;
        while world.transactions.len() < 12 {
            let count = 1 + world.dice.below(3) as usize;
            let apps = world.order()[..count].to_vec();
            if world.dice.chance(30) {
                world.lives_for = 1 + world.dice.below(40);
            }
            let mut ended = world.transaction(&apps);
            if !world.is_committed {
                // It will be rolled back.
                world.transactions.last_mut().unwrap().clear();
            }
            while ended.is_err() {
                killed += 1;
                world.lives_for = if world.dice.chance(50) {
                    1 + world.dice.below(10)
                } else {
                    u64::MAX
                };
                ended = world.recover();
            }
            world.lives_for = u64::MAX;
        }
        assert!(killed < 1000, "programs come to an end");
    }
}
