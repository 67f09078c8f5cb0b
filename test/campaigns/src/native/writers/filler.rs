//! A file that grows by 64 KiB a step until the filesystem is full, and is emptied then.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use super::{Found, content};
use crate::history::returned;

const FILE: &str = "filler";
const STEP_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

fn bytes(step: u64) -> Vec<u8> {
    step.to_le_bytes().repeat(STEP_BYTES / 8)
}

pub(super) fn work(app: &Path) -> Result<Infallible, String> {
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).open(app.join(FILE));
    let mut file = opened.map_err(|error| error.to_string())?;
    let mut step = 0;
    loop {
        step += 1;
        match file.write_all(&bytes(step)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                file.set_len(0).map_err(|error| error.to_string())?;
            }
            Err(error) => return Err(error.to_string()),
        }
        returned(step)?;
    }
}

/// An empty file tells nothing: it may have been emptied just now.
pub(super) fn check(app: &Path) -> Result<Option<Found>, String> {
    let content = content(&app.join(FILE))?;
    let Some(first) = content
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
    else {
        return Ok(None);
    };
    if !content.len().is_multiple_of(PAGE_BYTES) {
        return Err(format!(
            "the file ends within a page: {} bytes",
            content.len()
        ));
    }
    for (step, chunk) in (first..).zip(content.chunks(STEP_BYTES)) {
        if chunk != &bytes(step)[..chunk.len()] {
            return Err(format!("what step {step} wrote is something else"));
        }
    }
    let whole = (content.len() / STEP_BYTES) as u64;
    Ok(Some(Found {
        step: first + whole - 1,
        next_began: !content.len().is_multiple_of(STEP_BYTES),
        stamp_ns: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_and_damage_is_found() {
        let app = tempfile::tempdir().unwrap();
        assert_eq!(check(app.path()), Ok(None));
        let write = |content: &[u8]| std::fs::write(app.path().join(FILE), content).unwrap();
        let three = [bytes(5), bytes(6), bytes(7)].concat();
        write(&three);
        assert_eq!(check(app.path()), Ok(Some(Found::after(7))));
        write(&three[..three.len() - PAGE_BYTES]);
        let divided = Found {
            next_began: true,
            ..Found::after(6)
        };
        assert_eq!(check(app.path()), Ok(Some(divided)));
        write(&three[..three.len() - 1]);
        assert!(check(app.path()).is_err());
        write(&[bytes(5), bytes(7)].concat());
        assert!(check(app.path()).is_err());
    }
}
