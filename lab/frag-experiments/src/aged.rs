//! Filesystems that are aged by large and small files (S4 §4.3 and §5.2), by `mobifs-ageing`.

use std::fs::File;
use std::ops::ControlFlow;

use mobifs_ageing::fill::{self, Ageing, Procedure, Utilisation};
use mobifs_ageing::{AgeError, Space};
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use crate::degrees::measured;
use crate::disk::Disk;
use crate::error::FragError;
use crate::settings::Settings;

/// What the experiments reserve at most.
const LARGE_BYTES: u64 = 512 << 10;

/// A state that an experiment begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// Just made.
    Low,
    /// Less than 80 % used.
    Moderate,
    /// 80 to 95 %.
    High,
    /// More than 95 %.
    Full,
    /// At High, without holes (§5.2).
    None,
    /// At High, with holes of 64 KB (§5.2).
    Holes64,
    /// At High, with holes of 8 KB (§5.2).
    Holes8,
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Low => "Low",
            Self::Moderate => "Moderate",
            Self::High => "High",
            Self::Full => "Full",
            Self::None => "No",
            Self::Holes64 => "Moderate (64 KB)",
            Self::Holes8 => "Severe (8 KB)",
        }
    }

    fn procedure(self, seed: u64, disk_bytes: u64, is_written: bool) -> Procedure {
        Procedure {
            large_is_written: is_written,
            ..self.plan(seed, disk_bytes)
        }
    }

    fn plan(self, seed: u64, disk_bytes: u64) -> Procedure {
        // S4 deleted 500 MB on phones of 16 to 32 GB; of a smaller disk it would be all there is.
        let deleted = (disk_bytes / 20).min(500_000_000);
        match self {
            Self::Low => Procedure::new(seed, Utilisation::Low),
            Self::Moderate => Procedure::new(seed, Utilisation::Moderate),
            Self::High => Procedure::new(seed, Utilisation::High),
            Self::Full => Procedure::new(seed, Utilisation::Full),
            Self::None => Procedure::aged(seed, Ageing::None, disk_bytes, deleted),
            Self::Holes64 => Procedure::aged(seed, Ageing::Moderate, disk_bytes, deleted),
            Self::Holes8 => Procedure::aged(seed, Ageing::Severe, disk_bytes, deleted),
        }
    }
}

/// What free room is like.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Free {
    pub(crate) used_share: f64,
    pub(crate) extents: u64,
    pub(crate) mean_bytes: f64,
    /// Free extents of more than 512 KiB.
    pub(crate) large_extents: u64,
}

/// Brings a filesystem that was just made into a state, and looks at the free room that this leaves. Large files
/// get their room and are not written: where they lie is what matters.
pub(crate) fn age(disk: &Disk, state: State, settings: &Settings) -> Result<Free, FragError> {
    age_with(disk, state, false, settings)
}

/// As [`age`], with large files written, for what is timed: the device is as full as the filesystem.
pub(crate) fn age_written(
    disk: &Disk,
    state: State,
    settings: &Settings,
) -> Result<Free, FragError> {
    age_with(disk, state, true, settings)
}

fn age_with(
    disk: &Disk,
    state: State,
    is_written: bool,
    settings: &Settings,
) -> Result<Free, FragError> {
    if state != State::Low {
        let procedure = state.procedure(settings.seed, disk.size_bytes(), is_written);
        let mut watch = |_| match settings.check() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let filled = fill::run(&disk.root(), &procedure, &mut watch);
        if let Err(AgeError::Cancelled) = filled {
            return Err(FragError::Interrupted);
        }
        filled?;
        // Deleted room can be allocated after a commit only.
        disk.sync()?;
    }
    free(disk)
}

/// Has a file take all free extents of more than 512 KiB; what free room is like then.
pub(crate) fn take_large_extents(disk: &Disk, settings: &Settings) -> Result<Free, FragError> {
    const STEP_BYTES: u64 = LARGE_BYTES + 4096;
    let path = disk.root().join("large-extents");
    let at = |error| FragError::io(&path, error);
    let file = File::create(&path).map_err(at)?;
    let mut reserved = 0;
    loop {
        settings.check()?;
        disk.sync()?;
        let found = free(disk)?;
        // The allocator prefers extents of that size, so that this ends long before room does.
        if found.large_extents == 0 {
            return Ok(found);
        }
        fallocate(&file, FallocateFlags::KEEP_SIZE, reserved, STEP_BYTES)
            .map_err(|errno| at(errno.into()))?;
        reserved += STEP_BYTES;
    }
}

/// What free room is like now.
pub(crate) fn free(disk: &Disk) -> Result<Free, FragError> {
    let empty = disk.root().join("lost+found");
    let report = measured(&[empty])?.report;
    let free = report.filesystems.first();
    let free = free.and_then(|one| one.free.as_ref());
    let free = free.ok_or(FragError::NoResult("the kernel does not report free room"))?;
    let large = free.sizes.iter().filter(|size| {
        // The entry holds what is above half of its bound.
        size.bytes_max.is_none_or(|most| most > LARGE_BYTES)
    });
    Ok(Free {
        used_share: f64::from(Space::of(&disk.root())?.used_permille()) / 1e3,
        extents: free.extents,
        mean_bytes: free.mean_bytes.unwrap_or(0.0),
        large_extents: large.map(|size| size.extents).sum(),
    })
}
