//! Ages filesystems, the same way from the same seed: the procedure of large and small files
//! ([`fill`]), and the scenarios of a phone.
//! `docs/FRAGMENTATION.md` says what is done, and `mobifs frag age` does it.
#![deny(unsafe_code)]

mod checksum;
mod content;
mod error;
pub mod fill;
mod space;

pub use checksum::Checksum;
pub use content::{mix, mix_name};
pub use error::AgeError;
pub use space::Space;
