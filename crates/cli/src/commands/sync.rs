//! `mobifs sync`

use std::os::unix::ffi::OsStrExt as _;

use mobifs_daemon::Failure;
use mobifs_daemon::control::{Reply, Request};
use mobifs_volume::{AppName, AppSelection};

use super::progress::Progress;
use super::{AS_LONG_AS_IT_TAKES, ask, fetch, tell_what_stays, unexpected};
use crate::arguments::SyncArguments;

pub(crate) fn run(arguments: &SyncArguments) -> Result<(), Failure> {
    let app = arguments.app.as_deref().map(|name| {
        let slashes = name
            .as_bytes()
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'/');
        match name.as_bytes().split_at(name.len() - slashes.count()).0 {
            // "/" means what "." means.
            b"" => AppName::from("."),
            name => AppName::from(name),
        }
    });
    let request = Request::Sync {
        app,
        apply: !arguments.commit_only,
    };
    let progress = Progress::of_commit("committing", &arguments.mountpoint);
    match ask(&arguments.mountpoint, &request)?.1 {
        Reply::Done => {}
        other => return Err(unexpected(&other)),
    }
    drop(progress);
    let select = AppSelection {
        limit: Some(1),
        ..AppSelection::default()
    };
    // A mount that has ended since has nothing to tell.
    if let Ok(status) = fetch(&arguments.mountpoint, select, &AS_LONG_AS_IT_TAKES) {
        tell_what_stays(&status);
    }
    Ok(())
}
