//! Tests of the command `mobifs-lab`, as one program.

mod advise;
mod age;
mod defrag;
mod flash_experiments;
mod flash_serve;
mod frag;
mod frag_experiment;
mod persist;
mod sim;
mod trace;
mod waits;
