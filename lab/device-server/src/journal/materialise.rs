//! Making an image of a crash state.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fastrand::Rng;
use mobifs_base::VirtualNs;

use super::reader::{Interval, Located};
use super::record::{Kind, Record};
use super::{Journal, JournalError};
use crate::block::SECTOR_BYTES;

/// Data is copied in such pieces.
const PIECE_BYTES: u64 = 1 << 20;

/// What a crash leaves of what may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing, at the first moment of the interval.
    None,
    /// Everything, at its last moment.
    All,
    /// At a random moment, of each command all, nothing or some sectors.
    Random {
        /// The same seed gives the same state.
        seed: u64,
    },
}

/// One crash state: `N`, `N:all` or `N:SEED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashState {
    /// In which interval the crash falls.
    pub interval: usize,
    /// What it leaves.
    pub survival: Survival,
}

impl FromStr for CrashState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "'{text}' is not a crash state: write N (after flush N, nothing later), N:all \
                 (everything up to the next flush) or N:SEED (a random part of it)"
            )
        };
        let (interval, rest) = match text.split_once(':') {
            Some((interval, rest)) => (interval, Some(rest)),
            None => (text, None),
        };
        let survival = match rest {
            None => Survival::None,
            Some("all") => Survival::All,
            Some(seed) => Survival::Random {
                seed: seed.parse().map_err(|_| bad())?,
            },
        };
        Ok(Self {
            interval: interval.parse().map_err(|_| bad())?,
            survival,
        })
    }
}

/// What becomes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// Each sector by itself.
    Torn,
}

/// Makes the image `output` of a device that crashed in `state`, from `base`, the image
/// as it was when the journal began. Returns how many commands were kept, lost and torn.
///
/// # Errors
/// [`JournalError`]; nothing stays at `output`.
pub fn materialise(
    journal: &Journal,
    base: &Path,
    state: CrashState,
    output: &Path,
) -> Result<Materialised, JournalError> {
    let intervals = journal.intervals();
    let Some(interval) = intervals.get(state.interval) else {
        return Err(JournalError::NoSuchState {
            asked: state.interval,
            last: intervals.len().saturating_sub(1),
        });
    };
    let found = base.metadata().map_err(JournalError::io(base))?.len();
    if found != journal.device_bytes() {
        return Err(JournalError::WrongBase {
            path: base.to_owned(),
            found,
            expected: journal.device_bytes(),
        });
    }
    make(journal, base, (*interval, state.survival), 0, output)
}

/// Makes `output` from `base`, in which the records before `applied` are.
fn make(
    journal: &Journal,
    base: &Path,
    (interval, survival): (Interval, Survival),
    applied: usize,
    output: &Path,
) -> Result<Materialised, JournalError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(output)
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => JournalError::OutputExists(output.to_owned()),
            _ => JournalError::io(output)(error),
        })?;
    let made = std::fs::copy(base, output)
        .map_err(JournalError::io(output))
        .and_then(|_| {
            let mut making = Making::new(journal, interval, survival, &file, output);
            making.run(applied)?;
            Ok(Materialised {
                crash_at: making.crash_at,
                ..making.counts
            })
        });
    if made.is_err() {
        let _gone = std::fs::remove_file(output);
    }
    made
}

/// Makes many crash states of one journal. What is certain in one of them is certain in all later
/// ones, so it is carried out once: in the base image, which this changes.
#[derive(Debug)]
pub struct CrashStates<'a> {
    journal: &'a Journal,
    base: PathBuf,
    file: File,
    /// Records before this index are in the base.
    applied: usize,
    /// No earlier interval can be made any more.
    reached: usize,
}

impl<'a> CrashStates<'a> {
    /// From `base`, the image as it was when the journal began. It is used up.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn new(journal: &'a Journal, base: &Path) -> Result<Self, JournalError> {
        let opened = OpenOptions::new().read(true).write(true).open(base);
        let file = opened.map_err(JournalError::io(base))?;
        let found = file.metadata().map_err(JournalError::io(base))?.len();
        if found != journal.device_bytes() {
            return Err(JournalError::WrongBase {
                path: base.to_owned(),
                found,
                expected: journal.device_bytes(),
            });
        }
        Ok(Self {
            journal,
            base: base.to_owned(),
            file,
            applied: 0,
            reached: 0,
        })
    }

    /// Makes the image `output` of this state, the same as [`materialise`] makes. Its interval is not
    /// before that of the last one.
    ///
    /// # Errors
    /// [`JournalError`]; nothing stays at `output`.
    pub fn make(&mut self, state: CrashState, output: &Path) -> Result<Materialised, JournalError> {
        let intervals = self.journal.intervals();
        let interval = intervals.get(state.interval).copied();
        let Some(interval) = interval.filter(|_| state.interval >= self.reached) else {
            return Err(JournalError::NoSuchState {
                asked: state.interval,
                last: intervals.len().saturating_sub(1),
            });
        };
        self.reached = state.interval;
        self.advance(interval)?;
        make(
            self.journal,
            &self.base,
            (interval, state.survival),
            self.applied,
            output,
        )
    }

    /// Carries out the records up to the first that is not certain in `interval`: the order of those
    /// that overlap must stay.
    fn advance(&mut self, interval: Interval) -> Result<(), JournalError> {
        let mut making = Making::new(
            self.journal,
            interval,
            Survival::None,
            &self.file,
            &self.base,
        );
        for (index, located) in self.journal.records()[..interval.records_end]
            .iter()
            .enumerate()
            .skip(self.applied)
        {
            let record = &located.record;
            let is_certain = index < interval.records_before_cut
                || matches!(record.kind, Kind::Flush | Kind::Cut)
                || record.done_at <= interval.durable_before;
            if !is_certain {
                break;
            }
            making.carry_out(index, located)?;
            self.applied = index + 1;
        }
        Ok(())
    }
}

/// What a crash state kept, lost and tore of the commands of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Materialised {
    /// The moment of the crash; [`VirtualNs`] of the largest value if it is the interval's end.
    pub crash_at: VirtualNs,
    /// Whole.
    pub kept: usize,
    /// Not at all.
    pub lost: usize,
    /// In part.
    pub torn: usize,
}

struct Making<'a> {
    journal: &'a Journal,
    interval: Interval,
    survival: Survival,
    /// The moment of the crash; later requests never happened.
    crash_at: VirtualNs,
    random: Rng,
    file: &'a File,
    path: PathBuf,
    counts: Materialised,
}

impl<'a> Making<'a> {
    fn new(
        journal: &'a Journal,
        interval: Interval,
        survival: Survival,
        file: &'a File,
        path: &Path,
    ) -> Self {
        let seed = match survival {
            Survival::Random { seed } => seed,
            Survival::None | Survival::All => 0,
        };
        let mut random = Rng::with_seed(seed);
        let last = journal.records()[..interval.records_end]
            .last()
            .map_or(interval.begins_at, |last| last.record.done_at)
            .max(interval.begins_at);
        let crash_at = match survival {
            Survival::None => interval.begins_at,
            Survival::All => VirtualNs(u64::MAX),
            Survival::Random { .. } => VirtualNs(random.u64(interval.begins_at.0..=last.0)),
        };
        Self {
            journal,
            interval,
            survival,
            crash_at,
            random,
            file,
            path: path.to_owned(),
            counts: Materialised::default(),
        }
    }

    fn run(&mut self, applied: usize) -> Result<(), JournalError> {
        let journal = self.journal;
        for (index, located) in journal.records()[..self.interval.records_end]
            .iter()
            .enumerate()
            .skip(applied)
        {
            self.carry_out(index, located)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, index: usize, located: &Located) -> Result<(), JournalError> {
        // What a cut left of older records was recorded after it.
        let fate = if index < self.interval.records_before_cut {
            Fate::Kept
        } else {
            self.fate(&located.record)
        };
        match fate {
            Fate::Kept => self.apply(located),
            Fate::Lost => Ok(()),
            Fate::Torn => self.apply_torn(located),
        }
    }

    fn fate(&mut self, record: &Record) -> Fate {
        if matches!(record.kind, Kind::Flush | Kind::Cut) {
            return Fate::Lost;
        }
        let is_certain = record.kind == Kind::AfterCut
            || record.done_at <= self.interval.durable_before
            || (record.kind.is_durable() && record.done_at <= self.crash_at);
        if is_certain {
            return Fate::Kept;
        }
        let is_whole = record.kind.is_durable();
        let fate = match self.survival {
            _ if record.at > self.crash_at => Fate::Lost,
            Survival::None => Fate::Lost,
            Survival::All => Fate::Kept,
            Survival::Random { .. } => match self.random.u8(0..4) {
                0 => Fate::Lost,
                1 => Fate::Kept,
                // A durable request under way is there as a whole or not at all.
                _ if is_whole => Fate::Kept,
                _ => Fate::Torn,
            },
        };
        match fate {
            Fate::Kept => self.counts.kept += 1,
            Fate::Lost => self.counts.lost += 1,
            Fate::Torn => self.counts.torn += 1,
        }
        fate
    }

    fn apply(&self, located: &Located) -> Result<(), JournalError> {
        self.apply_part(located, 0, located.record.bytes)
    }

    fn apply_torn(&mut self, located: &Located) -> Result<(), JournalError> {
        let record = located.record;
        let mut start = record.offset;
        let end = record.offset + record.bytes;
        while start < end {
            let next = start + SECTOR_BYTES;
            if self.random.bool() {
                self.apply_part(located, start - record.offset, next - start)?;
            }
            start = next;
        }
        Ok(())
    }

    /// Applies `bytes` of a record from its byte `skip` on.
    fn apply_part(&self, located: &Located, skip: u64, bytes: u64) -> Result<(), JournalError> {
        let mut done = 0;
        let mut piece = vec![0; bytes.min(PIECE_BYTES) as usize];
        while done < bytes {
            let part = &mut piece[..(bytes - done).min(PIECE_BYTES) as usize];
            if located.record.kind.has_data() {
                self.journal.read_data(located, skip + done, part)?;
            }
            self.file
                .write_all_at(part, located.record.offset + skip + done)
                .map_err(JournalError::io(&self.path))?;
            done += part.len() as u64;
        }
        Ok(())
    }
}
