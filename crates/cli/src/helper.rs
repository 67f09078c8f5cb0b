//! The program as a helper of mount(8) and umount(8).
//!
//! mount(8) starts `/sbin/mount.fuse.mobifs SOURCE DIRECTORY [-sfnv] [-N NAMESPACE]
//! [-o OPTIONS] [-t TYPE]`, umount(8) `/sbin/umount.TYPE DIRECTORY [-flnrv]
//! [-N NAMESPACE] [-t TYPE]`. Where only libfuse's `mount.fuse` is installed, that one
//! starts `mobifs SOURCE DIRECTORY [-o OPTIONS]`, for sources written as `STORE` (type
//! `fuse.mobifs`) and `mobifs#STORE` (type `fuse`) alike.
//!
//! umount(8) knows only the filesystem's magic number of what it is given by an absolute path
//! (util-linux 2.38), and then looks for `umount.fuse` alone; by a relative path, or with `-a`, for
//! `umount.fuse.mobifs`, or `umount.fuseblk.mobifs` where sync(2) reaches the mount. The first name
//! belongs to all FUSE filesystems: called by it, this program passes mounts of other filesystems
//! back to umount(8), with `-i`, which is what would have happened without it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mobifs_daemon::control::{ControlClient, find_mount};
use mobifs_daemon::{Code, Failure};

use crate::arguments::{MountArguments, UmountArguments};
use crate::commands;

/// What mount(8) documents for helpers: the command line is wrong.
const EXIT_USAGE: u8 = 1;
/// What mount(8) documents for helpers: mount or umount failed.
const EXIT_FAILED: u8 = 32;

/// A call as a helper.
#[derive(Debug)]
pub(crate) enum Call {
    Mount(Vec<OsString>),
    Umount {
        words: Vec<OsString>,
        /// The name is not ours alone.
        is_for_all: bool,
    },
}

impl Call {
    /// Whether the program was started as a helper.
    pub(crate) fn recognise(words: &[OsString]) -> Option<Self> {
        let name = Path::new(words.first()?).file_name()?.as_bytes();
        let rest = words.get(1..).unwrap_or_default().to_vec();
        if name.starts_with(b"mount.") {
            return Some(Self::Mount(rest));
        }
        if name.starts_with(b"umount.") {
            return Some(Self::Umount {
                words: rest,
                is_for_all: !name.ends_with(b".mobifs"),
            });
        }
        // `mobifs SOURCE DIRECTORY`: no command has a slash in its name.
        let is_path = |word: &OsString| word.as_bytes().contains(&b'/');
        (rest.first().is_some_and(is_path) && rest.get(1).is_some_and(is_path))
            .then_some(Self::Mount(rest))
    }
}

/// Carries the call out.
pub(crate) fn run(call: Call) -> ExitCode {
    let result = match call {
        Call::Mount(words) => parse_mount(&words).and_then(|call| mount(&call)),
        Call::Umount { words, is_for_all } => {
            parse_umount(&words).and_then(|call| umount(&call, &words, is_for_all))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::commands::tell(&failure.message);
            ExitCode::from(if failure.code == Code::Usage {
                EXIT_USAGE
            } else {
                EXIT_FAILED
            })
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct MountCall {
    source: PathBuf,
    mountpoint: PathBuf,
    options: Vec<String>,
    sloppy: bool,
    /// `-f`: do everything but the mount itself.
    fake: bool,
}

fn mount(call: &MountCall) -> Result<(), Failure> {
    let arguments = MountArguments {
        options: call.options.clone(),
        sloppy: call.sloppy,
        store: call.source.clone(),
        mountpoint: call.mountpoint.clone(),
        ..MountArguments::default()
    };
    if call.fake {
        crate::mount_options::Options::parse(&arguments.options, arguments.sloppy)?;
        return Ok(());
    }
    commands::mount::run(&arguments)
}

fn umount(call: &UmountArguments, words: &[OsString], is_for_all: bool) -> Result<(), Failure> {
    if !is_for_all || is_ours(&call.mountpoint) {
        return commands::umount::run(call);
    }
    let error = Command::new("umount").args(handed_back(words)).exec();
    let message = format!("cannot start umount(8): {error}");
    Err(Failure::new(Code::Failed, message))
}

/// Only certain MobiFS mounts are not passed back to umount(8).
fn is_ours(mountpoint: &Path) -> bool {
    let Ok(mount) = find_mount(mountpoint) else {
        return false;
    };
    mount.has_subtype("mobifs") || ControlClient::connect(mountpoint).is_ok()
}

/// The arguments with which umount(8) does by itself what it has passed to its helper.
fn handed_back(words: &[OsString]) -> Vec<OsString> {
    let mut handed = vec![OsString::from("-i")];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // The type is for finding helpers.
        if word.as_bytes() == b"-t" {
            words.next();
        } else {
            handed.push(word.clone());
        }
    }
    handed
}

fn parse_mount(words: &[OsString]) -> Result<MountCall, Failure> {
    let mut call = MountCall {
        source: PathBuf::new(),
        mountpoint: PathBuf::new(),
        options: Vec::new(),
        sloppy: false,
        fake: false,
    };
    let mut paths = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => call.options.push(text(words.next(), "-o")?),
            b"-t" | b"-N" => {
                text(words.next(), "-t")?;
            }
            [b'-', b'o', list @ ..] => call
                .options
                .push(text(Some(&OsString::from_vec(list.to_vec())), "-o")?),
            [b'-', flags @ ..] if !flags.is_empty() => {
                for flag in flags {
                    match flag {
                        b's' => call.sloppy = true,
                        b'f' => call.fake = true,
                        b'n' | b'v' => {}
                        b'r' => call.options.push("ro".to_owned()),
                        b'w' => call.options.push("rw".to_owned()),
                        _ => return Err(unknown(word)),
                    }
                }
            }
            _ => paths.push(word),
        }
    }
    let [source, mountpoint] = paths.as_slice() else {
        return Err(Failure::new(
            Code::Usage,
            "expected SOURCE DIRECTORY [-o OPTIONS]",
        ));
    };
    let bytes = source.as_bytes();
    let source = bytes.strip_prefix(b"mobifs#").unwrap_or(bytes);
    call.source = OsStr::from_bytes(source).into();
    call.mountpoint = mountpoint.into();
    Ok(call)
}

fn parse_umount(words: &[OsString]) -> Result<UmountArguments, Failure> {
    let mut lazy = false;
    let mut paths = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-t" | b"-N" => {
                text(words.next(), "-t")?;
            }
            [b'-', flags @ ..] if !flags.is_empty() => {
                for flag in flags {
                    match flag {
                        b'l' => lazy = true,
                        // A daemon that does not answer is handled anyway.
                        b'f' | b'n' | b'r' | b'v' => {}
                        _ => return Err(unknown(word)),
                    }
                }
            }
            _ => paths.push(word),
        }
    }
    let [mountpoint] = paths.as_slice() else {
        return Err(Failure::new(Code::Usage, "expected DIRECTORY [-l]"));
    };
    Ok(UmountArguments {
        lazy,
        mountpoint: mountpoint.into(),
    })
}

fn text(word: Option<&OsString>, flag: &str) -> Result<String, Failure> {
    let word = word.ok_or_else(|| Failure::new(Code::Usage, format!("{flag} needs a value")))?;
    word.clone().into_string().map_err(|word| {
        Failure::new(
            Code::Usage,
            format!("{} is not UTF-8", word.to_string_lossy()),
        )
    })
}

fn unknown(word: &OsStr) -> Failure {
    Failure::new(
        Code::Usage,
        format!("unknown option {}", word.to_string_lossy()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn mount_call(line: &str) -> MountCall {
        match Call::recognise(&words(line)) {
            Some(Call::Mount(rest)) => parse_mount(&rest).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_way_of_calling_the_helper_is_understood() {
        let call = mount_call("/sbin/mount.fuse.mobifs /srv/store /mnt -sfnv -o rw,noatime");
        assert_eq!(call.source, Path::new("/srv/store"));
        assert_eq!(call.mountpoint, Path::new("/mnt"));
        assert_eq!(call.options, ["rw,noatime"]);
        assert!(call.sloppy && call.fake);
        let call = mount_call("mount.fuse.mobifs mobifs#/srv/store /mnt -n -t fuse.mobifs -oro");
        assert_eq!(
            (call.source, call.options),
            ("/srv/store".into(), vec!["ro".to_owned()])
        );
        let call = mount_call("mobifs /srv/store /mnt -o rw,dev,suid");
        assert_eq!(call.options, ["rw,dev,suid"]);
    }

    #[test]
    fn commands_are_not_mistaken_for_helper_calls() {
        for line in [
            "mobifs mount /a /b",
            "mobifs status /mnt",
            "mobifs --help",
            "mobifs",
        ] {
            assert!(Call::recognise(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn umount_helpers_are_understood() {
        for (name, shared) in [
            ("umount.fuse.mobifs", false),
            ("umount.fuseblk.mobifs", false),
            ("umount.fuse", true),
            ("umount.fuseblk", true),
        ] {
            let line = format!("/sbin/{name} /mnt -l -n -t fuse.mobifs");
            let Some(Call::Umount { words, is_for_all }) = Call::recognise(&words(&line)) else {
                panic!("not recognised");
            };
            assert_eq!(is_for_all, shared, "{name}");
            let call = parse_umount(&words).unwrap();
            assert!(call.lazy);
            assert_eq!(call.mountpoint, Path::new("/mnt"));
        }
    }

    #[test]
    fn what_is_handed_back_is_what_was_given() {
        let given = words("/mnt -l -f -t fuse.sshfs -N 17");
        assert_eq!(handed_back(&given), words("-i /mnt -l -f -N 17"));
    }

    #[test]
    fn wrong_calls_are_refused() {
        for line in ["/mnt", "/a /b -o", "/a /b -z", "/a /b /c"] {
            assert_eq!(
                parse_mount(&words(line)).unwrap_err().code,
                Code::Usage,
                "{line}"
            );
        }
    }
}
