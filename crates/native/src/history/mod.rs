//! The history of a steered btrfs: snapshots that are kept after commits.

mod groups;
mod guard;
mod pause;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_history::{Archive, ArchiveError, Retention, Snapshot, Subvolume, WallTime};
use mobifs_host::MountEntry;
use mobifs_steered::{Device, Directory, Standstill};
use mobifs_volume::{HistoryRules, HistoryStatus};

pub use guard::guard;
use pause::Pause;

/// Where snapshots lie, in the subvolume that is mounted.
pub const DIRECTORY: &str = ".mobifs-history";
/// When no snapshot could be taken, the next one is tried so much later.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps snapshots of a filesystem.
#[derive(Debug)]
pub(crate) struct Keeper {
    mountpoint: PathBuf,
    rules: HistoryRules,
    /// Made with the first snapshot.
    archive: Option<Archive>,
    pause: Pause,
    kept: Vec<Snapshot>,
    next_at: MonotonicNs,
    /// There was a commit that was too early for a snapshot.
    is_due: bool,
    /// A removed snapshot whose room the kernel is still giving back.
    freeing: Option<u64>,
    failed: Option<String>,
}

/// What a look at the history has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Commits that it took.
    pub(crate) commits: u64,
}

impl Keeper {
    /// For a filesystem that is mounted there; what a daemon that was killed has left standing still
    /// goes on.
    pub(crate) fn new(mount: &MountEntry, rules: HistoryRules) -> Self {
        let note = note_of(mount);
        Standstill::end_noted(&note);
        Self {
            mountpoint: mount.mountpoint.clone(),
            rules,
            archive: Archive::open(&mount.mountpoint, Path::new(DIRECTORY)).ok(),
            pause: Pause::new(note, rules.freeze_max),
            kept: Vec::new(),
            next_at: MonotonicNs(0),
            is_due: false,
            freeing: None,
            failed: None,
        }
        .with_list()
    }

    fn with_list(mut self) -> Self {
        self.kept = self
            .archive
            .as_ref()
            .and_then(|archive| archive.list().ok())
            .unwrap_or_default();
        self
    }

    /// Other rules, which hold from the next commit on.
    pub(crate) fn set_rules(&mut self, rules: HistoryRules) {
        self.rules = rules;
        self.pause.set_limit(rules.freeze_max);
        self.next_at = MonotonicNs(0);
    }

    /// A commit has been made: takes a snapshot if one is due.
    pub(crate) fn after_commit(&mut self, now: MonotonicNs) -> Done {
        self.is_due = self.rules.is_on();
        self.take_if_due(now)
    }

    fn take_if_due(&mut self, now: MonotonicNs) -> Done {
        if !self.is_due || now < self.next_at {
            return Done::default();
        }
        self.is_due = false;
        let wait = match self.take() {
            Ok(done) => {
                self.failed = None;
                self.next_at = after(now, self.rules.interval_min);
                return done;
            }
            Err(error) => {
                tracing::warn!(%error, "no snapshot is kept of this commit");
                self.failed = Some(error.to_string());
                self.is_due = true;
                self.rules.interval_min.max(RETRY)
            }
        };
        self.next_at = after(now, wait);
        Done::default()
    }

    fn take(&mut self) -> Result<Done, ArchiveError> {
        let archive = match self.archive.take() {
            Some(archive) => archive,
            None => Archive::make(&self.mountpoint, Path::new(DIRECTORY))?,
        };
        let archive = self.archive.insert(archive);
        self.kept = archive.list()?;
        if self
            .kept
            .last()
            .is_some_and(|last| archive.is_unchanged_since(last))
        {
            return Ok(Done::default());
        }
        let taken = loop {
            match archive.take(&self.pause) {
                Ok(taken) => break taken,
                Err(error) if error.is_no_room() && !self.kept.is_empty() => {
                    let oldest = self.kept.remove(0);
                    tracing::info!(name = ?oldest.name(), "a full disk takes the oldest snapshot");
                    archive.remove(&oldest)?;
                    archive.free_removed();
                }
                Err(error) => return Err(error),
            }
        };
        tracing::debug!(
            name = ?taken.snapshot.name(),
            stood_still_ms = self.pause.last_ms(),
            "snapshot taken"
        );
        self.kept = archive.prune(&retention(&self.rules), 0)?;
        Ok(Done {
            commits: taken.commits,
        })
    }

    /// Takes the snapshot that an earlier commit was too early for, and removes what is kept no
    /// longer.
    pub(crate) fn look(&mut self, now: MonotonicNs) -> Done {
        let done = self.take_if_due(now);
        self.remove_surplus();
        done
    }

    /// What has become too old goes, and the oldest where the disk is nearly full.
    fn remove_surplus(&mut self) {
        let Some(archive) = self.archive.as_ref().filter(|_| self.rules.is_on()) else {
            return;
        };
        let retention = retention(&self.rules);
        if !retention.surplus(&self.kept, 0, WallTime::now()).is_empty() {
            match archive.prune(&retention, 0) {
                Ok(kept) => self.kept = kept,
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
            tracing::info!(name = ?oldest.name(), "a nearly full disk takes the oldest snapshot");
            match archive.remove(&oldest) {
                Ok(id) => {
                    self.freeing = Some(id);
                    archive.free_removed();
                }
                Err(error) => self.failed = Some(error.to_string()),
            }
        }
    }

    /// Uses nothing of the filesystem any more.
    pub(crate) fn close(&mut self) {
        self.rules.keep_count = 0;
        self.is_due = false;
        self.archive = None;
    }

    /// Whether the kernel is still giving room back, which is to be looked at again soon.
    pub(crate) fn is_freeing(&self) -> bool {
        self.freeing.is_some()
    }

    /// For the status; none if there is no history.
    pub(crate) fn status(&self) -> Option<HistoryStatus> {
        let last = self.kept.last();
        self.rules.is_on().then(|| HistoryStatus {
            kept: self.kept.len() as u64,
            last: last.map(|last| last.time.to_string()),
            last_is_exact: last.map(|last| last.is_exact),
            last_standstill_ms: self.pause.last_ms(),
            failed: self.failed.clone(),
        })
    }
}

fn after(now: MonotonicNs, wait: Duration) -> MonotonicNs {
    let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    MonotonicNs(now.0.saturating_add(wait))
}

const fn retention(rules: &HistoryRules) -> Retention {
    Retention {
        count: rules.keep_count,
        age_max: rules.keep_age_max,
    }
}

fn note_of(mount: &MountEntry) -> PathBuf {
    let device = Device {
        major: mount.device_major,
        minor: mount.device_minor,
    };
    Standstill::path(&Directory::from_environment(), device)
}

/// Lets apps go on that a daemon of this filesystem has left standing still.
pub fn end_standstill_after_daemon(mount: &MountEntry) {
    Standstill::end_noted(&note_of(mount));
}

/// What `mobifs steer --check` says about a history of the filesystem that is mounted there.
pub fn check(mount: &MountEntry, rules: &HistoryRules) -> Option<String> {
    if !rules.is_on() {
        return None;
    }
    if mount.kind != "btrfs" {
        return Some(format!(
            "No history is kept ([history] in the configuration): {} is {}, and only btrfs has snapshots.",
            mount.mountpoint.display(),
            mount.kind
        ));
    }
    let nested = Subvolume::open(&mount.mountpoint).and_then(|subvolume| subvolume.nested());
    let nested = match nested {
        Ok(nested) => nested,
        Err(error) => return Some(format!("No history is kept: {error}.")),
    };
    let others = nested.iter().filter(|path| !path.starts_with(DIRECTORY));
    let others: Vec<_> = others.map(|path| path.display().to_string()).collect();
    (!others.is_empty()).then(|| {
        format!(
            "Snapshots of the history do not have what lies in nested subvolumes: {}.",
            others.join(", ")
        )
    })
}
