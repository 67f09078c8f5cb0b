//! `mobifs touch`

use mobifs_daemon::Failure;
use mobifs_daemon::control::{Reply, Request};

use super::{ask, unexpected};
use crate::arguments::{ScreenState, TouchArguments};

pub(crate) fn run(arguments: &TouchArguments) -> Result<(), Failure> {
    let request = match arguments.screen {
        None => Request::Touch,
        Some(state) => Request::Screen {
            on: state == ScreenState::On,
        },
    };
    match ask(&arguments.mountpoint, &request)?.1 {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
