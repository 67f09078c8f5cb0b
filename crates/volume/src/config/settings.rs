//! What a configuration or a command says about one app.

use std::fmt;

use mobifs_engine::policy::transactioning::{
    TransactioningName, WINDOW_POINTS_MAX, WINDOW_POINTS_MIN,
};
use mobifs_engine::{AppPolicy, Class};

use super::errors::SettingError;
use super::kind::Kind;
use super::policy_keys::PolicySettings;
use super::size::Size;

impl fmt::Display for PolicySettings {
    /// `key=value` for each setting that is present, in the units of the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(serde_json::Value::Object(settings)) = serde_json::to_value(self) else {
            return Err(fmt::Error);
        };
        for (n, (key, value)) in settings.iter().enumerate() {
            let separator = if n == 0 { "" } else { " " };
            match value {
                serde_json::Value::String(text) => write!(f, "{separator}{key}={text}")?,
                value => write!(f, "{separator}{key}={value}")?,
            }
        }
        Ok(())
    }
}

impl PolicySettings {
    /// The change that the settings make, checked.
    ///
    /// # Errors
    /// [`SettingError`] for a value that makes no sense by itself.
    pub fn change(&self) -> Result<PolicyChange, SettingError> {
        // A key that is added has to be looked at here.
        let Self {
            class,
            age_max_ms,
            staleness_max_bytes,
            policy,
            staleness_min_bytes: _,
            slope_min_micropercent,
            window_points: points,
            interval_ms,
            quiet_ms,
            quiet_age_min_ms: _,
            staleness_bytes,
            flush_interval_ms,
        } = self;
        self.check_ages()?;
        let fault = |key| move |message| SettingError::new(key, message);
        let class = class.as_deref().map(parse_class).transpose();
        class.map_err(fault("class"))?;
        let policy = policy.as_deref().map(parse_policy).transpose();
        policy.map_err(fault("policy"))?;
        let points = points.map(window_points).transpose();
        points.map_err(fault("window_points"))?;
        if slope_min_micropercent.is_some_and(|slope| slope > 0) {
            let message = "must not be positive: it is the steepest fall";
            return Err(SettingError::new("slope_min_micropercent", message));
        }
        let bytes = |size: &Option<Size>| size.map(|size| size.0);
        for (key, value) in [
            ("age_max_ms", *age_max_ms),
            ("staleness_max_bytes", bytes(staleness_max_bytes)),
            ("interval_ms", *interval_ms),
            ("quiet_ms", *quiet_ms),
            ("staleness_bytes", bytes(staleness_bytes)),
            ("flush_interval_ms", *flush_interval_ms),
        ] {
            if value == Some(0) {
                return Err(SettingError::new(key, "must be at least 1"));
            }
        }
        Ok(PolicyChange(self.clone()))
    }

    /// No age is longer than makes sense.
    fn check_ages(&self) -> Result<(), SettingError> {
        for (key, age_ms) in [
            ("age_max_ms", self.age_max_ms),
            ("interval_ms", self.interval_ms),
            ("quiet_ms", self.quiet_ms),
            ("quiet_age_min_ms", self.quiet_age_min_ms),
            ("flush_interval_ms", self.flush_interval_ms),
        ] {
            let checked = Kind::Milliseconds.check_number(age_ms.unwrap_or(0));
            checked.map_err(|message| SettingError::new(key, message))?;
        }
        Ok(())
    }
}

/// Settings of one app or of the defaults of which each makes sense by itself
/// ([`PolicySettings::change`]); what is absent is inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange(PolicySettings);

impl PolicyChange {
    /// The settings.
    pub const fn settings(&self) -> &PolicySettings {
        &self.0
    }

    /// Meaning of `fsync`, if it is set.
    pub fn class(&self) -> Option<Class> {
        self.0
            .class
            .as_deref()
            .and_then(|text| parse_class(text).ok())
    }

    /// `policy` with the settings that are present.
    pub fn apply(&self, policy: AppPolicy) -> AppPolicy {
        fn set<T>(value: &mut T, change: Option<T>) {
            if let Some(change) = change {
                *value = change;
            }
        }
        let pages = |size: &Option<Size>| size.map(Size::pages);
        let PolicySettings {
            class: _,
            age_max_ms,
            staleness_max_bytes,
            policy: name,
            staleness_min_bytes,
            slope_min_micropercent,
            window_points: points,
            interval_ms,
            quiet_ms,
            quiet_age_min_ms,
            staleness_bytes,
            flush_interval_ms,
        } = &self.0;
        let name = name.as_deref().and_then(TransactioningName::from_name);
        let points = points.and_then(|points| window_points(points).ok());
        let mut changed = policy;
        set(&mut changed.class, self.class());
        set(&mut changed.age_max_ms, *age_max_ms);
        set(&mut changed.staleness_max_pages, pages(staleness_max_bytes));
        let rule = &mut changed.transactioning;
        set(&mut rule.name, name);
        let tpl = &mut rule.tpl;
        set(&mut tpl.staleness_min_pages, pages(staleness_min_bytes));
        set(&mut tpl.slope_min_micropercent, *slope_min_micropercent);
        set(&mut tpl.window_points, points);
        set(&mut rule.interval.interval_ms, *interval_ms);
        set(&mut rule.quiet.quiet_ms, *quiet_ms);
        set(&mut rule.quiet.quiet_age_min_ms, *quiet_age_min_ms);
        let staleness = &mut rule.staleness.staleness_pages;
        set(staleness, pages(staleness_bytes));
        set(&mut rule.fsync.flush_interval_ms, *flush_interval_ms);
        changed
    }

    /// The settings of a text in the configuration's language.
    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Self {
        let settings: PolicySettings = toml::from_str(text).unwrap();
        settings.change().unwrap()
    }
}

/// Checks the policy that results from `change` for limits that contradict each other.
///
/// The general limits hold for every policy, so a policy's own limit that exceeds them never has an
/// effect. That is refused where the limit itself is given; where only a general limit is, it is
/// meant to be tighter than what is inherited.
///
/// # Errors
/// [`SettingError`].
pub fn check_policy(policy: &AppPolicy, change: &PolicyChange) -> Result<(), SettingError> {
    let rule = &policy.transactioning;
    // The key of a policy that is not chosen has no effect, and need not fit.
    let is_tpl = rule.name == TransactioningName::Tpl;
    if is_tpl && rule.tpl.staleness_min_pages > policy.staleness_max_pages {
        return Err(SettingError::new(
            "staleness_min_bytes",
            "is larger than staleness_max_bytes",
        ));
    }
    let age = ("age_max_ms", policy.age_max_ms);
    let staleness = ("staleness_max_bytes", policy.staleness_max_pages);
    let given = change.settings();
    let stale = given.staleness_bytes.map(Size::pages);
    let limits = match rule.name {
        TransactioningName::Interval => vec![("interval_ms", given.interval_ms, age)],
        TransactioningName::Quiet => vec![
            ("quiet_ms", given.quiet_ms, age),
            ("quiet_age_min_ms", given.quiet_age_min_ms, age),
        ],
        TransactioningName::Staleness => vec![("staleness_bytes", stale, staleness)],
        TransactioningName::Fsync => vec![("flush_interval_ms", given.flush_interval_ms, age)],
        _ => Vec::new(),
    };
    for (key, given, (general_key, general)) in limits {
        if given.is_some_and(|given| given > general) {
            let message = format!("is larger than {general_key}, which holds for every policy");
            return Err(SettingError::new(key, message));
        }
    }
    Ok(())
}

fn window_points(points: u64) -> Result<usize, String> {
    usize::try_from(points)
        .ok()
        .filter(|points| (WINDOW_POINTS_MIN..=WINDOW_POINTS_MAX).contains(points))
        .ok_or_else(|| format!("must be from {WINDOW_POINTS_MIN} to {WINDOW_POINTS_MAX}"))
}

/// Reads the name of a policy that a mount may have.
///
/// # Errors
/// A sentence that lists the policies.
pub fn parse_policy(text: &str) -> Result<TransactioningName, String> {
    let found = TransactioningName::from_name(text);
    if let Some(name) = found.filter(|name| name.is_bounded()) {
        return Ok(name);
    }
    let bounded = TransactioningName::ALL
        .into_iter()
        .filter(|name| name.is_bounded());
    let names: Vec<String> = bounded
        .map(|name| format!("\"{}\"", name.as_str()))
        .collect();
    let why = match found {
        Some(_) => "would never commit: it is for simulations only",
        None => "is not a policy",
    };
    Err(format!("\"{text}\" {why}; use one of {}", names.join(", ")))
}

/// Reads the name of a class.
///
/// # Errors
/// A sentence that lists the classes.
pub fn parse_class(text: &str) -> Result<Class, String> {
    match text {
        "relaxed" => Ok(Class::Relaxed),
        "durable" => Ok(Class::Durable),
        _ => Err(format!(
            "\"{text}\" is not a class: use \"relaxed\" or \"durable\""
        )),
    }
}

/// Name of a class, as configuration and status write it.
pub const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Relaxed => "relaxed",
        Class::Durable => "durable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log showed the engine's structure: `PolicyChange { class: None, age_max_ms: Some(100), … }`.
    #[test]
    fn settings_are_shown_as_they_were_given() {
        let settings = PolicySettings {
            class: Some("durable".to_owned()),
            age_max_ms: Some(100),
            staleness_max_bytes: Some(Size(5000)),
            slope_min_micropercent: Some(-7),
            ..PolicySettings::default()
        };
        assert_eq!(
            settings.to_string(),
            "age_max_ms=100 class=durable slope_min_micropercent=-7 staleness_max_bytes=5000"
        );
        assert_eq!(PolicySettings::default().to_string(), "");
    }
}
