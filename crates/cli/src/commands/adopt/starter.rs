//! What mounts an adopted directory: at once, and when the machine or the session starts.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_daemon::{Code, Failure};
use mobifs_host::{shell_path, shell_word};

use super::boot::{Boot, user_runtime};
use super::durable::{cannot, make_directories, remove_file, replace_file, sync_directory};
use super::note::{Note, Notes, configuration, escaped};
use super::place::Place;
use super::unit::{UnitText, init_text};
use crate::commands::tell;

/// This program's own file.
fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(cannot("find", Path::new("the program")))
}

/// What starts one mount.
#[derive(Debug)]
pub(super) struct Starter<'a> {
    place: &'a Place,
    note: &'a Note,
    notes: &'a Notes,
}

impl<'a> Starter<'a> {
    pub(super) const fn new(place: &'a Place, note: &'a Note, notes: &'a Notes) -> Self {
        Self { place, note, notes }
    }

    /// Has it mounted at the next start, durably.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn install(&self) -> Result<(), Failure> {
        match self.note.boot() {
            Boot::SystemUnit | Boot::UserUnit => self.install_unit(),
            Boot::InitFile => {
                let path = self.init_file();
                replace_file(&path, &init_text(self.place, self.note.options()))
                    .map_err(cannot("write", &path))
            }
            Boot::Nothing => Ok(()),
        }
    }

    fn install_unit(&self) -> Result<(), Failure> {
        let (path, link) = (self.unit_file()?, self.unit_link()?);
        let program = program()?;
        let text = UnitText {
            program: &program,
            place: self.place,
            options: self.note.options(),
            notes: self.notes.directory(),
            is_of_user: self.note.boot() == Boot::UserUnit,
        };
        for directory in [&path, &link].map(|path| path.parent().unwrap_or(Path::new("/"))) {
            make_directories(directory, 0o755).map_err(cannot("make", directory))?;
        }
        replace_file(&path, &text.write()).map_err(cannot("write", &path))?;
        remove_file(&link).map_err(cannot("remove", &link))?;
        symlink(&path, &link)
            .and_then(|()| sync_directory(link.parent().unwrap_or(Path::new("/"))))
            .map_err(cannot("make", &link))?;
        self.systemctl(&["daemon-reload"])
    }

    /// Nothing mounts it at the next start, durably.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        match self.note.boot() {
            Boot::SystemUnit | Boot::UserUnit => {
                for path in [self.unit_link()?, self.unit_file()?] {
                    remove_file(&path).map_err(cannot("remove", &path))?;
                }
                // Directories that were made for it and have nothing else. Those of the system stay.
                let link = self.unit_link()?;
                let above = if self.note.boot() == Boot::UserUnit {
                    3
                } else {
                    1
                };
                let _others_use_it = link
                    .ancestors()
                    .skip(1)
                    .take(above)
                    .try_for_each(fs::remove_dir);
                // Without systemd there is nothing that knows the unit.
                let _known_until_next_start = self.systemctl(&["daemon-reload"]);
                Ok(())
            }
            Boot::InitFile => {
                let path = self.init_file();
                remove_file(&path).map_err(cannot("remove", &path))
            }
            Boot::Nothing => Ok(()),
        }
    }

    /// Mounts it now.
    ///
    /// # Errors
    /// Why it cannot be mounted.
    pub(super) fn mount(&self) -> Result<(), Failure> {
        if self.note.boot().is_unit() {
            let unit = self.unit_name();
            // A unit that has failed too often is started all the same.
            let _unknown = self.systemctl(&["reset-failed", &unit]);
            self.systemctl(&["start", &unit])?;
            if self.place.is_served()? {
                return Ok(());
            }
            let (unit, user) = (self.unit_name(), self.user_flag());
            let message = format!(
                "{unit} was started and nothing is mounted at {}; see journalctl {user}-u {}",
                self.place.directory().display(),
                shell_word(&unit)
            );
            return Err(Failure::new(Code::Failed, message));
        }
        self.mount_in_background()
    }

    /// By a process of its own: one that starts a daemon keeps nothing open.
    fn mount_in_background(&self) -> Result<(), Failure> {
        let program = program()?;
        let mut command = Command::new(&program);
        command.args(["mount", "-o", self.note.options(), "--"]);
        command.arg(self.place.store()).arg(self.place.directory());
        let output = command.output().map_err(cannot("start", &program))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("mobifs: "))
            .collect();
        if output.status.success() {
            said.iter().for_each(|line| tell(line));
            return Ok(());
        }
        let code = Code::ALL
            .into_iter()
            .find(|code| output.status.code() == Some(code.number().into()));
        let why = said
            .last()
            .map_or_else(|| output.status.to_string(), |line| (*line).to_owned());
        Err(Failure::new(code.unwrap_or(Code::Failed), why))
    }

    /// What happens when the machine starts, in a sentence.
    pub(super) fn described(&self) -> String {
        match self.note.boot() {
            Boot::SystemUnit => format!("{} mounts it when the machine starts", self.unit_name()),
            Boot::UserUnit => format!(
                "{} of your systemd mounts it when you log in",
                self.unit_name()
            ),
            Boot::InitFile => format!(
                "{} is there for /etc/init.d/S50mobifs (docs/EMBEDDED.md), which mounts it when the machine \
                 starts; without that script: {} where other filesystems are mounted",
                self.init_file().display(),
                self.command()
            ),
            Boot::Nothing => format!(
                "nothing mounts it at the next start: put {} where the machine or your session starts",
                self.command()
            ),
        }
    }

    /// The command that mounts it.
    fn command(&self) -> String {
        format!("`mobifs adopt {}`", shell_path(self.place.directory()))
    }

    /// Name of the unit.
    pub(super) fn unit_name(&self) -> String {
        format!("mobifs-adopted-{}.service", escaped(self.place.directory()))
    }

    fn unit_directory(&self) -> Result<PathBuf, Failure> {
        Ok(match self.note.boot() {
            Boot::UserUnit => configuration()?.join("systemd/user"),
            _ => "/etc/systemd/system".into(),
        })
    }

    fn unit_file(&self) -> Result<PathBuf, Failure> {
        Ok(self.unit_directory()?.join(self.unit_name()))
    }

    fn unit_link(&self) -> Result<PathBuf, Failure> {
        let wanting = match self.note.boot() {
            Boot::UserUnit => "default.target.wants",
            _ => "local-fs.target.wants",
        };
        Ok(self.unit_directory()?.join(wanting).join(self.unit_name()))
    }

    fn init_file(&self) -> PathBuf {
        let name = format!("adopted-{}.conf", escaped(self.place.directory()));
        let base = self.notes.directory().parent();
        base.unwrap_or(Path::new("/")).join(name)
    }

    fn user_flag(&self) -> &'static str {
        match self.note.boot() {
            Boot::UserUnit => "--user ",
            _ => "",
        }
    }

    fn systemctl(&self, words: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new("systemctl");
        if self.note.boot() == Boot::UserUnit {
            command.arg("--user");
            if let Some(runtime) = user_runtime() {
                command.env("XDG_RUNTIME_DIR", runtime);
            }
        }
        let shown = format!("systemctl {}{}", self.user_flag(), words.join(" "));
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Code::Failed, format!("`{shown}` failed: {error}"))
        };
        let output = command
            .args(words)
            .output()
            .map_err(|error: io::Error| failed(&error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(&said.lines().next().unwrap_or("it said nothing")))
    }
}
