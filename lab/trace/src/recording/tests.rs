use std::fs::{File, OpenOptions};
use std::io::Write as _;

use mobifs_base::{FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation};
use mobifs_recording::{LogError, LogHeader, LogPart, Observation, resume_log, start_log};
use proptest::prelude::*;

use super::*;
use crate::model::{Event, EventKind, Trace};
use crate::store::{GROUP_EVENTS, read_file};
use crate::{LoadOptions, load};

fn operation(at: u64, object: u64, operation: Operation<'_>) -> Observation<'_> {
    Observation::Operation {
        process: 7,
        observed: ObservedOperation {
            begun_at: MonotonicNs(at),
            duration_ns: 5,
            thread: 8,
            object: ObjectId(object),
            operation,
            error: 0,
        },
    }
}

fn file(id: u64) -> FoundObject {
    FoundObject {
        id: ObjectId(id),
        is_directory: false,
    }
}

fn directory(id: u64) -> FoundObject {
    FoundObject {
        id: ObjectId(id),
        is_directory: true,
    }
}

fn write_at(offset: u64) -> Operation<'static> {
    Operation::Write {
        offset,
        length: 10,
        moved: 10,
    }
}

/// A log with these frames.
fn log(frames: &[&[Observation<'_>]]) -> Vec<u8> {
    let mut output = tempfile::tempfile().unwrap();
    let header = LogHeader {
        started_at: MonotonicNs(1000),
        tool: "test".to_owned(),
        apps: vec!["*".to_owned()],
        notes: vec!["mount of /x\ny".to_owned()],
    };
    start_log(&mut output, &header).unwrap();
    for observations in frames {
        let mut part = LogPart::default();
        observations.iter().for_each(|one| part.push(one));
        assert_eq!(part.len(), observations.len() as u64);
        output.write_all(part.frame(0)).unwrap();
    }
    bytes_of(output)
}

fn bytes_of(mut file: File) -> Vec<u8> {
    use std::io::{Read as _, Seek as _};
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn said(trace: &Trace, event: &Event) -> String {
    let path = |path| String::from_utf8_lossy(trace.paths.get(path)).into_owned();
    let target = event
        .kind
        .target()
        .map(|target| format!(" {}", path(target)));
    format!(
        "{} {} {}{} {}",
        event.time.0,
        String::from_utf8_lossy(trace.app_of(event)),
        event.kind.name(),
        event
            .kind
            .path()
            .map_or_else(String::new, |at| format!(" {}", path(at)))
            + &target.unwrap_or_default(),
        event.result
    )
}

fn read(log: &[u8]) -> (Vec<String>, Trace) {
    let (trace, _) = read_log_bytes(log).unwrap();
    let said = trace.events.iter().map(|event| said(&trace, event));
    (said.collect(), trace)
}

#[test]
fn names_are_those_of_the_moment_whatever_the_log_has_first() {
    let make = Operation::MakeDirectory {
        name: b"mail",
        mode: 0o755,
        made: Some(directory(2)),
    };
    let create = Operation::MakeFile {
        name: b"a",
        mode: 0o600,
        made: Some(file(3)),
    };
    let rename = Operation::Rename {
        name: b"mail",
        new_directory: ObjectId(1),
        new_name: b"post",
        is_exchange: false,
    };
    // A long write that began before the directory was renamed comes last; another worker's
    // frame has what began first.
    let log = log(&[
        &[operation(1300, 1, rename), operation(1400, 3, write_at(20))],
        &[operation(1000, 1, make), operation(1100, 2, create)],
        &[operation(1200, 3, write_at(10))],
    ]);
    let (said, trace) = read(&log);
    assert_eq!(
        said,
        [
            "0 mail make_directory mail 0",
            "100 mail create mail/a 0",
            "200 mail write mail/a 10",
            "300 . rename mail post 0",
            "400 post write post/a 10",
        ]
    );
    assert_eq!(trace.header.source, "mount");
    assert_eq!(trace.header.notes, ["mount of /x y"]);
    assert!(
        trace
            .events
            .iter()
            .all(|event| (event.process, event.thread) == (7, 8))
    );
}

#[test]
fn a_file_without_names_is_followed_to_its_end() {
    let found = |name, id| Operation::Lookup {
        name,
        found: Some(file(id)),
    };
    let release = Operation::Forget { lookups: 1 };
    let log = log(&[&[
        operation(1000, 1, found(b"a", 3)),
        operation(1001, 1, found(b"b", 3)),
        operation(1002, 1, Operation::Unlink { name: b"b" }),
        operation(1003, 3, write_at(0)),
        operation(1004, 1, Operation::Unlink { name: b"a" }),
        operation(
            1005,
            1,
            Operation::Lookup {
                name: b"a",
                found: None,
            },
        ),
        operation(1006, 3, write_at(1)),
        operation(1007, 3, release),
        operation(1008, 3, release),
        // Gone, and no operation had used it without a name.
        operation(1009, 1, found(b"c", 4)),
        operation(1010, 1, Operation::Unlink { name: b"c" }),
        operation(1011, 4, release),
        // The number is another file's.
        operation(1012, 1, found(b"d", 3)),
        operation(1013, 3, write_at(2)),
    ]]);
    let (said, _) = read(&log);
    let expected = [
        "0 . stat a 0",
        "1 . stat b 0",
        "2 . unlink b 0",
        "3 . write a 10",
        "4 . unlink a 0",
        "5 . stat a -2",
        "6 . write a\0 10",
        "8 . close a\0 0",
        "9 . stat c 0",
        "10 . unlink c 0",
        "12 . stat d 0",
        "13 . write d 10",
    ];
    assert_eq!(said, expected);
}

#[test]
fn what_is_lost_is_said_and_what_was_known_stays_known() {
    let found = Operation::Lookup {
        name: b"a",
        found: Some(file(3)),
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    std::fs::write(&path, log(&[&[operation(1000, 1, found)]])).unwrap();
    let mut options = OpenOptions::new();
    let mut output = options.read(true).write(true).open(&path).unwrap();
    // Killed in the middle of a frame.
    let mut part = LogPart::default();
    part.push(&operation(1001, 3, write_at(0)));
    let frame = part.frame(0).to_vec();
    let whole = bytes_of(output.try_clone().unwrap()).len() as u64;
    output.write_all(&frame[..frame.len() - 1]).unwrap();
    let end = resume_log(&mut output, "a gap").unwrap();
    assert_eq!(end, bytes_of(output.try_clone().unwrap()).len() as u64);
    assert!(end > whole);
    part.clear();
    // The kernel gives back references that the recording has not seen it take.
    part.push(&operation(1002, 3, Operation::Forget { lookups: 1 }));
    part.push(&operation(1003, 3, write_at(1)));
    part.push(&operation(1004, 99, write_at(2)));
    output.write_all(part.frame(4)).unwrap();
    drop(output);
    let loaded = load(&path, &LoadOptions::default()).unwrap();
    let trace = &loaded.trace;
    let said: Vec<String> = trace
        .events
        .iter()
        .map(|event| said(trace, event))
        .collect();
    assert_eq!(said, ["0 . stat a 0", "3 . write a 10"]);
    let notes = trace.header.notes.join("\n");
    for needle in [
        "lost: 4 operations",
        "lost: a gap",
        "names were not recorded: 1",
    ] {
        assert!(notes.contains(needle), "{notes}");
    }
}

/// Each event had the full path of what it is about: a program that goes thousands of directories
/// deep had as many paths written, each longer than the one before.
#[test]
fn a_path_that_no_call_takes_is_left_out() {
    const DEPTH: u64 = 5000;
    const NAME: &[u8] = &[b'd'; 200];
    let mut observations = Vec::new();
    for level in 1..DEPTH {
        let make = Operation::MakeDirectory {
            name: NAME,
            mode: 0o755,
            made: Some(directory(level + 1)),
        };
        observations.push(operation(1000 + level, level, make));
    }
    // What happens near the root has its path, and what is moved there gets one.
    observations.push(operation(9000, 3, Operation::Look));
    let rename = Operation::Rename {
        name: NAME,
        new_directory: ObjectId(1),
        new_name: b"near",
        is_exchange: false,
    };
    observations.push(operation(9001, DEPTH - 1, rename));
    observations.push(operation(9002, DEPTH, Operation::Look));
    let (said, trace) = read(&log(&[&observations]));
    let path_bytes_max = 4095;
    let levels = path_bytes_max / (NAME.len() + 1);
    assert_eq!(
        said.len(),
        levels + 2,
        "directories, and two that are looked at"
    );
    let paths = trace.events.iter().filter_map(|event| event.kind.path());
    let longest = paths.map(|path| trace.paths.get(path).len()).max();
    assert_eq!(longest, Some(levels * (NAME.len() + 1) - 1));
    assert!(said[levels + 1].ends_with("stat near 0"), "{said:?}");
    let notes = trace.header.notes.join("\n");
    let left_out = DEPTH as usize - 1 - levels + 1;
    let expected = format!("longer than 4095 bytes: {left_out}");
    assert!(notes.contains(&expected), "{notes}");
}

#[test]
fn a_log_of_any_length_becomes_a_trace() {
    let count = GROUP_EVENTS as u64 + 1000;
    let found = Operation::Lookup {
        name: b"a",
        found: Some(file(3)),
    };
    let mut observations = vec![operation(1000, 1, found)];
    // Two workers whose operations cross.
    observations.extend((0..count).map(|at| operation(1001 + (at ^ 1), 3, write_at(at))));
    let frames: Vec<&[Observation<'_>]> = observations.chunks(999).collect();
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("log"), directory.path().join("trace"));
    let log = log(&frames);
    std::fs::write(&from, &log).unwrap();
    let (converted, _) = convert(&from, File::create(&to).unwrap()).unwrap();
    assert_eq!(converted.events, count + 1);
    let trace = read_file(&to).unwrap();
    assert_eq!(trace, read_log_bytes(&log).unwrap().0);
    let offsets = trace.events[1..].iter().map(|event| match event.kind {
        EventKind::Write { offset, .. } => offset,
        _ => panic!("{event:?}"),
    });
    assert!(offsets.eq((0..count).map(|at| at ^ 1)));
}

#[test]
fn what_is_no_log_is_refused() {
    for bytes in [
        &b""[..],
        b"PAR1",
        b"MobiFSrecording\x02",
        &mobifs_recording::MAGIC,
    ] {
        assert!(read_log_bytes(bytes).is_err());
    }
    let mut damaged = log(&[]);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(
        read_log_bytes(&damaged),
        Err(ConvertError::Log(LogError::Header(_)))
    ));
}

/// A frame of bytes that may be no observations, by the table of docs/TRACES.md.
fn observations_frame(payload: &[u8]) -> Vec<u8> {
    let mut head = (payload.len() as u32).to_le_bytes().to_vec();
    head.extend(2_u32.to_le_bytes());
    head.extend([0; 16]);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head), payload);
    [b"FRAM", &checksum.to_le_bytes()[..], &head, payload].concat()
}

proptest! {
    /// Hostile bytes in a whole frame: a trace, never a panic.
    #[test]
    fn reading_is_total(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut whole = log(&[]);
        whole.extend(observations_frame(&payload));
        prop_assert!(read_log_bytes(&whole).is_ok());
    }
}
