//! What is compared: ways to make a transaction durable.

use serde::Serialize;

/// A filesystem with its options, or MobiFS over one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arm {
    /// As tables name it.
    pub name: String,
    /// Options of `mkfs.ext4`.
    pub mkfs: Vec<String>,
    /// Mount options of the ext4.
    pub mount: String,
    /// More of the configuration of a durable mount of MobiFS; none: the ext4 itself.
    pub mobifs: Option<String>,
    /// Commits are durable writes (FUA) where the device has them.
    pub has_durable_writes: bool,
    /// Why it cannot be measured here.
    pub unavailable: Option<String>,
}

impl Arm {
    fn ext4(name: &str, mkfs: &[&str], mount: &str) -> Self {
        Self {
            name: name.to_owned(),
            mkfs: mkfs.iter().map(|&word| word.to_owned()).collect(),
            mount: mount.to_owned(),
            mobifs: None,
            has_durable_writes: true,
            unavailable: None,
        }
    }

    fn mobifs(name: &str, config: &str) -> Self {
        Self {
            mobifs: Some(config.to_owned()),
            ..Self::ext4(name, &[], "")
        }
    }

    fn missing(name: &str, why: &str) -> Self {
        Self {
            unavailable: Some(why.to_owned()),
            ..Self::mobifs(name, "")
        }
    }

    /// The baseline of S2: ext4 as it is mounted by default.
    #[must_use]
    pub fn baseline() -> Self {
        Self::ext4(BASELINE, &[], "data=ordered")
    }

    /// Durable MobiFS as it is configured by default.
    #[must_use]
    pub fn mobifs_default() -> Self {
        Self::mobifs("MobiFS", "")
    }

    /// With a journal of the ext4 of this size.
    #[must_use]
    pub fn with_journal_mib(self, mebibytes: u32) -> Self {
        let of_mobifs = format!("journal_bytes = \"{mebibytes}MiB\"");
        Self {
            name: format!("{}, {mebibytes} MiB", self.name),
            mkfs: match self.mobifs {
                None => vec!["-J".to_owned(), format!("size={mebibytes}")],
                Some(_) => self.mkfs,
            },
            mobifs: self.mobifs.map(|config| format!("{config}\n{of_mobifs}")),
            ..self
        }
    }

    /// All arms of the comparison of S2 and S3.
    #[must_use]
    pub fn all() -> Vec<Self> {
        // A limit above the largest transaction, and one below the smallest.
        let direct = "direct_write_max_bytes = \"64MiB\"";
        let flush = "direct_write_max_bytes = 0";
        vec![
            Self::ext4(NO_JOURNAL, &["-O", "^has_journal"], ""),
            Self::baseline(),
            Self::ext4("ext4 fast_commit", &["-O", "fast_commit"], ""),
            Self::ext4("ext4 data=journal", &[], "data=journal"),
            Self::mobifs("MobiFS bytes, direct", direct),
            Self {
                has_durable_writes: false,
                ..Self::mobifs("MobiFS bytes, flush", flush)
            },
            Self::missing(
                "MobiFS pages",
                "MobiFS has no switch that journals whole pages: it does so only where the earlier content of a page \
                 is not in memory, and `characterise` counts these",
            ),
            Self::missing(
                "MobiFS packed",
                "Linux has no request for packed commands, and the served device takes them from its library only",
            ),
        ]
    }
}

/// The name of the baseline.
pub const BASELINE: &str = "ext4 ordered";
/// The name of the arm without a journal.
pub const NO_JOURNAL: &str = "ext4 no journal";
