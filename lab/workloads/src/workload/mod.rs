//! Workloads and what they report.

pub mod background;
pub mod files;
pub mod pages;
pub mod sqlite;
pub mod stream;

use mobifs_numerics::median;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a workload could not finish.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A system call on a file failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Data came back other than it was written, or the workload was asked for nonsense.
    #[error("{0}")]
    Wrong(String),
}

/// Names the file in an I/O error.
pub(crate) trait OnPath<T> {
    fn on(self, path: &Path) -> Result<T, WorkloadError>;
}

impl<T> OnPath<T> for std::io::Result<T> {
    fn on(self, path: &Path) -> Result<T, WorkloadError> {
        self.map_err(|source| WorkloadError::File {
            path: path.to_owned(),
            source,
        })
    }
}

/// How long a workload goes on: a number of operations, a time, or whichever comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Stop after this many operations.
    pub operations: Option<u64>,
    /// Stop after this time.
    pub time: Option<Duration>,
}

impl Limit {
    /// Whether a run that has done `operations` since `start` goes on.
    fn goes_on(&self, operations: u64, start: Instant) -> bool {
        self.operations.is_none_or(|most| operations < most)
            && self.time.is_none_or(|most| start.elapsed() < most)
    }
}

/// What a workload did and how long it took.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measured {
    /// Operations done: transactions, writes, files, as the workload says.
    pub operations: u64,
    /// Bytes of user data written or read.
    pub bytes: u64,
    /// Wall time of the measured part.
    pub seconds: f64,
    /// Operations per second.
    pub per_second: f64,
    /// Median of the time of one operation, where each is timed by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_microseconds: Option<f64>,
    /// 99 of 100 operations took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_microseconds: Option<f64>,
}

impl Measured {
    pub(crate) fn new(operations: u64, bytes: u64, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let per_second = operations as f64 / seconds.max(f64::MIN_POSITIVE);
        Self {
            operations,
            bytes,
            seconds,
            per_second,
            median_microseconds: None,
            p99_microseconds: None,
        }
    }

    /// With the times of single operations.
    pub(crate) fn with_latencies(mut self, mut times: Vec<Duration>) -> Self {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1);
        self.p99_microseconds = at(99).copied().map(micros);
        self.median_microseconds = median(times).map(micros);
        self
    }
}
