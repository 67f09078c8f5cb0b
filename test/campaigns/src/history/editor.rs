//! An editor: each step saves one of some documents by writing a new file and renaming it over the
//! old one. A relaxed one relies on the order and never calls `fsync`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use mobifs_testkit::operations::Payload;

use super::returned;

/// Documents saved in turn.
const DOCUMENTS: u64 = 5;
/// Longest content.
const BYTES_MAX: u64 = 20_000;

fn name(step: u64) -> String {
    format!("document-{}", step % DOCUMENTS)
}

fn content(step: u64) -> Vec<u8> {
    let length = 8 + step.wrapping_mul(7919) % BYTES_MAX;
    let data = Payload {
        tag: step as u32,
        length: length as u32,
    };
    let mut bytes = step.to_le_bytes().to_vec();
    bytes.extend(data.bytes());
    bytes
}

/// Saves documents.
pub(super) fn work(app: &Path, from: u64, is_durable: bool) -> Result<Infallible, String> {
    let mut step = from;
    loop {
        step += 1;
        save(app, step, is_durable).map_err(|error| format!("step {step}: {error}"))?;
        returned(step)?;
    }
}

fn save(app: &Path, step: u64, is_durable: bool) -> io::Result<()> {
    let (place, new) = (app.join(name(step)), app.join(name(step) + ".new"));
    let mut file = File::create(&new)?;
    file.write_all(&content(step))?;
    if is_durable {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&new, &place)?;
    if is_durable {
        File::open(app)?.sync_all()?;
    }
    Ok(())
}

/// Every document is whole, and all are of one moment.
pub(super) fn check(app: &Path) -> Result<u64, String> {
    if !app.exists() {
        return Ok(0);
    }
    let unreadable = |error: io::Error| format!("{}: {error}", app.display());
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(app).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        names.insert(name.to_string_lossy().into_owned());
    }
    let mut saved = vec![0; DOCUMENTS as usize];
    for document in 0..DOCUMENTS {
        if names.remove(&name(document)) {
            let bytes = fs::read(app.join(name(document))).map_err(unreadable)?;
            saved[document as usize] = step_of(document, &bytes)?;
        }
    }
    let last = saved.iter().copied().max().unwrap_or(0);
    // Only the next one may have a new file that is not in its place yet.
    names.remove(&(name(last + 1) + ".new"));
    if !names.is_empty() {
        return Err(format!("after step {last} there are also {names:?}"));
    }
    for (document, &found) in (0..DOCUMENTS).zip(&saved) {
        let behind = (last + DOCUMENTS - document) % DOCUMENTS;
        let expected = last.saturating_sub(behind);
        if found != expected {
            return Err(format!(
                "{} is of step {found}, others of step {last}: never seen together",
                name(document)
            ));
        }
    }
    Ok(last)
}

fn step_of(document: u64, bytes: &[u8]) -> Result<u64, String> {
    let head = bytes.first_chunk().copied().map(u64::from_le_bytes);
    match head {
        Some(step) if step % DOCUMENTS == document && bytes == content(step) => Ok(step),
        _ => Err(format!(
            "{} is torn: {} bytes, head {head:?}",
            name(document),
            bytes.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(steps: u64) -> tempfile::TempDir {
        let app = tempfile::tempdir().unwrap();
        for step in 1..=steps {
            save(app.path(), step, false).unwrap();
        }
        app
    }

    #[test]
    fn every_moment_is_recognised() {
        for steps in 0..12 {
            let app = saved(steps);
            assert_eq!(check(app.path()), Ok(steps));
            fs::write(app.path().join(name(steps + 1) + ".new"), "half").unwrap();
            assert_eq!(check(app.path()), Ok(steps));
        }
    }

    #[test]
    fn states_that_were_never_saved_are_refused() {
        let torn = saved(7);
        fs::write(torn.path().join(name(7)), &content(7)[..100]).unwrap();
        assert!(check(torn.path()).unwrap_err().contains("torn"));
        let older = saved(7);
        fs::write(older.path().join(name(6)), content(1)).unwrap();
        assert!(check(older.path()).unwrap_err().contains("together"));
        let missing = saved(7);
        fs::remove_file(missing.path().join(name(5))).unwrap();
        assert!(check(missing.path()).unwrap_err().contains("together"));
        let stranger = saved(7);
        fs::write(stranger.path().join(name(4) + ".new"), "half").unwrap();
        assert!(check(stranger.path()).unwrap_err().contains("also"));
    }
}
