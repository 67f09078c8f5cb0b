//! `mobifs touch`

use mobifs_runtime::{Reply, Request};

use super::{ask, unexpected};
use crate::arguments::TouchArguments;
use crate::failure::Failure;

pub(crate) fn run(arguments: &TouchArguments) -> Result<(), Failure> {
    match ask(&arguments.mountpoint, &Request::Touch)?.1 {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
