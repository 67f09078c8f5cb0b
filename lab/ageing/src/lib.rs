//! Ages filesystems, the same way from the same seed: the procedure of large and small files
//! ([`fill`]), and the scenarios of a phone ([`run`]).
//! `docs/AGEING.md` says what is done, and `mobifs frag age` does it.
#![forbid(unsafe_code)]

mod aged;
mod checksum;
mod content;
mod database;
mod error;
mod execute;
pub mod fill;
mod host;
mod place;
mod plan;
mod profile;
pub mod run;
mod settings;
mod space;
mod state;
mod table;

pub use aged::Aged;
pub use checksum::Checksum;
pub use content::{mix, mix_name};
pub use error::AgeError;
pub use place::{Filesystem, Location, OpenedLocation, TREE, Through, Where, mobifs};
pub use profile::{Profile, Source, profiles};
pub use settings::{SEED_MAX, Settings};
pub use space::Space;
pub use state::{Day, LargeAndSmall, SCHEMA, Scenarios, State, Work};
pub use table::table;
