//! The process that finds out whether a filesystem is frozen.

use crate::arguments::FreezeProbeArguments;

pub(crate) fn run(arguments: &FreezeProbeArguments) {
    mobifs_native::run_freeze_probe(&arguments.directory);
}
