//! What a killed daemon leaves: the arena, and the engine's records in it.
//!
//! Only the processes of one mount can reach it, so nothing in it is hostile. But it is read when
//! something has gone wrong already: then damage must be an error, which ends the mount properly,
//! and not another crash.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};

use mobifs_base::{DeviceNumber, FileKind, MonotonicNs, ObjectId, ObjectInfo, Page, Timestamp};
use mobifs_engine::persist::{Key, Kind, RestartImage};
use mobifs_engine::{Engine, EngineConfig, Limits, Moment, NodeSpec, Stop, TopLevelApps, WriteAt};
use mobifs_store::{MemoryStore, Store as _};
use mobifs_volume::{
    Arena, ArenaError, Caller, Config, Resumption, SetIdBits, Volume, VolumeOptions,
};
use rustix::fs::{MemfdFlags, SeekFrom};

use crate::{Target, Verdict};

/// An arena with words changed.
pub const ARENA: Target = Target {
    name: "arena",
    run: arena,
    seeds: || {
        let edit = |area: u8, at: u32, value: u64| {
            let mut bytes = vec![area];
            bytes.extend(at.to_le_bytes());
            bytes.extend(value.to_le_bytes());
            bytes
        };
        vec![
            Vec::new(),
            edit(0, 24, 1),
            [edit(1, 0, 268_435_521), edit(0, 24, 1)].concat(),
            edit(2, 0, 9),
            edit(2, 64 + 16, 4000),
            [edit(2, 64, 0), edit(2, 64 + 8, u64::MAX)].concat(),
            edit(2, 104, u64::MAX),
        ]
    },
};

/// Any records, as if an engine had saved them.
pub const ENGINE_IMAGE: Target = Target {
    name: "engine_image",
    run: engine_image,
    seeds: || {
        let whole = records_of(&mut engine());
        let halves = whole.len() / 2;
        vec![
            to_bytes(&whole),
            to_bytes(&whole[..halves]),
            to_bytes(&whole[halves..]),
        ]
    },
};

/// Offsets that edits are relative to: the header, the batch, the first chunks.
const AREAS: [(u64, u64); 3] = [(0, 64), (128 << 20, 4096), (256 << 20, 2 << 20)];
const EDIT_BYTES: usize = 13;

fn arena(input: &[u8]) -> Verdict {
    let Ok(memory) = copy_of_base() else {
        return Verdict::Refused;
    };
    let file = std::fs::File::from(memory);
    for edit in input.chunks_exact(EDIT_BYTES) {
        let (base, length) = AREAS[usize::from(edit[0]) % AREAS.len()];
        let number = |range: std::ops::Range<usize>| {
            edit[range]
                .iter()
                .rev()
                .fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
        };
        let at = base + number(1..5) % length / 8 * 8;
        if file.write_all_at(&number(5..13).to_le_bytes(), at).is_err() {
            return Verdict::Refused;
        }
    }
    Verdict::from(&take_over(file.into()))
}

fn take_over(memory: OwnedFd) -> Result<Resumption, ArenaError> {
    let arena = Arena::attach(memory)?;
    let _text = arena.session();
    Resumption::of(&arena)
}

/// An arena in which a volume has lived a little; the same each time, copied.
fn copy_of_base() -> std::io::Result<OwnedFd> {
    static BASE: OnceLock<Option<Arena>> = OnceLock::new();
    let base = BASE.get_or_init(|| lived_in().ok());
    let base = base.as_ref().ok_or(std::io::ErrorKind::OutOfMemory)?;
    let from = std::fs::File::from(base.descriptor().try_clone_to_owned()?);
    let memory = rustix::fs::memfd_create("fuzzed", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, 1 << 30)?;
    let into = std::fs::File::from(memory.try_clone()?);
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(&from, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&from, SeekFrom::Hole(data))?;
        let mut bytes = vec![0; (at - data) as usize];
        from.read_exact_at(&mut bytes, data)?;
        into.write_all_at(&bytes, data)?;
    }
    Ok(memory)
}

fn lived_in() -> Result<Arena, Box<dyn std::error::Error>> {
    let arena = Arena::create()?;
    let options = VolumeOptions {
        background: false,
        arena: Some(arena.clone()),
        ..VolumeOptions::new(&Config::defaults()?)
    };
    let volume = Volume::start(Arc::new(MemoryStore::new()), options)?;
    let caller = Caller::default();
    let app = volume.create(&caller, ObjectId::ROOT, b"app", &spec(FileKind::Directory))?;
    for name in [&b"one"[..], b"two", b"three"] {
        let file = volume.create(&caller, app.id, name, &spec(FileKind::Regular))?;
        volume.write(
            file.id,
            WriteAt::Offset(5000),
            &[7; 6000],
            SetIdBits::Stay,
            false,
        )?;
        volume.close_app("app");
    }
    volume.unlink(app.id, b"two")?;
    arena.set_session(b"what a session keeps")?;
    Ok(arena)
}

const fn spec(kind: FileKind) -> NodeSpec<'static> {
    NodeSpec {
        kind,
        mode: 0o755,
        rdev: DeviceNumber(0),
        symlink_target: None,
    }
}

/// Keeps everything on the heap.
#[derive(Default)]
struct Collected(BTreeMap<Key, Vec<u8>>);

impl RestartImage for Collected {
    fn put(&mut self, key: Key, value: &[u8]) {
        self.0.insert(key, value.to_vec());
    }

    fn remove(&mut self, key: Key) {
        self.0.remove(&key);
    }

    fn keep(&mut self, _page: &mut Page) {}
}

fn records_of(engine: &mut Engine) -> Vec<(Key, Vec<u8>)> {
    let mut collected = Collected::default();
    engine.save_all(&mut collected);
    collected.0.into_iter().collect()
}

fn config() -> EngineConfig {
    EngineConfig {
        rules: Box::new(TopLevelApps::default()),
        limits: Limits::default(),
        hash_seed: 1,
        is_saved: true,
    }
}

fn root() -> ObjectInfo {
    #[expect(clippy::expect_used, reason = "a new store in memory has a root")]
    MemoryStore::new()
        .object(ObjectId::ROOT)
        .expect("a store has a root")
}

/// An engine with something open and something closed.
fn engine() -> Engine {
    let mut engine = Engine::new(config(), &root());
    let moment = Moment {
        wall: Timestamp::default(),
        now: MonotonicNs(1),
    };
    if let Err(Stop::Need(mobifs_engine::Need::Directory { id, epoch })) =
        engine.lookup(ObjectId::ROOT, b"app")
    {
        engine.provide_directory(id, epoch, Vec::new());
    }
    if let Err(Stop::Need(mobifs_engine::Need::Xattrs { id, epoch })) =
        engine.list_xattrs(ObjectId::ROOT)
    {
        engine.provide_xattrs(id, epoch, Vec::new());
    }
    let caller = Caller::default();
    let directory = spec(FileKind::Directory);
    if let Ok(app) = engine.create(&caller, moment, ObjectId::ROOT, b"app", &directory) {
        for name in [&b"one"[..], b"two"] {
            let file = spec(FileKind::Regular);
            if let Ok(file) = engine.create(&caller, moment, app.id, name, &file) {
                let _written =
                    engine.write(moment, file.id, WriteAt::Offset(0), b"x", SetIdBits::Stay);
            }
            if name == b"one" {
                engine.close_all();
            }
        }
    }
    engine
}

/// Kind, two numbers, length and content of each record.
fn to_bytes(records: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        bytes.push(key.kind as u8);
        bytes.extend(key.first.to_le_bytes());
        bytes.extend(key.second.to_le_bytes());
        bytes.extend((value.len() as u16).to_le_bytes());
        bytes.extend(value);
    }
    bytes
}

fn from_bytes(mut bytes: &[u8]) -> Vec<(Key, &[u8])> {
    let mut records = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(19) {
        let number = |range: std::ops::Range<usize>| {
            head[range]
                .iter()
                .rev()
                .fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
        };
        let length = (number(17..19) as usize).min(rest.len());
        let (value, remaining) = rest.split_at(length);
        if let Some(kind) = Kind::of(head[0]) {
            let (first, second) = (number(1..9), number(9..17));
            let key = Key {
                kind,
                first,
                second,
            };
            records.push((key, value));
        }
        bytes = remaining;
    }
    records
}

fn engine_image(input: &[u8]) -> Verdict {
    let records = from_bytes(input);
    let mut page_at = |_: u64, length: usize| (length <= 4096).then(|| Page::new(&vec![1; length]));
    let mut records = records.into_iter();
    let restored = Engine::restore(config(), &root(), &mut records, &mut page_at, &[]);
    let verdict = Verdict::from(&restored);
    if let Ok(mut engine) = restored {
        // Whatever it is, it can be saved again and comes back as the same.
        let saved = records_of(&mut engine);
        let bytes = to_bytes(&saved);
        let mut again = from_bytes(&bytes).into_iter();
        if saved
            .iter()
            .all(|(_, value)| value.len() <= usize::from(u16::MAX))
        {
            let again = Engine::restore(config(), &root(), &mut again, &mut page_at, &[]);
            assert!(
                again.is_ok(),
                "what was saved cannot be restored: {again:?}"
            );
        }
    }
    verdict
}
