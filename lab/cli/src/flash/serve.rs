//! `mobifs flash serve`

use std::io::{self, Write as _};
use std::time::Duration;

use mobifs_device_model::{Config, Preset};
use mobifs_device_server::{EndHandle, Ready, ServeOptions, Served};
use mobifs_volume::parse_size;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::arguments::ServeArguments;
use super::config::load;
use crate::failure::{Code, Failure};

/// How long users may take to leave before a message says what the server waits for.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn run(arguments: &ServeArguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let size = arguments.size.as_deref().map(parse_size);
    let options = ServeOptions {
        image: arguments.image.clone(),
        size_bytes: size.transpose().map_err(usage)?,
        config: config(arguments)?,
        seed: arguments.seed,
        scale: arguments.scale,
        journal: arguments.journal.clone(),
        nbd: arguments.nbd.clone(),
        loop_device: arguments.loop_device,
        mountpoint: arguments.mount.clone(),
    };
    let served = Served::start(&options)?;
    watch_signals(served.end_handle())?;
    announce(&served.ready(), arguments.json)?;
    Ok(served.wait()?)
}

/// What the command line says the device is; none if it leaves that to the image.
fn config(arguments: &ServeArguments) -> Result<Option<Config>, Failure> {
    if let Some(name) = &arguments.preset {
        let config = name.parse::<Preset>().and_then(Preset::config);
        let config = config.map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
        return Ok(Some(config));
    }
    arguments.config.as_deref().map(load).transpose()
}

fn announce(ready: &Ready, json: bool) -> Result<(), Failure> {
    let failed = |message: String| Failure::new(Code::Failed, message);
    let line = if json {
        serde_json::to_string(ready).map_err(|error| failed(error.to_string()))?
    } else {
        ready.to_string()
    };
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{line}").and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error.to_string())),
        _ => Ok(()),
    }
}

/// The first signal ends when the last user has left, the second at once.
fn watch_signals(end: EndHandle) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(Code::Failed, format!("cannot watch for signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let watch = move || {
        let mut is_ending = false;
        for _ in &mut signals {
            let ended = if is_ending { end.end_now() } else { end.end() };
            if let Err(error) = ended {
                tracing::warn!(%error, "cannot take the mount away");
            }
            if !is_ending && !end.wait_for_users(PATIENCE) {
                eprintln!(
                    "mobifs: the device is in use; it ends when its last user has left, or at \
                     once with a second signal"
                );
            }
            is_ending = true;
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(failed)?;
    Ok(())
}
