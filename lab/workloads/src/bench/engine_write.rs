//! What one write costs inside the engine, without kernel, store or device.

use std::time::Instant;

use mobifs_base::{
    Attributes, DeviceNumber, FileKind, MonotonicNs, ObjectId, ObjectInfo, PAGE_BYTES,
    PAGE_BYTES_U64, Timestamp,
};
use mobifs_engine::{
    AppPolicy, Caller, Engine, EngineConfig, Limits, Moment, Need, NodeSpec, SetIdBits, Stop,
    TopLevelApps, WriteAt,
};
use mobifs_numerics::median;
use serde::Serialize;

/// Pages that are written: 128 MiB of dirty data.
const PAGES: u64 = 32 * 1024;
/// Writes timed together, because a clock reading costs as much as a write.
const BATCH: u64 = 64;

/// Costs of engine writes of 4 KiB. Each time is the median of batches.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineWrite {
    /// A page that the transaction does not have yet, in nanoseconds, in an engine that
    /// has committed as much before.
    pub append_ns: u64,
    /// A page that the transaction does not have yet, in a fresh process, whose memory the kernel
    /// must provide page by page.
    pub first_append_ns: u64,
    /// A page that it has, in nanoseconds.
    pub overwrite_ns: u64,
    /// 100 bytes inside a page that it has, in nanoseconds.
    pub partial_ns: u64,
    /// Memory beyond the dirty bytes themselves, in percent of them (resident memory
    /// of the process before and after).
    pub memory_overhead_percent: f64,
}

/// Measures with an engine whose transaction stays open.
///
/// # Errors
/// If the engine refuses a write, or the process's memory cannot be read.
pub fn measure() -> Result<EngineWrite, String> {
    let mut engine = engine();
    let file = file(&mut engine).map_err(|stop| format!("{stop:?}"))?;
    let content = [7; PAGE_BYTES];
    let before_bytes = resident_bytes()?;
    let first_append_ns =
        timed(|index| write(&mut engine, file, index * PAGE_BYTES_U64, &content))?;
    let held_bytes = resident_bytes()?.saturating_sub(before_bytes);
    engine.close_all();
    while let Some(commit) = engine.next_commit(None) {
        engine.committed(commit.transaction);
    }
    let append_ns = timed(|index| write(&mut engine, file, index * PAGE_BYTES_U64, &content))?;
    let scattered = |index: u64| (index * 40_503 % PAGES) * PAGE_BYTES_U64;
    let overwrite_ns = timed(|index| write(&mut engine, file, scattered(index), &content))?;
    let partial_ns =
        timed(|index| write(&mut engine, file, scattered(index) + 1000, &content[..100]))?;
    let dirty_bytes = (PAGES * PAGE_BYTES_U64) as f64;
    Ok(EngineWrite {
        append_ns,
        first_append_ns,
        overwrite_ns,
        partial_ns,
        memory_overhead_percent: (held_bytes as f64 / dirty_bytes - 1.0) * 100.0,
    })
}

fn write(engine: &mut Engine, file: ObjectId, offset: u64, data: &[u8]) -> Result<(), String> {
    engine
        .write(
            moment(),
            file,
            WriteAt::Offset(offset),
            data,
            SetIdBits::Stay,
        )
        .map(|_| ())
        .map_err(|stop| format!("{stop:?}"))
}

fn engine() -> Engine {
    let time = Timestamp::default();
    let attributes = Attributes {
        kind: FileKind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        rdev: DeviceNumber(0),
        size: 0,
        nlink: 2,
        atime: time,
        mtime: time,
        ctime: time,
    };
    let root = ObjectInfo {
        attributes,
        allocated_bytes: 0,
        foreign: false,
        immutable: false,
    };
    // No limit is reached: closing a transaction is not what is measured.
    let mut policy = AppPolicy {
        age_max_ms: u64::MAX,
        staleness_max_pages: u64::MAX,
        ..AppPolicy::default()
    };
    policy.transactioning.tpl.staleness_min_pages = u64::MAX;
    let limits = Limits {
        memory_budget_bytes: u64::MAX,
        ..Limits::default()
    };
    let config = EngineConfig {
        is_saved: false,
        rules: Box::new(TopLevelApps(policy)),
        limits,
        hash_seed: 1,
    };
    Engine::new(config, &root)
}

fn file(engine: &mut Engine) -> Result<ObjectId, Stop> {
    let spec = NodeSpec {
        kind: FileKind::Regular,
        mode: 0o644,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    loop {
        let made = engine.create(&Caller::default(), moment(), ObjectId::ROOT, b"file", &spec);
        match made {
            Ok(node) => return Ok(node.id),
            Err(Stop::Need(Need::Directory { id, epoch })) => {
                engine.provide_directory(id, epoch, Vec::new());
            }
            Err(Stop::Need(Need::Xattrs { id, epoch })) => {
                engine.provide_xattrs(id, epoch, Vec::new());
            }
            Err(stop) => return Err(stop),
        }
    }
}

const fn moment() -> Moment {
    Moment {
        wall: Timestamp {
            seconds: 0,
            nanoseconds: 0,
        },
        now: MonotonicNs(0),
    }
}

/// Runs `write` for every page number and returns the median cost of one, in
/// nanoseconds.
fn timed(mut write: impl FnMut(u64) -> Result<(), String>) -> Result<u64, String> {
    let mut costs = Vec::new();
    for first in (0..PAGES).step_by(BATCH as usize) {
        let started = Instant::now();
        for index in first..first + BATCH {
            write(index)?;
        }
        costs.push(started.elapsed().as_nanos() as u64 / BATCH);
    }
    median(costs).ok_or_else(|| "nothing was measured".to_owned())
}

/// Resident memory of this process (proc(5), `statm`).
fn resident_bytes() -> Result<u64, String> {
    const PROC_PAGE_BYTES: u64 = 4096;
    let line = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = line
        .split(' ')
        .nth(1)
        .and_then(|field| field.parse::<u64>().ok());
    Ok(pages.ok_or("/proc/self/statm is not as expected")? * PROC_PAGE_BYTES)
}
