//! Writes that fail, and power cuts between any two changes.

use super::*;

const FAILS: Outcome = Outcome::Refused(Errno::IO);

#[test]
fn a_failed_write_leaves_no_trace_and_may_be_repeated() {
    for (blocks, outcomes) in [
        (1, &[FAILS][..]),
        (1, &[Outcome::DoneButFails]),
        (4, &[Outcome::DoneButFails]),
        (4, &[Outcome::Done, FAILS]),
        (4, &[Outcome::Done, Outcome::DoneButFails]),
    ] {
        let place = Place::new();
        let (lower, root) = place.faulty();
        let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
        log.append(&lower, &transaction(1, 2)).unwrap();
        lower.plan(outcomes);
        assert_eq!(
            errno(log.append(&lower, &transaction(2, blocks))),
            Errno::IO
        );
        let found = place.found();
        assert_eq!(found.transactions, [(1, transaction(1, 2))], "{outcomes:?}");
        assert_eq!(log.used_bytes(), 2 * BLOCK);
        // Another one of another size takes its place and its number.
        log.append(&lower, &transaction(3, 2)).unwrap();
        log.append(&lower, &transaction(4, 1)).unwrap();
        let expected = [
            (1, transaction(1, 2)),
            (2, transaction(3, 2)),
            (3, transaction(4, 1)),
        ];
        assert_eq!(place.found().transactions, expected, "{outcomes:?}");
    }
}

#[test]
fn a_log_that_cannot_invalidate_its_tail_takes_nothing_more_until_it_can() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(1, 1)).unwrap();
    lower.plan(&[Outcome::DoneButFails, FAILS, FAILS]);
    assert_eq!(errno(log.append(&lower, &transaction(2, 1))), Errno::IO);
    let tried = lower.take_log();
    assert_eq!(errno(log.append(&lower, &transaction(3, 1))), Errno::IO);
    // Only the invalidating block, where the failed transaction is.
    assert_eq!(lower.take_log(), tried[tried.len() - 1..]);
    assert_eq!(place.found().transactions.len(), 2, "not taken back yet");
    log.append(&lower, &transaction(3, 1)).unwrap();
    let expected = [(1, transaction(1, 1)), (2, transaction(3, 1))];
    assert_eq!(place.found().transactions, expected);

    lower.plan(&[Outcome::DoneButFails, FAILS]);
    assert_eq!(errno(log.append(&lower, &transaction(4, 1))), Errno::IO);
    log.reset(&lower, false).unwrap();
    assert!(place.found().transactions.is_empty());
    log.append(&lower, &transaction(5, 1)).unwrap();
    assert_eq!(place.found().transactions, [(1, transaction(5, 1))]);
}

#[test]
fn after_a_failed_reset_nothing_is_taken_until_one_succeeds() {
    for outcomes in [
        &[FAILS][..],
        &[Outcome::DoneButFails],
        &[Outcome::Done, FAILS],
        &[Outcome::Done, Outcome::DoneButFails],
    ] {
        let place = Place::new();
        let (lower, root) = place.faulty();
        let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
        log.append(&lower, &transaction(1, 1)).unwrap();
        lower.plan(outcomes);
        assert_eq!(errno(log.reset(&lower, true)), Errno::IO);
        // Either epoch may be in force, but it is one of the two.
        let found = place.found().transactions;
        assert!(
            found.is_empty() || found == [(1, transaction(1, 1))],
            "{outcomes:?}"
        );
        assert_eq!(errno(log.append(&lower, &transaction(2, 1))), Errno::IO);
        log.reset(&lower, false).unwrap();
        let image = place.image();
        assert!(image[..4096] == image[4096..8192]);
        log.append(&lower, &transaction(3, 1)).unwrap();
        assert_eq!(
            place.found().transactions,
            [(1, transaction(3, 1))],
            "{outcomes:?}"
        );
    }
}

/// The slot with the only whole superblock is never the one being written.
#[test]
fn one_whole_superblock_exists_at_any_instant() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(1, 1)).unwrap();
    // The second slot is torn by the first attempt …
    lower.plan(&[Outcome::Done, FAILS]);
    assert_eq!(errno(log.reset(&lower, false)), Errno::IO);
    place.overwrite(BLOCK, &[0xff; 4096]);
    // … so the next attempt starts there, and so does the next mount.
    lower.take_log();
    lower.plan(&[FAILS]);
    assert_eq!(errno(log.reset(&lower, false)), Errno::IO);
    assert_eq!(lower.take_log(), [Some((BLOCK, 4096, true))]);
    drop(log);
    let (mut log, scanned) = open::open(&lower, &root, &OPTIONS).unwrap();
    assert!(scanned.transactions.is_empty());
    let (first, second) = (Some((0, 4096, true)), Some((BLOCK, 4096, true)));
    assert_eq!(lower.take_log(), [second, first]);
    // Nothing was found, and the tail is invalidated.
    log.make_durable(&lower).unwrap();
    let (void, flush) = (Some((2 * BLOCK, 4096, false)), None);
    assert_eq!(lower.take_log(), [first, second, void, flush]);
}

/// Content of the page cache may never reach the medium by itself.
#[test]
fn what_was_written_last_is_written_again_before_it_is_relied_on() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.append(&lower, &transaction(1, 2)).unwrap();
    log.append(&lower, &transaction(2, 3)).unwrap();
    let before = place.image();
    lower.take_log();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    // An inspection, or a mount that refuses what is there, changes nothing.
    assert_eq!(lower.take_log(), []);
    log.make_durable(&lower).unwrap();
    let (first, second) = (Some((0, 4096, true)), Some((BLOCK, 4096, true)));
    // With the block after it, where an invalidated transaction may be.
    let (last, flush) = (Some((4 * BLOCK, 4 * 4096, false)), None);
    assert_eq!(lower.take_log(), [first, second, last, flush]);
    assert_eq!(place.image()[8192..], before[8192..]);
    log.append(&lower, &transaction(3, 1)).unwrap();
    assert_eq!(place.found().transactions.len(), 3);
}

#[test]
fn a_full_journal_has_nothing_after_its_last_transaction() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    let blocks = (log.free_bytes() / BLOCK) as usize;
    log.append(&lower, &transaction(1, blocks)).unwrap();
    assert_eq!(log.free_bytes(), 0);
    let before = place.image();
    let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
    log.make_durable(&lower).unwrap();
    assert_eq!(place.image()[8192..], before[8192..]);
    assert_eq!(place.found().transactions.len(), 1);
}

/// Runs `act` with a power cut after 0, 1, 2, … changes until it completes. After each cut the
/// place is opened with `options`, which must succeed, and `check` gets the result.
fn cut_everywhere(
    prepare: impl Fn(&Place),
    act: impl Fn(&Faulty, &PosixHandle) -> Result<(), StoreError>,
    options: &LogOptions,
    check: impl Fn(&Place, Scanned),
) {
    for changes in 0.. {
        let place = Place::new();
        prepare(&place);
        let (lower, root) = place.faulty();
        lower.cut_power_after(changes);
        let through = act(&lower, &root).is_ok();
        let (mut log, scanned) = place.open(options).unwrap_or_else(|error| {
            panic!("after {changes} changes: {error}, {:?}", place.names())
        });
        assert_eq!(place.names(), ["id", "journal"], "after {changes} changes");
        check(&place, scanned);
        let (lower, _) = place.lower();
        log.append(&lower, &transaction(9, 1)).unwrap();
        assert_eq!(
            place.found().transactions.last().unwrap().1,
            transaction(9, 1)
        );
        if through {
            assert!(changes > 0, "something was to be done");
            return;
        }
    }
}

#[test]
fn a_journal_half_made_is_made_again() {
    let act = |lower: &Faulty, root: &PosixHandle| open::open(lower, root, &OPTIONS).map(drop);
    cut_everywhere(
        |_| {},
        act,
        &OPTIONS,
        |_, scanned| {
            assert!(scanned.clean && scanned.transactions.is_empty());
        },
    );
    // Also after an attempt that ended after the identity was written.
    let leftovers = |place: &Place| {
        fs::write(place.path("journal.new"), [7; 9000]).unwrap();
        fs::write(place.path("id"), b"0123").unwrap();
    };
    cut_everywhere(leftovers, act, &OPTIONS, |_, scanned| {
        assert!(scanned.clean)
    });
}

#[test]
fn a_journal_half_replaced_stays_or_is_replaced() {
    let larger = LogOptions {
        journal_bytes: 128 * 1024,
        ..OPTIONS
    };
    let prepare = |place: &Place| drop(place.open(&OPTIONS).unwrap());
    let act = |lower: &Faulty, root: &PosixHandle| {
        let (log, _) = open::open(lower, root, &larger)?;
        // After an early power cut the old one may also be kept.
        if log.total_bytes() == 56 * 1024 {
            return Err(StoreError::Unsuitable("the size was kept".to_owned()));
        }
        Ok(())
    };
    cut_everywhere(prepare, act, &larger, |place, scanned| {
        assert!(scanned.clean);
        assert_eq!(place.image().len(), 128 * 1024);
    });
}

#[test]
fn a_reset_cut_short_has_happened_or_not() {
    let prepare = |place: &Place| {
        let (lower, root) = place.lower();
        let (mut log, _) = open::open(&lower, &root, &OPTIONS).unwrap();
        log.append(&lower, &transaction(1, 2)).unwrap();
    };
    let act = |lower: &Faulty, root: &PosixHandle| {
        let (mut log, _) = open::open(lower, root, &OPTIONS)?;
        log.reset(lower, true)
    };
    cut_everywhere(prepare, act, &OPTIONS, |_, scanned| {
        assert!(scanned.clean || scanned.transactions == [(1, transaction(1, 2))]);
        assert_eq!(scanned.clean, scanned.transactions.is_empty());
    });
}

#[test]
fn without_room_nothing_is_left() {
    // The zeros; the superblocks.
    for fails_at in 0..4 {
        let place = Place::new();
        let (lower, root) = place.faulty();
        let mut outcomes = vec![Outcome::Done; fails_at];
        outcomes.push(Outcome::Refused(Errno::NOSPC));
        lower.plan(&outcomes);
        let Err(error) = open::open(&lower, &root, &OPTIONS) else {
            panic!("it was made")
        };
        assert_eq!(error.errno(), Errno::NOSPC.raw_os_error());
        let message = error.to_string();
        assert!(message.contains("65536 bytes"), "{message}");
        assert!(place.names().is_empty(), "{:?}", place.names());
        assert!(place.open(&OPTIONS).is_ok());
    }
}

#[test]
fn without_room_for_another_size_the_old_journal_stays() {
    let place = Place::new();
    let (lower, root) = place.faulty();
    open::open(&lower, &root, &OPTIONS).unwrap();
    lower.plan(&[Outcome::Refused(Errno::NOSPC)]);
    let larger = LogOptions {
        journal_bytes: 128 * 1024,
        ..OPTIONS
    };
    let (mut log, _) = open::open(&lower, &root, &larger).unwrap();
    assert_eq!(log.total_bytes(), 56 * 1024);
    assert_eq!(place.names(), ["id", "journal"]);
    log.append(&lower, &transaction(1, 1)).unwrap();
    assert_eq!(place.found().transactions, [(1, transaction(1, 1))]);
}

/// Regression: the failure of the last step left the old file, without a name, open.
#[test]
fn a_journal_that_was_replaced_is_not_written_any_more() {
    let larger = LogOptions {
        journal_bytes: 128 * 1024,
        ..OPTIONS
    };
    for changes in 0.. {
        let place = Place::new();
        let (lower, root) = place.faulty();
        open::open(&lower, &root, &OPTIONS).unwrap();
        lower.cut_power_after(changes);
        let opened = open::open(&lower, &root, &larger);
        lower.cut_power_after(u64::MAX);
        if let Ok((mut log, _)) = opened {
            log.append(&lower, &transaction(1, 1)).unwrap();
            assert_eq!(
                place.found().transactions,
                [(1, transaction(1, 1))],
                "{changes}"
            );
            if log.total_bytes() > 56 * 1024 {
                return;
            }
        }
    }
}
