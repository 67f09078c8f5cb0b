//! Whether a filesystem can be steered, in sentences. Changes nothing.

mod obstacle;
mod remedy;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_engine::{AppPolicy, TransactioningName};
use mobifs_host::{MountEntry, is_being_killed, mount_around, mounts, shell_path};
use mobifs_steered::{Claim, Steered};
use mobifs_volume::bytes;
use rustix::thread::{CapabilitySet, capabilities};

use crate::filesystem::{Ext4, Filesystem, NO_COW, Settings};
use crate::mount_options::MountOptions;
use crate::only;
use crate::order::ORDER_NOTE;
use crate::registered::{is_steered_in_part, registration};
use crate::takeover::Left;
pub use obstacle::{COMMIT_INTERVAL_MAX_S, Obstacle, commit_interval_s};
use remedy::is_root;
pub(crate) use remedy::{how_to_mount_with, unmounted};

/// A journal that takes no larger transactions than this would commit all the time.
pub const LARGEST_TRANSACTION_BYTES_MIN: u64 = 1 << 20;
/// How many times the largest transaction a journal of ext4 has to be: the kernel begins a commit when
/// the running transaction takes a third of it, or, if it is older, a quarter.
const JOURNAL_PARTS: u64 = 4;
/// The part of a filesystem that a journal should not exceed.
const JOURNAL_SHARE: u64 = 4;

/// The smallest journal that takes the smallest transaction that is worth it, and the one that is advised, in MiB.
const JOURNAL_MIB_MIN: u64 = (LARGEST_TRANSACTION_BYTES_MIN * JOURNAL_PARTS) >> 20;
const JOURNAL_MIB_ADVISED: u64 = 64;

/// How long a daemon may take to end that was killed: its locks go with its last thread.
const ENDING_MAX: Duration = Duration::from_secs(5);
const ENDING_PAUSE: Duration = Duration::from_millis(10);

const TWICE_NOTE: &str = "With data=journal content is written twice, to the journal and to its place; \
     give large media files another filesystem, or steer some directories alone (--only).";

/// A fault of the kernel, which no option mends (`docs/NATIVE.md#files-that-are-shortened-within-a-page`).
const SHORTENED_NOTE: &str = "A file that a program shortens to a size within a page (ftruncate), just while it \
     is being committed, may end with zeros after a power cut, or the mount may take `e2fsck -p` first, as on \
     any ext4 with data=journal: a fault of the kernel (docs/NATIVE.md).";

/// What is known of a place.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The mount, if the place has one.
    pub mount: Option<MountEntry>,
    /// The filesystem, if it is of a type that can be steered.
    pub filesystem: Option<Filesystem>,
    /// Why it cannot be steered as it is.
    pub obstacles: Vec<Obstacle>,
    /// What steering it will do, and what could be better.
    pub notes: Vec<String>,
    /// The directories that alone are to be steered; none: all of it.
    pub only: Vec<PathBuf>,
}

/// Looks at the filesystem of a directory. `is_mountpoint`: the directory has to be where it is
/// mounted; otherwise it may lie anywhere in it.
///
/// # Errors
/// The place cannot be looked at.
pub fn examine(
    path: &Path,
    policy: &AppPolicy,
    is_mountpoint: bool,
) -> Result<Examination, Obstacle> {
    let unreadable = |error: io::Error| Obstacle::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let place = path.canonicalize().map_err(unreadable)?;
    let table = mounts().map_err(unreadable)?;
    let mount = mount_around(&place, &table).ok_or_else(|| {
        unreadable(io::Error::new(
            io::ErrorKind::NotFound,
            "no mount of this process has it",
        ))
    })?;
    let mut examination = Examination {
        mount: Some(mount.clone()),
        filesystem: None,
        obstacles: Vec::new(),
        notes: Vec::new(),
        only: Vec::new(),
    };
    if is_mountpoint && mount.mountpoint != place {
        examination.obstacles.push(Obstacle::NotMountpoint {
            path: place,
            mountpoint: mount.mountpoint.clone(),
        });
        return Ok(examination);
    }
    let options = MountOptions::of(mount.id).map_err(unreadable)?;
    let options = options.unwrap_or_default();
    match Filesystem::of(mount).map_err(unreadable)? {
        None => examination.obstacles.push(Obstacle::Kind {
            path: mount.mountpoint.clone(),
            kind: mount.kind.clone(),
            why: obstacle::why_not(&mount.kind),
        }),
        Some(filesystem) => {
            let looked = Looked {
                mount,
                options: &options,
                policy,
                table: &table,
            };
            looked
                .look(&filesystem, &mut examination)
                .map_err(unreadable)?;
            examination.filesystem = Some(filesystem);
        }
    }
    Ok(examination)
}

/// Examines steering some directories alone.
///
/// # Errors
/// The place cannot be looked at.
pub fn examine_only(
    path: &Path,
    directories: &[PathBuf],
    policy: &AppPolicy,
    is_mountpoint: bool,
) -> Result<Examination, Obstacle> {
    let mut found = examine(path, policy, is_mountpoint)?;
    let (Some(mount), Some(filesystem)) = (&found.mount, &found.filesystem) else {
        return Ok(found);
    };
    if directories.is_empty() && !is_steered_in_part(mount) {
        return Ok(found);
    }
    // That the journal has no content of other files is what is wanted.
    let is_other = |obstacle: &Obstacle| !matches!(obstacle, Obstacle::DataMode { .. });
    found.obstacles.retain(is_other);
    if directories.is_empty() {
        found.notes.retain(|note| note != TWICE_NOTE);
        return Ok(found);
    }
    let looked = only::examine(mount, filesystem, directories);
    let (obstacles, places) = looked.map_err(|error| Obstacle::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    found
        .obstacles
        .extend(obstacles.into_iter().map(Obstacle::from));
    found.notes.retain(|note| note != TWICE_NOTE);
    for place in &places {
        found.notes.push(format!(
            "Content below {} is written twice, to the journal and to its place; a file that comes in by a \
             rename stays outside until it is steered anew.",
            place.display()
        ));
    }
    found.only = places;
    Ok(found)
}

/// A filesystem that may be steered, and what is to be promised.
struct Looked<'a> {
    mount: &'a MountEntry,
    options: &'a MountOptions,
    policy: &'a AppPolicy,
    table: &'a [MountEntry],
}

impl Looked<'_> {
    fn path(&self) -> PathBuf {
        self.mount.mountpoint.clone()
    }

    fn look(&self, filesystem: &Filesystem, examination: &mut Examination) -> io::Result<()> {
        let obstacles = &mut examination.obstacles;
        obstacles.extend(self.already_steered());
        obstacles.extend(self.part());
        if self.options.is_read_only() {
            obstacles.push(Obstacle::ReadOnly { path: self.path() });
        }
        match filesystem {
            Filesystem::Ext4(ext4) => self.look_at_ext4(ext4, filesystem, examination)?,
            Filesystem::Btrfs(_) => self.look_at_btrfs(filesystem, examination),
        }
        let obstacles = &mut examination.obstacles;
        obstacles.extend(self.breaking_option(filesystem)?);
        let age_max_ms = self.policy.age_max_ms;
        let interval_s = commit_interval_s(age_max_ms);
        obstacles.extend(interval_s.as_ref().err().cloned());
        if !is_permitted() {
            obstacles.push(Obstacle::NotPermitted { path: self.path() });
        }
        let now = filesystem.settings(self.mount.id)?;
        if let (Some(now), Ok(interval_s)) = (now, interval_s) {
            let wanted = filesystem.wanted(interval_s);
            // What steering restores: of a killed daemon that is what it found.
            let left = self.left_by_killed_daemon();
            let now = left.map_or(now.clone(), |left| left.before_given(&now));
            let note = self.changes_of_options(&wanted, &now);
            examination.notes.push(note);
            if let (Some(kib @ 1..), Some(0)) = (now.zeroing_kib, wanted.zeroing_kib) {
                examination.notes.push(format!(
                    "Steering sets extent_max_zeroout_kb in /sys/fs/ext4 to 0 and restores {kib} when it stops, so \
                     that the kernel writes no zeros past the journal."
                ));
            }
        }
        if self.policy.transactioning.name == TransactioningName::Tpl {
            examination.notes.push(
                "The kernel does not tell what is overwritten, so the policy \"tpl\" commits at the limits \
                 only."
                    .to_owned(),
            );
        }
        if self.options.filesystem.has("sync") {
            let word = shell_path(&self.mount.mountpoint);
            examination.notes.push(format!(
                "It is mounted with `sync`: every write waits for the device, which steering does not change. \
                 Without it only calls for durability would: `mount -o remount,async {word}`."
            ));
        }
        if self.left_by_killed_daemon().is_some() {
            let path = self.mount.mountpoint.display();
            let word = shell_path(&self.mount.mountpoint);
            examination.notes.insert(
                0,
                format!(
                    "The daemon that steered {path} is gone: `mobifs steer {word}` goes on with it, and \
                     `mobifs steer --stop {word}` restores its mount options."
                ),
            );
        }
        self.note_other_mounts(examination);
        Ok(())
    }

    fn changes_of_options(&self, wanted: &Settings, now: &Settings) -> String {
        let changes = wanted.changes(now);
        let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
        let (changes, now) = (changes.join(","), now.shown().join(","));
        // While a daemon steers it, what there is now is not what it restores.
        match (changes.is_empty(), registration(self.mount).is_some()) {
            (true, _) => "The mount options are as steering wants them.".to_owned(),
            (false, true) => format!(
                "With this configuration steering sets the mount options {changes}; now they are {now}."
            ),
            (false, false) => format!(
                "Steering sets the mount options {changes} and restores {now} when it stops."
            ),
        }
    }

    /// What a daemon has changed that was killed: nothing steers the filesystem any more.
    fn left_by_killed_daemon(&self) -> Option<Left> {
        registration(self.mount).is_none().then_some(())?;
        Left::of(self.mount)
    }

    fn breaking_option(&self, filesystem: &Filesystem) -> io::Result<Option<Obstacle>> {
        let path = self.path();
        let option = filesystem.breaking_option(self.options)?;
        Ok(option.map(|option| match option {
            NO_COW => Obstacle::NoCow { path },
            _ => Obstacle::NoBarriers {
                path,
                kind: filesystem.kind(),
            },
        }))
    }

    /// The registration of a daemon, unless that was killed a moment ago.
    fn living_registration(&self) -> Option<Steered> {
        let until = Instant::now() + ENDING_MAX;
        loop {
            let steered = registration(self.mount)?;
            if !is_being_killed(steered.record().pid()) || Instant::now() >= until {
                return Some(steered);
            }
            std::thread::sleep(ENDING_PAUSE);
        }
    }

    /// Who begins registers the filesystem, and then marks it; who ends takes the mark away last.
    fn already_steered(&self) -> Option<Obstacle> {
        let path = self.path();
        for look in 0..MARK_LOOKS {
            if look > 0 {
                std::thread::sleep(MARK_PAUSE);
            }
            if let Some(steered) = self.living_registration() {
                let pid = steered.record().pid();
                return Some(Obstacle::AlreadySteered { path, pid });
            }
            if !Claim::is_taken(&path) {
                return None;
            }
        }
        // Its note lies in this process's own /run.
        Some(match Left::of(self.mount) {
            Some(_) => Obstacle::Ending { path },
            // Its note went with the runtime directory, and is made again.
            None => match mobifs_host::daemon_here(&path) {
                Some(pid) => Obstacle::AlreadySteered { path, pid },
                None => Obstacle::SteeredOutOfReach { path },
            },
        })
    }

    fn part(&self) -> Option<Obstacle> {
        let whole = self.whole_mount();
        if whole.is_some_and(|whole| whole.id == self.mount.id) {
            return None;
        }
        Some(Obstacle::Part {
            path: self.path(),
            root: self.mount.root.clone(),
            whole: whole.map(|whole| whole.mountpoint.clone()),
        })
    }

    /// The mount that shows the whole filesystem: this one, or another. A btrfs is mounted with a subvolume as its
    /// root, which is not a part in this sense.
    fn whole_mount(&self) -> Option<&MountEntry> {
        let is_whole = |mount: &MountEntry, options: &MountOptions| {
            let subvolume = options.filesystem.value("subvol").map(Path::new);
            !mount.shows_a_part() || subvolume == Some(mount.root.as_path())
        };
        if is_whole(self.mount, self.options) {
            return Some(self.mount);
        }
        let others = self
            .table
            .iter()
            .filter(|other| other.has_device_of(self.mount));
        others.into_iter().find(|other| {
            let options = MountOptions::of(other.id)
                .ok()
                .flatten()
                .unwrap_or_default();
            is_whole(other, &options)
        })
    }

    fn note_other_mounts(&self, examination: &mut Examination) {
        let others = self
            .table
            .iter()
            .filter(|other| other.has_device_of(self.mount) && other.id != self.mount.id);
        let others: Vec<_> = others
            .map(|other| other.mountpoint.display().to_string())
            .collect();
        if !others.is_empty() {
            examination.notes.push(format!(
                "The same filesystem is also mounted at {}: what holds for one mount holds for all.",
                others.join(", ")
            ));
        }
    }

    fn look_at_ext4(
        &self,
        ext4: &Ext4,
        filesystem: &Filesystem,
        examination: &mut Examination,
    ) -> io::Result<()> {
        let device = self.device_of(ext4);
        let obstacles = &mut examination.obstacles;
        let options = ext4.options()?;
        if !ext4.has_journal() {
            obstacles.push(match self.journal_mib() {
                Some(mib) => Obstacle::NoJournal {
                    path: self.path(),
                    device,
                    mib,
                },
                None => self.too_small(),
            });
            return Ok(());
        }
        let mode = options.value("data").unwrap_or("ordered");
        if mode != "journal" {
            obstacles.push(Obstacle::DataMode {
                path: self.path(),
                mode: mode.to_owned(),
                advice: self.how_to_journal_data(&device),
            });
        }
        if let Some(largest) = filesystem.largest_transaction_bytes() {
            self.compare_with_journal(largest, device, examination);
        }
        Ok(())
    }

    /// A root filesystem that the kernel has mounted is of `/dev/root`, which does not exist.
    fn device_of(&self, ext4: &Ext4) -> String {
        if self.mount.source.exists() {
            return self.mount.source.display().to_string();
        }
        format!("/dev/{}", ext4.name())
    }

    fn how_to_journal_data(&self, device: &str) -> String {
        // A bind mount of a part has the options of the filesystem's own mount.
        let whole = self.whole_mount().map(|whole| &*whole.mountpoint);
        if whole.is_some_and(is_root) {
            return format!(
                "`tune2fs -o journal_data {device}` or `rootflags=data=journal` on the kernel's command \
                 line, then restart the machine"
            );
        }
        let path = whole.unwrap_or(Path::new("MOUNTPOINT")).display();
        format!(
            "unmount it and mount it with `-o data=journal`, in /etc/fstab `{device} {path} {} \
             data=journal 0 2`, or make that its default with `tune2fs -o journal_data {device}`",
            self.mount.kind
        )
    }

    fn compare_with_journal(&self, largest: u64, device: String, examination: &mut Examination) {
        if largest < LARGEST_TRANSACTION_BYTES_MIN {
            examination.obstacles.push(match self.journal_mib() {
                Some(mib) => Obstacle::JournalTooSmall {
                    path: self.path(),
                    device,
                    largest_kib: largest >> 10,
                    least_kib: LARGEST_TRANSACTION_BYTES_MIN >> 10,
                    mib,
                },
                None => self.too_small(),
            });
            return;
        }
        let wanted = bytes(self.policy.staleness_max_pages);
        if largest < wanted {
            let mib = |bytes: u64| bytes >> 20;
            examination.notes.push(format!(
                "The journal takes transactions of {} MiB at the most, and the configuration lets {} MiB \
                 collect (staleness_max_bytes): the kernel commits when a transaction is full, which is \
                 safe and writes more; {}.",
                mib(largest),
                mib(wanted),
                self.how_to_enlarge_journal(largest, wanted, &device),
            ));
        }
        examination.notes.push(TWICE_NOTE.to_owned());
        examination.notes.push(SHORTENED_NOTE.to_owned());
    }

    /// How many MiB a new journal should have; none: the filesystem has no room for one.
    fn journal_mib(&self) -> Option<u64> {
        let mib = (self.whole_bytes() / JOURNAL_SHARE) >> 20;
        (mib >= JOURNAL_MIB_MIN).then_some(mib.min(JOURNAL_MIB_ADVISED))
    }

    fn too_small(&self) -> Obstacle {
        Obstacle::TooSmall {
            path: self.path(),
            mib: self.whole_bytes() >> 20,
            journal_mib: JOURNAL_MIB_MIN,
        }
    }

    fn whole_bytes(&self) -> u64 {
        let whole = rustix::fs::statvfs(&self.mount.mountpoint);
        whole.map_or(0, |found| found.f_blocks.saturating_mul(found.f_frsize))
    }

    /// A journal takes its room from the filesystem: on a small one the configuration gives way.
    fn how_to_enlarge_journal(&self, largest: u64, wanted: u64, device: &str) -> String {
        let share = self.whole_bytes() / JOURNAL_SHARE;
        let journal = wanted.saturating_mul(JOURNAL_PARTS);
        if journal <= share {
            let mib = journal >> 20;
            return format!(
                "for all of it the journal needs {mib} MiB ({}: `tune2fs -O ^has_journal {device}`, \
                 `tune2fs -J size={mib} {device}`)",
                unmounted(&self.mount.mountpoint)
            );
        }
        format!(
            "a journal for all of it would take more than a quarter of this filesystem, so set \
             staleness_max_bytes = {largest} instead"
        )
    }

    fn look_at_btrfs(&self, filesystem: &Filesystem, examination: &mut Examination) {
        examination.notes.push(format!("Note: {ORDER_NOTE}."));
        let late_ms = filesystem.age_before_transaction_ms();
        examination.notes.push(format!(
            "If the daemon is killed, the age that a power cut takes grows by up to {} s, because btrfs \
             takes content into a transaction only when the kernel begins to write it \
             (vm.dirty_expire_centisecs).",
            late_ms.div_ceil(1000)
        ));
    }
}

/// How often, and after which pause, a mark is looked at again: of a process that ends it may go after the
/// registration.
const MARK_LOOKS: u32 = 20;
const MARK_PAUSE: Duration = Duration::from_millis(25);

/// Whether a daemon has steered the filesystem that was killed, and has left its mount options.
pub fn is_left_steered(mount: &MountEntry) -> bool {
    registration(mount).is_none() && Left::of(mount).is_some()
}

fn is_permitted() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_sentence() {
        for kind in [
            "xfs",
            "f2fs",
            "tmpfs",
            "overlay",
            "vfat",
            "fuse.mobifs",
            "nfs",
            "ext2",
            "proc",
        ] {
            let why = obstacle::why_not(kind);
            assert!(!why.ends_with('.') && !why.contains('\n'), "{why}");
        }
    }

    /// The filesystem that the machine runs from was to be unmounted.
    #[test]
    fn the_root_is_never_to_be_unmounted() {
        let of = |path: &str| {
            let (path, device) = (PathBuf::from(path), "/dev/sda1".to_owned());
            let no_journal = Obstacle::NoJournal {
                path: path.clone(),
                device: device.clone(),
                mib: 64,
            };
            let too_small = Obstacle::JournalTooSmall {
                path: path.clone(),
                device: device.clone(),
                largest_kib: 1,
                least_kib: 2,
                mib: 64,
            };
            let late = only::OnlyObstacle::DelayedAllocation { path: path.clone() };
            let fast = only::OnlyObstacle::FastCommit { path, device };
            [no_journal, too_small, late.into(), fast.into()].map(|obstacle| obstacle.to_string())
        };
        for said in of("/") {
            assert!(!said.contains("unmount"), "{said}");
            let advice = ["restart the machine", "rescue system"];
            assert!(advice.iter().any(|way| said.contains(way)), "{said}");
        }
        for said in of("/data") {
            assert!(said.contains("unmount"), "{said}");
        }
    }
}
