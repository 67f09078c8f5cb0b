//! A filesystem on a loop device, and what the tests ask of it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;

use mobifs_fragmentation::{Options, Outcome, Report, measure};
use tempfile::TempDir;

/// A filesystem in an image file, mounted; unmounted and gone with the value.
#[derive(Debug)]
pub(crate) struct Disk {
    base: TempDir,
    is_mounted: bool,
}

impl Disk {
    /// A new one; none, and the test is skipped, where that cannot be.
    pub(crate) fn new(filesystem: &str, options: &[&str], mount: &str) -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let disk = Self {
            base: scratch(),
            is_mounted: false,
        };
        fs::create_dir(disk.path()).unwrap();
        let file = File::create(disk.image()).unwrap();
        file.set_len(400 << 20).unwrap();
        let force = if filesystem.starts_with("ext") {
            "-F"
        } else {
            "-f"
        };
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        mkfs.args(["-q", force]).args(options).arg(disk.image());
        disk.can(&mut mkfs)?;
        disk.mount(mount)
    }

    /// Mounts it, as the constructor does.
    pub(crate) fn mount(mut self, options: &str) -> Option<Self> {
        let options = format!("loop{}{options}", if options.is_empty() { "" } else { "," });
        let mut mount = Command::new("mount");
        mount
            .args(["-o", &options])
            .arg(self.image())
            .arg(self.path());
        self.can(&mut mount)?;
        self.is_mounted = true;
        Some(self)
    }

    fn can(&self, command: &mut Command) -> Option<()> {
        mobifs_skip::can(mobifs_skip::why_fails(command)).then_some(())
    }

    pub(crate) fn unmount(&mut self) {
        if std::mem::take(&mut self.is_mounted) {
            succeed(Command::new("umount").arg(self.path()));
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.base.path().join("disk.img")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _status = Command::new("umount").arg(self.path()).status();
        }
    }
}

pub(crate) fn scratch() -> TempDir {
    let base = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    tempfile::tempdir_in(base).unwrap()
}

pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Appends to the files in turn, each time durably, so that they lie in pieces between each other.
pub(crate) fn interleave(files: &[PathBuf], rounds: usize, bytes: usize) {
    let open = |path: &PathBuf| OpenOptions::new().create(true).append(true).open(path);
    let mut files: Vec<_> = files.iter().map(|path| open(path).unwrap()).collect();
    for round in 0..rounds {
        for file in &mut files {
            file.write_all(&vec![round as u8; bytes]).unwrap();
            file.sync_data().unwrap();
        }
    }
}

/// Makes a file of `pieces` pieces of a block: every second block of a whole one is taken out.
pub(crate) fn perforate(path: &Path, pieces: u64) {
    const BLOCK: u64 = 4096;
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![1; ((2 * pieces - 1) * BLOCK) as usize])
        .unwrap();
    file.sync_all().unwrap();
    for piece in (0..pieces - 1).rev() {
        let out = FallocateFlags::COLLAPSE_RANGE;
        rustix::fs::fallocate(&file, out, (2 * piece + 1) * BLOCK, BLOCK).unwrap();
    }
    file.sync_all().unwrap();
}

/// Measures paths; also the line of each file, by the last part of its path.
pub(crate) fn measured_with(
    paths: &[PathBuf],
    options: &Options,
) -> (Outcome, BTreeMap<String, Row>) {
    let mut csv = Vec::new();
    let outcome = measure(paths, options, Some(&mut csv), &|_| {}).unwrap();
    let text = String::from_utf8(csv).unwrap();
    let rows = text.lines().skip(1).map(Row::parse);
    let rows = rows.map(|row| (row.name.clone(), row)).collect();
    (outcome, rows)
}

pub(crate) fn measured(path: &Path) -> (Report, BTreeMap<String, Row>) {
    let (outcome, rows) = measured_with(&[path.to_owned()], &Options::default());
    (outcome.report, rows)
}

/// A line of the CSV.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) dof: f64,
    pub(crate) extents: u64,
    pub(crate) least: u64,
    pub(crate) fragments: u64,
    pub(crate) levels: Vec<u64>,
}

impl Row {
    fn parse(line: &str) -> Self {
        // From the right, because the path may be in quotes.
        let mut fields: Vec<_> = line.rsplitn(17, ',').collect();
        fields.reverse();
        let path = fields[0].trim_matches('"');
        let number = |field: usize| fields[field].parse().unwrap();
        Self {
            name: path.rsplit('/').next().unwrap().to_owned(),
            kind: fields[1].to_owned(),
            dof: fields[3].parse().unwrap(),
            extents: number(4),
            least: number(5),
            fragments: number(6),
            levels: (7..14).map(number).collect(),
        }
    }
}

/// Sizes in bytes of the fragments that filefrag reports of a file: what lies before its end, merged
/// where it adjoins in the file and on the disk.
pub(crate) fn fragments_by_filefrag(path: &Path) -> Vec<u64> {
    let text = succeed(Command::new("filefrag").args(["-v", "-b1"]).arg(path));
    let size = fs::metadata(path).unwrap().len();
    let mut fragments: Vec<(u64, u64, u64)> = Vec::new();
    for line in text.lines() {
        // "   0:        0..   8191:   10485760..  10493951:   8192:   expected: flags"
        let fields: Vec<_> = line.split(':').map(str::trim).collect();
        let range = |field: &str| {
            field
                .split_once("..")
                .map(|(first, _)| first.trim().parse::<u64>())
        };
        let (Some(Some(Ok(logical))), Some(Some(Ok(physical)))) = (
            fields.get(1).map(|f| range(f)),
            fields.get(2).map(|f| range(f)),
        ) else {
            continue;
        };
        let length: u64 = fields[3].parse().unwrap();
        let end = (logical + length).min(size.next_multiple_of(4096));
        if end <= logical {
            continue;
        }
        let length = end - logical;
        match fragments.last_mut() {
            Some((l, p, n)) if *l + *n == logical && *p + *n == physical => *n += length,
            _ => fragments.push((logical, physical, length)),
        }
    }
    fragments.into_iter().map(|(_, _, length)| length).collect()
}
