//! A PostMark in three phases (files are created, written to, deleted), again and again.
//! Each step is one operation of the filesystem, and nothing is ever fsynced.
//!
//! What it does is fixed by its seed, so after a cut the state after any step is known, and
//! the tree must be one of these states as a whole.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use clap::{Args, ValueEnum};
use mobifs_testkit::mount::pieces;
use mobifs_testkit::operations::Payload;
use mobifs_testkit::random::Random;

use super::returned;

/// How much a PostMark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct PostMark {
    /// Files that are created, and in the end deleted.
    #[arg(long, default_value_t = Self::SMALL.files)]
    pub files: u64,
    /// Transactions: each writes to one file and reads another.
    #[arg(long, default_value_t = Self::SMALL.transactions)]
    pub transactions: u64,
    /// Fixes everything that it does.
    #[arg(long, default_value_t = Self::SMALL.seed)]
    pub seed: u64,
}

/// Sizes of new files and of writes.
const BYTES: Range<u64> = 1000..10_241;
/// Most steps that one call is: the kernel cuts a write of less than 1 MiB once.
pub(super) const STEPS_OF_A_CALL_MAX: u64 = 2;

/// What happens in a part of a PostMark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Phase {
    /// Files are created.
    Create,
    /// They are written to.
    Write,
    /// They are deleted.
    Delete,
}

/// One call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Create,
    Write { offset: u64, data: Payload },
    Delete,
}

/// A call, what it is for, and the last of its steps.
#[derive(Clone, Copy, Debug)]
struct Action {
    phase: Phase,
    file: u64,
    call: Call,
    last_step: u64,
    /// A file that is read after it.
    read: Option<u64>,
}

fn name(file: u64) -> String {
    format!("file-{file}")
}

impl PostMark {
    /// One that ends within a fraction of a second.
    pub const SMALL: Self = Self {
        files: 40,
        transactions: 120,
        seed: 1,
    };

    /// The steps of each phase of the first cycle.
    pub fn phases(&self) -> [(Phase, Range<u64>); 3] {
        let actions = self.cycle(0, 0);
        [Phase::Create, Phase::Write, Phase::Delete].map(|phase| {
            let of_phase = || actions.iter().filter(|action| action.phase == phase);
            let last = of_phase().map(|action| action.last_step).max();
            let steps = of_phase().map(|action| action.call.steps()).sum::<u64>();
            let last = last.unwrap_or(0);
            (phase, last - steps + 1..last + 1)
        })
    }

    /// The actions of a cycle whose first step comes after `base`.
    fn cycle(&self, number: u64, base: u64) -> Vec<Action> {
        let mut random = Random::new(self.seed.wrapping_mul(1_000_003).wrapping_add(number));
        let bytes = |random: &mut Random| BYTES.start + random.below(BYTES.end - BYTES.start);
        let mut plan = Plan {
            step: base,
            tag: base as u32,
            actions: Vec::new(),
        };
        let mut sizes = Vec::new();
        for file in 0..self.files {
            let size = bytes(&mut random);
            sizes.push(size);
            plan.add(Phase::Create, file, Call::Create, None);
            plan.write(Phase::Create, file, 0, size, None);
        }
        for _ in 0..self.transactions {
            let file = random.below(self.files);
            let (size, length) = (&mut sizes[file as usize], bytes(&mut random));
            let offset = if random.chance(50) {
                *size
            } else {
                random.below(*size)
            };
            *size = (*size).max(offset + length);
            let read = random.below(self.files);
            plan.write(Phase::Write, file, offset, length, Some(read));
        }
        for file in 0..self.files {
            plan.add(Phase::Delete, file, Call::Delete, None);
        }
        plan.actions
    }

    /// The cycle in which `step` lies (or ends), and the step before it begins.
    fn cycle_of(&self, step: u64) -> (u64, u64) {
        let (mut number, mut base) = (0, 0);
        loop {
            let end = self.cycle(number, base).last().map(|last| last.last_step);
            match end {
                Some(end) if end < step => (number, base) = (number + 1, end),
                _ => return (number, base),
            }
        }
    }

    /// Works after step `from`.
    pub(super) fn work(&self, app: &Path, from: u64) -> Result<Infallible, String> {
        let (mut number, mut base) = self.cycle_of(from);
        loop {
            let mut contents = Contents::default();
            for action in self.cycle(number, base) {
                let before = action.last_step - action.call.steps();
                contents.apply(&action, |_, _, _| {});
                base = action.last_step;
                // A call of which only a part is there is made again as a whole.
                if action.last_step <= from {
                    continue;
                }
                make(app, &action)
                    .map_err(|error| format!("{action:?} after step {before}: {error}"))?;
                if let Some(file) = action.read {
                    contents.compare(app, file)?;
                }
                returned(action.last_step)?;
            }
            number += 1;
        }
    }

    /// The step in `floor..=ceiling` after which the directory is as it is found.
    pub(super) fn check(&self, app: &Path, floor: u64, ceiling: u64) -> Result<u64, String> {
        let found = read_all(app).map_err(|error| format!("{}: {error}", app.display()))?;
        let (mut number, first) = self.cycle_of(floor);
        let mut versions: BTreeMap<String, Vec<(u64, Option<Digest>)>> = BTreeMap::new();
        let mut base = first;
        while base < ceiling {
            let mut contents = Contents::default();
            for action in self.cycle(number, base) {
                base = action.last_step;
                if action.last_step - action.call.steps() >= ceiling {
                    break;
                }
                contents.apply(&action, |step, file, content| {
                    let entry = versions.entry(name(file)).or_default();
                    entry.push((step, content.map(digest)));
                });
            }
            number += 1;
        }
        if let Some(stranger) = found.keys().find(|name| !versions.contains_key(*name)) {
            return Err(format!("there is {stranger}, which was not made"));
        }
        latest_common_step(&versions, &found, first, floor, ceiling)
    }
}

/// Length and hash of a content.
type Digest = (usize, u64);

fn digest(content: &[u8]) -> Digest {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    (content.len(), hasher.finish())
}

/// Every file shows the state that it had in some ranges of steps. The directory's state is that
/// after the step that is in a range of each of them.
fn latest_common_step(
    versions: &BTreeMap<String, Vec<(u64, Option<Digest>)>>,
    found: &BTreeMap<String, Digest>,
    first: u64,
    floor: u64,
    ceiling: u64,
) -> Result<u64, String> {
    // By step after `first`: how many files agree from there on, less those that cease to.
    let mut changes = vec![0_i64; (ceiling - first) as usize + 2];
    for (name, versions) in versions {
        let found = found.get(name).copied();
        let mut agrees_somewhere = false;
        let starts = std::iter::once((first, None)).chain(versions.iter().copied());
        let ends = versions.iter().map(|(step, _)| *step);
        for ((start, content), end) in starts.zip(ends.chain([ceiling + 1])) {
            if content == found && start <= ceiling {
                changes[(start - first) as usize] += 1;
                changes[(end.min(ceiling + 1) - first) as usize] -= 1;
                agrees_somewhere |= end > floor;
            }
        }
        if !agrees_somewhere {
            return Err(format!(
                "{name} ({found:?}) is as it never was from step {floor} on; last were {:?}",
                &versions[versions.len().saturating_sub(3)..]
            ));
        }
    }
    let mut agreeing = 0;
    let mut latest = None;
    let all = versions.len() as i64;
    for (step, change) in (first..=ceiling).zip(changes) {
        agreeing += change;
        if agreeing == all && step >= floor {
            latest = Some(step);
        }
    }
    latest.ok_or_else(|| {
        format!("every file is as it was at some time, but never together in {floor}..={ceiling}")
    })
}

/// Collects the actions of a cycle.
struct Plan {
    step: u64,
    tag: u32,
    actions: Vec<Action>,
}

impl Plan {
    fn add(&mut self, phase: Phase, file: u64, call: Call, read: Option<u64>) {
        self.step += call.steps();
        self.actions.push(Action {
            phase,
            file,
            call,
            last_step: self.step,
            read,
        });
    }

    fn write(&mut self, phase: Phase, file: u64, offset: u64, length: u64, read: Option<u64>) {
        self.tag = self.tag.wrapping_add(1).max(1);
        let data = Payload {
            tag: self.tag,
            length: length as u32,
        };
        self.add(phase, file, Call::Write { offset, data }, read);
    }
}

impl Call {
    fn steps(self) -> u64 {
        match self {
            Self::Create | Self::Delete => 1,
            Self::Write { offset, data } => 1 + pieces(offset, data.length.into()).count() as u64,
        }
    }
}

/// The files as they should be.
#[derive(Default)]
struct Contents(HashMap<u64, Vec<u8>>);

impl Contents {
    /// Does what the action does; shows the file after each step.
    fn apply(&mut self, action: &Action, mut after: impl FnMut(u64, u64, Option<&[u8]>)) {
        let (file, last) = (action.file, action.last_step);
        match action.call {
            Call::Create => {
                self.0.insert(file, Vec::new());
                after(last, file, Some(&[]));
            }
            Call::Delete => {
                self.0.remove(&file);
                after(last, file, None);
            }
            Call::Write { offset, data } => {
                let content = self.0.entry(file).or_default();
                let (start, bytes) = (offset as usize, data.bytes());
                let mut ends: Vec<u64> = pieces(offset, data.length.into()).collect();
                ends.push(data.length.into());
                let mut step = last - ends.len() as u64;
                for end in ends {
                    step += 1;
                    let end = end as usize;
                    content.resize(content.len().max(start + end), 0);
                    content[start..start + end].copy_from_slice(&bytes[..end]);
                    after(step, file, Some(content));
                }
            }
        }
    }

    fn compare(&self, app: &Path, file: u64) -> Result<(), String> {
        let path = app.join(name(file));
        let read = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        match self.0.get(&file) {
            Some(content) if *content == read => Ok(()),
            expected => Err(format!(
                "{} reads other than it was written: {:?}, expected {:?}",
                path.display(),
                digest(&read),
                expected.map(|content| digest(content))
            )),
        }
    }
}

fn make(app: &Path, action: &Action) -> io::Result<()> {
    let path = app.join(name(action.file));
    match action.call {
        Call::Create => File::create(path).map(drop),
        Call::Delete => fs::remove_file(path),
        Call::Write { offset, data } => {
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&data.bytes(), offset)
        }
    }
}

fn read_all(app: &Path) -> io::Result<BTreeMap<String, Digest>> {
    let mut found = BTreeMap::new();
    if app.exists() {
        for entry in fs::read_dir(app)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            found.insert(name, digest(&fs::read(entry.path())?));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: PostMark = PostMark {
        files: 3,
        transactions: 4,
        seed: 5,
    };

    /// A directory after whole calls, the last of which ends at or after `step`.
    fn made(step: u64) -> (tempfile::TempDir, u64) {
        let app = tempfile::tempdir().unwrap();
        let (mut number, mut base) = (0, 0);
        loop {
            for action in TINY.cycle(number, base) {
                if base >= step {
                    return (app, base);
                }
                make(app.path(), &action).unwrap();
                base = action.last_step;
            }
            number += 1;
        }
    }

    #[test]
    fn every_moment_is_recognised() {
        for step in 0..60 {
            let (app, step) = made(step);
            for floor in step.saturating_sub(7)..=step {
                assert_eq!(TINY.check(app.path(), floor, step + 2), Ok(step));
            }
            let early = TINY.check(app.path(), step + 1, step + 9);
            assert!(early.is_err(), "{step}: {early:?}");
            // Not the step at which as many cycles less had ended.
            if step > 0 {
                let floor = step.saturating_sub(8).max(1);
                let late = TINY.check(app.path(), floor, step - 1);
                assert!(late.is_err(), "{step}: {late:?}");
            }
        }
    }

    #[test]
    fn states_that_never_existed_are_refused() {
        let [(_, created), (_, written), _] = TINY.phases();
        let (app, step) = made(written.end - 1);
        let changed = app.path().join(name(0));
        let mut bytes = fs::read(&changed).unwrap();
        bytes[500] ^= 1;
        fs::write(&changed, bytes).unwrap();
        let torn = TINY.check(app.path(), 0, step).unwrap_err();
        assert!(torn.contains("never was"), "{torn}");
        // A file of an earlier moment beside the others.
        let (app, step) = made(written.end - 1);
        let (earlier, _) = made(created.end - 1);
        let moved = (0..3).find(|&file| {
            let paths = [&app, &earlier].map(|app| fs::read(app.path().join(name(file))).unwrap());
            paths[0] != paths[1]
        });
        let moved = name(moved.unwrap());
        fs::copy(earlier.path().join(&moved), app.path().join(&moved)).unwrap();
        assert!(TINY.check(app.path(), step, step).is_err());
        let (app, step) = made(4);
        fs::write(app.path().join("stranger"), "").unwrap();
        assert!(
            TINY.check(app.path(), 0, step)
                .unwrap_err()
                .contains("stranger")
        );
    }

    #[test]
    fn phases_follow_each_other() {
        let [(_, create), (_, write), (_, delete)] = PostMark::SMALL.phases();
        assert_eq!(create, 1..81);
        assert_eq!(
            (write.start, write.end, delete.end),
            (81, delete.start, delete.start + 40)
        );
    }
}
