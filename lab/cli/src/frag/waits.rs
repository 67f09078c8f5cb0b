//! `mobifs frag waits`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use mobifs_ageing::AgeError;
use mobifs_frag_experiments::{Extent, FragError, Settings, table_text, waits_of, waits_table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::experiment::scratch;
use crate::device_guard::DeviceGuard;
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
An IMAGE is one that `mobifs frag age --image` has aged; several are shown beside each other. Each is used
as by its user, on a copy that a flash device (eMMC 5.1) serves in virtual time: all apps are launched (their
executables are read, and the newest rows of their databases), all databases are scanned, and one more app is
installed. What was aged through a mount of MobiFS is used through one. Times are the device's, and no time
of the host is in them. docs/AGEING.md has an example.

  mobifs frag age --image plain.img --capacity 4GiB --scale 0.1 --seed 3
  mobifs frag age --image mount.img --capacity 4GiB --scale 0.1 --seed 3 --through mount
  mobifs frag waits plain.img mount.img

It takes root. Copies are sparse files in MOBIFS_SCRATCH (/var/tmp), which go when it ends, also by a signal.

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
pub(super) struct WaitsArguments {
    /// Images that were aged
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// How often each is measured; the one in the middle is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seed of the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(arguments: &WaitsArguments) -> Result<(), Failure> {
    let failed = |message: String| Failure::new(Code::Failed, message);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let watched = signal_hook::flag::register(signal, Arc::clone(&stop));
        watched.map_err(|error| failed(format!("cannot watch for signals: {error}")))?;
    }
    let settings = Settings {
        scratch: scratch(),
        extent: Extent::Full,
        seed: arguments.seed,
        stop,
    };
    let _guard = DeviceGuard::start()?;
    let measured = arguments
        .images
        .iter()
        .map(|image| waits_of(image, arguments.rounds, &settings))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failure(&error))?;
    if !arguments.json {
        return put(&table_text(&waits_table(&measured)));
    }
    let document = serde_json::json!({ "schema": 1, "images": measured });
    let text = serde_json::to_string_pretty(&document);
    put(&(text.map_err(|error| failed(error.to_string()))? + "\n"))
}

fn failure(error: &FragError) -> Failure {
    let code = match error {
        FragError::InUse { .. } | FragError::Age(AgeError::InUse(_)) => Code::InUse,
        FragError::Age(AgeError::Damaged { .. }) => Code::Damaged,
        FragError::Age(AgeError::State { .. }) => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
