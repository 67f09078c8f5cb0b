//! How many objects stay in memory, and what bounds the work of one call: driven by hand,
//! without any store.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;

use crate::support::{Bed, ROOT};
use mobifs_base::{ObjectId, ObjectInfo};
use mobifs_engine::{AppPolicy, Limits, Need, Stop};

const OBJECTS_MAX: usize = 100;
/// More than the limit, and what is closed, needs.
const FILES: usize = 1000;

fn bed(limits: Limits) -> (Bed, ObjectId, Vec<ObjectId>) {
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let app = bed.directory(ROOT, "app");
    let files = (0..FILES).map(|n| bed.file(app, &format!("f{n}")));
    let files = files.collect();
    bed.checkpoint();
    (bed, app, files)
}

fn few() -> Limits {
    Limits {
        objects_max: OBJECTS_MAX,
        ..Limits::default()
    }
}

/// One round over everything, in steps of so many objects; what the kernel holds.
fn round(bed: &mut Bed, step: usize) -> BTreeSet<ObjectId> {
    let mut held = BTreeSet::new();
    let mut looked_at = 0;
    while looked_at < FILES + 2 {
        let trimmed = bed.engine.trim(step);
        assert!(trimmed.looked_at <= step, "a step is bounded");
        if trimmed.looked_at == 0 {
            break;
        }
        looked_at += trimmed.looked_at;
        held.extend(trimmed.kernel_held.iter().map(|object| object.id));
    }
    held
}

/// `objects_max` meant nothing as long as the kernel held the names.
#[test]
fn the_kernel_is_asked_for_what_only_it_holds() {
    let (mut bed, app, files) = bed(few());
    bed.engine.open(files[7]).unwrap();
    assert!(bed.engine.is_crowded());
    let held = round(&mut bed, 10);
    assert!(held.len() >= FILES - OBJECTS_MAX);
    assert!(!held.contains(&files[7]), "a program has it open");
    assert!(!held.contains(&app), "others lie in it");
    assert_eq!(bed.engine.objects() as usize, FILES + 2, "all are in use");
    for id in held {
        bed.engine.forget(id, 1);
    }
    assert!(bed.engine.objects() as usize <= OBJECTS_MAX);
    // The listing is too large and in use: the kernel is not asked for everything again.
    assert!(bed.engine.is_crowded() && !bed.engine.has_many_objects());
    let again = round(&mut bed, 10);
    assert!(again.len() <= FILES / 64, "{} are asked for", again.len());
    again.into_iter().for_each(|id| bed.engine.forget(id, 1));
    bed.engine.release(files[7]);
    bed.engine.forget(files[7], 1);
    round(&mut bed, 10);
    // The rest is within the limits, and the kernel is not asked for it.
    assert!(!bed.engine.is_crowded());
    assert_eq!(bed.engine.trim(10).looked_at, 0);
}

/// A budget of 64 MiB held a million objects in 2.3 GB.
#[test]
fn a_small_budget_lowers_the_number_of_objects() {
    let (mut bed, ..) = bed(Limits::default());
    assert!(!bed.engine.is_crowded());
    bed.engine.set_memory_budget(1 << 20);
    assert!(bed.engine.is_crowded());
    let held = round(&mut bed, 64);
    held.into_iter().for_each(|id| bed.engine.forget(id, 1));
    assert!(bed.engine.objects() <= (1 << 20) / 2048);
    bed.engine.set_memory_budget(1 << 30);
    assert!(!bed.engine.is_crowded());
}

/// Uncommitted changes are not in the store, so what they mention stays.
#[test]
fn what_is_not_committed_stays() {
    let mut bed = Bed::new(AppPolicy::default(), few());
    let app = bed.directory(ROOT, "app");
    for n in 0..FILES {
        let id = bed.file(app, &format!("f{n}"));
        bed.engine.forget(id, 1);
    }
    assert!(round(&mut bed, 64).is_empty());
    assert_eq!(bed.engine.objects() as usize, FILES + 2);
    bed.checkpoint();
    round(&mut bed, 64);
    assert!(bed.engine.objects() as usize <= OBJECTS_MAX);
}

/// Listings without objects count as well.
#[test]
fn listings_that_nothing_lies_in_leave_memory() {
    let (mut bed, app, files) = bed(few());
    for id in files {
        bed.engine.forget(id, 1);
    }
    assert!(bed.engine.listed_entries() as usize >= FILES);
    for _ in 0..2 {
        round(&mut bed, 64);
    }
    assert!(!bed.engine.has_listing(app));
    assert!(bed.engine.listed_entries() as usize <= OBJECTS_MAX);
    assert!(bed.engine.take_forgotten().contains(&app));
}

/// Each FORGET made every answer stale that was under way, so under a storm of them nothing
/// could be looked up.
#[test]
fn answers_outlast_the_departure_of_others() {
    let (mut bed, app, files) = bed(few());
    let info = ObjectInfo {
        attributes: bed.engine.attributes(files[5]).unwrap().attributes,
        allocated_bytes: 0,
        foreign: false,
        immutable: false,
    };
    let question = |bed: &mut Bed, name: &[u8]| match bed.engine.lookup(app, name) {
        Err(Stop::Need(Need::Object { id, epoch })) => (id, epoch),
        other => panic!("it is in memory: {other:?}"),
    };
    bed.engine.forget(files[5], 1);
    bed.engine.forget(files[6], 1);
    let (id, epoch) = question(&mut bed, b"f5");
    for &other in &files[10..300] {
        bed.engine.forget(other, 1);
    }
    assert!(bed.engine.is_crowded(), "or nothing would leave");
    bed.engine.provide_object(id, epoch, info);
    assert_eq!(bed.engine.lookup(app, b"f5").unwrap().id, files[5]);
    // Of two that asked, one had its answer, and the object may have changed since.
    let (id, epoch) = question(&mut bed, b"f6");
    bed.engine.provide_object(id, epoch, info);
    bed.engine.lookup(app, b"f6").unwrap();
    bed.engine.forget(files[6], 1);
    bed.engine.provide_object(id, epoch, info);
    question(&mut bed, b"f6");
}

/// Creating files under one policy made transactions of any size; closing and committing one
/// kept all other threads out for as long as that took.
#[test]
fn a_transaction_mentions_a_bounded_number_of_objects() {
    const MEMBERS_MAX: usize = 4096;
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    for n in 0..3 * MEMBERS_MAX {
        bed.file(app, &format!("f{n}"));
    }
    let commits = bed.checkpoint();
    assert!(commits.len() >= 3);
    for commit in &commits {
        assert!(commit.to_transaction().entries().count() <= 2 * (MEMBERS_MAX + 2));
    }
}
