//! `mobifs umount`

use std::path::Path;

use mobifs_runtime::{ControlClient, ControlError, Reply, Request};

use super::unexpected;
use crate::arguments::UmountArguments;
use crate::failure::Failure;

pub(crate) fn run(arguments: &UmountArguments) -> Result<(), Failure> {
    let asked = ControlClient::connect(&arguments.mountpoint).and_then(|mut client| {
        let lazy = arguments.lazy;
        let reply = client.ask(&Request::Unmount { lazy })?;
        Ok((client, reply))
    });
    let (client, reply) = match asked {
        Ok(answered) => answered,
        Err(ControlError::DaemonGone { path }) => return take_away(&path),
        Err(error) => return Err(error.into()),
    };
    match reply {
        Reply::Done => {
            client.wait_for_end();
            Ok(())
        }
        Reply::Detached => {
            eprintln!(
                "mobifs: {} is out of the tree; its daemon ends when its last user has left",
                client.mountpoint().display()
            );
            Ok(())
        }
        Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
        other => Err(unexpected(&other)),
    }
}

/// Takes away a mount without a daemon. No users are waited for: they get no answers any more.
fn take_away(mountpoint: &Path) -> Result<(), Failure> {
    mobifs_fuse::unmount(mountpoint, true)?;
    eprintln!(
        "mobifs: the daemon of {} was gone; the mount is taken away, and the next mount of its \
         store finds everything that was committed",
        mountpoint.display()
    );
    Ok(())
}
