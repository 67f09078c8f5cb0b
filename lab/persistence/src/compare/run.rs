//! One round of one arm.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mobifs_base::VirtualNs;
use mobifs_workloads::workload::background::{self, Job};
use mobifs_workloads::workload::sqlite::{JournalMode, Statement, prepare, reopen};
use mobifs_workloads::workload::{Limit, Measured};

use super::{Arm, CompareOptions, Cost};
use crate::disk::{DeviceCounts, Disk, DiskOptions, Under};
use crate::error::PersistError;
use crate::live::stream::{self, Again, Found, ModelTimes, Window};
use crate::mobifs_mount::MobifsMount;

/// A cell whose transactions take longer has fewer of them. Beside a program that writes all it
/// can, one of `data=journal` takes seconds.
const CELL_TIME_MAX: Duration = Duration::from_secs(60);

/// What is known of a cell before the log of commands is read.
struct Measurement {
    mode: JournalMode,
    statement: Statement,
    measured: Measured,
    device: DeviceCounts,
    /// Commits on a real disk, counted by the filesystem.
    commits: Option<u64>,
    /// What MobiFS has counted of its journal.
    journal: Option<JournalCounts>,
    window: Window,
}

/// Some of what `mobifs status` shows as `store.journal`.
#[derive(Clone, Copy)]
struct JournalCounts {
    blocks: u64,
    pages: u64,
    whole_pages: u64,
    control_bytes: u64,
}

impl JournalCounts {
    fn of(mount: &MobifsMount) -> Result<Self, PersistError> {
        let status = mount.status()?;
        let field = |name: &str| {
            let value = status.pointer("/store/journal").and_then(|of| of.get(name));
            let value = value.and_then(serde_json::Value::as_u64);
            value.ok_or_else(|| PersistError::Unexpected(format!("no {name} in {status}")))
        };
        Ok(Self {
            blocks: field("blocks")?,
            pages: field("pages")?,
            whole_pages: field("whole_pages")?,
            control_bytes: field("control_bytes")?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            blocks: self.blocks - before.blocks,
            pages: self.pages - before.pages,
            whole_pages: self.whole_pages - before.whole_pages,
            control_bytes: self.control_bytes - before.control_bytes,
        }
    }

    fn whole_pages_percent(&self) -> f64 {
        percent(self.whole_pages, self.pages)
    }

    fn control_percent(&self) -> f64 {
        percent(self.control_bytes, self.blocks * 4096)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// All cells of an arm, on one new filesystem.
pub(super) fn arm(
    options: &CompareOptions,
    arm: &Arm,
) -> Result<Vec<(JournalMode, Statement, Cost)>, PersistError> {
    let mut disk = Disk::new(&DiskOptions {
        under: options.under.clone(),
        image: None,
        size_bytes: options.size_bytes,
        mkfs: arm.mkfs.clone(),
        mount: arm.mount.clone(),
        scratch: options.scratch.clone(),
    })?;
    let mut mount = mount_mobifs(options, arm, &disk)?;
    let root = mount
        .as_ref()
        .map_or_else(|| disk.root(), |mount| mount.path().to_owned());
    let mut measurements = Vec::new();
    for &mode in &options.modes {
        for &statement in &options.statements {
            if options.stop.load(Ordering::Relaxed) {
                return Err(PersistError::Interrupted);
            }
            let directory = root.join(format!("{}-{}", mode.name(), statement.name()));
            measurements.push(cell(
                options,
                &mut disk,
                mount.as_mut(),
                &directory,
                (mode, statement),
            )?);
        }
    }
    if let Some(mount) = &mut mount {
        mount.unmount()?;
    }
    drop(mount);
    let windows: Vec<Window> = measurements
        .iter()
        .map(|measurement| measurement.window)
        .collect();
    let found = match disk.finish()? {
        Some(finished) => {
            let again = again(options)?;
            let found = stream::read(&finished.commands, None, &windows, again.as_ref())?;
            found.into_iter().map(Some).collect()
        }
        None => vec![None; windows.len()],
    };
    let cells = measurements.iter().zip(&found).map(|(measurement, found)| {
        let cost = cost(measurement, found.as_ref(), arm);
        (measurement.mode, measurement.statement, cost)
    });
    Ok(cells.collect())
}

/// The model, for the time of the commands without anything else.
fn again(options: &CompareOptions) -> Result<Option<Again>, PersistError> {
    let Under::Model { preset, .. } = &options.under else {
        return Ok(None);
    };
    Ok(Some(Again {
        config: preset.config()?,
        capacity_bytes: options.size_bytes,
    }))
}

fn mount_mobifs(
    options: &CompareOptions,
    arm: &Arm,
    disk: &Disk,
) -> Result<Option<MobifsMount>, PersistError> {
    let Some(config) = &arm.mobifs else {
        return Ok(None);
    };
    let program: PathBuf = options
        .mobifs
        .clone()
        .map_or_else(crate::tool::mobifs, Ok)?;
    let mountpoint = disk.beside("mobifs")?;
    MobifsMount::new(&program, &disk.root().join("store"), &mountpoint, config).map(Some)
}

fn cell(
    options: &CompareOptions,
    disk: &mut Disk,
    mut mount: Option<&mut MobifsMount>,
    directory: &Path,
    (mode, statement): (JournalMode, Statement),
) -> Result<Measurement, PersistError> {
    fs::create_dir(directory).map_err(PersistError::io(directory))?;
    let mut prepared = prepare(directory, mode, statement)?;
    if let Some(mount) = &mount {
        mount.sync()?;
    }
    disk.sync()?;
    if options.is_cold {
        drop(prepared);
        mount_again(disk, mount.as_deref_mut())?;
        prepared = reopen(directory, mode, statement)?;
    }
    let (disk, mount) = (&*disk, mount.as_deref());
    let beside = directory.join("background");
    let job = options.background.map(|job| {
        fs::create_dir(&beside).map_err(PersistError::io(&beside))?;
        Ok::<_, PersistError>(background::start(&beside, job)?)
    });
    let job = job.transpose()?;
    let commits = commits(options, disk, mount)?;
    let journal = mount.map(JournalCounts::of).transpose()?;
    let (before, begin) = (disk.counts()?, disk.now());
    let limit = Limit {
        operations: Some(options.operations),
        time: Some(CELL_TIME_MAX),
    };
    let measured = prepared.run(limit)?;
    let (end, after) = (disk.now(), disk.counts()?);
    let commits_after = self::commits(options, disk, mount)?;
    let journal_after = mount.map(JournalCounts::of).transpose()?;
    if let Some(job) = job {
        job.stop()?;
        // Those of all cells do not fit on the disk together.
        fs::remove_dir_all(&beside).map_err(PersistError::io(&beside))?;
    }
    Ok(Measurement {
        mode,
        statement,
        measured,
        device: after.since(&before),
        commits: commits_after
            .zip(commits)
            .map(|(after, before)| after.saturating_sub(before)),
        journal: journal_after
            .zip(journal)
            .map(|(after, before)| after.since(&before)),
        window: Window {
            begin,
            end: VirtualNs(end.0.max(begin.0)),
        },
    })
}

/// Nothing of the filesystems is in memory after it.
fn mount_again(disk: &mut Disk, mount: Option<&mut MobifsMount>) -> Result<(), PersistError> {
    let Some(mount) = mount else {
        return disk.remount();
    };
    mount.unmount()?;
    disk.remount()?;
    mount.mount()
}

/// Commits that the filesystem has counted; only where there is no log of commands.
fn commits(
    options: &CompareOptions,
    disk: &Disk,
    mount: Option<&MobifsMount>,
) -> Result<Option<u64>, PersistError> {
    if matches!(options.under, Under::Model { .. }) {
        return Ok(None);
    }
    if let Some(mount) = mount {
        let status = mount.status()?;
        return Ok(status
            .pointer("/store/commits")
            .and_then(serde_json::Value::as_u64));
    }
    let device = disk.device()?;
    let name = device
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let jbd2 = Path::new("/proc/fs/jbd2").join(format!("{name}-8"));
    let ext4 = Path::new("/proc/fs/ext4").join(name);
    if !jbd2.exists() {
        // It has no journal.
        return Ok(ext4.exists().then_some(0));
    }
    let transactions = fs::read_to_string(jbd2.join("info")).ok();
    let fast = match fs::read_to_string(ext4.join("fc_info")) {
        Ok(text) => fast_commits(&text),
        // This kernel has none.
        Err(error) if error.kind() == ErrorKind::NotFound => Some(0),
        Err(_) => None,
    };
    let transactions = transactions.as_deref().and_then(first_number);
    Ok(transactions.zip(fast).map(|(full, fast)| full + fast))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// From `/proc/fs/ext4/*/fc_info`.
fn fast_commits(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    first_number(lines.find(|line| line.trim_end().ends_with(" commits"))?)
}

fn cost(measurement: &Measurement, found: Option<&Found>, arm: &Arm) -> Cost {
    let operations = measurement.measured.operations.max(1) as f64;
    let each = |count: u64| count as f64 / operations;
    let of_found = found.map(|found| match (&found.mobifs, &found.ext4) {
        _ if arm.mobifs.is_some() => {
            let mobifs = found.mobifs.as_ref();
            let blocks = mobifs.map_or(0, |mobifs| mobifs.journal_bytes / 4096);
            (mobifs.map_or(0, |mobifs| mobifs.commits), blocks)
        }
        (_, Some(ext4)) => {
            let blocks = found.device.journal_written_bytes / 4096;
            (ext4.commits + ext4.fast_commits, blocks)
        }
        (_, None) => (0, 0),
    });
    let model = found.and_then(|found| found.model);
    let model_ms = |of: &dyn Fn(&ModelTimes) -> u64| Some(of(&model?) as f64 / 1e6 / operations);
    Cost {
        model_ms: model_ms(&|times| times.plain_ns),
        // With flushes asked for there are none that a durable write would replace.
        model_durable_writes_ms: model_ms(&|times| match arm.has_durable_writes {
            true => times.durable_writes_ns,
            false => times.plain_ns,
        }),
        per_second: measurement.measured.per_second,
        p99_ms: measurement.measured.p99_microseconds.unwrap_or(0.0) / 1e3,
        commits: of_found
            .map(|(commits, _)| commits)
            .or(measurement.commits)
            .map(each),
        journal_blocks: of_found.map(|(_, blocks)| each(blocks)),
        whole_pages_percent: measurement.journal.map(|of| of.whole_pages_percent()),
        control_percent: measurement.journal.map(|of| of.control_percent()),
        flushes: each(measurement.device.flushes),
        written_bytes: each(measurement.device.written_bytes),
        programmed_bytes: measurement.device.programmed_bytes.map(each),
        energy_mj: measurement
            .device
            .energy_mj
            .map(|energy| energy / operations),
    }
}

pub(super) fn name_of_job(job: Job) -> String {
    match job {
        Job::Trees => "directories and files made and removed (fdtree)".to_owned(),
        Job::Blocks { file_bytes } => {
            format!("4 KiB writes into a file of {} MiB", file_bytes >> 20)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_commits_are_read_from_what_the_kernel_shows() {
        let text = "fc stats:\n31 commits\n1 ineligible\n33 numblks\n11330us avg_commit_time\n";
        assert_eq!(fast_commits(text), Some(31));
        assert_eq!(fast_commits("fc stats:\n"), None);
        assert_eq!(first_number("7 transactions (1 requested)"), Some(7));
    }
}
