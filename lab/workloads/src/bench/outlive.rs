//! What it costs that a mount outlives its daemon: operations on a volume with an arena
//! beside the same without, in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mobifs_base::{DeviceNumber, FileKind, ObjectId, PAGE_BYTES, PAGE_BYTES_U64};
use mobifs_numerics::median;
use mobifs_store::MemoryStore;
use mobifs_volume::{
    Arena, Caller, Config, FsError, NodeSpec, SetIdBits, Volume, VolumeOptions, WriteAt,
};
use serde::Serialize;

/// Rounds of which the median is taken.
const ROUNDS: usize = 7;
/// Operations timed together.
const OPERATIONS: u64 = 20_000;
/// Pages of the file that is written: 16 MiB.
const PAGES: u64 = 4096;

/// Nanoseconds for one operation, without and with an arena.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// What is done.
    pub operation: &'static str,
    /// A kill loses what is not committed.
    pub plain_ns: u64,
    /// A kill loses nothing.
    pub outliving_ns: u64,
}

type Step = fn(&Volume, ObjectId, u64) -> Result<(), FsError>;

/// Measures.
///
/// # Errors
/// If a volume cannot be started, or refuses an operation.
pub fn measure() -> Result<Vec<Cost>, String> {
    let steps: [(&str, Step); 4] = [
        ("overwrite 4 KiB", overwrite),
        ("overwrite 100 bytes", overwrite_in_part),
        ("look up and forget", look_up),
        ("create, write 4 KiB, unlink, forget", create_and_unlink),
    ];
    let plain = volume(None)?;
    let outliving = volume(Some(Arena::create().map_err(|error| error.to_string())?))?;
    let mut costs = Vec::new();
    for (operation, step) in steps {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (volume, times) in [&plain, &outliving].into_iter().zip(&mut times) {
                times.push(time(volume, step)?);
            }
        }
        let [plain_ns, outliving_ns] = times.map(|times| {
            let middle = median(times).unwrap_or_default();
            (middle.as_nanos() / u128::from(OPERATIONS)) as u64
        });
        costs.push(Cost {
            operation,
            plain_ns,
            outliving_ns,
        });
    }
    Ok(costs)
}

fn time((volume, file): &(Arc<Volume>, ObjectId), step: Step) -> Result<Duration, String> {
    let since = Instant::now();
    for number in 0..OPERATIONS {
        volume
            .serving(0, number + 1, || step(volume, *file, number))
            .map_err(|error| error.to_string())?;
    }
    Ok(since.elapsed())
}

fn volume(arena: Option<Arena>) -> Result<(Arc<Volume>, ObjectId), String> {
    // No limit is reached: committing is not what is measured.
    let text = "memory_budget_bytes = \"1GiB\"\n[defaults]\nage_max_ms = 100000000\n\
                staleness_min_bytes = \"1TiB\"\nstaleness_max_bytes = \"2TiB\"\n";
    let config = Config::parse(text, std::path::Path::new("bench"));
    let options = VolumeOptions {
        background: false,
        arena,
        ..VolumeOptions::new(&config.map_err(|error| error.to_string())?)
    };
    let volume = Volume::start(Arc::new(MemoryStore::new()), options);
    let volume = volume.map_err(|error| error.to_string())?;
    let file = create(&volume, b"file").map_err(|error| error.to_string())?;
    for page in 0..PAGES {
        overwrite(&volume, file, page).map_err(|error| error.to_string())?;
    }
    Ok((volume, file))
}

fn create(volume: &Volume, name: &[u8]) -> Result<ObjectId, FsError> {
    let spec = NodeSpec {
        kind: FileKind::Regular,
        mode: 0o644,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    let node = volume.create(&Caller::default(), ObjectId::ROOT, name, &spec)?;
    Ok(node.id)
}

fn write(volume: &Volume, file: ObjectId, offset: u64, length: usize) -> Result<(), FsError> {
    let content = [7; PAGE_BYTES];
    let at = WriteAt::Offset(offset);
    volume
        .write(file, at, &content[..length], SetIdBits::Stay, false)
        .map(|_| ())
}

fn overwrite(volume: &Volume, file: ObjectId, number: u64) -> Result<(), FsError> {
    let page = number * 40_503 % PAGES;
    write(volume, file, page * PAGE_BYTES_U64, PAGE_BYTES)
}

fn overwrite_in_part(volume: &Volume, file: ObjectId, number: u64) -> Result<(), FsError> {
    let page = number * 40_503 % PAGES;
    write(volume, file, page * PAGE_BYTES_U64 + 1000, 100)
}

fn look_up(volume: &Volume, _file: ObjectId, _number: u64) -> Result<(), FsError> {
    let node = volume.lookup(ObjectId::ROOT, b"file")?;
    volume.forget(node.id, 1);
    Ok(())
}

fn create_and_unlink(volume: &Volume, _file: ObjectId, _number: u64) -> Result<(), FsError> {
    let file = create(volume, b"journal")?;
    write(volume, file, 0, PAGE_BYTES)?;
    volume.unlink(ObjectId::ROOT, b"journal")?;
    volume.forget(file, 1);
    Ok(())
}
