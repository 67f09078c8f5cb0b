//! `mobifs trace record`

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use mobifs_trace::{Format, LoadOptions, UserOperation, create_file, load, write_into};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::arguments::RecordArguments;
use super::input;
use crate::failure::{Code, Failure};

/// Calls that say what happens to files. Those that an architecture lacks are passed over.
const CALLS: &[&str] = &[
    "open",
    "openat",
    "openat2",
    "creat",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "fcntl64",
    "read",
    "readv",
    "pread64",
    "preadv",
    "preadv2",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "copy_file_range",
    "sendfile",
    "sendfile64",
    "splice",
    "lseek",
    "_llseek",
    "truncate",
    "truncate64",
    "ftruncate",
    "ftruncate64",
    "fallocate",
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "sync_file_range",
    "mmap",
    "mmap2",
    "msync",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "symlink",
    "symlinkat",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "stat",
    "lstat",
    "fstat",
    "stat64",
    "lstat64",
    "fstat64",
    "newfstatat",
    "fstatat64",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "getdents",
    "getdents64",
    "chdir",
    "fchdir",
    "getcwd",
    "clone",
    "clone3",
    "fork",
    "vfork",
    "execve",
    "execveat",
    "io_uring_setup",
    "io_uring_enter",
    "io_submit",
];

/// What ends the thread that reads the pipe; no program writes it by chance.
const STOP: &str = "\u{1}stop";

pub(super) fn run(arguments: &RecordArguments) -> Result<ExitCode, Failure> {
    // The command may take hours: a problem with the output is reported before.
    let made = create_file(&arguments.out)?;
    let recorded = record(arguments, made);
    if recorded.is_err() {
        // An empty trace would look like a good one.
        let _removed = std::fs::remove_file(&arguments.out);
    }
    recorded
}

fn record(arguments: &RecordArguments, made: File) -> Result<ExitCode, Failure> {
    let output = tempfile::NamedTempFile::new();
    let output = output.map_err(|error| of_path(&std::env::temp_dir(), &error))?;
    let touches = arguments
        .touch_fifo
        .as_deref()
        .map(Touches::listen)
        .transpose()?;
    let status = strace(arguments, output.path());
    let user_operations = touches.map(Touches::end).transpose()?.unwrap_or_default();
    let status = status?;
    let options = LoadOptions {
        format: Some(Format::Strace),
        root: arguments.root.as_deref().map(input::absolute).transpose()?,
        directory: std::env::current_dir().ok(),
        app_depth: arguments.app_depth,
        user_operations,
        ..LoadOptions::default()
    };
    let mut loaded = load(output.path(), &options)?;
    if loaded.trace.events.is_empty()
        && let Some(root) = &arguments.root
    {
        check_root(root)?;
    }
    input::report(&loaded.report);
    let words = arguments.command.iter().map(|word| word.to_string_lossy());
    let command: Vec<_> = words.collect();
    loaded
        .trace
        .header
        .notes
        .insert(0, format!("command: {}", command.join(" ")));
    write_into(&loaded.trace, made, &arguments.out)?;
    eprintln!(
        "mobifs: recorded {} events in {:.1} s",
        loaded.trace.events.len(),
        loaded.trace.duration_ns() as f64 / 1e9
    );
    Ok(exit_code(status))
}

/// Nothing was recorded below `root`: an error if it is no directory. The command may have made it,
/// so this is known only afterwards.
fn check_root(root: &Path) -> Result<(), Failure> {
    let shown = root.display();
    if root.is_dir() {
        eprintln!("mobifs: warning: the command did nothing below {shown}");
        return Ok(());
    }
    let message = format!(
        "nothing was recorded: --root {shown} is not a directory; name the one in which the \
         command works"
    );
    Err(Failure::new(Code::Failed, message))
}

fn of_path(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::Failed, format!("{}: {error}", path.display()))
}

fn strace(arguments: &RecordArguments, output: &Path) -> Result<ExitStatus, Failure> {
    let calls: Vec<String> = CALLS.iter().map(|call| format!("?{call}")).collect();
    let mut command = Command::new("strace");
    command
        .args([
            "-f",
            "-ttt",
            "-T",
            "-y",
            "-q",
            "-s",
            "0",
            "--seccomp-bpf",
            "-e",
        ])
        .arg(format!("trace={}", calls.join(",")))
        .args(["-e", "signal=none", "-o"])
        .arg(output)
        .arg("--")
        .args(&arguments.command);
    if let Some(pipe) = &arguments.touch_fifo {
        // The command may work somewhere else.
        command.env("MOBIFS_TOUCH_FIFO", input::absolute(pipe)?);
    }
    command.status().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            Code::Failed,
            "recording needs strace, which is not installed (on Debian: apt install strace)",
        ),
        _ => Failure::new(Code::Failed, format!("strace cannot be run: {error}")),
    })
}

/// As a shell reports how a command ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let number = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

/// Reads a pipe for what the user does.
struct Touches {
    pipe: PathBuf,
    reader: JoinHandle<Vec<(u64, UserOperation)>>,
}

impl Touches {
    fn listen(pipe: &Path) -> Result<Self, Failure> {
        let made = mknodat(CWD, pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        if let Err(error) = made
            && error != rustix::io::Errno::EXIST
        {
            return Err(of_path(pipe, &error.into()));
        }
        let found = std::fs::metadata(pipe).map_err(|error| of_path(pipe, &error))?;
        if !found.file_type().is_fifo() {
            let message = format!("{} is there and is no pipe", pipe.display());
            return Err(Failure::new(Code::Usage, message));
        }
        // Open for writing, too: so the pipe does not end when a writer leaves.
        let opened = OpenOptions::new().read(true).write(true).open(pipe);
        let opened = opened.map_err(|error| of_path(pipe, &error))?;
        Ok(Self {
            pipe: pipe.to_owned(),
            reader: thread::spawn(move || read_touches(opened)),
        })
    }

    fn end(self) -> Result<Vec<(u64, UserOperation)>, Failure> {
        let opened = OpenOptions::new().write(true).open(&self.pipe);
        let written = opened.and_then(|mut pipe| writeln!(pipe, "{STOP}"));
        written.map_err(|error| of_path(&self.pipe, &error))?;
        self.reader.join().map_err(|_| {
            Failure::new(
                Code::Failed,
                "the reader of the touch pipe has ended too early",
            )
        })
    }
}

fn read_touches(pipe: File) -> Vec<(u64, UserOperation)> {
    let mut touches = Vec::new();
    for line in BufReader::new(pipe).lines() {
        let Ok(line) = line else { break };
        if line == STOP {
            break;
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let operation = UserOperation::from_word(line.trim()).unwrap_or(UserOperation::Other);
        touches.push((time_ns, operation));
    }
    touches
}
