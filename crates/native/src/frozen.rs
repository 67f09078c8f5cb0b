//! Whether a filesystem takes changes at this moment.
//!
//! Who changes something on a frozen filesystem (fsfreeze, a snapshot, a backup) waits in the kernel until it is
//! thawed, where no signal ends it. So another process tries first, which can be left behind.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mobifs_host::{mount_around, mounts};
use rustix::fs::rename;

use crate::filesystem::Filesystem;

/// The hidden command that tries.
const COMMAND: &str = "freeze-probe";
/// What is renamed to itself, whether it is there or not.
const NAME: &str = "lost+found";
/// Where the kernel has processes wait that want to change a frozen filesystem; the probe meets nothing else that
/// waits there.
const FROZEN: &str = "percpu_rwsem_wait";
/// A snapshot freezes for a moment only.
const PATIENCE: Duration = Duration::from_secs(2);
/// A machine that is busy may need so long to start a process.
const QUIET: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Changes would wait.
#[derive(Debug, thiserror::Error)]
pub enum FrozenError {
    /// Until it is thawed.
    #[error(
        "the filesystem at {path} is frozen (fsfreeze, a snapshot or a backup): run this command again when it is \
         thawed, as by `fsfreeze -u {path}`",
        path = path.display()
    )]
    Frozen {
        /// The mount point.
        path: PathBuf,
    },
    /// It is not known.
    #[error("cannot find out whether the filesystem at {path} is frozen: {source}", path = path.display())]
    Probe {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Waits until the filesystem around `path` takes changes, if it is of a type that can be steered. Where it does not,
/// and may have another reason than being frozen, `report` is called with a sentence, and a signal ends this process.
///
/// # Errors
/// [`FrozenError`].
pub fn wait_until_writable(path: &Path, report: &dyn Fn(&str)) -> Result<(), FrozenError> {
    let failed = |source| FrozenError::Probe {
        path: path.to_owned(),
        source,
    };
    let table = mounts().map_err(failed)?;
    let mount = mount_around(path, &table).filter(|mount| Filesystem::is_of_kind(&mount.kind));
    let Some(path) = mount.map(|mount| &*mount.mountpoint) else {
        return Ok(());
    };
    let mut probe = start(path).map_err(failed)?;
    let begun = Instant::now();
    let mut is_told = false;
    while probe.try_wait().map_err(failed)?.is_none() {
        std::thread::sleep(PAUSE);
        if begun.elapsed() < PATIENCE {
            continue;
        }
        if is_at_frozen(&probe) {
            // It ends when the filesystem is thawed.
            let _killed = probe.kill();
            return Err(FrozenError::Frozen {
                path: path.to_owned(),
            });
        }
        if begun.elapsed() >= QUIET && !std::mem::replace(&mut is_told, true) {
            report(&format!(
                "waiting for the filesystem at {}, which takes no changes: it is frozen, or its device does not \
                 answer; nothing is changed until then",
                path.display()
            ));
        }
    }
    Ok(())
}

fn start(path: &Path) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("mobifs")
        .arg(COMMAND)
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Whether it waits where frozen filesystems have processes wait. Where the kernel does not show that, it is not known.
fn is_at_frozen(probe: &Child) -> bool {
    let place = std::fs::read_to_string(format!("/proc/{}/wchan", probe.id()));
    place.is_ok_and(|place| place.contains(FROZEN))
}

/// The probe: returns when the filesystem has taken a change that changes nothing.
pub fn run_freeze_probe(path: &Path) {
    // The kernel waits before it looks for the name, and then does nothing. Who may not change the directory need not.
    let _nothing_to_do = rename(path.join(NAME), path.join(NAME));
}
