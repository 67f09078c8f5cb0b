//! The server's side of the control socket.

use std::sync::Weak;

use mobifs_host::{Client, LineHandler};
use serde_json::{Value, json};

use super::protocol::{ErrorKind, Reply, Request};
use crate::port::PowerError;
use crate::serve::Device;

/// Answers requests as long as the device is served.
pub(crate) struct Control(pub(crate) Weak<Device>);

impl LineHandler for Control {
    fn answer(&self, line: &[u8], client: &Client<'_>) -> Vec<u8> {
        let reply = if client.is_permitted() {
            match serde_json::from_slice(line) {
                Ok(request) => self.handle(request),
                Err(error) => Reply::error(ErrorKind::Usage, format!("bad request: {error}")),
            }
        } else {
            let message = "only root and the user who serves the device may do this";
            Reply::error(ErrorKind::NotPermitted, message)
        };
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}

impl Control {
    fn handle(&self, request: Request) -> Reply {
        let Some(device) = self.0.upgrade() else {
            return Reply::error(ErrorKind::Failed, "the server is ending");
        };
        match request {
            Request::Stats => match stats(&device) {
                Ok(stats) => Reply::Stats { stats },
                Err(error) => refused(&error),
            },
            Request::Cut { keep } => match device.port.cut(keep) {
                Ok(report) => Reply::Cut { report },
                Err(error) => refused(&error),
            },
            Request::Remap { pairs } => match device.port.expect_copies(&pairs) {
                Ok(()) => Reply::RemapExpected,
                Err(error) => Reply::error(ErrorKind::Usage, error.to_string()),
            },
            Request::RemapEnd => Reply::RemapEnded {
                pages_forgotten: device.port.forget_copies(),
            },
            Request::PowerOn => match device.power_on() {
                Ok((report, loop_device)) => Reply::PoweredOn {
                    report,
                    loop_device,
                },
                Err(error) => refused(&error),
            },
        }
    }
}

fn refused(error: &PowerError) -> Reply {
    let kind = match error {
        PowerError::AlreadyOff | PowerError::AlreadyOn => ErrorKind::Usage,
        PowerError::Medium | PowerError::Loop(_) => ErrorKind::Failed,
    };
    Reply::error(kind, error.to_string())
}

/// The document of `mobifs flash stats`: what is served and what the model counted.
fn stats(device: &Device) -> Result<Value, PowerError> {
    Ok(json!({
        "schema": 1,
        "served": device.ready(),
        "is_powered": device.port.is_powered(),
        "requests_under_way": device.port.under_way(),
        "journal_failed": device.port.journal_failed(),
        "remaps": device.port.copies(),
        "device": device.port.stats()?,
    }))
}
