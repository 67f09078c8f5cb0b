//! Scripts on a real mount: the `mobifs` binary, the kernel, a directory of a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use mobifs_types::FileKind;

use crate::harness::{compare_trees, execute_on_both};
use crate::model::{Model, State};
use crate::operations::{Answer, Event, FileRef, Operation, Payload, Script};
use crate::target::{DirectoryTarget, Target as _};
use crate::timeline::{Timeline, top_level_apps};
use crate::tree::Compare;

/// Apps commit on their own all the time, so that a cut meets every stage; `gamma` is
/// durable.
const CONFIG: &str = "
apply_idle_ms = 300
[defaults]
age_max_ms = 40
[[app]]
match = \"gamma\"
class = \"durable\"
";
const DURABLE_APP: &str = "gamma";

/// Times of the root directory belong to no app, and the store's own directory
/// counts as a link of it in the lower filesystem.
const VIEW: Compare = Compare {
    root: false,
    ..Compare::ALL
};

/// The kernel cuts a write that does not start on a page at the next page.
const PAGE_BYTES: u64 = 4096;
/// It hands on at most so much at a time.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Why no mount can be made here, if so.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("no /dev/fuse")
}

/// The `mobifs` binary: the one that `MOBIFS_BIN` names, else that of this workspace,
/// built first.
///
/// # Panics
/// If it cannot be built.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(chosen) = std::env::var_os("MOBIFS_BIN") {
            return PathBuf::from(chosen);
        }
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "mobifs-cli"])
            .output();
        let built = built.unwrap_or_else(|error| panic!("cargo does not run: {error}"));
        assert!(
            built.status.success(),
            "mobifs is not built: {}",
            text(&built)
        );
        // This test is <target>/<profile>/deps/<name>-<hash>.
        let test = std::env::current_exe().unwrap_or_default();
        let target = test.ancestors().nth(3).unwrap_or(Path::new("target"));
        target.join("debug").join("mobifs")
    })
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs `mobifs` with these arguments.
fn mobifs<'a>(arguments: impl IntoIterator<Item = &'a str>, paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(binary());
    command.args(arguments).args(paths);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}: {}", output.status, text(&output))),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// A mount that ends with the value.
#[derive(Debug)]
struct Mount {
    config: PathBuf,
    store: PathBuf,
    mountpoint: PathBuf,
}

impl Mount {
    fn new(base: &Path) -> Result<Self, String> {
        let mount = Self {
            config: base.join("mobifs.toml"),
            store: base.join("store"),
            mountpoint: base.join("mnt"),
        };
        fs::create_dir(&mount.store)
            .and_then(|()| fs::create_dir(&mount.mountpoint))
            .and_then(|()| fs::write(&mount.config, CONFIG))
            .map_err(|error| error.to_string())?;
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&self) -> Result<(), String> {
        mobifs(
            ["mount", "--config"],
            &[&self.config, &self.store, &self.mountpoint],
        )
    }

    fn open(&self) -> Result<DirectoryTarget, String> {
        DirectoryTarget::new(&self.mountpoint).map_err(|error| error.to_string())
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let wanted = self.mountpoint.to_string_lossy();
        mounts
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(&*wanted))
    }

    fn detach(&self) {
        while self.is_mounted() {
            // It fails only where the mount ends by itself at this moment.
            let _raced = Command::new("umount")
                .arg("-l")
                .arg(&self.mountpoint)
                .output();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _tried = mobifs(["umount"], &[&self.mountpoint]);
        }
        self.detach();
    }
}

/// A mount beside the model.
struct Session {
    mount: Mount,
    target: DirectoryTarget,
    model: Model,
    timeline: Timeline,
}

/// Runs a script on a mount below `base`, which is an empty directory, and compares
/// with the model: every answer, the tree after every `tree_every` events, what every
/// power cut leaves, and at the end the unmounted store.
///
/// # Errors
/// What differs.
pub fn live_mounted(script: &Script, base: &Path, tree_every: usize) -> Result<(), String> {
    let mount = Mount::new(base)?;
    let model = Model::default();
    let mut session = Session {
        target: mount.open()?,
        timeline: Timeline::new(top_level_apps, model.state().clone()),
        mount,
        model,
    };
    for (index, event) in script.events.iter().enumerate() {
        session
            .happen(event)
            .and_then(|()| match (index + 1) % tree_every {
                0 => compare_trees(&session.model, &mut session.target, VIEW),
                _ => Ok(()),
            })
            .map_err(|problem| format!("at event {index} ({event:?}): {problem}"))?;
    }
    session
        .end()
        .map_err(|problem| format!("at the end: {problem}"))
}

impl Session {
    fn happen(&mut self, event: &Event) -> Result<(), String> {
        let mountpoint: &Path = &self.mount.mountpoint;
        match event {
            Event::Do(operation) => {
                self.note_pieces(operation);
                execute_on_both(&mut self.model, &mut self.target, operation)?;
                self.timeline.step(self.model.state());
                self.note_durable(operation);
            }
            Event::SyncApp(app) => {
                if self.is_app(app) {
                    mobifs(["sync", "--commit-only", "--app", app], &[mountpoint])?;
                    self.timeline.committed(app);
                }
            }
            Event::SyncAll => {
                mobifs(["sync", "--commit-only"], &[mountpoint])?;
                self.timeline.all_committed();
            }
            Event::Apply => {
                mobifs(["sync"], &[mountpoint])?;
                self.timeline.all_committed();
            }
            Event::Cut => self.cut()?,
            // The daemon decides by itself.
            Event::Close(_) | Event::CommitNext | Event::TidyUp => {}
        }
        Ok(())
    }

    fn is_app(&self, app: &str) -> bool {
        let paths = self.model.state().paths();
        paths
            .get(app)
            .is_some_and(|(_, inode)| inode.kind() == FileKind::Directory)
    }

    /// The kernel hands a large or unaligned write on in pieces, and a commit may come
    /// between two of them: each is a point in the app's history.
    fn note_pieces(&mut self, operation: &Operation) {
        let (file, offset, data) = match operation {
            Operation::Write { file, offset, data } => (file, Some(*offset), *data),
            Operation::Append { file, data } => (file, self.model.size(file), *data),
            _ => return,
        };
        let Some(offset) = offset else { return };
        let mut length = (PAGE_BYTES - offset % PAGE_BYTES) % PAGE_BYTES;
        while length < u64::from(data.length) {
            if length > 0 {
                let data = Payload {
                    length: length as u32,
                    ..data
                };
                let mut partial = self.model.clone();
                let piece = Operation::Write {
                    file: file.clone(),
                    offset,
                    data,
                };
                if partial.execute(&piece).is_ok() {
                    self.timeline.step(partial.state());
                }
            }
            length += REQUEST_BYTES_MAX;
        }
    }

    fn note_durable(&mut self, operation: &Operation) {
        if let Operation::Fsync {
            file: FileRef::Path(path),
        } = operation
            && top_level_apps(path, FileKind::Regular) == DURABLE_APP
            && self.model.execute(operation) == Ok(Answer::Done)
        {
            self.timeline.committed(DURABLE_APP);
        }
    }

    fn cut(&mut self) -> Result<(), String> {
        mobifs(["drill", "power-cut", "--yes"], &[&self.mount.mountpoint])?;
        self.target.close_all();
        self.mount.detach();
        self.mount.mount()?;
        self.target = self.mount.open()?;
        let found = self.target.tree().map_err(|error| error.to_string())?;
        self.timeline.explain(&found, VIEW)?;
        let state = State::from_tree(&found);
        self.timeline = Timeline::new(top_level_apps, state.clone());
        self.model = Model::new(state);
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        compare_trees(&self.model, &mut self.target, VIEW)?;
        drop(self.target);
        mobifs(["umount"], &[&self.mount.mountpoint])?;
        let mut plain = DirectoryTarget::new(&self.mount.store).map_err(|e| e.to_string())?;
        compare_trees(&self.model, &mut plain, VIEW)
            .map_err(|problem| format!("after the unmount: {problem}"))
    }
}
