//! The texts that mount an adopted directory when the machine starts.
//!
//! The unit is as `dist/mobifs@.service` and `dist/user/mobifs@.service` are, with two differences: one
//! of the system starts with the local filesystems, before everything that could use the directory; and
//! before it mounts, it brings an adoption that was cut short to its end.

use std::path::Path;

use mobifs_host::{shell_path, shell_word};

use super::journald;
use super::place::Place;

/// What a unit is made of.
#[derive(Debug)]
pub(super) struct UnitText<'a> {
    pub(super) program: &'a Path,
    pub(super) place: &'a Place,
    pub(super) options: &'a str,
    pub(super) notes: &'a Path,
    pub(super) is_of_user: bool,
}

impl UnitText<'_> {
    pub(super) fn write(&self) -> String {
        let (directory, store) = (self.place.directory(), self.place.store());
        let (program, at) = (word(self.program), word(directory));
        let (dependencies, extra, end, target) = if self.is_of_user {
            (String::new(), String::new(), USER_END, "default.target")
        } else {
            let is_journal = journald::lies_in(directory);
            let early = EARLY.replace(
                "JOURNAL",
                if is_journal {
                    " systemd-journal-flush.service"
                } else {
                    ""
                },
            );
            let extra = if is_journal { JOURNALD } else { "" };
            (early, extra.to_owned(), SYSTEM_END, "local-fs.target")
        };
        let description = directory.display().to_string().replace('%', "%%");
        let parent = path(self.place.parent());
        let notes = word(self.notes);
        let options = word(Path::new(self.options));
        let store = word(store);
        format!(
            "# Made by `mobifs adopt`; `mobifs unadopt` removes it.\n\
             [Unit]\n\
             Description=MobiFS at {description}\n\
             Documentation=man:mobifs-adopt(1) man:mobifs.toml(5)\n\
             RequiresMountsFor={parent}\n\
             {dependencies}\
             # The daemon itself counts its restarts.\n\
             StartLimitIntervalSec=0\n\
             \n\
             [Service]\n\
             Type=notify\n\
             ExecCondition={program} adopt --finish --notes {notes} -- {at}\n\
             ExecStart={program} mount --foreground -o {options} -- {store} {at}\n\
             {extra}\
             ExecReload=/bin/kill -HUP $MAINPID\n\
             # What outlives the daemon: the connection with the kernel, its memory, the store's lock,\n\
             # the control socket, the configuration.\n\
             FileDescriptorStoreMax=8\n\
             Restart=on-abnormal\n\
             RestartForceExitStatus=6 101\n\
             RestartSec=10ms\n\
             TimeoutStartSec=infinity\n\
             KillMode=process\n\
             {end}\
             \n\
             [Install]\n\
             WantedBy={target}\n"
        )
    }
}

/// Before all that may use the directory, and at shutdown until after all that.
const EARLY: &str = "\
DefaultDependencies=no
Wants=modprobe@fuse.service
After=modprobe@fuse.service systemd-tmpfiles-setup-dev.service systemd-remount-fs.service local-fs-pre.target
Before=local-fs.targetJOURNAL umount.target
Conflicts=umount.target
";

/// journald has its files open as long as it writes there, and would keep the mount busy. Where the daemon
/// has died it is not asked: it may wait for the next daemon, which starts after this.
const JOURNALD: &str = "\
ExecStop=-/bin/sh -c 'test -z \"$$MAINPID\" || exec timeout 10 journalctl --relinquish-var'
";

const SYSTEM_END: &str = "\
# Where memory is short, programs that can be started again without loss end first.
OOMScoreAdjust=-900
# Everything is committed before the daemon ends; how long that takes depends on the disk.
TimeoutStopSec=15min
";

const USER_END: &str = "\
# The machine's systemd gives all services of a user together two minutes.
TimeoutStopSec=110s
";

/// A word of a command line in a unit: systemd undoes quotes, backslashes, variables and specifiers.
fn word(text: &Path) -> String {
    path(text).replace('$', "$$")
}

/// A path as a unit has it where systemd looks for no variables.
fn path(text: &Path) -> String {
    let text = text.to_string_lossy();
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('%', "%%"))
}

/// The file for `dist/init/S50mobifs`, which the shell reads.
pub(super) fn init_text(place: &Place, options: &str) -> String {
    format!(
        "# Made by `mobifs adopt`; `mobifs unadopt` removes it.\nSTORE={}\nMOUNT={}\nOPTIONS={}\n",
        shell_path(place.store()),
        shell_path(place.directory()),
        shell_word(options)
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn text(directory: &str, is_of_user: bool) -> String {
        UnitText {
            program: Path::new("/usr/bin/mobifs"),
            place: &Place::of(PathBuf::from(directory)).unwrap(),
            options: "noatime",
            notes: Path::new("/etc/mobifs/adopted"),
            is_of_user,
        }
        .write()
    }

    /// Settings of a service without which a killed daemon is not replaced, or loses what it had.
    #[test]
    fn the_units_keep_and_restart_as_those_that_are_installed() {
        for (installed, made) in [
            (
                include_str!("../../../../../dist/mobifs@.service"),
                text("/var/log", false),
            ),
            (
                include_str!("../../../../../dist/user/mobifs@.service"),
                text("/home/me/.cache", true),
            ),
        ] {
            let of_service = |unit: &str| -> Vec<String> {
                let service = unit
                    .split("[Service]")
                    .nth(1)
                    .unwrap()
                    .split("[Install]")
                    .next()
                    .unwrap();
                let settings = service
                    .lines()
                    .filter(|line| line.contains('=') && !line.starts_with('#'));
                let own = [
                    "ExecStart=",
                    "ExecCondition=",
                    "ExecStop=",
                    "EnvironmentFile=",
                ];
                let mut kept: Vec<_> = settings
                    .filter(|line| !own.iter().any(|name| line.starts_with(name)))
                    .map(str::to_owned)
                    .collect();
                kept.sort();
                kept
            };
            assert_eq!(of_service(&made), of_service(installed));
            assert!(made.contains("StartLimitIntervalSec=0\n"));
        }
    }

    #[test]
    fn a_unit_of_the_system_comes_with_the_local_filesystems() {
        let unit = text("/srv/a", false);
        assert!(
            unit.contains("\nBefore=local-fs.target umount.target\n"),
            "{unit}"
        );
        assert!(unit.contains("\nWantedBy=local-fs.target\n") && !unit.contains("journalctl"));
        let unit = text("/var/log", false);
        assert!(
            unit.contains("\nBefore=local-fs.target systemd-journal-flush.service umount.target\n")
        );
        assert!(
            unit.contains("\nExecStop=-/bin/sh -c ")
                && unit.contains("journalctl --relinquish-var")
        );
        let unit = text("/home/me/.cache", true);
        assert!(!unit.contains("local-fs") && unit.contains("\nWantedBy=default.target\n"));
    }

    #[test]
    fn names_are_escaped_for_what_reads_them() {
        let unit = text("/srv/50% of \"a\\b\" $HOME", false);
        assert!(
            unit.contains("-- \"/srv/50%% of \\\"a\\\\b\\\" $$HOME\"\n"),
            "{unit}"
        );
        assert!(unit.contains("\"/srv/50%% of \\\"a\\\\b\\\" $$HOME.mobifs-store\" "));
        let place = Place::of("/srv/it's $HOME".into()).unwrap();
        let script = format!(
            "{}printf %s \"$STORE|$MOUNT|$OPTIONS\"",
            init_text(&place, "rw,config=/a b")
        );
        let shell = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(shell.stdout).unwrap(),
            "/srv/it's $HOME.mobifs-store|/srv/it's $HOME|rw,config=/a b"
        );
    }
}
