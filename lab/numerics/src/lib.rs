//! Seeded random numbers and statistics, shared by the laboratory and the tests.

#![forbid(unsafe_code)]

mod line;
mod random;

pub use line::Line;
pub use random::Random;
