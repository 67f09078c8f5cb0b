//! `mobifs trace cut`

use mobifs_trace::write_file;

use super::arguments::CutArguments;
use super::input;
use crate::failure::{Failure, put};

pub(super) fn run(arguments: &CutArguments) -> Result<(), Failure> {
    let trace = input::trace(&arguments.trace, &arguments.input)?;
    let part = input::selected(&trace, &arguments.selection, !arguments.keep_times)?;
    write_file(&part, &arguments.out)?;
    let (kept, all) = (part.events.len(), trace.events.len());
    put(&format!("{kept} of {all} events\n"))
}
