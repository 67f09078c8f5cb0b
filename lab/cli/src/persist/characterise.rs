//! `mobifs persist characterise`

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use mobifs_persistence::live::{self, LiveOptions, Through};
use mobifs_persistence::{
    Characterisation, DiskOptions, PersistError, Under, at_rest, section, text,
};
use mobifs_volume::parse_size;

use super::output::{ModelArguments, OutputArguments, failure, scratch};
use crate::failure::{Code, Failure};

pub(super) const HELP: &str = "\
IMAGE is an image (or block device) of ext3 or ext4, a journal of JBD2 as debugfs extracts it, a journal of
MobiFS, or the directory of a store; nothing is changed. No device is served: of the options only --json and --html
go with it. Its journal shows the transactions that have not been overwritten; blocks are compared with their earlier
versions there.

A COMMAND runs in an empty directory of an ext4 on a served flash device (as `mobifs flash serve`), or of a
durable mount of MobiFS on that. Every transaction is read from the log of the device's commands, with its
times; calls of fsync are counted by strace, where it is installed. A trace is replayed as COMMAND. It takes root.
With --device, a copy of an image is served. What COMMAND prints goes to standard error.

  mobifs persist characterise phone.img
  mobifs persist characterise --html out.html -- sqlite3 test.db 'create table t (x)'
  mobifs persist characterise --through mobifs --trace traces/sqlite.parquet

docs/PERSISTENCE.md defines what is printed, and has the published values.";

#[derive(Debug, Args)]
pub(super) struct CharacteriseArguments {
    /// The image to read
    #[arg(
        value_name = "IMAGE",
        required_unless_present_any = ["command", "trace"],
        conflicts_with_all = ["command", "trace", "device", "through", "model", "scale", "size", "mount_options", "mkfs"]
    )]
    image: Option<PathBuf>,
    /// Replay a trace on the device
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    trace: Option<PathBuf>,
    /// Serve a copy of this image, which has an ext4, instead of a new filesystem
    #[arg(long, value_name = "IMAGE")]
    device: Option<PathBuf>,
    /// What the command works through
    #[arg(long, value_enum, default_value = "ext4")]
    through: ThroughArgument,
    #[command(flatten)]
    model: ModelArguments,
    /// Size of the new device
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        conflicts_with = "device"
    )]
    size: String,
    /// Mount options of the ext4, such as data=journal
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    mount_options: String,
    /// An option of mkfs.ext4; may be given several times
    #[arg(
        long,
        value_name = "WORD",
        allow_hyphen_values = true,
        conflicts_with = "device"
    )]
    mkfs: Vec<String>,
    #[command(flatten)]
    output: OutputArguments,
    /// The command and its arguments, after --
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

impl CharacteriseArguments {
    /// Whether an image is read, and no device is served.
    pub(super) const fn only_reads(&self) -> bool {
        self.image.is_some()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ThroughArgument {
    /// The ext4 itself
    Ext4,
    /// A durable mount of MobiFS
    Mobifs,
}

pub(super) fn run(arguments: &CharacteriseArguments, stop: &AtomicBool) -> Result<(), Failure> {
    arguments.output.check()?;
    let found = match &arguments.image {
        Some(image) => at_rest::characterise(image).map_err(|error| {
            let failed = failure(&error);
            // An error of a file names it already.
            match error {
                PersistError::Io { .. } => failed,
                _ => Failure::new(
                    failed.code,
                    format!("{}: {}", image.display(), failed.message),
                ),
            }
        })?,
        None => live(arguments, stop)?,
    };
    show(arguments, &found)
}

fn live(arguments: &CharacteriseArguments, stop: &AtomicBool) -> Result<Characterisation, Failure> {
    let size_bytes = parse_size(&arguments.size);
    let size_bytes = size_bytes.map_err(|error| Failure::new(Code::Usage, error))?;
    let options = LiveOptions {
        disk: DiskOptions {
            under: Under::Model {
                preset: arguments.model.model,
                scale: arguments.model.scale,
            },
            image: arguments.device.clone(),
            size_bytes,
            mkfs: arguments.mkfs.clone(),
            mount: arguments.mount_options.clone(),
            scratch: scratch(),
        },
        through: match arguments.through {
            ThroughArgument::Ext4 => Through::Ext4,
            ThroughArgument::Mobifs => Through::Mobifs,
        },
        mobifs: None,
        command: command(arguments)?,
    };
    let found = live::characterise(&options);
    let found = found.map_err(|error| match stop.load(Ordering::Relaxed) {
        true => PersistError::Interrupted,
        false => error,
    });
    found.map_err(|error| failure(&error))
}

/// The command, or what replays the trace in the directory in which it runs.
fn command(arguments: &CharacteriseArguments) -> Result<Vec<OsString>, Failure> {
    let Some(trace) = &arguments.trace else {
        return Ok(arguments.command.clone());
    };
    // Before a device is served: what replays it could only say so in the middle.
    crate::trace::known_trace(trace)?;
    let failed =
        |error: std::io::Error| Failure::new(Code::Failed, format!("{}: {error}", trace.display()));
    let own = std::env::current_exe().map_err(failed)?;
    let trace = trace.canonicalize().map_err(failed)?;
    let words = ["trace", "replay", "--json"].map(OsString::from);
    let mut command = vec![own.into_os_string()];
    command.extend(words);
    command.extend([trace.into_os_string(), OsString::from(".")]);
    Ok(command)
}

fn show(arguments: &CharacteriseArguments, found: &Characterisation) -> Result<(), Failure> {
    let section = section(found).map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    arguments.output.show(found, &text(found), section)
}
