//! The process that keeps a mount namespace as long as a daemon is in it.

use mobifs_daemon::namespace_keeper::{start_detached, wait_for_the_others};
use mobifs_daemon::{Code, Failure};

use crate::arguments::KeepNamespaceArguments;

pub(crate) fn run(arguments: &KeepNamespaceArguments) -> Result<(), Failure> {
    if arguments.detached {
        wait_for_the_others();
        return Ok(());
    }
    start_detached().map_err(|error| Failure::new(Code::Failed, format!("cannot start: {error}")))
}
