//! Filesystems that the kernel writes, and what the tools of e2fsprogs say of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Runs a program that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether filesystems can be made and mounted here.
pub(crate) fn can_run() -> bool {
    let reason = mobifs_skip::why_no_mounts().map(str::to_owned);
    let reason = reason.or_else(|| {
        let has_loops = Path::new("/dev/loop-control").exists();
        (!has_loops).then(|| "no loop devices".to_owned())
    });
    let reason = reason.or_else(|| mobifs_skip::why_fails(Command::new("debugfs").arg("-V")));
    mobifs_skip::can(reason)
}

/// An image with an ext4, mounted.
pub(crate) struct Image {
    pub(crate) directory: TempDir,
    is_mounted: bool,
}

impl Image {
    pub(crate) fn new(mebibytes: u64, mkfs: &[&str], mount: &str) -> Self {
        let parent = std::env::var_os("MOBIFS_SCRATCH")
            .map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let mut image = Self {
            directory: tempfile::Builder::new()
                .prefix("mobifs-persist-test-")
                .tempdir_in(parent)
                .unwrap(),
            is_mounted: false,
        };
        File::create(image.path())
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F"])
            .args(mkfs)
            .arg(image.path()));
        fs::create_dir(image.root()).unwrap();
        image.mount(mount);
        image
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub(crate) fn mount(&mut self, options: &str) {
        // With commits of its own only after the test.
        let options = format!(
            "loop,commit=300{}{options}",
            if options.is_empty() { "" } else { "," }
        );
        run(Command::new("mount")
            .args(["-t", "ext4", "-o", &options])
            .arg(self.path())
            .arg(self.root()));
        self.is_mounted = true;
    }

    pub(crate) fn unmount(&mut self) {
        run(Command::new("umount").arg(self.root()));
        self.is_mounted = false;
    }

    /// Files that are made, renamed and removed, each durably.
    pub(crate) fn work(&self, files: usize) {
        for number in 0..files {
            let path = self.root().join(format!("file-{number}"));
            let mut file = File::create(&path).unwrap();
            file.write_all(&vec![b'x'; 1000 * (number % 9 + 1)])
                .unwrap();
            file.sync_all().unwrap();
            if number % 3 == 0 {
                fs::rename(&path, self.root().join(format!("renamed-{number}"))).unwrap();
                file.sync_all().unwrap();
            }
            if number % 5 == 4 {
                fs::remove_file(&path).ok();
                File::open(self.root()).unwrap().sync_all().unwrap();
            }
        }
    }

    /// The image as the kernel has written it so far, in a file of its own.
    pub(crate) fn copy(&self) -> PathBuf {
        let copy = self.directory.path().join("copy");
        run(Command::new("sync").arg("-f").arg(self.path()));
        run(Command::new("cp")
            .arg("--sparse=always")
            .arg(self.path())
            .arg(&copy));
        copy
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.is_mounted {
            let _unmounted = Command::new("umount").arg("-l").arg(self.root()).output();
        }
    }
}

/// A transaction as `debugfs` shows it: where its commit block is, and the place of each of its blocks by where
/// that is in the journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) commit: u32,
    pub(crate) places: BTreeMap<u32, u64>,
}

/// What `logdump` of `debugfs` shows, by sequence; only transactions with a commit block. Of a mounted filesystem
/// it shows what a mount would replay (and reads no bitmaps, whose newest versions are in the journal), of an
/// unmounted one the old content as well, if the ring did not go around: there it may go on for ever.
pub(crate) fn logdump(image: &Path, is_mounted: bool) -> BTreeMap<u32, Shown> {
    const BYTES_MAX: u64 = 64 << 20;
    let mut debugfs = Command::new("debugfs");
    if is_mounted {
        debugfs.args(["-c", "-R", "logdump -a"]);
    } else {
        debugfs.args(["-R", "logdump -Oa"]);
    }
    let mut child = debugfs
        .arg(image)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut bytes = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .take(BYTES_MAX)
        .read_to_end(&mut bytes)
        .unwrap();
    child.wait().unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut found: BTreeMap<u32, Shown> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .collect();
        if let ["Found", "expected", "sequence", sequence, "type", kind, ..] = words[..] {
            let sequence = sequence.parse().unwrap();
            if kind == "2" {
                let commit = words.last().unwrap().parse().unwrap();
                let places = std::mem::take(&mut places);
                found.insert(sequence, Shown { commit, places });
            }
        } else if let ["FS", "block", place, "logged", ..] = words[..] {
            let block = words
                .iter()
                .skip_while(|&&word| word != "journal")
                .nth(2)
                .unwrap();
            places.insert(block.parse().unwrap(), place.parse().unwrap());
        }
    }
    found
}
