//! Importing text: recognition, bad lines, block traces.

use std::io::Cursor;
use std::path::Path;

use mobifs_trace::{
    BlockCommand, EventKind, Format, LoadError, LoadOptions, Loaded, Trace, import, load,
    write_file,
};

const PIXEL: &str = "\
proces,device,rw_flag,sector,size,timestamp
mail-app-7,8388608,FWFS,8,16,100.000001
nonsense
kworker/u17:0-9,8388608,FWFS,8,16,100.000900
b-8,8388608,R,0,8,100.5
";

const BLKPARSE: &str = "  8,0    3        1     0.000000000   697  Q  WS 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  D  WS 223490 + 8 [kjournald]
  8,0    3        3     0.000359157   697  C  WS 223490 + 8 [0]
  8,16   1        4     0.500000000    42  D  FN [kworker/1:1H]
  8,16   1        5     0.600000000    42  D  WFS 16 + 16 [my app]
  8,16   1        6     0.700000000    42  D  D 64 + 8 [fstrim]
  8,16   1        7     0.700000000    42  m   N cfq1 slice expired
garbage
CPU0 (8,0):
 Reads Queued:           0,        0KiB
";

fn text(format: Format, text: &'static str, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let input = Box::new(Cursor::new(text.as_bytes()));
    import(format, Path::new("file"), input, options)
}

fn commands(trace: &Trace) -> Vec<(u64, String, BlockCommand, u64, u64, bool)> {
    let events = trace.events.iter().map(|event| {
        let EventKind::Block {
            command,
            offset,
            length,
            is_forced_unit_access,
            ..
        } = event.kind
        else {
            panic!("{event:?} is no command");
        };
        let app = String::from_utf8_lossy(trace.app_of(event)).into_owned();
        (
            event.time.0,
            app,
            command,
            offset,
            length,
            is_forced_unit_access,
        )
    });
    events.collect()
}

#[test]
fn a_pixel_trace_becomes_commands() {
    let Loaded { trace, report } = text(Format::Pixel, PIXEL, &LoadOptions::default()).unwrap();
    let mail = || "mail-app".to_owned();
    assert_eq!(
        commands(&trace),
        [
            (0, mail(), BlockCommand::Flush, 0, 0, false),
            (0, mail(), BlockCommand::Write, 4096, 8192, true),
            (
                499_999_000,
                "b".to_owned(),
                BlockCommand::Read,
                0,
                4096,
                false
            ),
        ]
    );
    assert_eq!((report.lines, report.malformed), (5, 1));
    assert!(
        report.malformed_quoted[0].starts_with("file: line 3: "),
        "{report:?}"
    );
    assert_eq!(report.left_out["issued again while the controller woke"], 1);
    assert_eq!(trace.events[0].thread, 7);

    let keep_repeats = LoadOptions {
        keep_repeats: true,
        ..LoadOptions::default()
    };
    let kept = text(Format::Pixel, PIXEL, &keep_repeats).unwrap();
    assert_eq!(kept.trace.events.len(), 5);
}

#[test]
fn blkparse_gives_one_event_for_each_request() {
    let Loaded { trace, report } =
        text(Format::Blkparse, BLKPARSE, &LoadOptions::default()).unwrap();
    let app = |name: &str| name.to_owned();
    assert_eq!(
        commands(&trace),
        [
            (
                0,
                app("kjournald"),
                BlockCommand::Write,
                223_490 * 512,
                4096,
                false
            ),
            (
                499_998_171,
                app("kworker/1:1H"),
                BlockCommand::Flush,
                0,
                0,
                false
            ),
            (
                599_998_171,
                app("my app"),
                BlockCommand::Write,
                8192,
                8192,
                true
            ),
            (
                699_998_171,
                app("fstrim"),
                BlockCommand::Discard,
                32_768,
                4096,
                false
            ),
        ]
    );
    assert_eq!(
        (
            report.malformed,
            report.left_out["action Q"],
            report.left_out["action m"]
        ),
        (1, 1, 1)
    );
    let completed = LoadOptions {
        action: b'C',
        ..LoadOptions::default()
    };
    let completed = text(Format::Blkparse, BLKPARSE, &completed).unwrap();
    assert_eq!(completed.trace.events.len(), 1);
}

#[test]
fn strict_stops_at_the_first_bad_line() {
    let strict = LoadOptions {
        strict: true,
        ..LoadOptions::default()
    };
    for (format, content, line) in [(Format::Pixel, PIXEL, 3), (Format::Blkparse, BLKPARSE, 8)] {
        let error = text(format, content, &strict).unwrap_err();
        let begin = format!("file: line {line}: ");
        assert!(error.to_string().starts_with(&begin), "{error}");
    }
}

#[test]
fn formats_are_recognised_by_their_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let load_text = |content: &str| {
        std::fs::write(&path, content).unwrap();
        load(&path, &LoadOptions::default())
    };
    for (content, source) in [
        (PIXEL, "pixel"),
        (BLKPARSE, "blkparse"),
        (
            "1 0 open /data/data O_RDWR 3\n1 9 pwrite 3 0 4096\n",
            "mobigen",
        ),
    ] {
        assert_eq!(load_text(content).unwrap().trace.header.source, source);
    }
    for content in ["", "hello\nworld\n", "\u{0}\u{1}"] {
        let error = load_text(content).unwrap_err();
        assert!(matches!(error, LoadError::Unrecognised { .. }), "{error}");
    }
    let trace = load_text(PIXEL).unwrap().trace;
    let stored = directory.path().join("stored");
    write_file(&trace, &stored).unwrap();
    assert_eq!(load(&stored, &LoadOptions::default()).unwrap().trace, trace);
    let missing = load(&directory.path().join("none"), &LoadOptions::default()).unwrap_err();
    assert!(matches!(missing, LoadError::Io { .. }), "{missing}");
}

#[test]
fn a_file_without_an_event_says_what_is_wrong_with_it() {
    let error = text(Format::Pixel, "a\nb\n", &LoadOptions::default()).unwrap_err();
    assert!(
        matches!(error, LoadError::NoEvent { lines: 2, .. }),
        "{error}"
    );
}
