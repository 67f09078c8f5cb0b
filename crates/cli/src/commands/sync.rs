//! `mobifs sync`

use mobifs_runtime::{Reply, Request};

use super::{ask, unexpected};
use crate::arguments::SyncArguments;
use crate::failure::Failure;

pub(crate) fn run(arguments: &SyncArguments) -> Result<(), Failure> {
    let app = arguments
        .app
        .as_deref()
        .map(|name| match name.trim_end_matches('/') {
            // "/" and "" mean what "." means.
            "" => ".".to_owned(),
            name => name.to_owned(),
        });
    let request = Request::Sync {
        app,
        apply: !arguments.commit_only,
    };
    match ask(&arguments.mountpoint, &request)?.1 {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
