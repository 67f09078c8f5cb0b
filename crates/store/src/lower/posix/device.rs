//! Which device a filesystem is on, as `/sys` describes it.
//!
//! The kernel's names (`sda`, `nvme0n1`) change from one start of the machine to the next, so an
//! identity is made of what the device says of itself: model, serial number, size.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, fstatfs, major, minor};

use super::{magic, metadata};

const SECTOR_BYTES: u64 = 512;
/// Devices may lie on others: encryption on a volume on a RAID on a partition.
const DEPTH_MAX: usize = 6;
/// Kinds of disks, by the beginnings of their names.
const KINDS: [(&str, &str); 8] = [
    ("mmcblk", "eMMC or SD card"),
    ("nvme", "NVMe disk"),
    ("xvd", "virtual disk"),
    ("vd", "virtual disk"),
    ("sd", "disk"),
    ("zram", "memory (zram)"),
    ("ram", "memory (ram)"),
    ("nbd", "network block device"),
];

/// The device of the filesystem of this directory; none where it has none, or the kernel does not say.
pub(super) fn identity(directory: &File) -> Option<String> {
    let f_type = fstatfs(directory).ok()?.f_type;
    if magic::magic(f_type) == magic::BTRFS_MAGIC {
        // Its directories have device numbers of no device.
        let shown = metadata::btrfs_directory(directory.as_fd())?;
        return all_of(&shown.join("devices"), 0);
    }
    let device = fstat(directory).ok()?.st_dev;
    let name = format!("{}:{}", major(device), minor(device));
    of_device(&Path::new("/sys/dev/block").join(name), 0)
}

/// The identity of the devices that are linked in a directory.
fn all_of(links: &Path, depth: usize) -> Option<String> {
    let links = fs::read_dir(links).ok()?.flatten();
    let mut all: Vec<String> = Vec::new();
    for link in links {
        all.push(of_device(&link.path(), depth)?);
    }
    all.sort();
    (!all.is_empty()).then(|| all.join(" + "))
}

/// The identity of one block device; `device` is its directory in `/sys`, or a link to that.
fn of_device(device: &Path, depth: usize) -> Option<String> {
    let device = device.canonicalize().ok()?;
    // A partition lies in its disk.
    let disk = match device.join("partition").exists() {
        true => device.parent()?.to_owned(),
        false => device,
    };
    let bytes = read(&disk, "size")?
        .parse::<u64>()
        .ok()?
        .checked_mul(SECTOR_BYTES)?;
    if let Some(file) = read(&disk, "loop/backing_file") {
        return Some(format!("loop device of {file}, {bytes} bytes"));
    }
    let slaves = disk.join("slaves");
    if depth < DEPTH_MAX && fs::read_dir(&slaves).is_ok_and(|mut all| all.next().is_some()) {
        let level = read(&disk, "md/level").unwrap_or_else(|| "mapped device".to_owned());
        return Some(format!("{level} on {}", all_of(&slaves, depth + 1)?));
    }
    Some(described(&disk, bytes))
}

fn described(disk: &Path, bytes: u64) -> String {
    let first = |files: &[&str]| files.iter().find_map(|file| read(disk, file));
    let mut words = first(&["device/model", "device/name"]).unwrap_or_else(|| kind_of(disk));
    let serial = [
        "device/cid",
        "serial",
        "device/serial",
        "wwid",
        "device/wwid",
    ];
    if let Some(serial) = first(&serial) {
        words += &format!(", serial {serial}");
    }
    format!("{words}, {bytes} bytes")
}

fn kind_of(disk: &Path) -> String {
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let known = KINDS.iter().find(|(begin, _)| name.starts_with(begin));
    known.map_or_else(
        || {
            name.trim_end_matches(|c: char| c.is_ascii_digit())
                .to_owned()
        },
        |(_, kind)| (*kind).to_owned(),
    )
}

/// The one line of a file, without what a terminal would act on; none if it says nothing.
fn read(disk: &Path, file: &str) -> Option<String> {
    let path: PathBuf = disk.join(file);
    let content = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&content);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a directory as `/sys` has them.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn disk(&self, name: &str, sectors: u64, files: &[(&str, &str)]) {
            let size = sectors.to_string();
            for (file, content) in files.iter().copied().chain([("size", &*size)]) {
                let path = self.path(name).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{content}\n")).unwrap();
            }
        }

        fn link(&self, link: &str, to: &str) {
            let link = self.path(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.path(to), link).unwrap();
        }

        fn identity(&self, name: &str) -> Option<String> {
            of_device(&self.path(name), 0)
        }
    }

    #[test]
    fn a_disk_is_what_it_says_of_itself_and_a_partition_is_its_disk() {
        let sys = Sys::new();
        let files = [
            ("device/model", "Fast  SSD\t1TB   "),
            ("device/wwid", "naa.5002"),
        ];
        sys.disk("sda", 2048, &files);
        sys.disk("sda/sda2", 1024, &[("partition", "2")]);
        sys.link("8:2", "sda/sda2");
        let whole = "Fast SSD 1TB, serial naa.5002, 1048576 bytes";
        for name in ["sda", "sda/sda2", "8:2"] {
            assert_eq!(sys.identity(name).as_deref(), Some(whole), "{name}");
        }
        sys.disk(
            "mmcblk0",
            2,
            &[("device/name", "DG4"), ("device/cid", "1501")],
        );
        let card = sys.identity("mmcblk0").unwrap();
        assert_eq!(card, "DG4, serial 1501, 1024 bytes");
        sys.disk("vda", 2, &[("serial", "")]);
        assert_eq!(sys.identity("vda").unwrap(), "virtual disk, 1024 bytes");
        sys.disk("new7", 2, &[("device/model", "a\u{1b}[31mb")]);
        assert_eq!(sys.identity("new7").unwrap(), "a [31mb, 1024 bytes");
    }

    #[test]
    fn a_device_on_others_is_those_others() {
        let sys = Sys::new();
        sys.disk("sda", 2, &[("device/model", "A"), ("device/wwid", "1")]);
        sys.disk("sdb", 2, &[("device/model", "B"), ("device/wwid", "2")]);
        sys.disk("md0", 2, &[("md/level", "raid1")]);
        sys.link("md0/slaves/sdb", "sdb");
        sys.link("md0/slaves/sda", "sda");
        sys.disk("dm-0", 2, &[("dm/uuid", "CRYPT-1")]);
        sys.link("dm-0/slaves/md0", "md0");
        let both = "A, serial 1, 1024 bytes + B, serial 2, 1024 bytes";
        let found = sys.identity("dm-0").unwrap();
        assert_eq!(found, format!("mapped device on raid1 on {both}"));
        sys.disk("loop3", 2, &[("loop/backing_file", "/srv/disk 1.img")]);
        fs::create_dir(sys.path("loop3/slaves")).unwrap();
        let found = sys.identity("loop3").unwrap();
        assert_eq!(found, "loop device of /srv/disk 1.img, 1024 bytes");
        assert_eq!(
            all_of(&sys.path("dm-0/slaves"), 0),
            Some(format!("raid1 on {both}"))
        );
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let sys = Sys::new();
        assert_eq!(sys.identity("0:43"), None);
        sys.disk("sdc", 2, &[]);
        fs::write(sys.path("sdc/size"), "many").unwrap();
        assert_eq!(sys.identity("sdc"), None);
        sys.disk("dm-1", 2, &[]);
        sys.link("dm-1/slaves/sdx", "sdx");
        assert_eq!(sys.identity("dm-1"), None, "one of its disks is not known");
        // A circle, which no kernel shows, ends.
        sys.disk("dm-2", 2, &[]);
        sys.link("dm-2/slaves/dm-2", "dm-2");
        assert!(sys.identity("dm-2").is_some());
        assert_eq!(identity(&File::open("/proc").unwrap()), None);
    }
}
