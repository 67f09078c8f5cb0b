//! Tests of the command `mobifs-lab`, as one program.

mod flash_experiments;
mod sim;
mod trace;
