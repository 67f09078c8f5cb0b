//! Traces: stored ones, and those of other tools.

use std::io::{Cursor, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Once;

use mobifs_base::{FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation};
use mobifs_recording::{LogHeader, LogPart, Observation, start_log};
use mobifs_trace::{
    Format, LoadOptions, Trace, UserOperation, catches_panics, import, read as read_trace,
    write as write_trace,
};

use crate::{Target, Verdict};

/// A stored trace.
pub const TRACE_PARQUET: Target = Target {
    name: "trace_parquet",
    run: stored,
    seeds: || {
        let seeds = [(Format::Strace, STRACE), (Format::MobiGen, MOBIGEN)];
        let traces = seeds.map(|(format, text)| imported(format, text.as_bytes()));
        let stored = traces.into_iter().flatten();
        stored.map(|trace| bytes(&trace)).collect()
    },
};

/// A trace of MobiGen.
pub const TRACE_MOBIGEN: Target = Target {
    name: "trace_mobigen",
    run: |input| text(Format::MobiGen, input),
    seeds: || vec![MOBIGEN.as_bytes().to_vec()],
};

/// The output of strace.
pub const TRACE_STRACE: Target = Target {
    name: "trace_strace",
    run: |input| text(Format::Strace, input),
    seeds: || vec![STRACE.as_bytes().to_vec()],
};

/// The output of blkparse.
pub const TRACE_BLKPARSE: Target = Target {
    name: "trace_blkparse",
    run: |input| text(Format::Blkparse, input),
    seeds: || vec![BLKPARSE.as_bytes().to_vec()],
};

/// What a recorded mount has written.
pub const TRACE_RECORDING: Target = Target {
    name: "trace_recording",
    run: |input| text(Format::Recording, input),
    seeds: || {
        let written = recording();
        written.map_or_else(|error| panic!("{error}"), |bytes| vec![bytes])
    },
};

const fn found(id: u64, is_directory: bool) -> Option<FoundObject> {
    Some(FoundObject {
        id: ObjectId(id),
        is_directory,
    })
}

/// What is done to which object: some of everything.
const RECORDED: &[(u64, Operation<'static>)] = &[
    (
        1,
        Operation::MakeDirectory {
            name: b"a",
            mode: 0o755,
            made: found(2, true),
        },
    ),
    (
        2,
        Operation::MakeFile {
            name: b"b",
            mode: 0o644,
            made: found(3, false),
        },
    ),
    (
        3,
        Operation::Write {
            offset: 1,
            length: 5,
            moved: 5,
        },
    ),
    (
        3,
        Operation::Copy {
            offset: 0,
            target: ObjectId(3),
            target_offset: 9,
            length: 4,
            moved: 4,
        },
    ),
    (
        2,
        Operation::Rename {
            name: b"b",
            new_directory: ObjectId(1),
            new_name: b"c",
            is_exchange: false,
        },
    ),
    (1, Operation::Unlink { name: b"c" }),
    (3, Operation::Sync { is_data_only: true }),
    (3, Operation::Forget { lookups: 1 }),
];

fn recording() -> std::io::Result<Vec<u8>> {
    let begun_at = MonotonicNs(1_000);
    let mut part = LogPart::default();
    for &(object, operation) in RECORDED {
        let observed = ObservedOperation {
            begun_at,
            duration_ns: 3,
            thread: 9,
            object: ObjectId(object),
            operation,
            error: 0,
        };
        part.push(&Observation::Operation {
            process: 9,
            observed,
        });
    }
    part.push(&Observation::User {
        at: begun_at,
        operation: UserOperation::Touch,
    });
    let mut file = tempfile::tempfile()?;
    let header = LogHeader {
        apps: vec!["*".to_owned()],
        ..LogHeader::default()
    };
    start_log(&mut file, &header)?;
    file.write_all(part.frame(1))?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

const MOBIGEN: &str = "\
1 0 open /data/data O_WRONLY|O_CREAT|O_TRUNC|O_LARGEFILE 36
1 0 write 36 4
1 1000 open data/data O_RDWR|O_CREAT 77
1 1000 pwrite 77 4096 100
2 1100 fsync 77 0
2 1200 open \"/system/a b.ttf\" O_RDONLY|O_LARGEFILE -1
2 1200 read 50 -1
2 1300 close 77 0
";

const STRACE: &str = "\
7 1700000000.000000 chdir(\"/r\") = 0 <0.000010>
7 1700000000.000100 openat(AT_FDCWD, \"app/x\\ny\", O_RDWR|O_CREAT|O_EXCL, 0640) = 3 <0.000020>
7 1700000000.000200 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>
8 1700000000.000250 write(3</r/app/x>, \"\"..., 5 <unfinished ...>
7 1700000000.000260 <... clone resumed>, child_tidptr=0x7f) = 8 <0.000060>
8 1700000000.000300 <... write resumed>) = 5 <0.000050>
8 1700000000.000320 writev(3, [{iov_base=\"\"..., iov_len=3}], 1) = 3 <0.000001>
8 1700000000.000340 rename(\"app\", \"other\") = 0 <0.000001>
8 1700000000.000350 renameat2(AT_FDCWD, \"a\", AT_FDCWD, \"b\", RENAME_EXCHANGE) = 0 <0.000001>
[pid 8] 12:00:01.5 mmap(NULL, 8192, PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000
8 1700000000.000390 msync(0x7f0000001000, 4096, MS_SYNC) = -1 EIO (Input/output error)
8 1700000000.000395 copy_file_range(3, [0], 3, [100] => [110], 10, 0) = 10 <0.000001>
8 1700000000.000396 fallocate(3, FALLOC_FL_KEEP_SIZE, 0, 4096) = 0
8 1700000000.000397 newfstatat(3, \"\", {st_mode=S_IFREG|0644, st_size=8192, ...}, AT_EMPTY_PATH) = 0
8 1700000000.000398 unlinkat(AT_FDCWD</r>, \"other\", AT_REMOVEDIR) = 0
8 1700000000.000400 +++ exited with 0 +++
";

const BLKPARSE: &str = "  8,0 3 2 0.000001829   697  D  WS 223490 + 8 [kjournald]
  8,16   1        4     0.500000000    42  D  FN [kworker/1:1H]
  8,16   1        5     0.600000000    42  D  FWFS 16 + 16 [my app]
";

/// The formats that are of tools: the file is read whatever its lines are.
fn imported(format: Format, input: &[u8]) -> Option<Trace> {
    let options = LoadOptions {
        root: Some(PathBuf::from("/r")),
        ..LoadOptions::default()
    };
    let input = Box::new(Cursor::new(input.to_vec()));
    let loaded = import(format, Path::new("trace"), input, &options).ok()?;
    assert!(loaded.report.malformed <= loaded.report.lines);
    Some(loaded.trace)
}

fn bytes(trace: &Trace) -> Vec<u8> {
    write_trace(trace, Vec::new()).unwrap_or_else(|error| panic!("{error}"))
}

/// What was imported can be stored and is the same when it is read again.
fn text(format: Format, input: &[u8]) -> Verdict {
    let Some(trace) = imported(format, input) else {
        return Verdict::Refused;
    };
    let times = trace.events.windows(2);
    assert!(times.clone().all(|pair| pair[0].time <= pair[1].time));
    check_it_can_be_stored(&trace);
    if trace.events.is_empty() {
        Verdict::Refused
    } else {
        Verdict::Taken
    }
}

fn check_it_can_be_stored(trace: &Trace) {
    let again = read_trace(bytes(trace)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.header, trace.header);
    assert_eq!(described(&again), described(trace));
}

/// Events with their names in place of indices, which depend on what was left out, and on
/// the order in which events were met.
fn described(trace: &Trace) -> Vec<impl PartialEq + std::fmt::Debug> {
    let events = trace.events.iter().map(|event| {
        let target = event.kind.target().map(|target| trace.paths.get(target));
        let kind = event.kind.with_paths(|_| mobifs_trace::PathIndex(0));
        let numbers = (
            event.time,
            event.process,
            event.thread,
            event.result,
            event.duration_ns,
        );
        (
            kind,
            trace.path_of(event),
            target,
            trace.app_of(event),
            numbers,
        )
    });
    events.collect()
}

/// The fuzzer's hook ends the process at any panic, also at one that is caught.
fn forgive_panics_that_are_caught() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !catches_panics() {
                report(panic);
            }
        }));
    });
}

fn stored(input: &[u8]) -> Verdict {
    forgive_panics_that_are_caught();
    let trace = read_trace(input.to_vec());
    if let Ok(trace) = &trace {
        check_it_can_be_stored(trace);
    }
    Verdict::from(&trace)
}
