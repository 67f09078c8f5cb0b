//! Tests of ageing, as one program.

mod disk;
mod fill;
mod scenarios;
