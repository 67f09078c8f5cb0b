//! Asking the server of a device, and printing what it says.

use std::path::Path;

use mobifs_device_server::{Reply, Request, ask};
use serde_json::Value;

use super::{failure, figures};
use crate::failure::{Code, Failure, put};

/// Asks the server of a device; an error that it reports becomes a failure.
pub(super) fn ask_server(device: &Path, request: &Request) -> Result<Reply, Failure> {
    match ask(device, request)? {
        Reply::Error { kind, message } => Err(failure::reported(kind, message)),
        reply => Ok(reply),
    }
}

pub(super) fn unexpected(reply: &Reply) -> Failure {
    Failure::new(
        Code::Failed,
        format!("the server gave an answer that this version does not understand: {reply:?}"),
    )
}

/// Prints a document for programs or for people.
pub(super) fn print(document: &Value, json: bool) -> Result<(), Failure> {
    let text = if json {
        let text = serde_json::to_string_pretty(document);
        text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"
    } else {
        figures::lines(document)
    };
    put(&text)
}
