//! The memory budget, and the part of it that is kept for apps with little in memory: random work
//! of small apps beside one that writes, makes and deletes as much as it can. Deletions did not
//! wait for memory: they took the kept part, and exceeded the budget by any multiple of the budget
//! although everything could be committed.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]
use mobifs_numerics::Random;

use crate::support::{Bed, ROOT};
use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_engine::{
    AppPolicy, AttributeChange, Caller, Limits, Need, NodeSpec, RemovalMemory, SetIdBits, Stop,
    WriteAt, XattrMode,
};

const BUDGET_BYTES: u64 = 1 << 20;
/// What is kept, as the engine has it.
const KEPT_BYTES: u64 = BUDGET_BYTES / 8;
const SMALL_APPS: usize = 3;
/// More than any single operation of a small app takes.
const SMALL_BYTES: u64 = 4 * 512 + 2 * 4096;
/// What a single operation is charged beyond what it asks for.
const SLACK_BYTES: u64 = 4 * 512;
/// Deleting all of them takes more than the budget.
const OLD_FILES: usize = 1200;
const PAGE_BYTES: u64 = 4096;

/// Whether there was memory for an operation.
fn fits<T: std::fmt::Debug>(outcome: Result<T, Stop>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(Stop::Need(Need::Memory)) => false,
        other => panic!("{other:?}"),
    }
}

struct World {
    bed: Bed,
    dice: Random,
    greedy: ObjectId,
    /// A file of the greedy app, and what it has deleted and still uses.
    file: ObjectId,
    file_name: String,
    end: u64,
    deleted: Vec<ObjectId>,
    old_files: usize,
    small: Vec<(ObjectId, ObjectId)>,
    made: u64,
    /// The large app was refused memory since the last commit.
    is_full: bool,
    /// What removals do then.
    removals: RemovalMemory,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut bed = Bed::new(AppPolicy::default(), Limits::default());
        let greedy = bed.directory(ROOT, "greedy");
        let file = bed.file(greedy, "file");
        for number in 0..OLD_FILES {
            bed.file(greedy, &format!("old{number}"));
        }
        let small = (0..SMALL_APPS).map(|number| {
            let app = bed.directory(ROOT, &format!("small{number}"));
            (app, bed.file(app, "file"))
        });
        let small = small.collect();
        bed.checkpoint();
        bed.engine.set_memory_budget(BUDGET_BYTES);
        Self {
            bed,
            dice: Random::new(seed),
            greedy,
            file,
            file_name: "file".to_owned(),
            end: 0,
            deleted: Vec::new(),
            old_files: OLD_FILES,
            small,
            made: 0,
            is_full: false,
            // In every second one commits do not get anywhere while memory is full.
            removals: match seed % 2 {
                0 => RemovalMemory::WithinBudget,
                _ => RemovalMemory::BeyondBudget,
            },
        }
    }

    fn make(&mut self, parent: ObjectId, kind: FileKind) -> Option<ObjectId> {
        self.made += 1;
        let name = format!("n{}", self.made);
        let spec = NodeSpec {
            kind,
            mode: 0o644,
            rdev: DeviceNumber(0),
            symlink_target: Some(b"target"),
        };
        let moment = self.bed.moment();
        let caller = Caller::default();
        let engine = &mut self.bed.engine;
        let made = engine.create(&caller, moment, parent, name.as_bytes(), &spec);
        fits(made).then(|| made.unwrap().id)
    }

    fn write(&mut self, file: ObjectId, offset: u64, bytes: usize) -> bool {
        let moment = self.bed.moment();
        let at = WriteAt::Offset(offset);
        let engine = &mut self.bed.engine;
        fits(engine.write(moment, file, at, &vec![7; bytes], SetIdBits::Stay))
    }

    /// Deletes a file of the greedy app. Where nothing can be committed that must always succeed,
    /// because it frees memory.
    fn unlink(&mut self, name: &str) -> bool {
        let (moment, name) = (self.bed.moment(), name.as_bytes());
        let engine = &mut self.bed.engine;
        let has_fit = fits(engine.unlink(moment, self.greedy, name, self.removals));
        assert!(has_fit || self.removals == RemovalMemory::WithinBudget);
        has_fit
    }

    /// Whether memory is as much as it may be.
    fn is_within_budget(&self) -> bool {
        self.removals == RemovalMemory::BeyondBudget
            || self.bed.engine.dirty_bytes() <= BUDGET_BYTES + SLACK_BYTES
    }

    /// The greedy app does as much as it can; whether it could.
    fn be_greedy(&mut self) -> bool {
        match self.dice.below(32) {
            4 => self.make(self.greedy, FileKind::Regular).is_some(),
            5..9 if self.is_full => {
                let before = self.old_files;
                while self.old_files > before.saturating_sub(40) {
                    let name = format!("old{}", self.old_files - 1);
                    if !self.unlink(&name) {
                        return false;
                    }
                    self.old_files -= 1;
                }
                true
            }
            0..31 => {
                // Whole pages: no store is there that could be asked for the rest of one.
                let bytes = (1 + self.dice.below(16)) * PAGE_BYTES;
                let has_written = self.write(self.file, self.end, bytes as usize);
                self.end += bytes;
                has_written
            }
            31 if self.dice.below(8) == 0 => {
                let Some(other) = self.make(self.greedy, FileKind::Regular) else {
                    return false;
                };
                if !self.unlink(&self.file_name.clone()) {
                    return false;
                }
                // Its pages stay as long as it is in use.
                self.deleted.push(std::mem::replace(&mut self.file, other));
                (self.file_name, self.end) = (format!("n{}", self.made), 0);
                true
            }
            _ => {
                let moment = self.bed.moment();
                let change = AttributeChange {
                    size: Some(self.dice.below(self.end / PAGE_BYTES + 1) * PAGE_BYTES),
                    ..AttributeChange::default()
                };
                let engine = &mut self.bed.engine;
                fits(engine.set_attributes(moment, self.file, &change))
            }
        }
    }

    fn be_small(&mut self, which: usize) -> bool {
        let (app, file) = self.small[which];
        match self.dice.below(5) {
            0 => self.make(app, FileKind::Regular).is_some(),
            1 => self.make(app, FileKind::Symlink).is_some(),
            2 => {
                self.made += 1;
                self.write(file, self.made * PAGE_BYTES, 100)
            }
            3 => {
                let moment = self.bed.moment();
                let value = [7; 100];
                let engine = &mut self.bed.engine;
                fits(engine.set_xattr(moment, file, b"user.x", &value, XattrMode::Any, false))
            }
            _ => {
                let moment = self.bed.moment();
                let change = AttributeChange {
                    mode: Some(0o600),
                    ..AttributeChange::default()
                };
                let engine = &mut self.bed.engine;
                fits(engine.set_attributes(moment, file, &change))
            }
        }
    }

    fn commit(&mut self) {
        for id in std::mem::take(&mut self.deleted) {
            self.bed.engine.forget(id, 1);
        }
        self.bed.checkpoint();
        self.is_full = false;
    }
}

#[test]
fn the_budget_holds_and_small_apps_find_memory_whatever_a_large_one_does() {
    let (mut refused, mut beside_full) = (0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed);
        // What the small apps have taken since the last commit, at most.
        let mut small_bytes = 0;
        for step in 0..400 {
            match world.dice.below(400) {
                0 => {
                    world.commit();
                    small_bytes = 0;
                }
                // Before memory is full, only now and then one of a small app.
                roll if roll < if world.is_full { 300 } else { 394 } => {
                    let could = world.be_greedy();
                    refused += u32::from(!could);
                    world.is_full |= !could;
                }
                // With its bytes in deleted files the large app counts as a small one itself.
                _ if small_bytes + SMALL_BYTES <= KEPT_BYTES && world.deleted.is_empty() => {
                    let which = world.dice.below(SMALL_APPS as u64) as usize;
                    assert!(
                        world.be_small(which),
                        "seed {seed}, step {step}: no memory for a small app, {small_bytes} of \
                         {KEPT_BYTES} kept for them, {} of {BUDGET_BYTES} in use",
                        world.bed.engine.dirty_bytes()
                    );
                    small_bytes += SMALL_BYTES;
                    beside_full += u32::from(world.is_full);
                }
                _ => {}
            }
            assert!(
                world.is_within_budget(),
                "seed {seed}, step {step}: {} of {BUDGET_BYTES} in use",
                world.bed.engine.dirty_bytes()
            );
        }
    }
    // Otherwise nothing was tried.
    assert!(
        refused > 1000 && beside_full > 100,
        "{refused}, {beside_full}"
    );
}
