//! Directories as deep as users make them: on a small stack, and without asking about each of
//! them what only those near the root can be.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Bed, ROOT};
use mobifs_base::ObjectId;
use mobifs_engine::{AppPolicy, AppRules, Limits, RemovalMemory};

/// Deeper than what overflowed the stack of a thread, eight times as large as here.
const DEPTH: usize = 5_000;
/// The smallest that a thread of ours has anywhere.
const STACK_BYTES: usize = 256 << 10;

fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(work).unwrap().join().unwrap();
}

/// A chain of directories in `top`, the uppermost first.
fn chain(bed: &mut Bed, top: ObjectId) -> Vec<ObjectId> {
    let mut chain = vec![top];
    for _ in 0..DEPTH {
        let below = bed.directory(chain[chain.len() - 1], "d");
        chain.push(below);
    }
    chain
}

fn remove(bed: &mut Bed, chain: &[ObjectId]) {
    for parent in chain[..chain.len() - 1].iter().rev() {
        let moment = bed.moment();
        bed.engine
            .remove_directory(moment, *parent, b"d", RemovalMemory::WithinBudget)
            .unwrap();
    }
}

#[test]
fn removing_deep_directories_takes_no_stack() {
    // Regression: each directory that left memory let the one above it go, recursively.
    on_a_small_stack(|| {
        for is_committed in [false, true] {
            let mut bed = Bed::relaxed();
            let top = bed.directory(ROOT, "app");
            let chain = chain(&mut bed, top);
            if is_committed {
                bed.checkpoint();
            }
            remove(&mut bed, &chain);
            bed.checkpoint();
            // From the top on: each waits for its child, and the last releases all.
            for id in &chain[1..] {
                bed.engine.forget(*id, 2);
            }
            assert_eq!(bed.engine.objects(), 2, "the root and the app are left");
        }
    });
}

#[test]
fn unused_directories_leave_memory_however_deep_they_are() {
    on_a_small_stack(|| {
        let limits = Limits {
            objects_max: 10,
            ..Limits::default()
        };
        let mut bed = Bed::new(AppPolicy::default(), limits);
        let top = bed.directory(ROOT, "app");
        let chain = chain(&mut bed, top);
        bed.checkpoint();
        for id in &chain {
            bed.engine.forget(*id, 2);
        }
        let objects = chain.len();
        let mut looked_at = 0;
        while bed.engine.is_crowded() {
            looked_at += bed.engine.trim(100).looked_at;
        }
        assert!(bed.engine.objects() <= 10);
        assert!(looked_at <= 3 * objects, "looked at {looked_at} objects");
    });
}

/// Top-level directories are apps; counts how often it is asked.
struct Counting {
    asked: Arc<AtomicUsize>,
    depth_max: Option<usize>,
}

impl AppRules for Counting {
    fn is_app(&self, path: &[u8]) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        !path.contains(&b'/')
    }

    fn has_apps_below(&self, _path: &[u8]) -> bool {
        false
    }

    fn depth_max(&self) -> Option<usize> {
        self.depth_max
    }

    fn policy(&self, _path: &[u8]) -> AppPolicy {
        AppPolicy::default()
    }
}

#[test]
fn a_deep_directory_belongs_to_the_app_that_it_was_moved_to() {
    on_a_small_stack(|| {
        for depth_max in [Some(1), None] {
            let asked = Arc::new(AtomicUsize::new(0));
            let rules = Counting {
                asked: Arc::clone(&asked),
                depth_max,
            };
            let mut bed = Bed::with_rules(Box::new(rules), Limits::default());
            let (from, to) = (bed.directory(ROOT, "from"), bed.directory(ROOT, "to"));
            let depth = if depth_max.is_some() { DEPTH } else { 1000 };
            let mut at = from;
            for _ in 0..depth {
                at = bed.directory(at, "d");
            }
            bed.checkpoint();
            bed.rename((from, "d"), (to, "d"));
            bed.checkpoint();
            asked.store(0, Ordering::Relaxed);
            // The subtree is examined again when it is used for the first time.
            let file = bed.file(at, "f");
            bed.write(file, 0, b"x");
            let asked = asked.load(Ordering::Relaxed);
            let asked_max = depth_max.map_or(depth + 10, |_| 10);
            assert!(asked <= asked_max, "asked {asked} times");
            let commits = bed.checkpoint();
            let apps: Vec<_> = commits.iter().flat_map(|commit| &commit.apps).collect();
            assert_eq!(apps, [b"to"]);
        }
    });
}
