//! Room that programs ask for ahead and give back: driven by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{ByteRange, FullDisk, ObjectId, Page, PageIndex, Room, SpaceInfo};
use mobifs_engine::{
    AllocateMode, AttributeChange, Commit, FsError, Need, RemovalMemory, RenameMode, SetIdBits,
    Stop, WriteAt,
};

const MIB: u64 = 1 << 20;
/// What an entry or object that changes is charged at most.
const OBJECT_BYTES: u64 = 512 + 2 * 4096;

fn allocate(bed: &mut Bed, file: ObjectId, mode: AllocateMode, range: ByteRange) {
    let moment = bed.moment();
    let (start, length) = (range.start, range.len());
    bed.engine
        .allocate(moment, file, mode, start, length)
        .unwrap();
}

fn truncate(bed: &mut Bed, file: ObjectId, size: u64) {
    let change = AttributeChange {
        size: Some(size),
        ..AttributeChange::default()
    };
    let moment = bed.moment();
    bed.engine.set_attributes(moment, file, &change).unwrap();
}

/// What the store is to allocate for a file, and to zero.
fn ranges_of(commits: &[Commit], file: ObjectId) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let transactions = commits.iter().map(Commit::to_transaction);
    let states = transactions.flat_map(|transaction| transaction.objects);
    let state = states.filter(|state| state.id == file).last().unwrap();
    (state.allocated, state.zeroed)
}

const ALLOCATE: AllocateMode = AllocateMode::Allocate { keep_size: false };
const AHEAD: AllocateMode = AllocateMode::Allocate { keep_size: true };

#[test]
fn what_is_allocated_and_punched_again_takes_no_room() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    allocate(&mut bed, file, ALLOCATE, ByteRange::new(0, MIB));
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, MIB);
    let half = ByteRange::new(MIB / 2, MIB);
    allocate(&mut bed, file, AllocateMode::PunchHole, half);
    let allocated = bed.engine.attributes(file).unwrap().allocated_bytes;
    assert_eq!(allocated, MIB / 2);
    let (allocated, _) = ranges_of(&bed.checkpoint(), file);
    assert_eq!(allocated, [ByteRange::new(0, MIB / 2)]);
}

#[test]
fn a_zeroed_range_keeps_the_room_that_it_had() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    let whole = ByteRange::new(0, MIB);
    allocate(&mut bed, file, ALLOCATE, whole);
    let zero = AllocateMode::ZeroRange { keep_size: true };
    allocate(&mut bed, file, zero, ByteRange::new(4096, 8192));
    let (allocated, _) = ranges_of(&bed.checkpoint(), file);
    assert_eq!(allocated, [whole]);
}

/// What an earlier transaction had allocated after the end counted as gone when a range before the
/// end became a hole.
#[test]
fn a_hole_before_the_end_keeps_the_room_after_it() {
    for hole in [
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange { keep_size: true },
    ] {
        let mut bed = Bed::relaxed();
        let app = bed.directory(ROOT, "app");
        let file = bed.file(app, "file");
        allocate(&mut bed, file, ALLOCATE, ByteRange::new(0, 65_536));
        allocate(&mut bed, file, AHEAD, ByteRange::new(0, MIB));
        bed.checkpoint();
        let room = |bed: &Bed| bed.engine.attributes(file).unwrap().allocated_bytes;
        assert_eq!(room(&bed), MIB);
        allocate(&mut bed, file, hole, ByteRange::new(8192, 12_288));
        // Which blocks the store has in the hole is not known here.
        let left = MIB - 4096..=MIB;
        assert!(left.contains(&room(&bed)), "{hole:?}: {}", room(&bed));
        // Of what is after the end goes what the hole covers.
        allocate(&mut bed, file, hole, ByteRange::new(65_536, MIB / 2));
        assert!(room(&bed) <= *left.end(), "{hole:?}: {}", room(&bed));
        truncate(&mut bed, file, 65_536);
        assert!(room(&bed) <= 65_536, "{hole:?}: {}", room(&bed));
    }
}

#[test]
fn room_behind_the_end_goes_with_a_truncation_to_the_same_size() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.write(file, 0, &[1; 5000]);
    allocate(&mut bed, file, AHEAD, ByteRange::new(0, MIB));
    truncate(&mut bed, file, 5000);
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, 8192);
    let (allocated, _) = ranges_of(&bed.checkpoint(), file);
    assert_eq!(allocated, [ByteRange::new(0, 5000)]);

    // The same where the store knows of the room.
    allocate(&mut bed, file, AHEAD, ByteRange::new(0, MIB));
    bed.checkpoint();
    truncate(&mut bed, file, 5000);
    let (allocated, zeroed) = ranges_of(&bed.checkpoint(), file);
    assert_eq!(allocated, []);
    assert_eq!(zeroed, [ByteRange::from(8192)]);
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, 8192);
}

#[test]
fn room_that_is_filled_counts_once() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    allocate(&mut bed, file, ALLOCATE, ByteRange::new(0, MIB));
    bed.write(file, 0, &vec![1; MIB as usize]);
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, MIB);
    allocate(&mut bed, file, ALLOCATE, ByteRange::new(0, MIB));
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, MIB);
    bed.checkpoint();
    let whole = ByteRange::new(0, MIB);
    allocate(&mut bed, file, AllocateMode::PunchHole, whole);
    assert_eq!(bed.engine.attributes(file).unwrap().allocated_bytes, 0);
}

/// Another program may have filled the lower filesystem, so even less is there than was promised.
#[test]
fn a_full_disk_refuses_what_needs_room_and_nothing_that_gives_it_back() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.directory(app, "empty");
    bed.write(file, 0, &[1; 10_000]);
    bed.engine.set_space(SpaceInfo::default(), Room::NONE);

    let moment = bed.moment();
    let refused = |stopped: Option<Stop>| matches!(stopped, Some(Stop::Need(Need::Space)));
    let longer = bed
        .engine
        .write(moment, file, WriteAt::Append, &[1; 4096], SetIdBits::Stay);
    assert!(refused(longer.err()));
    let range = (0, MIB);
    let allocated = bed
        .engine
        .allocate(moment, file, ALLOCATE, range.0, range.1);
    assert!(refused(allocated.err()));

    let of_mode = AttributeChange {
        mode: Some(0o600),
        ..AttributeChange::default()
    };
    bed.engine.set_attributes(moment, file, &of_mode).unwrap();
    let half = ByteRange::new(0, 4096);
    allocate(&mut bed, file, AllocateMode::PunchHole, half);
    truncate(&mut bed, file, 5000);
    truncate(&mut bed, file, 0);
    bed.unlink(app, "file");
    bed.engine
        .remove_directory(moment, app, b"empty", RemovalMemory::WithinBudget)
        .unwrap();
}

/// The range and version of which the engine asks whether they have their place.
fn asked_for_place_of(file: ObjectId, stopped: Result<usize, Stop>) -> (ByteRange, u64) {
    match stopped {
        Err(Stop::Need(Need::Place {
            object,
            range,
            version,
        })) => {
            assert_eq!(object, file);
            (range, version)
        }
        other => panic!("{other:?}"),
    }
}

/// On a full disk SQLite goes on in the room that its log has, and so must the layers under it.
#[test]
fn a_full_disk_takes_what_has_its_place_and_entries_that_move() {
    let mut bed = Bed::relaxed();
    let (app, other) = (bed.directory(ROOT, "app"), bed.directory(ROOT, "other"));
    let file = bed.file(app, "file");
    bed.write(file, 0, &[1; 12288]);
    let apply = |bed: &mut Bed| {
        bed.checkpoint();
        bed.engine.set_space(SpaceInfo::default(), Room::NONE);
    };
    apply(&mut bed);
    bed.engine.set_full_disk(FullDisk {
        overwritten_bytes_max: 12288,
        entries_bytes_max: 8 * OBJECT_BYTES,
    });
    let moment = bed.moment();
    let write = |bed: &mut Bed, offset, data: &[u8]| {
        let at = WriteAt::Offset(offset);
        bed.engine.write(moment, file, at, data, SetIdBits::Stay)
    };
    let refused = Err(Stop::Need(Need::Space));
    let asked = |stopped| asked_for_place_of(file, stopped);
    let (range, version) = asked(write(&mut bed, 4096, &[2; 4096]));
    assert_eq!(range, ByteRange::new(4096, 8192));
    bed.engine.provide_place(file, range, version + 1, true);
    asked(write(&mut bed, 4096, &[2; 4096]));
    bed.engine.provide_place(file, range, version, false);
    assert_eq!(write(&mut bed, 4096, &[2; 4096]), refused);
    // Now it was applied, and has its place.
    bed.engine.set_space(SpaceInfo::default(), Room::NONE);
    asked(write(&mut bed, 4096, &[2; 4096]));
    bed.engine.provide_place(file, range, version, true);
    assert_eq!(write(&mut bed, 4096, &[2; 4096]), Ok(4096));
    // A part of a page is a page.
    let page = Page::new(&[1; 4096]);
    bed.engine.provide_page(file, PageIndex(2), version, page);
    let (range, version) = asked(write(&mut bed, 8200, &[3; 10]));
    assert_eq!(range, ByteRange::new(8192, 12288));
    bed.engine.provide_place(file, range, version, true);
    assert_eq!(write(&mut bed, 8200, &[3; 10]), Ok(10));
    // More than the journal holds with what is there, and what an uncommitted change has
    // given back.
    assert_eq!(write(&mut bed, 0, &[4; 8192]), refused);
    apply(&mut bed);
    let first = ByteRange::new(0, 4096);
    allocate(&mut bed, file, AllocateMode::PunchHole, first);
    assert_eq!(write(&mut bed, 0, &[4; 4096]), refused);
    let entries = |bed: &mut Bed, to: &[u8]| {
        let mode = RenameMode::Replace;
        let (from, to) = ((app, b"file".as_slice()), (other, to));
        bed.engine.rename(moment, from, to, mode)
    };
    entries(&mut bed, b"moved").unwrap();
    assert_eq!(entries(&mut bed, b"again"), Err(FsError::NotFound.into()));
    // Two at a time are more than is kept for them.
    let back = |bed: &mut Bed| {
        let (from, to) = ((other, b"moved".as_slice()), (app, b"file".as_slice()));
        bed.engine.rename(moment, from, to, RenameMode::Replace)
    };
    assert_eq!(back(&mut bed), refused.map(|_: usize| ()));
    bed.engine.link(moment, file, app, b"link").unwrap();
    apply(&mut bed);
    back(&mut bed).unwrap();
    let moment = bed.moment();
    let longer = bed
        .engine
        .write(moment, file, WriteAt::Append, &[1; 1], SetIdBits::Stay);
    let (range, version) = asked(longer);
    assert_eq!(range, ByteRange::new(12288, 16384));
    bed.engine.provide_place(file, range, version, false);
    assert_eq!(write(&mut bed, 12288, &[1; 1]), refused);
}

/// SQLite could not roll back: another program had taken the room that its changes were to have,
/// and neither could what they had replaced be written over them nor the file be cut off.
#[test]
fn what_was_just_written_can_be_undone_when_others_have_taken_the_room() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.write(file, 0, &[1; 4096]);
    bed.checkpoint();
    bed.engine.set_space(space(8 * MIB), Room::NONE);
    bed.engine.set_full_disk(FullDisk {
        overwritten_bytes_max: MIB,
        entries_bytes_max: 0,
    });
    for page in 0..512 {
        bed.write(file, page * 4096, &[2; 4096]);
    }
    assert!(bed.engine.has_promised_room());
    bed.engine.set_space(space(0), Room::NONE);
    assert!(!bed.engine.has_promised_room());
    let moment = bed.moment();
    let write = |bed: &mut Bed, offset, data: &[u8]| {
        let at = WriteAt::Offset(offset);
        bed.engine.write(moment, file, at, data, SetIdBits::Stay)
    };
    let refused = Err(Stop::Need(Need::Space));
    assert_eq!(write(&mut bed, 512 * 4096, &[3; 4096]), refused);
    assert_eq!(write(&mut bed, 4096, &[1; 4096]), Ok(4096));
    truncate(&mut bed, file, 4096);
    assert_eq!(write(&mut bed, 0, &[1; 4096]), Ok(4096));
    assert_eq!(write(&mut bed, 4096, &[1; 4096]), refused);
    assert!(bed.engine.dirty_bytes() < 16 << 10);
}

fn space(bytes: u64) -> SpaceInfo {
    SpaceInfo {
        available_bytes: bytes,
        free_bytes: bytes,
        total_bytes: bytes,
        block_bytes: 4096,
        ..SpaceInfo::default()
    }
}

/// Every other page takes a block, and may split one of the list that tells where it is.
#[test]
fn pages_that_lie_apart_are_charged_for_the_list_of_extents() {
    let written = |step: u64| {
        let mut bed = Bed::relaxed();
        let app = bed.directory(ROOT, "app");
        let file = bed.file(app, "file");
        bed.checkpoint();
        bed.engine.set_space(space(MIB), Room::NONE);
        let moment = bed.moment();
        let write = |page: &u64| {
            let at = WriteAt::Offset(page * step);
            let written = bed
                .engine
                .write(moment, file, at, &[1; 4096], SetIdBits::Stay);
            written.is_ok()
        };
        (0..).take_while(write).count()
    };
    let (in_a_row, apart) = (written(4096), written(8192));
    // The last eighth is for apps to which less is promised.
    assert!((210..224).contains(&in_a_row), "{in_a_row}");
    assert!((96..=110).contains(&apart), "{apart}");
}

/// Long targets went to the journal and, where it was too small for them, to files of their own,
/// for which there was no room.
#[test]
fn what_the_journal_is_too_small_for_is_charged_once_more() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    bed.checkpoint();
    bed.engine.set_space(space(8 * MIB), Room::NONE);
    bed.engine.set_full_disk(FullDisk {
        overwritten_bytes_max: MIB,
        entries_bytes_max: 0,
    });
    let target = [b'x'; 3500];
    let caller = mobifs_engine::Caller::default();
    let spec = mobifs_engine::NodeSpec {
        kind: mobifs_base::FileKind::Symlink,
        mode: 0o777,
        rdev: mobifs_base::DeviceNumber(0),
        symlink_target: Some(&target),
    };
    let mut links = 0;
    let stopped = loop {
        let moment = bed.moment();
        let name = format!("{links}");
        match bed
            .engine
            .create(&caller, moment, app, name.as_bytes(), &spec)
        {
            Ok(link) => {
                bed.engine.forget(link.id, 1);
                links += 1;
            }
            Err(stopped) => break stopped,
        }
    };
    assert_eq!(stopped, Stop::Need(Need::Space));
    let in_journal = bed.engine.dirty_bytes();
    assert!(in_journal >= links * 3500, "targets are not counted");
    let below = links * (4096 + 512);
    assert!(below + in_journal < 8 * MIB, "{links}");
    // What is committed first goes on.
    bed.checkpoint();
    bed.engine.set_space(space(4 * MIB), Room::NONE);
    let moment = bed.moment();
    bed.engine
        .create(&caller, moment, app, b"more", &spec)
        .unwrap();
    // Deleting must not need such a file either.
    bed.checkpoint();
    bed.engine.set_space(space(0), Room::NONE);
    let mut gone = 0;
    while gone < links {
        let moment = bed.moment();
        let name = format!("{gone}");
        match bed
            .engine
            .unlink(moment, app, name.as_bytes(), RemovalMemory::WithinBudget)
        {
            Ok(()) => gone += 1,
            Err(stopped) => {
                assert_eq!(stopped, Stop::Need(Need::Space));
                assert!(bed.engine.dirty_bytes() >= MIB - 1024);
                bed.checkpoint();
                bed.engine.set_space(space(0), Room::NONE);
            }
        }
    }
}

/// The index of a directory of ext4 is full at some time, long before the disk is.
#[test]
fn a_directory_takes_names_as_far_as_the_filesystem_below_surely_does() {
    let limits = mobifs_engine::Limits {
        directory_bytes_max: 100,
        ..mobifs_engine::Limits::default()
    };
    let mut bed = Bed::new(mobifs_engine::AppPolicy::default(), limits);
    let (app, other) = (bed.directory(ROOT, "app"), bed.directory(ROOT, "other"));
    let moment = bed.moment();
    let file = bed.file(app, "12345678");
    for name in ["22345678", "32345678", "42345678", "52345678", "6234567"] {
        bed.file(app, name);
    }
    let full = Err(Stop::Fail(FsError::NoSpace));
    let link = |bed: &mut Bed, parent, name: &str| {
        let linked = bed.engine.link(moment, file, parent, name.as_bytes());
        linked.map(|_| ())
    };
    assert_eq!(link(&mut bed, app, "7"), full);
    link(&mut bed, other, "7").unwrap();
    let rename = |bed: &mut Bed, from: (ObjectId, &[u8]), to: (ObjectId, &[u8])| {
        bed.engine.rename(moment, from, to, RenameMode::Replace)
    };
    assert_eq!(rename(&mut bed, (other, b"7"), (app, b"8")), full);
    // What replaces, moves within it, or leaves it does not add to it.
    rename(&mut bed, (app, b"22345678"), (app, b"92345678")).unwrap();
    rename(&mut bed, (app, b"32345678"), (other, b"32345678")).unwrap();
    rename(&mut bed, (other, b"32345678"), (app, b"42345678")).unwrap();
    bed.unlink(app, "52345678");
    link(&mut bed, app, "7").unwrap();
}

/// An app that filled the disk's room with promises made others wait until all of it was committed
/// and applied, for seconds, although that gave most of the room back.
#[test]
fn an_app_with_little_below_does_not_wait_for_one_that_fills_the_room() {
    let mut bed = Bed::relaxed();
    let (big, small) = (bed.directory(ROOT, "big"), bed.directory(ROOT, "small"));
    let (big, small) = (bed.file(big, "file"), bed.file(small, "file"));
    bed.checkpoint();
    let moment = bed.moment();
    let fill = |bed: &mut Bed, file| {
        let refused = (0..).find_map(|page: u64| {
            let (at, data) = (WriteAt::Append, [1; 4096]);
            let written = bed.engine.write(moment, file, at, &data, SetIdBits::Stay);
            written.err().map(|stop| (page, stop))
        });
        let (pages, stop) = refused.unwrap();
        assert_eq!(stop, Stop::Need(Need::Space));
        pages
    };
    bed.engine.set_space(space(8 * MIB), Room::NONE);
    let all = 8 * MIB / 4096;
    let by_big = fill(&mut bed, big);
    assert!((all * 6 / 8..all * 7 / 8).contains(&by_big), "{by_big}");
    // Open or closed, it is the same app's. On a full disk overwriting would be allowed.
    bed.engine.set_full_disk(FullDisk {
        overwritten_bytes_max: 64 * MIB,
        entries_bytes_max: 0,
    });
    bed.engine.close_app(b"big").unwrap();
    assert_eq!(fill(&mut bed, big), 0);
    let at = WriteAt::Offset(0);
    let overwritten = bed
        .engine
        .write(moment, big, at, &[2; 4096], SetIdBits::Stay);
    assert_eq!(overwritten, Err(Stop::Need(Need::Space)));
    bed.engine.set_full_disk(FullDisk::default());
    let by_small = fill(&mut bed, small);
    assert!((all / 10..all / 8).contains(&by_small), "{by_small}");

    // What is committed is not promised any more: the last block can be written, too.
    bed.checkpoint();
    for left in [MIB, MIB / 32] {
        bed.engine.set_space(space(left), Room::NONE);
        assert!(fill(&mut bed, big) > 0, "{left}");
        bed.checkpoint();
    }
}
