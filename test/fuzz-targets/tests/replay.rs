//! Every fuzz target without a fuzzer: on its seeds, on mutations of them, and on all inputs
//! that once failed (`test/fuzz/regressions/TARGET/`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use mobifs_fuzz_targets::{TARGETS, Target, Verdict, mutated};
use mobifs_testkit::random::Random;

/// Mutations of each seed.
const MUTATIONS: usize = 40;

fn fuzz_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_holds_and_each_target_gets_past_its_parser() {
    for Target { name, run, seeds } in TARGETS {
        let verdicts: Vec<Verdict> = seeds().iter().map(|seed| run(seed)).collect();
        let is_taken = verdicts.contains(&Verdict::Taken);
        assert!(is_taken, "no seed of {name} gets past the parser");
    }
}

fn number_of(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}

/// `MOBIFS_SEED` chooses others, `MOBIFS_CASES` so many times as many, `MOBIFS_TARGET` one target.
#[test]
fn mutations_of_the_seeds_hold() {
    let mut random = Random::new(number_of("MOBIFS_SEED").unwrap_or(1));
    let mutations = MUTATIONS * number_of("MOBIFS_CASES").unwrap_or(1) as usize;
    let chosen = std::env::var("MOBIFS_TARGET").ok();
    let is_chosen = |target: &&Target| chosen.as_deref().is_none_or(|name| name == target.name);
    for Target { run, seeds, .. } in TARGETS.iter().filter(is_chosen) {
        for seed in seeds() {
            for _ in 0..mutations {
                run(&mutated(&seed, &mut random));
            }
        }
    }
}

#[test]
fn what_once_failed_does_not_fail_again() {
    let regressions = fuzz_directory().join("regressions");
    for directory in files(&regressions) {
        let name = directory.file_name().unwrap();
        let target = TARGETS.iter().find(|target| name == target.name);
        let Target { run, .. } = target.unwrap_or_else(|| panic!("no target is called {name:?}"));
        for file in files(&directory) {
            println!("{}", file.display());
            run(&std::fs::read(&file).unwrap());
        }
    }
}

#[test]
fn each_target_has_its_program() {
    let programs = files(&fuzz_directory().join("fuzz_targets"));
    let names = programs.iter().map(|path| path.file_stem().unwrap());
    let mut expected: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    expected.sort_unstable();
    assert_eq!(names.collect::<Vec<_>>(), expected);
}
