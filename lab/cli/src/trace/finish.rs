//! `mobifs trace finish`

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mobifs_recording::LogError;
use mobifs_trace::recording::{ConvertError, convert};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::arguments::FinishArguments;
use crate::failure::{Code, Failure, put};

/// A trace has the names of files, which are private to their owner.
const MODE: u32 = 0o600;
/// What a mount adds to the name of a trace for its log.
const LOG_ENDING: &[u8] = b".part";

pub(super) fn run(arguments: &FinishArguments) -> Result<(), Failure> {
    let files = Files::of(&arguments.trace);
    let log = files.lock_log()?;
    if files.trace.symlink_metadata().is_ok() {
        let message = format!("{} exists, and is not replaced", files.trace.display());
        return Err(Failure::new(Code::Failed, message));
    }
    let made = files.make();
    drop(log);
    if made.is_err() {
        files.discard_unfinished();
    }
    put(&format!("{} events\n", made?))
}

fn code_of(error: &ConvertError) -> Code {
    match error {
        ConvertError::Log(LogError::NotALog | LogError::Header(_)) => Code::Damaged,
        _ => Code::Failed,
    }
}

/// The files of a recording.
struct Files {
    /// The trace.
    trace: PathBuf,
    /// What the mount has written.
    log: PathBuf,
    /// The trace as long as it is not whole.
    unfinished: PathBuf,
}

impl Files {
    /// The paths of the trace that was asked for at the mount, or of its log.
    fn of(named: &Path) -> Self {
        let bytes = named.as_os_str().as_bytes();
        let trace = bytes.strip_suffix(LOG_ENDING).unwrap_or(bytes);
        let with = |ending: &[u8]| PathBuf::from(OsString::from_vec([trace, ending].concat()));
        Self {
            trace: with(b""),
            log: with(LOG_ENDING),
            unfinished: with(b".new"),
        }
    }

    /// The log, locked, so that no mount writes to it and no other process makes a trace of it
    /// meanwhile.
    fn lock_log(&self) -> Result<File, Failure> {
        let shown = self.log.display();
        let failed = |error: io::Error| Failure::new(Code::Failed, format!("{shown}: {error}"));
        let log = File::open(&self.log).map_err(failed)?;
        match flock(&log, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Failure::new(
                Code::InUse,
                format!("{shown} is still being written; unmount what is recorded first"),
            )),
            locked => locked.map_err(|errno| failed(errno.into())).map(|()| log),
        }
    }

    /// Makes the trace and removes the log; returns how many events there are.
    fn make(&self) -> Result<u64, Failure> {
        let unwritten = |error: io::Error| {
            let trace = self.trace.display();
            Failure::new(Code::Failed, format!("{trace} cannot be written: {error}"))
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(MODE);
        let output = options.open(&self.unfinished).map_err(unwritten)?;
        let (made, mut output) = convert(&self.log, BufWriter::new(output)).map_err(|error| {
            let log = self.log.display();
            Failure::new(code_of(&error), format!("{log}: {error}"))
        })?;
        output.flush().map_err(unwritten)?;
        output.get_ref().sync_all().map_err(unwritten)?;
        self.name_trace().map_err(unwritten)?;
        Ok(made.events)
    }

    /// Gives the whole trace its name, unless that was taken meanwhile, and removes the log.
    fn name_trace(&self) -> io::Result<()> {
        match renameat_with(
            CWD,
            &self.unfinished,
            CWD,
            &self.trace,
            RenameFlags::NOREPLACE,
        ) {
            // Not every filesystem can.
            Err(Errno::INVAL | Errno::NOSYS) => {
                fs::hard_link(&self.unfinished, &self.trace)?;
                fs::remove_file(&self.unfinished)?;
            }
            named => named?,
        }
        fs::remove_file(&self.log)
    }

    fn discard_unfinished(&self) {
        if let Err(error) = fs::remove_file(&self.unfinished)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("mobifs: {}: {error}", self.unfinished.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_named_by_its_trace_or_its_log() {
        for named in ["/d/t.parquet", "/d/t.parquet.part"] {
            let files = Files::of(Path::new(named));
            assert_eq!(files.trace, Path::new("/d/t.parquet"));
            assert_eq!(files.log, Path::new("/d/t.parquet.part"));
            assert_eq!(files.unfinished, Path::new("/d/t.parquet.new"));
        }
    }
}
