//! `mobifs trace merge`

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_trace::{Part, Trace, merge, write_file};

use super::arguments::MergeArguments;
use super::input;
use crate::failure::{Code, Failure, put};

/// One trace of the command line.
#[derive(Debug, PartialEq)]
struct Wanted {
    path: PathBuf,
    label: Option<String>,
    shift_seconds: f64,
}

pub(super) fn run(arguments: &MergeArguments) -> Result<(), Failure> {
    let mut loaded: Vec<(Trace, Wanted)> = Vec::new();
    for word in &arguments.traces {
        let wanted = wanted(word)?;
        let trace = input::trace(&wanted.path, &arguments.input)?;
        loaded.push((trace, wanted));
    }
    let mut parts = Vec::new();
    for (trace, wanted) in &loaded {
        parts.push(Part {
            trace,
            shift_ns: input::time(wanted.shift_seconds)?.0,
            label: wanted.label.as_deref(),
        });
    }
    let merged = merge(&parts);
    write_file(&merged, &arguments.out)?;
    put(&format!("{} events\n", merged.events.len()))
}

/// `FILE[=LABEL][@SECONDS]`; a file that is called so goes before.
fn wanted(word: &OsString) -> Result<Wanted, Failure> {
    let plain = |path: &OsStr| Wanted {
        path: PathBuf::from(path),
        label: None,
        shift_seconds: 0.0,
    };
    if Path::new(word).exists() {
        return Ok(plain(word));
    }
    let mut rest = word.as_bytes();
    let mut shift_seconds = 0.0;
    if let Some(at) = rest.iter().rposition(|&byte| byte == b'@') {
        let text = String::from_utf8_lossy(&rest[at + 1..]);
        shift_seconds = text.parse().map_err(|_| {
            let message = format!("'{text}' after @ is not a number of seconds");
            Failure::new(Code::Usage, message)
        })?;
        rest = &rest[..at];
    }
    let mut label = None;
    if let Some(at) = rest.iter().rposition(|&byte| byte == b'=') {
        label = Some(String::from_utf8_lossy(&rest[at + 1..]).into_owned());
        rest = &rest[..at];
    }
    Ok(Wanted {
        label,
        shift_seconds,
        ..plain(OsStr::from_bytes(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_shifts_are_parted_from_the_name() {
        let parsed = |word: &str| wanted(&OsString::from(word)).unwrap();
        for (word, path, label, shift_seconds) in [
            ("a.b", "a.b", None, 0.0),
            ("a=x", "a", Some("x"), 0.0),
            ("a@2.5", "a", None, 2.5),
            ("d/a=x=y@1", "d/a=x", Some("y"), 1.0),
        ] {
            let expected = Wanted {
                path: path.into(),
                label: label.map(str::to_owned),
                shift_seconds,
            };
            assert_eq!(parsed(word), expected);
        }
        assert!(wanted(&OsString::from("a@soon")).is_err());
    }
}
