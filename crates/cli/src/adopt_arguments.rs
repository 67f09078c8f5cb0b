//! Arguments of `mobifs adopt` and `mobifs unadopt`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(crate) const ADOPT_HELP: &str = "\
Nothing is copied: the directory is renamed to DIR.mobifs-store, and mounted under its own name.
Programs that use it end first, or --at-boot leaves it to the next start of the machine. A kill or a
power cut on the way loses nothing: the same command goes on, and `mobifs unadopt` goes back.

docs/RECIPES.md has ~/.cache, browsers, /var/log, homes, volumes of containers.";

#[derive(Debug, Args)]
pub(crate) struct AdoptArguments {
    /// Only say what would be done, and what is in the way
    #[arg(long, group = "report")]
    pub(crate) dry_run: bool,
    /// List the directories that this user has adopted
    #[arg(long, group = "report", conflicts_with_all = ["dry_run", "at_boot", "config", "options", "boot", "directory"])]
    pub(crate) list: bool,
    /// With --list: those of all users, for root
    #[arg(long, requires = "list", conflicts_with = "directory")]
    pub(crate) all_users: bool,
    /// The list, or what would be done, as JSON
    #[arg(long, requires = "report")]
    pub(crate) json: bool,
    /// Do it when the machine, or the session of an ordinary user, starts next, before programs use the directory
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) at_boot: bool,
    /// What mounts it at the next start
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    pub(crate) boot: BootChoice,
    /// Configuration file, as for `mobifs mount`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Mount options, as for `mobifs mount`; may be repeated
    #[arg(short = 'o', value_name = "OPT,...")]
    pub(crate) options: Vec<String>,
    /// For the unit: bring to its end what was cut short
    #[arg(long, hide = true)]
    pub(crate) finish: bool,
    /// Directory of the adoption records
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
    /// The directory
    #[arg(required_unless_present = "list")]
    pub(crate) directory: Option<PathBuf>,
}

/// What mounts an adopted directory when the machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BootChoice {
    /// A unit where systemd runs; otherwise for root a file for dist/init/S50mobifs.
    Auto,
    /// A unit of systemd; of the user's own where the user is not root.
    Systemd,
    /// A file for dist/init/S50mobifs.
    Init,
    /// Nothing.
    None,
}

#[derive(Debug, Args)]
pub(crate) struct UnadoptArguments {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Directory of the adoption records
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
    /// The directory
    pub(crate) directory: PathBuf,
}
