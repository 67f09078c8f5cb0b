//! `mobifs flash cut`

use mobifs_device_server::{Reply, Request};

use super::arguments::CutArguments;
use super::server::{ask_server, print, unexpected};
use crate::failure::Failure;

pub(crate) fn run(arguments: &CutArguments) -> Result<(), Failure> {
    let request = Request::Cut {
        keep: arguments.keep,
    };
    match ask_server(&arguments.device, &request)? {
        Reply::Cut { report } => print(&report, arguments.json),
        other => Err(unexpected(&other)),
    }
}
