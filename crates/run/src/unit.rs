//! A systemd unit's commands, run by `mobifs run`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steering_units::steering_units;

/// Where an administrator's drop-ins are.
const UNITS: &str = "/etc/systemd/system";
const NAME: &str = "50-mobifs-run.conf";
/// Characters before a command that tell systemd how to run it.
const PREFIXES: &[char] = &['-', ':', '+', '!', '|'];
/// What the supervisor needs where a unit lists what it may call. An empty assignment would take
/// the unit's own list away; this one adds to it.
const SUPERVISOR_CALLS: &str = "SystemCallFilter=seccomp pidfd_open pidfd_getfd process_vm_readv \
     openat2 statx statmount close_range unshare syncfs sync_file_range pwritev2 \
     prctl socketpair pipe2 getpeername sendmsg recvmsg setsid clone clone3 wait4 kill poll ppoll ioctl fcntl \
     memfd_create ftruncate dup2 dup3 chdir umask mkdir mkdirat rmdir unlinkat open openat access \
     faccessat faccessat2 newfstatat fstat lseek read readv pread64 write writev pwrite64 close \
     readlink readlinkat getdents64 madvise sysinfo uname sigaltstack rt_sigaction rt_sigprocmask \
     tgkill sched_getattr sched_setattr setxattr getxattr \
     capget fsync inotify_init1 inotify_add_watch";

/// Why there is no drop-in.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// systemd does not answer.
    #[error("cannot ask systemd for the unit {unit}: {reason}")]
    Unknown {
        /// The unit.
        unit: String,
        /// What systemctl says.
        reason: String,
    },
    /// There are no files of it.
    #[error("there is no unit {0}: `systemctl list-unit-files` shows those that there are")]
    Missing(String),
    /// No command to run.
    #[error("the unit {0} has no ExecStart= to be run: only services have")]
    NoCommand(String),
    /// The unit's commands are run so already.
    #[error("the commands of the unit {0} are run by `mobifs run` already")]
    AlreadyThere(String),
    /// Another first argument than the program's name.
    #[error(
        "the unit {0} gives its program another name (ExecStart=@…): write the drop-in by hand"
    )]
    OtherName(String),
    /// Not written.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// What makes systemd run a unit's commands by `mobifs run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    unit: String,
    text: String,
    is_ordered: bool,
}

impl DropIn {
    /// Asks systemd for the unit and rewrites its commands.
    ///
    /// # Errors
    /// There is no such service, or its commands cannot be rewritten.
    pub fn of(
        unit: &str,
        program: &Path,
        app: Option<&str>,
        words: &[OsString],
    ) -> Result<Self, UnitError> {
        let unit = if unit.contains('.') {
            unit.to_owned()
        } else {
            format!("{unit}.service")
        };
        let unknown = |reason: String| UnitError::Unknown {
            unit: unit.clone(),
            reason,
        };
        if unit.contains('/') {
            return Err(unknown("it is the name of no unit".to_owned()));
        }
        let output = Command::new("systemctl")
            .args(["cat", "--no-pager", "--", &unit])
            .output()
            .map_err(|error| unknown(format!("systemctl: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(unknown(said.trim().replace('\n', " ")));
        }
        let service = Service::of(&unit, &output.stdout)?;
        let name = unit
            .rsplit_once('.')
            .map_or(unit.as_str(), |(name, _)| name);
        let mut words: Vec<String> = words
            .iter()
            .map(|word| quoted(&word.to_string_lossy()))
            .collect();
        words.insert(0, format!("--app={}", quoted(app.unwrap_or(name))));
        let program = quoted(&program.to_string_lossy());
        let mut steering = steering_units();
        steering.retain(|name| *name != unit);
        let text = service.rewritten(&unit, &program, &words.join(" "), &steering)?;
        Ok(Self {
            unit,
            text,
            is_ordered: !steering.is_empty(),
        })
    }

    /// The unit's name in full.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The drop-in's content.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether systemd starts what steers before the unit.
    pub const fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Where it belongs.
    pub fn path(&self) -> PathBuf {
        Path::new(UNITS).join(format!("{}.d", self.unit)).join(NAME)
    }

    /// Writes it there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn install(&self) -> Result<(), UnitError> {
        let path = self.path();
        let failed = |source| UnitError::Io {
            path: path.display().to_string(),
            source,
        };
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        std::fs::write(&path, &self.text).map_err(failed)
    }
}

/// What counts of a unit file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Service {
    commands: Vec<String>,
    has_call_filter: bool,
}

impl Service {
    /// What `systemctl cat` has printed of the unit.
    fn of(unit: &str, printed: &[u8]) -> Result<Self, UnitError> {
        // Where systemd does not run, systemctl calls that no failure.
        if printed.trim_ascii().is_empty() {
            return Err(UnitError::Missing(unit.to_owned()));
        }
        Ok(Self::parse(&String::from_utf8_lossy(printed)))
    }

    /// Reads a unit file with its drop-ins, one after the other.
    fn parse(text: &str) -> Self {
        let mut service = Self::default();
        let mut is_service = false;
        for line in logical_lines(text) {
            if line.starts_with('[') {
                is_service = line == "[Service]";
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_service) {
                match (key.trim(), value.trim()) {
                    ("ExecStart", "") => service.commands.clear(),
                    ("ExecStart", command) => service.commands.push(command.to_owned()),
                    ("SystemCallFilter", value) => service.has_call_filter = !value.is_empty(),
                    _ => {}
                }
            }
        }
        service
    }

    /// `steering`: the units to be started before.
    fn rewritten(
        &self,
        unit: &str,
        program: &str,
        words: &str,
        steering: &[String],
    ) -> Result<String, UnitError> {
        if self.commands.is_empty() {
            return Err(UnitError::NoCommand(unit.to_owned()));
        }
        let mut text = format!(
            "# Made by `mobifs run --systemd {unit}`: to be made again when the unit's ExecStart= \
             changes.\n"
        );
        if !steering.is_empty() {
            let names = steering.join(" ");
            text += &format!("[Unit]\nWants={names}\nAfter={names}\n");
        }
        text += "[Service]\nExecStart=\n";
        for command in &self.commands {
            let rest = command.trim_start_matches(PREFIXES);
            let prefixes = command.strip_suffix(rest).unwrap_or_default();
            if rest.starts_with('@') {
                return Err(UnitError::OtherName(unit.to_owned()));
            }
            if rest.starts_with(&format!("{program} run ")) {
                return Err(UnitError::AlreadyThere(unit.to_owned()));
            }
            text += &format!("ExecStart={prefixes}{program} run {words} -- {rest}\n");
        }
        if self.has_call_filter {
            text += SUPERVISOR_CALLS;
            text.push('\n');
        }
        Ok(text)
    }
}

/// Lines without comments; one that ends with a backslash goes on in the next.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut whole = begun.take().unwrap_or_default();
        if let Some(part) = line.strip_suffix('\\') {
            whole += part.trim_end();
            whole.push(' ');
            begun = Some(whole);
        } else {
            whole += line;
            lines.push(whole);
        }
    }
    lines.extend(begun);
    lines
}

/// A word as systemd reads it.
fn quoted(word: &str) -> String {
    let word = word.replace('%', "%%").replace('$', "$$");
    if word.contains([' ', '\t', '"', '\'', '\\', ';']) {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by strangers: it was said to have no command.
    #[test]
    fn a_unit_that_does_not_exist_is_called_so() {
        let refused = Service::of("foo.service", b"\n").unwrap_err().to_string();
        assert!(
            refused.contains("there is no unit foo.service"),
            "{refused}"
        );
    }

    const UNIT: &str = "\
# /lib/systemd/system/db.service
[Unit]
ExecStart=not this

[Service]
Type=notify
ExecStart=/usr/bin/old
ExecStart=
# a comment
ExecStart=-+/usr/bin/db --data=%S/db \\
   --name \"a b\" $OPTIONS
ExecStart=/usr/bin/second
[Install]
ExecStart=/neither/this
";

    #[test]
    fn commands_are_run_as_before_by_another_program() {
        let service = Service::parse(UNIT);
        let text = service
            .rewritten("db.service", "/bin/mobifs", "--app=db", &[])
            .unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "[Service]",
                "ExecStart=",
                "ExecStart=-+/bin/mobifs run --app=db -- /usr/bin/db --data=%S/db --name \"a b\" $OPTIONS",
                "ExecStart=/bin/mobifs run --app=db -- /usr/bin/second",
            ]
        );
        let again = Service::parse(&format!("{UNIT}{text}"));
        let again = again.rewritten("db.service", "/bin/mobifs", "--app=db", &[]);
        assert!(again.is_err(), "{again:?}");
    }

    /// At boot a service was started before the filesystem was steered, and refused.
    #[test]
    fn a_unit_is_started_after_what_steers() {
        let steering = ["mobifs-steer@a\\x2db.service", "other.service"].map(str::to_owned);
        let text = Service::parse("[Service]\nExecStart=/a\n").rewritten("a", "/m", "", &steering);
        let names = "mobifs-steer@a\\x2db.service other.service";
        let ordered = format!("[Unit]\nWants={names}\nAfter={names}\n[Service]\nExecStart=\n");
        assert!(text.unwrap().contains(&ordered));
    }

    #[test]
    fn what_cannot_be_rewritten_is_refused() {
        let rewritten = |text: &str| Service::parse(text).rewritten("a.service", "/m", "", &[]);
        let other_name = rewritten("[Service]\nExecStart=@/bin/a b\n");
        assert!(matches!(other_name, Err(UnitError::OtherName(_))));
        assert!(matches!(
            rewritten("[Socket]\n"),
            Err(UnitError::NoCommand(_))
        ));
        let filtered = rewritten("[Service]\nExecStart=/a\nSystemCallFilter=@system-service\n");
        let filtered = filtered.unwrap();
        // A narrow list ended the service with SIGSYS before its program was started.
        for call in [
            "pidfd_getfd",
            "clone",
            "pipe2",
            "kill",
            "memfd_create",
            "ppoll",
            "sched_setattr",
            "setxattr",
        ] {
            assert!(
                filtered.contains(&format!(" {call} ")),
                "{call}: {filtered}"
            );
        }
    }

    #[test]
    fn words_keep_their_meaning_to_systemd() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a b%"), "\"a b%%\"");
    }
}
