//! How long recovery takes, depending on the journal's content, beside the filesystem's own.
//!
//! The work is the same on all: files of a few kilobytes are written in a directory, none of them
//! twice, and made durable after each hundredth. On MobiFS they are in its journal when the power is
//! cut, which is the most that a recovery can have to do. On the bare filesystem the content of
//! *its* journal depends on its mode: ext4 journals metadata only, unless it is mounted with
//! `data=journal`, which is the nearest to the same work. There `syncfs` would also write what the
//! journal holds to its place, and leave little to recover; `fsync` of the hundredth file commits
//! all of them.
//!
//! Every time ends with the first answer: the last file that had been synced is read.
//! MobiFS answers before it has applied what its journal holds, so the time until that is
//! done is measured as well, with `mobifs sync`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_device_server::Scale;
use mobifs_testkit::mount::Program;
use mobifs_testkit::operations::Payload;
use mobifs_testkit::random::Random;

use crate::disk::Disk;
use crate::filesystem::Filesystem;
use crate::stack::Stack;
use crate::trouble::{OnPath as _, Trouble};

/// Bytes of a file: smaller than runs that MobiFS writes in place.
const FILE_BYTES: u64 = 8 << 10;
/// Files between two syncs.
const FILES_OF_A_SYNC: u64 = 100;
/// Files in one directory.
const FILES_OF_A_DIRECTORY: u64 = 1000;

/// The filesystem that recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The bare ext4, data in place.
    Ordered,
    /// The bare ext4, data in its journal.
    Journaled,
    /// MobiFS over ext4.
    MobiFs,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ordered, Self::Journaled, Self::MobiFs];

    /// Makes all files durable that were written until now, the given one last, and leaves as much
    /// as possible in the journal.
    fn make_durable(self, last: &File) -> rustix::io::Result<()> {
        match self {
            // Of the other files only `syncfs` writes the content.
            Self::Ordered | Self::MobiFs => rustix::fs::syncfs(last),
            // Their content is in the transaction that this commits.
            Self::Journaled => rustix::fs::fsync(last),
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `mobifs` program.
    pub program: Program,
    /// Where images and mount points are made.
    pub scratch: PathBuf,
    /// Bytes that the journal shall hold at the cut.
    pub content_bytes: u64,
    /// Real seconds for each of the device.
    pub scale: Scale,
    /// Fixes which data the cut loses.
    pub seed: u64,
}

/// One recovery.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Mount of the lower filesystem; if it is the subject, until it answers.
    pub lower: Duration,
    /// Mount of MobiFS over it, until it answers.
    pub upper: Option<Duration>,
    /// From then on, until everything is applied.
    pub applied: Option<Duration>,
    /// What was read from the device until there was an answer: the size of the work.
    pub read_bytes: u64,
    /// What MobiFS's journal held at the cut.
    pub journal_bytes: Option<u64>,
    /// Files that were there afterwards: all that had been synced.
    pub files: u64,
}

impl Measured {
    /// Both mounts, until there is an answer.
    pub fn total(&self) -> Duration {
        self.lower + self.upper.unwrap_or_default()
    }
}

/// Works, cuts the power and mounts again.
///
/// # Errors
/// Something fails, or a file that had been synced is not there.
pub fn measure(subject: Subject, options: &Options) -> Result<Measured, Trouble> {
    let scratch = tempfile::Builder::new()
        .prefix("mobifs-recovery-")
        .tempdir_in(&options.scratch)
        .map_err(|error| error.to_string())?;
    // Room for the files, for both journals, and so that nothing is ever full.
    let mebibytes = 512 + 4 * (options.content_bytes >> 20);
    match subject {
        Subject::MobiFs => measure_mount(scratch.path(), mebibytes, options),
        Subject::Ordered | Subject::Journaled => {
            measure_bare(scratch.path(), mebibytes, subject, options)
        }
    }
}

/// A journal of ext4 that holds the content without being emptied, and MobiFS's as well:
/// either is emptied when it is used up in part.
fn journal_mebibytes(content_bytes: u64) -> u64 {
    16 + 2 * (content_bytes >> 20)
}

fn measure_bare(
    scratch: &Path,
    mebibytes: u64,
    subject: Subject,
    options: &Options,
) -> Result<Measured, Trouble> {
    let disk = Disk::serve(scratch, Filesystem::Ext4, mebibytes, options.scale)?;
    let size = format!("size={}", journal_mebibytes(options.content_bytes));
    let default = if subject == Subject::Journaled {
        "journal_data"
    } else {
        "journal_data_ordered"
    };
    // Nothing is initialised in the background while times are measured.
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    disk.format(&["-J", &size, "-E", lazy])?;
    disk.set_default_mount_option(default)?;
    disk.mount()?;
    let files = write_files(subject, disk.mountpoint(), options.content_bytes)?;
    disk.cut(&mut Random::new(options.seed))?;
    disk.power_on()?;
    let before = disk.read_bytes()?;
    let start = Instant::now();
    disk.mount()?;
    check_file(disk.mountpoint(), files - 1)?;
    let lower = start.elapsed();
    let read_bytes = disk.read_bytes()? - before;
    check_files(disk.mountpoint(), files)?;
    disk.umount()?;
    disk.check()?;
    disk.end()?;
    Ok(Measured {
        lower,
        upper: None,
        applied: None,
        read_bytes,
        journal_bytes: None,
        files,
    })
}

fn measure_mount(scratch: &Path, mebibytes: u64, options: &Options) -> Result<Measured, Trouble> {
    let filesystem = Filesystem::Ext4;
    let mut stack = Stack::new(
        scratch,
        &options.program,
        filesystem,
        mebibytes,
        options.scale,
    )?;
    // Applied by nothing but recovery.
    let config = format!(
        "journal_bytes = \"{}MiB\"\napply_idle_ms = 86400000\n",
        journal_mebibytes(options.content_bytes)
    );
    stack.make(&["-E", "lazy_itable_init=0,lazy_journal_init=0"], &config)?;
    let files = write_files(Subject::MobiFs, &stack.root(), options.content_bytes)?;
    let journal_bytes = journal_used_bytes(&stack.mount().command(&["status", "--json"])?)?;
    stack.disk().cut(&mut Random::new(options.seed))?;
    stack.fall()?;
    let before = stack.disk().read_bytes()?;
    let start = Instant::now();
    stack.disk().mount()?;
    let lower = start.elapsed();
    let start = Instant::now();
    stack.mount().mount()?;
    check_file(&stack.root(), files - 1)?;
    let upper = start.elapsed();
    let read_bytes = stack.disk().read_bytes()? - before;
    let start = Instant::now();
    stack.mount().command(&["sync"])?;
    let applied = start.elapsed();
    check_files(&stack.root(), files)?;
    stack.umount()?;
    stack.disk().check()?;
    stack.end()?;
    Ok(Measured {
        lower,
        upper: Some(upper),
        applied: Some(applied),
        read_bytes,
        journal_bytes: Some(journal_bytes),
        files,
    })
}

fn journal_used_bytes(status: &str) -> Result<u64, Trouble> {
    let status: serde_json::Value =
        serde_json::from_str(status).map_err(|error| error.to_string())?;
    let used = status["store"]["journal_used_bytes"].as_u64();
    Ok(used.ok_or_else(|| format!("no journal in the status: {status}"))?)
}

fn place(root: &Path, number: u64) -> PathBuf {
    let directory = format!("directory-{}", number / FILES_OF_A_DIRECTORY);
    root.join("app").join(directory).join(format!("{number}"))
}

fn content(number: u64) -> Vec<u8> {
    let data = Payload {
        tag: number as u32 + 1,
        length: FILE_BYTES as u32,
    };
    data.bytes()
}

/// Writes so many files; answers how many.
fn write_files(subject: Subject, root: &Path, bytes: u64) -> Result<u64, Trouble> {
    let files = (bytes / FILE_BYTES).next_multiple_of(FILES_OF_A_SYNC);
    for number in 0..files {
        let path = place(root, number);
        if number % FILES_OF_A_DIRECTORY == 0
            && let Some(directory) = path.parent()
        {
            fs::create_dir_all(directory).on(directory)?;
        }
        let mut file = File::create(&path).on(&path)?;
        file.write_all(&content(number)).on(&path)?;
        if (number + 1) % FILES_OF_A_SYNC == 0 {
            subject
                .make_durable(&file)
                .map_err(std::io::Error::from)
                .on(&path)?;
        }
    }
    Ok(files)
}

fn check_files(root: &Path, files: u64) -> Result<(), Trouble> {
    (0..files).try_for_each(|number| check_file(root, number))
}

fn check_file(root: &Path, number: u64) -> Result<(), Trouble> {
    let path = place(root, number);
    let found = fs::read(&path).on(&path)?;
    if found == content(number) {
        return Ok(());
    }
    Err(Trouble::Violation(format!(
        "{} is not as it was written: {} bytes",
        path.display(),
        found.len()
    )))
}
