//! Which formats there are, and how a file of one becomes a trace.

use std::path::PathBuf;
use std::str::FromStr;

use crate::model::UserOperation;

/// A format that traces come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// This program's own.
    Parquet,
    /// System calls as MobiGen has them: thread, microseconds, call, arguments.
    MobiGen,
    /// The output of strace.
    Strace,
    /// Block requests of a phone: process, device, flag, sector, size, time.
    Pixel,
    /// The output of blkparse.
    Blkparse,
    /// What a recorded mount has written so far.
    Recording,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 6] = [
        Self::Parquet,
        Self::MobiGen,
        Self::Strace,
        Self::Pixel,
        Self::Blkparse,
        Self::Recording,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::MobiGen => "mobigen",
            Self::Strace => "strace",
            Self::Pixel => "pixel",
            Self::Blkparse => "blkparse",
            Self::Recording => "recording",
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{name}' is no format of traces; there are {names}")
        })
    }
}

/// How a file becomes a trace. What does not concern its format is not looked at.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The format; none: recognised by the file's content.
    pub format: Option<Format>,
    /// Refuse the file at the first line that cannot be understood, instead of skipping it.
    pub strict: bool,
    /// strace: the directory whose files are of interest, an absolute path. Paths in the trace
    /// are relative to it, what lies outside is left out. Without it all files are of interest.
    pub root: Option<PathBuf>,
    /// strace: where the program was started; relative paths need it unless the output has been
    /// made with `-y`.
    pub directory: Option<PathBuf>,
    /// strace: how many directories below the root make an app.
    pub app_depth: usize,
    /// strace: what the user did meanwhile, by the output's clock (nanoseconds since 1970 for
    /// `-ttt`).
    pub user_operations: Vec<(u64, UserOperation)>,
    /// MobiGen: keep what is done to descriptors that do not look like files.
    pub keep_pipes: bool,
    /// Pixel: keep requests that were issued twice because the controller slept.
    pub keep_repeats: bool,
    /// blkparse: which action is the event: `Q`, `G`, `I`, `D` or `C`.
    pub action: u8,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            format: None,
            strict: false,
            root: None,
            directory: None,
            app_depth: 1,
            user_operations: Vec::new(),
            keep_pipes: false,
            keep_repeats: false,
            action: b'D',
        }
    }
}
