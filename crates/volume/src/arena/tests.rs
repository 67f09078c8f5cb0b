use std::collections::BTreeMap;
use std::path::Path;

use mobifs_numerics::Random;

use super::records::RawKey;
use super::*;

type Model = BTreeMap<(u8, u64, u64), Vec<u8>>;

/// A change of a batch: a key and its new value, or none.
type Change = ((u8, u64, u64), Option<Vec<u8>>);

fn batch(dice: &mut Random) -> Vec<Change> {
    let changes = 1 + dice.below(6);
    (0..changes)
        .map(|_| {
            let key = (dice.below(3) as u8 + 1, dice.below(5), dice.below(3));
            let length = match dice.below(10) {
                0 => 3000 + dice.below(9000),
                1 => 0,
                _ => dice.below(300),
            };
            let fill = dice.below(256) as u8;
            let value = (dice.below(4) > 0).then(|| vec![fill; length as usize]);
            (key, value)
        })
        .collect()
}

fn run(arena: &Arena, batch: &[Change]) {
    let mut records = arena.shared.records.lock();
    for ((kind, first, second), value) in batch {
        let key = RawKey {
            kind: *kind,
            first: *first,
            second: *second,
        };
        match value {
            Some(value) => records.put(key, value),
            None => records.remove(key),
        }
    }
    records.commit(Vec::new());
}

fn apply(model: &mut Model, batch: &[Change]) {
    for (key, value) in batch {
        match value {
            Some(value) => model.insert(*key, value.clone()),
            None => model.remove(key),
        };
    }
}

fn content(arena: &Arena) -> Model {
    let records = arena.shared.records.lock();
    records
        .all()
        .map(|(key, value)| ((key.kind, key.first, key.second), value))
        .collect()
}

/// The arena as another holder of its memory finds it.
fn successor(arena: &Arena) -> Arena {
    let memory = arena.descriptor().try_clone_to_owned().unwrap();
    Arena::attach(memory).unwrap()
}

#[test]
fn a_kill_at_any_write_leaves_the_state_before_or_after_the_batch() {
    let mut dice = Random::new(1);
    let mut arena = Arena::create().unwrap();
    let mut model = Model::new();
    let (mut before, mut after) = (0, 0);
    for _ in 0..120 {
        let batch = batch(&mut dice);
        let mut done = model.clone();
        apply(&mut done, &batch);
        for writes in 0.. {
            arena.kill_after(writes);
            run(&arena, &batch);
            let finished = !arena.is_killed();
            arena = successor(&arena);
            let found = content(&arena);
            if finished {
                assert_eq!(found, done);
                break;
            }
            if found == done {
                after += 1;
            } else {
                assert_eq!(found, model, "killed after {writes} writes");
                before += 1;
            }
            if found != model {
                // The batch is committed. Its remaining kill points have the same outcome; they are
                // tried from the same state in other rounds.
                break;
            }
        }
        model = done;
        assert_eq!(content(&arena), model);
    }
    assert!(
        before > 1000 && after > 50,
        "{before} before, {after} after"
    );
}

#[test]
fn a_kill_while_a_successor_takes_over_changes_nothing() {
    let mut dice = Random::new(2);
    let arena = Arena::create().unwrap();
    let mut model = Model::new();
    for _ in 0..30 {
        let batch = batch(&mut dice);
        run(&arena, &batch);
        apply(&mut model, &batch);
    }
    let batch = batch(&mut dice);
    // Killed as soon as the batch is published: what follows are the slots' own words.
    let mut done = model.clone();
    apply(&mut done, &batch);
    let mut writes = 0;
    let published = loop {
        let trial = copy_of(&arena);
        trial.kill_after(writes);
        run(&trial, &batch);
        let next = successor(&trial);
        if content(&next) == done {
            // `next` has carried the batch out; the copy shows it unfinished.
            let unfinished = copy_of(&arena);
            unfinished.kill_after(writes);
            run(&unfinished, &batch);
            break unfinished;
        }
        writes += 1;
    };
    for writes in 0..40 {
        let trial = copy_of(&published);
        let memory = trial.descriptor().try_clone_to_owned().unwrap();
        let region = Region::attach(memory).unwrap();
        region.kill().after(writes);
        let _dies = Records::attach(Arc::new(region));
        assert_eq!(content(&successor(&trial)), done);
    }
}

/// Another arena with the same bytes.
fn copy_of(arena: &Arena) -> Arena {
    use std::os::unix::fs::FileExt as _;
    let from = std::fs::File::from(arena.descriptor().try_clone_to_owned().unwrap());
    let to = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let bytes = arena.shared.region.mapped_bytes() as u64;
    rustix::fs::ftruncate(&to, bytes).unwrap();
    let into = std::fs::File::from(to.try_clone().unwrap());
    let mut at = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(data) = rustix::fs::seek(&from, rustix::fs::SeekFrom::Data(at)) {
        let hole = rustix::fs::seek(&from, rustix::fs::SeekFrom::Hole(data)).unwrap();
        at = data;
        while at < hole {
            let length = (hole - at).min(buffer.len() as u64) as usize;
            from.read_exact_at(&mut buffer[..length], at).unwrap();
            into.write_all_at(&buffer[..length], at).unwrap();
            at += length as u64;
        }
    }
    Arena::over_unchecked(to)
}

impl Arena {
    /// Reads the arena's state without carrying out an unfinished batch.
    fn over_unchecked(memory: OwnedFd) -> Self {
        let region = Arc::new(Region::attach(memory).unwrap());
        let published = region.load(layout::BATCH_AT);
        let copy = region.descriptor().try_clone_to_owned().unwrap();
        if published == 0 {
            return Self::attach(copy).unwrap();
        }
        Self::over(Arc::clone(&region), Records::new(region))
    }
}

#[test]
fn slots_are_used_again_and_memory_is_given_back() {
    let arena = Arena::create().unwrap();
    let big = vec![7; 3000];
    let many = |value: Option<&Vec<u8>>| -> Vec<Change> {
        (0..5000).map(|n| ((1, n, 0), value.cloned())).collect()
    };
    run(&arena, &many(Some(&big)));
    let full = arena.used_bytes();
    for round in 0..20 {
        let other = vec![round; 3000];
        run(&arena, &many(Some(&other)));
    }
    assert!(arena.used_bytes() <= full * 2 + (4 << 20));
    run(&arena, &many(None));
    assert!(arena.used_bytes() < 8 << 20, "{} bytes", arena.used_bytes());
    let blocks = rustix::fs::fstat(arena.descriptor()).unwrap().st_blocks;
    assert!(blocks * 512 < 16 << 20, "{blocks} blocks stay");
    run(&arena, &many(Some(&big)));
    assert_eq!(content(&successor(&arena)).len(), 5000);
}

#[test]
fn at_rest_memory_is_given_back_and_a_kill_meanwhile_changes_nothing() {
    let arena = Arena::create().unwrap();
    let put = |numbers: std::ops::Range<u64>, bytes: usize| -> Vec<Change> {
        let value = |number| Some(vec![number as u8; bytes]);
        numbers
            .map(|number| ((1, number, 0), value(number)))
            .collect()
    };
    let mut model = Model::new();
    // Some thousand records in each of several classes, of which a few stay.
    for (round, bytes) in [20, 200, 700, 1500, 3500].into_iter().enumerate() {
        let first = round as u64 * 1000;
        let batch = put(first..first + 1000, bytes);
        run(&arena, &batch);
        let gone = batch.iter().skip(1).map(|(key, _)| (*key, None));
        run(&arena, &gone.collect::<Vec<_>>());
        apply(&mut model, &batch[..1]);
    }
    let before = arena.used_bytes();
    let mut given_back = before;
    for writes in 0.. {
        let trial = copy_of(&arena);
        trial.kill_after(writes);
        trial.shared.records.lock().give_back(usize::MAX);
        let is_done = !trial.is_killed();
        let next = successor(&trial);
        assert_eq!(content(&next), model, "killed after {writes} writes");
        next.shared.records.lock().give_back(usize::MAX);
        given_back = next.used_bytes();
        assert!(given_back < before, "{given_back} of {before} bytes");
        // What was given back is as good as new.
        let more = put(0..50, 300);
        run(&next, &more);
        let mut with_more = model.clone();
        apply(&mut with_more, &more);
        assert_eq!(content(&next), with_more);
        if is_done {
            assert!(writes > 2, "nothing was given back");
            break;
        }
    }
    // One chunk for each class in use.
    assert_eq!(given_back, 5 * (256 << 10));
}

#[test]
fn the_sessions_text_is_whole() {
    let arena = Arena::create().unwrap();
    assert_eq!(arena.session(), None);
    arena.set_session(b"first").unwrap();
    for writes in 0..4 {
        let trial = successor(&arena);
        trial.kill_after(writes);
        trial.set_session(b"the second").unwrap();
        let found = successor(&arena).session().unwrap();
        let expected: &[u8] = if writes < 3 { b"first" } else { b"the second" };
        assert_eq!(found, expected, "killed after {writes} writes");
    }
    assert!(arena.set_session(&[0; 3000]).is_err());
}

#[test]
fn a_request_stays_in_its_slot() {
    let arena = Arena::create().unwrap();
    let mut slot = arena.request_slot(3).unwrap();
    assert!(arena.request_slot(3).is_none(), "the slot is taken");
    assert!(arena.request_slot(Arena::REQUEST_SLOTS).is_none());
    assert_eq!(slot.in_flight_bytes(), None);
    slot.buffer()[..8].copy_from_slice(&[48, 0, 0, 0, 9, 9, 9, 9]);
    slot.record_error(-2);
    let next = successor(&arena);
    let mut left = next.request_slot(3).unwrap();
    assert_eq!(
        (left.in_flight_bytes(), left.recorded_error()),
        (Some(48), Some(-2))
    );
    left.clear();
    assert_eq!(
        (slot.in_flight_bytes(), slot.recorded_error()),
        (None, None)
    );
    drop(slot);
    assert!(arena.request_slot(3).is_some());
}

#[test]
fn what_is_no_arena_is_refused() {
    let memory = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let attach = |memory: &OwnedFd| Arena::attach(memory.try_clone().unwrap()).unwrap_err();
    assert!(matches!(attach(&memory), ArenaError::Memory(_)));
    rustix::fs::ftruncate(&memory, 1 << 30).unwrap();
    assert!(matches!(attach(&memory), ArenaError::Foreign));
    let arena = Arena::create().unwrap();
    arena.shared.region.store(layout::VERSION_AT, 99);
    let memory = arena.descriptor().try_clone_to_owned().unwrap();
    assert!(matches!(attach(&memory), ArenaError::Foreign));
}

#[test]
fn damage_is_noticed() {
    let arena = Arena::create().unwrap();
    run(&arena, &[((1, 1, 1), Some(vec![1; 9000]))]);
    let refused = |arena: &Arena| {
        let memory = arena.descriptor().try_clone_to_owned().unwrap();
        Arena::attach(memory).unwrap_err()
    };
    let copy = copy_of(&arena);
    // The last part does not count any more.
    let last = layout::Layout::MOUNT.chunks_at + slots::CHUNK_HEADER_BYTES + 4096;
    copy.shared.region.store(last, 0);
    assert!(matches!(refused(&copy), ArenaError::Damaged(_)));
    let copy = copy_of(&arena);
    copy.shared.region.store(layout::CHUNKS_AT, u64::MAX);
    assert!(matches!(refused(&copy), ArenaError::Damaged(_)));
    let copy = copy_of(&arena);
    copy.shared
        .region
        .store(layout::Layout::MOUNT.chunks_at, 77);
    assert!(matches!(refused(&copy), ArenaError::Damaged(_)));
    let copy = copy_of(&arena);
    copy.shared.region.store(layout::INCOMPLETE_AT, 1);
    assert!(matches!(refused(&copy), ArenaError::Incomplete));
}

fn file_at(path: &Path) -> File {
    let file = File::options();
    let file = file.clone().read(true).write(true).create(true).open(path);
    file.unwrap()
}

fn create_at(path: &Path) -> Arena {
    Arena::create_in(&file_at(path), path.to_owned()).unwrap()
}

fn left_at(path: &Path) -> Arena {
    Arena::attach_file(&file_at(path), path.to_owned()).unwrap()
}

#[test]
fn an_arena_in_a_file_is_found_by_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let arena = create_at(&path);
    let mut dice = Random::new(5);
    let mut model = Model::new();
    for _ in 0..50 {
        let batch = batch(&mut dice);
        run(&arena, &batch);
        apply(&mut model, &batch);
    }
    drop(arena);
    assert_eq!(content(&left_at(&path)), model);
}

#[test]
fn a_full_filesystem_makes_an_arena_incomplete_and_kills_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(directory.path())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        mobifs_skip::skip("a tmpfs cannot be mounted here");
        return;
    }
    let arena = create_at(&directory.path().join("arena"));
    for number in 0..2000 {
        run(&arena, &[((1, number, 0), Some(vec![1; 3000]))]);
    }
    assert!(!arena.is_complete());
    drop(arena);
    let mut umount = std::process::Command::new("umount");
    assert!(umount.arg(directory.path()).status().unwrap().success());
}

/// What `path` takes of its filesystem, in bytes.
fn taken_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// A database took 1.2 to 1.9 MiB of shared memory after one insert, because each class of slots
/// has chunks of its own, and they had 256 KiB.
#[test]
fn an_arena_in_a_file_takes_little_memory_for_few_records_and_is_no_longer_than_it() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("arena");
    let arena = create_at(&path);
    for (number, length) in [10, 100, 200, 500, 900, 1400, 2000, 3000]
        .into_iter()
        .enumerate()
    {
        run(&arena, &[((1, number as u64, 0), Some(vec![1; length]))]);
        arena.shared.records.lock().keep(&vec![2; length]).unwrap();
    }
    assert!(taken_bytes(&path) <= 640 << 10, "{}", taken_bytes(&path));
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length <= 640 << 10, "{length}");
}

/// Batches that are too large for the common place get one of their own, which is returned
/// afterwards.
#[test]
fn large_batches_of_an_arena_in_a_file_happen_whole_and_leave_no_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("arena");
    let arena = create_at(&path);
    run(&arena, &[((1, 0, 0), Some(vec![1; 100]))]);
    let mut model = content(&arena);
    let idle_bytes = arena.used_bytes();
    for count in [3_000_u64, 40_000, 5_000] {
        let all = |value: Option<Vec<u8>>| -> Vec<Change> {
            (0..count).map(|n| ((2, n, 0), value.clone())).collect()
        };
        let batch = all(Some(vec![3; 20]));
        run(&arena, &batch);
        apply(&mut model, &batch);
        assert!(arena.is_complete());
        assert_eq!(content(&left_at(&path)), model);
        run(&arena, &all(None));
        apply(&mut model, &all(None));
        arena.shared.records.lock().give_back(usize::MAX);
        assert_eq!(arena.used_bytes(), idle_bytes);
    }
    assert_eq!(content(&left_at(&path)), model);
}

/// A kill at any write while such a place is made, used and returned.
#[test]
fn a_kill_in_a_large_batch_leaves_it_whole_or_undone() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("arena");
    let batch: Vec<Change> = (0..2_100)
        .map(|n| ((1, n, 0), Some(vec![n as u8; 8])))
        .collect();
    let before: Vec<Change> = vec![((1, 5_000, 0), Some(vec![9; 9]))];
    let mut model = Model::new();
    apply(&mut model, &before);
    let undone = model.clone();
    apply(&mut model, &batch);
    let mut outcomes = [0, 0];
    // Each record is six writes, each entry one when it is listed and one when it is carried out.
    let all = 2_100 * 8 + 40;
    let in_steps = (0..all).step_by(1997);
    let at_the_area = 2_100 * 6..2_100 * 6 + 12;
    let at_the_end = (all - 40..all).step_by(4);
    for writes in in_steps.chain(at_the_area).chain(at_the_end) {
        let arena = create_at(&path);
        run(&arena, &before);
        arena.kill_after(writes);
        run(&arena, &batch);
        arena.shared.records.lock().give_back(usize::MAX);
        let left = left_at(&path);
        let found = content(&left);
        let is_whole = found == model;
        assert!(is_whole || found == undone, "after {writes} writes");
        outcomes[usize::from(is_whole)] += 1;
        // It goes on from there.
        run(&left, &batch);
        assert_eq!(content(&left_at(&path)), model, "after {writes} writes");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// All pages of a committed transaction became free within whichever operation came next, of
/// whatever app, and all chunks at once at rest: the engine was locked for tenths of a second.
#[test]
fn memory_is_given_back_in_portions() {
    const PAGES: usize = 4_000;
    const PORTION: usize = 512;
    let arena = Arena::create().unwrap();
    let store = mobifs_store::MemoryStore::new();
    let root = mobifs_store::Store::object(&store, mobifs_base::ObjectId::ROOT).unwrap();
    let config = mobifs_engine::EngineConfig {
        rules: Box::new(mobifs_engine::TopLevelApps::default()),
        limits: mobifs_engine::Limits::default(),
        hash_seed: 1,
        is_saved: true,
    };
    let mut engine = mobifs_engine::Engine::new(config, &root);
    arena.save(&mut engine);
    arena.shared.records.lock().give_back(usize::MAX);
    let idle_bytes = arena.used_bytes();
    let mut pages = vec![mobifs_base::Page::default(); PAGES];
    for page in &mut pages {
        arena.replacement().replace(page, &[7; 4096]);
    }
    drop(pages);
    let waiting = || arena.shared.released.0.lock().len();
    assert_eq!(waiting(), PAGES);
    for left in (0..PAGES).rev().step_by(PORTION) {
        assert!(arena.give_back(&mut engine));
        assert_eq!(waiting(), (left + 1).saturating_sub(PORTION));
    }
    // Spare chunks are returned in portions, too.
    let mut portions = 1;
    while arena.shared.records.lock().give_back(4) {
        portions += 1;
    }
    assert!(portions > 3, "{portions} portions");
    assert_eq!(arena.used_bytes(), idle_bytes);
}

#[test]
fn slots_that_many_workers_had_give_their_memory_back() {
    let arena = Arena::create().unwrap();
    let blocks = || rustix::fs::fstat(arena.descriptor()).unwrap().st_blocks;
    let before = blocks();
    let slots: Vec<_> = (0..60)
        .map(|number| arena.request_slot(number).unwrap())
        .collect();
    // In units of 512 bytes.
    assert!(blocks() - before > 60 * 2048);
    drop(slots);
    assert!(blocks() - before < 10 * 2304, "{} of {before}", blocks());
    let mut slot = arena.request_slot(50).unwrap();
    slot.buffer()[..4].copy_from_slice(&40_u32.to_ne_bytes());
    drop(slot);
    assert_eq!(arena.in_flight_slots(), [50], "what is in flight stays");
}
