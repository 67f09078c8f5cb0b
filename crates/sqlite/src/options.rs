//! What a database's URI says.

use std::path::{Path, PathBuf};

use mobifs_volume::{
    Class, Config, ConfigError, PolicyChange, PolicySettings, class_name, parse_size,
};
use serde::Serialize;

use crate::database::arena_file;
use crate::failure::Failure;

/// Memory for what is not committed, unless the URI says otherwise.
const MEMORY_BUDGET: &str = "64MiB";
/// Size of a new journal, unless the URI says otherwise.
const JOURNAL: &str = "8MiB";

/// What a database's URI says, with defaults for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// What it says about the app that the database is.
    pub(crate) policy: PolicySettings,
    /// Memory for what is not committed.
    pub(crate) memory_budget: String,
    /// Size of a journal that is made.
    pub(crate) journal: String,
    /// Up to this size a commit is one durable write; none: it is measured.
    pub(crate) direct_write_max: Option<String>,
    /// Committed changes are applied after this time without commits.
    pub(crate) apply_idle_ms: Option<u64>,
    /// In steps of so many bytes the database grows on the disk; none: as the default has it.
    pub(crate) preallocate: Option<String>,
    /// Where the arena is.
    pub(crate) arena: PathBuf,
}

/// The parameters as a mount's configuration.
#[derive(Serialize)]
struct ConfigText<'a> {
    memory_budget_bytes: &'a str,
    journal_bytes: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct_write_max_bytes: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apply_idle_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preallocate_database_bytes: Option<&'a str>,
    defaults: &'a PolicySettings,
}

impl Options {
    /// Reads them; `parameter` gives the value of one.
    ///
    /// # Errors
    /// [`Failure::Parameter`].
    pub(crate) fn read(parameter: &dyn Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        // What holds for one app of a mount holds for the database.
        let mut policy = PolicySettings::default();
        for key in PolicySettings::KEYS {
            let Some(value) = parameter(key.name) else {
                continue;
            };
            let set = policy.set(key, &value);
            set.map_err(|error| fault(key.name, &format!("is wrong: {}", error.message)))?;
            if toml::Value::try_from(&policy).is_err() {
                return Err(fault(
                    key.name,
                    &format!("is \"{value}\", which is too large"),
                ));
            }
        }
        change_of(&policy)?;
        let sized = |name: &str| parameter(name).map(|value| size(name, &value)).transpose();
        let apply_idle = parameter("apply_idle_ms");
        let apply_idle_ms = apply_idle.map(|value| number("apply_idle_ms", &value));
        let arena = parameter("arena").unwrap_or_else(|| arena_file::DEFAULT_DIRECTORY.to_owned());
        Ok(Self {
            policy,
            memory_budget: sized("memory_budget_bytes")?.unwrap_or_else(|| MEMORY_BUDGET.into()),
            journal: sized("journal_bytes")?.unwrap_or_else(|| JOURNAL.into()),
            direct_write_max: sized("direct_write_max_bytes")?,
            apply_idle_ms: apply_idle_ms.transpose()?.map(i64::unsigned_abs),
            preallocate: sized("preallocate_database_bytes")?,
            arena: arena.into(),
        })
    }

    /// What they say about the database as an app.
    ///
    /// # Errors
    /// [`Failure::Parameter`].
    pub(crate) fn change(&self) -> Result<PolicyChange, Failure> {
        change_of(&self.policy)
    }

    /// Whether they make the database durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.policy.class.as_deref() == Some(class_name(Class::Durable))
    }

    /// What a volume is made with; no file of the store's own gets larger than the limit.
    ///
    /// # Errors
    /// [`Failure::Config`].
    pub(crate) fn config(&self, file_bytes_max: Option<u64>) -> Result<Config, Failure> {
        let within = |size: &str, limit: Option<u64>| match (parse_size(size), limit) {
            (Ok(wanted), Some(limit)) if wanted > limit => format!("{limit}"),
            _ => size.to_owned(),
        };
        // What a transaction changed is in one file at most, with what is said about it.
        let budget_max = file_bytes_max.map(|bytes| bytes / 2);
        let text = ConfigText {
            memory_budget_bytes: &within(&self.memory_budget, budget_max),
            journal_bytes: &within(&self.journal, file_bytes_max),
            direct_write_max_bytes: self.direct_write_max.as_deref(),
            apply_idle_ms: self.apply_idle_ms,
            preallocate_database_bytes: self.preallocate.as_deref(),
            defaults: &self.policy,
        };
        let text = toml::to_string(&text).map_err(|error| fault("class", &error.to_string()))?;
        let config = Config::parse(&text, Path::new("the database's URI"));
        Ok(config.map_err(ConfigError::of_parameters)?)
    }

    /// The parameter in which these differ from those that the database was opened with, if
    /// it cannot be changed while it is open.
    pub(crate) fn contradicts(&self, opened: &Self) -> Option<&'static str> {
        [
            (
                "memory_budget_bytes",
                self.memory_budget != opened.memory_budget,
            ),
            ("journal_bytes", self.journal != opened.journal),
            (
                "direct_write_max_bytes",
                self.direct_write_max != opened.direct_write_max,
            ),
            ("apply_idle_ms", self.apply_idle_ms != opened.apply_idle_ms),
            (
                "preallocate_database_bytes",
                self.preallocate != opened.preallocate,
            ),
            ("arena", self.arena != opened.arena),
        ]
        .into_iter()
        .find_map(|(name, differs)| differs.then_some(name))
    }
}

fn change_of(policy: &PolicySettings) -> Result<PolicyChange, Failure> {
    let change = policy.change();
    change.map_err(|error| fault(error.key, &error.message))
}

fn number(name: &str, value: &str) -> Result<i64, Failure> {
    let number = value.parse().ok().filter(|number: &i64| *number >= 0);
    number.ok_or_else(|| fault(name, &format!("is \"{value}\", which is no whole number")))
}

/// A size as it is written, checked.
fn size(name: &str, value: &str) -> Result<String, Failure> {
    match parse_size(value) {
        Ok(_) => Ok(value.to_owned()),
        Err(error) => Err(fault(name, &format!("is wrong: {error}"))),
    }
}

fn fault(name: &str, message: &str) -> Failure {
    Failure::Parameter {
        name: name.to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mobifs_volume::Kind;

    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Options, Failure> {
        Options::read(&|name| {
            let found = parameters.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_uri_says_what_a_configuration_does() {
        let options = read(&[
            ("class", "durable"),
            ("age_max_ms", "2500"),
            ("staleness_max_bytes", "2MiB"),
            ("memory_budget_bytes", "16MiB"),
        ]);
        let options = options.unwrap();
        let change = options.change().unwrap();
        let settings = change.settings();
        assert_eq!(change.class(), Some(Class::Durable));
        assert_eq!(settings.age_max_ms, Some(2500));
        let staleness_max_bytes = settings.staleness_max_bytes.map(|size| size.0);
        assert_eq!(staleness_max_bytes, Some(2 << 20));
        assert_eq!(options.config(None).unwrap().memory_budget_bytes, 16 << 20);
    }

    /// `slope_min_micropercent` was passed over.
    #[test]
    fn a_uri_has_every_key_of_an_app() {
        for key in PolicySettings::KEYS {
            let value = match (key.name, key.kind) {
                ("class", _) => "durable",
                ("policy", _) => "tpl",
                (_, Kind::Size) => "3MiB",
                (_, Kind::Slope) => "-7",
                _ => "17",
            };
            let options = read(&[(key.name, value)]).unwrap();
            assert_ne!(options.policy, PolicySettings::default(), "{}", key.name);
        }
    }

    /// The package refuses names that it does not know.
    #[test]
    fn the_python_package_knows_every_parameter() {
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../bindings/python/src/mobifs_sqlite/_uri.py"
        );
        let source = std::fs::read_to_string(source).unwrap();
        let listed = source.split("\"\"\"").nth(3).unwrap().split_whitespace();
        let mut listed: Vec<&str> = listed.collect();
        listed.sort_unstable();
        let own = [
            "memory_budget_bytes",
            "journal_bytes",
            "direct_write_max_bytes",
            "apply_idle_ms",
            "preallocate_database_bytes",
            "arena",
        ];
        let keys = PolicySettings::KEYS.iter().map(|key| key.name);
        let mut known: Vec<&str> = keys.chain(own).collect();
        known.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn without_parameters_there_are_defaults() {
        let config = read(&[]).unwrap().config(None).unwrap();
        assert_eq!(config.memory_budget_bytes, 64 << 20);
        assert_eq!(config.journal_bytes, Some(8 << 20));
    }

    #[test]
    fn files_of_the_store_are_within_the_limit_of_the_process() {
        let options = read(&[("journal_bytes", "32MiB")]).unwrap();
        let config = options.config(Some(9 << 20)).unwrap();
        assert_eq!(config.journal_bytes, Some(9 << 20));
        assert_eq!(config.memory_budget_bytes, 9 << 19);
        let config = options.config(Some(1 << 40)).unwrap();
        assert_eq!(config.journal_bytes, Some(32 << 20));
        assert_eq!(config.memory_budget_bytes, 64 << 20);
    }

    #[test]
    fn nonsense_is_refused_by_the_parameters_name() {
        for (name, value) in [
            ("class", "sometimes"),
            ("age_max_ms", "soon"),
            ("age_max_ms", "-1"),
            ("age_max_ms", "0"),
            ("policy", "ideal"),
            ("staleness_max_bytes", "many"),
            ("journal_bytes", "4096"),
            ("memory_budget_bytes", "1"),
        ] {
            let failure = read(&[(name, value)]).and_then(|options| options.config(None));
            let message = failure.unwrap_err().to_string();
            assert!(message.contains(name), "{name}={value}: {message}");
        }
    }

    /// The message named a line, of a text that no user has written.
    #[test]
    fn what_is_wrong_in_a_uri_is_in_no_line() {
        let message = |parameters: &[(&str, &str)]| {
            let config = read(parameters).unwrap().config(None);
            config.unwrap_err().to_string()
        };
        let said = message(&[("memory_budget_bytes", "1")]);
        let expected = "the database's URI: memory_budget_bytes: must be at least 4MiB";
        assert_eq!(said, expected);
        // What contradicts it is an app's default.
        let said = message(&[("policy", "tpl"), ("staleness_max_bytes", "4KiB")]);
        let expected = "the database's URI: staleness_min_bytes: ";
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn sizes_cannot_change_while_a_database_is_open() {
        let one = read(&[]).unwrap();
        let other = read(&[("journal_bytes", "1MiB"), ("class", "durable")]).unwrap();
        assert_eq!(other.contradicts(&one), Some("journal_bytes"));
        let other = read(&[("class", "durable")]).unwrap();
        assert_eq!(other.contradicts(&one), None);
    }
}
