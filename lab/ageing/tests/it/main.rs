//! Tests of ageing, as one program.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod disk;
mod fill;
mod scenarios;
