//! A process that writes, and the record of its steps.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process_group};

use super::oracle::Log;
use super::supervisor;
use super::writers::{Writer, app_name};
use crate::history::{Step, boottime_ns};
use crate::trouble::{OnPath as _, Trouble};

/// Which programs work, and how.
#[derive(Clone, Debug)]
pub(super) struct Launch<'a> {
    /// A program that calls [`Writer::work`].
    pub(super) helper: &'a Path,
    /// What comes before it: `mobifs run` and its options, or nothing.
    pub(super) before: Vec<String>,
    /// The library of `mobifs run`, where it is built.
    pub(super) library: Option<&'a Path>,
    /// The filesystem.
    pub(super) root: &'a Path,
    /// For the standard error of writers.
    pub(super) scratch: &'a Path,
}

/// A writer at work. Its processes end with the value.
pub(super) struct Running {
    writer: Writer,
    is_durable: bool,
    child: Child,
    errors: PathBuf,
    /// Where it works.
    place: PathBuf,
    started_ns: u64,
    steps: Arc<Mutex<Vec<Step>>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    /// `is_durable`: its calls are waited for, whatever comes before it. `pauses`: it leaves the
    /// machine to others after each step.
    pub(super) fn start(
        writer: Writer,
        is_durable: bool,
        pauses: bool,
        launch: &Launch<'_>,
    ) -> Result<Self, Trouble> {
        let app = app_name(writer, is_durable);
        let errors = launch.scratch.join(format!("{app}.stderr"));
        let place = launch.root.join(&app);
        let mut words = launch.before.iter();
        let mut command = match words.next() {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(words).arg(launch.helper);
                command
            }
            None => Command::new(launch.helper),
        };
        if let Some(library) = launch.library {
            command.env("MOBIFS_RUN_PRELOAD", library);
        }
        let pause_us = if pauses { writer.pause_us() } else { 0 };
        let started_ns = boottime_ns();
        let mut child = command
            .args(["write", &writer.name()])
            .arg(&place)
            .args(["--pause-us", &pause_us.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).on(&errors)?)
            .process_group(0)
            .spawn()
            .on(launch.helper)?;
        let steps = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stdout.take().map(|output| {
            let steps = Arc::clone(&steps);
            std::thread::spawn(move || {
                // An incomplete line was written by a process that was killed.
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for step in lines.filter_map(|line| line.parse().ok()) {
                    steps
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(step);
                }
            })
        });
        Ok(Self {
            writer,
            is_durable,
            child,
            errors,
            place,
            started_ns,
            steps,
            reader,
        })
    }

    /// How many steps have returned.
    pub(super) fn returned(&self) -> usize {
        let steps = self.steps.lock();
        steps.unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Kills one of the processes of its supervisor, if it has one that is whole: whether it has.
    pub(super) fn kill_of_supervisor(&self, which: usize) -> bool {
        supervisor::kill_one(&self.place, which)
    }

    /// Nothing ends it but the campaign.
    pub(super) fn goes_on(&mut self) -> Result<(), Trouble> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(Trouble::Failed(format!(
                "{} ended ({ended:?}): {}",
                app_name(self.writer, self.is_durable),
                std::fs::read_to_string(&self.errors).unwrap_or_default()
            ))),
        }
    }

    /// Ends it; returns what it did.
    pub(super) fn finish(mut self) -> Log {
        self.stop();
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        Log {
            writer: self.writer,
            is_durable: self.is_durable,
            started_ns: self.started_ns,
            steps: std::mem::take(&mut steps),
        }
    }

    fn stop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed())
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
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
