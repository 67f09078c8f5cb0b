//! `mobifs frag measure`

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Read as _, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;
use mobifs_fragmentation::{
    MeasureError, OUTPUT_BEGINNINGS_MAX, Options, counted, is_output, measure, page, table,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tempfile::TempPath;

use super::model::ModelArguments;
use super::progress::Progress;
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
A PATH is a directory or a file on a mounted ext4, btrfs, XFS or f2fs, or an image (or unmounted
block device) of ext4, which is read by debugfs and dumpe2fs. Several PATHs are measured together.
Symbolic links are not followed, and other filesystems and nested subvolumes below a PATH are not
entered. Nothing is changed, but for delayed content, which the kernel is asked to write out (not
with --no-sync). docs/FRAGMENTATION-REFERENCE.md defines what is counted.

  mobifs frag measure /data
  mobifs frag measure --html layout.html --csv files.csv --json userdata.img

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
pub(super) struct MeasureArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a line for each file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with a picture of where files lie, charts and tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Name so many of the files that are worth defragmenting
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    top: u32,
    /// Leave out files that were not read within so many days
    #[arg(long, value_name = "DAYS")]
    read_within: Option<u32>,
    /// Tell kinds by names only, without reading how files begin
    #[arg(long)]
    by_name: bool,
    /// Leave delayed content unwritten; its files are left out
    #[arg(long)]
    no_sync: bool,
    /// Measure images as files, not what is in them
    #[arg(long)]
    as_file: bool,
    #[command(flatten)]
    model: ModelArguments,
    /// What to measure
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn run(arguments: &MeasureArguments) -> Result<(), Failure> {
    for output in [&arguments.csv, &arguments.html].into_iter().flatten() {
        refuse_input(output, &arguments.paths)?;
    }
    if let (Some(csv), Some(html)) = (&arguments.csv, &arguments.html)
        && is_same(csv, html)
    {
        let message = format!("--csv and --html are the same file, {}", html.display());
        return Err(Failure::new(Code::Usage, message));
    }
    let options = Options {
        as_files: arguments.as_file,
        may_sync: !arguments.no_sync,
        reads_headers: !arguments.by_name,
        read_within_days: arguments.read_within,
        worth_max: arguments.top as usize,
        model: arguments.model.model(),
    };
    let mut page_file = arguments.html.as_deref().map(Output::new).transpose()?;
    let mut csv = arguments.csv.as_deref().map(Output::new).transpose()?;
    let progress = Progress::new();
    let rows = csv.as_mut().map(|csv| csv as &mut dyn Write);
    let outcome = measure(&arguments.paths, &options, rows, &|files| {
        progress.show(files);
    });
    progress.clear();
    let outcome = outcome.map_err(failure)?;
    let failed = |message: String| Failure::new(Code::Failed, message);
    if let Some(file) = &mut page_file {
        let page = page(&outcome).map_err(|error| failed(error.to_string()))?;
        file.write_all(page.as_bytes())
            .map_err(|error| cannot_write(&file.path, &error))?;
    }
    for output in [csv, page_file].into_iter().flatten() {
        output.keep()?;
    }
    let report = &outcome.report;
    if arguments.json {
        let text = serde_json::to_string_pretty(report);
        put(&(text.map_err(|error| failed(error.to_string()))? + "\n"))?;
    } else {
        put(&table(report))?;
    }
    match report.left_out.damaged {
        0 if report.left_out.damaged_images == 0 => Ok(()),
        0 => Err(Failure::new(
            Code::Damaged,
            "the image is damaged, as its note says; e2fsck -fn shows what is wrong and changes nothing",
        )),
        count => Err(Failure::new(
            Code::Damaged,
            format!(
                "{} damaged and no part of what was measured; e2fsck -fn shows what is wrong and changes nothing",
                counted(
                    count,
                    "file or directory of the image is",
                    "files and directories of the image are"
                )
            ),
        )),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Code::Failed,
        format!("cannot write {}: {error}", path.display()),
    )
}

/// A file that takes its name when it is complete: one that was there before stays if the
/// measurement fails. That it cannot be written is known before a long measurement, not after it.
struct Output {
    path: PathBuf,
    writer: BufWriter<File>,
    /// Where it lies until then; a pipe or a device has no such place.
    unfinished: Option<TempPath>,
}

impl Output {
    fn new(given: &Path) -> Result<Self, Failure> {
        // Where a link leads, so that it stays one.
        let path = given.canonicalize().unwrap_or_else(|_| given.to_owned());
        let opened = if path.metadata().is_ok_and(|about| !about.is_file()) {
            open_special(&path).map(|file| (file, None))
        } else {
            let file = tempfile::Builder::new()
                .prefix(".mobifs-frag-")
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(directory_of(&path));
            file.map(|file| {
                let (file, path) = file.into_parts();
                (file, Some(path))
            })
        };
        // Without the name that the file would have until then.
        let plain = |error: std::io::Error| match error.raw_os_error() {
            Some(number) => std::io::Error::from_raw_os_error(number),
            None if error.kind() == std::io::ErrorKind::Other => error,
            None => directory_of(&path)
                .metadata()
                .err()
                .unwrap_or_else(|| error.kind().into()),
        };
        let (file, unfinished) = opened.map_err(|error| cannot_write(given, &plain(error)))?;
        Ok(Self {
            path,
            writer: BufWriter::new(file),
            unfinished,
        })
    }

    fn keep(mut self) -> Result<(), Failure> {
        let written = self.writer.flush();
        written.map_err(|error| cannot_write(&self.path, &error))?;
        match self.unfinished {
            Some(unfinished) => unfinished
                .persist(&self.path)
                .map_err(|error| cannot_write(&self.path, &error.error)),
            None => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

/// The directory that a file lies in.
fn directory_of(path: &Path) -> &Path {
    let parent = path.parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}

/// Opens a pipe or a device. A pipe is refused that nothing reads, which would have to be waited for.
fn open_special(path: &Path) -> std::io::Result<File> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .append(true)
        .custom_flags(nonblock)
        .open(path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => std::io::Error::other("nothing reads this pipe"),
        _ => error,
    })?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Whether both would be written to the same file, which need not be there yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let found = path.canonicalize();
        found.or_else(|_| {
            let path = std::path::absolute(path)?;
            let parent = path.parent().unwrap_or(Path::new("/")).canonicalize()?;
            Ok::<_, std::io::Error>(parent.join(path.file_name().unwrap_or_default()))
        })
    };
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

/// What is measured must not be overwritten by what is said of it.
fn refuse_input(output: &Path, paths: &[PathBuf]) -> Result<(), Failure> {
    if output == Path::new("-") {
        let message =
            "- would be a file of that name: give /dev/stdout for the standard output, or ./-";
        return Err(Failure::new(Code::Usage, message));
    }
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let Some(written) = identity(output) else {
        return Ok(());
    };
    let below = |path: &PathBuf| {
        let places = (output.canonicalize(), path.canonicalize());
        matches!(places, (Ok(output), Ok(path)) if output.starts_with(&path))
    };
    let is_measured = paths.iter().any(|path| identity(path) == Some(written))
        || (paths.iter().any(below) && holds_something_else(output));
    if is_measured {
        let output = output.display();
        let message = format!("{output} is to be measured and cannot be written over");
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(())
}

/// Whether a file has content that an earlier measurement has not written.
fn holds_something_else(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mut file = file.take(OUTPUT_BEGINNINGS_MAX);
        file.read_to_end(&mut beginning)
    });
    read.is_err() || !(beginning.is_empty() || is_output(&beginning))
}

pub(super) fn failure(error: MeasureError) -> Failure {
    let code = match &error {
        MeasureError::InUse { .. } => Code::InUse,
        MeasureError::Damaged { .. } => Code::Damaged,
        MeasureError::SymbolicLink { .. } | MeasureError::NoFile(_) => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
