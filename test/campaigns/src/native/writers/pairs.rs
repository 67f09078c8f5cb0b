//! Two files that are replaced one after the other: each step writes both under new names, renames the
//! left one and then the right one.

use std::convert::Infallible;
use std::fs;
use std::path::Path;

use mobifs_testkit::operations::Payload;

use super::found::{Found, names_in};
use super::{content, with_room};
use crate::history::returned;

const FILES: [&str; 2] = ["left", "right"];
const NEW_FILES: [&str; 2] = ["left.new", "right.new"];

fn bytes(step: u64) -> Vec<u8> {
    let length = 3000 + step.wrapping_mul(7919) % 9000;
    let data = Payload {
        tag: step as u32,
        length: length as u32,
    };
    let mut bytes = step.to_le_bytes().to_vec();
    bytes.extend(data.bytes());
    bytes
}

/// The step that wrote a file; 0 if there is none.
fn step_of(path: &Path) -> Result<u64, String> {
    let found = content(path)?;
    if found.is_empty() && !path.exists() {
        return Ok(0);
    }
    let step = found.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    step.filter(|&step| found == bytes(step))
        .ok_or_else(|| format!("{} is not whole: {} bytes", path.display(), found.len()))
}

pub(super) fn work(app: &Path) -> Result<Infallible, String> {
    let mut step = 0;
    loop {
        step += 1;
        let bytes = bytes(step);
        for new in NEW_FILES {
            with_room(|| fs::write(app.join(new), &bytes))?;
        }
        for (new, file) in NEW_FILES.into_iter().zip(FILES) {
            with_room(|| fs::rename(app.join(new), app.join(file)))?;
        }
        returned(step)?;
    }
}

pub(super) fn check(app: &Path) -> Result<Found, String> {
    let left = step_of(&app.join(FILES[0]))?;
    let right = step_of(&app.join(FILES[1]))?;
    if left != right && left != right + 1 {
        return Err(format!("left is of step {left}, right of step {right}"));
    }
    if left == right + 1 {
        // Both were written before the first was renamed.
        let new = step_of(&app.join(NEW_FILES[1]))?;
        if new != left {
            return Err(format!(
                "left is of step {left}, right of step {right}, the new right of step {new}"
            ));
        }
    }
    let has_new = names_in(app)?.iter().any(|name| name.ends_with(".new"));
    if left == right && has_new && app.join(NEW_FILES[1]).exists() {
        let new = step_of(&app.join(NEW_FILES[0]))?;
        if new != right + 1 {
            return Err(format!(
                "a new right beside a new left of step {new}, after {right}"
            ));
        }
    }
    Ok(Found {
        next_began: has_new,
        ..Found::after(right)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_at_one_step() {
        let app = tempfile::tempdir().unwrap();
        let path = |name: &str| app.path().join(name);
        let check = || check(app.path());
        assert_eq!(check(), Ok(Found::after(0)));
        let began = |step| {
            Ok(Found {
                next_began: true,
                ..Found::after(step)
            })
        };
        fs::write(path("left.new"), &bytes(1)[..7]).unwrap();
        assert_eq!(check(), began(0));
        fs::write(path("right.new"), bytes(1)).unwrap();
        assert!(check().is_err(), "the left one is not whole");
        fs::write(path("left.new"), bytes(1)).unwrap();
        assert_eq!(check(), began(0));
        fs::rename(path("left.new"), path("left")).unwrap();
        assert_eq!(check(), began(0));
        fs::rename(path("right.new"), path("right")).unwrap();
        assert_eq!(check(), Ok(Found::after(1)));
        fs::write(path("right"), bytes(2)).unwrap();
        assert!(check().unwrap_err().contains("right of step 2"));
        fs::write(path("left"), bytes(3)).unwrap();
        assert!(check().unwrap_err().contains("the new right of step 0"));
        fs::write(path("left"), &bytes(3)[..100]).unwrap();
        assert!(check().unwrap_err().contains("not whole"));
    }
}
