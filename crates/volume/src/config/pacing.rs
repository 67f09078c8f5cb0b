//! How commits are paced: the keys of the whole mount for that.

use std::ops::RangeInclusive;

use mobifs_engine::PacingRules;
use mobifs_engine::policy::prediction::{
    HISTORY_MAX, INITIAL_INTERVAL_MAX_NS, PredictionRules, PredictorName, TIMEOUT_FACTOR_MAX,
    TOUCH_GAP_MAX_NS,
};
use mobifs_engine::policy::schedule::SchedulerName;

use super::errors::Fault;
use super::raw::RawConfig;

const MS_NS: u64 = 1_000_000;
const US_NS: u64 = 1_000;

pub(super) fn pacing(raw: &RawConfig) -> Result<PacingRules, Fault> {
    let mut rules = PacingRules {
        prediction: prediction(raw)?,
        ..PacingRules::default()
    };
    if let Some(name) = &raw.scheduler {
        let known = SchedulerName::ALL.map(SchedulerName::as_str);
        rules.scheduler = SchedulerName::from_name(name)
            .ok_or_else(|| Fault::new("scheduler", no_such("scheduler", name, &known)))?;
    }
    if raw.standby_age_max_ms == Some(0) {
        let message = "must be more than 0; leave it out, and `age_max_ms` holds in standby, too";
        return Err(Fault::new("standby_age_max_ms", message));
    }
    rules.standby_age_max_ms = raw.standby_age_max_ms.unwrap_or(rules.standby_age_max_ms);
    Ok(rules)
}

fn prediction(raw: &RawConfig) -> Result<PredictionRules, Fault> {
    let mut rules = PredictionRules::default();
    if let Some(name) = &raw.predictor {
        let known = PredictorName::ALL.map(PredictorName::as_str);
        rules.predictor = PredictorName::from_name(name)
            .ok_or_else(|| Fault::new("predictor", no_such("predictor", name, &known)))?;
    }
    let parameters = &mut rules.parameters;
    let remembered = 1..=HISTORY_MAX as u64;
    let (key, given) = ("predictor_short_intervals", raw.predictor_short_intervals);
    if let Some(count) = within(key, given, &remembered)? {
        parameters.history_short = count as usize;
    }
    let (key, given) = ("predictor_long_intervals", raw.predictor_long_intervals);
    if let Some(count) = within(key, given, &remembered)? {
        parameters.history_long = count as usize;
    }
    let initial_ms = 1..=INITIAL_INTERVAL_MAX_NS / MS_NS;
    if let Some(ms) = within("predictor_short_ms", raw.predictor_short_ms, &initial_ms)? {
        parameters.initial_short_ns = ms * MS_NS;
    }
    if let Some(ms) = within("predictor_long_ms", raw.predictor_long_ms, &initial_ms)? {
        parameters.initial_long_ns = ms * MS_NS;
    }
    let (key, given) = ("predictor_timeout_factor", raw.predictor_timeout_factor);
    if let Some(factor) = within(key, given, &(1..=TIMEOUT_FACTOR_MAX))? {
        parameters.timeout_factor = factor;
    }
    let gap_us = 1..=TOUCH_GAP_MAX_NS / US_NS;
    if let Some(gap_us) = within("touch_gap_us", raw.touch_gap_us, &gap_us)? {
        rules.touch_gap_ns = gap_us * US_NS;
    }
    Ok(rules)
}

/// The value, which must lie in the range if it is given.
fn within(
    key: &str,
    value: Option<u64>,
    range: &RangeInclusive<u64>,
) -> Result<Option<u64>, Fault> {
    match value {
        Some(value) if !range.contains(&value) => {
            let message = format!("must be from {} to {}", range.start(), range.end());
            Err(Fault::new(key, message))
        }
        value => Ok(value),
    }
}

fn no_such(what: &str, name: &str, known: &[&str]) -> String {
    let known = known.join("\", \"");
    format!("\"{name}\" is not a {what}; there are \"{known}\"")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, ConfigError};
    use super::*;

    fn parse(text: &str) -> Result<PredictionRules, ConfigError> {
        Config::parse(text, Path::new("/etc/mobifs.toml")).map(|config| config.pacing.prediction)
    }

    #[test]
    fn parameters_of_the_predictor_are_what_the_configuration_says() {
        let rules = parse(
            "predictor = \"last-average\"\npredictor_short_intervals = 6\n\
             predictor_long_intervals = 9\npredictor_short_ms = 350\npredictor_long_ms = 4500\n\
             predictor_timeout_factor = 5\ntouch_gap_us = 10\n",
        )
        .unwrap();
        assert_eq!(rules.predictor, PredictorName::LastAverage);
        let parameters = rules.parameters;
        assert_eq!((parameters.history_short, parameters.history_long), (6, 9));
        assert_eq!(parameters.initial_short_ns, 350_000_000);
        assert_eq!(parameters.initial_long_ns, 4_500_000_000);
        assert_eq!(parameters.timeout_factor, 5);
        assert_eq!(rules.touch_gap_ns, 10_000, "S0's 0.01 ms");
        assert_eq!(parse("").unwrap(), PredictionRules::default());
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused() {
        for (text, range) in [
            ("predictor_short_intervals = 0", "from 1 to 1024"),
            ("predictor_long_intervals = 2000", "from 1 to 1024"),
            ("predictor_short_ms = 0", "from 1 to 3600000"),
            ("predictor_long_ms = 4000000", "from 1 to 3600000"),
            ("predictor_timeout_factor = 0", "from 1 to 1000"),
            ("touch_gap_us = 0", "from 1 to 10000000"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            let key = text.split(' ').next().unwrap();
            assert!(
                message.contains(key) && message.contains(range),
                "{message}"
            );
        }
    }
}
