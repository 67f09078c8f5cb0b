//! The `mobifs` program of this workspace.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How `mobifs` ends where a mount is in use.
const IN_USE: i32 = 3;
/// How long a mount without users may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(1);

/// A `mobifs` binary.
#[derive(Clone, Debug)]
pub struct Program(PathBuf);

impl Program {
    /// The binary at this path.
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The one that `MOBIFS_BIN` names, else that of this workspace, built first.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn of_workspace() -> Self {
        static BINARY: OnceLock<PathBuf> = OnceLock::new();
        let path = BINARY.get_or_init(|| {
            if let Some(chosen) = std::env::var_os("MOBIFS_BIN") {
                return PathBuf::from(chosen);
            }
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--package", "mobifs-cli"])
                // Tests run with small stacks, on which the compiler crashes.
                .env_remove("RUST_MIN_STACK")
                .output();
            let built = built.unwrap_or_else(|error| panic!("cargo does not run: {error}"));
            assert!(
                built.status.success(),
                "mobifs is not built: {}",
                printed(&built)
            );
            // This test is <target>/<profile>/deps/<name>-<hash>.
            let test = std::env::current_exe().unwrap_or_default();
            let target = test.ancestors().nth(3).unwrap_or(Path::new("target"));
            target.join("debug").join("mobifs")
        });
        Self(path.clone())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs it with these words and then these paths; answers what it printed.
    ///
    /// # Errors
    /// It did not end well, or not even start.
    pub fn run(&self, words: &[&str], paths: &[&Path]) -> Result<String, String> {
        succeed(Command::new(&self.0).args(words).args(paths))
    }

    /// Unmounts properly, as soon as the mount is not in use: a process that another thread is
    /// starting has all our files open until it executes its program.
    ///
    /// # Errors
    /// What `mobifs umount` says, of a busy mount after a long time.
    pub fn umount(&self, mountpoint: &Path) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let mut command = Command::new(&self.0);
            let output = command.arg("umount").arg(mountpoint).output();
            let is_busy = output
                .as_ref()
                .is_ok_and(|output| output.status.code() == Some(IN_USE));
            if !is_busy || start.elapsed() > PATIENCE {
                return judge(&command, output).map(drop);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Runs a command that must end well; answers what it printed.
///
/// # Errors
/// It did not end well, or not even start.
pub fn succeed(command: &mut Command) -> Result<String, String> {
    let output = command.output();
    judge(command, output)
}

fn judge(command: &Command, output: io::Result<Output>) -> Result<String, String> {
    match output {
        Ok(output) if output.status.success() => Ok(printed(&output)),
        Ok(output) => Err(format!(
            "{command:?}: {}: {}",
            output.status,
            printed(&output)
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Everything that a program printed.
pub fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}
