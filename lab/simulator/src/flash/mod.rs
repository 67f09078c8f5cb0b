//! Experiments with the flash device model: calibration and validation against published
//! measurements, and replay of block traces. Everything runs in virtual time: the same
//! configuration and seed give the same result on every machine.

mod criterion;
pub mod experiment;
mod fit;
mod host;
mod plot;
pub mod replay;
mod report;
mod validation;

pub use crate::plot::PlotError;
pub use criterion::{Criterion, Verdict};
pub use fit::Line;
pub use host::Host;
pub use plot::svg;
pub use report::table;
pub use validation::{DeviceUnderTest, Extent, Validation, validate};
