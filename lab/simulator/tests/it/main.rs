//! Tests of the simulator beside what a mount does, as one program.

mod live;
mod same_as_a_mount;
mod same_as_the_store;
