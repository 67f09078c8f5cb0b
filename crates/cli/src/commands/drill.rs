//! `mobifs drill`

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure};
use mobifs_host::shell_path;

use super::{AS_LONG_AS_IT_TAKES, ask, unexpected};
use crate::arguments::{Drill, PowerCutArguments};

pub(crate) fn run(drill: &Drill) -> Result<(), Failure> {
    match drill {
        Drill::PowerCut(arguments) => power_cut(arguments),
    }
}

fn power_cut(arguments: &PowerCutArguments) -> Result<(), Failure> {
    if !arguments.yes {
        return Err(Failure::new(
            Code::Usage,
            format!(
                "this ends the mount {path} as a power cut would: what is not committed yet is \
                 lost (`mobifs status {word}` shows how much that is); say --yes if you want it",
                path = arguments.mountpoint.display(),
                word = shell_path(&arguments.mountpoint)
            ),
        ));
    }
    let (client, reply) = ask(&arguments.mountpoint, &Request::PowerCut)?;
    match reply {
        Reply::Done => {
            client.wait_for_end(&AS_LONG_AS_IT_TAKES);
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}
