//! `mobifs flash power-on`

use mobifs_device_server::{Reply, Request};
use serde_json::json;

use super::arguments::PowerOnArguments;
use super::server::{ask_server, print, unexpected};
use crate::failure::Failure;

pub(crate) fn run(arguments: &PowerOnArguments) -> Result<(), Failure> {
    match ask_server(&arguments.device, &Request::PowerOn)? {
        Reply::PoweredOn {
            report,
            loop_device,
        } => {
            let document = json!({ "loop_device": loop_device, "recovery": report });
            print(&document, arguments.json)
        }
        other => Err(unexpected(&other)),
    }
}
