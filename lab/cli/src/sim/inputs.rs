//! Traces and the device, and how far the work is.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Args;
use mobifs_device_model::{Config, Preset};
use mobifs_simulator::sim::{DeviceChoice, NamedStream, Stream};
use mobifs_trace::{LoadOptions, load};
use mobifs_volume::parse_size;

use crate::failure::{Code, Failure};
use crate::trace::{self, report};

/// What is simulated.
#[derive(Debug, Args)]
#[group(id = "simulated")]
pub(crate) struct InputArguments {
    /// The device: microsd, emmc51, ufs31, or a file (TOML, as the presets are)
    #[arg(long, value_name = "NAME|FILE", default_value = "emmc51")]
    pub(crate) device: String,
    /// Size of the device
    #[arg(long, value_name = "SIZE", default_value = "32GiB")]
    pub(crate) size: String,
    #[command(flatten)]
    pub(crate) loading: trace::InputArguments,
    /// Traces
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
}

/// Reads the traces. Reports what was left out of a trace on standard error.
pub(super) fn streams(arguments: &InputArguments) -> Result<Vec<NamedStream>, Failure> {
    let options = trace::options(&arguments.loading)?;
    let paths = arguments.traces.iter();
    paths.map(|path| stream(path, &options)).collect()
}

fn stream(path: &Path, options: &LoadOptions) -> Result<NamedStream, Failure> {
    let failed = |message: String| Failure::new(Code::Failed, message);
    let loaded = load(path, options)?;
    report(&loaded.report);
    let stream = Stream::new(&loaded.trace);
    if stream.block_commands > 0 && stream.steps.is_empty() {
        return Err(failed(format!(
            "{}: a trace of a block device says nothing of files, so no policy can be tried \
             on it; `mobifs flash replay` shows what it costs a device",
            path.display()
        )));
    }
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(NamedStream {
        name: name.to_string_lossy().into_owned(),
        stream,
    })
}

pub(super) fn device(arguments: &InputArguments) -> Result<DeviceChoice, Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let name = &arguments.device;
    let config = match name.parse::<Preset>() {
        Ok(preset) => preset.config(),
        Err(unknown) if !Path::new(name).exists() => Err(unknown),
        Err(_) => {
            let text = std::fs::read_to_string(name);
            Config::from_toml(&text.map_err(|error| usage(format!("{name}: {error}")))?)
        }
    };
    Ok(DeviceChoice {
        name: name.clone(),
        config: config.map_err(|error| usage(error.to_string()))?,
        capacity_bytes: parse_size(&arguments.size).map_err(usage)?,
    })
}

/// Shows progress on a terminal.
pub(super) struct Progress {
    line: Option<Mutex<()>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_seen = std::io::stderr().is_terminal();
        Self {
            line: is_seen.then(Mutex::default),
        }
    }

    pub(super) fn show(&self, done: usize, of: usize) {
        if let Some(line) = &self.line {
            let _turn = line.lock();
            eprint!("\r{done} of {of} simulations");
        }
    }

    pub(super) fn clear(&self) {
        if self.line.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
