//! A filesystem for a test, on a plain image or on a served device.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_defragmenter::{Mode, Options, Report, defragment};
use mobifs_device_model::Preset;
use mobifs_device_server::{EndHandle, Reply, Request, Scale, ServeOptions, Served, ask};
use tempfile::TempDir;

/// An ext4 on a served device, or another filesystem on a loop device; unmounted with the value.
pub(crate) struct Disk {
    pub(crate) base: TempDir,
    served: Option<(Served, EndHandle)>,
    is_mounted: bool,
}

pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

impl Disk {
    fn empty() -> Self {
        let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
        let base = tempfile::Builder::new()
            .prefix("mobifs-defrag-")
            .tempdir_in(parent);
        let disk = Self {
            base: base.unwrap(),
            served: None,
            is_mounted: false,
        };
        fs::create_dir(disk.path()).unwrap();
        disk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.base.path().join("disk")
    }

    /// A filesystem on a loop device; none, and the test is skipped, where that cannot be.
    pub(crate) fn plain(filesystem: &str, mebibytes: u64, options: &[&str]) -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let mut disk = Self::empty();
        File::create(disk.image())
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        mkfs.arg("-q").args(options).arg(disk.image());
        mobifs_skip::can(mobifs_skip::why_fails(&mut mkfs)).then_some(())?;
        disk.mount_loop().then_some(disk)
    }

    /// Mounts the image by a loop device; false, and the test is skipped, where that cannot be.
    pub(crate) fn mount_loop(&mut self) -> bool {
        let mut mount = Command::new("mount");
        mount
            .args(["-o", "loop"])
            .arg(self.image())
            .arg(self.path());
        self.is_mounted = mobifs_skip::can(mobifs_skip::why_fails(&mut mount));
        self.is_mounted
    }

    /// A new ext4 on a served device, which only counts time.
    pub(crate) fn served(mebibytes: u64) -> Option<Self> {
        Self::served_with(mebibytes, &[])
    }

    pub(crate) fn served_with(mebibytes: u64, options: &[&str]) -> Option<Self> {
        let no_loop = || (!Path::new("/dev/loop-control").exists()).then_some("no loop devices");
        if !mobifs_skip::can(mobifs_skip::why_no_mounts().or_else(no_loop)) {
            return None;
        }
        let mut disk = Self::empty();
        disk.serve(Some(mebibytes << 20), None);
        succeed(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-b", "4096"])
                .args(options)
                .arg(disk.device()),
        );
        disk.mount();
        Some(disk)
    }

    pub(crate) fn serve(&mut self, size_bytes: Option<u64>, journal: Option<PathBuf>) {
        let options = ServeOptions {
            image: self.image(),
            size_bytes,
            config: Some(Preset::Emmc51.config().unwrap()),
            seed: Some(1),
            scale: Scale::new(0.0).unwrap(),
            journal,
            nbd: None,
            loop_device: true,
            mountpoint: None,
        };
        let served = Served::start(&options).unwrap();
        let end = served.end_handle();
        self.served = Some((served, end));
    }

    pub(crate) fn device(&self) -> PathBuf {
        let (served, _) = self.served.as_ref().unwrap();
        served.ready().loop_device.unwrap()
    }

    pub(crate) fn mount(&mut self) {
        // Commits only when it is asked to: what is programmed must not depend on how long a test takes.
        let mut mount = Command::new("mount");
        mount.args(["-o", "commit=300"]);
        succeed(mount.arg(self.device()).arg(self.path()));
        self.is_mounted = true;
    }

    pub(crate) fn unmount(&mut self) {
        if std::mem::take(&mut self.is_mounted) {
            succeed(Command::new("umount").arg(self.path()));
        }
    }

    /// Ends the server as SIGTERM does.
    pub(crate) fn end(&mut self) {
        self.unmount();
        if let Some((served, end)) = self.served.take() {
            end.end().unwrap();
            served.wait().unwrap();
        }
    }

    pub(crate) fn ask(&self, request: &Request) -> Reply {
        ask(&self.image(), request).unwrap()
    }

    pub(crate) fn defragment(&self, mode: Mode) -> Report {
        let options = Options {
            mode,
            takes_all: true,
            ..Options::default()
        };
        defragment(&[self.path()], &options, &|| false).unwrap()
    }

    /// What all files have.
    pub(crate) fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        // As the disk has it, not the page cache.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        let entries = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.is_file());
        files
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    /// Only this one: a commit of another test's filesystem would count there.
    pub(crate) fn sync(&self) {
        rustix::fs::syncfs(File::open(self.path()).unwrap()).unwrap();
    }

    pub(crate) fn write(&self, name: &str, bytes: usize, seed: u64) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, noise(bytes, seed)).unwrap();
        path
    }

    /// Files that grow by turns, durably, so that they lie in pieces between each other.
    pub(crate) fn interleave(&self, names: &[&str], rounds: usize, bytes: usize) {
        let open = |name: &&str| {
            let path = self.path().join(name);
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .unwrap()
        };
        let mut files: Vec<File> = names.iter().map(open).collect();
        for round in 0..rounds {
            for (number, file) in files.iter_mut().enumerate() {
                let content = noise(bytes, (round * 100 + number) as u64);
                file.write_all(&content).unwrap();
                file.sync_data().unwrap();
            }
        }
    }

    /// A checked filesystem; it is unmounted.
    pub(crate) fn check(&mut self) {
        self.unmount();
        let device = if self.served.is_some() {
            self.device()
        } else {
            self.image()
        };
        succeed(Command::new("e2fsck").args(["-f", "-n"]).arg(device));
    }
}

pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noise = vec![0; bytes];
    random.fill(&mut noise);
    noise
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _status = Command::new("umount").arg("-l").arg(self.path()).output();
        }
        if let Some((_, end)) = &self.served {
            let _ended = end.end_now();
        }
    }
}
