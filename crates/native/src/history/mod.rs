//! The history of a steered btrfs: snapshots that are kept after commits.

mod groups;
mod pause;
mod watchdog;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_history::{Archive, Done, KeepRules, Retention, Subvolume};
use mobifs_host::{MountEntry, shell_path};
use mobifs_steered::{Device, Directory, Standstill};
use mobifs_volume::{Config, HistoryRules, HistoryStatus};

use crate::filesystem::Filesystem;
use pause::Pause;
pub use watchdog::run_watchdog;

/// Where snapshots lie, in the subvolume that is mounted.
pub const DIRECTORY: &str = ".mobifs-history";

/// What keeps the history of a filesystem, if it can have one.
pub(crate) fn keeper(
    mount: &MountEntry,
    filesystem: &Filesystem,
    config: &Config,
) -> Option<Keeper> {
    if matches!(filesystem, Filesystem::Btrfs(_)) {
        return Some(Keeper::new(mount, config.history));
    }
    warn_without(&config.history);
    None
}

/// Says that a history which is wanted cannot be kept.
pub(crate) fn warn_without(rules: &HistoryRules) {
    if rules.is_on() {
        tracing::warn!(
            "no history is kept ([history] in the configuration): only btrfs has snapshots"
        );
    }
}

/// Keeps snapshots of a filesystem.
#[derive(Debug)]
pub(crate) struct Keeper {
    keeper: mobifs_history::Keeper,
    pause: Pause,
}

impl Keeper {
    /// For a filesystem that is mounted there; what a daemon that was killed has left standing still
    /// goes on.
    pub(crate) fn new(mount: &MountEntry, rules: HistoryRules) -> Self {
        let note = note_of(mount);
        Standstill::end_noted(&note);
        let directory = Path::new(DIRECTORY);
        Self {
            keeper: mobifs_history::Keeper::new(&mount.mountpoint, directory, keep_rules(&rules)),
            pause: Pause::new(note, rules.freeze_max),
        }
    }

    /// Other rules, which hold from the next commit on.
    pub(crate) fn set_rules(&mut self, rules: HistoryRules) {
        self.keeper.set_rules(keep_rules(&rules));
        self.pause.set_limit(rules.freeze_max);
    }

    /// A commit has been made: takes a snapshot if one is due.
    pub(crate) fn after_commit(&mut self, now: MonotonicNs) -> Done {
        self.keeper
            .after_commit(Duration::from_nanos(now.0), &self.pause)
    }

    /// Takes the snapshot that an earlier commit was too early for, and removes what is kept no
    /// longer.
    pub(crate) fn look(&mut self, now: MonotonicNs) -> Done {
        self.keeper.run(Duration::from_nanos(now.0), &self.pause)
    }

    /// Uses nothing of the filesystem any more.
    pub(crate) fn close(&mut self) {
        self.keeper.close();
    }

    /// Whether the kernel is still giving room back, which is to be looked at again soon.
    pub(crate) fn is_freeing(&self) -> bool {
        self.keeper.is_freeing()
    }

    /// Looks which snapshots are there: other programs may remove them.
    pub(crate) fn look_what_is_kept(&mut self) {
        self.keeper.look_what_is_kept();
    }

    /// For the status; none if there is no history.
    pub(crate) fn status(&self) -> Option<HistoryStatus> {
        mobifs_daemon::history_status(&self.keeper, self.pause.last_ms())
    }
}

const fn keep_rules(rules: &HistoryRules) -> KeepRules {
    KeepRules {
        retention: Retention {
            count: rules.keep_count,
            age_max: rules.keep_age_max,
        },
        interval_min: rules.interval_min,
        free_min_percent: rules.free_min_percent,
    }
}

fn note_of(mount: &MountEntry) -> PathBuf {
    let device = Device {
        major: mount.device_major,
        minor: mount.device_minor,
    };
    Standstill::path(&Directory::from_environment(), device)
}

/// Lets apps go on that a daemon of this filesystem has left standing still; whether there were any.
pub(crate) fn end_standstill_after_daemon(directory: &Directory, device: Device) -> bool {
    Standstill::end_noted(&Standstill::path(directory, device))
}

/// What `mobifs steer --check` says about a history of the filesystem that is mounted there.
pub fn check(mount: &MountEntry, rules: &HistoryRules) -> Option<String> {
    if !rules.is_on() {
        return kept_without_rules(mount);
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

/// Snapshots of an earlier configuration, which nothing removes.
fn kept_without_rules(mount: &MountEntry) -> Option<String> {
    let archive = Archive::open(&mount.mountpoint, Path::new(DIRECTORY)).ok()?;
    let count = archive.list().ok()?.len();
    let shown = shell_path(&mount.mountpoint);
    (count > 0).then(|| {
        format!(
            "The history is off (keep_count = 0), and the snapshots that were taken before ({count}) stay \
             until they are deleted (`mobifs history --older-than 0s {shown}`)."
        )
    })
}
