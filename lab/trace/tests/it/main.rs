//! Tests of traces through the interface of the crate, as one program.

mod import;
mod mobigen;
mod strace;
