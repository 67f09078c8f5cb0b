//! A process that works on a history.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use clap::ValueEnum as _;
use rustix::process::{Pid, Signal, kill_process_group};

use super::postmark::STEPS_OF_A_CALL_MAX;
use super::{Class, History, Kind, Step};
use crate::trouble::{OnPath as _, Trouble};

/// A history that is being worked. Its processes end with the value.
pub struct Running {
    history: History,
    app: PathBuf,
    child: Child,
    errors: PathBuf,
    reader: Option<JoinHandle<()>>,
    returned: Arc<AtomicU64>,
    from: u64,
    /// Steps that had returned at the power cut.
    before_cut: Option<u64>,
    /// Promised to be there after a cut.
    floor: u64,
}

impl Running {
    /// Works after step `from`, in the mount at `root`. `helper` is a program that calls
    /// [`super::work`]; its standard error goes to a file in `scratch`.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start(
        history: History,
        helper: &Path,
        root: &Path,
        scratch: &Path,
        from: u64,
    ) -> Result<Self, Trouble> {
        let name = history.app();
        let errors = scratch.join(format!("{name}.stderr"));
        let app = root.join(&name);
        let kind = history.kind.to_possible_value();
        let postmark = history.postmark;
        let mut child = Command::new(helper)
            .arg("work")
            .args(kind.iter().map(|value| value.get_name()))
            .arg(&app)
            .args(["--from", &from.to_string()])
            .args(["--files", &postmark.files.to_string()])
            .args(["--transactions", &postmark.transactions.to_string()])
            .args(["--seed", &postmark.seed.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).on(&errors)?)
            .process_group(0)
            .spawn()
            .on(helper)?;
        let returned = Arc::new(AtomicU64::new(from));
        let reader = child.stdout.take().map(|output| {
            let returned = Arc::clone(&returned);
            std::thread::spawn(move || {
                // An incomplete line was written by a process that was killed.
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for step in lines.filter_map(|line| line.parse::<Step>().ok()) {
                    returned.store(step.number, Ordering::SeqCst);
                }
            })
        });
        Ok(Self {
            history,
            app,
            child,
            errors,
            reader,
            returned,
            from,
            before_cut: None,
            floor: from,
        })
    }

    /// The history.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// The last step that is known to have returned.
    pub fn returned(&self) -> u64 {
        self.returned.load(Ordering::SeqCst)
    }

    /// The power is cut now.
    pub fn power_goes(&mut self) {
        self.before_cut = Some(self.returned());
    }

    /// `step` is committed.
    pub fn promise(&mut self, step: u64) {
        self.floor = self.floor.max(step);
    }

    /// Nothing but a power cut may end it.
    ///
    /// # Errors
    /// It has ended.
    pub fn goes_on(&mut self) -> Result<(), Trouble> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(Trouble::Violation(format!(
                "{} ended before the power was cut ({ended:?}): {}",
                self.app.display(),
                std::fs::read_to_string(&self.errors).unwrap_or_default()
            ))),
        }
    }

    /// Ends it.
    pub fn stop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32)
            && self.reader.is_some()
        {
            // It fails for nothing but processes that have ended.
            let _ended = kill_process_group(group, Signal::KILL);
        }
        let _status = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _joined = reader.join();
        }
    }

    /// Checks what a power cut left of it; returns the step after which its state is.
    ///
    /// # Errors
    /// It is not what was promised.
    pub fn check(&mut self) -> Result<Checked, Trouble> {
        self.stop();
        let returned = self.returned();
        let mut floor = self.floor;
        if self.history.class == Class::Durable {
            let trusted = match (self.history.kind, self.before_cut) {
                // A directory that cannot be opened for its fsync is no error to SQLite.
                (Kind::RowsDelete, Some(before_cut)) => before_cut,
                _ => returned,
            };
            floor = floor.max(trusted.saturating_sub(self.history.returned_not_promised()));
        }
        let in_flight = match self.history.kind {
            Kind::PostMark => STEPS_OF_A_CALL_MAX,
            _ => 1,
        };
        let found = self
            .history
            .check(&self.app, floor, returned + in_flight)
            .map_err(|problem| {
                let app = self.history.app();
                let (from, promised) = (self.from, self.floor);
                Trouble::Violation(format!(
                    "{app} (began after step {from}, {promised} committed by a sync, {returned} \
                     returned): {problem}"
                ))
            })?;
        Ok(Checked {
            found,
            returned,
            floor,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// After which step the app is.
    pub found: u64,
    /// The last step that had returned.
    pub returned: u64,
    /// The last one that was promised.
    pub floor: u64,
}
