//! Experiments with the flash device model: calibration and validation against published
//! measurements, and replay of block traces. Everything runs in virtual time: the same
//! configuration and seed give the same result on every machine.

mod criterion;
pub mod experiment;
mod figure;
pub mod replay;
mod report;
mod validation;

pub use crate::figure::svg;
pub use criterion::{Criterion, Verdict, figure};
pub use mobifs_charts::PlotError;
pub use report::{criteria_table, size, table};
pub use validation::{DeviceUnderTest, Extent, Validation, validate};
