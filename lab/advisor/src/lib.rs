//! What is worth doing about the fragmented files of a directory: which journal mode, which
//! preallocation, what to defragment; what each brings by the line t = a · pieces + b · size, and what
//! it costs. `docs/FRAGMENTATION-REFERENCE.md` has the rules.
#![forbid(unsafe_code)]

mod advise;
mod cost;
mod database;
mod error;
mod reads;
mod report;
mod rules;
mod table;

pub use advise::{Options, advise};
pub use cost::ModelSource;
pub use database::{DatabaseHead, JournalMode};
pub use error::AdviseError;
pub use reads::TraceFacts;
pub use report::{Advice, AdviceReport, SCHEMA, Wear, What};
pub use table::table;
