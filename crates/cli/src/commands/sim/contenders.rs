//! Policies and filesystems by name.

use std::path::Path;

use mobifs_core::AppRules as _;
use mobifs_core::policy::transactioning::TransactioningName;
use mobifs_lab::sim::Contender;
use mobifs_runtime::Config;

use crate::failure::{Code, Failure};

/// What a policy is compared with if nothing else is said.
const AGAINST: [&str; 7] = [
    Contender::EXT4,
    "ext4-nobarrier",
    "btrfs-flushoncommit",
    "tpl",
    "interval:interval_ms=5000",
    "interval:interval_ms=30000",
    "ideal",
];

/// The policies first, then what they are compared with: `against`, or the usual. ext4 is
/// always there, because everything is held against it.
pub(super) fn contenders(
    policies: &[String],
    against: &[String],
) -> Result<Vec<Contender>, Failure> {
    let usual = AGAINST.map(str::to_owned);
    let against = if against.is_empty() { &usual } else { against };
    let ext4 = [Contender::EXT4.to_owned()];
    let mut contenders: Vec<Contender> = Vec::new();
    if policies.is_empty() {
        contenders.push(Contender::engine("default".to_owned(), policy_of("")?));
    }
    for name in policies.iter().chain(against).chain(&ext4) {
        if !contenders.iter().any(|contender| contender.name == *name) {
            contenders.push(contender(name)?);
        }
    }
    Ok(contenders)
}

fn contender(text: &str) -> Result<Contender, Failure> {
    if let Some(filesystem) = Contender::filesystem(text) {
        return Ok(filesystem);
    }
    let (name, keys) = text.split_once(':').unwrap_or((text, ""));
    let policy = if name == TransactioningName::Ideal.as_str() {
        // A mount may not have it, so a configuration cannot name it.
        let mut policy = policy_of(&settings(text, keys)?)?;
        policy.transactioning.name = TransactioningName::Ideal;
        policy
    } else {
        let settings = format!("policy = {}\n{}", quoted(name), settings(text, keys)?);
        policy_of(&settings).map_err(|failure| unknown(text, &failure))?
    };
    Ok(Contender::engine(text.to_owned(), policy))
}

fn unknown(text: &str, failure: &Failure) -> Failure {
    let filesystems = Contender::FILESYSTEMS.join(", ");
    let message = format!(
        "{text}: neither a policy nor a filesystem to compare with ({filesystems}): {}",
        failure.message
    );
    Failure::new(Code::Usage, message)
}

/// `key=value,...` as lines of a configuration file.
fn settings(text: &str, keys: &str) -> Result<String, Failure> {
    let mut settings = String::new();
    for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            let message = format!("{text}: {pair} is not of the form KEY=VALUE");
            return Err(Failure::new(Code::Usage, message));
        };
        let is_number = value.parse::<i64>().is_ok();
        let value = if is_number {
            value.to_owned()
        } else {
            quoted(value)
        };
        settings.push_str(&format!("{} = {value}\n", key.trim()));
    }
    Ok(settings)
}

fn quoted(text: &str) -> String {
    // TOML's basic strings escape as JSON's do.
    serde_json::Value::from(text).to_string()
}

fn policy_of(settings: &str) -> Result<mobifs_core::AppPolicy, Failure> {
    let text = format!("[defaults]\n{settings}");
    let config = Config::parse(&text, Path::new("the policy"));
    let config = config.map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    Ok(config.rules.policy(b"app"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_make_a_policy() {
        let some = ["interval:interval_ms=1500,age_max_ms=7000".to_owned()];
        let contenders = contenders(&some, &[]).unwrap();
        assert_eq!(contenders[0].name, some[0]);
        let mobifs_lab::sim::ContenderRules::Engine(policy) = contenders[0].rules else {
            panic!("not the engine");
        };
        assert_eq!(policy.age_max_ms, 7000);
        assert_eq!(policy.transactioning.interval.interval_ms, 1500);
        assert!(contenders.iter().any(|c| c.name == Contender::EXT4));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("nonsense", "nonsense"),
            ("tpl:nonsense=1", "nonsense"),
            ("tpl:age_max_ms", "KEY=VALUE"),
            ("tpl:age_max_ms=soon", "age_max_ms"),
        ] {
            let failure = contenders(&[text.to_owned()], &[]).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }
}
