//! What a mount is to be.

use std::path::PathBuf;
use std::time::Duration;

use mobifs_fuse::{AccessTimes, MountOptions};
use mobifs_volume::{Arena, OpenOptions, VolumeOptions};

use super::history;
use crate::config_text::ConfigText;
use crate::mount_paths::MountPaths;

/// How long to wait before trying again to commit what could not be committed.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Everything that a mount needs to know.
#[derive(Debug)]
pub struct Plan {
    /// Store and mount point.
    pub paths: MountPaths,
    /// For the kernel.
    pub mount: MountOptions,
    /// Whether the mount table's source was named by the user.
    pub has_source_name: bool,
    /// How long to wait for a daemon whose mount of the store has ended and that still brings
    /// its changes there.
    pub wait: Duration,
    /// The configuration in force.
    pub config: ConfigText,
    /// Where it is read again from.
    pub config_file: Option<PathBuf>,
    /// The trace that what programs do is recorded as; an absolute path.
    pub record: Option<PathBuf>,
}

pub(super) fn open_options(plan: &Plan) -> OpenOptions<'_> {
    OpenOptions {
        read_only: plan.mount.read_only,
        ..OpenOptions::new(&plan.config.config)
    }
}

pub(super) fn volume_options(plan: &Plan, arena: Option<&Arena>) -> VolumeOptions {
    let mount = &plan.mount;
    VolumeOptions {
        read_only: mount.read_only,
        no_access_time: mount.access_times == AccessTimes::Never,
        no_directory_access_time: mount.no_directory_access_times,
        arena: arena.cloned(),
        applied: history::of_store(
            &plan.paths.store,
            &plan.config.config.history,
            mount.read_only,
        ),
        ..VolumeOptions::new(&plan.config.config)
    }
}

pub(super) fn mount_options(plan: &Plan) -> MountOptions {
    let mut options = plan.mount.clone();
    if !plan.has_source_name {
        options.source_name = plan.paths.store.to_string_lossy().into_owned();
    }
    options
}
