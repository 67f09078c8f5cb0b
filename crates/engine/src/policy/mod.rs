//! The policies (S0 §5): when a transaction closes, when the user is expected not to use the
//! device, and which closed transaction is committed first. Each is a trait with implementations
//! that are selected by name, without a clock or device of its own. [`machine`] says what screen,
//! sleep and battery have to do with it.

pub mod machine;
pub mod observed;
pub(crate) mod pacing;
pub mod prediction;
pub mod schedule;
pub mod transactioning;
