//! What a session has recorded.

use std::path::PathBuf;

use mobifs_base::VirtualNs;
use mobifs_device_server::Scale;

use super::oracle::{Commit, Log};
use crate::disk::Disk;
use crate::history::boottime_ns;
use crate::trouble::Trouble;

/// When the clock of the device showed what.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceClock {
    boottime_ns: u64,
    device_ns: u64,
    scale: f64,
}

impl DeviceClock {
    pub(super) fn read(disk: &Disk, scale: Scale) -> Result<Self, Trouble> {
        // In this order a cut is taken for earlier than it was: what had returned by then had
        // returned in truth.
        let boottime_ns = boottime_ns();
        Ok(Self {
            boottime_ns,
            device_ns: disk.device_now()?.0,
            scale: scale.factor(),
        })
    }

    pub(super) fn boottime_ns(self, device: VirtualNs) -> u64 {
        let since = (device.0 as f64 - self.device_ns as f64) * self.scale;
        (self.boottime_ns as f64 + since) as u64
    }

    /// What the device's clock shows at a moment.
    pub(super) fn device(self, boottime_ns: u64) -> VirtualNs {
        let since = (boottime_ns as f64 - self.boottime_ns as f64) / self.scale;
        VirtualNs((self.device_ns as f64 + since) as u64)
    }
}

/// What happened.
pub(super) struct Recorded {
    /// The filesystem as it was when the device's journal began.
    pub(super) base: PathBuf,
    /// The device's journal.
    pub(super) journal: PathBuf,
    pub(super) clock: DeviceClock,
    pub(super) logs: Vec<Log>,
    pub(super) commits: Vec<Commit>,
    pub(super) snapshots: Vec<Listed>,
    /// Processes of supervisors that were killed.
    pub(super) supervisor_kills: u64,
    /// When all writers were at work, and when nothing steered any more.
    pub(super) during: std::ops::Range<VirtualNs>,
}

/// Snapshots that there were before a commit that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) names: Vec<String>,
    /// When it had returned.
    pub(super) returned_ns: u64,
}
