//! The process beside a steering daemon that lets apps go on if the daemon cannot.

use mobifs_daemon::{Code, Failure};
use mobifs_native::history::guard;

use crate::arguments::ThawGuardArguments;

pub(crate) fn run(arguments: &ThawGuardArguments) -> Result<(), Failure> {
    guard(&arguments.note).map_err(|error| Failure::new(Code::Failed, error.to_string()))
}
