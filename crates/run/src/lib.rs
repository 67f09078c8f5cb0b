//! Runs unmodified programs whose calls for durability return at once on steered filesystems.
//!
//! Two mechanisms decide, call by call, by the filesystem of the descriptor: a library that is loaded
//! into the program (crate `mobifs-run-preload`), and for what it does not reach, as static programs, a
//! seccomp filter with a supervisor in other processes. The process that runs the command *becomes*
//! the command: its number, terminal, signals and exit status are the command's own. The supervisor is
//! in the background, and ends with the last process under the filter. One of its processes answers, and two stand by
//! (`guards`), so that the kill of any one of them is made good.
#![deny(unsafe_code)]

mod background;
mod beyond_mounts;
mod calls;
#[cfg(test)]
mod cost;
mod everything;
mod filter;
mod group;
mod guards;
mod lapse;
mod launch;
mod ledger;
#[cfg(test)]
mod left_over;
mod listener;
mod opens;
mod preload;
mod priority;
mod reach;
mod received;
mod relaxed_files;
mod same_credentials;
mod shared_page;
mod steering_units;
#[cfg(test)]
mod supervised;
mod supervisor;
mod supervisor_probe;
mod target;
mod unit;
mod user_namespace;
mod writes;

pub use launch::{Class, Mechanism, Run, RunError};
pub use supervisor_probe::is_supervised;
pub use unit::{DropIn, UnitError};
