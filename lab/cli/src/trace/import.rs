//! `mobifs trace import`

use mobifs_trace::write_file;

use super::arguments::ImportArguments;
use super::input;
use crate::failure::{Failure, put};

pub(super) fn run(arguments: &ImportArguments) -> Result<(), Failure> {
    let trace = input::trace(&arguments.trace, &arguments.input)?;
    write_file(&trace, &arguments.out)?;
    put(&format!(
        "{} events, {} apps, {:.3} s\n",
        trace.events.len(),
        trace.apps.len(),
        trace.duration_ns() as f64 / 1e9
    ))
}
