//! What `mobifs status --json` prints. The schema is documented in `docs/STATUS.md`;
//! a change that could break a reader raises [`SCHEMA_VERSION`].

use mobifs_base::PAGE_BYTES_U64;
use mobifs_engine::{TransactioningName, TransactioningRule};
use mobifs_store::{Calibration, PendingWork};
use serde::{Deserialize, Serialize};

use crate::AppName;

/// Version of the schema.
pub const SCHEMA_VERSION: u32 = 1;

/// What the user can do where the filesystem of the store has no room.
pub(crate) const ROOM_ADVICE: &str = "free space where the store is";
/// The same where it has room, and no inodes for more files.
pub(crate) const INODES_ADVICE: &str =
    "delete files where the store is, whose filesystem has no inodes left";

/// The state of one mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Process id of the daemon.
    pub daemon_pid: u32,
    /// The supervisor, which starts a new daemon if this one dies: `mobifs`, `systemd`; none:
    /// unsupervised.
    pub supervised_by: Option<String>,
    /// How often a new daemon has gone on after one that died, since the mount.
    pub restarts: u64,
    /// Version of the daemon.
    pub version: String,
    /// Where it is mounted; none for a volume that is not.
    pub mountpoint: Option<String>,
    /// Uptime in milliseconds.
    pub uptime_ms: u64,
    /// Whether nothing may change in the whole mount.
    pub read_only: bool,
    /// Whether `sync(2)` and `syncfs(2)` reach the mount.
    pub sync_reaches_mount: bool,
    /// Memory.
    pub memory: MemoryStatus,
    /// The store.
    pub store: StoreStatus,
    /// The user.
    pub user: UserReport,
    /// What is recorded of the mount; none: nothing.
    pub recording: Option<RecordingStatus>,
    /// The machine's battery is low: every app is durable.
    pub battery_low: bool,
    /// The screen is off: unless the battery is low, commits wait for their limits.
    pub screen_off: bool,
    /// All apps touched since the mount together, also those that are not in `apps`.
    #[serde(default)]
    pub totals: AppTotals,
    /// Apps touched since the mount, by path; those that were asked for.
    pub apps: Vec<AppReport>,
    /// How many more were asked for, after the last of `apps`.
    #[serde(default)]
    pub apps_omitted: u64,
    /// What is particular to a steered filesystem of the kernel; none for a mount of MobiFS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeStatus>,
}

impl Status {
    /// Why changes are not in the store, or not at their place in it, although that was tried; as
    /// far as the apps that are listed show it.
    pub fn not_stored(&self) -> Option<String> {
        let refused = |app: &AppReport| {
            let (name, reason) = (&app.name, app.read_only.as_ref()?);
            Some(format!(
                "the changes of \"{name}\" cannot be committed: {reason}"
            ))
        };
        self.apps.iter().find_map(refused).or_else(|| {
            let reason = self.store.not_applied.as_ref()?;
            Some(format!(
                "what is committed cannot be brought to its place: {reason}"
            ))
        })
    }
}

/// A filesystem of the kernel whose commits a daemon steers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeStatus {
    /// Its type: `ext4`, `btrfs`.
    pub filesystem: String,
    /// Why nothing is promised; none: the promise holds.
    pub promise_withdrawn: Option<String>,
    /// Whether calls for durability of programs that `mobifs run` has started return at once.
    pub calls_return_at_once: bool,
    /// The kernel's commit interval, in seconds: what it keeps to without the daemon.
    pub commit_interval_s: u64,
    /// The age that changes reach at the most if the daemon is dead, in milliseconds.
    pub age_max_without_daemon_ms: u64,
    /// Commits since it is steered that the daemon did not ask for: the kernel's own, and those
    /// that programs wait for; none where the kernel does not count commits.
    pub other_commits: Option<u64>,
    /// The largest transaction that the journal takes; none for a filesystem without one.
    pub largest_transaction_bytes: Option<u64>,
    /// Where the bytes that programs write are counted: `filesystem`, or `machine` (of all its
    /// filesystems together).
    pub written_counter: String,
    /// What the kernel does not show, so that it is missing in the numbers: a sentence each.
    #[serde(default)]
    pub not_counted: Vec<String>,
    /// The mount options that were changed, as they were before.
    pub options_before: Vec<String>,
    /// The directories that alone are steered; none: all of the filesystem.
    #[serde(default)]
    pub only: Vec<String>,
    /// The snapshots that are kept; none: no history is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryStatus>,
}

impl NativeStatus {
    /// Whether something is promised of a filesystem of this type, so that a promise can be withdrawn.
    pub fn can_promise(&self) -> bool {
        self.filesystem != "btrfs"
    }
}

/// Snapshots that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// How many.
    pub kept: u64,
    /// The moment of the last one, which is its name; none: none was taken yet.
    pub last: Option<String>,
    /// Whether that is one point in time.
    pub last_is_exact: Option<bool>,
    /// How long apps stood still for the last snapshot that needed it, in milliseconds; none: none
    /// has since the daemon was started.
    pub last_standstill_ms: Option<u64>,
    /// Why the last attempt to take or remove one failed; none: it did not.
    pub failed: Option<String>,
    /// None is taken any more, and those that are kept stay until they are deleted.
    #[serde(default)]
    pub is_off: bool,
}

/// All apps of a mount together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppTotals {
    /// Apps touched since the mount.
    pub apps: u64,
    /// Those of them that have changes which a power cut would take.
    pub at_risk: u64,
    /// Those of them that accept no changes.
    pub read_only: u64,
    /// Bytes that they wrote since the mount.
    pub bytes_written_by_apps: u64,
    /// Bytes of content handed to the store since the mount.
    pub bytes_sent_to_store: u64,
    /// Bytes written that never went to the store.
    pub bytes_saved: u64,
}

impl AppTotals {
    /// The sums over these.
    pub fn of(apps: &[AppReport]) -> Self {
        let mut totals = Self::default();
        for app in apps {
            totals.apps += 1;
            totals.at_risk += u64::from(app.transactions.open + app.transactions.closed > 0);
            totals.read_only += u64::from(app.read_only.is_some());
            totals.bytes_written_by_apps += app.bytes_written_by_app;
            totals.bytes_sent_to_store += app.bytes_sent_to_store;
            totals.bytes_saved += app.bytes_saved;
        }
        totals
    }
}

/// Memory of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Most that uncommitted changes may take.
    pub budget_bytes: u64,
    /// Uncommitted changes, and deleted files still in use.
    pub used_bytes: u64,
    /// Part of it: deleted files still in use.
    pub deleted_in_use_bytes: u64,
    /// Committed pages that wait for being applied.
    pub committed_held_bytes: u64,
    /// Files, directories, … in memory.
    pub objects: u64,
    /// How long the rest of the budget would last at the rate of the last minutes if
    /// nothing were committed, in seconds; none if nothing grows.
    pub budget_lasts_seconds: Option<f64>,
}

/// What is known of the user of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserReport {
    /// `unknown`: no user was seen, so nothing waits; `active`; `away`.
    pub state: String,
    /// What the user did since the mount.
    pub operations: u64,
    /// The predictor of how long the user stays away.
    pub predictor: String,
    /// The scheduler that chooses what is committed meanwhile.
    pub scheduler: String,
}

/// A recording of what programs do with the mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingStatus {
    /// The trace that it becomes.
    pub file: String,
    /// What was recorded since the mount, or the last restart.
    pub events: u64,
    /// What was not recorded because the file was not written as fast as it came.
    pub lost: u64,
    /// Why nothing is recorded any more; none if it is.
    pub stopped: Option<String>,
}

/// What commits have written to the journal since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalReport {
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Changed pages.
    pub pages: u64,
    /// Changed pages that were written whole, because what they were before was not known.
    pub whole_pages: u64,
    /// Changed pages of which the journal says where most of them is already.
    #[serde(default)]
    pub copied_pages: u64,
    /// Bytes of pages.
    pub changed_bytes: u64,
    /// Everything else but padding.
    pub control_bytes: u64,
    /// Commits that were a write and a flush, not one durable write.
    pub flushes: u64,
    /// The largest commit that is one durable write.
    pub durable_write_max_bytes: u64,
}

impl JournalReport {
    /// Bytes of all blocks.
    pub const fn written_bytes(&self) -> u64 {
        self.blocks * PAGE_BYTES_U64
    }
}

impl From<&PendingWork> for JournalReport {
    fn from(pending: &PendingWork) -> Self {
        let written = &pending.journal;
        Self {
            blocks: written.blocks,
            pages: written.pages,
            whole_pages: written.whole_pages,
            copied_pages: written.copied_pages,
            changed_bytes: written.changed_bytes,
            control_bytes: written.control_bytes,
            flushes: written.flushes,
            durable_write_max_bytes: pending.durable_write_max_bytes,
        }
    }
}

/// How long writes to the journal take that are to be durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationReport {
    /// The device; none if it could not be told from others.
    pub device: Option<String>,
    /// The largest commit that is to be one durable write, by these times.
    pub durable_write_max_bytes: u64,
    /// By size, the smallest first.
    pub sizes: Vec<WriteTimesReport>,
}

/// How long writes of one size take: medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteTimesReport {
    /// The size.
    pub bytes: u64,
    /// One durable write, in µs.
    pub durable_us: f64,
    /// A write and a flush, in µs.
    pub flushed_us: f64,
}

impl From<&Calibration> for CalibrationReport {
    fn from(measured: &Calibration) -> Self {
        let sizes = measured.sizes.iter().map(|times| WriteTimesReport {
            bytes: times.bytes,
            durable_us: times.durable_ns as f64 / 1e3,
            flushed_us: times.flushed_ns as f64 / 1e3,
        });
        Self {
            device: measured.device.clone(),
            durable_write_max_bytes: measured.direct_bytes_max,
            sizes: sizes.collect(),
        }
    }
}

/// The store under one mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Its directory; none for one without.
    pub path: Option<String>,
    /// `journal`, `memory`, or `native`: a filesystem of the kernel that is steered.
    pub kind: String,
    /// Bytes of journal in use.
    pub journal_used_bytes: u64,
    /// Bytes of journal there are.
    pub journal_total_bytes: u64,
    /// Commits since the mount.
    pub commits: u64,
    /// Transactions of several apps, or of several threads that waited, that were committed together
    /// with another one: one commit.
    #[serde(default)]
    pub joined_transactions: u64,
    /// What commits wrote to the journal.
    #[serde(default)]
    pub journal: JournalReport,
    /// What was measured of the device, the last time; none if it was not.
    #[serde(default)]
    pub calibration: Option<CalibrationReport>,
    /// Bytes written to the device by commits.
    pub commit_written_bytes: u64,
    /// Bytes written to the device by applying.
    pub apply_written_bytes: u64,
    /// Objects with committed changes that another program moved or removed in the store.
    #[serde(rename = "strays")]
    pub externally_modified: u64,
    /// Room on the disk that is preallocated for growing files and not used.
    #[serde(default)]
    pub preallocated_unused_bytes: u64,
    /// Bytes of growing files that applying has moved to where there is room to grow; part of what it has written.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Calls for durability in durable apps that needed no commit: a transaction of SQLite made them
    /// for the order of its writes.
    #[serde(default)]
    pub ordered_fsyncs: u64,
    /// Why what is committed could not be brought to its place the last time, and for which
    /// object; none if it could.
    #[serde(default)]
    pub not_applied: Option<String>,
    /// The snapshots that are kept of what is applied; none: no history is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryStatus>,
}

/// One app of a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppReport {
    /// Path relative to the mount; `.` for what lies in no app. What is not UTF-8 is replaced.
    pub name: String,
    /// The bytes of the name in hexadecimal digits, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// `relaxed` or `durable`.
    pub class: String,
    /// What a power cut would take right now.
    pub bytes_at_risk: u64,
    /// Age of the oldest change that a power cut would take, in seconds.
    pub seconds_at_risk: f64,
    /// Transactions.
    pub transactions: TransactionCounts,
    /// Share of written pages that were overwritten or deleted before a commit: what
    /// never has to reach the device.
    pub e: f64,
    /// Bytes that the app wrote since the mount.
    pub bytes_written_by_app: u64,
    /// Bytes of content handed to the store since the mount.
    pub bytes_sent_to_store: u64,
    /// Bytes that the app wrote and that never went to the store, because they
    /// were overwritten or deleted before.
    pub bytes_saved: u64,
    /// The last commit since the mount, if there was one.
    pub last_checkpoint: Option<CheckpointReport>,
    /// Why the app accepts no changes; none if it does.
    pub read_only: Option<String>,
    /// Age at which a transaction closes.
    pub age_max_ms: u64,
    /// Staleness at which a transaction closes.
    pub staleness_max_bytes: u64,
    /// What closes a transaction before that.
    pub policy: PolicyReport,
}

impl AppReport {
    /// The name with all its bytes.
    pub fn full_name(&self) -> AppName {
        let hex = self.name_hex.as_deref().and_then(AppName::from_hex);
        hex.unwrap_or_else(|| AppName::from(self.name.as_str()))
    }
}

/// A policy with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum PolicyReport {
    /// Trade-off point location.
    Tpl {
        /// The curve is not looked at below this staleness.
        staleness_min_bytes: u64,
        /// A transaction closes when the curve falls more steeply, in millionths of a
        /// percent a page.
        slope_min_micropercent: i64,
        /// Points of the curve that the slope is fitted through.
        window_points: u64,
    },
    /// A fixed interval.
    Interval {
        /// A transaction closes at this age.
        interval_ms: u64,
    },
    /// The first pause.
    Quiet {
        /// A transaction closes when nothing changed for so long,
        quiet_ms: u64,
        /// and it is at least so old.
        quiet_age_min_ms: u64,
    },
    /// A fixed staleness.
    Staleness {
        /// A transaction closes at this staleness.
        staleness_bytes: u64,
    },
    /// Every `fsync`.
    Fsync {
        /// A transaction closes at this age without one.
        flush_interval_ms: u64,
    },
    /// Never.
    Ideal,
}

impl PolicyReport {
    /// The report of a rule.
    pub fn of(rule: &TransactioningRule) -> Self {
        match rule.name {
            TransactioningName::Tpl => Self::Tpl {
                staleness_min_bytes: bytes(rule.tpl.staleness_min_pages),
                slope_min_micropercent: rule.tpl.slope_min_micropercent,
                window_points: rule.tpl.window_points as u64,
            },
            TransactioningName::Interval => Self::Interval {
                interval_ms: rule.interval.interval_ms,
            },
            TransactioningName::Quiet => Self::Quiet {
                quiet_ms: rule.quiet.quiet_ms,
                quiet_age_min_ms: rule.quiet.quiet_age_min_ms,
            },
            TransactioningName::Staleness => Self::Staleness {
                staleness_bytes: bytes(rule.staleness.staleness_pages),
            },
            TransactioningName::Fsync => Self::Fsync {
                flush_interval_ms: rule.fsync.flush_interval_ms,
            },
            TransactioningName::Ideal => Self::Ideal,
        }
    }

    /// Its name, as configurations write it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Tpl { .. } => TransactioningName::Tpl.as_str(),
            Self::Interval { .. } => TransactioningName::Interval.as_str(),
            Self::Quiet { .. } => TransactioningName::Quiet.as_str(),
            Self::Staleness { .. } => TransactioningName::Staleness.as_str(),
            Self::Fsync { .. } => TransactioningName::Fsync.as_str(),
            Self::Ideal => TransactioningName::Ideal.as_str(),
        }
    }
}

/// The size of so many pages.
pub const fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES_U64)
}

/// Transactions of one app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionCounts {
    /// Accepting changes: 0 or 1.
    pub open: u64,
    /// Closed, waiting for their commit.
    pub closed: u64,
    /// Committed since the mount.
    pub committed: u64,
}

/// When an app was last committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// How long ago, in seconds.
    pub age_seconds: f64,
    /// When: RFC 3339, UTC.
    pub time: String,
}

/// `2015-07-08T12:34:56.789Z`.
pub fn rfc3339(time: mobifs_base::Timestamp) -> String {
    // No clock shows a time that this cannot write.
    let nanoseconds = i32::try_from(time.nanoseconds).unwrap_or(0);
    let moment = jiff::Timestamp::new(time.seconds, nanoseconds);
    let end = if time.seconds < 0 {
        jiff::Timestamp::MIN
    } else {
        jiff::Timestamp::MAX
    };
    format!("{:.3}", moment.unwrap_or(end))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mobifs_base::Timestamp;

    use super::*;
    use crate::PolicySettings;

    /// The report of a policy has all keys of that policy and no others; the document of the status
    /// lists them, and that of the configuration explains them.
    #[test]
    fn a_policy_is_reported_with_its_keys() {
        let document = |name: &str| {
            let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
            std::fs::read_to_string(docs.join(name)).unwrap()
        };
        let documents = ["STATUS.md", "CONFIG.md"].map(document);
        let mut reported = BTreeSet::from(["class", "age_max_ms", "staleness_max_bytes", "policy"]);
        for name in TransactioningName::ALL {
            let report = PolicyReport::of(&TransactioningRule {
                name,
                ..TransactioningRule::default()
            });
            let serde_json::Value::Object(fields) = serde_json::to_value(report).unwrap() else {
                panic!("not an object");
            };
            assert_eq!(fields["name"], name.as_str());
            let keys = PolicySettings::KEYS.iter();
            let keys = keys
                .filter(|key| key.policy == Some(name))
                .map(|key| key.name);
            let keys: BTreeSet<_> = keys.collect();
            let fields = fields.keys().map(String::as_str);
            assert_eq!(
                fields
                    .filter(|field| *field != "name")
                    .collect::<BTreeSet<_>>(),
                keys
            );
            reported.extend(keys);
        }
        for key in PolicySettings::KEYS {
            assert!(reported.contains(key.name), "{} is not reported", key.name);
            let name = format!("`{}`", key.name);
            for document in &documents {
                assert!(document.contains(&name), "{name} is not in the documents");
            }
        }
    }

    #[test]
    fn dates_are_right() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_436_358_896, "2015-07-08T12:34:56.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (-1, "1969-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::new(seconds, 0)), expected);
        }
        assert_eq!(
            rfc3339(Timestamp::new(0, 123_456_789)),
            "1970-01-01T00:00:00.123Z"
        );
    }
}
