//! A mount of MobiFS over a store on a disk of the study.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::PersistError;
use crate::tool::run;

const HINT: &str = "install mobifs";

/// A mount; unmounted when the value goes.
#[derive(Debug)]
pub(crate) struct MobifsMount {
    program: PathBuf,
    store: PathBuf,
    mountpoint: PathBuf,
    config: PathBuf,
    is_mounted: bool,
}

impl MobifsMount {
    /// Mounts `store`, made if missing, at `mountpoint`; every app is durable. `more` is added to the
    /// configuration.
    pub(crate) fn new(
        program: &Path,
        store: &Path,
        mountpoint: &Path,
        more: &str,
    ) -> Result<Self, PersistError> {
        fs::create_dir_all(store).map_err(PersistError::io(store))?;
        let config = mountpoint.with_extension("toml");
        let text = format!("{more}\n[defaults]\nclass = \"durable\"\n");
        fs::write(&config, text).map_err(PersistError::io(&config))?;
        let mut mount = Self {
            program: program.to_owned(),
            store: store.to_owned(),
            mountpoint: mountpoint.to_owned(),
            config,
            is_mounted: false,
        };
        mount.mount()?;
        Ok(mount)
    }

    /// Mounts it again after [`MobifsMount::unmount`].
    pub(crate) fn mount(&mut self) -> Result<(), PersistError> {
        let mut command = Command::new(&self.program);
        command.arg("mount").arg("--config").arg(&self.config);
        run(command.arg(&self.store).arg(&self.mountpoint), HINT)?;
        self.is_mounted = true;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// A document of `mobifs status`.
    pub(crate) fn status(&self) -> Result<serde_json::Value, PersistError> {
        let mut command = Command::new(&self.program);
        let text = run(
            command.args(["status", "--json"]).arg(&self.mountpoint),
            HINT,
        )?;
        serde_json::from_str(&text).map_err(|_| PersistError::Unexpected(text))
    }

    /// Everything is at its place when it returns.
    pub(crate) fn sync(&self) -> Result<(), PersistError> {
        run(
            Command::new(&self.program)
                .arg("sync")
                .arg(&self.mountpoint),
            HINT,
        )?;
        Ok(())
    }

    pub(crate) fn unmount(&mut self) -> Result<(), PersistError> {
        if std::mem::take(&mut self.is_mounted) {
            run(
                Command::new(&self.program)
                    .arg("umount")
                    .arg(&self.mountpoint),
                HINT,
            )?;
        }
        Ok(())
    }
}

impl Drop for MobifsMount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("cannot unmount {}: {error}", self.mountpoint.display());
        }
    }
}
