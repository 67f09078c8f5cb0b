//! The history: snapshots of a btrfs that are kept.

use std::time::Duration;

use serde::Deserialize;

use super::errors::Fault;
use super::kind::Kind;

/// More than this many snapshots make a btrfs slow.
const KEEP_COUNT_MAX: u64 = 1_000;
/// Programs stand still no longer than this.
const FREEZE_MAX_MS: u64 = 60_000;
/// A filesystem that has to be emptier than this is not meant.
const FREE_MAX_PERCENT: u64 = 90;

/// The keys of `[history]`.
pub(super) const HISTORY_KEYS: [(&str, Kind); 5] = [
    ("keep_count", Kind::Count),
    ("keep_age_max_ms", Kind::Milliseconds),
    ("interval_min_ms", Kind::Milliseconds),
    ("freeze_max_ms", Kind::Milliseconds),
    ("free_min_percent", Kind::Count),
];

/// `[history]` as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHistory {
    keep_count: Option<u64>,
    keep_age_max_ms: Option<u64>,
    interval_min_ms: Option<u64>,
    freeze_max_ms: Option<u64>,
    free_min_percent: Option<u64>,
}

/// Which snapshots are taken and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRules {
    /// No more than so many are kept; 0: none is taken.
    pub keep_count: u64,
    /// None is kept that is older; none: of any age.
    pub keep_age_max: Option<Duration>,
    /// At least so long between two.
    pub interval_min: Duration,
    /// Apps stand still no longer than this while one is taken; 0: they never do.
    pub freeze_max: Duration,
    /// The oldest are removed while less than this share of the filesystem is free.
    pub free_min_percent: u8,
}

impl HistoryRules {
    /// Whether snapshots are taken.
    pub const fn is_on(&self) -> bool {
        self.keep_count > 0
    }
}

impl RawHistory {
    pub(super) fn rules(&self) -> Result<HistoryRules, Fault> {
        let keep_count = at_most("keep_count", self.keep_count, KEEP_COUNT_MAX, 0)?;
        if self.keep_age_max_ms == Some(0) {
            let message = "must be more than 0; keep_count = 0 takes none";
            return Err(Fault::new("history.keep_age_max_ms", message));
        }
        let freeze_max_ms = at_most("freeze_max_ms", self.freeze_max_ms, FREEZE_MAX_MS, 1_000)?;
        let percent = at_most(
            "free_min_percent",
            self.free_min_percent,
            FREE_MAX_PERCENT,
            5,
        )?;
        Ok(HistoryRules {
            keep_count,
            keep_age_max: self.keep_age_max_ms.map(Duration::from_millis),
            interval_min: Duration::from_millis(self.interval_min_ms.unwrap_or(60_000)),
            freeze_max: Duration::from_millis(freeze_max_ms),
            free_min_percent: u8::try_from(percent).unwrap_or(u8::MAX),
        })
    }
}

fn at_most(key: &str, given: Option<u64>, max: u64, default: u64) -> Result<u64, Fault> {
    match given {
        Some(value) if value > max => Err(Fault::new(
            format!("history.{key}"),
            format!("must be at most {max}"),
        )),
        given => Ok(given.unwrap_or(default)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<HistoryRules, String> {
        let config = Config::parse(text, Path::new("/etc/mobifs.toml"));
        config
            .map(|config| config.history)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn there_is_no_history_unless_it_is_asked_for() {
        assert!(!parse("").unwrap().is_on());
        let rules = parse(
            "[history]\nkeep_count = 24\nkeep_age_max_ms = 86400000\ninterval_min_ms = 1000\n\
             freeze_max_ms = 0\nfree_min_percent = 10\n",
        )
        .unwrap();
        let wanted = HistoryRules {
            keep_count: 24,
            keep_age_max: Some(Duration::from_secs(86_400)),
            interval_min: Duration::from_secs(1),
            freeze_max: Duration::ZERO,
            free_min_percent: 10,
        };
        assert_eq!(rules, wanted);
        assert!(rules.is_on());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, said) in [
            (
                "keep_count = 1001",
                "line 2: history.keep_count: must be at most 1000",
            ),
            (
                "keep_age_max_ms = 0",
                "line 2: history.keep_age_max_ms: must be more than 0",
            ),
            (
                "freeze_max_ms = 60001",
                "line 2: history.freeze_max_ms: must be at most 60000",
            ),
            (
                "free_min_percent = 91",
                "line 2: history.free_min_percent: must be at most 90",
            ),
            (
                "keep_count = -1",
                "line 2: history.keep_count: must not be negative",
            ),
            (
                "keep = 1",
                "line 2: history.keep: there is no key `keep` here; there are keep_count",
            ),
        ] {
            let message = parse(&format!("[history]\n{text}\n")).unwrap_err();
            assert!(message.contains(said), "{message}");
        }
        let message = parse("history = 3").unwrap_err();
        assert!(
            message.contains("write [history] on a line of its own"),
            "{message}"
        );
    }
}
