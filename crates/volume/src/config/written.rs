//! The configuration as a text: which keys there are, of what kind their values are, and where in
//! the file each is.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Fault, line_of};
use super::history::HISTORY_KEYS;
use super::kind::Kind;
use super::policy_keys::PolicySettings;

/// A key and the kind of its value.
type Key = (&'static str, Kind);

/// The keys of the whole mount.
const MOUNT_KEYS: [Key; 24] = [
    ("memory_budget_bytes", Kind::Size),
    ("journal_bytes", Kind::Size),
    ("direct_write_max_bytes", Kind::Size),
    ("apply_idle_ms", Kind::Milliseconds),
    ("preallocate_database_bytes", Kind::Size),
    ("preallocate_large_bytes", Kind::Size),
    ("objects_max", Kind::Count),
    ("allow_durable", Kind::Flag),
    ("predictor", Kind::Text),
    ("predictor_short_intervals", Kind::Count),
    ("predictor_long_intervals", Kind::Count),
    ("predictor_short_ms", Kind::Milliseconds),
    ("predictor_long_ms", Kind::Milliseconds),
    ("predictor_timeout_factor", Kind::Count),
    ("touch_gap_us", Kind::Microseconds),
    ("scheduler", Kind::Text),
    ("user_events", Kind::Text),
    ("memory_pressure", Kind::Flag),
    ("screens", Kind::Flag),
    ("system_bus", Kind::Flag),
    ("battery_low_percent", Kind::Count),
    ("standby_age_max_ms", Kind::Milliseconds),
    ("status_group", Kind::Text),
    ("apps", Kind::Globs),
];

/// Every key that a configuration can have.
#[derive(Clone, Debug)]
pub struct ConfigKeys {
    /// Keys of the whole mount.
    pub mount: Vec<&'static str>,
    /// Keys of `[defaults]` and `[[app]]`.
    pub app: Vec<&'static str>,
    /// Keys of `[history]`.
    pub history: Vec<&'static str>,
}

/// Every key that a configuration can have.
pub fn config_keys() -> ConfigKeys {
    let names = |keys: &[Key]| keys.iter().map(|(name, _)| *name).collect();
    ConfigKeys {
        mount: names(&MOUNT_KEYS),
        app: names(&app_keys()),
        history: names(&HISTORY_KEYS),
    }
}

/// The keys of `[defaults]`, and beside `match` those of `[[app]]`.
fn app_keys() -> Vec<Key> {
    let keys = PolicySettings::KEYS.iter();
    keys.map(|key| (key.name, key.kind)).collect()
}

/// Where the keys are written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Lines by key, as faults name it; none where several are named the same.
    lines: HashMap<String, Option<usize>>,
    /// The keys by the places of their values.
    values: Vec<(Range<usize>, String)>,
    /// The tables `[[app]]` in their order.
    apps: Vec<WrittenApp>,
}

/// Where an `[[app]]` and its keys are.
#[derive(Debug)]
struct WrittenApp {
    line: usize,
    keys: HashMap<String, usize>,
}

impl Written {
    /// Finds the keys of a text that is TOML, and checks that each is known and has a value of its
    /// kind.
    pub(super) fn check(text: &str, document: &DeTable<'_>) -> (Self, Result<(), Fault>) {
        let mut written = Self::default();
        let checked = written.document(text, document);
        (written, checked)
    }

    /// The line of a key; where the key itself is not written, that of its table.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        let table = || key.rsplit_once('.').map(|(table, _)| table);
        match self.lines.get(key) {
            Some(line) => *line,
            None => self.lines.get(table()?).copied().flatten(),
        }
    }

    /// The key whose value is at this place.
    pub(super) fn key_at(&self, offset: usize) -> Option<&str> {
        let found = self
            .values
            .iter()
            .find(|(place, _)| place.contains(&offset));
        found.map(|(_, key)| key.as_str())
    }

    /// The line of a key of the `[[app]]` with this index, of which several may have the same glob;
    /// where the key itself is not written, that of the table.
    pub(super) fn line_in_app(&self, index: usize, key: &str) -> Option<usize> {
        let app = self.apps.get(index)?;
        let name = key.rsplit_once('.').map(|(_, name)| name);
        let line = name.and_then(|name| app.keys.get(name)).copied();
        Some(line.unwrap_or(app.line))
    }

    fn record(&mut self, key: &str, line: usize) {
        let lines = self.lines.entry(key.to_owned());
        lines.and_modify(|line| *line = None).or_insert(Some(line));
    }

    fn document(&mut self, text: &str, document: &DeTable<'_>) -> Result<(), Fault> {
        for (key, value) in in_order(document) {
            let line = line_of(text, key.span().start);
            let name = key.get_ref().as_ref();
            match (name, value.get_ref()) {
                ("defaults", DeValue::Table(table)) => {
                    self.record(name, line);
                    self.table(text, name, table, &app_keys(), false)?;
                }
                ("history", DeValue::Table(table)) => {
                    self.record(name, line);
                    self.table(text, name, table, &HISTORY_KEYS, false)?;
                }
                ("app", DeValue::Array(apps))
                    if apps.iter().all(|app| app.get_ref().is_table()) =>
                {
                    for app in apps.iter() {
                        let Some(table) = app.get_ref().as_table() else {
                            continue;
                        };
                        let line = line_of(text, app.span().start);
                        self.app(text, line, table)?;
                    }
                }
                ("defaults" | "history", _) => {
                    let message = format!("must be a table: write [{name}] on a line of its own");
                    return Err(Fault::at(line, name, message));
                }
                ("app", _) => {
                    let message = "must be a list of tables: write [[app]], with two brackets";
                    return Err(Fault::at(line, name, message));
                }
                _ => self.key(text, None, &MOUNT_KEYS, key, value)?,
            }
        }
        Ok(())
    }

    fn app(&mut self, text: &str, line: usize, table: &DeTable<'_>) -> Result<(), Fault> {
        let Some(glob) = table.get("match") else {
            let message = "needs a key `match`, which says for which apps it is";
            return Err(Fault::at(line, "app", message));
        };
        let Some(glob) = glob.get_ref().as_str() else {
            let line = line_of(text, glob.span().start);
            return Err(Fault::at(line, "app.match", "must be a glob in quotes"));
        };
        let place = format!("app \"{glob}\"");
        self.record(&place, line);
        let line_of_key = |key: &Spanned<Cow<'_, str>>| line_of(text, key.span().start);
        let keys = table.iter();
        let keys = keys.map(|(key, _)| (key.get_ref().to_string(), line_of_key(key)));
        self.apps.push(WrittenApp {
            line,
            keys: keys.collect(),
        });
        self.table(text, &place, table, &app_keys(), true)
    }

    fn table(
        &mut self,
        text: &str,
        place: &str,
        table: &DeTable<'_>,
        known: &[Key],
        is_app: bool,
    ) -> Result<(), Fault> {
        for (key, value) in in_order(table) {
            if is_app && key.get_ref() == "match" {
                let line = line_of(text, key.span().start);
                self.record(&format!("{place}.match"), line);
            } else {
                self.key(text, Some(place), known, key, value)?;
            }
        }
        Ok(())
    }

    fn key(
        &mut self,
        text: &str,
        place: Option<&str>,
        known: &[Key],
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Fault> {
        let name = key.get_ref();
        let line = line_of(text, key.span().start);
        let path = place.map_or_else(|| name.to_string(), |place| format!("{place}.{name}"));
        let Some((_, kind)) = known.iter().find(|(known, _)| known == name) else {
            let message = unknown_key(name, place, known);
            return Err(Fault::at(line, &path, message));
        };
        self.record(&path, line);
        self.values.push((value.span(), path.clone()));
        kind.check(value.get_ref()).map_err(|message| {
            let found = text.get(value.span()).unwrap_or_default();
            let message = match message.starts_with("must be") {
                true => format!("{message}, not {}", shortened(found)),
                false => message,
            };
            Fault::at(line, &path, message)
        })
    }
}

/// Says that there is no such key in this table (`None`: the whole file), and what was meant where
/// that can be known.
fn unknown_key(name: &str, place: Option<&str>, known: &[Key]) -> String {
    let has = |keys: &[Key]| keys.iter().any(|(key, _)| *key == name);
    let hint = match place {
        _ if name == "durable_write_max_bytes" => {
            "that is what the status calls what is in force; the key is `direct_write_max_bytes`, above the first \
             table"
        }
        None if matches!(name, "default" | "class" | "policy") || has(&app_keys()) => {
            "settings of all apps stand in the table [defaults], those of some in [[app]] with a \
             key `match`"
        }
        None if name == "apps" || name.starts_with("app") => {
            "settings of some apps stand in tables [[app]] with a key `match`"
        }
        Some(_) if has(&MOUNT_KEYS) => {
            "it is a key of the whole mount: write it above the first table"
        }
        _ if place != Some("history") && has(&HISTORY_KEYS) => {
            "it is a key of the history: write it below [history]"
        }
        _ => {
            let mut names: Vec<&str> = known.iter().map(|(known, _)| *known).collect();
            if place.is_none() {
                names.extend(["[defaults]", "[[app]]", "[history]"]);
            }
            return format!(
                "there is no key `{name}` here; there are {}",
                names.join(", ")
            );
        }
    };
    format!("there is no key `{name}` here: {hint}")
}

/// The keys of a table in the order of the file.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    keys
}

/// What is written, in one line.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(CHARACTERS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
