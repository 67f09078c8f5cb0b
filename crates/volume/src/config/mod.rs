//! The configuration file: TOML, every key known by name.

mod errors;
mod events;
mod file;
mod glob;
mod history;
mod kind;
mod lasting;
mod pacing;
mod policy_keys;
mod preallocation;
mod raw;
mod rules;
mod settings;
mod size;
mod written;

use std::path::Path;
use std::time::Duration;

use mobifs_engine::PacingRules;
use mobifs_store::Preallocation;
use serde::Deserialize as _;
use toml::de::{DeTable, Deserializer};

use crate::memory_budget;
pub use errors::{ConfigError, SettingError};
use errors::{Fault, in_one_line, line_of};
pub use events::EventSources;
pub use history::HistoryRules;
pub use kind::Kind;
pub use lasting::LastingSettings;
pub use policy_keys::{PolicyKey, PolicySettings};
use raw::RawConfig;
pub(crate) use rules::AppGlob;
pub use rules::Rules;
pub use settings::{PolicyChange, check_policy, class_name, parse_class, parse_policy};
pub use size::{Size, parse as parse_size};
use written::Written;
pub use written::{ConfigKeys, config_keys};

/// Smallest memory budget that leaves room to work.
const MEMORY_BUDGET_BYTES_MIN: u64 = 4 << 20;

/// Smallest journal.
pub(crate) const JOURNAL_BYTES_MIN: u64 = 64 << 10;
/// Largest journal, which is far beyond any use.
const JOURNAL_BYTES_MAX: u64 = 1 << 40;
/// The largest commits that can be set to be one durable write.
const DURABLE_WRITE_BYTES_MAX: u64 = 64 << 20;
/// One operation needs a few objects at the same time. With fewer, each that the store provides would evict another
/// one that the operation needs as well.
const OBJECTS_MIN: u64 = 64;

/// Everything that the configuration file of a mount can set.
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
    /// In which steps growing files get blocks on the disk.
    pub preallocation: Preallocation,
    /// Unused objects kept in memory.
    pub objects_max: usize,
    /// Whether an app may be (or become) durable. If not, `fsync` never leaves the
    /// kernel.
    pub allow_durable: bool,
    /// What decides when to commit: the predictor of the user's pauses and the scheduler for the
    /// device.
    pub pacing: PacingRules,
    /// What is listened to around the mount.
    pub events: EventSources,
    /// Snapshots that are kept.
    pub history: HistoryRules,
    /// The group whose members may read the status; none: only root and the user who mounts.
    pub status_group: Option<String>,
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
        Self::parse(&Self::read_text(path)?, path)
    }

    /// The text of a configuration file, which may be a pipe of a shell, too.
    ///
    /// # Errors
    /// It cannot be read, is something that has no content of its own, or is too large for a configuration.
    pub fn read_text(path: &Path) -> Result<String, ConfigError> {
        file::read(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a configuration from `text`; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(text, place(&error)),
            message: error.message().replace('\n', " "),
        })?;
        let (written, checked) = Written::check(text, document.get_ref());
        let config = checked.and_then(|()| {
            // The remaining case is a number that is too large for its type.
            let raw = RawConfig::deserialize(Deserializer::from(document)).map_err(|error| {
                let key = written.key_at(place(&error)).unwrap_or("the file");
                Fault::new(key, error.message().replace('\n', " "))
            })?;
            Self::from_raw(raw)
        });
        config.map_err(|fault| ConfigError::Value {
            path: path.to_owned(),
            line: fault.line.or_else(|| match fault.app {
                Some(index) => written.line_in_app(index, &fault.key),
                None => written.line(&fault.key),
            }),
            key: in_one_line(&fault.key),
            message: in_one_line(&fault.message),
        })
    }

    fn from_raw(raw: RawConfig) -> Result<Self, Fault> {
        let memory_budget_bytes = match raw.memory_budget_bytes {
            Some(size) if size.0 < MEMORY_BUDGET_BYTES_MIN => {
                return Err(Fault::new("memory_budget_bytes", "must be at least 4MiB"));
            }
            Some(size) => size.0,
            None => memory_budget::default_bytes(),
        };
        let machine_bytes = memory_budget::machine_bytes();
        if memory_budget_bytes > machine_bytes.max(MEMORY_BUDGET_BYTES_MIN) {
            let message =
                format!("must be at most {machine_bytes}, which is the memory of this machine");
            return Err(Fault::new("memory_budget_bytes", message));
        }
        if let Some(Size(bytes)) = raw.journal_bytes {
            if bytes < JOURNAL_BYTES_MIN {
                return Err(Fault::new("journal_bytes", "must be at least 64KiB"));
            }
            if bytes > JOURNAL_BYTES_MAX {
                return Err(Fault::new("journal_bytes", "must be at most 1TiB"));
            }
        }
        let durable_write = raw.direct_write_max_bytes.as_ref();
        if durable_write.is_some_and(|size| size.0 > DURABLE_WRITE_BYTES_MAX) {
            return Err(Fault::new(
                "direct_write_max_bytes",
                "must be at most 64MiB",
            ));
        }
        if raw.objects_max.is_some_and(|max| max < OBJECTS_MIN) {
            return Err(Fault::new("objects_max", "must be at least 64"));
        }
        let rules = raw.rules()?;
        let allow_durable = raw.allow_durable.unwrap_or(true);
        if !allow_durable && rules.needs_fsync() {
            let other = if rules.has_durable() {
                "class says \"durable\""
            } else {
                "policy says \"fsync\""
            };
            return Err(Fault::new(
                "allow_durable",
                format!("is false, but a {other}; remove one of the two"),
            ));
        }
        Ok(Self {
            memory_budget_bytes,
            journal_bytes: raw.journal_bytes.map(|size| size.0),
            direct_write_max_bytes: raw.direct_write_max_bytes.map(|size| size.0),
            apply_idle: Duration::from_millis(raw.apply_idle_ms.unwrap_or(30_000)),
            preallocation: preallocation::preallocation(&raw)?,
            objects_max: raw
                .objects_max
                .map_or(200_000, |max| usize::try_from(max).unwrap_or(usize::MAX)),
            allow_durable,
            pacing: pacing::pacing(&raw)?,
            events: events::events(&raw)?,
            history: raw.history.rules()?,
            status_group: raw.status_group()?,
            rules,
        })
    }
}

#[cfg(test)]
mod tests;
