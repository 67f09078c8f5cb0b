//! The configuration as it is written in the file.

use mobifs_core::AppPolicy;
use mobifs_types::PAGE_BYTES_U64;
use serde::Deserialize;

use super::rules::{AppGlob, PolicyChange, Rules};
use super::size::Size;
use super::{check_policy, parse_class};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) memory_budget_bytes: Option<Size>,
    pub(super) journal_bytes: Option<Size>,
    pub(super) direct_write_max_bytes: Option<Size>,
    pub(super) apply_idle_ms: Option<u64>,
    pub(super) objects_max: Option<usize>,
    pub(super) allow_durable: Option<bool>,
    apps: Option<Vec<String>>,
    #[serde(default)]
    defaults: RawPolicy,
    #[serde(default)]
    app: Vec<RawApp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    class: Option<String>,
    age_max_ms: Option<u64>,
    staleness_min_bytes: Option<Size>,
    staleness_max_bytes: Option<Size>,
    slope_min_micropercent: Option<i64>,
}

/// As [`RawPolicy`]; flattening would let unknown keys pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawApp {
    #[serde(rename = "match")]
    glob: String,
    class: Option<String>,
    age_max_ms: Option<u64>,
    staleness_min_bytes: Option<Size>,
    staleness_max_bytes: Option<Size>,
    slope_min_micropercent: Option<i64>,
}

impl RawApp {
    fn split(&self) -> (&str, RawPolicy) {
        let policy = RawPolicy {
            class: self.class.clone(),
            age_max_ms: self.age_max_ms,
            staleness_min_bytes: self.staleness_min_bytes,
            staleness_max_bytes: self.staleness_max_bytes,
            slope_min_micropercent: self.slope_min_micropercent,
        };
        (&self.glob, policy)
    }
}

impl RawPolicy {
    fn change(&self, key: &str) -> Result<PolicyChange, (String, String)> {
        let class = self.class.as_deref().map(parse_class).transpose();
        if self.age_max_ms == Some(0) {
            return Err((format!("{key}.age_max_ms"), "must be at least 1".into()));
        }
        let pages = |size: Option<Size>| size.map(|size| size.0.div_ceil(PAGE_BYTES_U64));
        let staleness_max_pages = pages(self.staleness_max_bytes);
        if staleness_max_pages == Some(0) {
            return Err((
                format!("{key}.staleness_max_bytes"),
                "must be at least 1".into(),
            ));
        }
        Ok(PolicyChange {
            class: class.map_err(|message| (format!("{key}.class"), message))?,
            age_max_ms: self.age_max_ms,
            staleness_min_pages: pages(self.staleness_min_bytes),
            staleness_max_pages,
            slope_min_micropercent: self.slope_min_micropercent,
        })
    }
}

impl RawConfig {
    pub(super) fn rules(&self) -> Result<Rules, (String, String)> {
        let everything = [String::from("*")];
        let globs = self.apps.as_deref().unwrap_or(&everything);
        if globs.is_empty() {
            return Err((
                "apps".into(),
                "needs at least one glob, such as \"*\"".into(),
            ));
        }
        let apps = globs
            .iter()
            .map(|glob| AppGlob::new(glob))
            .collect::<Result<Vec<_>, _>>();
        let apps = apps.map_err(|message| ("apps".to_owned(), message))?;
        let defaults = self
            .defaults
            .change("defaults")?
            .apply(AppPolicy::default());
        check_policy("defaults", &defaults)?;
        let mut matched = Vec::with_capacity(self.app.len());
        for app in &self.app {
            let (glob, policy) = app.split();
            let key = format!("app \"{glob}\"");
            let change = policy.change(&key)?;
            check_policy(&key, &change.apply(defaults))?;
            let glob = AppGlob::new(glob).map_err(|message| (format!("{key}.match"), message))?;
            matched.push((glob, change));
        }
        Ok(Rules::new(apps, defaults, matched))
    }
}
