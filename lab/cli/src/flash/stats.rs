//! `mobifs flash stats`

use mobifs_device_server::{Reply, Request};

use super::arguments::StatsArguments;
use super::server::{ask_server, print, unexpected};
use crate::failure::Failure;

pub(crate) fn run(arguments: &StatsArguments) -> Result<(), Failure> {
    match ask_server(&arguments.device, &Request::Stats)? {
        Reply::Stats { stats } => print(&stats, arguments.json),
        other => Err(unexpected(&other)),
    }
}
