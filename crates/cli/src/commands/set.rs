//! `mobifs set`

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure};
use mobifs_volume::{PolicySettings, Size, parse_size};

use super::{ask, unexpected};
use crate::arguments::SetArguments;

pub(crate) fn run(arguments: &SetArguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let size = |text: &Option<String>| {
        let size = text.as_deref().map(parse_size).transpose();
        size.map(|size| size.map(Size)).map_err(usage)
    };
    let settings = PolicySettings {
        class: arguments.class.clone(),
        age_max_ms: arguments.age_max_ms,
        staleness_max_bytes: size(&arguments.staleness_max_bytes)?,
        policy: arguments.policy.clone(),
        staleness_min_bytes: size(&arguments.staleness_min_bytes)?,
        slope_min_micropercent: arguments.slope_min_micropercent,
        window_points: arguments.window_points,
        interval_ms: arguments.interval_ms,
        quiet_ms: arguments.quiet_ms,
        quiet_age_min_ms: arguments.quiet_age_min_ms,
        staleness_bytes: size(&arguments.staleness_bytes)?,
        flush_interval_ms: arguments.flush_interval_ms,
    };
    if settings == PolicySettings::default() {
        return Err(usage(
            "there is nothing to set: give a class, a limit or a policy (`mobifs set --help` \
             lists them)"
                .to_owned(),
        ));
    }
    // Before the daemon is asked: a value that makes no sense is the command line's fault.
    settings
        .change()
        .map_err(|fault| usage(fault.to_string()))?;
    let request = Request::Set {
        app: arguments.app.clone().into(),
        settings: Box::new(settings),
    };
    match ask(&arguments.mountpoint, &request)?.1 {
        Reply::Done => {
            eprintln!(
                "mobifs: in force until this mount ends or `mobifs reload`; to keep it, write it into \
                 the configuration file"
            );
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}
