//! Pages of a database that the journal has only as copies of what is elsewhere: in a log of SQLite, and in
//! a rollback journal. What they are copied from is overwritten by the applies that follow.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::collections::HashMap;

use mobifs_base::{ByteRange, Entry, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex};
use mobifs_store::log_reader::{AtBlock, LogReader, Record};
use mobifs_store::lower::Lower as _;
use mobifs_store::salvage::salvage;
use mobifs_store::{
    Gate, JournalOptions, JournalStore, Preallocation, Store as _, StoreError, Transaction,
};
use mobifs_testkit::crash::{CrashLower, Fate};
use mobifs_testkit::entries::{plain_file, root_entry};
use mobifs_testkit::random::Random;

type TestStore = JournalStore<Gate<CrashLower>>;

const DATABASE: usize = 0;
const LOG: usize = 1;
const ROLLBACK_JOURNAL: usize = 2;
const NAMES: [&str; 3] = ["a.db", "a.db-wal", "a.db-journal"];
/// The content of the files; none: the file does not exist.
type Files = [Option<Vec<u8>>; 3];

const LOG_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const SECTOR_BYTES: usize = 512;

fn options(journal_bytes: u64) -> JournalOptions {
    JournalOptions {
        journal_bytes,
        direct_bytes_max: Some(8 << 10),
        uuid_if_new: *b"copies of pages.",
        ahead_pages_min: 1,
        preallocation: Preallocation::OFF,
        ..JournalOptions::default()
    }
}

fn try_open(lower: &CrashLower, journal_bytes: u64) -> Result<TestStore, StoreError> {
    let opened = JournalStore::open(Gate::new(lower.clone()), &options(journal_bytes));
    opened.map(|(store, _)| store)
}

fn try_content_of(store: &TestStore) -> Result<Files, StoreError> {
    let mut files = Files::default();
    for entry in store.list_directory(ObjectId::ROOT)? {
        let mut names = NAMES.iter();
        if let Some(number) = names.position(|name| entry.name.as_bytes() == name.as_bytes()) {
            let mut content = vec![0; store.object(entry.id)?.attributes.size as usize];
            store.read(entry.id, 0, &mut content)?;
            files[number] = Some(content);
        }
    }
    Ok(files)
}

fn content_of(store: &TestStore) -> Files {
    try_content_of(store).unwrap()
}

/// The ids of the files in a store that has just been opened.
fn ids_of(store: &TestStore) -> [Option<ObjectId>; 3] {
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    NAMES.map(|name| {
        let mut entries = entries.iter();
        let found = entries.find(|entry| entry.name.as_bytes() == name.as_bytes());
        found.map(|entry| entry.id)
    })
}

/// Which files a store has, and the next new id.
struct Ids {
    files: [Option<ObjectId>; 3],
    next: u64,
}

impl Ids {
    fn of(store: &TestStore) -> Self {
        Self {
            files: ids_of(store),
            next: store.first_new_object().0,
        }
    }

    /// What makes the files of `before` those of `after`.
    fn transaction(&mut self, before: &Files, after: &Files) -> Transaction {
        let mut transaction = Transaction::default();
        for (number, name) in NAMES.iter().enumerate() {
            let (old, new) = (&before[number], &after[number]);
            if old == new {
                continue;
            }
            let Some(new) = new else {
                self.files[number] = None;
                transaction.push(root_entry(name, None));
                continue;
            };
            let is_new = self.files[number].is_none();
            let id = *self.files[number].get_or_insert_with(|| {
                self.next += 2;
                ObjectId(self.next - 2)
            });
            let old = old.as_deref().unwrap_or_default();
            let mut state = plain_file(id, new.len() as u64, 1);
            state.created = is_new;
            if is_new {
                transaction.push(root_entry(name, Some(id)));
            }
            if new.len() < old.len() {
                let from = (new.len() as u64).next_multiple_of(PAGE_BYTES_U64);
                state.zeroed.push(ByteRange::from(from));
            }
            transaction.push(Entry::Object(state));
            for at in (0..new.len()).step_by(PAGE_BYTES) {
                let page = |of: &[u8]| {
                    let mut page = [0; PAGE_BYTES];
                    let there = of.get(at..).unwrap_or_default();
                    let length = there.len().min(PAGE_BYTES);
                    page[..length].copy_from_slice(&there[..length]);
                    page
                };
                if page(old) != page(new) || at >= old.len() {
                    transaction.push(Entry::Page {
                        object: id,
                        index: PageIndex::of_offset(at as u64),
                        page: Page::new(&page(new)),
                    });
                }
            }
        }
        transaction
    }
}

/// What SQLite does to a database and the files beside it.
#[derive(Clone)]
struct Sqlite {
    random: Random,
    page_bytes: usize,
    files: Files,
    salt: [u8; 8],
    frames: usize,
    /// By index of the page: what the log has of it.
    in_log: HashMap<usize, Vec<u8>>,
}

impl Sqlite {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let page_bytes = *random.pick(&[1024, 4096, 4096, 8192]);
        let mut database = vec![0; page_bytes * 8];
        random.fill(&mut database);
        database[..16].copy_from_slice(b"SQLite format 3\0");
        database[16..18].copy_from_slice(&(page_bytes as u16).to_be_bytes());
        let mut left = vec![0; SECTOR_BYTES + 3 * (page_bytes + 8)];
        random.fill(&mut left[SECTOR_BYTES..]);
        Self {
            random,
            page_bytes,
            files: [Some(database), Some(Vec::new()), Some(left)],
            salt: [0; 8],
            frames: 0,
            in_log: HashMap::new(),
        }
    }

    fn database(&mut self) -> &mut Vec<u8> {
        self.files[DATABASE].get_or_insert_with(Vec::new)
    }

    fn pages(&mut self) -> usize {
        self.database().len() / self.page_bytes
    }

    /// A page as readers of the database see it.
    fn page(&mut self, number: usize) -> Vec<u8> {
        if let Some(page) = self.in_log.get(&number) {
            return page.clone();
        }
        let bytes = self.page_bytes;
        self.database()[number * bytes..][..bytes].to_vec()
    }

    fn edited(&mut self, mut page: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.random.below(3) {
            let at = 100 + self.random.below(self.page_bytes as u64 - 140) as usize;
            self.random.fill(&mut page[at..at + 20]);
        }
        page
    }

    fn some_pages(&mut self) -> Vec<usize> {
        let pages = self.pages() as u64;
        let mut chosen: Vec<usize> = (0..1 + self.random.below(3))
            .map(|_| self.random.below(pages) as usize)
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// A transaction of the WAL mode.
    fn write_log(&mut self) {
        if self.frames > 10 || self.salt == [0; 8] {
            self.checkpoint();
            self.frames = 0;
            self.random.fill(&mut self.salt);
            let mut header = [0; LOG_HEADER_BYTES];
            header[..4].copy_from_slice(&0x377f_0682_u32.to_be_bytes());
            header[8..12].copy_from_slice(&(self.page_bytes as u32).to_be_bytes());
            header[16..24].copy_from_slice(&self.salt);
            self.write(LOG, 0, &header);
        }
        for number in self.some_pages() {
            let page = self.page(number);
            let page = self.edited(page);
            let mut header = [0; FRAME_HEADER_BYTES];
            self.random.fill(&mut header[16..]);
            header[..4].copy_from_slice(&(number as u32 + 1).to_be_bytes());
            header[8..16].copy_from_slice(&self.salt);
            let at = LOG_HEADER_BYTES + self.frames * (FRAME_HEADER_BYTES + self.page_bytes);
            self.write(LOG, at, &header);
            self.write(LOG, at + FRAME_HEADER_BYTES, &page);
            self.frames += 1;
            self.in_log.insert(number, page);
        }
    }

    fn checkpoint(&mut self) {
        let bytes = self.page_bytes;
        for (number, page) in std::mem::take(&mut self.in_log) {
            self.write(DATABASE, number * bytes, &page);
        }
    }

    /// A transaction of the mode PERSIST.
    fn with_rollback_journal(&mut self) {
        self.checkpoint();
        let mut at = SECTOR_BYTES;
        for number in self.some_pages() {
            let old = self.page(number);
            let mut sum = [0; 4];
            self.random.fill(&mut sum);
            let record = [&(number as u32 + 1).to_be_bytes()[..], &old, &sum].concat();
            self.write(ROLLBACK_JOURNAL, at, &record);
            at += record.len();
            let new = self.edited(old);
            self.write(DATABASE, number * self.page_bytes, &new);
        }
        self.write(ROLLBACK_JOURNAL, 0, &[0; 28]);
    }

    /// Most pages are not needed any more.
    fn shrink(&mut self) {
        self.checkpoint();
        let bytes = 2 * self.page_bytes;
        self.database().truncate(bytes);
    }

    /// Adds so many new pages that they go to their place at once.
    fn grow(&mut self) {
        let mut new = vec![0; 17 * PAGE_BYTES];
        self.random.fill(&mut new);
        self.database().extend(new);
    }

    fn write(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let content = self.files[file].get_or_insert_with(Vec::new);
        if content.len() < at + bytes.len() {
            content.resize(at + bytes.len(), 0);
        }
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    ToLog,
    WithRollbackJournal,
    Checkpoint,
    Shrink,
    Grow,
    /// All three files are other ones afterwards.
    Replace,
    RemoveDatabase,
    TruncateLog,
    Apply,
    WriteAhead,
    Reopen,
}

const STEPS: [(Step, u32); 11] = [
    (Step::ToLog, 40),
    (Step::WithRollbackJournal, 30),
    (Step::Checkpoint, 8),
    (Step::Shrink, 4),
    (Step::Grow, 6),
    (Step::Replace, 2),
    (Step::RemoveDatabase, 2),
    (Step::TruncateLog, 3),
    (Step::Apply, 12),
    (Step::WriteAhead, 8),
    (Step::Reopen, 4),
];

fn perform(step: Step, sqlite: &mut Sqlite) {
    let has_database = sqlite.files[DATABASE].is_some();
    match step {
        Step::ToLog if has_database => sqlite.write_log(),
        Step::WithRollbackJournal if has_database => sqlite.with_rollback_journal(),
        Step::Checkpoint if has_database => sqlite.checkpoint(),
        Step::Shrink if has_database => sqlite.shrink(),
        Step::Grow if has_database => sqlite.grow(),
        Step::RemoveDatabase if has_database => {
            sqlite.files[DATABASE] = None;
            sqlite.in_log.clear();
        }
        Step::Replace | Step::RemoveDatabase => {
            let next = sqlite.random.next_u64();
            *sqlite = Sqlite::new(next);
        }
        Step::TruncateLog => {
            if has_database {
                sqlite.checkpoint();
            }
            sqlite.salt = [0; 8];
            sqlite.files[LOG] = Some(Vec::new());
        }
        _ => {}
    }
}

/// A life of a store, up to a power cut.
struct Life {
    lower: CrashLower,
    /// What is committed, and what was to be committed when the power was cut.
    before: Files,
    after: Files,
    is_cut: bool,
}

impl Life {
    fn cut(lower: CrashLower, before: Files, after: Files) -> Self {
        Self {
            lower,
            before,
            after,
            is_cut: true,
        }
    }
}

/// Lives by a seed, with a power cut after so many calls.
fn live(seed: u64, steps: usize, journal_bytes: u64, cut_after: u64) -> Life {
    let mut sqlite = Sqlite::new(seed);
    let lower = CrashLower::new();
    let mut store = try_open(&lower, journal_bytes).unwrap();
    let mut ids = Ids::of(&store);
    let mut committed = Files::default();
    let first = ids.transaction(&committed, &sqlite.files);
    store.commit(first).unwrap();
    store.apply().unwrap();
    committed.clone_from(&sqlite.files);
    lower.cut_after(lower.operations() + cut_after);
    let mut chooser = Random::new(seed ^ 0x5eed);
    let weights = STEPS.map(|(_, weight)| weight);
    for _ in 0..steps {
        let (step, _) = STEPS[chooser.weighted(&weights)];
        perform(step, &mut sqlite);
        let done = match step {
            Step::Apply => store.apply(),
            Step::WriteAhead => {
                store.write_ahead();
                Ok(())
            }
            Step::Reopen => {
                drop(store);
                match try_open(&lower, journal_bytes) {
                    Ok(opened) => {
                        store = opened;
                        ids = Ids::of(&store);
                        Ok(())
                    }
                    Err(_) => return Life::cut(lower, committed.clone(), committed),
                }
            }
            _ => {
                let changes = ids.transaction(&committed, &sqlite.files);
                if changes.is_empty() {
                    continue;
                }
                store.commit(changes)
            }
        };
        if done.is_err() {
            return Life::cut(lower, committed, sqlite.files);
        }
        committed.clone_from(&sqlite.files);
        let Ok(found) = try_content_of(&store) else {
            return Life::cut(lower, committed.clone(), committed);
        };
        assert!(found == committed, "seed {seed}: {step:?}");
    }
    Life {
        lower,
        before: committed.clone(),
        after: committed,
        is_cut: false,
    }
}

fn assert_recovered(life: &Life, image: &CrashLower, journal_bytes: u64, what: &str) {
    let store = try_open(image, journal_bytes).unwrap();
    let found = content_of(&store);
    assert!(found == life.before || found == life.after, "{what}");
    store.apply().unwrap();
    assert!(content_of(&store) == found, "{what}: after an apply");
    drop(store);
    let image = image.crash_image(&mut |_| Fate::Vanish);
    let store = try_open(&image, journal_bytes).unwrap();
    assert!(content_of(&store) == found, "{what}: in its place");
}

/// Cuts the power after each call of a life, with nothing, all or a part of what is not durable.
fn cut_everywhere(seed: u64, steps: usize, journal_bytes: u64) -> u64 {
    for calls in 1.. {
        let life = live(seed, steps, journal_bytes, calls);
        let mut chooser = Random::new(seed + calls);
        for part in [0, 50, 100] {
            let image = life.lower.crash_image(&mut |_| {
                if chooser.chance(part) {
                    Fate::Land
                } else {
                    Fate::Vanish
                }
            });
            let what = format!("seed {seed}, cut after {calls} calls, {part} % landed");
            assert_recovered(&life, &image, journal_bytes, &what);
        }
        if !life.is_cut {
            return calls - 1;
        }
    }
    unreachable!("a life ends")
}

/// What a page is copied from may be overwritten at any time after the commit: by an apply, by writing ahead of one,
/// by new data that goes to its place at once.
#[test]
fn a_power_cut_anywhere_leaves_what_was_committed() {
    let mut cuts = 0;
    for seed in 0..12 {
        cuts += cut_everywhere(seed, 14, 1 << 20);
    }
    assert!(cuts > 400, "{cuts}");
}

/// An apply writes what was copied to the journal before it begins: there has to be room for that.
#[test]
fn a_journal_that_is_full_of_copies_has_room_to_be_applied() {
    for seed in 100..104 {
        cut_everywhere(seed, 30, 64 << 10);
    }
    for seed in 200..240 {
        let life = live(seed, 150, 64 << 10, u64::MAX / 2);
        let image = life.lower.crash_image(&mut |_| Fate::Vanish);
        assert_recovered(&life, &image, 64 << 10, &format!("seed {seed}"));
    }
}

/// A store with transactions in its journal, which were not applied.
struct Unapplied {
    life: Life,
    store: TestStore,
    ids: Ids,
}

fn unapplied(transactions: usize, mut perform: impl FnMut(&mut Sqlite)) -> Unapplied {
    let mut sqlite = Sqlite::new(4);
    sqlite.page_bytes = 4096;
    sqlite.files[DATABASE] = Some(vec![7; 64 * 4096]);
    let header = [&b"SQLite format 3\0"[..], &4096_u16.to_be_bytes()].concat();
    sqlite.write(DATABASE, 0, &header);
    for number in 1..64 {
        let mut page = vec![0; 4096];
        sqlite.random.fill(&mut page);
        sqlite.write(DATABASE, number * 4096, &page);
    }
    let lower = CrashLower::new();
    let store = try_open(&lower, 4 << 20).unwrap();
    let mut ids = Ids::of(&store);
    let mut committed = Files::default();
    for number in 0..=transactions {
        if number > 0 {
            perform(&mut sqlite);
        }
        let changes = ids.transaction(&committed, &sqlite.files);
        store.commit(changes).unwrap();
        committed.clone_from(&sqlite.files);
        if number == 0 {
            store.apply().unwrap();
        }
    }
    let life = Life {
        lower,
        before: committed.clone(),
        after: committed,
        is_cut: false,
    };
    Unapplied { life, store, ids }
}

/// Bytes of the transactions in a journal, and how many of their records are copies.
fn transactions(lower: &CrashLower) -> (Vec<u64>, usize) {
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", false)
        .unwrap();
    let file = lower.open(&own, b"journal", false).unwrap();
    let mut journal = vec![0; lower.stat(&file).unwrap().size as usize];
    lower.read_at(&file, &mut journal, 0).unwrap();
    let reader = LogReader::new(&journal[..2 * LogReader::BLOCK_BYTES]).unwrap();
    let (mut bytes, mut copies) = (Vec::new(), 0);
    let mut at = 2 * LogReader::BLOCK_BYTES;
    while let AtBlock::Whole(transaction) = reader.at_block(&journal[at..]).unwrap()
        && transaction.epoch == reader.epoch()
    {
        bytes.push(transaction.journal_bytes);
        let records = transaction.records.iter();
        copies += records
            .filter(|record| matches!(record, Record::Copied { .. }))
            .count();
        at += transaction.journal_bytes as usize;
    }
    (bytes, copies)
}

/// Each took as many blocks as it has pages.
#[test]
fn a_transaction_of_a_few_changed_rows_is_one_block_in_each_mode() {
    for perform in [Sqlite::write_log, Sqlite::with_rollback_journal] {
        let Unapplied { life, .. } = unapplied(40, perform);
        let (bytes, copies) = transactions(&life.lower);
        assert_eq!(bytes, [PAGE_BYTES_U64; 40], "{copies} copies");
        assert!(copies >= 40, "{copies}");
        for fate in [Fate::Land, Fate::Vanish] {
            let image = life.lower.crash_image(&mut |_| fate);
            assert_recovered(&life, &image, 4 << 20, &format!("{fate:?}"));
        }
    }
}

#[test]
fn a_copy_of_a_store_with_copies_in_its_journal_is_the_same() {
    for perform in [Sqlite::write_log, Sqlite::with_rollback_journal] {
        let Unapplied { life, .. } = unapplied(20, perform);
        let image = life.lower.crash_image(&mut |_| Fate::Land);
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let copy = image.copy(&mut |bound| random.below(bound));
            assert_recovered(&life, &copy, 4 << 20, &format!("copy {seed}"));
        }
    }
}

/// Another program may do anything to a store that is not mounted: the log is damaged then, which SQLite
/// notices, and the store is served.
#[test]
fn a_store_is_served_although_another_program_has_removed_what_was_copied() {
    for is_removed in [false, true] {
        let Unapplied { life, .. } = unapplied(20, Sqlite::write_log);
        let image = life.lower.crash_image(&mut |_| Fate::Land);
        let root = image.root().unwrap();
        if is_removed {
            image.unlink(&root, NAMES[DATABASE].as_bytes()).unwrap();
        } else {
            let file = image.open(&root, NAMES[DATABASE].as_bytes(), true).unwrap();
            image.write_at(&file, &[9; 64 * 4096], 0).unwrap();
        }
        image.sync_all().unwrap();
        let store = try_open(&image, 4 << 20).unwrap();
        let found = content_of(&store);
        assert_eq!(found[DATABASE].is_none(), is_removed);
        assert_ne!(found[LOG], life.before[LOG]);
        assert_eq!(found[ROLLBACK_JOURNAL], life.before[ROLLBACK_JOURNAL]);
        store.apply().unwrap();
        assert!(content_of(&store) == found);
    }
}

/// Transactions after which the log has not begun anew, and the database not changed.
const FEW: usize = 4;

/// New data goes to its place at once where the journal says that there is nothing, and what was there may have been
/// copied before.
#[test]
fn new_data_in_place_of_what_was_copied_does_not_damage_the_log() {
    for fate in [Fate::Land, Fate::Vanish] {
        let Unapplied {
            mut life,
            store,
            mut ids,
        } = unapplied(FEW, Sqlite::write_log);
        let pages = |count: usize, fill: u8| {
            let mut database = life.before[DATABASE].clone().unwrap();
            database.truncate(PAGE_BYTES);
            database.resize(count * PAGE_BYTES, fill);
            Some(database)
        };
        let changes = [pages(1, 0), pages(64, 9)];
        for database in changes {
            life.after[DATABASE] = database;
            let change = ids.transaction(&life.before, &life.after);
            store.commit(change).unwrap();
            life.before.clone_from(&life.after);
        }
        assert!(content_of(&store) == life.after);
        let image = life.lower.crash_image(&mut |_| fate);
        assert_recovered(&life, &image, 4 << 20, &format!("{fate:?}"));
    }
}

/// The pages of a database that has no name any more go to its place at once, and its log is copied from it.
#[test]
fn a_deleted_database_that_is_still_written_to_does_not_damage_its_log() {
    for fate in [Fate::Land, Fate::Vanish] {
        let Unapplied {
            mut life,
            store,
            mut ids,
        } = unapplied(FEW, Sqlite::write_log);
        let database = ids.files[DATABASE].unwrap();
        store.pin(database);
        life.after[DATABASE] = None;
        let removal = ids.transaction(&life.before, &life.after);
        store.commit(removal).unwrap();
        life.before.clone_from(&life.after);
        let pages = (0..64).map(|index| (PageIndex(index), Page::new(&[9; PAGE_BYTES])));
        store.spill(database, &pages.collect::<Vec<_>>()).unwrap();
        assert!(content_of(&store) == life.after);
        life.lower.sync_all().unwrap();
        let image = life.lower.crash_image(&mut |_| fate);
        assert_recovered(&life, &image, 4 << 20, &format!("{fate:?}"));
    }
}

/// What the intact transactions copy is in the salvaged journal as it is.
#[test]
fn a_salvage_keeps_what_intact_transactions_copy() {
    for perform in [Sqlite::write_log, Sqlite::with_rollback_journal] {
        let (kept, lost) = (10, 20);
        let expected = unapplied(kept, perform).life;
        let Unapplied { life, .. } = unapplied(lost, perform);
        let image = life.lower.crash_image(&mut |_| Fate::Land);
        super::salvage::damage(&image, |journal| {
            let at = (2 + kept) * LogReader::BLOCK_BYTES;
            journal[at..at + LogReader::BLOCK_BYTES].fill(0);
        });
        assert!(try_open(&image, 4 << 20).is_err(), "the journal is damaged");
        salvage(&image, &options(4 << 20), None).unwrap();
        assert_recovered(&expected, &image, 4 << 20, "salvaged");
    }
}
