//! Seeded random numbers and statistics, shared by the laboratory and the tests.

#![forbid(unsafe_code)]

mod latency;
mod line;
mod random;
mod statistics;
mod time_histogram;

pub use latency::LatencyHistogram;
pub use line::Line;
pub use random::Random;
pub use statistics::{geometric_mean, mean, median};
pub use time_histogram::TimeHistogram;
