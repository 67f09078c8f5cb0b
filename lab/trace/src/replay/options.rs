//! How a trace is replayed.

use std::path::PathBuf;

/// When events begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplaySpeed {
    /// At their time in the trace divided by this; 1 is as recorded. Late if the storage is
    /// slower than the one that was recorded.
    Scaled(f64),
    /// As soon as what had ended before has ended.
    Full,
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Where: an empty directory. Absolute paths of the trace are taken relative to it, and `..`
    /// does not lead out of it.
    pub directory: PathBuf,
    /// When events begin.
    pub speed: ReplaySpeed,
    /// What the data is made from.
    pub seed: u64,
}
