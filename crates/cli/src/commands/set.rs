//! `mobifs set`

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure};
use mobifs_volume::PolicySettings;

use super::{ask, tell, unexpected};
use crate::arguments::SetArguments;

pub(crate) fn run(arguments: &SetArguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let settings = arguments.policy.settings().map_err(usage)?;
    if settings == PolicySettings::default() {
        return Err(usage(
            "there is nothing to set: give a class, a limit or a policy (`mobifs set --help` \
             lists them)"
                .to_owned(),
        ));
    }
    // Checked before the daemon is asked: an invalid value is a usage error.
    settings
        .change()
        .map_err(|fault| usage(fault.to_string()))?;
    let request = Request::Set {
        app: arguments.app.clone().into(),
        settings: Box::new(settings),
    };
    let (client, reply) = ask(&arguments.mountpoint, &request)?;
    match reply {
        Reply::Done => {
            let keep = "`mobifs reload`; to keep it, write it into the configuration file";
            if client.mount().is_fuse() {
                tell(&format!("in force until this mount ends or {keep}"));
            } else {
                tell(&format!(
                    "in force until steering ends or {keep}. A steered filesystem is committed as a whole: the limits of \
                     the strictest app of the configuration hold, which `mobifs status` shows"
                ));
            }
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}
