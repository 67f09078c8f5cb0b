//! How a command fails: an exit code, the same as those of the `mobifs` command, and one sentence.

use std::fmt;
use std::io;

use mobifs_host::printable_lines;

/// Exit codes; documented in `mobifs-lab --help`, relied on by other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// It could not be done.
    Failed,
    /// The command line or a configuration is wrong.
    Usage,
    /// The image or the mount is in use.
    InUse,
    /// The image, journal or trace is damaged, or of a newer format.
    Damaged,
    /// There is no served device.
    NotServed,
}

impl Code {
    /// As the process returns it.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::InUse => 3,
            Self::Damaged => 4,
            Self::NotServed => 5,
        }
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Writes to standard output, safe for a terminal: names of files may have commands for it. Ignores
/// that the reader has closed it.
pub(crate) fn put(text: &str) -> Result<(), Failure> {
    use io::Write as _;
    let text = printable_lines(text);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("writing to the standard output failed: {error}");
            Err(Failure::new(Code::Failed, message))
        }
        _ => Ok(()),
    }
}
