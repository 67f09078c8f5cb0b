//! Bad input on the command line and in the configuration, case by case: an exit code, and a message
//! that says what is wrong, where, and what to do. No case gets as far as a mount.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output};

use crate::fixture::{Fixture, PROGRAM};

/// The exit code of a wrong command line or configuration.
const USAGE: i32 = 2;
const FAILED: i32 = 1;
const NOT_MOUNTED: i32 = 5;

/// Words of the command line, in which STORE, MNT, FILE and NONE are paths; the exit code; what the
/// message says.
type Call = (&'static str, i32, &'static [&'static str]);

#[rustfmt::skip]
const CALLS: &[Call] = &[
    ("nosuch", USAGE, &["unrecognized subcommand 'nosuch'", "--help"]),
    ("mount", USAGE, &["<STORE>", "Usage: mobifs mount"]),
    ("mount STORE", USAGE, &["<MOUNTPOINT>", "Usage: mobifs mount"]),
    ("mount --confg x STORE MNT", USAGE, &["unexpected argument '--confg'", "--config"]),
    ("mount -o frobnicate STORE MNT", USAGE, &["unknown mount option 'frobnicate'", "--help"]),
    ("mount -o max_read=x STORE MNT", USAGE, &["'max_read'", "number of bytes from 4096 on", "--help"]),
    ("mount -o wait=x STORE MNT", USAGE, &["'wait=x'", "number of seconds"]),
    ("mount NONE MNT", FAILED, &["none does not exist", "mkdir"]),
    ("mount FILE MNT", FAILED, &["file is not a directory"]),
    ("mount STORE NONE", FAILED, &["mount point", "none does not exist"]),
    ("mount STORE STORE", FAILED, &["over itself"]),
    ("mount --config NONE STORE MNT", USAGE, &["cannot read the configuration", "none"]),
    ("mount --log NONE/x STORE MNT", FAILED, &["cannot open the log", "none/x"]),
    ("mount --record NONE/x STORE MNT", FAILED, &["cannot record to", "none/x"]),
    ("umount MNT", NOT_MOUNTED, &["is not a MobiFS mount", "mobifs doctor"]),
    ("umount NONE", NOT_MOUNTED, &["none does not exist"]),
    ("adopt", USAGE, &["<DIRECTORY>", "Usage: mobifs adopt"]),
    ("adopt NONE", FAILED, &["none does not exist", "mkdir"]),
    ("adopt FILE", FAILED, &["file is not a directory"]),
    ("adopt NONE/deep", FAILED, &["cannot examine", "none/deep"]),
    ("adopt --boot upstart STORE", USAGE, &["'upstart'", "auto, systemd, init, none"]),
    ("adopt --boot none --config NONE STORE", USAGE, &["cannot read the configuration", "none"]),
    ("adopt --boot none -o ro STORE", USAGE, &["ro, remount and nonempty are not for an adopted directory"]),
    ("adopt --boot none --at-boot STORE", USAGE, &["--at-boot needs systemd"]),
    ("adopt --list --at-boot", USAGE, &["'--list' cannot be used with '--at-boot'"]),
    ("unadopt STORE", FAILED, &["is not adopted", "mobifs adopt --list"]),
    ("unadopt NONE/deep", FAILED, &["cannot examine", "none/deep"]),
    ("sync MNT", NOT_MOUNTED, &["is not a MobiFS mount", "mobifs doctor"]),
    ("status MNT", NOT_MOUNTED, &["is not a MobiFS mount", "mobifs doctor"]),
    ("status NONE/deep", FAILED, &["cannot examine", "none"]),
    ("status --limit x MNT", USAGE, &["--limit", "\"x\" is not a whole number"]),
    ("status --limit -1 MNT", USAGE, &["--limit", "-1"]),
    ("status --app a", USAGE, &["<MOUNTPOINT>", "Usage: mobifs status"]),
    ("status --history", USAGE, &["name the mount", "mobifs status"]),
    ("status --history --watch MNT", USAGE, &["'--history' cannot be used with '--watch'"]),
    ("status --history STORE", NOT_MOUNTED, &["is not a MobiFS mount"]),
    ("metrics NONE", NOT_MOUNTED, &["none does not exist"]),
    ("metrics --format xml", USAGE, &["'xml'", "openmetrics, prometheus"]),
    ("metrics --textfile NONE/x", FAILED, &["cannot write", "none/x"]),
    ("metrics --listen 9464", USAGE, &["\"9464\" is neither", "127.0.0.1:9464"]),
    ("metrics --listen 127.0.0.1:0 --group root", USAGE, &["--group is for a Unix socket"]),
    ("metrics --listen NONE/x", FAILED, &["cannot listen on", "none/x"]),
    ("metrics --listen STORE/x --group no-such-group", USAGE, &["no group \"no-such-group\"", "groupadd"]),
    ("check NONE", FAILED, &["the store", "none does not exist"]),
    ("check FILE", FAILED, &["file is not a directory"]),
    ("check --wait x STORE", USAGE, &["--wait", "\"x\" is not a whole number"]),
    ("recover NONE", FAILED, &["the store", "none does not exist"]),
    ("recover STORE", FAILED, &["is not a MobiFS store", ".mobifs"]),
    ("recover --dry-run STORE", FAILED, &["is not a MobiFS store", ".mobifs"]),
    ("drill power-cut MNT", USAGE, &["as a power cut would", "--yes"]),
    ("drill power-cut --yes MNT", NOT_MOUNTED, &["is not a MobiFS mount"]),
    ("reload MNT", NOT_MOUNTED, &["is not a MobiFS mount"]),
    ("reload --config NONE MNT", USAGE, &["cannot read the configuration", "none"]),
    ("set MNT", USAGE, &["--app <NAME>", "Usage: mobifs set"]),
    ("set --app a MNT", USAGE, &["nothing to set", "--help"]),
    ("set --app a --class fast MNT", USAGE, &["class: \"fast\"", "\"relaxed\" or \"durable\""]),
    ("set --app a --policy ideal MNT", USAGE, &["policy: \"ideal\"", "\"interval\""]),
    ("set --app a --age-max-ms 5s MNT", USAGE, &["--age-max-ms", "whole number"]),
    ("set --app a --age-max-ms 99999999999 MNT", USAGE, &["age_max_ms: 99999999999 is too large", "24 days"]),
    ("set --app a --age-max-ms 0 MNT", USAGE, &["age_max_ms: must be at least 1"]),
    ("set --app a --staleness-max-bytes 1.5G MNT", USAGE, &["staleness_max_bytes: \"1.5G\" is not a size", "MiB"]),
    ("set --app a --window-points 1 MNT", USAGE, &["window_points: must be from 2 to 1024"]),
    ("set --app a --slope-min-micropercent 5 MNT", USAGE, &["slope_min_micropercent: must not be positive"]),
    ("touch --screen dim MNT", USAGE, &["'dim'", "on, off"]),
    ("restore --at yesterday --to NONE MNT", USAGE, &["`yesterday` is not a time", "-10min"]),
    ("restore --at -10min MNT", USAGE, &["--to <DIR>", "--in-place"]),
    ("restore --at -10min --app ../x --to NONE MNT", USAGE, &["../x"]),
    ("history NONE", FAILED, &["cannot examine", "none"]),
    ("steer MNT", FAILED, &["is steered as a whole: name "]),
    ("steer NONE", FAILED, &["none"]),
    ("doctor NONE", FAILED, &["cannot examine", "none"]),
    ("doctor FILE", FAILED, &["file", "is not a directory"]),
    ("doctor --config NONE", USAGE, &["cannot read the configuration", "none"]),
    ("run", USAGE, &["<COMMAND>", "Usage: mobifs run"]),
    ("run --class fast -- true", USAGE, &["'fast'", "relaxed, durable"]),
];

/// Texts of a configuration, and what is said about them, after its name.
#[rustfmt::skip]
const CONFIGURATIONS: &[(&str, &[&str])] = &[
    ("this is not toml", &[", line 1: "]),
    ("apps = [\"*\"]\nmemory_budget = 1", &[", line 2: memory_budget: there is no key", "memory_budget_bytes"]),
    ("class = \"durable\"", &[", line 1: class: ", "[defaults]"]),
    ("[app]\nmatch = \"a\"", &[", line 1: app: ", "[[app]], with two brackets"]),
    ("[[app]]\nclass = \"durable\"", &[", line 1: app: needs a key `match`"]),
    ("[[app]]\nmatch = \"../x\"", &[", line 2: app \"../x\".match: ", "matches no app"]),
    ("apps = []", &[", line 1: apps: needs at least one glob"]),
    ("memory_budget_bytes = \"1KiB\"", &[", line 1: memory_budget_bytes: must be at least 4MiB"]),
    ("memory_budget_bytes = \"16TiB\"", &[", line 1: memory_budget_bytes: must be at most ", "memory of this machine"]),
    ("journal_bytes = \"many\"", &[", line 1: journal_bytes: \"many\" is not a size", "MiB"]),
    ("journal_bytes = \"1.5GiB\"", &[", line 1: journal_bytes: \"1.5GiB\" is not a size: write a whole number"]),
    ("journal_bytes = \"5TiB\"", &[", line 1: journal_bytes: must be at most 1TiB"]),
    ("apply_idle_ms = 99999999999999999999", &[", line 1: apply_idle_ms: 99999999999999999999 is too large"]),
    ("\n[defaults]\nage_max_ms = \"30s\"", &[", line 3: defaults.age_max_ms: must be a number of milliseconds"]),
    ("[defaults]\nage_max_ms = 3000000000", &[", line 2: defaults.age_max_ms: 3000000000 is too large: at most 2147483000"]),
    ("[defaults]\nclass = \"fast\"", &[", line 2: defaults.class: \"fast\"", "\"relaxed\" or \"durable\""]),
    ("[defaults]\npolicy = \"staleness\"\nstaleness_bytes = \"1GiB\"", &[", line 3: defaults.staleness_bytes: is larger than staleness_max_bytes"]),
    ("[[app]]\nmatch = \"a\"\n[[app]]\nmatch = \"a\"\nquiet_ms = 0", &[", line 5: app \"a\".quiet_ms: must be at least 1"]),
    ("allow_durable = false\n[defaults]\nclass = \"durable\"", &[", line 1: allow_durable: ", "remove one of the two"]),
    ("battery_low_percent = 101", &[", line 1: battery_low_percent: must be at most 100"]),
    ("status_group = \"\"", &[", line 1: status_group: \"\" is not the name of a group"]),
    ("[history]\nkeep_count = 5000", &[", line 2: history.keep_count: must be at most 1000"]),
    ("\"\\u001b[31mkey\" = 1", &[", line 1: \\u{1b}[31mkey: there is no key"]),
];

/// What is said has the needles, in order of nothing; it is one sentence, or the parser's message with
/// the usage; and no character of it commands a terminal.
#[track_caller]
fn says(what: &str, output: &Output, code: i32, needles: &[&str]) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{what}: {said}");
    assert_eq!(output.stdout, b"", "{what}");
    for needle in needles {
        assert!(said.contains(needle), "{what}: {said:?} lacks {needle:?}");
    }
    let is_sentence = said.starts_with("mobifs: ") && said.trim_end().lines().count() == 1;
    let is_of_parser = said.starts_with("error: ") && said.contains("--help");
    assert!(is_sentence || is_of_parser, "{what}: {said:?}");
    assert!(
        said.lines().all(|line| !line.contains(char::is_control)),
        "{what}: {said:?}"
    );
    for jargon in [
        "u64",
        "i128",
        "invalid digit",
        "invalid type",
        "panicked",
        "Os {",
    ] {
        assert!(!said.contains(jargon), "{what}: {said:?} has {jargon:?}");
    }
}

#[test]
fn bad_input_gets_a_code_and_a_sentence() {
    let fixture = Fixture::new();
    fs::write(fixture.path("file"), "precious").unwrap();
    let path = |name: &str| fixture.path(name).to_str().unwrap().to_owned();
    let places = [
        ("STORE", path("store")),
        ("MNT", path("mount")),
        ("FILE", path("file")),
        ("NONE", path("none")),
    ];
    let word = |word: &str| {
        let mut text = word.to_owned();
        for (name, path) in &places {
            text = text.replace(name, path);
        }
        text
    };
    assert!(CALLS.len() + CONFIGURATIONS.len() >= 60);
    for (call, code, needles) in CALLS {
        let mut command = Command::new(PROGRAM);
        command.args(call.split(' ').map(word));
        says(call, &command.output().unwrap(), *code, needles);
    }
    for (text, needles) in CONFIGURATIONS {
        let config = fixture.config(text);
        let output = fixture.try_mount(&["--config", config.to_str().unwrap()]);
        says(text, &output, USAGE, needles);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("mobifs.toml, line "), "{text}: {said}");
    }
    assert!(
        !fixture.store.join(".mobifs").exists(),
        "nothing was done to the store"
    );
    assert_eq!(fs::read(fixture.path("file")).unwrap(), b"precious");
}

/// `MOBIFS_LOG=bogus` was taken for the name of a module, and nothing was logged.
#[test]
fn a_level_of_the_log_that_is_none_is_refused() {
    let fixture = Fixture::new();
    for words in [&["status"][..], &["doctor"], &["check"]] {
        let mut command = Command::new(PROGRAM);
        command.args(words).env("MOBIFS_LOG", "bogus");
        if words != ["status"] {
            command.arg(&fixture.store);
        }
        let needles = ["MOBIFS_LOG is \"bogus\"", "error, warn, info"];
        says("MOBIFS_LOG", &command.output().unwrap(), USAGE, &needles);
    }
    // Only the daemon noticed, and its log had the reason.
    let mut command = Command::new(PROGRAM);
    command.args(["mount".as_ref(), &*fixture.store, &*fixture.mountpoint]);
    command.env("MOBIFS_LOG", "bogus");
    let needles = ["MOBIFS_LOG is \"bogus\"", "error, warn, info"];
    says("MOBIFS_LOG", &command.output().unwrap(), USAGE, &needles);
    assert!(!fixture.store.join(".mobifs").exists());
}

/// The parser of the command line, and messages with paths, repeated what they got.
#[test]
fn what_is_wrong_cannot_command_the_terminal() {
    let fixture = Fixture::new();
    let hostile = std::ffi::OsStr::from_bytes(b"\x1b]0;title\x07\x1b[2J\xff\nline");
    for words in [
        &["status"][..],
        &["umount"],
        &["adopt"],
        &["unadopt"],
        &["check"],
        &["recover"],
        &["doctor"],
        &["sync"],
        &["history"],
        &["metrics"],
        &["nosuch"],
        &["status", "--limit"],
        &["touch", "--screen"],
        &["steer"],
        &["reload", "--config"],
        &["drill", "power-cut"],
    ] {
        let mut command = Command::new(PROGRAM);
        let output = command
            .args(words)
            .arg(hostile)
            .arg(&fixture.mountpoint)
            .output()
            .unwrap();
        let mut alone = Command::new(PROGRAM);
        let alone = alone.args(words).arg(hostile).output().unwrap();
        for output in [output, alone] {
            assert!(!output.status.success(), "{words:?}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                said.lines().all(|line| !line.contains(char::is_control)),
                "{words:?}: {said:?}"
            );
            assert!(!said.is_empty(), "{words:?}");
        }
    }
}
