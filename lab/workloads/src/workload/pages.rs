//! 4 KiB writes at random places of one file.

use mobifs_numerics::Random;

use super::{Limit, Measured, OnPath, WorkloadError};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Bytes of one write.
const WRITE_BYTES: u64 = 4096;

/// Overwrites random pages of a file of `file_bytes`, each followed by fsync if asked for.
///
/// The file is written once before and synced, so that the measured writes are overwrites.
pub fn random_write(
    directory: &Path,
    file_bytes: u64,
    fsync: bool,
    limit: Limit,
) -> Result<Measured, WorkloadError> {
    let path = directory.join("random-write");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .on(&path)?;
    let mut random = Random::new(0x4d6f_6269);
    let mut block = vec![0; 1 << 20];
    let mut at = 0;
    while at < file_bytes {
        random.fill(&mut block);
        let len = block.len().min((file_bytes - at) as usize);
        file.write_all_at(&block[..len], at).on(&path)?;
        at += len as u64;
    }
    file.sync_all().on(&path)?;

    let pages = (file_bytes / WRITE_BYTES).max(1);
    let page = &mut block[..WRITE_BYTES as usize];
    let mut times = Vec::new();
    let mut operations = 0;
    let start = Instant::now();
    while limit.goes_on(operations, start) {
        let before = Instant::now();
        // A page that differs from the last one in a few bytes, as real updates do, would favour a
        // journal of changed bytes; a whole new page is the worst case.
        random.fill(page);
        file.write_all_at(page, random.below(pages) * WRITE_BYTES)
            .on(&path)?;
        if fsync {
            file.sync_data().on(&path)?;
        }
        times.push(before.elapsed());
        operations += 1;
    }
    Ok(Measured::new(operations, operations * WRITE_BYTES, start.elapsed()).with_latencies(times))
}
