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
mod stats;
mod validate;

use std::path::Path;

use mobifs_device_server::{Reply, Request, ask};
use serde_json::Value;

use crate::failure::{Code, Failure, put};
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

/// Asks the server of a device; an error that it reports becomes a failure.
fn ask_server(device: &Path, request: &Request) -> Result<Reply, Failure> {
    match ask(device, request)? {
        Reply::Error { kind, message } => Err(failure::reported(kind, message)),
        reply => Ok(reply),
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::new(
        Code::Failed,
        format!("the server gave an answer that this version does not understand: {reply:?}"),
    )
}

/// Prints a document for programs or for people.
fn print(document: &Value, json: bool) -> Result<(), Failure> {
    let text = if json {
        let text = serde_json::to_string_pretty(document);
        text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"
    } else {
        figures::lines(document)
    };
    put(&text)
}
