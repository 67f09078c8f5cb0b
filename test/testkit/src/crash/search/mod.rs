//! The crash search: random histories over the journal store on a [`CrashLower`],
//! cut at every operation, recovered, and compared with what was committed.
//!
//! A *crash point* is one crash image: a moment (any mutating call of the store, also
//! during apply and during recovery itself) and a choice of which unsynced effects
//! landed. For each one the search demands that
//!
//! * recovery succeeds, and what the store then shows is exactly the tree after some
//!   transaction that is not older than the last acknowledged one and not newer than
//!   the last begun one (after a crash *during a recovery*: after exactly the one that
//!   this recovery found), with zeros after the ends of files;
//! * now and then, that the store shows the same in further mounts that end before
//!   anything is applied;
//! * after an apply the lower tree, walked without the store, is that same tree, and nothing is left
//!   in `.mobifs/stage`, `limbo` and `lost`;
//! * opening it again changes nothing;
//! * now and then, that all this holds for a copy of the image, whose inodes have other numbers,
//!   or that the copy is refused and not changed;
//! * now and then, that the history can go on from there, with further crashes, before
//!   or after that apply.

mod database;
pub mod kill;
mod operation;
mod run;
mod script;
mod shrink;
#[cfg(test)]
mod tests;
mod tree;
mod verify;
mod walk;
mod world;

use std::fmt;

use crate::campaign::Search;
use crate::statistics::statistics;
use operation::History;

/// How thoroughly a history is cut.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Crash images for each thousand mutating calls of a history.
    pub images_permille: u64,
    /// Crash images for each thousand mutating calls of a recovery.
    pub nested_permille: u64,
    /// How many crashes may follow one another.
    pub depth_max: u32,
    /// After how many of a thousand recoveries the history goes on.
    pub continued_permille: u64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            images_permille: 400,
            nested_permille: 40,
            depth_max: 3,
            continued_permille: 60,
        }
    }
}

statistics! {
    /// What a search did.
    pub struct SearchStatistics {
        /// Histories carried out.
        pub histories: u64,
        /// Transactions committed in them.
        pub transactions: u64,
        /// Mutating calls to the lower filesystem.
        pub lower_calls: u64,
        /// Crash images recovered and compared.
        pub crash_points: u64,
        /// Pages of databases that went to the journal as copies.
        pub copied_pages: u64,
        /// Files that have moved to other blocks.
        pub moves: u64,
        /// Histories in which that happened, and continuations of one after a crash.
        pub histories_with_moves: u64,
        /// Images of a cut while something was being applied or closed.
        pub during_apply: u64,
        /// Images of a cut during a recovery.
        pub during_recovery: u64,
        /// Images of a cut during the recovery from a cut during a recovery, or later still.
        pub during_nested_recovery: u64,
        /// Recoveries that served what they found before any of it was applied.
        pub unapplied: u64,
        /// Mounts over what an earlier one had served and left unapplied.
        pub reopened_unapplied: u64,
        /// Histories that went on after a recovery.
        pub continued: u64,
        /// Continued before what the recovery found was applied.
        pub continued_unapplied: u64,
        /// Transactions that a recovery found in a journal.
        pub recovered_transactions: u64,
        /// Recoveries that found a torn transaction at the journal's end.
        pub torn_tails: u64,
        /// Crash images that were copied to another filesystem before they were mounted.
        pub copies: u64,
        /// Copies that were refused, because names had begun to move when they were made.
        pub copies_refused: u64,
        /// Applies, commits and closes that met an object which the filesystem refuses.
        pub refused: u64,
        /// Mounts after a cut that met a refusal.
        pub recovered_refused: u64,
    }
}

impl fmt::Display for SearchStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash points ({} during apply, {} during recovery, {} during recovery of \
             recovery or deeper) in {} histories with {} transactions ({} pages as copies) and {} lower calls; \
             {} files moved, in {} histories or continuations; {} \
             went on after a crash ({} before it was applied); recoveries found {} transactions \
             and {} torn tails, {} served them unapplied, {} more mounts did so again; {} were \
             copied before, {} more copies were refused; {} times something was refused below, {} \
             more after a crash",
            self.crash_points,
            self.during_apply,
            self.during_recovery,
            self.during_nested_recovery,
            self.histories,
            self.transactions,
            self.copied_pages,
            self.lower_calls,
            self.moves,
            self.histories_with_moves,
            self.continued,
            self.continued_unapplied,
            self.recovered_transactions,
            self.torn_tails,
            self.unapplied,
            self.reopened_unapplied,
            self.copies,
            self.copies_refused,
            self.refused,
            self.recovered_refused,
        )
    }
}

/// A crash after which the store was not as promised.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Seed of the history.
    pub seed: u64,
    /// Where the crash was, crash after crash, and what is wrong.
    pub what: String,
    /// The smallest history found that still shows a violation, and what that one is.
    pub shrunk: Option<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history with seed {}: {}", self.seed, self.what)?;
        match &self.shrunk {
            Some(shrunk) => write!(f, "\nshrunk: {shrunk}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Violation {}

/// Carries out the history of `seed` and cuts it.
///
/// # Errors
/// The first [`Violation`].
pub fn search(seed: u64, options: &SearchOptions) -> Result<SearchStatistics, Box<Violation>> {
    let history = History::random(seed);
    run::run(&history, seed, options).map_err(|what| {
        Box::new(Violation {
            seed,
            what,
            shrunk: None,
        })
    })
}

/// As [`search`], and shrinks what it finds.
///
/// # Errors
/// The first [`Violation`], shrunk.
pub fn search_and_shrink(
    seed: u64,
    options: &SearchOptions,
) -> Result<SearchStatistics, Box<Violation>> {
    search(seed, options).map_err(|mut violation| {
        let history = History::random(seed);
        let run = |history: &History, seed, options: &SearchOptions| {
            run::run(history, seed, options).map(drop)
        };
        violation.shrunk = shrink::shrink(&history, &violation.what, seed, &options.simpler(), run);
        violation
    })
}

impl SearchOptions {
    /// The ways in which a history is run to be shrunk. A violation that needs no second history and no
    /// second crash is easier to understand, and what is random cannot be shrunk.
    fn simpler(&self) -> [Self; 3] {
        let simplest = Self {
            images_permille: 1000,
            continued_permille: 0,
            depth_max: 0,
            ..*self
        };
        let nested = Self {
            depth_max: self.depth_max,
            ..simplest
        };
        let continued = Self {
            continued_permille: self.continued_permille,
            ..nested
        };
        [simplest, nested, continued]
    }
}

impl Search for SearchOptions {
    type Statistics = SearchStatistics;
    type Violation = Violation;

    fn search(&self, seed: u64, shrink: bool) -> Result<SearchStatistics, Box<Violation>> {
        if shrink {
            search_and_shrink(seed, self)
        } else {
            search(seed, self)
        }
    }
}

/// Carries out the scripted histories, each `rounds` times, and cuts each at every
/// call.
///
/// # Errors
/// The first [`Violation`]; its seed is the round.
pub fn search_scripts(
    rounds: u64,
    options: &SearchOptions,
) -> Result<SearchStatistics, Box<Violation>> {
    let options = SearchOptions {
        images_permille: 1000,
        ..*options
    };
    let mut total = SearchStatistics::default();
    for (seed, script) in
        (0..rounds).flat_map(|seed| script::SCRIPTS.iter().map(move |s| (seed, s)))
    {
        total += run::run(script, seed, &options).map_err(|what| {
            let what = format!("\"{}\": {what}", script.name);
            Box::new(Violation {
                seed,
                what,
                shrunk: None,
            })
        })?;
    }
    Ok(total)
}
