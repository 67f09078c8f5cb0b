//! The real traces, where they are available: two recordings of a Pixel 6a, in `data` of the
//! directory `shared` beside the repository. Without them these tests say so and pass.

use std::path::{Path, PathBuf};

use mobifs_device_model::{Host, Preset};
use mobifs_experiments::replay::{Fill, Options, Pace, ReadOptions, replay};
use mobifs_trace::block::{RepeatFilter, TraceReader};

fn trace(name: &str) -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = shared.join(format!("pixel6a_telegram_{name}.csv.gz"));
    if path.exists() {
        return Some(path);
    }
    mobifs_skip::skip(format_args!("the trace {name} is not there"));
    None
}

#[test]
fn every_line_is_understood() {
    for (name, requests, repeats) in [("precond", 5_320, 274), ("exec", 251_879, 36_769)] {
        let Some(path) = trace(name) else {
            continue;
        };
        let mut filter = RepeatFilter::default();
        let (mut read, mut repeated) = (0, 0);
        for item in TraceReader::open(&path).unwrap() {
            let request = item.unwrap();
            read += 1;
            repeated += u32::from(filter.is_repeat(&request));
        }
        assert_eq!((read, repeated), (requests, repeats), "{name}");
    }
}

#[test]
fn a_recording_is_replayed_whole() {
    let Some(path) = trace("precond") else {
        return;
    };
    let config = Preset::Ufs31.config().unwrap();
    let mut host = Host::new(&config, 128_000_000_000, 1).unwrap();
    let options = Options {
        pace: Pace::AsFastAsPossible { depth: 32 },
        read: ReadOptions::default(),
        fill: Fill::Reads,
    };
    let result = replay(&mut host, &[], &[path], &options).unwrap();
    assert_eq!(result.execution.lines.malformed, 0);
    assert_eq!(result.execution.requests, 5_320 - 274);
    // The traces have no read in this part, so nothing had to be there before.
    assert_eq!(result.filled_pages, 0);
}
