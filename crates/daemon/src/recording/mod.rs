//! `mobifs mount --record FILE`: what programs do with the mount, as a trace.
//!
//! Workers put what they observe into memory ([`buffer`]), a thread of low priority appends it
//! to a log beside FILE ([`writer`]), and when the mount has ended the laboratory makes a trace of
//! it. A worker never waits for any of that, because then the mount would depend on where FILE
//! lies, which may depend on the mount: what comes faster than it can be written is counted as
//! lost and left out. Whatever happens to the recording, the mount goes on.

mod buffer;
mod paths;
mod processes;
mod shared;
mod writer;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::events::EventObserver;
use crate::mount_paths::MountPaths;
use mobifs_base::{ObservedOperation, Operation, UserOperation};
use mobifs_recording::{
    LogHeader, LogPart, Observation, apps_frame, part_bytes_max, resume_log, start_log,
};
use mobifs_volume::{RecordingStatus, Rules, Volume};
use parking_lot::Mutex;

use crate::adapter::{OperationObserver, observation_clock};
use crate::failure::{Code, Failure};
use crate::laboratory;
use buffer::Buffer;
use paths::RecordingPaths;
use processes::Processes;
use shared::Shared;
use writer::Writer;

/// A recording under way.
#[derive(Debug)]
pub(crate) struct Recording {
    paths: RecordingPaths,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recording {
    /// Begins a recording; on error no file remains.
    pub(crate) fn start(file: &Path, mount: &MountPaths, rules: &Rules) -> Result<Self, Failure> {
        let paths = RecordingPaths::check(file, mount)?;
        let mut log = paths.create_log()?;
        let header = LogHeader {
            started_at: observation_clock(),
            tool: concat!("mobifs ", env!("CARGO_PKG_VERSION")).to_owned(),
            apps: rules.app_globs(),
            notes: vec![format!("mount of {}", mount.store.display())],
        };
        let started = start_log(&mut log, &header);
        let started = started.and_then(|()| Self::with_log(paths.clone(), log));
        started.map_err(|error| {
            paths.discard();
            paths.failed(&error)
        })
    }

    /// Goes on with the recording of a daemon that has died. `volume` is not served yet.
    pub(crate) fn resume(file: &Path, rules: &Rules, volume: &Volume) -> Result<Self, Failure> {
        let paths = RecordingPaths::known(file)?;
        let mut log = paths.open_log()?;
        let note = "what was observed last before the daemon died";
        let failed = |error: io::Error| paths.failed(&error);
        resume_log(&mut log, note)
            .map_err(|error| Failure::new(Code::Failed, format!("{}: {error}", file.display())))?;
        for part in &mut names_in_use(volume) {
            log.write_all(part.frame(0)).map_err(failed)?;
        }
        let resumed = Self::with_log(paths.clone(), log).map_err(failed)?;
        // Perhaps the configuration had been loaded again.
        resumed.apps_changed(rules);
        Ok(resumed)
    }

    fn with_log(paths: RecordingPaths, log: File) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            buffer: Buffer::new(),
            processes: Processes::default(),
            events: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            stopped: Mutex::new(None),
            frames: Mutex::default(),
        });
        let writer = Writer::new(Arc::clone(&shared), log)?;
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || writer.run())?;
        shared.buffer.wake_with(thread.thread().clone());
        Ok(Self {
            paths,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The observer of the kernel adapter's operations.
    pub(crate) fn operations(&self) -> Arc<dyn OperationObserver> {
        Arc::clone(&self.shared) as Arc<_>
    }

    /// The observer of the event watcher.
    pub(crate) fn events(&self) -> Arc<dyn EventObserver> {
        Arc::clone(&self.shared) as Arc<_>
    }

    /// `mobifs touch`.
    pub(crate) fn touched(&self) {
        self.shared.user(UserOperation::Touch);
    }

    /// `mobifs touch --screen`.
    pub(crate) fn screen_changed(&self, is_on: bool) {
        self.shared.screen_changed(is_on);
    }

    /// Other directories may be apps from now on.
    pub(crate) fn apps_changed(&self, rules: &Rules) {
        self.shared
            .frames
            .lock()
            .push(apps_frame(&rules.app_globs()));
        self.shared.buffer.wake();
    }

    pub(crate) fn status(&self) -> RecordingStatus {
        RecordingStatus {
            file: self.paths.file.to_string_lossy().into_owned(),
            events: self.shared.events.load(Ordering::Relaxed) + self.shared.buffer.len(),
            lost: self.shared.lost.load(Ordering::Relaxed),
            stopped: self.shared.stopped.lock().clone(),
        }
    }

    /// The mount was not made: as if nothing had been recorded.
    pub(crate) fn discard(&self) {
        self.end();
        self.paths.discard();
    }

    /// The mount has ended: has the laboratory make a trace of the log, if it is installed. The
    /// log stays if that fails.
    pub(crate) fn finish(&self) {
        if !self.end() {
            return;
        }
        let (file, log) = (self.paths.file.display(), self.paths.log.display());
        let word = mobifs_host::shell_path(&self.paths.file);
        let Some(laboratory) = laboratory::installed() else {
            tracing::info!(
                "the recording is {log}; `mobifs trace finish {word}` makes a trace of it where \
                 the laboratory (mobifs-lab) is installed"
            );
            return;
        };
        match laboratory::finish_trace(&laboratory, &self.paths.file) {
            Ok(()) => {
                let lost = self.shared.lost.load(Ordering::Relaxed);
                let events = self.shared.events.load(Ordering::Relaxed);
                tracing::info!(%file, observations = events, lost, "recorded");
            }
            Err(why) => tracing::error!(
                "the recording is {log} and no trace yet ({why}); `mobifs trace finish {word}` \
                 makes one"
            ),
        }
    }

    /// Brings what was observed to the log; false if that was done before.
    fn end(&self) -> bool {
        let Some(thread) = self.thread.lock().take() else {
            return false;
        };
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.shared.buffer.wake();
        if thread.join().is_err() {
            tracing::error!("the thread that writes the recording has panicked");
        }
        true
    }
}

/// The names of everything in use: some may have been found in the last instant of a daemon
/// that has died.
fn names_in_use(volume: &Volume) -> Vec<LogPart> {
    let begun_at = observation_clock();
    let mut parts: Vec<LogPart> = Vec::new();
    volume.names_in_memory(|object, name, found| {
        let name = name.as_bytes();
        let observed = ObservedOperation {
            begun_at,
            duration_ns: 0,
            thread: 0,
            object,
            operation: Operation::Listed { name, found },
            error: 0,
        };
        let process = 0;
        let is_full = |part: &LogPart| part.size_bytes() >= part_bytes_max() / 2;
        if parts.last().is_none_or(is_full) {
            parts.push(LogPart::default());
        }
        if let Some(part) = parts.last_mut() {
            part.push(&Observation::Operation { process, observed });
        }
    });
    parts
}
