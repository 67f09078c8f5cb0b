//! Apps, as far as S4 describes what they write: threads with a database each, and files that are written once.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use mobifs_numerics::Random;
use mobifs_workloads::workload::sqlite::{JournalMode, open};
use rusqlite::{Connection, params};
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use crate::disk::Disk;
use crate::error::FragError;
use crate::settings::Settings;
use crate::together::together;

/// Bytes of a row.
const ROW_BYTES: u64 = 1000;
const DATABASE_BYTES_LEAST: u64 = 16 << 10;
const WRITE_BYTES: usize = 256 << 10;

/// What an app writes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct App {
    pub(crate) name: &'static str,
    /// Threads that write, each a database of its own.
    pub(crate) threads: usize,
    /// Mean size of the databases; sizes are distributed exponentially.
    pub(crate) database_bytes: u64,
    /// What one transaction adds.
    pub(crate) transaction_bytes: u64,
    /// Files that are written once, and how large each is.
    pub(crate) executables: u64,
    pub(crate) executable_bytes: u64,
}

/// S4 §4.3: 18 threads, databases of 64 KB on average, 21 dex files that lay in 278 pieces of 243 KB.
pub(crate) const FACEBOOK: App = App {
    name: "Facebook",
    threads: 18,
    database_bytes: 64_000,
    transaction_bytes: 16_000,
    executables: 21,
    executable_bytes: 278 * 243_000 / 21,
};

/// S4 §4.3: databases of 8,958 KB on average.
pub(crate) const EARTH: App = App {
    name: "Earth",
    threads: 4,
    database_bytes: 8_958_000,
    transaction_bytes: 500_000,
    executables: 5,
    executable_bytes: 4_000_000,
};

/// Files of an app.
#[derive(Clone, Debug)]
pub(crate) struct AppFiles {
    pub(crate) databases: Vec<PathBuf>,
    pub(crate) executables: Vec<PathBuf>,
}

/// Installs an app and has it fill its databases. With a step, room for these is reserved step by step.
pub(crate) fn use_app(
    disk: &Disk,
    app: &App,
    step_bytes: u64,
    settings: &Settings,
) -> Result<AppFiles, FragError> {
    let directory = disk.root().join(app.name);
    fs::create_dir_all(&directory).map_err(|error| FragError::io(&directory, error))?;
    let executables = (0..app.executables)
        .map(|number| {
            settings.check()?;
            let path = directory.join(format!("classes{number}.dex"));
            write_file(&path, app.executable_bytes)?;
            Ok(path)
        })
        .collect::<Result<Vec<_>, FragError>>()?;
    let databases: Vec<_> = (0..app.threads)
        .map(|number| directory.join(format!("{number}.db")))
        .collect();
    let mut random = Random::new(settings.seed);
    let sizes: Vec<_> = databases
        .iter()
        .map(|_| exponential(app.database_bytes, &mut random).max(DATABASE_BYTES_LEAST))
        .collect();
    together(app.threads, |number| {
        let growing = Growing {
            path: &databases[number],
            bytes: sizes[number],
            transaction_bytes: app.transaction_bytes,
            step_bytes,
        };
        growing.grow(settings)
    })?;
    Ok(AppFiles {
        databases,
        executables,
    })
}

/// A number of an exponential distribution with this mean, at most five times the mean.
fn exponential(mean: u64, random: &mut Random) -> u64 {
    const STEPS: u64 = 1 << 20;
    let share = (random.below(STEPS) + 1) as f64 / STEPS as f64;
    (-share.ln() * mean as f64).min(5.0 * mean as f64) as u64
}

/// A file that is written once, and durable.
pub(crate) fn write_file(path: &Path, bytes: u64) -> Result<(), FragError> {
    use std::io::Write as _;
    let at = |error| FragError::io(path, error);
    let mut file = fs::File::create(path).map_err(at)?;
    let piece = vec![0x5a; WRITE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(piece.len() as u64) as usize;
        file.write_all(&piece[..count]).map_err(at)?;
        left -= count as u64;
    }
    file.sync_all().map_err(at)
}

/// A database that grows.
struct Growing<'p> {
    path: &'p Path,
    bytes: u64,
    transaction_bytes: u64,
    step_bytes: u64,
}

impl Growing<'_> {
    fn grow(&self, settings: &Settings) -> Result<(), FragError> {
        let mut reserved = 0;
        if self.step_bytes > 0 {
            // Before SQLite writes its first page, which would lie elsewhere. An empty file is a new database.
            fs::File::create(self.path).map_err(|error| FragError::io(self.path, error))?;
            self.reserve(0, &mut reserved)?;
        }
        let mut connection = open(self.path, JournalMode::Delete)?;
        loop {
            settings.check()?;
            let size = fs::metadata(self.path).map_err(|error| FragError::io(self.path, error))?;
            let size = size.len();
            if size >= self.bytes {
                return Ok(());
            }
            self.reserve(size, &mut reserved)?;
            self.insert(
                &mut connection,
                (self.bytes - size).min(self.transaction_bytes),
            )?;
        }
    }

    /// Room for the next transaction.
    fn reserve(&self, size: u64, reserved: &mut u64) -> Result<(), FragError> {
        if self.step_bytes == 0 {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(self.path);
        let file = file.map_err(|error| FragError::io(self.path, error))?;
        let left = (self.bytes - size).min(self.transaction_bytes);
        // Pages are not full, and rows have an index.
        while *reserved < size + left + left / 2 {
            fallocate(&file, FallocateFlags::KEEP_SIZE, *reserved, self.step_bytes)
                .map_err(|errno| FragError::io(self.path, errno.into()))?;
            *reserved += self.step_bytes;
        }
        Ok(())
    }

    fn insert(&self, connection: &mut Connection, bytes: u64) -> Result<(), FragError> {
        let transaction = connection.transaction()?;
        for _ in 0..bytes.div_ceil(ROW_BYTES) {
            transaction
                .prepare_cached("INSERT INTO item (stamp, body) VALUES (1, zeroblob(?1))")?
                .execute(params![ROW_BYTES])?;
        }
        Ok(transaction.commit()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_tail_of_an_exponential_distribution() {
        let mut random = Random::new(1);
        let sizes: Vec<_> = (0..20_000)
            .map(|_| exponential(64_000, &mut random))
            .collect();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        assert!((mean - 64_000.0).abs() < 2_000.0, "{mean}");
        let above_twice = sizes.iter().filter(|&&size| size > 128_000).count();
        // e⁻² of 20,000.
        assert!((2_500..2_920).contains(&above_twice), "{above_twice}");
    }
}
