//! What the fuzzers run.
//!
//! A [`Target`] takes any bytes, hands them to a parser (or builds something hostile from them),
//! and panics if an oracle is violated. The programs in `test/fuzz` are nothing but a call of one
//! target each, built with coverage by a nightly compiler. The targets themselves need none of
//! that, so `tests/replay.rs` runs them in every `cargo test`: on their seeds, on mutations of
//! these, and on every input in `test/fuzz/regressions` that once failed.

mod bus;
mod flash;
mod fragmentation;
mod journal;
mod kernel;
mod nbd;
mod noise;
mod outlive;
mod persistence;
mod target;
mod text;
mod trace;

pub use bus::BUS_MESSAGE;
pub use flash::{FLASH_CONFIG, FLASH_JOURNAL, FLASH_SAVED_MODEL, FLASH_SIDECAR};
pub use fragmentation::E2FSPROGS;
pub use journal::{
    CALIBRATION, JOURNAL_CARRIED_MOUNT, JOURNAL_COPIED_MOUNT, JOURNAL_DAMAGED_MOUNT,
    JOURNAL_FORGED_MOUNT, JOURNAL_RECORDS, JOURNAL_SALVAGE, JOURNAL_SCAN, JOURNAL_TRANSACTION,
    PREALLOCATED_LIST,
};
pub use kernel::{FUSE_ADAPTER, FUSE_REQUEST};
pub use nbd::{NBD_HANDSHAKE, NBD_TRANSMISSION};
pub use noise::mutated;
pub use outlive::{ARENA, ENGINE_IMAGE};
pub use persistence::JBD2;
pub use target::{Target, Verdict};
pub use text::{BLOCK_TRACE, CONFIG, CONTROL_LINE, MOUNT_OPTIONS, SIZE, TOTALS};
pub use trace::{TRACE_BLKPARSE, TRACE_MOBIGEN, TRACE_PARQUET, TRACE_RECORDING, TRACE_STRACE};

/// All targets.
pub const TARGETS: &[Target] = &[
    JOURNAL_RECORDS,
    JOURNAL_TRANSACTION,
    JOURNAL_SCAN,
    PREALLOCATED_LIST,
    CALIBRATION,
    JOURNAL_DAMAGED_MOUNT,
    JOURNAL_SALVAGE,
    JOURNAL_FORGED_MOUNT,
    JOURNAL_CARRIED_MOUNT,
    JOURNAL_COPIED_MOUNT,
    FUSE_REQUEST,
    FUSE_ADAPTER,
    CONFIG,
    SIZE,
    MOUNT_OPTIONS,
    CONTROL_LINE,
    TOTALS,
    BUS_MESSAGE,
    BLOCK_TRACE,
    TRACE_BLKPARSE,
    TRACE_MOBIGEN,
    TRACE_PARQUET,
    TRACE_STRACE,
    TRACE_RECORDING,
    FLASH_CONFIG,
    FLASH_SIDECAR,
    FLASH_SAVED_MODEL,
    FLASH_JOURNAL,
    NBD_HANDSHAKE,
    NBD_TRANSMISSION,
    ARENA,
    ENGINE_IMAGE,
    E2FSPROGS,
    JBD2,
];
