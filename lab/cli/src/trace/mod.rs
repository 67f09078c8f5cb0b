//! `mobifs trace`

pub(crate) mod arguments;
mod cat;
mod cut;
mod failure;
mod finish;
mod import;
mod input;
mod merge;
mod progress;
mod record;
mod replay;
mod stat;

pub(crate) use arguments::InputArguments;
pub(crate) use input::{known_trace, options, report};
use std::process::ExitCode;

use crate::failure::Failure;
use arguments::TraceCommand;

pub(crate) fn run(command: &TraceCommand) -> Result<ExitCode, Failure> {
    match command {
        TraceCommand::Import(arguments) => import::run(arguments),
        TraceCommand::Finish(arguments) => finish::run(arguments),
        TraceCommand::Stat(arguments) => stat::run(arguments),
        TraceCommand::Cat(arguments) => cat::run(arguments),
        TraceCommand::Cut(arguments) => cut::run(arguments),
        TraceCommand::Merge(arguments) => merge::run(arguments),
        TraceCommand::Replay(arguments) => replay::run(arguments),
        TraceCommand::Record(arguments) => return record::run(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
