//! A database in a shared mapping, in the manner of LMDB: each step is a transaction that
//! writes new pages, `msync`s them, and then writes and `msync`s one of two meta pages.
//!
//! The writer is a Python program: there, a shared mapping takes no unsafe code.

use std::convert::Infallible;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const WRITER: &str = include_str!("mapped.py");
const PAGE_BYTES: usize = 4096;
const SLOTS: u64 = 64;

fn file(app: &Path) -> PathBuf {
    app.join("mapped")
}

/// Becomes the writer.
pub(super) fn work(app: &Path, pause_us: u64) -> Result<Infallible, String> {
    let mut python = Command::new("python3");
    python.args(["-c", WRITER]).arg(file(app));
    let failed = python.arg(pause_us.to_string()).exec();
    Err(format!("{python:?}: {failed}"))
}

/// A meta page that is whole: its transaction and the page of the tree's root.
fn meta(page: &[u8]) -> Option<(u64, usize)> {
    let (head, rest) = page.split_at_checked(12)?;
    let check = u32::from_le_bytes(*rest.first_chunk()?);
    let txn = u64::from_le_bytes(*head.first_chunk()?);
    let root = u32::from_le_bytes(*head.last_chunk()?);
    (txn > 0 && check == crc32(head)).then_some((txn, root as usize))
}

/// The checksum of zlib, which is what Python has.
fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            let carry = crc & 1;
            (crc >> 1) ^ (carry * 0xedb8_8320)
        })
    }) ^ !0
}

/// The last transaction that wrote a slot, of those up to `txn`; 0 if none did.
fn writer_of(slot: u64, txn: u64) -> u64 {
    let writes = |t: &u64| (0..=t % 3).any(|number| (t * 7 + number) % SLOTS == slot);
    (1..=txn).rev().find(writes).unwrap_or(0)
}

/// The newest meta page leads to a tree that is as it was after its transaction.
pub(super) fn check(app: &Path) -> Result<u64, String> {
    let Ok(content) = fs::read(file(app)) else {
        return Ok(0);
    };
    let page = |number: usize| {
        let start = number * PAGE_BYTES;
        content.get(start..start + PAGE_BYTES)
    };
    let metas = [0, 1].into_iter().filter_map(page).filter_map(meta);
    let Some((txn, root)) = metas.max() else {
        return Ok(0);
    };
    let root = page(root).ok_or_else(|| format!("the root of {txn} is in no page"))?;
    for slot in 0..SLOTS {
        let at = slot as usize * 4;
        let number = u32::from_le_bytes([root[at], root[at + 1], root[at + 2], root[at + 3]]);
        let written = writer_of(slot, txn);
        let intact = match (number, written) {
            (0, 0) => true,
            (0, _) | (_, 0) => false,
            (number, written) => page(number as usize).is_some_and(|page| {
                let pair = [slot.to_le_bytes(), written.to_le_bytes()].concat();
                page.chunks(pair.len()).all(|chunk| chunk == pair)
            }),
        };
        if !intact {
            return Err(format!(
                "transaction {txn}: slot {slot} in page {number} is not as transaction \
                 {written} wrote it"
            ));
        }
    }
    Ok(txn)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    use super::*;
    use crate::history::Step;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn transactions_are_counted_and_damage_is_found() {
        let app = tempfile::tempdir().unwrap();
        assert_eq!(check(app.path()), Ok(0));
        let mut writer = Command::new("python3")
            .args(["-c", WRITER])
            .arg(file(app.path()))
            .arg("0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(writer.stdout.take().unwrap());
        let hundredth = output.lines().map(Result::unwrap).nth(99).unwrap();
        assert_eq!(hundredth.parse::<Step>().unwrap().number, 100);
        writer.kill().unwrap();
        writer.wait().unwrap();
        let found = check(app.path()).unwrap();
        assert!(found >= 100, "{found}");
        let whole = fs::read(file(app.path())).unwrap();
        // A data page that is in use loses its end.
        let txn_of = |page: &[u8]| u64::from_le_bytes(*page[8..].first_chunk().unwrap());
        let newest = whole
            .chunks(PAGE_BYTES)
            .skip(2)
            .position(|page| page[..16] == page[16..32] && txn_of(page) == found);
        let at = (newest.unwrap() + 2) * PAGE_BYTES;
        let mut torn = whole;
        torn[at + 2048..at + PAGE_BYTES].fill(0);
        fs::write(file(app.path()), torn).unwrap();
        assert!(check(app.path()).unwrap_err().contains("slot"));
    }
}
