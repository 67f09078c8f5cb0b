//! `mobifs reload`

use std::path::PathBuf;

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure};
use mobifs_volume::Config;

use super::{ask, tell, unexpected};
use crate::arguments::ReloadArguments;

pub(crate) fn run(arguments: &ReloadArguments) -> Result<(), Failure> {
    let config = arguments.config.clone().map(checked).transpose()?;
    match ask(&arguments.mountpoint, &Request::Reload { config })?.1 {
        Reply::Done => Ok(()),
        Reply::Unchanged => {
            tell(
                "nothing has changed: what a reload can put in force is in force already (docs/CONFIG.md says what \
                 only the next mount takes over)",
            );
            Ok(())
        }
        Reply::Waits { has_changed, keys } => {
            let others = if has_changed {
                "what else has changed is in force"
            } else {
                "nothing else has changed"
            };
            tell(&format!(
                "with the next mount (of a steered filesystem: when it is steered anew) these keys change: {}; {others}",
                keys.join(", ")
            ));
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// The absolute name of a configuration that this user may read and that is valid.
fn checked(path: PathBuf) -> Result<String, Failure> {
    Config::load(&path)?;
    let absolute = path.canonicalize();
    absolute
        .ok()
        .and_then(|path| path.into_os_string().into_string().ok())
        .ok_or_else(|| {
            let message = format!("the name of the file {} is not UTF-8", path.display());
            Failure::new(Code::Usage, message)
        })
}
