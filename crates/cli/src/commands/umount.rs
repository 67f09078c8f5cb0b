//! `mobifs umount`

use mobifs_runtime::{ControlClient, ControlError, Reply, Request};

use super::unexpected;
use crate::arguments::UmountArguments;
use crate::failure::Failure;

pub(crate) fn run(arguments: &UmountArguments) -> Result<(), Failure> {
    let mut client = match ControlClient::connect(&arguments.mountpoint) {
        Ok(client) => client,
        Err(ControlError::DaemonGone { path }) => {
            // Nobody answers any more, so waiting for its users makes no sense.
            mobifs_fuse::unmount(&path, true)?;
            eprintln!(
                "mobifs: the daemon of {} was gone; the mount is taken away, and the next mount \
                 of its store finds everything that was committed",
                path.display()
            );
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    match client.ask(&Request::Unmount {
        lazy: arguments.lazy,
    })? {
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
