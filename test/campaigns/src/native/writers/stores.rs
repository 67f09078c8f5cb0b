//! Stores into a shared mapping: step `s` stores its number into page `s` modulo 63 of a file and then
//! into the last one, with an `msync` after each store. So if the number in the last page is `s`, all other
//! pages are as they were after step `s`, but for that of step `s + 1`.
//!
//! The writer is a Python program: there, a shared mapping takes no unsafe code.

use std::convert::Infallible;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::{Found, content};

const WRITER: &str = include_str!("stores.py");
const FILE: &str = "stores";
const PAGE_BYTES: usize = 4096;
const PAGES: u64 = 64;

/// Becomes the writer.
pub(super) fn work(app: &Path, pause_us: u64) -> Result<Infallible, String> {
    let mut python = Command::new("python3");
    python.args(["-c", WRITER]).arg(app.join(FILE));
    let failed = python.arg(pause_us.to_string()).exec();
    Err(format!("{python:?}: {failed}"))
}

pub(super) fn check(app: &Path) -> Result<Found, String> {
    let content = content(&app.join(FILE))?;
    let number = |page: u64| {
        let bytes = content.get(page as usize * PAGE_BYTES..);
        let first = bytes.and_then(|bytes| bytes.first_chunk());
        first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let last = number(PAGES - 1);
    let next = number((last + 1) % (PAGES - 1));
    for page in 0..PAGES - 1 {
        let expected = (1..=last).rev().take(PAGES as usize);
        let expected = expected.filter(|step| step % (PAGES - 1) == page).max();
        let expected = expected.unwrap_or(0);
        let found = number(page);
        if found != expected && found != last + 1 {
            return Err(format!(
                "the last page is of step {last}, but page {page} is of step {found} and not of step \
                 {expected}"
            ));
        }
    }
    Ok(Found {
        next_began: next == last + 1,
        ..Found::after(last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_and_a_store_that_is_missing_is_found() {
        let app = tempfile::tempdir().unwrap();
        let write = |numbers: &[(u64, u64)]| {
            let mut content = vec![0; PAGE_BYTES * PAGES as usize];
            for (page, number) in numbers {
                content[*page as usize * PAGE_BYTES..][..8].copy_from_slice(&number.to_le_bytes());
            }
            std::fs::write(app.path().join(FILE), content).unwrap();
        };
        assert_eq!(check(app.path()), Ok(Found::after(0)));
        write(&[(1, 1), (2, 2), (63, 2)]);
        assert_eq!(check(app.path()), Ok(Found::after(2)));
        write(&[(1, 1), (2, 2), (3, 3), (63, 2)]);
        let began = Found {
            next_began: true,
            ..Found::after(2)
        };
        assert_eq!(check(app.path()), Ok(began));
        write(&[(1, 1), (3, 3), (63, 3)]);
        assert!(check(app.path()).unwrap_err().contains("page 2"));
        let all = |last: u64| (last - 62..=last).map(|step| (step % 63, step));
        write(&all(1000).chain([(63, 1000)]).collect::<Vec<_>>());
        assert_eq!(check(app.path()), Ok(Found::after(1000)));
        write(&all(1000).chain([(63, 999)]).collect::<Vec<_>>());
        assert!(check(app.path()).is_ok(), "the next step began");
        write(&all(1000).chain([(63, 998)]).collect::<Vec<_>>());
        assert!(check(app.path()).is_err());
    }
}
