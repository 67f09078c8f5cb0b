//! What an engine hands out to be saved: how much that is for each operation, and that what was
//! handed out is all there is.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mobifs_numerics::Random;
use std::collections::BTreeMap;

use crate::support::{Bed, ROOT, root};
use mobifs_base::{ObjectId, Page, PageContent};
use mobifs_engine::persist::{Key, Kind, RestartImage};
use mobifs_engine::{
    AllocateMode, AttributeChange, Engine, EngineConfig, Limits, ReadSegment, TopLevelApps,
    XattrMode,
};

/// Keeps records, and counts what is written.
#[derive(Default)]
pub(crate) struct Records {
    records: BTreeMap<Key, Vec<u8>>,
    pages: BTreeMap<u64, Page>,
    written_bytes: usize,
}

struct KeptAt(u64, Vec<u8>);

impl PageContent for KeptAt {
    fn bytes(&self) -> &[u8] {
        &self.1
    }

    fn place(&self) -> u64 {
        self.0
    }
}

impl RestartImage for Records {
    fn put(&mut self, key: Key, value: &[u8]) {
        self.written_bytes += value.len();
        self.records.insert(key, value.to_vec());
    }

    fn remove(&mut self, key: Key) {
        self.written_bytes += usize::from(self.records.remove(&key).is_some());
    }

    fn keep(&mut self, page: &mut Page) {
        if page.place().is_none() && page.stored_bytes() > 0 {
            let place = self.pages.len() as u64 + 1;
            let content = KeptAt(place, page.stored().to_vec());
            *page = Page::kept(std::sync::Arc::new(content));
            self.pages.insert(place, page.clone());
        }
    }
}

impl Records {
    /// What a change costs.
    fn cost(&mut self, bed: &mut Bed, change: impl FnOnce(&mut Bed)) -> usize {
        bed.engine.save(self);
        self.written_bytes = 0;
        change(bed);
        bed.engine.save(self);
        self.written_bytes
    }

    pub(crate) fn restored(&self) -> Result<Engine, mobifs_engine::persist::RestartImageError> {
        let config = EngineConfig {
            rules: Box::<TopLevelApps>::default(),
            limits: Limits::default(),
            hash_seed: 1,
            is_saved: true,
        };
        let mut records = self.records.iter().map(|(key, value)| (*key, &value[..]));
        let mut page_at = |place: u64, _| self.pages.get(&place).cloned();
        Engine::restore(config, &root(), &mut records, &mut page_at, &[])
    }
}

fn resize(bed: &mut Bed, file: ObjectId, size: u64) {
    let change = AttributeChange {
        size: Some(size),
        ..AttributeChange::default()
    };
    let moment = bed.moment();
    bed.engine.set_attributes(moment, file, &change).unwrap();
}

fn allocate(bed: &mut Bed, file: ObjectId, mode: AllocateMode, offset: u64, length: u64) {
    let moment = bed.moment();
    let outcome = bed.engine.allocate(moment, file, mode, offset, length);
    outcome.unwrap();
}

fn set_xattr(bed: &mut Bed, file: ObjectId, name: &str, bytes: usize) {
    let (moment, value) = (bed.moment(), vec![7; bytes]);
    let name = format!("user.{name}");
    let outcome =
        bed.engine
            .set_xattr(moment, file, name.as_bytes(), &value, XattrMode::Any, false);
    outcome.unwrap();
}

const PAGE: u64 = 4096;
const KEEP: AllocateMode = AllocateMode::Allocate { keep_size: true };
const ZERO: AllocateMode = AllocateMode::ZeroRange { keep_size: true };
const PUNCH: AllocateMode = AllocateMode::PunchHole;

/// What operations cost on a file with so many holes and so many allocated ranges; whether the
/// transaction with them is closed already.
fn costs(ranges: u64, is_closed: bool) -> Vec<usize> {
    let mut bed = Bed::saved();
    let mut records = Records::default();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    resize(&mut bed, file, ranges * 4 * PAGE);
    bed.checkpoint();
    for range in 0..ranges {
        allocate(&mut bed, file, PUNCH, range * 4 * PAGE, PAGE);
        allocate(&mut bed, file, KEEP, (range * 4 + 2) * PAGE, PAGE);
    }
    if is_closed {
        bed.engine.close_all();
    }
    let end = ranges * 4 * PAGE;
    let middle = ranges / 2 * 4 * PAGE;
    vec![
        records.cost(&mut bed, |bed| resize(bed, file, end + 5 * PAGE)),
        records.cost(&mut bed, |bed| allocate(bed, file, PUNCH, middle, 2 * PAGE)),
        records.cost(&mut bed, |bed| allocate(bed, file, ZERO, middle, 3 * PAGE)),
        records.cost(&mut bed, |bed| allocate(bed, file, KEEP, middle, 4 * PAGE)),
        records.cost(&mut bed, |bed| bed.write(file, middle, b"content")),
        records.cost(&mut bed, |bed| resize(bed, file, end + 4 * PAGE)),
    ]
}

/// Each operation wrote all ranges of its file into the arena again: a growing truncate of a file
/// with 32,768 extents wrote half a megabyte.
#[test]
fn an_operation_saves_what_it_changes_and_not_all_ranges_of_its_file() {
    for is_closed in [false, true] {
        let (few, many) = (costs(8_192, is_closed), costs(32_768, is_closed));
        for (operation, (few, many)) in few.iter().zip(&many).enumerate() {
            println!("{operation}, closed: {is_closed}: {few} and {many} bytes");
            assert!(*many < 1024, "{operation} writes {many} bytes");
            assert!(*many <= few + 64, "{operation} writes {few}, then {many}");
        }
    }
}

/// Each change of a file wrote all of its extended attributes into the arena again.
#[test]
fn an_operation_saves_extended_attributes_only_if_it_changes_them() {
    let cost = |attributes: usize, is_closed: bool| {
        let mut bed = Bed::saved();
        let mut records = Records::default();
        let app = bed.directory(ROOT, "app");
        let file = bed.file(app, "file");
        for number in 0..attributes {
            set_xattr(&mut bed, file, &number.to_string(), 2000);
        }
        if is_closed {
            bed.engine.close_all();
        }
        let written = records.cost(&mut bed, |bed| bed.write(file, 0, b"content"));
        let set = records.cost(&mut bed, |bed| set_xattr(bed, file, "0", 10));
        (written, set)
    };
    for is_closed in [false, true] {
        let (none, many) = (cost(0, is_closed), cost(20, is_closed));
        assert_eq!(none.0, many.0, "a write saves none of 20 attributes");
        assert!(many.1 > 19 * 2000, "changing one saves all: {}", many.1);
    }
}

#[test]
fn an_image_without_the_extended_attributes_of_an_object_is_refused() {
    let mut bed = Bed::saved();
    let mut records = Records::default();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    set_xattr(&mut bed, file, "name", 5);
    bed.engine.save(&mut records);
    assert!(records.restored().is_ok());
    let mut keys = records.records.keys().copied();
    let key = keys.find(|key| key.kind == Kind::Xattrs).unwrap();
    assert_eq!(key.first, file.0);
    drop(keys);
    records.records.remove(&key);
    assert!(records.restored().is_err());
}

/// What a kill must not turn into older content that shows again.
#[test]
fn an_image_without_one_of_its_ranges_is_refused() {
    let mut bed = Bed::saved();
    let mut records = Records::default();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    resize(&mut bed, file, 100 * PAGE);
    bed.checkpoint();
    for page in [3, 5, 9] {
        allocate(&mut bed, file, PUNCH, page * PAGE, PAGE);
        allocate(&mut bed, file, KEEP, page * PAGE, PAGE);
    }
    bed.engine.save(&mut records);
    assert!(records.restored().is_ok());
    let ranges = records.records.keys().copied();
    let ranges: Vec<Key> = ranges
        .filter(|key| matches!(key.kind, Kind::Zeroed | Kind::Allocated))
        .collect();
    assert_eq!(ranges.len(), 6);
    for key in ranges {
        let value = records.records.remove(&key).unwrap();
        assert!(records.restored().is_err(), "without {key:?}");
        // Nor with one that is empty, or of a file that changes nothing.
        records.records.insert(key, key.second.to_le_bytes().into());
        assert!(records.restored().is_err(), "with an empty {key:?}");
        records.records.insert(key, value);
    }
}

/// Changes the file in one of many ways; which file it is then.
fn change(dice: &mut Random, bed: &mut Bed, app: ObjectId, file: ObjectId) -> ObjectId {
    let (at, length) = (dice.below(64) * PAGE, (1 + dice.below(8)) * PAGE);
    match dice.below(28) {
        0..12 => {
            let mode = [KEEP, ZERO, PUNCH][dice.below(3) as usize];
            allocate(bed, file, mode, at, length);
        }
        12..15 => resize(bed, file, at + length),
        15..18 => bed.write(file, at, &[7; 4096]),
        18..21 => drop(bed.engine.close_all()),
        21 => drop(bed.checkpoint()),
        22..25 => set_xattr(bed, file, &dice.below(3).to_string(), 10),
        25 => {
            let name = format!("user.{}", dice.below(3));
            let moment = bed.moment();
            // It may not be there.
            let _ = bed.engine.remove_xattr(moment, file, name.as_bytes());
        }
        _ => {
            bed.unlink(app, "file");
            if dice.below(2) == 0 {
                bed.engine.forget(file, 1);
            }
            return bed.file(app, "file");
        }
    }
    file
}

/// Where the bytes of a file come from: the store (0), memory (1), nowhere (2).
fn sources(engine: &Engine, file: ObjectId) -> Vec<(u8, usize)> {
    let plan = engine.read_plan(file, 0, 1 << 20).unwrap();
    let segments = plan.segments.iter().map(|segment| match segment {
        ReadSegment::Store { length, .. } => (0, *length),
        ReadSegment::Page { length, .. } => (1, *length),
        ReadSegment::Zero { length } => (2, *length),
    });
    segments.collect()
}

/// What was handed out operation by operation is what the engine is, and an engine that is made
/// of it is the same.
#[test]
fn what_is_saved_step_by_step_is_everything() {
    for seed in 0..100 {
        let mut dice = Random::new(seed);
        let mut bed = Bed::saved();
        let mut records = Records::default();
        let app = bed.directory(ROOT, "app");
        let mut file = bed.file(app, "file");
        for step in 0..40 {
            file = change(&mut dice, &mut bed, app, file);
            bed.engine.save(&mut records);
            let mut whole = Records::default();
            bed.engine.save_all(&mut whole);
            assert_eq!(records.records, whole.records, "seed {seed}, step {step}");
            let mut restored = records.restored().unwrap();
            let mut again = Records::default();
            restored.save_all(&mut again);
            assert_eq!(records.records, again.records, "seed {seed}, step {step}");
            assert_eq!(sources(&restored, file), sources(&bed.engine, file));
        }
    }
}
