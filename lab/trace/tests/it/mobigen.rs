//! MobiGen traces: a small one made by hand, and that of the Facebook app where it is there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::Path;

use mobifs_trace::{EventKind, Format, LoadOptions, Loaded, Trace, import, load};

/// Threads one after another, a guessed event descriptor, a guessed database, a stream, a socket.
const SAMPLE: &str = "\
1 0 open /data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 36
1 0 write 36 4
1 900 write 36 4
1 1000 open /data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 77
1 1000 pwrite 77 4096 100
1 1100 fsync 77 0
1 1200 open data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 40
1 1210 fstat64 40 0
1 1220 write 40 1024
1 1230 write 40 24
1 1240 close 40 0
1 1300 open data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 40
1 1310 close 40 0
2 10 read 50 -1
2 20 write 50 198
2 30 read 50 1448
2 40 open \"/system/a b.ttf\" O_RDONLY|O_LARGEFILE 51
2 50 open \"/none\" O_RDONLY -1
2 60 close 99 0
2 70 unlink \"/data/x\" 0
2 80 open \"/dev/urandom\" O_RDONLY 52
";

fn sample(options: &LoadOptions) -> Loaded {
    let input = Box::new(Cursor::new(SAMPLE.as_bytes()));
    import(
        Format::MobiGen,
        Path::new("mobigen.out.mail"),
        input,
        options,
    )
    .unwrap()
}

fn described(trace: &Trace) -> Vec<String> {
    let events = trace.events.iter().map(|event| {
        let path = String::from_utf8_lossy(trace.path_of(event).unwrap_or_default());
        let range = match event.kind {
            EventKind::Write { offset, length, .. } => format!(" {offset}+{length}"),
            _ => String::new(),
        };
        format!("{} {}{range} {}", event.kind.name(), path, event.result)
    });
    events.collect()
}

#[test]
fn files_are_distinguished_from_pipes_and_sockets() {
    let Loaded { trace, report } = sample(&LoadOptions::default());
    assert_eq!(trace.apps.get(trace.events[0].app), b"mail");
    assert_eq!(
        described(&trace),
        [
            "open /system/a b.ttf 0",
            "open /none -2",
            "unlink /data/x 0",
            "open descriptor-77 0",
            "write descriptor-77 4096+100 100",
            "sync descriptor-77 0",
            "open descriptor-40.1 0",
            "stat descriptor-40.1 0",
            "write descriptor-40.1 0+1024 1024",
            "write descriptor-40.1 1024+24 24",
            "close descriptor-40.1 0",
            "open descriptor-40.2 0",
            "close descriptor-40.2 0",
        ]
    );
    let left_out: Vec<_> = report
        .left_out
        .iter()
        .map(|(why, count)| (why.as_str(), *count))
        .collect();
    assert_eq!(
        left_out,
        [
            ("descriptor of which only the end is known", 1),
            ("file of the kernel: /dev, /proc", 1),
            ("read and written without a place: a socket", 3),
            ("written without a place: a pipe or event descriptor", 3),
        ]
    );
}

#[test]
fn what_is_no_file_can_be_kept() {
    let options = LoadOptions {
        keep_pipes: true,
        ..LoadOptions::default()
    };
    let Loaded { trace, report } = sample(&options);
    assert_eq!(trace.events.len(), SAMPLE.lines().count() - 1);
    assert_eq!(report.left_out.len(), 1, "{:?}", report.left_out);
}

#[test]
fn the_facebook_trace_has_what_was_counted_in_it() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/mobigen.out.facebook");
    if !path.exists() {
        mobifs_skip::skip(format_args!("there is no {}", path.display()));
        return;
    }
    let Loaded { trace, report } = load(&path, &LoadOptions::default()).unwrap();
    assert_eq!((report.lines, report.malformed), (30_819, 0));
    assert_eq!(trace.duration_ns() / 1_000_000_000, 117);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut page_writes, mut pages) = (0, BTreeSet::new());
    for event in &trace.events {
        *counts.entry(event.kind.name()).or_default() += 1;
        if let EventKind::Write {
            path,
            offset,
            length,
        } = event.kind
        {
            for page in offset / 4096..(offset + length).div_ceil(4096) {
                page_writes += 1;
                pages.insert((path, page));
            }
        }
    }
    assert_eq!((counts["sync"], counts["unlink"]), (997, 54));
    // An estimate that took every descriptor for a file, and left out single writes of 1 and 4
    // bytes, had 9,468 page writes. Sockets and pipes are not in these.
    assert_eq!((page_writes, pages.len()), (9_022, 636));
    let left_out: u64 = report.left_out.values().sum();
    assert_eq!(trace.events.len() as u64 + left_out, 30_819);
    assert_eq!(trace.apps.len(), 1);
}
