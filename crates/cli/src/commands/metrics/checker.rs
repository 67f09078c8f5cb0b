//! A strict reader of OpenMetrics, for tests: what `promtool check metrics` and the reference parser
//! refuse, it refuses.

use std::collections::{BTreeMap, BTreeSet};

use super::exposition::{Format, text_of};
use super::families::families;
use crate::commands::mounts::Found;

/// What the text has said of the family that it is in.
#[derive(Default)]
struct Current {
    name: String,
    kind: String,
    unit: Option<String>,
    help: bool,
    samples: usize,
}

/// Reads a whole text; the sample values by name and labels.
///
/// # Errors
/// The first line that the specification does not allow, and why.
fn check(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let body = text
        .strip_suffix("# EOF\n")
        .ok_or("the text does not end with `# EOF` and a newline")?;
    let (mut values, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut current = Current::default();
    for line in body.split_terminator('\n') {
        let wrong = |why: &str| format!("{why}: {line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (keyword, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let value = words
                .next()
                .ok_or_else(|| wrong("a descriptor without a value"))?;
            if !is_name(name) {
                return Err(wrong("no name of a metric"));
            }
            if name != current.name {
                if !seen.insert(name.to_owned()) {
                    return Err(wrong("a family in two places"));
                }
                if !current.name.is_empty() && current.samples == 0 {
                    return Err(wrong("the family before has no samples"));
                }
                current = Current {
                    name: name.to_owned(),
                    ..Current::default()
                };
            }
            if current.samples > 0 {
                return Err(wrong("a descriptor after samples"));
            }
            let is_new = match keyword {
                "TYPE" => std::mem::replace(&mut current.kind, value.to_owned()).is_empty(),
                "HELP" => !std::mem::replace(&mut current.help, true),
                "UNIT" => current.unit.replace(value.to_owned()).is_none(),
                _ => return Err(wrong("an unknown descriptor")),
            };
            if !is_new {
                return Err(wrong("said twice"));
            }
            if !matches!(current.kind.as_str(), "" | "gauge" | "counter" | "info") {
                return Err(wrong("a type that is not used here"));
            }
        } else {
            let (key, value) = sample(line).map_err(wrong)?;
            belongs(&current, &key).map_err(wrong)?;
            if current.kind == "counter" && !(value >= 0.0 && value.is_finite()) {
                return Err(wrong("a counter that cannot be"));
            }
            if current.kind == "info" && value != 1.0 {
                return Err(wrong("an info that is not 1"));
            }
            current.samples += 1;
            if values.insert(key, value).is_some() {
                return Err(wrong("a sample that is there already"));
            }
        }
    }
    Ok(values)
}

/// Whether a sample is one of the family.
fn belongs(family: &Current, key: &str) -> Result<(), &'static str> {
    let suffix = match family.kind.as_str() {
        "counter" => "_total",
        "info" => "_info",
        "gauge" => "",
        _ => return Err("a sample of a family without a type"),
    };
    let name = key.split('{').next().unwrap_or(key);
    if name != format!("{}{suffix}", family.name) {
        return Err("a sample of another family");
    }
    match &family.unit {
        Some(unit) if !family.name.ends_with(&format!("_{unit}")) => {
            Err("the name does not end with the unit")
        }
        _ if family.name.ends_with("_total") => Err("the family's name has the suffix"),
        _ => Ok(()),
    }
}

/// Name and labels, and the value.
fn sample(line: &str) -> Result<(String, f64), &'static str> {
    let end = line
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ':')))
        .ok_or("a sample without a value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("no name of a metric");
    }
    let mut labels = BTreeSet::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
            if !is_name(label) || label.contains(':') || !labels.insert(label.to_owned()) {
                return Err("no name of a label, or one twice");
            }
            rest = quoted(after)?;
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',').ok_or("labels without a comma")?;
        }
    }
    let key = line.strip_suffix(rest).unwrap_or(line).to_owned();
    let number = rest.strip_prefix(' ').ok_or("no space before the value")?;
    if number.is_empty() || number.contains(' ') {
        return Err("not one value");
    }
    let value = number.parse().map_err(|_| "the value is no number")?;
    Ok((key, value))
}

/// What follows the quote that ends a label's value.
fn quoted(text: &str) -> Result<&str, &'static str> {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok(&text[at + 1..]),
            '\\' => match characters.next() {
                Some((_, '\\' | '"' | 'n')) => {}
                _ => return Err("an escape that there is not"),
            },
            _ => {}
        }
    }
    Err("a label without an end")
}

fn is_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':');
    name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// The status of docs/STATUS.md, of a mount with this place and these apps.
fn found(place: &str, apps: &[&str]) -> Found {
    let document = include_str!("../../../../../docs/STATUS.md");
    let example = document.split("```json\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let mut status: mobifs_volume::Status = serde_json::from_str(example).unwrap();
    let app = status.apps.remove(0);
    status.apps = apps
        .iter()
        .enumerate()
        .map(|(n, name)| mobifs_volume::AppReport {
            name: (*name).to_owned(),
            bytes_at_risk: n as u64,
            ..app.clone()
        })
        .collect();
    let table = format!("30 1 0:30 / {place} rw - fuse.mobifs /store rw,user_id=0\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), table).unwrap();
    let mount = mobifs_host::read_mount_table(file.path())
        .unwrap()
        .remove(0);
    Found {
        mount,
        status: Ok(status),
        is_in_tree: true,
        is_covered: false,
    }
}

#[test]
fn the_metrics_of_mounts_with_hostile_names_are_openmetrics() {
    let hostile = ["a\"b", "c\\", "new\nline", "\u{1b}[31m", "音楽", "} 1", ""];
    let mut silent = found("/silent", &[]);
    silent.status = Err(mobifs_daemon::Failure::new(
        mobifs_daemon::Code::Failed,
        "no answer",
    ));
    let mounts = [found("/a\\040b", &hostile), found("/other", &["x"]), silent];
    let all = families(&mounts, 100);
    let text = text_of(&all, Format::OpenMetrics);
    let values = check(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    assert_eq!(values["mobifs_up{mount=\"/a b\"}"], 1.0);
    assert_eq!(values["mobifs_up{mount=\"/silent\"}"], 0.0);
    assert_eq!(values["mobifs_commits_total{mount=\"/other\"}"], 2.0);
    let key = "mobifs_app_at_risk_bytes{mount=\"/a b\",app=\"new\\nline\"}";
    assert_eq!(values[key], 2.0);
    let of_apps = values.keys().filter(|key| key.contains("app=\"")).count();
    assert_eq!(of_apps % (hostile.len() + 1), 0);
    // The older format has the same samples.
    let older = text_of(&all, Format::Prometheus);
    let samples = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(samples(&older), samples(&text));
    // Of many apps those with the most at risk.
    let few = text_of(&families(&mounts, 2), Format::OpenMetrics);
    let values = check(&few).unwrap();
    assert!(values.contains_key("mobifs_app_at_risk_bytes{mount=\"/a b\",app=\"} 1\"}"));
    assert!(!values.contains_key("mobifs_app_at_risk_bytes{mount=\"/a b\",app=\"c\\\\\"}"));
    // Without any mount, it says so by what is missing.
    check(&text_of(&families(&[], 9), Format::OpenMetrics)).unwrap();
}

/// One of them was left out.
#[test]
fn an_app_whose_name_is_written_like_anothers_is_there_too() {
    let mut raw = found("/m", &["\u{fffd}x", "$'\\xffx'"]);
    let status = raw.status.as_mut().unwrap();
    status.apps[0].name_hex = Some("ff78".to_owned());
    let text = text_of(&families(&[raw], 100), Format::OpenMetrics);
    let values = check(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    for (app, at_risk) in [("$'\\\\xffx'#", 0.0), ("$'\\\\xffx'", 1.0)] {
        let key = format!("mobifs_app_at_risk_bytes{{mount=\"/m\",app=\"{app}\"}}");
        assert_eq!(values.get(&key), Some(&at_risk), "{key} in {text}");
    }
}

#[test]
fn the_checker_refuses_what_is_no_openmetrics() {
    for (text, why) in [
        ("a 1\n", "does not end"),
        ("a 1\n# EOF\n", "without a type"),
        ("# TYPE a gauge\n# EOF\n# EOF\n", "value"),
        ("# TYPE a counter\na 1\n# EOF\n", "another family"),
        ("# TYPE a counter\na_total -1\n# EOF\n", "cannot be"),
        ("# TYPE a gauge\na{b=\"\\x\"} 1\n# EOF\n", "an escape"),
        ("# TYPE a gauge\na{b=\"c} 1\n# EOF\n", "without an end"),
        ("# TYPE a gauge\na 1\na 2\n# EOF\n", "there already"),
        ("# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n", "unit"),
        (
            "# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\n# EOF\n",
            "two places",
        ),
        ("# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n# EOF\n", "twice"),
        ("# TYPE a gauge\na{b=\"c\"}  1\n# EOF\n", "one value"),
        ("# TYPE 1a gauge\n1a 1\n# EOF\n", "no name"),
    ] {
        let said = check(text).unwrap_err();
        assert!(said.contains(why), "{text:?}: {said}");
    }
}

/// Every panel of the dashboard asks for metrics that there are.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard = include_str!("../../../../../dist/grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut native = found("/n", &["."]);
    native.status.as_mut().unwrap().native = Some(
        serde_json::from_value(serde_json::json!({
            "filesystem": "ext4", "promise_withdrawn": null, "calls_return_at_once": true,
            "commit_interval_s": 60, "age_max_without_daemon_ms": 60000, "other_commits": 1,
            "largest_transaction_bytes": 1, "written_counter": "filesystem", "options_before": [],
        }))
        .unwrap(),
    );
    let text = text_of(
        &families(&[found("/m", &["a"]), native], 9),
        Format::OpenMetrics,
    );
    let values = check(&text).unwrap();
    let names: BTreeSet<_> = values
        .keys()
        .filter_map(|key| key.split('{').next())
        .collect();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for name in words.filter(|word| word.starts_with("mobifs_")) {
                assert!(names.contains(name), "{name} in {query:?}");
                asked += 1;
            }
        }
    }
    assert!(asked >= 8, "{asked}");
}
