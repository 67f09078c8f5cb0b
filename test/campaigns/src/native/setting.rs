//! What a session is like.

use std::fmt;
use std::time::Duration;

use mobifs_testkit::random::Random;

use super::writers::Writer;
use crate::filesystem::Filesystem;

/// What the writers write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// ext4 with `data=journal`, steered.
    Steered,
    /// ext4 with `data=ordered`, on which nothing is promised: a control that must fail.
    Ordered,
    /// btrfs, steered: no point in time, but an age, commits that are asked for, and snapshots.
    Btrfs,
}

impl Subject {
    /// What it is.
    pub const fn filesystem(self) -> Filesystem {
        match self {
            Self::Steered | Self::Ordered => Filesystem::Ext4,
            Self::Btrfs => Filesystem::Btrfs,
        }
    }

    pub(super) const fn is_steered(self) -> bool {
        !matches!(self, Self::Ordered)
    }

    /// Whether a commit is one point in time of all files.
    pub(super) const fn keeps_order(self) -> bool {
        !matches!(self, Self::Btrfs)
    }

    /// As tune2fs spells it.
    pub(super) const fn default_option(self) -> &'static str {
        match self {
            Self::Ordered => "journal_data_ordered",
            Self::Steered | Self::Btrfs => "journal_data",
        }
    }

    /// As mount spells others. The control commits as often as a daemon would.
    pub(super) const fn mount_options(self) -> &'static str {
        match self {
            Self::Ordered => "commit=1",
            Self::Steered | Self::Btrfs => "",
        }
    }
}

/// How the filesystem is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Usual,
    FastCommit,
    InlineData,
    OrphanFile,
    SmallBlocks,
}

impl Layout {
    const ALL: [Self; 5] = [
        Self::Usual,
        Self::FastCommit,
        Self::InlineData,
        Self::OrphanFile,
        Self::SmallBlocks,
    ];

    /// For mke2fs. Groups are small, so that the second one has a copy of the superblock.
    pub(super) fn options(self) -> [String; 6] {
        let features = match self {
            Self::Usual | Self::SmallBlocks => "has_journal",
            Self::FastCommit => "fast_commit",
            Self::InlineData => "inline_data",
            Self::OrphanFile => "orphan_file",
        };
        let (block, group) = (self.block_bytes(), BLOCKS_OF_A_GROUP);
        [
            "-b",
            &block.to_string(),
            "-g",
            &group.to_string(),
            "-O",
            features,
        ]
        .map(str::to_owned)
    }

    pub(super) const fn block_bytes(self) -> u64 {
        match self {
            Self::SmallBlocks => 1024,
            _ => 4096,
        }
    }

    /// The block with the first copy of the superblock.
    pub(super) const fn superblock_copy(self) -> u64 {
        // Where blocks have 1 KiB, the first one belongs to no group.
        BLOCKS_OF_A_GROUP + if self.block_bytes() == 1024 { 1 } else { 0 }
    }
}

const BLOCKS_OF_A_GROUP: u64 = 8192;

/// What befalls the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonFate {
    Lives,
    /// SIGKILL.
    Killed {
        at: Duration,
    },
    /// SIGKILL, and later another one.
    Replaced {
        at: Duration,
        after: Duration,
    },
    /// It is not run for a while.
    Stopped {
        at: Duration,
        lasts: Duration,
    },
}

impl DaemonFate {
    /// It is killed in a third of the sessions, and stopped in a sixth.
    fn choose(number: u64, lasts: Duration, random: &mut Random) -> Self {
        let at = Duration::from_secs(1) + random_time(lasts / 2, random);
        match number % 6 {
            1 => Self::Killed { at },
            4 => Self::Replaced {
                at,
                after: random_time(lasts / 3, random),
            },
            5 => Self::Stopped {
                at,
                lasts: lasts / 3,
            },
            _ => Self::Lives,
        }
    }
}

/// Without a daemon, content gets into a transaction of btrfs only when the kernel begins to write it.
const UNWRITTEN_MAX: Duration = Duration::from_secs(35);

/// A session, as chosen.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) subject: Subject,
    pub(super) lasts: Duration,
    pub(super) mebibytes: u64,
    pub(super) layout: Layout,
    pub(super) journal_mebibytes: u64,
    pub(super) age_max_ms: u64,
    pub(super) policy: &'static str,
    pub(super) is_nearly_full: bool,
    pub(super) relaxed: Vec<Writer>,
    /// One of them that never pauses.
    pub(super) hot: Option<Writer>,
    /// A writer whose calls are waited for.
    pub(super) durable: Option<Writer>,
    /// It is run by `mobifs run --class durable`.
    pub(super) durable_under_run: bool,
    pub(super) mechanism: &'static str,
    /// Single processes of the writers' supervisors are killed, again and again.
    pub(super) kills_supervisors: bool,
    pub(super) sync_every: Duration,
    pub(super) fate: DaemonFate,
}

/// Writers that are asked for, instead of those that are chosen.
#[derive(Clone, Debug, Default)]
pub struct Only {
    /// If not empty: these, and no others, do not wait for their calls.
    pub relaxed: Vec<Writer>,
    /// This one waits for its calls.
    pub durable: Option<Writer>,
    /// One more that shortens a file to any size, in which the kernel has a fault.
    pub shortened: bool,
}

impl Only {
    fn all(&self) -> impl Iterator<Item = Writer> {
        let shortened = self.shortened.then_some(Writer::Shortened);
        let named = self.relaxed.iter().copied();
        named.chain(self.durable).chain(shortened)
    }
}

/// Writers that are in some sessions.
const OTHERS: [Writer; 12] = [
    Writer::Pairs,
    Writer::Resized,
    Writer::Large,
    Writer::Direct,
    Writer::RowsDelete,
    Writer::RowsTruncate,
    Writer::RowsPersist,
    Writer::RowsWal,
    Writer::Mapped,
    Writer::Stores,
    Writer::Editor,
    Writer::Git,
];
/// Most of these in one.
const OTHERS_MAX: u64 = 5;

impl Setting {
    pub(super) fn choose(
        number: u64,
        subject: Subject,
        lasts: Duration,
        only: &Only,
        random: &mut Random,
    ) -> Self {
        // Snapshots hold the room that a writer gives back.
        let may_be_full = subject.keeps_order() && only.all().all(Writer::bears_a_full_disk);
        let is_nearly_full = random.chance(25) && may_be_full;
        let journal_mebibytes = *random.pick(&[4, 8, 32]);
        let mut relaxed = if only.relaxed.is_empty() {
            choose_writers(is_nearly_full, random)
        } else {
            only.relaxed.clone()
        };
        if only.shortened && !relaxed.contains(&Writer::Shortened) {
            relaxed.push(Writer::Shortened);
        }
        let hot = relaxed.iter().copied().filter(|writer| writer.is_quick());
        let hot: Vec<Writer> = hot.collect();
        let hot = (!hot.is_empty() && random.chance(60)).then(|| *random.pick(&hot));
        let waits = |writer: &Writer| {
            writer.can_be_durable() && (!is_nearly_full || writer.bears_a_full_disk())
        };
        let durable: Vec<Writer> = OTHERS.into_iter().filter(waits).collect();
        let waits = subject.is_steered() && random.chance(35);
        let durable = waits.then(|| *random.pick(&durable));
        let kills_supervisors = subject.is_steered() && number % 3 == 2;
        Self {
            subject,
            lasts,
            mebibytes: match subject.filesystem() {
                Filesystem::Ext4 => 96 + journal_mebibytes,
                other => other.mebibytes_min(),
            },
            layout: if random.chance(50) {
                Layout::Usual
            } else {
                *random.pick(&Layout::ALL)
            },
            journal_mebibytes,
            age_max_ms: *random.pick(&[1000, 2000, 4000]),
            policy: *random.pick(&[
                "policy = \"interval\"\ninterval_ms = 300",
                "policy = \"tpl\"",
                "",
            ]),
            is_nearly_full,
            relaxed,
            hot,
            durable: only.durable.or(durable),
            durable_under_run: random.chance(50),
            mechanism: match *random.pick(&["both", "seccomp", "preload"]) {
                "preload" if kills_supervisors => "seccomp",
                mechanism => mechanism,
            },
            kills_supervisors,
            sync_every: *random.pick(&[Duration::from_millis(700), Duration::from_secs(5)]),
            fate: if subject.is_steered() {
                DaemonFate::choose(number, lasts, random)
            } else {
                DaemonFate::Lives
            },
        }
    }

    /// Whether the kernel's own fault with files that are shortened may show.
    pub(super) fn meets_kernel_fault(&self) -> bool {
        self.relaxed.contains(&Writer::Shortened)
    }

    /// The daemon's configuration.
    pub(super) fn config(&self) -> String {
        let (age_max_ms, policy) = (self.age_max_ms, self.policy);
        let history = if self.subject == Subject::Btrfs {
            "[history]\nkeep_count = 1000\ninterval_min_ms = 300\n"
        } else {
            ""
        };
        format!(
            "user_events = \"none\"\n[defaults]\nage_max_ms = {age_max_ms}\n{policy}\n{history}"
        )
    }

    /// How old what is missing after a cut may be.
    pub(super) fn age_limit(&self) -> Duration {
        let age_max = Duration::from_millis(self.age_max_ms);
        match self.subject {
            Subject::Steered => age_max,
            Subject::Btrfs if self.fate == DaemonFate::Lives => age_max,
            Subject::Btrfs => age_max + UNWRITTEN_MAX,
            Subject::Ordered => Duration::MAX,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            lasts,
            layout,
            journal_mebibytes,
            age_max_ms,
            policy,
            relaxed,
            fate,
            ..
        } = self;
        write!(
            f,
            "{subject:?}, {} s, {layout:?}, a journal of {journal_mebibytes} MiB, age_max_ms {age_max_ms}, \
             {policy:?}, writers {relaxed:?}, the daemon {fate:?}",
            lasts.as_secs()
        )?;
        if self.is_nearly_full {
            f.write_str(", nearly full")?;
        }
        if self.kills_supervisors {
            f.write_str(", supervisors are killed")?;
        }
        if let Some(hot) = self.hot {
            write!(f, ", {hot:?} without pauses")?;
        }
        if let Some(durable) = self.durable {
            write!(f, ", {durable:?} waits")?;
        }
        Ok(())
    }
}

fn choose_writers(is_nearly_full: bool, random: &mut Random) -> Vec<Writer> {
    // These two tell the moment most exactly.
    let mut writers = vec![Writer::Records, Writer::Names];
    if is_nearly_full {
        writers.push(Writer::Filler);
    }
    for _ in 0..2 + random.below(OTHERS_MAX - 1) {
        let writer = *random.pick(&OTHERS);
        let fits = !is_nearly_full || writer.bears_a_full_disk();
        if fits && !writers.contains(&writer) {
            writers.push(writer);
        }
    }
    writers
}

/// Up to `longest`.
pub(super) fn random_time(longest: Duration, random: &mut Random) -> Duration {
    Duration::from_micros(random.below(longest.as_micros().max(1) as u64))
}
