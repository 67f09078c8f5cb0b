//! The kill search: random histories over the journal store, whose process is killed at
//! every instant, and goes on in a successor with the same ids.
//!
//! Nothing of the lower filesystem is lost, only the store object is. Lower filesystem and
//! restart-state sink change only in calls and reports, so the instants after each of these are all
//! that matter. For each the search demands of [`JournalStore::resume`] that
//!
//! * it reports whether the transaction that was being handed over is committed, and the tree is
//!   the one with it, or without;
//! * every object that was known has its content, attributes and extended attributes
//!   under the same id, listed or not, and is listed under it;
//! * what is open without a name can be read;
//! * the history goes on: interrupted operations are repeated, more follow, with further
//!   kills, also during the resuming, and at the end the lower tree is the model's;
//! * a power cut during or after all this leaves what the crash search allows.
//!
//! [`JournalStore::resume`]: mobifs_store::JournalStore::resume

mod check;
mod recording_sink;
mod run;
#[cfg(test)]
mod tests;

use std::fmt;

use super::operation::History;
use super::run::Plan;
use super::script::SCRIPTS;
use super::shrink::shrink;
use super::{SearchStatistics, Violation};
use crate::campaign::Search;
use crate::statistics::statistics;

/// How thoroughly a history is killed.
#[derive(Clone, Copy, Debug)]
pub struct KillOptions {
    /// Kills for each thousand instants of a history.
    pub kills_permille: u64,
    /// Kills for each thousand instants of a resuming, and of what follows.
    pub nested_permille: u64,
    /// How many kills may follow one another.
    pub depth_max: u32,
    /// Power cuts for each thousand calls of a resuming, and of what follows.
    pub cuts_permille: u64,
}

impl Default for KillOptions {
    fn default() -> Self {
        Self {
            kills_permille: 150,
            nested_permille: 20,
            depth_max: 3,
            cuts_permille: 10,
        }
    }
}

statistics! {
    /// What a search did.
    pub struct KillStatistics {
        /// Histories carried out.
        pub histories: u64,
        /// Kills survived.
        pub kills: u64,
        /// Kills while something was being applied.
        pub during_apply: u64,
        /// Kills while another kill was being survived.
        pub during_resume: u64,
        /// Kills while a transaction was being handed over.
        pub in_flight: u64,
        /// Transactions of these that were in the journal.
        pub arrived: u64,
        /// Kills with open files that had no name.
        pub with_unnamed: u64,
        /// Calls that an error made fail.
        pub failed_calls: u64,
        /// What the power cuts found.
        pub cuts: SearchStatistics,
    }
}

impl fmt::Display for KillStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills ({} during apply, {} during the resuming of another, {} during a commit \
             of which {} had arrived, {} with open files without a name) in {} histories with {} \
             failed calls; then {}",
            self.kills,
            self.during_apply,
            self.during_resume,
            self.in_flight,
            self.arrived,
            self.with_unnamed,
            self.histories,
            self.failed_calls,
            self.cuts,
        )
    }
}

/// Carries out a plan and kills it.
fn search_plan(
    plan: &dyn Plan,
    seed: u64,
    options: &KillOptions,
) -> Result<KillStatistics, Box<Violation>> {
    run::run(plan, seed, options).map_err(|what| {
        Box::new(Violation {
            seed,
            what,
            shrunk: None,
        })
    })
}

impl Search for KillOptions {
    type Statistics = KillStatistics;
    type Violation = Violation;

    fn search(&self, seed: u64, is_shrunk: bool) -> Result<KillStatistics, Box<Violation>> {
        let history = History::random(seed);
        search_plan(&history, seed, self).map_err(|mut violation| {
            if is_shrunk {
                let run = |history: &History, seed, options: &Self| {
                    run::run(history, seed, options).map(drop)
                };
                violation.shrunk = shrink(&history, &violation.what, seed, &self.simpler(), run);
            }
            violation
        })
    }
}

impl KillOptions {
    /// The ways in which a history is run to be shrunk: one kill at every instant; kills of successors,
    /// too; power cuts as well.
    const fn simpler(&self) -> [Self; 3] {
        let simplest = Self {
            kills_permille: 1000,
            nested_permille: 0,
            depth_max: 1,
            cuts_permille: 0,
        };
        let nested = Self {
            nested_permille: self.nested_permille,
            depth_max: self.depth_max,
            ..simplest
        };
        let cut = Self {
            cuts_permille: self.cuts_permille,
            ..nested
        };
        [simplest, nested, cut]
    }
}

/// Kills each of the scripted histories at every instant, over a filesystem with limits and over one without.
///
/// # Errors
/// The first [`Violation`].
pub fn search_scripts(options: &KillOptions) -> Result<KillStatistics, Box<Violation>> {
    let options = KillOptions {
        kills_permille: 1000,
        ..*options
    };
    let mut total = KillStatistics::default();
    for (seed, script) in (0..2).flat_map(|seed| SCRIPTS.iter().map(move |s| (seed, s))) {
        total += search_plan(script, seed, &options).map_err(|mut violation| {
            violation.what = format!("\"{}\": {}", script.name, violation.what);
            violation
        })?;
    }
    Ok(total)
}
