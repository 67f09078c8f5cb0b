//! The configuration file: TOML, every key known by name.

mod pacing;
mod raw;
mod rules;
mod settings;
mod size;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_core::PacingRules;

use crate::{EventSources, memory_budget};
use raw::RawConfig;
pub(crate) use rules::AppGlob;
pub use rules::{PolicyChange, Rules};
pub(crate) use settings::check_policy;
pub use settings::{PolicySettings, SettingError, class_name, parse_class, parse_policy};
pub use size::{Size, parse as parse_size};

/// Smallest memory budget that leaves room to work.
const MEMORY_BUDGET_BYTES_MIN: u64 = 4 << 20;

/// Smallest journal.
pub(crate) const JOURNAL_BYTES_MIN: u64 = 64 << 10;
/// Largest journal, which is far beyond what pays.
const JOURNAL_BYTES_MAX: u64 = 1 << 40;

/// Why a configuration cannot be used: one sentence that says where and what.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is no valid TOML, or has an unknown key or a value of the wrong type.
    #[error("{path}, line {line}: {message}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line of the fault, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value cannot be used.
    #[error("{path}: {key}: {message}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with its value.
        message: String,
    },
}

/// Everything that a mount can be told by its configuration file.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory for what is not committed, in bytes.
    pub memory_budget_bytes: u64,
    /// Size of the journal; none: as it is, or the store's default for a new one.
    pub journal_bytes: Option<u64>,
    /// Commits up to this size are one durable write; none: measured at first mount.
    pub direct_write_max_bytes: Option<u64>,
    /// The journal is applied after this time without commits.
    pub apply_idle: Duration,
    /// Unused objects kept in memory.
    pub objects_max: usize,
    /// Whether an app may be (or become) durable. If not, `fsync` never leaves the
    /// kernel.
    pub allow_durable: bool,
    /// Who decides when to commit for the user's sake, and for the device's.
    pub pacing: PacingRules,
    /// What is listened to around the mount.
    pub events: EventSources,
    /// Apps and their limits.
    pub rules: Rules,
}

impl Config {
    /// What holds without a configuration file.
    ///
    /// # Errors
    /// Never in practice: an empty configuration is valid.
    pub fn defaults() -> Result<Self, ConfigError> {
        Self::parse("", Path::new("built-in configuration"))
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and fault.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Reads a configuration from `text`; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: RawConfig = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', " "),
        })?;
        Self::from_raw(raw).map_err(|(key, message)| ConfigError::Value {
            path: path.to_owned(),
            key,
            message,
        })
    }

    fn from_raw(raw: RawConfig) -> Result<Self, (String, String)> {
        let memory_budget_bytes = match raw.memory_budget_bytes {
            Some(size) if size.0 < MEMORY_BUDGET_BYTES_MIN => {
                return Err(("memory_budget_bytes".into(), "must be at least 4MiB".into()));
            }
            Some(size) => size.0,
            None => memory_budget::default_bytes(),
        };
        let machine_bytes = memory_budget::machine_bytes();
        if memory_budget_bytes > machine_bytes.max(MEMORY_BUDGET_BYTES_MIN) {
            let message =
                format!("must be at most {machine_bytes}, which is the memory of this machine");
            return Err(("memory_budget_bytes".into(), message));
        }
        if let Some(Size(bytes)) = raw.journal_bytes {
            if bytes < JOURNAL_BYTES_MIN {
                return Err(("journal_bytes".into(), "must be at least 64KiB".into()));
            }
            if bytes > JOURNAL_BYTES_MAX {
                return Err(("journal_bytes".into(), "must be at most 1TiB".into()));
            }
        }
        let rules = raw.rules()?;
        let allow_durable = raw.allow_durable.unwrap_or(true);
        if !allow_durable && rules.needs_fsync() {
            let other = if rules.has_durable() {
                "class says \"durable\""
            } else {
                "policy says \"fsync\""
            };
            return Err((
                "allow_durable".into(),
                format!("is false, but a {other}; remove one of the two"),
            ));
        }
        Ok(Self {
            memory_budget_bytes,
            journal_bytes: raw.journal_bytes.map(|size| size.0),
            direct_write_max_bytes: raw.direct_write_max_bytes.map(|size| size.0),
            apply_idle: Duration::from_millis(raw.apply_idle_ms.unwrap_or(30_000)),
            objects_max: raw.objects_max.unwrap_or(200_000),
            allow_durable,
            pacing: pacing::pacing(&raw)?,
            events: events(&raw)?,
            rules,
        })
    }
}

fn events(raw: &RawConfig) -> Result<EventSources, (String, String)> {
    let mut sources = EventSources::default();
    match raw.user_events.as_deref() {
        None | Some("auto") => {}
        Some("bursts") => sources.bursts = true,
        Some("none") => sources.input = None,
        Some(other) => {
            let message = format!("\"{other}\" is none of \"auto\", \"bursts\" and \"none\"");
            return Err(("user_events".into(), message));
        }
    }
    sources.system_bus = raw.system_bus.unwrap_or(true);
    if raw.screens == Some(false) {
        sources.connectors = None;
    }
    if raw.memory_pressure == Some(false) {
        sources.memory_pressure = None;
    }
    if let Some(percent) = raw.battery_low_percent {
        if percent > 100 {
            return Err(("battery_low_percent".into(), "must be at most 100".into()));
        }
        sources.battery_low_percent = percent;
    }
    Ok(sources)
}

/// Line (from 1) of the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|&byte| byte == b'\n')
        .count()
        + 1
}

#[cfg(test)]
mod tests {
    use mobifs_core::policy::prediction::PredictorName;
    use mobifs_core::policy::schedule::SchedulerName;
    use mobifs_core::policy::transactioning::TransactioningName;
    use mobifs_core::{AppPolicy, AppRules as _, Class};

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("/etc/mobifs.toml"))
    }

    fn message(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_key_is_understood() {
        let config = parse(
            r#"
            memory_budget_bytes = "64MiB"
            journal_bytes = 33554432
            direct_write_max_bytes = "128KiB"
            apply_idle_ms = 1000
            objects_max = 5000
            allow_durable = true
            predictor = "last-min"
            scheduler = "fifo"
            user_events = "none"
            memory_pressure = false
            screens = false
            system_bus = false
            battery_low_percent = 7
            standby_age_max_ms = 600000
            apps = ["*", "home/*"]
            [defaults]
            class = "relaxed"
            age_max_ms = 10000
            staleness_min_bytes = "256KiB"
            staleness_max_bytes = "10MiB"
            slope_min_micropercent = -30000
            [[app]]
            match = "bank-*"
            class = "durable"
            [[app]]
            match = "home/*"
            age_max_ms = 500
            staleness_min_bytes = 0
            staleness_max_bytes = "1MiB"
            slope_min_micropercent = 0
            policy = "interval"
            window_points = 64
            interval_ms = 400
            quiet_ms = 70
            quiet_age_min_ms = 0
            staleness_bytes = "64KiB"
            flush_interval_ms = 300
            "#,
        )
        .unwrap();
        assert_eq!(config.memory_budget_bytes, 64 << 20);
        assert_eq!(config.journal_bytes, Some(32 << 20));
        assert_eq!(config.direct_write_max_bytes, Some(128 << 10));
        assert_eq!(config.apply_idle, Duration::from_secs(1));
        assert_eq!(config.objects_max, 5000);
        let pacing = config.pacing;
        assert_eq!(pacing.prediction.predictor, PredictorName::LastMin);
        assert_eq!(pacing.scheduler, SchedulerName::Fifo);
        let events = &config.events;
        assert_eq!((&events.input, &events.memory_pressure), (&None, &None));
        assert_eq!(events.connectors, None);
        assert!(!events.system_bus && !events.bursts);
        assert_eq!(events.battery_low_percent, 7);
        assert_eq!(pacing.standby_age_max_ms, 600_000);
        assert!(config.rules.is_app(b"home/ann"));
        let bank = config.rules.policy(b"bank-a");
        assert_eq!((bank.class, bank.age_max_ms), (Class::Durable, 10_000));
        assert_eq!(bank.staleness_max_pages, 2_560);
        let rule = bank.transactioning;
        assert_eq!(rule.name, TransactioningName::Interval);
        assert_eq!(rule.tpl.staleness_min_pages, 64);
        assert_eq!(rule.tpl.slope_min_micropercent, -30_000);
        assert_eq!(rule.tpl.window_points, 16);
        let home = config.rules.policy(b"home/ann");
        assert_eq!((home.class, home.age_max_ms), (Class::Relaxed, 500));
        assert_eq!(home.staleness_max_pages, 256);
        let rule = home.transactioning;
        assert_eq!(rule.name, TransactioningName::Interval);
        assert_eq!(rule.tpl.window_points, 64);
        assert_eq!(rule.interval.interval_ms, 400);
        assert_eq!((rule.quiet.quiet_ms, rule.quiet.quiet_age_min_ms), (70, 0));
        assert_eq!(rule.staleness.staleness_pages, 16);
        assert_eq!(rule.fsync.flush_interval_ms, 300);
        assert_eq!(config.rules.due_age_ms_min(), 400);
        assert!(config.rules.needs_fsync());
    }

    #[test]
    fn an_empty_configuration_has_the_published_defaults() {
        let config = Config::defaults().unwrap();
        assert_eq!(config.rules.policy(b"any"), AppPolicy::default());
        assert!(config.rules.is_app(b"any") && !config.rules.is_app(b"any/below"));
        assert!(config.memory_budget_bytes <= 2 << 30);
        assert!(!config.rules.has_durable() && config.allow_durable);
        let standby_age_max_ms = config.pacing.standby_age_max_ms;
        assert_eq!(standby_age_max_ms, 0, "`age_max_ms` is a promise");
    }

    #[test]
    fn a_tighter_general_limit_needs_no_other_change() {
        for text in [
            "[defaults]\npolicy = \"interval\"\nage_max_ms = 10",
            "[defaults]\npolicy = \"interval\"\ninterval_ms = 900\n[[app]]\nmatch = \"a\"\nage_max_ms = 10",
            "[defaults]\nquiet_ms = 90000",
        ] {
            parse(text).unwrap();
        }
    }

    #[test]
    fn users_are_seen_in_bursts_where_that_is_asked_for() {
        let seen = |text: &str| {
            let events = parse(text).unwrap().events;
            (events.input.is_some(), events.bursts)
        };
        assert_eq!(seen(""), (true, false));
        assert_eq!(seen("user_events = \"auto\""), (true, false));
        assert_eq!(seen("user_events = \"bursts\""), (true, true));
        assert_eq!(seen("user_events = \"none\""), (false, false));
    }

    #[test]
    fn unknown_keys_are_named_with_their_line() {
        let text = message("apps = [\"*\"]\n\nmemory_budget = 5\n");
        assert!(text.starts_with("/etc/mobifs.toml, line 3: "), "{text}");
        assert!(text.contains("unknown field `memory_budget`"), "{text}");
        let text = message("[defaults]\nage_max = 5\n");
        assert!(
            text.contains("line 2") && text.contains("`age_max`"),
            "{text}"
        );
        let text = message("[[app]]\nmatch = \"x\"\nclas = \"durable\"\n");
        assert!(text.contains("line 3") && text.contains("`clas`"), "{text}");
    }

    #[test]
    fn wrong_values_are_explained() {
        for (text, needles) in [
            (
                "memory_budget_bytes = \"1KiB\"",
                &["memory_budget_bytes", "at least"][..],
            ),
            ("journal_bytes = \"lots\"", &["line 1", "not a size"]),
            ("journal_bytes = -1", &["negative"]),
            ("journal_bytes = 4096", &["journal_bytes", "at least 64KiB"]),
            // It said that a journal takes at least 64 KiB.
            (
                "journal_bytes = \"18446744073709551615\"",
                &["journal_bytes", "at most 1TiB"],
            ),
            (
                "memory_budget_bytes = \"16TiB\"",
                &["memory_budget_bytes", "at most", "memory of this machine"],
            ),
            (
                "[defaults]\npolicy = \"interval\"\ninterval_ms = 30001",
                &["defaults.interval_ms", "larger than age_max_ms"],
            ),
            (
                "[[app]]\nmatch = \"a\"\npolicy = \"quiet\"\nquiet_ms = 200\nage_max_ms = 100",
                &["app \"a\".quiet_ms", "larger than age_max_ms"],
            ),
            (
                "[defaults]\npolicy = \"staleness\"\nstaleness_bytes = \"1GiB\"",
                &[
                    "defaults.staleness_bytes",
                    "larger than staleness_max_bytes",
                ],
            ),
            (
                "[defaults]\npolicy = \"fsync\"\nflush_interval_ms = 40000",
                &["defaults.flush_interval_ms", "larger than age_max_ms"],
            ),
            ("apps = []", &["apps", "at least one"]),
            ("apps = [\"/srv\"]", &["apps", "outer slashes"]),
            (
                "[defaults]\nclass = \"fast\"",
                &["defaults.class", "\"fast\"", "durable"],
            ),
            ("[defaults]\nage_max_ms = 0", &["defaults.age_max_ms"]),
            (
                "[defaults]\nstaleness_max_bytes = \"4KiB\"",
                &["staleness_min_bytes", "larger"],
            ),
            (
                "[defaults]\npolicy = \"often\"",
                &[
                    "defaults.policy",
                    "\"often\" is not a policy",
                    "\"tpl\", \"interval\", \"quiet\", \"staleness\", \"fsync\"",
                ],
            ),
            (
                "[[app]]\nmatch = \"a\"\npolicy = \"ideal\"",
                &["app \"a\".policy", "simulations only", "\"tpl\""],
            ),
            (
                "[defaults]\nwindow_points = 1",
                &["defaults.window_points", "from 2 to 1024"],
            ),
            ("[defaults]\ninterval_ms = 0", &["defaults.interval_ms"]),
            ("[defaults]\nquiet_ms = 0", &["defaults.quiet_ms"]),
            (
                "allow_durable = false\n[defaults]\npolicy = \"fsync\"",
                &["allow_durable", "policy says \"fsync\""],
            ),
            (
                "[[app]]\nclass = \"durable\"",
                &["line 1", "missing field `match`"],
            ),
            (
                "allow_durable = false\n[defaults]\nclass = \"durable\"",
                &["allow_durable"],
            ),
            (
                "predictor = \"oracle\"",
                &[
                    "predictor",
                    "\"oracle\" is not a predictor",
                    "\"state-machine\", \"last-min\", \"last-average\"",
                ],
            ),
            (
                "scheduler = \"lifo\"",
                &["scheduler", "\"queues\", \"fifo\""],
            ),
            (
                "user_events = \"all\"",
                &["user_events", "\"auto\", \"bursts\" and \"none\""],
            ),
            ("system_bus = \"no\"", &["line 1", "expected a boolean"]),
            (
                "battery_low_percent = 101",
                &["battery_low_percent", "at most 100"],
            ),
            (
                "standby_age_max_ms = 0",
                &["standby_age_max_ms", "more than 0"],
            ),
            ("apps = [", &["line 1"]),
        ] {
            let got = message(text);
            for needle in needles {
                assert!(
                    got.contains(needle),
                    "{text:?} gave {got:?}, without {needle:?}"
                );
            }
            assert!(!got.contains('\n'), "one sentence: {got:?}");
        }
        let absent = Config::load(Path::new("/nonexistent/mobifs.toml")).unwrap_err();
        assert!(
            absent
                .to_string()
                .contains("cannot read the configuration /nonexistent")
        );
    }
}
