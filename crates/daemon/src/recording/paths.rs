//! The files that a recording is written to.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::mount_paths::MountPaths;
use rustix::fs::{FlockOperation, flock};

use crate::failure::{Code, Failure};

/// The names in a recording are private to the user that records.
const MODE: u32 = 0o600;

/// The files of a recording, by absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordingPaths {
    /// The trace.
    pub(super) file: PathBuf,
    /// The raw log that is written while the mount is served.
    pub(super) log: PathBuf,
}

impl RecordingPaths {
    /// The files of a new recording: none of them may exist, nor lie in the mount or its store.
    pub(super) fn check(file: &Path, mount: &MountPaths) -> Result<Self, Failure> {
        let paths = Self::known(file)?;
        let usage = |message: String| Err(Failure::new(Code::Usage, message));
        let shown = paths.file.display();
        if paths.file.starts_with(&mount.mountpoint) {
            return usage(format!(
                "cannot record to {shown}, which lies in the mount that is recorded"
            ));
        }
        if paths.file.starts_with(&mount.store) {
            return usage(format!(
                "cannot record to {shown}, which lies in the store: only the mount may change it"
            ));
        }
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        if is_there(&paths.file) {
            let message = format!("{shown} is there already, and a recording replaces nothing");
            return Err(Failure::new(Code::Failed, message));
        }
        if is_there(&paths.log) {
            return Err(paths.log_is_there());
        }
        Ok(paths)
    }

    /// The files of a recording that was checked before.
    pub(super) fn known(file: &Path) -> Result<Self, Failure> {
        let Some(name) = file.file_name() else {
            let message = format!(
                "cannot record to {}: that is no file's name",
                file.display()
            );
            return Err(Failure::new(Code::Usage, message));
        };
        let parent = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // The directory must be there, and may be reached by other names.
        let parent = parent.canonicalize().map_err(|error| {
            let message = format!("cannot record to {}: {error}", file.display());
            Failure::new(Code::Failed, message)
        })?;
        let with = |ending: &str| {
            let mut name = OsString::from(name);
            name.push(ending);
            parent.join(name)
        };
        Ok(Self {
            file: with(""),
            log: with(".part"),
        })
    }

    /// Another mount records to the same file, or has ended without a trace.
    fn log_is_there(&self) -> Failure {
        let (file, log) = (self.file.display(), self.log.display());
        let locked = File::open(&self.log)
            .is_ok_and(|log| flock(&log, FlockOperation::NonBlockingLockExclusive).is_err());
        if locked {
            let message = format!("{log} is being written: another mount records to {file}");
            return Failure::new(Code::InUse, message);
        }
        let message = format!(
            "{log} is a recording of which no trace was made: `mobifs trace finish {}` makes it",
            mobifs_host::shell_path(&self.file)
        );
        Failure::new(Code::Failed, message)
    }

    pub(super) fn failed(&self, error: &io::Error) -> Failure {
        let file = self.file.display();
        Failure::new(Code::Failed, format!("cannot record to {file}: {error}"))
    }

    pub(super) fn create_log(&self) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(MODE);
        self.open_locked(&options)
    }

    pub(super) fn open_log(&self) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        self.open_locked(&options)
    }

    /// Locked, so that no trace is made of a log that is still written.
    fn open_locked(&self, options: &OpenOptions) -> Result<File, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let log = options.open(&self.log).map_err(failed)?;
        flock(&log, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed(errno.into()))?;
        Ok(log)
    }

    /// Removes the log.
    pub(super) fn discard(&self) {
        if let Err(error) = fs::remove_file(&self.log) {
            tracing::warn!(
                %error,
                file = %self.log.display(),
                "cannot remove the log of the recording"
            );
        }
    }
}
