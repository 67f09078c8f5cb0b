//! Device, filesystem and mount, as one stack.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mobifs_device_server::Scale;
use mobifs_testkit::mount::{Mount, Places, Program, succeed};
use mobifs_testkit::random::Random;
use mobifs_testkit::target::{DirectoryTarget, Target as _};
use mobifs_testkit::tree::Tree;

use crate::disk::Disk;
use crate::filesystem::Filesystem;
use crate::trouble::{OnPath as _, Trouble};

/// A MobiFS mount over a filesystem on a served device.
pub struct Stack {
    // In this order on drop: the mount ends before the disk under it.
    mount: Mount,
    disk: Disk,
    /// Where to keep what each recovery finds, and how many have found something.
    evidence: Option<(PathBuf, u64)>,
}

impl Stack {
    /// A device in `directory`, with nothing on it yet.
    ///
    /// # Errors
    /// The device cannot be served.
    pub fn new(
        directory: &Path,
        program: &Program,
        filesystem: Filesystem,
        mebibytes: u64,
        scale: Scale,
    ) -> Result<Self, Trouble> {
        let disk = Disk::serve(directory, filesystem, mebibytes, scale)?;
        let places = Places {
            store: disk.mountpoint().join("store"),
            ..Places::below(directory)
        };
        fs::create_dir(&places.mountpoint).on(&places.mountpoint)?;
        Ok(Self {
            mount: Mount::new(program.clone(), places),
            disk,
            evidence: None,
        })
    }

    /// From now on keeps a copy of the store as each recovery finds it in `directory`,
    /// which is emptied first.
    ///
    /// # Errors
    /// It cannot be emptied.
    pub fn keep_evidence(&mut self, directory: &Path) -> Result<(), Trouble> {
        if directory.exists() {
            fs::remove_dir_all(directory).on(directory)?;
        }
        fs::create_dir(directory).on(directory)?;
        self.evidence = Some((directory.to_owned(), 0));
        Ok(())
    }

    fn take_evidence(&mut self) -> Result<(), Trouble> {
        if let Some((directory, number)) = &mut self.evidence {
            *number += 1;
            let copy = directory.join(number.to_string());
            let mut command = Command::new("cp");
            command.args(["--archive", "--sparse=always"]);
            succeed(command.arg(&self.mount.places().store).arg(copy))?;
        }
        Ok(())
    }

    /// Makes filesystem and store anew and mounts both.
    ///
    /// # Errors
    /// Something fails that must not.
    pub fn make(&mut self, mkfs_options: &[&str], config: &str) -> Result<(), Trouble> {
        self.disk.format(mkfs_options)?;
        let places = self.mount.places();
        fs::write(&places.config, config).on(&places.config)?;
        self.disk.mount()?;
        fs::create_dir(&places.store).on(&places.store)?;
        self.mount.mount()?;
        Ok(())
    }

    /// The device and its filesystem.
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The mount.
    pub const fn mount(&mut self) -> &mut Mount {
        &mut self.mount
    }

    /// Where programs work.
    pub fn root(&self) -> PathBuf {
        self.mount.places().mountpoint.clone()
    }

    /// Unmounts both.
    ///
    /// # Errors
    /// Something fails that must not.
    pub fn umount(&mut self) -> Result<(), Trouble> {
        self.mount.umount()?;
        self.disk.umount()
    }

    /// After a cut: ends the daemon, unmounts everything and switches the power on.
    ///
    /// # Errors
    /// Something fails that must not.
    pub fn fall(&mut self) -> Result<(), Trouble> {
        self.mount.kill().map_err(Trouble::Violation)?;
        self.disk.power_on()
    }

    /// Cuts the power while the mount recovers, `delay` after it began to.
    ///
    /// # Errors
    /// Something fails that must not.
    pub fn cut_recovery(&mut self, delay: Duration, random: &mut Random) -> Result<bool, Trouble> {
        self.disk.recover(random)?;
        self.disk.mount()?;
        self.take_evidence()?;
        self.mount.begin()?;
        std::thread::sleep(delay);
        let is_mounted = mobifs_testkit::mount::is_mounted(&self.mount.places().mountpoint);
        self.disk.cut(random)?;
        self.fall()?;
        Ok(!is_mounted)
    }

    /// Mounts everything again after a cut. Returns the tree that recovery found.
    /// A second recovery changes nothing; the store without the mount is the same tree.
    ///
    /// # Errors
    /// What is wrong.
    pub fn rise(&mut self, random: &mut Random) -> Result<Tree, Trouble> {
        self.disk.recover(random)?;
        self.disk.mount()?;
        self.take_evidence()?;
        self.mount.mount().map_err(Trouble::Violation)?;
        let found = tree(&self.root())?;
        self.mount.umount()?;
        let places = self.mount.places().clone();
        self.same("the store without the mount", &found, &tree(&places.store)?)?;
        self.mount.mount().map_err(Trouble::Violation)?;
        self.same("a second recovery", &found, &tree(&places.mountpoint)?)?;
        Ok(found)
    }

    /// Ends the device; both are unmounted.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn end(self) -> Result<(), Trouble> {
        let Self { mount, disk, .. } = self;
        drop(mount);
        disk.end()
    }

    fn same(&self, what: &str, expected: &Tree, found: &Tree) -> Result<(), Trouble> {
        let compare = crate::view(self.disk.filesystem());
        match expected.difference(found, compare) {
            None => Ok(()),
            Some(difference) => Err(Trouble::Violation(format!("{what}: {difference}"))),
        }
    }
}

/// Everything in a directory.
///
/// # Errors
/// It cannot be read.
pub fn tree(root: &Path) -> Result<Tree, Trouble> {
    let unreadable = |error: rustix::io::Errno| Trouble::System {
        what: format!("{} cannot be read", root.display()),
        source: error.into(),
    };
    let mut target = DirectoryTarget::new(root).map_err(unreadable)?;
    target.tree().map_err(unreadable)
}
