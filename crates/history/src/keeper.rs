//! Keeping snapshots after commits, as many as are wanted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::archive::{Archive, ArchiveError, Standstill};
use crate::retention::{Retention, oldest_first};
use crate::snapshot::Snapshot;
use crate::time::WallTime;

/// When no snapshot could be taken, the next one is tried so much later.
const RETRY: Duration = Duration::from_secs(10);

/// Which snapshots are taken and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRules {
    /// How many and how old; where the count is 0 none is taken, and none that is there removed.
    pub retention: Retention,
    /// At least so long between two.
    pub interval_min: Duration,
    /// The oldest are removed while less than this share of the filesystem is free.
    pub free_min_percent: u8,
}

impl KeepRules {
    const fn is_on(&self) -> bool {
        self.retention.count > 0
    }
}

/// Keeps snapshots of a filesystem.
#[derive(Debug)]
pub struct Keeper {
    source: PathBuf,
    directory: PathBuf,
    rules: KeepRules,
    /// Made with the first snapshot.
    archive: Option<Archive>,
    /// In the order in which they were taken.
    kept: Vec<Snapshot>,
    /// The last one that was taken, which may be removed by now.
    last: Option<Last>,
    /// A moment of the caller's clock.
    next_at: Duration,
    /// There was a commit that was too early for a snapshot.
    is_due: bool,
    /// A removed snapshot whose room the kernel is still giving back.
    freeing: Option<u64>,
    failed: Option<String>,
}

/// A snapshot that need not be there any more.
#[derive(Clone, Copy, Debug)]
struct Last {
    time: WallTime,
    /// The transaction in which it was made.
    transaction: u64,
}

impl Last {
    fn of(archive: &Archive, snapshot: &Snapshot) -> Option<Self> {
        Some(Self {
            time: snapshot.time,
            transaction: archive.transaction_of(snapshot).ok()?,
        })
    }

    /// Whether less than this time has gone by since its moment. One that lies in the future says
    /// nothing: the clock was set back.
    fn is_within(self, interval: Duration, now: WallTime) -> bool {
        self.time <= now && now.before(interval) < self.time
    }
}

/// What a look at the history has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Commits that it took.
    pub commits: u64,
}

impl Keeper {
    /// For the subvolume at `source`, whose snapshots lie in `directory`, a path in it.
    pub fn new(source: &Path, directory: &Path, rules: KeepRules) -> Self {
        let opened = Archive::open(source, directory);
        // Known from the beginning, and not only when the first snapshot is due.
        let failed = match &opened {
            Err(error @ ArchiveError::Source { .. }) if rules.is_on() => Some(error.to_string()),
            _ => None,
        };
        let archive = opened.ok();
        let kept = archive.as_ref().and_then(|archive| archive.list().ok());
        let kept = oldest_first(&kept.unwrap_or_default(), WallTime::now());
        let last = archive
            .as_ref()
            .and_then(|archive| Last::of(archive, kept.last()?));
        Self {
            source: source.to_owned(),
            directory: directory.to_owned(),
            rules,
            archive,
            kept,
            last,
            next_at: Duration::ZERO,
            is_due: false,
            freeing: None,
            failed,
        }
    }

    /// Other rules, which hold from the next commit on.
    pub fn set_rules(&mut self, rules: KeepRules) {
        let was_on = std::mem::replace(&mut self.rules, rules).is_on();
        self.next_at = Duration::ZERO;
        if was_on && !rules.is_on() {
            tracing::info!(
                kept = self.kept.len(),
                "no more snapshots are taken; those that are kept stay until they are deleted"
            );
        }
    }

    /// Looks which snapshots are there: other programs may remove them.
    pub fn look_what_is_kept(&mut self) {
        if let Some(Ok(kept)) = self.archive.as_ref().map(Archive::list) {
            self.kept = oldest_first(&kept, WallTime::now());
        }
    }

    /// Whether snapshots are taken.
    pub const fn is_on(&self) -> bool {
        self.rules.is_on()
    }

    /// Whether a snapshot would be taken after a commit now.
    pub fn would_take(&self, now: Duration) -> bool {
        self.rules.is_on() && self.is_late_enough(now)
    }

    /// The interval is counted between the moments that snapshots are named by; taking one takes
    /// time before and after that.
    fn is_late_enough(&self, now: Duration) -> bool {
        let interval = self.rules.interval_min;
        let is_within = |last: Last| last.is_within(interval, WallTime::now());
        now >= self.next_at && !self.last.is_some_and(is_within)
    }

    /// A commit has been made: takes a snapshot if one is due.
    pub fn after_commit(&mut self, now: Duration, standstill: &dyn Standstill) -> Done {
        self.is_due = self.rules.is_on();
        self.take_if_due(now, standstill)
    }

    fn take_if_due(&mut self, now: Duration, standstill: &dyn Standstill) -> Done {
        if !self.is_due || !self.is_late_enough(now) {
            return Done::default();
        }
        self.is_due = false;
        let wait = match self.take(standstill) {
            Ok(done) => {
                self.failed = None;
                self.next_at = now.saturating_add(self.rules.interval_min);
                return done;
            }
            Err(error) => {
                tracing::warn!(%error, "no snapshot is kept of this commit");
                self.failed = Some(error.to_string());
                self.is_due = true;
                self.rules.interval_min.max(RETRY)
            }
        };
        self.next_at = now.saturating_add(wait);
        Done::default()
    }

    fn take(&mut self, standstill: &dyn Standstill) -> Result<Done, ArchiveError> {
        let archive = match self.archive.take() {
            Some(archive) => archive,
            None => Archive::make(&self.source, &self.directory)?,
        };
        let archive = self.archive.insert(archive);
        self.kept = oldest_first(&archive.list()?, WallTime::now());
        // Also if the last one was removed since: else a filesystem at rest would be snapshotted
        // again and again.
        if self
            .last
            .is_some_and(|last| archive.is_unchanged_since(last.transaction))
        {
            return Ok(Done::default());
        }
        let taken = loop {
            match archive.take(standstill) {
                Ok(taken) => break taken,
                Err(error) if error.is_no_room() && !self.kept.is_empty() => {
                    let oldest = self.kept.remove(0);
                    tracing::info!(name = ?oldest.name(), "the disk is full: deleting the oldest snapshot");
                    archive.remove(&oldest)?;
                    archive.free_removed();
                }
                Err(error) => return Err(error),
            }
        };
        tracing::debug!(
            name = ?taken.snapshot.name(),
            "snapshot taken"
        );
        self.last = Last::of(archive, &taken.snapshot);
        let kept = archive.prune(&self.rules.retention, 0)?;
        self.kept = oldest_first(&kept, WallTime::now());
        Ok(Done {
            commits: taken.commits,
        })
    }

    /// Takes the snapshot that an earlier commit was too early for, and removes what is kept no
    /// longer.
    pub fn run(&mut self, now: Duration, standstill: &dyn Standstill) -> Done {
        let done = self.take_if_due(now, standstill);
        self.remove_surplus();
        done
    }

    /// What has become too old goes, and the oldest where the disk is nearly full.
    fn remove_surplus(&mut self) {
        let Some(archive) = self.archive.as_ref().filter(|_| self.rules.is_on()) else {
            return;
        };
        let retention = self.rules.retention;
        if !retention.surplus(&self.kept, 0, WallTime::now()).is_empty() {
            match archive.prune(&retention, 0) {
                Ok(kept) => self.kept = oldest_first(&kept, WallTime::now()),
                Err(error) => self.failed = Some(error.to_string()),
            }
        }
        if let Some(id) = self.freeing {
            if !archive.is_freed(id) {
                return;
            }
            self.freeing = None;
            archive.free_removed();
        }
        let free = archive.free_percent().unwrap_or(100);
        if free < self.rules.free_min_percent && !self.kept.is_empty() {
            let oldest = self.kept.remove(0);
            tracing::info!(name = ?oldest.name(), "the disk is nearly full: deleting the oldest snapshot");
            match archive.remove(&oldest) {
                Ok(id) => {
                    self.freeing = id;
                    archive.free_removed();
                }
                Err(error) => self.failed = Some(error.to_string()),
            }
        }
    }

    /// Uses nothing of the filesystem any more.
    pub fn close(&mut self) {
        self.rules.retention.count = 0;
        self.is_due = false;
        self.archive = None;
        self.kept.clear();
    }

    /// Whether the kernel is still giving room back, which is to be looked at again soon.
    pub fn is_freeing(&self) -> bool {
        self.freeing.is_some()
    }

    /// What is kept, the oldest first; none if nothing is to be kept, and nothing is there.
    pub fn kept(&self) -> Option<&[Snapshot]> {
        (self.rules.is_on() || !self.kept.is_empty()).then_some(self.kept.as_slice())
    }

    /// Why the last attempt to take or remove one failed; none: it did not.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was counted from the commit before, so that names were closer than the interval.
    #[test]
    fn the_interval_is_counted_from_the_moment_of_the_name() {
        let moment = |text| WallTime::parse(text).unwrap();
        let last = Last {
            time: moment("2026-11-27T16:00:00.5Z"),
            transaction: 7,
        };
        let is_within = |now| last.is_within(Duration::from_secs(1), moment(now));
        assert!(is_within("2026-11-27T16:00:00.5Z"));
        assert!(is_within("2026-11-27T16:00:01.499999Z"));
        assert!(!is_within("2026-11-27T16:00:01.5Z"));
        // The clock was set back.
        assert!(!is_within("2026-11-27T15:00:00Z"));
    }
}
