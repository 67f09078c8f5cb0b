//! What lies below a directory: the filesystem, the device, and how long it takes to flush.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_host::MountEntry;
use rustix::fs::{Mode, OFlags};

use super::machine::Finding;

/// So often is flushed; the median counts.
const FLUSHES: usize = 5;
/// A device that takes longer in all is slow enough.
const MEASURING_MAX: Duration = Duration::from_secs(2);

/// What is found out about the place of a directory. `measures`: whether a file without a name may be
/// written there.
pub(super) fn findings(path: &Path, mount: &MountEntry, measures: bool) -> Vec<Finding> {
    let mut all = vec![filesystem(mount)];
    match block_device(mount).canonicalize() {
        Ok(device) => all.push(device_class(&device)),
        Err(_) => all.push(Finding::good(
            "device",
            "no block device of its own is below this filesystem",
        )),
    }
    if measures {
        all.push(flush(path));
    }
    all
}

/// What the kernel shows of the device of a filesystem, if it has one.
fn block_device(mount: &MountEntry) -> PathBuf {
    let (major, minor) = (mount.device_major, mount.device_minor);
    Path::new("/sys/dev/block").join(format!("{major}:{minor}"))
}

/// The type of a filesystem as the kernel's driver and its features make it: the driver of ext4 serves
/// ext2, too.
pub(super) fn kind_of(mount: &MountEntry) -> String {
    let device = block_device(mount).canonicalize().unwrap_or_default();
    let name = device.file_name().unwrap_or_default();
    let shown = Path::new("/sys/fs/ext4").join(name);
    let journal = fs::read_to_string(shown.join("journal_task")).unwrap_or_default();
    let has_no_journal = journal.trim() == "<none>";
    match mount.kind.as_str() {
        "ext4" if has_no_journal => "ext4 without a journal".to_owned(),
        kind => kind.to_owned(),
    }
}

fn filesystem(mount: &MountEntry) -> Finding {
    let (kind, place) = (kind_of(mount), mount.mountpoint.display());
    if kind == "ext4 without a journal" {
        return Finding::note(
            "filesystem",
            format!("{kind} at {place}: after a power cut it must be checked, and may lose files"),
            "`tune2fs -j DEVICE` while it is not mounted gives it one",
        );
    }
    Finding::good("filesystem", format!("{kind} at {place}"))
}

/// What a block device is, by its directory in `/sys`.
fn device_class(device: &Path) -> Finding {
    // A partition lies in its disk.
    let disk = match device.join("partition").exists() {
        true => device.parent().unwrap_or(device),
        false => device,
    };
    let name = disk
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let read = |file: &str| fs::read_to_string(disk.join(file)).unwrap_or_default();
    let is_rotating = read("queue/rotational").trim() == "1";
    let card = read("device/type");
    let cache = read("queue/write_cache");
    let class = class_of(&name, card.trim(), is_rotating);
    let cache = match cache.trim() {
        "write back" => ", with a cache that a power cut may empty",
        "write through" => ", which says that nothing it has taken can be lost",
        _ => "",
    };
    let found = format!("{name}: {class}{cache}");
    if card.trim() == "SD" {
        return Finding::note(
            "device",
            found,
            "cards wear out first by small writes: long age_max_ms pay most here",
        );
    }
    Finding::good("device", found)
}

fn class_of(name: &str, card: &str, is_rotating: bool) -> &'static str {
    match (name, card) {
        (_, "MMC") => "eMMC",
        (_, "SD") => "an SD card",
        (name, _) if name.starts_with("mmcblk") => "eMMC or an SD card",
        (name, _) if name.starts_with("nvme") => "NVMe flash",
        (name, _) if name.starts_with("zram") || name.starts_with("ram") => "memory",
        (name, _) if name.starts_with("loop") => "a file of another filesystem (loop)",
        (name, _) if name.starts_with("dm-") || name.starts_with("md") => "a mapped device",
        (name, _) if name.starts_with("vd") => "a virtual disk",
        _ if is_rotating => "a rotating disk, or one that does not say what it is",
        _ => "flash",
    }
}

fn flush(path: &Path) -> Finding {
    const TOPIC: &str = "flush";
    match measured(path) {
        Ok(median) => {
            let ms = median.as_secs_f64() * 1e3;
            let found = format!(
                "writing 4 KiB and flushing takes {ms:.2} ms (median of {FLUSHES}): what an fsync waits \
                 for on this filesystem, and on a relaxed app it does not"
            );
            if ms >= 50.0 {
                let advice = "durable apps will be slow here: keep them few";
                return Finding::note(TOPIC, found, advice);
            }
            Finding::good(TOPIC, found)
        }
        Err(why) => Finding::note(
            TOPIC,
            format!("it could not be measured: {why}"),
            "name a directory that this user may write to",
        ),
    }
}

/// The median time of a flush, with a file that never has a name.
fn measured(path: &Path) -> rustix::io::Result<Duration> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let to_errno = |error: std::io::Error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
    };
    let start = Instant::now();
    let mut times = Vec::with_capacity(FLUSHES);
    for n in 0..FLUSHES {
        let one = Instant::now();
        file.write_all_at(&[n as u8; 4096], 0).map_err(to_errno)?;
        file.sync_data().map_err(to_errno)?;
        times.push(one.elapsed());
        if start.elapsed() >= MEASURING_MAX {
            break;
        }
    }
    times.sort();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

/// Where a directory is mounted.
pub(super) fn place_of(path: &Path) -> Option<(PathBuf, MountEntry)> {
    let path = path.canonicalize().ok()?;
    let table = mobifs_host::mounts().ok()?;
    let mount = mobifs_host::mount_around(&path, &table)?.clone();
    Some((path, mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_apart_by_what_the_kernel_shows() {
        for (name, card, is_rotating, class) in [
            ("mmcblk0", "MMC", false, "eMMC"),
            ("mmcblk1", "SD", false, "an SD card"),
            ("mmcblk2", "", false, "eMMC or an SD card"),
            ("nvme0n1", "", false, "NVMe flash"),
            (
                "sda",
                "",
                true,
                "a rotating disk, or one that does not say what it is",
            ),
            ("sda", "", false, "flash"),
            ("zram1", "", false, "memory"),
            ("loop7", "", false, "a file of another filesystem (loop)"),
        ] {
            assert_eq!(class_of(name, card, is_rotating), class, "{name}");
        }
        let disk = tempfile::tempdir().unwrap();
        let partition = disk.path().join("mmcblk1/mmcblk1p2");
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), "2\n").unwrap();
        fs::create_dir(disk.path().join("mmcblk1/device")).unwrap();
        fs::write(disk.path().join("mmcblk1/device/type"), "SD\n").unwrap();
        let found = device_class(&partition);
        assert_eq!(found.found, "mmcblk1: an SD card");
        assert!(found.advice.is_some());
    }

    #[test]
    fn a_flush_is_measured_without_leaving_anything() {
        let directory = tempfile::tempdir().unwrap();
        let before = directory.path().metadata().unwrap().modified().unwrap();
        match measured(directory.path()) {
            Ok(median) => assert!(median < MEASURING_MAX),
            Err(errno) => assert_eq!(errno, rustix::io::Errno::OPNOTSUPP),
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        assert_eq!(
            directory.path().metadata().unwrap().modified().unwrap(),
            before
        );
        let absent = flush(&directory.path().join("absent"));
        assert!(absent.found.contains("could not be measured"), "{absent:?}");
    }
}
