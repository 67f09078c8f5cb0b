//! Writing and reading one large file from front to back.

use mobifs_numerics::Random;

use super::{Measured, OnPath, WorkloadError};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// Bytes of one system call.
const CALL_BYTES: usize = 1 << 20;

/// Name of the file that [`write`] makes and [`read`] reads.
const FILE: &str = "stream";

/// Writes a new file of `bytes`, synced at the end if asked for.
pub fn write(directory: &Path, bytes: u64, fsync: bool) -> Result<Measured, WorkloadError> {
    let path = directory.join(FILE);
    let mut block = vec![0; CALL_BYTES];
    Random::new(bytes).fill(&mut block);
    let start = Instant::now();
    let mut file = File::create(&path).on(&path)?;
    let mut left = bytes;
    while left > 0 {
        let len = left.min(CALL_BYTES as u64) as usize;
        file.write_all(&block[..len]).on(&path)?;
        left -= len as u64;
    }
    if fsync {
        file.sync_all().on(&path)?;
    }
    Ok(Measured::new(
        bytes.div_ceil(CALL_BYTES as u64),
        bytes,
        start.elapsed(),
    ))
}

/// Reads the whole file that [`write`] made.
pub fn read(directory: &Path) -> Result<Measured, WorkloadError> {
    let path = directory.join(FILE);
    let mut block = vec![0; CALL_BYTES];
    let start = Instant::now();
    let mut file = File::open(&path).on(&path)?;
    let (mut calls, mut bytes) = (0, 0);
    loop {
        match file.read(&mut block).on(&path)? {
            0 => break,
            len => {
                calls += 1;
                bytes += len as u64;
            }
        }
    }
    Ok(Measured::new(calls, bytes, start.elapsed()))
}
