//! The double is only useful if it loses exactly what it documents, and no more.

use std::sync::Arc;

use mobifs_base::ByteRange;
use mobifs_store::lower::{Create, JournalBuffer, Lower, SetAttributes};
use parking_lot::Mutex;

use super::*;

fn none(_: &Effect) -> Fate {
    Fate::Vanish
}

fn all(_: &Effect) -> Fate {
    Fate::Land
}

/// Lands exactly the effects whose position is in `chosen`.
fn only(chosen: &[usize]) -> impl FnMut(&Effect) -> Fate {
    let mut position = 0;
    move |_| {
        position += 1;
        if chosen.contains(&(position - 1)) {
            Fate::Land
        } else {
            Fate::Vanish
        }
    }
}

fn names(lower: &CrashLower) -> Vec<String> {
    names_in(lower, &lower.root().unwrap())
}

fn names_in(lower: &CrashLower, directory: &CrashHandle) -> Vec<String> {
    let entries = lower.list(directory).unwrap();
    entries
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).unwrap())
        .collect()
}

fn content(lower: &CrashLower, name: &[u8]) -> Vec<u8> {
    let file = lower.open(&lower.root().unwrap(), name, false).unwrap();
    let mut out = vec![0xee; lower.stat(&file).unwrap().size as usize];
    assert_eq!(lower.read_at(&file, &mut out, 0).unwrap(), out.len());
    out
}

/// A filesystem with a synced file `file` of `size` bytes of 1.
fn with_file(size: usize) -> (CrashLower, CrashHandle, CrashHandle) {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"file", Create::Regular).unwrap();
    let file = lower.open(&root, b"file", true).unwrap();
    lower.write_at(&file, &vec![1; size], 0).unwrap();
    lower.sync_all().unwrap();
    (lower, root, file)
}

#[test]
fn what_is_not_synced_vanishes_and_what_is_stays() {
    let (lower, root, file) = with_file(1000);
    lower.write_at(&file, b"new", 0).unwrap();
    lower.create(&root, b"other", Create::Directory).unwrap();
    let image = lower.crash_image(&mut none);
    assert_eq!(
        (names(&image), content(&image, b"file")),
        (vec!["file".into()], vec![1; 1000])
    );
    let image = lower.crash_image(&mut all);
    assert_eq!(names(&image), ["file", "other"]);
    assert_eq!(&content(&image, b"file")[..4], b"new\x01");
    lower.sync(&file).unwrap();
    let image = lower.crash_image(&mut none);
    assert_eq!(
        (names(&image), &content(&image, b"file")[..4]),
        (vec!["file".into()], &b"new\x01"[..])
    );
    lower.sync(&root).unwrap();
    assert_eq!(names(&lower.crash_image(&mut none)), ["file", "other"]);
    assert_eq!(lower.pending_effects(), 0);
}

#[test]
fn a_synced_file_without_a_synced_entry_is_gone() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"f", Create::Regular).unwrap();
    let file = lower.open(&root, b"f", true).unwrap();
    lower.write_at(&file, b"content", 0).unwrap();
    lower.sync(&file).unwrap();
    assert_eq!(names(&lower.crash_image(&mut none)), Vec::<String>::new());
    // If its entry lands, all of its content is there.
    assert_eq!(content(&lower.crash_image(&mut all), b"f"), b"content");
}

#[test]
fn an_entry_lands_without_the_content() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"f", Create::Regular).unwrap();
    let file = lower.open(&root, b"f", true).unwrap();
    lower.write_at(&file, &[5; 1024], 0).unwrap();
    let land = |wanted: fn(&Effect) -> bool| {
        let mut chooser = |effect: &Effect| {
            if wanted(effect) {
                Fate::Land
            } else {
                Fate::Vanish
            }
        };
        content(&lower.crash_image(&mut chooser), b"f")
    };
    let is_link = |effect: &Effect| matches!(effect, Effect::Link { .. });
    assert!(land(is_link).is_empty());
    let with_size = |effect: &Effect| matches!(effect, Effect::Link { .. } | Effect::Size { .. });
    assert_eq!(land(with_size), [0; 1024]);
    let torn = |effect: &Effect| !matches!(effect, Effect::Sector { index: 0, .. });
    assert_eq!(land(torn), [[0; 512], [5; 512]].concat());
    let no_size = |effect: &Effect| !matches!(effect, Effect::Size { .. });
    assert!(land(no_size).is_empty());
}

#[test]
fn content_after_a_lost_size_does_not_come_back() {
    let (lower, _root, file) = with_file(10);
    lower.write_at(&file, &[9; 2000], 0).unwrap();
    let mut no_size = |effect: &Effect| {
        if matches!(effect, Effect::Size { .. }) {
            Fate::Vanish
        } else {
            Fate::Land
        }
    };
    let image = lower.crash_image(&mut no_size);
    assert_eq!(content(&image, b"file"), [9; 10]);
    let file = image.open(&image.root().unwrap(), b"file", true).unwrap();
    image.truncate(&file, 2000).unwrap();
    assert_eq!(
        content(&image, b"file"),
        [&[9; 10][..], &[0; 1990]].concat()
    );
}

#[test]
fn writing_nothing_does_not_grow_a_file() {
    let (lower, _root, file) = with_file(10);
    lower.write_at(&file, b"", 500).unwrap();
    assert_eq!(content(&lower, b"file"), [1; 10]);
}

#[test]
fn truncation_and_holes_are_effects_like_others() {
    let (lower, _root, file) = with_file(3000);
    lower.truncate(&file, 700).unwrap();
    lower.truncate(&file, 3000).unwrap();
    assert_eq!(
        content(&lower, b"file"),
        [&[1; 700][..], &[0; 2300]].concat()
    );
    assert_eq!(content(&lower.crash_image(&mut none), b"file"), [1; 3000]);
    // Effects: size 700, times, size 3000, times.
    assert_eq!(
        content(&lower.crash_image(&mut only(&[0])), b"file"),
        [1; 700]
    );
    assert_eq!(
        content(&lower.crash_image(&mut only(&[2])), b"file"),
        [1; 3000]
    );
    assert_eq!(
        content(&lower.crash_image(&mut all), b"file"),
        content(&lower, b"file")
    );
    lower.write_at(&file, &[2; 3000], 0).unwrap();
    lower.sync_all().unwrap();
    lower.zero_range(&file, ByteRange::from(500)).unwrap();
    assert_eq!(
        content(&lower, b"file"),
        [&[2; 500][..], &[0; 2500]].concat()
    );
    assert_eq!(lower.seek_hole(&file, 0).unwrap(), Some(512));
    assert_eq!(lower.seek_data(&file, 512).unwrap(), None);
    // One sector of the hole.
    let torn = content(&lower.crash_image(&mut only(&[1])), b"file");
    assert_eq!(torn, [&[2; 512][..], &[0; 512], &[2; 1976]].concat());
}

#[test]
fn a_sector_lands_with_what_memory_held_when_it_was_written() {
    let (lower, _root, file) = with_file(512);
    lower.write_at(&file, b"first", 0).unwrap();
    lower.write_at(&file, b"second", 100).unwrap();
    // Effects: sector, times, sector, times.
    let image = content(&lower.crash_image(&mut only(&[2])), b"file");
    assert_eq!(
        (&image[..5], &image[100..106]),
        (&b"first"[..], &b"second"[..])
    );
    let image = content(&lower.crash_image(&mut only(&[0])), b"file");
    assert_eq!(
        (&image[..5], &image[100..106]),
        (&b"first"[..], &[1; 6][..])
    );
}

#[test]
fn a_rename_is_atomic_and_independent_of_others() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    for name in [b"a", b"b"] {
        lower.create(&root, name, Create::Regular).unwrap();
    }
    lower.sync_all().unwrap();
    lower.rename(&root, b"a", &root, b"a2").unwrap();
    lower.rename(&root, b"b", &root, b"b2").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for subset in 0..64_usize {
        let chosen: Vec<usize> = (0..6).filter(|bit| subset >> bit & 1 == 1).collect();
        seen.insert(names(&lower.crash_image(&mut only(&chosen))));
    }
    let expected = [["a", "b"], ["a", "b2"], ["a2", "b"], ["a2", "b2"]];
    assert_eq!(
        seen,
        expected
            .map(|names| names.map(String::from).to_vec())
            .into()
    );
}

#[test]
fn one_name_has_one_history() {
    let (lower, root, _file) = with_file(10);
    lower.rename(&root, b"file", &root, b"away").unwrap();
    lower.create(&root, b"file", Create::Directory).unwrap();
    // The new entry cannot be there while the old one still is; and the old object
    // is not lost by that.
    let mut creation = |effect: &Effect| match effect {
        Effect::Link { .. } => Fate::Land,
        _ => Fate::Vanish,
    };
    let image = lower.crash_image(&mut creation);
    assert_eq!(names(&image), ["away", "file"]);
    assert_eq!(content(&image, b"away"), [1; 10]);
}

#[test]
fn directories_exist_before_and_are_empty_after_their_entries() {
    let (lower, root, _file) = with_file(10);
    lower.create(&root, b"dir", Create::Directory).unwrap();
    let dir = lower.open(&root, b"dir", true).unwrap();
    lower.rename(&root, b"file", &dir, b"inside").unwrap();
    let mut renames = |effect: &Effect| match effect {
        Effect::Rename { .. } => Fate::Land,
        _ => Fate::Vanish,
    };
    assert_eq!(names(&lower.crash_image(&mut renames)), ["dir"]);
    lower.sync_all().unwrap();
    lower.rename(&dir, b"inside", &root, b"outside").unwrap();
    lower.remove_directory(&root, b"dir").unwrap();
    let mut removals = |effect: &Effect| match effect {
        Effect::Unlink { .. } => Fate::Land,
        _ => Fate::Vanish,
    };
    assert_eq!(names(&lower.crash_image(&mut removals)), ["outside"]);
    assert_eq!(
        lower
            .create(&dir, b"x", Create::Fifo)
            .unwrap_err()
            .raw_os_error(),
        Some(2)
    );
}

#[test]
fn directory_moves_never_make_a_cycle() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"a", Create::Directory).unwrap();
    let a = lower.open(&root, b"a", true).unwrap();
    lower.create(&a, b"b", Create::Directory).unwrap();
    lower.sync_all().unwrap();
    let b = lower.open(&a, b"b", true).unwrap();
    assert_eq!(
        lower
            .rename(&root, b"a", &b, b"x")
            .unwrap_err()
            .raw_os_error(),
        Some(22)
    );
    lower.rename(&a, b"b", &root, b"b").unwrap();
    lower.rename(&root, b"a", &b, b"a").unwrap();
    let mut second = |effect: &Effect| match effect {
        Effect::Rename { from_name, .. } if **from_name == *b"a" => Fate::Land,
        _ => Fate::Vanish,
    };
    for image in [lower.crash_image(&mut second), {
        lower.sync(&b).unwrap();
        lower.crash_image(&mut none)
    }] {
        assert_eq!(names(&image), ["b"]);
        let b = image.open(&image.root().unwrap(), b"b", true).unwrap();
        assert_eq!(names_in(&image, &b), ["a"]);
    }
}

#[test]
fn hard_links_land_one_by_one() {
    let (lower, root, _file) = with_file(10);
    lower.link(&root, b"file", &root, b"second").unwrap();
    lower.unlink(&root, b"file").unwrap();
    assert_eq!(names(&lower), ["second"]);
    let mut links = |effect: &Effect| match effect {
        Effect::Link { .. } => Fate::Land,
        _ => Fate::Vanish,
    };
    let image = lower.crash_image(&mut links);
    assert_eq!(names(&image), ["file", "second"]);
    assert_eq!(
        image
            .stat_at(&image.root().unwrap(), b"file")
            .unwrap()
            .nlink,
        2
    );
    // As on a medium without a journal: the removal without the new link.
    let mut removals = |effect: &Effect| match effect {
        Effect::Unlink { .. } => Fate::Land,
        _ => Fate::Vanish,
    };
    assert_eq!(
        names(&lower.crash_image(&mut removals)),
        Vec::<String>::new()
    );
}

#[test]
fn numbers_are_reused_but_never_name_two_inodes() {
    let (lower, root, file) = with_file(10);
    let number = lower.stat(&file).unwrap().inode;
    lower.unlink(&root, b"file").unwrap();
    lower.create(&root, b"while open", Create::Regular).unwrap();
    assert_ne!(lower.stat_at(&root, b"while open").unwrap().inode, number);
    assert_eq!(lower.stat(&file).unwrap().nlink, 0);
    drop(file);
    lower.create(&root, b"later", Create::Regular).unwrap();
    assert_eq!(lower.stat_at(&root, b"later").unwrap().inode, number);
    let mut later = |effect: &Effect| match effect {
        Effect::Link { name, .. } if **name == *b"later" => Fate::Land,
        _ => Fate::Vanish,
    };
    assert_eq!(names(&lower.crash_image(&mut later)), ["later"]);
    assert_eq!(names(&lower.crash_image(&mut none)), ["file"]);
}

#[test]
fn attributes_and_xattrs_land_one_by_one() {
    let (lower, _root, file) = with_file(10);
    let wanted = SetAttributes {
        mode: 0o6755,
        uid: 5,
        gid: 6,
        atime: Timestamp::new(1, 1),
        mtime: Timestamp::new(2, 2),
    };
    lower.set_attributes(&file, &wanted).unwrap();
    lower.set_xattr(&file, b"user.a", Some(b"1")).unwrap();
    lower.set_xattr(&file, b"user.b", Some(b"2")).unwrap();
    let mut some = |effect: &Effect| match effect {
        Effect::Mode { .. } => Fate::Land,
        Effect::Xattr { name, .. } if **name == *b"user.b" => Fate::Land,
        _ => Fate::Vanish,
    };
    let image = lower.crash_image(&mut some);
    let file = image.open(&image.root().unwrap(), b"file", false).unwrap();
    let found = image.stat(&file).unwrap();
    assert_eq!(
        (found.mode, found.uid, found.mtime.seconds > 2),
        (0o6755, 0, true)
    );
    assert_eq!(
        image.xattrs(&file).unwrap(),
        [(Arc::from(&b"user.b"[..]), Arc::from(&b"2"[..]))]
    );
}

fn blocks(byte: u8, count: usize) -> JournalBuffer {
    let mut buffer = JournalBuffer::zeroed(count * 4096);
    buffer.as_bytes_mut().fill(byte);
    buffer
}

#[test]
fn a_journal_write_tears_until_it_returns() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    let (journal, direct) = lower.open_journal(&root, b"journal").unwrap();
    assert!(direct);
    lower
        .journal_write(&journal, &blocks(1, 4), 0, false)
        .unwrap();
    lower.sync_all().unwrap();
    let torn = Arc::new(Mutex::new(Vec::new()));
    let collected = torn.clone();
    lower.set_hook(Box::new(move |_, lower| {
        let mut odd = |effect: &Effect| match effect {
            Effect::Sector { index, .. } if index % 2 == 1 => Fate::Land,
            _ => Fate::Vanish,
        };
        let image = content(&lower.crash_image(&mut odd), b"journal");
        collected.lock().push(
            image
                .chunks(512)
                .map(|sector| sector[0])
                .collect::<Vec<u8>>(),
        );
    }));
    lower
        .journal_write(&journal, &blocks(2, 2), 4096, true)
        .unwrap();
    lower.clear_hook();
    let torn = torn.lock().clone();
    let halves = |byte: u8| [byte, 2].repeat(8);
    assert_eq!(torn.len(), 2);
    assert_eq!(torn[0], [vec![1; 8], halves(1), vec![1; 8]].concat());
    assert_eq!(torn[1], [vec![1; 8], vec![2; 16], vec![1; 8]].concat());
}

#[test]
fn a_durable_journal_write_does_not_flush_older_ones() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    let (journal, _) = lower.open_journal(&root, b"journal").unwrap();
    lower.truncate(&journal, 3 * 4096).unwrap();
    lower.sync_all().unwrap();
    lower
        .journal_write(&journal, &blocks(3, 2), 0, false)
        .unwrap();
    lower
        .journal_write(&journal, &blocks(4, 2), 4096, true)
        .unwrap();
    let first_bytes = |image: &CrashLower| {
        content(image, b"journal")
            .chunks(4096)
            .map(|block| block[0])
            .collect::<Vec<u8>>()
    };
    assert_eq!(first_bytes(&lower.crash_image(&mut none)), [0, 4, 4]);
    // What was overwritten before it was durable cannot come back over the new.
    assert_eq!(first_bytes(&lower.crash_image(&mut all)), [3, 4, 4]);
    lower.journal_flush(&journal).unwrap();
    assert_eq!(first_bytes(&lower.crash_image(&mut none)), [3, 4, 4]);
}

#[test]
fn after_the_cut_every_call_fails_and_the_image_stands_still() {
    let (lower, root, file) = with_file(10);
    lower.cut_after(lower.operations() + 1);
    lower.write_at(&file, b"last", 0).unwrap();
    assert_eq!(
        lower
            .write_at(&file, b"never", 0)
            .unwrap_err()
            .raw_os_error(),
        Some(EIO)
    );
    assert!(lower.sync_all().is_err() && lower.stat(&file).is_err() && lower.list(&root).is_err());
    assert_eq!(
        &content(&lower.crash_image(&mut all), b"file")[..5],
        b"last\x01"
    );
    assert_eq!(content(&lower.crash_image(&mut none), b"file"), [1; 10]);
}

#[test]
fn a_planned_fault_hits_one_call() {
    let (lower, _root, file) = with_file(10);
    lower.fail_operation(lower.operations() + 2, 28);
    lower.write_at(&file, b"a", 0).unwrap();
    assert_eq!(
        lower.write_at(&file, b"b", 0).unwrap_err().raw_os_error(),
        Some(28)
    );
    assert_eq!(content(&lower, b"file")[0], b'a');
    lower.write_at(&file, b"c", 0).unwrap();
}

#[test]
fn an_image_is_independent_of_its_origin() {
    let (lower, root, file) = with_file(600);
    let image = lower.crash_image(&mut all);
    lower.write_at(&file, &[8; 600], 0).unwrap();
    lower.unlink(&root, b"file").unwrap();
    assert_eq!(content(&image, b"file"), [1; 600]);
    image.sync_all().unwrap();
    let copy = image.open(&image.root().unwrap(), b"file", true).unwrap();
    image.truncate(&copy, 0).unwrap();
    assert_eq!(content(&image.crash_image(&mut none), b"file"), [1; 600]);
    let mut out = [0; 600];
    lower.read_at(&file, &mut out, 0).unwrap();
    assert_eq!(out, [8; 600]);
}
