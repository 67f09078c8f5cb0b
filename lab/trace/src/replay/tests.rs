//! Replays of small traces on a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use super::*;
use crate::import::{Format, LoadOptions, import};

const TRACE: &str = "\
7 1.000000 openat(AT_FDCWD, \"/r/app/old\", O_RDONLY) = 3 <0.0001>
7 1.001000 pread64(3, \"\"..., 100, 5000) = 100 <0.0001>
7 1.002000 openat(AT_FDCWD, \"/r/app/new\", O_RDWR|O_CREAT|O_EXCL, 0640) = 4 <0.0001>
7 1.003000 pwrite64(4, \"\"..., 10000, 0) = 10000 <0.0001>
7 1.004000 fdatasync(4) = 0 <0.0001>
7 1.005000 mkdir(\"/r/app/d\", 0755) = 0 <0.0001>
7 1.006000 rename(\"/r/app/new\", \"/r/app/d/moved\") = 0 <0.0001>
7 1.007000 clone(flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 8 <0.0001>
8 1.008000 pwrite64(4, \"\"..., 10, 10000) = 10 <0.0001>
8 1.009000 symlink(\"/etc/passwd\", \"/r/app/link\") = 0 <0.0001>
8 1.010000 unlink(\"/r/app/old\") = 0 <0.0001>
8 1.011000 pread64(3, \"\"..., 100, 0) = 100 <0.0001>
7 1.012000 openat(AT_FDCWD, \"/r/app/none\", O_RDONLY) = -1 ENOENT (No such file) <0.0001>
7 1.013000 openat(AT_FDCWD, \"/r/app/twice\", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 5 <0.0001>
7 1.014000 write(5, \"\"..., 7) = 7 <0.0001>
7 1.015000 rename(\"/r/app/d\", \"/r/app/e\") = 0 <0.0001>
7 1.016000 write(4, \"\"..., 3) = -1 ENOSPC (No space left on device) <0.0001>
8 1.017000 +++ exited with 0 +++
7 1.018000 +++ exited with 0 +++
";

fn trace(text: &'static str) -> Trace {
    let options = LoadOptions {
        strict: true,
        root: Some("/r".into()),
        ..LoadOptions::default()
    };
    let input = Box::new(Cursor::new(text.as_bytes()));
    import(Format::Strace, Path::new("trace"), input, &options)
        .unwrap()
        .trace
}

fn replayed(trace: &Trace, speed: ReplaySpeed, directory: &Path) -> ReplayReport {
    let options = ReplayOptions {
        directory: directory.to_owned(),
        speed,
        seed: 1,
    };
    replay(trace, &options, &|| {}, &|_| {}).unwrap()
}

/// Paths below a directory, with the content of files.
fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_symlink() {
            found.insert(name, fs::read_link(path).unwrap().to_str().unwrap().into());
        } else if path.is_dir() {
            for (below, content) in tree(&path) {
                found.insert(format!("{name}/{below}"), content);
            }
        } else {
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn a_replay_leaves_what_the_trace_left() {
    let trace = trace(TRACE);
    let mut trees = Vec::new();
    for speed in [ReplaySpeed::Full, ReplaySpeed::Scaled(10.0)] {
        let directory = tempfile::tempdir().unwrap();
        let report = replayed(&trace, speed, directory.path());
        let found = tree(directory.path());
        let sizes: Vec<_> = found
            .iter()
            .map(|(name, content)| (name.as_str(), content.len()))
            .collect();
        // The link's target is another one than in the trace, with nine letters, too.
        assert_eq!(
            sizes,
            [("app/e/moved", 10_010), ("app/link", 9), ("app/twice", 7)]
        );
        assert_eq!(found["app/link"], b"elsewhere");
        assert_eq!(
            (
                report.files_prepared,
                report.bytes_prepared,
                report.links_changed
            ),
            (1, 5_100, 1)
        );
        assert_eq!(
            (report.events, report.short_reads),
            (trace.events.len() as u64, 0)
        );
        // The write that failed in the trace for want of space did not fail now.
        let differences: Vec<_> = report.differences.iter().collect();
        let expected = Difference {
            operation: "write",
            recorded_errno: 28,
            errno: 0,
        };
        assert_eq!(differences, [(&expected, &1)]);
        let writes = report
            .latencies
            .iter()
            .find(|latency| latency.operation == "write");
        assert_eq!(
            writes.map(|writes| (writes.count, writes.recorded_p50_ns / 1_000)),
            Some((4, 100))
        );
        trees.push(found);
    }
    assert_eq!(trees[0], trees[1], "the seed decides the content");
}

#[test]
fn nothing_outside_the_directory_is_touched() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("inside");
    fs::create_dir(&directory).unwrap();
    let mut builder = crate::TraceBuilder::default();
    let app = builder.app(b".");
    for (time, path) in [b"../../up", &b"/etc/absolute"[..], b"a/../../b"]
        .into_iter()
        .enumerate()
    {
        let path = builder.path(path);
        builder.push(Event {
            time: crate::TraceNs(time as u64),
            app,
            process: 1,
            thread: 1,
            kind: EventKind::Create { path, mode: 0o644 },
            result: 0,
            duration_ns: 0,
        });
    }
    let report = replayed(&builder.finish(), ReplaySpeed::Full, &directory);
    assert!(report.differences.is_empty(), "{report:?}");
    let found: Vec<String> = tree(outside.path()).into_keys().collect();
    assert_eq!(found, ["inside/a/b", "inside/etc/absolute", "inside/up"]);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let options = ReplayOptions {
        directory: directory.path().to_owned(),
        speed: ReplaySpeed::Full,
        seed: 1,
    };
    let block = Box::new(Cursor::new(&b"a-1,8,R,0,8,1.0\n"[..]));
    let block = import(
        Format::Pixel,
        Path::new("trace"),
        block,
        &LoadOptions::default(),
    )
    .unwrap();
    let error = replay(&block.trace, &options, &|| {}, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("mobifs flash replay"), "{error}");
    fs::write(directory.path().join("precious"), "x").unwrap();
    let error = replay(&trace(TRACE), &options, &|| {}, &|_| {}).unwrap_err();
    assert!(matches!(error, ReplayError::NotEmpty(_)), "{error}");
}
