//! Runs scripts against a target and the model.

use std::env;

use mobifs_store::Store;
use mobifs_volume::Volume;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::model::Model;
use crate::operations::{Event, Operation, Profile, Script, Scripts};
use crate::target::Target;
use crate::tree::Compare;

/// Multiplies the number of cases of every property (`MOBIFS_CASES=20`: twenty
/// times as many).
pub const CASES_VARIABLE: &str = "MOBIFS_CASES";
/// Another seed for all properties (`MOBIFS_SEED=7`).
pub const SEED_VARIABLE: &str = "MOBIFS_SEED";
/// A file to write every script to before it runs, for failures that end the whole
/// process (`MOBIFS_TRACE=/tmp/script`).
pub const TRACE_VARIABLE: &str = "MOBIFS_TRACE";

/// Checks a property of scripts: generates `cases` of them, and shrinks the first
/// that fails.
///
/// # Panics
/// If the property fails; the message holds the shrunk script as source.
pub fn check_scripts(
    profile: &Profile,
    cases: u32,
    property: impl Fn(&Script) -> Result<(), String>,
) {
    let number = |name: &str, otherwise| match env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number(SEED_VARIABLE, 1_u64).to_le_bytes());
    let config = Config {
        cases: cases * number(CASES_VARIABLE, 1_u64) as u32,
        failure_persistence: None,
        max_shrink_time: 120_000,
        max_shrink_iters: 1_000_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let trace = env::var_os(TRACE_VARIABLE);
    let outcome = TestRunner::new_with_rng(config, rng).run(&Scripts(profile.clone()), |script| {
        if let Some(path) = &trace {
            std::fs::write(path, format!("{script:?}"))
                .map_err(|error| TestCaseError::reject(error.to_string()))?;
        }
        property(&script).map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, script)) => panic!("{reason}\n{script:?}"),
        Err(TestError::Abort(reason)) => panic!("no script could be made: {reason}"),
    }
}

/// Executes one operation on both and compares the answers.
///
/// # Errors
/// How they differ.
pub fn execute_on_both(
    model: &mut Model,
    target: &mut impl Target,
    operation: &Operation,
) -> Result<(), String> {
    let expected = model.execute(operation);
    let found = target.execute(operation);
    let agree = match (&expected, &found) {
        (Err(expected), Err(found)) => target.is_equivalent(operation, *expected, *found),
        _ => expected == found,
    };
    if agree {
        return Ok(());
    }
    Err(format!(
        "{operation:?} answered {}, expected {}",
        crate::target::describe(&found),
        crate::target::describe(&expected)
    ))
}

/// Compares the trees of both.
///
/// # Errors
/// How they differ.
pub fn compare_trees(
    model: &Model,
    target: &mut impl Target,
    compare: Compare,
) -> Result<(), String> {
    let found = target
        .tree()
        .map_err(|error| format!("the tree cannot be read: {error:?}"))?;
    model.tree().difference(&found, compare).map_or(Ok(()), Err)
}

/// Executes all operations of a script (its other events do not apply to this target) on both, and
/// compares every answer, and the trees after every `tree_every` operations and at the end.
///
/// # Errors
/// How they differ.
pub fn agree_on_operations(
    script: &Script,
    target: &mut impl Target,
    compare: Compare,
    tree_every: usize,
) -> Result<(), String> {
    let mut model = Model::default();
    for (index, event) in script.events.iter().enumerate() {
        let Event::Do(operation) = event else {
            continue;
        };
        execute_on_both(&mut model, target, operation)
            .and_then(|()| match (index + 1) % tree_every {
                0 => compare_trees(&model, target, compare),
                _ => Ok(()),
            })
            .map_err(|problem| format!("at event {index} ({event:?}): {problem}"))?;
    }
    compare_trees(&model, target, compare).map_err(|problem| format!("at the end: {problem}"))
}

/// No program but ours has changed the store's directory, so none is reported to have.
///
/// # Errors
/// How many objects are reported as moved or removed by another program.
pub fn demand_none_externally_modified(store: &dyn Store) -> Result<(), String> {
    match store.pending().externally_modified {
        0 => Ok(()),
        count => Err(format!(
            "{count} objects are missing that no other program has moved"
        )),
    }
}

/// What a volume at rest holds when everything is deleted, committed and applied: nothing.
///
/// # Errors
/// What it holds.
pub fn demand_nothing_held(volume: &Volume, store: &dyn Store) -> Result<(), String> {
    let (pending, memory) = (store.pending(), volume.status().memory);
    let held = [
        pending.held_bytes,
        pending.reserved.bytes(),
        pending.reserved.inodes(),
        pending.journal_used_bytes,
        pending.externally_modified,
        memory.used_bytes,
        memory.deleted_in_use_bytes,
        memory.committed_held_bytes,
    ];
    if held == [0; 8] {
        return Ok(());
    }
    Err(format!(
        "nothing should be held any more: {pending:?}, {memory:?}"
    ))
}
