//! The configuration as it is written in the file.

use std::fmt;

use mobifs_engine::AppPolicy;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::errors::Fault;
use super::history::RawHistory;
use super::policy_keys::PolicySettings;
use super::rules::{AppGlob, Rules};
use super::settings::{PolicyChange, check_policy};
use super::size::Size;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) memory_budget_bytes: Option<Size>,
    pub(super) journal_bytes: Option<Size>,
    pub(super) direct_write_max_bytes: Option<Size>,
    pub(super) apply_idle_ms: Option<u64>,
    pub(super) preallocate_database_bytes: Option<Size>,
    pub(super) preallocate_large_bytes: Option<Size>,
    pub(super) objects_max: Option<u64>,
    pub(super) allow_durable: Option<bool>,
    pub(super) predictor: Option<String>,
    pub(super) predictor_short_intervals: Option<u64>,
    pub(super) predictor_long_intervals: Option<u64>,
    pub(super) predictor_short_ms: Option<u64>,
    pub(super) predictor_long_ms: Option<u64>,
    pub(super) predictor_timeout_factor: Option<u64>,
    pub(super) touch_gap_us: Option<u64>,
    pub(super) scheduler: Option<String>,
    pub(super) user_events: Option<String>,
    pub(super) memory_pressure: Option<bool>,
    pub(super) screens: Option<bool>,
    pub(super) system_bus: Option<bool>,
    pub(super) battery_low_percent: Option<u64>,
    pub(super) standby_age_max_ms: Option<u64>,
    status_group: Option<String>,
    apps: Option<Vec<String>>,
    #[serde(default)]
    defaults: PolicySettings,
    #[serde(default)]
    app: Vec<RawApp>,
    #[serde(default)]
    pub(super) history: RawHistory,
}

/// The settings of the apps that a glob matches.
#[derive(Debug)]
struct RawApp {
    glob: String,
    settings: PolicySettings,
}

/// By hand, because what serde can flatten lets unknown keys pass and forgets where values are.
impl<'de> Deserialize<'de> for RawApp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AppVisitor;

        impl<'de> Visitor<'de> for AppVisitor {
            type Value = RawApp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawApp, A::Error> {
                let mut glob = None;
                let rest = WithoutMatch {
                    map,
                    glob: &mut glob,
                };
                let settings = PolicySettings::deserialize(MapAccessDeserializer::new(rest))?;
                let glob = glob.ok_or_else(|| de::Error::missing_field(MATCH))?;
                Ok(RawApp { glob, settings })
            }
        }

        deserializer.deserialize_map(AppVisitor)
    }
}

/// The key of an `[[app]]` that is no setting.
const MATCH: &str = "match";

/// A table without that key, whose value is put aside.
struct WithoutMatch<'a, A> {
    map: A,
    glob: &'a mut Option<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutMatch<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if key != MATCH {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.glob = Some(self.map.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The change that `settings` make, applied to the `inherited` policy and checked; errors name
/// the place of the key.
fn checked(
    place: &str,
    settings: &PolicySettings,
    inherited: AppPolicy,
) -> Result<(PolicyChange, AppPolicy), Fault> {
    let change = settings.change().and_then(|change| {
        let policy = change.apply(inherited);
        check_policy(&policy, &change).map(|()| (change, policy))
    });
    change.map_err(|fault| Fault::new(format!("{place}.{}", fault.key), fault.message))
}

impl RawConfig {
    /// The group whose members may read the status. Whether there is one is found out by the mount.
    pub(super) fn status_group(&self) -> Result<Option<String>, Fault> {
        match &self.status_group {
            Some(name) if name.is_empty() || name.contains([':', '\n']) => {
                let message = format!("\"{name}\" is not the name of a group");
                Err(Fault::new("status_group", message))
            }
            name => Ok(name.clone()),
        }
    }

    pub(super) fn rules(&self) -> Result<Rules, Fault> {
        let everything = [String::from("*")];
        let globs = self.apps.as_deref().unwrap_or(&everything);
        if globs.is_empty() {
            let message = "needs at least one glob, such as \"*\"";
            return Err(Fault::new("apps", message));
        }
        let apps = globs
            .iter()
            .map(|glob| AppGlob::of_apps(glob))
            .collect::<Result<Vec<_>, _>>();
        let apps = apps.map_err(|message| Fault::new("apps", message))?;
        let depth_max = AppGlob::depth_max_of(&apps);
        let (_, defaults) = checked("defaults", &self.defaults, AppPolicy::default())?;
        let mut matched = Vec::with_capacity(self.app.len());
        for (index, app) in self.app.iter().enumerate() {
            let RawApp { glob, settings } = app;
            let key = format!("app \"{glob}\"");
            let of_app = |fault: Fault| fault.in_app(index);
            let (change, _) = checked(&key, settings, defaults).map_err(of_app)?;
            let compiled = match glob.as_str() {
                // The app of everything that lies in no other app.
                "." => AppGlob::new(glob),
                glob => AppGlob::of_apps(glob),
            };
            let glob =
                compiled.map_err(|message| of_app(Fault::new(format!("{key}.match"), message)))?;
            let is_too_deep = |(depth, max)| depth > max;
            if glob.depth().zip(depth_max).is_some_and(is_too_deep) {
                let message = format!(
                    "\"{}\" matches no app: which directories are apps is said by `apps = {globs:?}`; \
                     add a glob like this one there",
                    app.glob
                );
                return Err(of_app(Fault::new(format!("{key}.match"), message)));
            }
            matched.push((glob, change));
        }
        Ok(Rules::new(apps, defaults, matched))
    }
}
