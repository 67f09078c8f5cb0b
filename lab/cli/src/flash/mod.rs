//! `mobifs flash`

pub(crate) mod arguments;
mod config;
mod cut;
mod failure;
mod figures;
mod materialise;
mod power_on;
mod replay;
mod serve;
mod server;
mod stats;
mod validate;

use crate::failure::Failure;
use arguments::FlashCommand;

pub(crate) fn run(command: &FlashCommand) -> Result<(), Failure> {
    match command {
        FlashCommand::Serve(arguments) => serve::run(arguments),
        FlashCommand::Stats(arguments) => stats::run(arguments),
        FlashCommand::Cut(arguments) => cut::run(arguments),
        FlashCommand::PowerOn(arguments) => power_on::run(arguments),
        FlashCommand::Materialise(arguments) => materialise::run(arguments),
        FlashCommand::Validate(arguments) => validate::run(arguments),
        FlashCommand::Replay(arguments) => replay::run(arguments),
    }
}
