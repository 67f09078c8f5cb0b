//! What is compared: policies of MobiFS, and other filesystems.

use mobifs_engine::policy::transactioning::TransactioningName;
use mobifs_engine::{AppPolicy, PacingRules};

use super::device::FlushShape;
use super::native::{NativeFilesystem, NativeRules};
use super::page_cache::FlushRules;

/// A policy, or a filesystem.
#[derive(Clone, Debug)]
pub struct Contender {
    /// What reports call it.
    pub name: String,
    /// What it does.
    pub rules: ContenderRules,
    /// Whether bursts of requests are taken for a user, too, by the engine.
    pub sees_bursts: bool,
}

/// How something decides when to write.
#[derive(Clone, Copy, Debug)]
pub enum ContenderRules {
    /// The engine of MobiFS; all apps have this policy, and commit for the user's sake by
    /// these rules.
    Engine(AppPolicy, PacingRules),
    /// The model of a filesystem's page cache.
    PageCache(FlushRules),
    /// A filesystem of the kernel, steered by native mode.
    Native(NativeRules),
}

impl Contender {
    /// The names that [`Contender::filesystem`] knows.
    pub const FILESYSTEMS: [&'static str; 3] =
        [Self::EXT4, "ext4-nobarrier", "btrfs-flushoncommit"];
    /// The filesystem that everything is compared with.
    pub const EXT4: &'static str = "ext4";

    /// Trade-off point location as S0 evaluates it.
    pub const PUBLISHED: &'static str = "tpl-published";

    /// The policy of [`Contender::PUBLISHED`]: `tpl` with the published parameters and limit of
    /// staleness, and without a limit of age, which S0's evaluation does not have: its intervals
    /// are up to two minutes long.
    pub fn published_policy() -> AppPolicy {
        let mut policy = AppPolicy {
            age_max_ms: u64::MAX,
            ..AppPolicy::default()
        };
        policy.transactioning.name = TransactioningName::Tpl;
        policy
    }

    /// The published baseline: all dirty pages are flushed every 5 s, and `fsync` flushes
    /// its file (S0 §7).
    pub fn ext4() -> Self {
        Self::page_cache(Self::EXT4, 5, FlushShape::Journal)
    }

    /// A filesystem to compare with, by name; none if it is not known. btrfs commits every
    /// 30 s, its default.
    pub fn filesystem(name: &str) -> Option<Self> {
        match name {
            Self::EXT4 => Some(Self::ext4()),
            "ext4-nobarrier" => Some(Self::page_cache(name, 5, FlushShape::JournalWithoutBarrier)),
            "btrfs-flushoncommit" => Some(Self::page_cache(name, 30, FlushShape::CopyOnWrite)),
            _ => None,
        }
    }

    fn page_cache(name: &str, interval_seconds: u64, shape: FlushShape) -> Self {
        Self {
            name: name.to_owned(),
            sees_bursts: false,
            rules: ContenderRules::PageCache(FlushRules {
                interval_ns: interval_seconds * 1_000_000_000,
                shape,
            }),
        }
    }

    /// MobiFS under a policy.
    pub fn engine(name: String, policy: AppPolicy) -> Self {
        Self::paced_engine(name, policy, PacingRules::default())
    }

    /// MobiFS under a policy, with this predictor and scheduler.
    pub const fn paced_engine(name: String, policy: AppPolicy, pacing: PacingRules) -> Self {
        Self {
            name,
            sees_bursts: false,
            rules: ContenderRules::Engine(policy, pacing),
        }
    }

    /// Native mode on this filesystem.
    pub const fn native(
        name: String,
        filesystem: NativeFilesystem,
        policy: AppPolicy,
        pacing: PacingRules,
    ) -> Self {
        Self {
            name,
            sees_bursts: false,
            rules: ContenderRules::Native(NativeRules {
                filesystem,
                policy,
                pacing,
            }),
        }
    }
}
