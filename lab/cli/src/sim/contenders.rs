//! Policies and filesystems by name.

use std::path::Path;

use mobifs_engine::AppRules as _;
use mobifs_engine::policy::transactioning::TransactioningName;
use mobifs_simulator::sim::{Contender, ContenderRules, NativeFilesystem};
use mobifs_volume::Config;

use crate::failure::{Code, Failure};

/// What a policy is compared with if the command line does not say.
const AGAINST: [&str; 10] = [
    Contender::EXT4,
    "ext4-nobarrier",
    "btrfs-flushoncommit",
    NativeFilesystem::Ext4.contender(),
    NativeFilesystem::Btrfs.contender(),
    Contender::PUBLISHED,
    "tpl",
    "interval:interval_ms=5000",
    "interval:interval_ms=30000",
    "ideal",
];

/// The policies first, then what they are compared with: `against`, or the usual. ext4 is always
/// there, because everything is compared with it.
pub(super) fn contenders(
    policies: &[String],
    against: &[String],
) -> Result<Vec<Contender>, Failure> {
    let usual = AGAINST.map(str::to_owned);
    let against = if against.is_empty() { &usual } else { against };
    let ext4 = [Contender::EXT4.to_owned()];
    let mut contenders: Vec<Contender> = Vec::new();
    if policies.is_empty() {
        contenders.push(engine("default", &config(&Keys::default())?));
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
    let mut keys = Keys::parse(text, keys)?;
    let mut natives = NativeFilesystem::ALL.into_iter();
    if let Some(filesystem) = natives.find(|filesystem| filesystem.contender() == name) {
        return native(text, filesystem, &config(&keys)?);
    }
    if name == TransactioningName::Ideal.as_str() {
        // A mount cannot use it, so a configuration cannot name it.
        let mut contender = engine(text, &config(&keys)?);
        if let ContenderRules::Engine(policy, _) = &mut contender.rules {
            policy.transactioning.name = TransactioningName::Ideal;
        }
        return Ok(contender);
    }
    if name == Contender::PUBLISHED {
        let mut contender = engine(text, &config(&keys)?);
        if let ContenderRules::Engine(policy, _) = &mut contender.rules {
            policy.transactioning.name = TransactioningName::Tpl;
            if !keys.defaults.contains("age_max_ms") {
                policy.age_max_ms = Contender::published_policy().age_max_ms;
            }
        }
        return Ok(contender);
    }
    keys.defaults
        .insert_str(0, &format!("policy = {}\n", quoted(name)));
    let config = config(&keys).map_err(|failure| unknown(text, &failure))?;
    Ok(engine(text, &config))
}

fn engine(name: &str, config: &Config) -> Contender {
    Contender {
        sees_bursts: config.events.bursts,
        ..Contender::paced_engine(name.to_owned(), config.rules.policy(b"app"), config.pacing)
    }
}

/// What `mobifs steer` would do with this configuration.
fn native(name: &str, filesystem: NativeFilesystem, config: &Config) -> Result<Contender, Failure> {
    let refused = |why: &str| Err(Failure::new(Code::Usage, format!("{name}: {why}")));
    if config.events.bursts {
        return refused(
            "a steered filesystem answers no requests, so user_events cannot be \"bursts\"",
        );
    }
    let policy = config.rules.policy_of_all();
    if policy.age_max_ms < 1000 {
        return refused(
            "the kernel's commit interval counts in seconds, so age_max_ms must be at least 1000",
        );
    }
    Ok(Contender::native(
        name.to_owned(),
        filesystem,
        policy,
        config.pacing,
    ))
}

fn unknown(text: &str, failure: &Failure) -> Failure {
    let natives = NativeFilesystem::ALL.map(NativeFilesystem::contender);
    let filesystems = [&Contender::FILESYSTEMS[..], &natives].concat().join(", ");
    let message = format!(
        "{text}: neither a policy nor a filesystem to compare with ({filesystems}): {}",
        failure.message
    );
    Failure::new(Code::Usage, message)
}

/// Keys of the whole mount that a policy may be given; all others are an app's.
const MOUNT_KEYS: [&str; 10] = [
    "predictor",
    "predictor_short_intervals",
    "predictor_long_intervals",
    "predictor_short_ms",
    "predictor_long_ms",
    "predictor_timeout_factor",
    "touch_gap_us",
    "scheduler",
    "standby_age_max_ms",
    "user_events",
];

/// `key=value,...` as lines of a configuration file.
#[derive(Default)]
struct Keys {
    /// Those of the whole mount.
    mount: String,
    /// Those of an app.
    defaults: String,
}

impl Keys {
    fn parse(text: &str, pairs: &str) -> Result<Self, Failure> {
        let mut keys = Self::default();
        for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
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
            let lines = match key.trim() {
                key if MOUNT_KEYS.contains(&key) => &mut keys.mount,
                _ => &mut keys.defaults,
            };
            lines.push_str(&format!("{} = {value}\n", key.trim()));
        }
        Ok(keys)
    }
}

fn quoted(text: &str) -> String {
    // TOML's basic strings escape as JSON's do.
    serde_json::Value::from(text).to_string()
}

fn config(keys: &Keys) -> Result<Config, Failure> {
    let text = format!("{}[defaults]\n{}", keys.mount, keys.defaults);
    let config = Config::parse(&text, Path::new("the policy"));
    config.map_err(|error| Failure::new(Code::Usage, error.of_parameters().to_string()))
}

#[cfg(test)]
mod tests {
    use mobifs_engine::policy::schedule::SchedulerName;
    use mobifs_volume::PolicySettings;

    use super::*;

    #[test]
    fn names_and_keys_make_a_policy() {
        let some = ["interval:interval_ms=1500,scheduler=fifo,age_max_ms=7000".to_owned()];
        let contenders = contenders(&some, &[]).unwrap();
        assert_eq!(contenders[0].name, some[0]);
        let ContenderRules::Engine(policy, pacing) = contenders[0].rules else {
            panic!("not the engine");
        };
        assert_eq!(policy.age_max_ms, 7000);
        assert_eq!(pacing.scheduler, SchedulerName::Fifo);
        assert_eq!(policy.transactioning.interval.interval_ms, 1500);
        assert!(!contenders[0].sees_bursts);
        assert!(contenders.iter().any(|c| c.name == Contender::EXT4));
    }

    #[test]
    fn native_mode_takes_the_keys_of_a_policy_and_of_the_mount() {
        let text = "native-ext4:policy=quiet,quiet_age_min_ms=7000,age_max_ms=9000,scheduler=fifo";
        let found = contenders(&[text.to_owned(), "native-btrfs".to_owned()], &[]).unwrap();
        assert_eq!(found[0].name, text);
        let ContenderRules::Native(rules) = found[0].rules else {
            panic!("not native mode");
        };
        assert_eq!(rules.filesystem, NativeFilesystem::Ext4);
        assert_eq!(rules.policy.age_max_ms, 9000);
        assert_eq!(rules.policy.transactioning.name, TransactioningName::Quiet);
        assert_eq!(rules.policy.transactioning.quiet.quiet_age_min_ms, 7000);
        assert_eq!(rules.pacing.scheduler, SchedulerName::Fifo);
        let ContenderRules::Native(rules) = found[1].rules else {
            panic!("not native mode");
        };
        assert_eq!(rules.filesystem, NativeFilesystem::Btrfs);
        assert_eq!(
            rules.policy,
            config(&Keys::default()).unwrap().rules.policy_of_all()
        );
        let usual = contenders(&[], &[]).unwrap();
        for name in ["native-ext4", "native-btrfs"] {
            assert!(usual.iter().any(|contender| contender.name == name));
        }
    }

    #[test]
    fn every_setting_of_an_app_can_be_given_to_a_policy() {
        for key in PolicySettings::KEYS {
            let refused = contenders(&[format!("tpl:{}=1,no_key=1", key.name)], &[]);
            let message = refused.unwrap_err().message;
            let name = format!("no key `{}`", key.name);
            assert!(!message.contains(&name), "{message}");
        }
    }

    #[test]
    fn what_is_known_of_user_and_machine_belongs_to_the_mount() {
        let some = ["tpl:user_events=bursts,standby_age_max_ms=90000".to_owned()];
        let contenders = contenders(&some, &[]).unwrap();
        assert!(contenders[0].sees_bursts);
        let ContenderRules::Engine(_, pacing) = contenders[0].rules else {
            panic!("not the engine");
        };
        assert_eq!(pacing.standby_age_max_ms, 90_000);
    }

    #[test]
    fn the_published_policy_has_no_limit_of_age() {
        let of = |name: &str| {
            let contenders = contenders(&[name.to_owned()], &[]).unwrap();
            let ContenderRules::Engine(policy, pacing) = contenders[0].rules else {
                panic!("not the engine");
            };
            (policy, pacing)
        };
        let (policy, _) = of("tpl-published");
        assert_eq!(policy, Contender::published_policy());
        assert_eq!(policy.age_max_ms, u64::MAX);
        assert_eq!(policy.transactioning.name, TransactioningName::Tpl);
        assert_eq!(policy.staleness_max_pages, 25_600, "the limit that S0 has");
        let (policy, _) = of("tpl-published:window_points=32,age_max_ms=9000");
        assert_eq!(
            (policy.age_max_ms, policy.transactioning.tpl.window_points),
            (9_000, 32)
        );
        assert!(
            contenders(&[], &[])
                .unwrap()
                .iter()
                .any(|c| c.name == "tpl-published")
        );
    }

    #[test]
    fn parameters_of_the_predictor_are_the_mounts() {
        let text = "tpl:predictor_long_intervals=7,predictor_timeout_factor=5,touch_gap_us=10";
        let contenders = contenders(&[text.to_owned()], &[]).unwrap();
        let ContenderRules::Engine(_, pacing) = contenders[0].rules else {
            panic!("not the engine");
        };
        assert_eq!(pacing.prediction.parameters.history_long, 7);
        assert_eq!(pacing.prediction.parameters.timeout_factor, 5);
        assert_eq!(pacing.prediction.touch_gap_ns, 10_000);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("nonsense", "nonsense"),
            ("tpl:nonsense=1", "nonsense"),
            ("tpl:age_max_ms", "KEY=VALUE"),
            ("tpl:age_max_ms=soon", "age_max_ms"),
            ("tpl:predictor=oracle", "state-machine"),
            ("tpl:user_events=guessed", "bursts"),
            ("native-ext4:policy=ideal", "ideal"),
            ("native-ext4:age_max_ms=999", "at least 1000"),
            ("native-btrfs:user_events=bursts", "no requests"),
            ("native-xfs", "native-btrfs"),
        ] {
            let failure = contenders(&[text.to_owned()], &[]).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            assert!(failure.message.contains(word), "{}", failure.message);
            assert!(!failure.message.contains("line "), "{}", failure.message);
            assert!(
                !failure.message.contains("defaults."),
                "{}",
                failure.message
            );
        }
    }
}
