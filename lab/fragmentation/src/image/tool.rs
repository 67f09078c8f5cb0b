//! Runs the tools of e2fsprogs on an image that is open, for reading only.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};

use super::text;
use crate::error::MeasureError;

/// Where administrators' programs are, which may not be in an ordinary user's search path.
const MORE_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];

fn command(program: &'static str) -> Command {
    let mut places = std::env::var_os("PATH").unwrap_or_default();
    for place in MORE_PLACES {
        places.push(":");
        places.push(place);
    }
    let found = std::env::split_paths(&places)
        .map(|place| place.join(program))
        .find(|path| path.is_file());
    let mut command = Command::new(found.unwrap_or_else(|| PathBuf::from(program)));
    // Their words are parsed, and no pager may stand between.
    command.env("LC_ALL", "C").env("DEBUGFS_PAGER", "__none__");
    command
}

/// The open image as another process can open it: without a name that a tool could take for
/// something else, and without the image being replaced meanwhile.
fn name_of(image: &File) -> OsString {
    format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd()).into()
}

fn damaged(path: &Path, said: String) -> MeasureError {
    MeasureError::Damaged {
        path: path.to_owned(),
        said,
    }
}

/// Runs dumpe2fs; what it prints goes to `read`. It prints what it can read also of an image of which it then says
/// that something is wrong: that is returned.
pub(super) fn dumpe2fs(
    path: &Path,
    image: &File,
    read: impl FnOnce(&mut dyn BufRead) -> io::Result<()>,
) -> Result<Option<String>, MeasureError> {
    const PROGRAM: &str = "dumpe2fs";
    const SAID_MAX: u64 = 64 << 10;
    let tool = |error| MeasureError::Tool {
        program: PROGRAM,
        error,
    };
    // In memory, because nothing reads them while the output is read.
    let complaints = memfd_create("complaints", MemfdFlags::CLOEXEC);
    let mut complaints = File::from(complaints.map_err(|errno| tool(errno.into()))?);
    let mut child = command(PROGRAM)
        .arg(name_of(image))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(complaints.try_clone().map_err(tool)?)
        .spawn()
        .map_err(tool)?;
    let output = child.stdout.take();
    let done = output.map_or(Ok(()), |output| read(&mut BufReader::new(output)));
    let status = child.wait().map_err(tool)?;
    let mut said = Vec::new();
    complaints.rewind().map_err(tool)?;
    complaints
        .take(SAID_MAX)
        .read_to_end(&mut said)
        .map_err(tool)?;
    done.map_err(|error| damaged(path, error.to_string()))?;
    Ok((!status.success()).then(|| last_words(&said, image)))
}

/// What a tool has said last, without the name that it knows the image by.
fn last_words(said: &[u8], image: &File) -> String {
    let name = name_of(image).to_string_lossy().into_owned();
    let lines = said.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let banners: [&[u8]; 2] = [b"dumpe2fs 1.", b"debugfs 1."];
    let mut lines = lines
        .filter(|line| !line.is_empty() && !banners.iter().any(|banner| line.starts_with(banner)));
    let line = lines.next().map(text::said).unwrap_or_default();
    if line.is_empty() {
        return "the tools of e2fsprogs do not say why".to_owned();
    }
    line.replace(&format!("'{name}'"), "the image")
        .replace(&name, "the image")
}

/// A running debugfs, to which commands are sent.
pub(super) struct Debugfs {
    path: PathBuf,
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<io::PipeReader>,
    sent: u64,
}

impl Debugfs {
    /// Without the bitmaps it does not know what is free, and opens what has damaged ones.
    pub(super) fn start(
        path: &Path,
        image: &File,
        reads_bitmaps: bool,
    ) -> Result<Self, MeasureError> {
        const PROGRAM: &str = "debugfs";
        let tool = |error| MeasureError::Tool {
            program: PROGRAM,
            error,
        };
        // Answers and complaints in one pipe, so that it is known which belong together.
        let (answers, writer) = io::pipe().map_err(tool)?;
        let mut command = command(PROGRAM);
        if !reads_bitmaps {
            command.arg("-c");
        }
        command
            .args(["-f", "-"])
            .arg(name_of(image))
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().map_err(tool)?)
            .stderr(writer);
        let mut child = command.spawn().map_err(tool)?;
        // The command holds ends of the pipe for writing, without which it would never end.
        drop(command);
        let mut started = Self {
            path: path.to_owned(),
            commands: child.stdin.take(),
            child,
            answers: BufReader::with_capacity(64 << 10, answers),
            sent: 0,
        };
        let end = started.send(&[])?;
        let said = started.read(|output| {
            let mut said = Vec::new();
            loop {
                let line = text::line(output)?;
                if line == end.as_bytes() {
                    return Ok(said);
                }
                said.extend_from_slice(&line);
                said.push(b'\n');
            }
        })?;
        if said
            .windows(9)
            .any(|part| part == b"while try" || part == b"while ope")
        {
            return Err(damaged(path, last_words(&said, image)));
        }
        Ok(started)
    }

    /// Sends commands; returns the line that ends their answers.
    pub(super) fn send(&mut self, commands: &[String]) -> Result<String, MeasureError> {
        self.sent += 1;
        let end = format!("#end {}", self.sent);
        let mut text = String::new();
        for command in commands {
            text.push_str(command);
            text.push('\n');
        }
        self.write(&format!("{text}{end}\n"))?;
        Ok(end)
    }

    /// Sends commands; returns for each the line that ends its answer. All of them fit into a pipe.
    pub(super) fn send_each(&mut self, commands: &[String]) -> Result<Vec<String>, MeasureError> {
        let mut text = String::new();
        let mut ends = Vec::with_capacity(commands.len());
        for command in commands {
            self.sent += 1;
            let end = format!("#end {}", self.sent);
            text.push_str(&format!("{command}\n{end}\n"));
            ends.push(end);
        }
        self.write(&text)?;
        Ok(ends)
    }

    fn write(&mut self, text: &str) -> Result<(), MeasureError> {
        let Some(commands) = &mut self.commands else {
            return Err(damaged(&self.path, text::ended().to_string()));
        };
        let written = commands.write_all(text.as_bytes());
        written.map_err(|error| damaged(&self.path, format!("debugfs has ended ({error})")))
    }

    /// Reads an answer.
    pub(super) fn read<T>(
        &mut self,
        read: impl FnOnce(&mut dyn BufRead) -> io::Result<T>,
    ) -> Result<T, MeasureError> {
        read(&mut self.answers).map_err(|error| damaged(&self.path, error.to_string()))
    }

    /// Lets it end.
    pub(super) fn end(mut self) {
        self.commands = None;
    }
}

impl Drop for Debugfs {
    fn drop(&mut self) {
        self.commands = None;
        // It only reads: nothing is lost. One that has ended cannot be killed, and is waited for.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
