//! The arguments of `mobifs history` and `mobifs restore`.

use std::path::PathBuf;

use clap::Args;

pub(crate) const HISTORY_HELP: &str = "\
Only snapshots that MobiFS has taken of this filesystem are listed and deleted. Deleted ones are gone for
good when the command returns, also after a power cut; the kernel gives back their room in the background.
docs/HISTORY.md says what a snapshot has, and what it does not.";

pub(crate) const RESTORE_HELP: &str = "\
Content is shared with the snapshot where the filesystem can (reflinks). docs/HISTORY.md says what a
snapshot has, and what it does not.";

#[derive(Debug, Args)]
pub(crate) struct HistoryArguments {
    /// Delete this snapshot, by its time as it is listed; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "older_than")]
    pub(crate) delete: Vec<String>,
    /// Delete all snapshots that are older (90s, 10min, 2h, 3d)
    #[arg(long, value_name = "AGE")]
    pub(crate) older_than: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The filesystem: where it is mounted, or any directory in it
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["to", "in_place"]))]
pub(crate) struct RestoreArguments {
    /// The last snapshot at or before this moment: with its time zone (2026-11-27T16:30:00Z), a name
    /// that `mobifs history` shows, or how long ago (-90s, -10min, -2h, -3d)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: String,
    /// Only this directory: its path relative to the mount
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<PathBuf>,
    /// Only snapshots that are one point in time
    #[arg(long)]
    pub(crate) exact: bool,
    /// Copy to this directory, which must not be there, or be empty
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Put it in the place of what is there now, which is kept as NAME.before-restore-TIME; nothing
    /// may use it
    #[arg(long, requires = "app", conflicts_with = "to")]
    pub(crate) in_place: bool,
    /// The filesystem: where it is mounted, or any directory in it
    pub(crate) mountpoint: PathBuf,
}
