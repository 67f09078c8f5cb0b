//! Round trips, and files that are no traces.

use std::sync::Arc;

use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::*;
use crate::model::*;

fn bytes(trace: &Trace) -> Vec<u8> {
    write(trace, Vec::new()).unwrap()
}

fn read_bytes(bytes: &[u8]) -> Result<Trace, ReadError> {
    read(bytes.to_vec())
}

/// What concerns no name and no content.
fn further_kinds() -> impl Strategy<Value = EventKind> {
    let other = (
        0..5_usize,
        (0..4_u32).prop_map(PathIndex),
        any::<u64>(),
        0..512_usize,
    );
    other.prop_map(|(which, path, offset, bits)| match which {
        0 => EventKind::SyncAll,
        1 => EventKind::User(UserOperation::ALL[bits % UserOperation::ALL.len()]),
        2 => EventKind::Device(DeviceState::ALL[bits % DeviceState::ALL.len()]),
        3 => EventKind::RemoveXattr { path },
        _ => EventKind::Block {
            device: offset ^ 7,
            command: BlockCommand::ALL[bits % BlockCommand::ALL.len()],
            offset,
            length: bits as u64,
            is_forced_unit_access: bits % 2 == 0,
        },
    })
}

fn kinds() -> impl Strategy<Value = EventKind> {
    let path = || (0..4_u32).prop_map(PathIndex);
    let name = (path(), path(), any::<u32>(), any::<bool>());
    let name = (0..9_usize, name).prop_map(|(which, (path, other, mode, exchange))| match which {
        0 => EventKind::Create { path, mode },
        1 => EventKind::MakeDirectory { path, mode },
        2 => EventKind::Symlink {
            path,
            target: other,
        },
        3 => EventKind::Link {
            from: path,
            to: other,
        },
        4 => EventKind::Rename {
            from: path,
            to: other,
            exchange,
        },
        5 => EventKind::Unlink { path },
        6 => EventKind::RemoveDirectory { path },
        7 => EventKind::Stat { path },
        _ => EventKind::ReadDirectory { path },
    });
    let file = (path(), any::<u64>(), any::<u64>(), 0..512_usize);
    let file = (0..9_usize, file).prop_map(|(which, (path, offset, length, bits))| match which {
        0 => {
            let chosen = OpenFlags::WORDS.iter().enumerate();
            let chosen = chosen.filter(|(bit, _)| bits >> bit & 1 == 1);
            let flags = chosen.fold(OpenFlags::NONE, |flags, (_, (flag, _))| flags | *flag);
            EventKind::Open { path, flags }
        }
        1 => EventKind::Close { path },
        2 => EventKind::Read {
            path,
            offset,
            length,
        },
        3 => EventKind::Write {
            path,
            offset,
            length,
        },
        4 => EventKind::Truncate { path, length },
        5 => EventKind::Allocate {
            path,
            mode: AllocateMode::ALL[bits % AllocateMode::ALL.len()],
            offset,
            length,
        },
        6 => EventKind::Sync {
            path,
            data_only: bits % 2 == 0,
        },
        7 => EventKind::SetAttributes {
            path,
            attribute: Attribute::ALL[bits % Attribute::ALL.len()],
        },
        _ => EventKind::SetXattr { path, length },
    });
    prop_oneof![name, file, further_kinds()]
}

prop_compose! {
    fn events()(
        time in any::<u64>(),
        app in 0..2_u32,
        process in any::<u32>(),
        thread in any::<u32>(),
        kind in kinds(),
        result in any::<i64>(),
        duration_ns in any::<u64>(),
    ) -> Event {
        Event { time: TraceNs(time), app: AppIndex(app), process, thread, kind, result, duration_ns }
    }
}

/// The trace with names only where events have them, in the order of their first use.
fn canonical(trace: &Trace) -> Trace {
    let everything = crate::Selection {
        from: TraceNs(0),
        until: TraceNs(u64::MAX),
        app: &|_| true,
        path: &|_| true,
        moves_start: false,
    };
    let header = trace.header.clone();
    let last = |event: &&Event| event.time == TraceNs(u64::MAX);
    assert!(
        trace.events.iter().find(last).is_none(),
        "`until` is the end"
    );
    Trace {
        header,
        ..crate::cut(trace, &everything)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 4),
        notes in proptest::collection::vec(".{0,9}", 0..3),
        mut events in proptest::collection::vec(events(), 0..60),
    ) {
        let mut builder = TraceBuilder::new(Header {
            source: "test".to_owned(),
            tool: "proptest".to_owned(),
            notes,
        });
        let apps = [builder.app(b"."), builder.app(&names[0])];
        let paths: Vec<PathIndex> = names.iter().map(|name| builder.path(name)).collect();
        for event in &mut events {
            event.time.0 /= 2;
            event.app = apps[event.app.0 as usize];
            event.kind = event.kind.with_paths(|path| paths[path.0 as usize]);
            builder.push(*event);
        }
        let trace = canonical(&builder.finish());
        prop_assert_eq!(read_bytes(&bytes(&trace)).unwrap(), trace);
    }

    #[test]
    fn no_damage_makes_it_panic(position in 0..10_000_usize, value in any::<u8>()) {
        let mut bytes = bytes(&sample());
        let position = position % bytes.len();
        bytes[position] = value;
        let _ = read_bytes(&bytes);
    }
}

fn sample() -> Trace {
    let mut builder = TraceBuilder::new(Header::default());
    let app = builder.app(b".");
    for number in 0..100 {
        let path = builder.path(format!("file {number}").as_bytes());
        let kind = EventKind::Write {
            path,
            offset: number * 4096,
            length: 4096,
        };
        builder.push(Event {
            time: TraceNs(number * 1_000),
            app,
            process: 1,
            thread: 2,
            kind,
            result: 4096,
            duration_ns: 0,
        });
    }
    builder.finish()
}

#[test]
fn a_file_that_was_cut_short_is_refused() {
    let bytes = bytes(&sample());
    for length in 0..bytes.len() {
        let error = read_bytes(&bytes[..length]).unwrap_err();
        assert!(matches!(error, ReadError::Damaged(_)), "{length}: {error}");
    }
}

/// A Parquet file without rows.
fn foreign(schema: &str, metadata: &[(&str, &str)]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let pairs = metadata.iter().map(|(key, value)| {
        parquet::file::metadata::KeyValue::new((*key).to_owned(), (*value).to_owned())
    });
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(pairs.collect()))
        .build();
    let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn other_files_are_refused_and_the_error_says_why() {
    let schema =
        "message other { REQUIRED INT64 time_ns (INTEGER(64,false)); REQUIRED INT32 app; }";
    for (metadata, message) in [
        (
            &[][..],
            "the file is not a trace: its metadata has no 'mobifs.trace.version'",
        ),
        (
            &[("mobifs.trace.version", "2")],
            "the trace has version '2', and this program reads version 1",
        ),
        (
            &[("mobifs.trace.version", "1")],
            "column 2 of the trace is 'app (INT32, REQUIRED)' where \
             'app (BYTE_ARRAY, REQUIRED)' should be",
        ),
    ] {
        let error = read_bytes(&foreign(schema, metadata)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn events_take_few_bytes() {
    let mut builder = TraceBuilder::new(Header::default());
    let app = builder.app(b".");
    let paths: Vec<_> = (0..1_000)
        .map(|n| builder.path(format!("directory/{n}").as_bytes()))
        .collect();
    for number in 0..200_000_u64 {
        let scattered = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let path = paths[scattered as usize % paths.len()];
        builder.push(Event {
            time: TraceNs(number * 10_000 + scattered % 10_000),
            app,
            process: 1,
            thread: 2,
            kind: EventKind::Write {
                path,
                offset: scattered * 4096,
                length: 4096,
            },
            result: 4096,
            duration_ns: 1_000 + scattered % 5_000,
        });
    }
    let trace = builder.finish();
    assert!(size_of::<Event>() <= 80);
    let bytes = bytes(&trace);
    assert!(
        bytes.len() < 20 * trace.events.len(),
        "{} bytes",
        bytes.len()
    );
    assert!(read_bytes(&bytes).unwrap() == canonical(&trace));
}
