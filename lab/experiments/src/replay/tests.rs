use std::path::Path;

use mobifs_device_model::Preset;

use super::*;

/// Twelve lines, two of which are nonsense, one a repeat.
const TRACE: &str = "\
proces,device,rw_flag,sector,size,timestamp
app-1,8388608,W,0,8,100.000000
app-1,8388608,W,8,8,100.001000
kworker/u17:1-9,8388608,W,8,8,100.002000
app-1,8388608,R,0,16,100.500000
what is this
app-1,8388608,R,4096,8,100.600000
app-1,8388608,FWFS,16,8,101.000000
app-1,8388608,W,24,-8,101.000000
app-1,8388608,D,0,8,102.000000
app-1,8388608,F,0,0,102.000000
app-1,8388608,R,16,8,101.500000
";
const CAPACITY_BYTES: u64 = 64 << 20;

fn options() -> Options {
    Options {
        pace: Pace::Recorded { scale: 1.0 },
        read: ReadOptions::default(),
        fill: Fill::Reads,
    }
}

fn host() -> Host {
    Host::new(&Preset::Ufs31.config().unwrap(), CAPACITY_BYTES, 1).unwrap()
}

fn file(directory: &Path, content: &str) -> PathBuf {
    let path = directory.join("trace.csv");
    std::fs::write(&path, content).unwrap();
    path
}

fn replayed(content: &str, options: &Options) -> Result<Replay, ReplayError> {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), content);
    replay(&mut host(), &[], &[path], options)
}

fn count(replay: &Replay, kind: &str) -> u64 {
    let mut commands = replay.execution.device.commands.iter();
    commands
        .find(|of| of.kind == kind)
        .map_or(0, |of| of.commands)
}

#[test]
fn every_line_is_accounted_for() {
    let replay = replayed(TRACE, &options()).unwrap();
    let lines = &replay.execution.lines;
    assert_eq!(lines.lines, 12);
    assert_eq!(lines.malformed, 2);
    assert_eq!(lines.repeats_dropped, 1);
    assert_eq!(lines.out_of_order, 1);
    assert!(lines.malformed_quoted[0].ends_with(
        "line 6: 1 columns where 6 are needed: process,device,rw_flag,sector,size,timestamp"
    ));
    assert!(lines.malformed_quoted[1].contains("line 9: the size '-8'"));
    for (kind, commands) in [
        ("read", 3),
        ("write", 2),
        ("reliable_write", 1),
        ("flush", 2),
        ("discard", 1),
    ] {
        assert_eq!(count(&replay, kind), commands, "{kind}");
    }
    assert_eq!(replay.execution.requests, 9);
    // Page 512 is read and was never written.
    assert_eq!(replay.filled_pages, 1);
}

#[test]
fn repeats_count_when_they_are_asked_for() {
    let mut options = options();
    options.read.keep_repeats = true;
    let replay = replayed(TRACE, &options).unwrap();
    assert_eq!(count(&replay, "write"), 3);
}

#[test]
fn recorded_times_can_be_stretched_or_left_out() {
    let at = |pace| {
        let replay = replayed(TRACE, &Options { pace, ..options() }).unwrap();
        assert_eq!(replay.execution.recorded_ns, 2_000_000_000);
        replay.execution.elapsed_ns
    };
    assert!(at(Pace::Recorded { scale: 1.0 }) >= 2_000_000_000);
    assert!(at(Pace::Recorded { scale: 3.0 }) >= 6_000_000_000);
    assert!(at(Pace::AsFastAsPossible { depth: 4 }) < 100_000_000);
}

#[test]
fn a_replay_can_be_repeated() {
    let device = || {
        let replay = replayed(TRACE, &options()).unwrap();
        serde_json::to_string(&replay.execution.device).unwrap()
    };
    assert_eq!(device(), device());
}

#[test]
fn strict_stops_at_the_first_bad_line() {
    let mut options = options();
    options.read.strict = true;
    let error = replayed(TRACE, &options).unwrap_err();
    assert!(error.to_string().contains("line 6: 1 columns"), "{error}");
}

#[test]
fn an_address_beyond_the_device_is_an_error_or_wrapped() {
    let device_sectors = CAPACITY_BYTES / 512;
    let line = format!("a-1,8,W,{},16,1.0\n", 3 * device_sectors - 8);
    let error = replayed(&line, &options()).unwrap_err();
    let expected = "line 1: the request ends at sector 393224, the device has 131072";
    assert!(error.to_string().ends_with(expected), "{error}");

    let mut options = options();
    options.read.wrap = true;
    let replay = replayed(&line, &options).unwrap();
    assert_eq!(replay.execution.lines.wrapped, 1);
    // Half of it at the end of the device, half at its beginning.
    assert_eq!(replay.execution.requests, 2);
    let regions = &replay.execution.device.regions;
    assert_eq!(regions.first().unwrap().sectors_written, 8);
    assert_eq!(regions.last().unwrap().sectors_written, 8);
}

#[test]
fn a_request_larger_than_the_device_cannot_be_wrapped() {
    let mut options = options();
    options.read.wrap = true;
    let result = replayed("a-1,8,W,0,4294967295,1.0\n", &options);
    assert!(matches!(result, Err(ReplayError::Beyond { .. })));
    // Nor does the largest address overflow.
    let replay = replayed("a-1,8,W,18446744073709551615,8,1.0\n", &options).unwrap();
    assert_eq!(replay.execution.lines.wrapped, 1);
}

#[test]
fn a_precondition_is_not_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), TRACE);
    let mut host = host();
    let traces = std::slice::from_ref(&path);
    let replay = replay(&mut host, traces, traces, &options()).unwrap();
    let precondition = replay.precondition.as_ref().unwrap();
    assert_eq!(precondition.requests, replay.execution.requests);
    assert_eq!(count(&replay, "read"), 3);
    host.model().check().unwrap();
}

#[test]
fn a_full_device_has_every_page() {
    let options = Options {
        fill: Fill::Everything,
        ..options()
    };
    let replay = replayed(TRACE, &options).unwrap();
    assert_eq!(replay.filled_pages, CAPACITY_BYTES / 4096);
}

#[test]
fn a_missing_trace_is_named() {
    let missing = [PathBuf::from("no-such-trace.csv")];
    let error = replay(&mut host(), &[], &missing, &options()).unwrap_err();
    assert!(
        error.to_string().starts_with("no-such-trace.csv"),
        "{error}"
    );
}
