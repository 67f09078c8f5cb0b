//! The search itself: the transactions that it hands over agree with its trees, and it finds
//! planted faults.

use std::collections::BTreeMap;

use mobifs_base::ObjectId;
use mobifs_store::{MemoryStore, Store, Transaction};

use super::operation::{History, Step, Topic};
use super::tree::{NodeId, ROOT, Tree};
use super::walk::{plant, walk_lower, walk_store};
use super::world::{Demand, World};
use super::{SearchOptions, search};
use crate::crash::CrashLower;
use mobifs_numerics::Random;

fn learn(
    store: &MemoryStore,
    tree: &Tree,
    node: NodeId,
    id: ObjectId,
    ids: &mut BTreeMap<NodeId, ObjectId>,
) {
    ids.insert(node, id);
    for entry in store.list_directory(id).unwrap() {
        learn(
            store,
            tree,
            tree.node(node).entries[&entry.name],
            entry.id,
            ids,
        );
    }
}

#[test]
fn the_entries_handed_over_add_up_to_the_tree() {
    for seed in 0..60 {
        let mut dice = Random::new(seed);
        let (mut world, mut store) = (World::new(), MemoryStore::new());
        for step in 0..20 {
            for operation in &Step::random(&mut dice, Topic::Anything).operations {
                for demand in world.perform(operation) {
                    match demand {
                        Demand::Pin(id) => store.pin(id),
                        Demand::Unpin(id) => store.unpin(id),
                        Demand::Spill(id, pages) => store.spill(id, &pages).unwrap(),
                    }
                }
            }
            let entries = world.take_entries();
            store.commit(Transaction::from_iter(entries)).unwrap();
            for demand in world.take_demands() {
                let Demand::Unpin(id) = demand else {
                    panic!("{demand:?}")
                };
                store.unpin(id);
            }
            let expected = world.tree.seen();
            let wrong = expected.first_difference(&walk_store(&store).unwrap());
            assert_eq!(wrong, None, "seed {seed}, step {step}");
            if step % 7 == 6 {
                store = store.reopen();
                let tree = world.tree.clone();
                world.remount(tree, ObjectId::FIRST_NEW);
                let mut ids = BTreeMap::new();
                learn(&store, &world.tree, ROOT, ObjectId::ROOT, &mut ids);
                // Objects keep their ids in this store, so new ones must differ.
                world.use_ids(ids, 1000 * (step + 1));
            }
        }
    }
}

#[test]
fn histories_of_databases_are_committed_as_copies() {
    let options = SearchOptions {
        images_permille: 0,
        ..SearchOptions::default()
    };
    let copied: u64 = (0..30)
        .map(|seed| search(seed, &options).unwrap().copied_pages)
        .sum();
    assert!(copied >= 20, "{copied} pages");
}

#[test]
fn a_planted_tree_is_what_is_found() {
    for seed in 0..40 {
        let mut world = World::new();
        for operation in &History::random(seed).before {
            drop(world.perform(operation));
        }
        let lower = CrashLower::new();
        plant(&lower, &world.tree).unwrap();
        let expected = world.tree.seen();
        assert_eq!(
            expected.first_difference(&walk_lower(&lower).unwrap()),
            None,
            "seed {seed}"
        );
    }
}

#[test]
fn differences_are_seen() {
    let mut world = World::new();
    let mut dice = Random::new(1);
    while world.tree.nodes.len() < 10 {
        Step::random(&mut dice, Topic::Anything)
            .operations
            .iter()
            .for_each(|o| drop(world.perform(o)));
    }
    let expected = world.tree.seen();
    let mut found = expected.clone();
    let path = found.0.keys().nth(3).unwrap().clone();
    found.0.get_mut(&path).unwrap().mode ^= 1;
    assert!(expected.first_difference(&found).is_some());
    found.0.remove(&path);
    assert!(
        expected
            .first_difference(&found)
            .unwrap()
            .contains("missing")
    );
    assert!(
        found
            .first_difference(&expected)
            .unwrap()
            .contains("should not exist")
    );
}

#[test]
fn a_seed_does_the_same_every_time() {
    let options = SearchOptions {
        images_permille: 150,
        ..SearchOptions::default()
    };
    for seed in [3, 30, 47] {
        let [first, second] = [(); 2].map(|()| search(seed, &options).unwrap());
        assert_eq!(first, second, "seed {seed}");
    }
}
