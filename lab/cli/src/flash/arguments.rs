//! The command line of `mobifs flash`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use mobifs_device_server::{CrashState, Keep, Scale};

use super::replay::{self, ReplayArguments};
use super::validate::{self, ValidateArguments};

const SERVE_HELP: &str = "\
The image is a plain file with the durable content of the device; the state of the device
(mapping, wear, counters) is kept beside it, in IMAGE.flash. An image that was served before
needs no --preset, --config or --seed.

One line on standard output says when the device can be used. It is served in the foreground
until SIGTERM or SIGINT: then it takes no new users and ends when the last one has left (a
second signal ends it at once).

  mobifs flash serve --preset emmc51 --size 4GiB --loop card.img
  mkfs.ext4 /dev/loop0 && mount /dev/loop0 /mnt
  mobifs flash cut --keep random:1 card.img       # EIO from now on
  umount /mnt; mobifs flash power-on card.img     # says which loop device it is now

docs/FLASH-DEVICE.md says what becomes of FLUSH, FUA and discard on each way.";

const MATERIALISE_HELP: &str = "\
States are numbered by what had become durable: state 0 is before the first flush, state N
after flush (or power cut) N. Within a state,
  N       nothing that came after flush N survives
  N:all   everything up to the next flush survives
  N:SEED  the crash comes at a random moment; of what was not flushed, each write survives,
          or not, or is torn at sectors; the same seed gives the same image
The base is the image as it was when the journal began: copy it before serving.";

#[derive(Debug, Args)]
pub(crate) struct FlashArguments {
    #[command(subcommand)]
    pub(crate) command: FlashCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlashCommand {
    /// Serve an image as a block device that behaves like flash storage
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArguments),
    /// Show what a served device has counted: times, wear, energy
    Stats(StatsArguments),
    /// Cut the power of a served device now; it refuses everything until power-on
    Cut(CutArguments),
    /// Give a served device its power back
    PowerOn(PowerOnArguments),
    /// Make the image of a crash state from a journal
    #[command(after_help = MATERIALISE_HELP)]
    Materialise(MaterialiseArguments),
    /// Hold the model against published measurements
    #[command(after_help = validate::HELP)]
    Validate(ValidateArguments),
    /// Replay block traces on the model: latencies, hit rates, write amplification
    #[command(after_help = replay::HELP)]
    Replay(ReplayArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The device: microsd, emmc51 or ufs31
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub(crate) preset: Option<String>,
    /// The device, described in a file (TOML, as the presets are)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Size of the device, such as 4GiB; makes the image if it does not exist
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Real seconds for each second of the device: 1 as the device, 10 ten times slower, 0
    /// counts only and never waits
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub(crate) scale: Scale,
    /// Seed of everything that is random in the device (default 0)
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Record all writes and flushes, with their data, in a new file
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Serve NBD on this Unix socket
    #[arg(long, value_name = "SOCKET")]
    pub(crate) nbd: Option<PathBuf>,
    /// Set up a loop device (root only)
    #[arg(long = "loop")]
    pub(crate) loop_device: bool,
    /// Mount a directory with the device as a file in it
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Print JSON when the device can be used
    #[arg(long)]
    pub(crate) json: bool,
    /// File with the content of the device
    pub(crate) image: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image, its mount, its loop device, or what is mounted from that
    #[arg(value_name = "IMAGE|MOUNT")]
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CutArguments {
    /// What survives of data that was not flushed: none, all, or random:SEED (a random part;
    /// plain writes may be torn at sectors)
    #[arg(long, value_name = "WHAT", default_value = "none")]
    pub(crate) keep: Keep,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image, its mount, its loop device, or what is mounted from that
    #[arg(value_name = "IMAGE|MOUNT")]
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PowerOnArguments {
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image, its mount, its loop device, or what is mounted from that
    #[arg(value_name = "IMAGE|MOUNT")]
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MaterialiseArguments {
    /// The journal that `flash serve --journal` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: PathBuf,
    /// List the states and make nothing
    #[arg(long, conflicts_with_all = ["base", "at", "output"])]
    pub(crate) list: bool,
    /// The image as it was when the journal began
    #[arg(long, value_name = "IMAGE", required_unless_present = "list")]
    pub(crate) base: Option<PathBuf>,
    /// Which state
    #[arg(long, value_name = "N[:all|:SEED]", required_unless_present = "list")]
    pub(crate) at: Option<CrashState>,
    /// The image to make
    #[arg(value_name = "OUT", required_unless_present = "list")]
    pub(crate) output: Option<PathBuf>,
}
