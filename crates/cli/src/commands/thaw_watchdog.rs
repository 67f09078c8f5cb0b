//! The process beside a steering daemon that lets apps go on if the daemon cannot.

use mobifs_daemon::{Code, Failure};
use mobifs_native::history::run_watchdog;

use crate::arguments::ThawWatchdogArguments;

pub(crate) fn run(arguments: &ThawWatchdogArguments) -> Result<(), Failure> {
    run_watchdog(&arguments.note).map_err(|error| Failure::new(Code::Failed, error.to_string()))
}
