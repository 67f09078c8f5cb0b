//! Tests of the configuration as it is written.

use mobifs_engine::policy::prediction::PredictorName;
use mobifs_engine::policy::schedule::SchedulerName;
use mobifs_engine::policy::transactioning::TransactioningName;
use mobifs_engine::{AppPolicy, AppRules as _, Class};

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/mobifs.toml"))
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Found by strangers: a device without an end was read until the memory was used up.
#[test]
fn a_file_without_an_end_is_refused() {
    let refused = Config::load(Path::new("/dev/zero"))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("/dev/zero: it is not a regular file"),
        "{refused}"
    );
    Config::load(Path::new("/dev/null")).unwrap();
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
        status_group = "prometheus"
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
    assert_eq!(config.status_group.as_deref(), Some("prometheus"));
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
        "[defaults]\npolicy = \"interval\"\ninterval_ms = 900\n[[app]]\nmatch = \
         \"a\"\nage_max_ms = 10",
        "[defaults]\nquiet_ms = 90000",
    ] {
        parse(text).unwrap();
    }
}

/// A small limit was refused because of a key of a policy that was not chosen.
#[test]
fn keys_of_other_policies_need_not_fit() {
    parse("[defaults]\nstaleness_max_bytes = \"4KiB\"").unwrap();
    let text = "[defaults]\nstaleness_min_bytes = \"1GiB\"\n[[app]]\nmatch = \"a\"\n";
    parse(text).unwrap();
    says(
        &format!("{text}policy = \"tpl\""),
        &["line 3: app \"a\".staleness_min_bytes: is larger than staleness_max_bytes"],
    );
}

#[test]
fn users_are_seen_in_bursts_where_that_is_configured() {
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
    assert!(text.contains("no key `memory_budget` here"), "{text}");
    let text = message("[defaults]\nage_max = 5\n");
    assert!(
        text.contains("line 2") && text.contains("`age_max`"),
        "{text}"
    );
    let text = message("[[app]]\nmatch = \"x\"\nclas = \"durable\"\n");
    assert!(text.contains("line 3") && text.contains("`clas`"), "{text}");
}

#[test]
fn the_name_that_the_status_has_for_a_key_is_refused_with_that_of_the_key() {
    for text in ["", "[defaults]\n", "[history]\n"] {
        let text = message(&format!("{text}durable_write_max_bytes = 4096\n"));
        assert!(
            text.contains("the key is `direct_write_max_bytes`"),
            "{text}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of keys and values")]
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
            "direct_write_max_bytes = \"65MiB\"",
            &["direct_write_max_bytes", "at most 64MiB"],
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
        (
            "[[app]]\nmatch = \"mail/inbox\"\nclass = \"durable\"",
            &["mail/inbox", "matches no app", "apps = [\"*\"]"],
        ),
        ("apps = [\"/srv\"]", &["apps", "outer slashes"]),
        (
            "[defaults]\nclass = \"fast\"",
            &["defaults.class", "\"fast\"", "durable"],
        ),
        ("[defaults]\nage_max_ms = 0", &["defaults.age_max_ms"]),
        (
            "[defaults]\npolicy = \"tpl\"\nstaleness_max_bytes = \"4KiB\"",
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
            &["line 1", "needs a key `match`"],
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
        ("system_bus = \"no\"", &["line 1", "true or false"]),
        (
            "battery_low_percent = 101",
            &["battery_low_percent", "at most 100"],
        ),
        (
            "standby_age_max_ms = 0",
            &["standby_age_max_ms", "more than 0"],
        ),
        (
            "status_group = \"a:b\"",
            &["line 1: status_group: \"a:b\" is not the name of a group"],
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

#[track_caller]
fn says(text: &str, needles: &[&str]) {
    let got = message(text);
    for needle in needles {
        assert!(
            got.contains(needle),
            "{text:?} gave {got:?}, without {needle:?}"
        );
    }
}

/// Found by hand: they were accepted, and matched nothing or had no effect.
#[test]
fn values_without_an_effect_are_refused() {
    for glob in [
        "../x", "a/../b", "./a", "a/.", "a//b", ".", "..", "", "/a", "a/",
    ] {
        says(
            &format!("\napps = [\"*\", \"{glob}\"]"),
            &["line 2: apps: "],
        );
    }
    for glob in ["../x", "./a", "a//b", "", "/a"] {
        let text = format!("[[app]]\nmatch = \"{glob}\"\nage_max_ms = 5");
        says(&text, &["line 2: app ", ".match: "]);
    }
    parse("[[app]]\nmatch = \".\"").unwrap();
    parse("apps = [\"a..b\", \".hidden\", \"**\", \"{a,b}/*\"]").unwrap();
    says(
        "objects_max = 63",
        &["line 1: objects_max: must be at least 64"],
    );
    let text = "[defaults]\nslope_min_micropercent = 1";
    says(
        text,
        &[
            "line 2: defaults.slope_min_micropercent: ",
            "not be positive",
        ],
    );
}

/// Found by hand: `invalid type: string "30s", expected u64`, without the key.
#[test]
#[expect(clippy::too_many_lines, reason = "a list of keys and values")]
fn values_of_the_wrong_kind_are_explained_in_plain_words() {
    for (text, needles) in [
        (
            "\n[defaults]\n\nage_max_ms = \"30s\"",
            &[
                "line 4: defaults.age_max_ms: must be a number of milliseconds",
                "not \"30s\"",
            ][..],
        ),
        ("[app]\nmatch = \"a\"", &["line 1: app: ", "[[app]]"]),
        ("defaults = 5", &["line 1: defaults: ", "[defaults]"]),
        (
            "apps = \"*\"",
            &["line 1: apps: ", "list of globs", "not \"*\""],
        ),
        (
            "apps = [1]",
            &["line 1: apps: ", "list of globs", "not [1]"],
        ),
        (
            "journal_bytes = true",
            &["line 1: journal_bytes: must be a size", "not true"],
        ),
        (
            "journal_bytes = \"1.5GiB\"",
            &["line 1: journal_bytes: \"1.5GiB\" is not a size: write a whole number"],
        ),
        (
            "objects_max = 1.5",
            &["line 1: objects_max: must be a whole number", "not 1.5"],
        ),
        (
            "preallocate_large_bytes = \"17MiB\"",
            &["line 1: preallocate_large_bytes: must be 0", "16MiB"],
        ),
        (
            "preallocate_database_bytes = 100000",
            &["line 1: preallocate_database_bytes: must be a power of two"],
        ),
        (
            "apply_idle_ms = -1",
            &["line 1: apply_idle_ms: must not be negative"],
        ),
        (
            "class = \"durable\"",
            &[
                "line 1: class: there is no key `class` here: settings of all apps stand in \
                 the table [defaults]",
            ],
        ),
        (
            "[default]\nclass = \"durable\"",
            &[
                "line 1: default: there is no key `default` here: ",
                "[defaults]",
            ],
        ),
        (
            "[defaults]\njournal_bytes = 1",
            &[
                "line 2: defaults.journal_bytes: ",
                "a key of the whole mount",
            ],
        ),
        (
            "nokey = 1",
            &[
                "line 1: nokey: there is no key `nokey` here; there are memory_budget_bytes",
                "[[app]]",
            ],
        ),
        (
            "battery_low_percent = 300",
            &["line 1: battery_low_percent: must be at most 100"],
        ),
        // It said "invalid value: integer `99999999999999999999` as i128, expected u64".
        (
            "apply_idle_ms = 99999999999999999999",
            &[
                "line 1: apply_idle_ms: 99999999999999999999 is too large: at most 2147483000 (24 days)",
            ],
        ),
        (
            "objects_max = 99999999999999999999",
            &[
                "line 1: objects_max: 99999999999999999999 is too large: at most 9223372036854775807",
            ],
        ),
        (
            "[defaults]\nslope_min_micropercent = -99999999999999999999",
            &["line 2: defaults.slope_min_micropercent: is too large a number"],
        ),
        // They were accepted; the sum with a time of the clock was another matter.
        (
            "[[app]]\nmatch = \"a\"\nage_max_ms = 2147483001",
            &["line 3: app \"a\".age_max_ms: 2147483001 is too large: at most 2147483000"],
        ),
        (
            "standby_age_max_ms = 0xffffffffffffffffff",
            &["line 1: standby_age_max_ms: ffffffffffffffffff is too large"],
        ),
        (
            "\"no\\nkey\" = 1",
            &[r"line 1: no\nkey: there is no key `no\nkey` here"],
        ),
        (
            "[[app]]\nmatch = 7",
            &["line 2: app.match: must be a glob in quotes"],
        ),
    ] {
        says(text, needles);
    }
}

/// They named the key, but not its line.
#[test]
fn values_that_cannot_be_are_named_with_their_line() {
    for (text, needle) in [
        (
            "\n[defaults]\nage_max_ms = 0",
            "line 3: defaults.age_max_ms: must be at least 1",
        ),
        ("\n\nuser_events = \"all\"", "line 3: user_events: "),
        (
            "\nallow_durable = false\n[defaults]\nclass = \"durable\"",
            "line 2: allow_durable: ",
        ),
        (
            "[[app]]\nmatch = \"a.b\"\n[[app]]\nmatch = \"b\"\nquiet_ms = 0",
            "line 5: app \"b\".quiet_ms: ",
        ),
        // The limit that it contradicts is not written: the line of the table.
        (
            "\n[defaults]\npolicy = \"tpl\"\nstaleness_max_bytes = \"4KiB\"",
            "line 2: defaults.staleness_min_bytes: ",
        ),
        // No line was named, since both tables have the same glob.
        (
            "[[app]]\nmatch = \"a\"\nquiet_ms = 1\n[[app]]\nmatch = \"a\"\nquiet_ms = 0",
            "mobifs.toml, line 6: app \"a\".quiet_ms: ",
        ),
    ] {
        says(text, &[needle]);
    }
}

/// The keys that are listed for people are those that are read.
#[test]
fn every_key_that_is_listed_is_read_and_the_other_way_round() {
    let listed = |text: &str| {
        let error = toml::from_str::<RawConfig>(text)
            .unwrap_err()
            .message()
            .to_owned();
        let mut names: Vec<String> = error
            .split('`')
            .skip(3)
            .step_by(2)
            .map(String::from)
            .collect();
        names.sort();
        names
    };
    let sorted = |keys: &[&str], more: &[&str]| {
        let mut names: Vec<String> = keys.iter().chain(more).map(ToString::to_string).collect();
        names.sort();
        names
    };
    let keys = config_keys();
    let of_mount = sorted(&keys.mount, &["defaults", "app", "history"]);
    assert_eq!(listed("no_such_key = 1"), of_mount);
    let of_app = sorted(&keys.app, &[]);
    assert_eq!(listed("[defaults]\nno_such_key = 1"), of_app);
    assert_eq!(listed("[[app]]\nno_such_key = 1"), of_app);
    let of_history = sorted(&keys.history, &[]);
    assert_eq!(listed("[history]\nno_such_key = 1"), of_history);
}
