//! One session: a steered filesystem on a served device, programs that write to it, a daemon that is
//! left alone, stopped or killed. The device records everything, so that the power can be cut afterwards
//! at any moment of it, as often as wanted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mobifs_device_server::Scale;
use mobifs_testkit::mount::{Program, succeed};
use mobifs_testkit::random::Random;
use rustix::process::{Pid, Signal, kill_process};

use super::oracle::Commit;
use super::recorded::{DeviceClock, Listed, Recorded};
use super::running::{Launch, Running};
use super::setting::{DaemonFate, Setting, Subject, random_time};
use super::snapshots;
use crate::disk::Disk;
use crate::filesystem::Filesystem;
use crate::history::boottime_ns;
use crate::trouble::{OnPath as _, Trouble};

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// The room that is left of a nearly full filesystem when the writers have begun.
const ROOM_BYTES: u64 = 5 << 20;
/// What takes the rest.
pub(super) const BALLAST: &str = "ballast";
/// Between two kills of processes of supervisors.
const KILL_EVERY: Duration = Duration::from_millis(100);
/// How long writers may take for their first steps.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the session needs of the campaign.
pub(super) struct Tools<'a> {
    pub(super) mobifs: &'a Program,
    pub(super) helper: &'a Path,
    pub(super) scale: Scale,
}

/// The daemon of a mount point, ended with the value.
struct Daemon<'a> {
    mobifs: &'a Program,
    at: PathBuf,
    log: PathBuf,
    config: PathBuf,
    pid: Option<Pid>,
    is_stopped: bool,
}

impl Daemon<'_> {
    fn start(&mut self) -> Result<(), Trouble> {
        let mut command = Command::new(self.mobifs.path());
        command.args(["steer", "--log"]).arg(&self.log);
        succeed(command.arg("--config").arg(&self.config).arg(&self.at))?;
        let status = self.mobifs.run(&["status", "--json"], &[&self.at])?;
        let status: serde_json::Value =
            serde_json::from_str(&status).map_err(|error| error.to_string())?;
        let pid = status["daemon_pid"].as_i64();
        self.pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        Ok(())
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Trouble> {
        if let Some(pid) = self.pid {
            kill_process(pid, signal).map_err(|errno| format!("the daemon: {errno}"))?;
        }
        self.is_stopped = signal == Signal::STOP;
        if signal == Signal::KILL
            && let Some(pid) = self.pid.take()
        {
            wait_for_end(pid);
        }
        Ok(())
    }

    fn commit(&self) -> Result<Commit, Trouble> {
        let asked_ns = boottime_ns();
        self.mobifs.run(&["sync", "--commit-only"], &[&self.at])?;
        Ok(Commit {
            asked_ns,
            returned_ns: boottime_ns(),
        })
    }

    fn answers(&self) -> bool {
        self.pid.is_some() && !self.is_stopped
    }

    /// Ends it, or restores what a killed one has left.
    fn end(&mut self) -> Result<(), Trouble> {
        if self.is_stopped {
            self.signal(Signal::CONT)?;
        }
        self.mobifs.run(&["steer", "--stop"], &[&self.at])?;
        self.pid = None;
        Ok(())
    }
}

/// A process that is killed while it waits for the device ends when the device has answered, and is the daemon
/// until then.
fn wait_for_end(pid: Pid) {
    let state = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let start = Instant::now();
    let lives = || {
        let text = fs::read_to_string(&state).unwrap_or_default();
        let after_name = text.rsplit_once(") ").map(|(_, rest)| rest);
        after_name.is_some_and(|rest| !rest.starts_with('Z'))
    };
    while lives() && start.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if self.pid.is_some() {
            let _ended = self.end();
        }
    }
}

/// Has writers work on a new filesystem in `scratch`.
///
/// # Errors
/// Something fails that must not.
pub(super) fn record(
    tools: &Tools<'_>,
    setting: &Setting,
    scratch: &Path,
    random: &mut Random,
) -> Result<Recorded, Trouble> {
    let base = make(setting, scratch)?;
    let journal = scratch.join("journal");
    let filesystem = setting.subject.filesystem();
    let disk = Disk::serve_again(scratch, filesystem, tools.scale, &journal)?;
    disk.mount()?;
    let at = disk.mountpoint().to_owned();
    let mut daemon = Daemon {
        mobifs: tools.mobifs,
        at: at.clone(),
        log: scratch.join("daemon.log"),
        config: scratch.join("config.toml"),
        pid: None,
        is_stopped: false,
    };
    fs::write(&daemon.config, setting.config()).on(&daemon.config)?;
    if setting.subject.is_steered() {
        daemon.start()?;
    }
    let mut running = start_writers(tools, setting, &at, scratch)?;
    if setting.is_nearly_full {
        leave_room(&at)?;
    }
    let clock = DeviceClock::read(&disk, tools.scale)?;
    let began = disk.device_now()?;
    let Passed {
        mut commits,
        snapshots,
        supervisor_kills,
    } = pass_time(setting, &mut running, &mut daemon, random)?;
    let logs = running.into_iter().map(Running::finish).collect();
    if setting.subject.is_steered() {
        let commits_all = daemon.pid.is_some();
        let asked_ns = boottime_ns();
        daemon.end()?;
        // One that was killed commits nothing, and what it has left is only restored.
        commits.extend(commits_all.then(|| Commit {
            asked_ns,
            returned_ns: boottime_ns(),
        }));
    }
    let ended = disk.device_now()?;
    drop(daemon);
    disk.umount()?;
    disk.end()?;
    Ok(Recorded {
        base,
        journal,
        clock,
        logs,
        commits,
        snapshots,
        supervisor_kills,
        during: began..ended,
    })
}

/// Makes the filesystem and a copy of it.
fn make(setting: &Setting, scratch: &Path) -> Result<PathBuf, Trouble> {
    let image = scratch.join("image");
    let file = fs::File::create(&image).on(&image)?;
    file.set_len(setting.mebibytes << 20).on(&image)?;
    match setting.subject.filesystem() {
        Filesystem::Ext4 => make_ext4(setting, &image)?,
        other => other.make(&image, &[])?,
    }
    let base = scratch.join("base");
    let mut copy = Command::new("cp");
    succeed(copy.arg("--sparse=always").args([&image, &base]))?;
    Ok(base)
}

fn make_ext4(setting: &Setting, image: &Path) -> Result<(), Trouble> {
    let journal = format!("size={}", setting.journal_mebibytes);
    let layout = setting.layout.options();
    let mut options: Vec<&str> = layout.iter().map(String::as_str).collect();
    // The kernel initialises nothing later, which would only fill the device's journal.
    options.extend(["-J", &journal, "-E", "lazy_itable_init=0"]);
    Filesystem::Ext4.make(image, &options)?;
    let options = format!("mount_opts={}", setting.subject.mount_options());
    let mut tune = Command::new("tune2fs");
    tune.args(["-o", setting.subject.default_option()]);
    succeed(tune.args(["-E", &options]).arg(image))?;
    Ok(())
}

fn start_writers(
    tools: &Tools<'_>,
    setting: &Setting,
    root: &Path,
    scratch: &Path,
) -> Result<Vec<Running>, Trouble> {
    let mobifs = tools.mobifs.path().to_string_lossy().into_owned();
    let run = |words: &[&str]| {
        let words = words.iter().map(|&word| word.to_owned());
        let mut before = vec![mobifs.clone(), "run".to_owned()];
        before.extend(words.chain(["--".to_owned()]));
        before
    };
    let library = tools.mobifs.path().with_file_name("libmobifs_run.so");
    let library = library.is_file().then_some(&*library);
    let mechanism = match setting.mechanism {
        "preload" if library.is_none() => "both",
        mechanism => mechanism,
    };
    let launch = |before| Launch {
        helper: tools.helper,
        before,
        library,
        root,
        scratch,
    };
    let mut running = Vec::new();
    for &writer in &setting.relaxed {
        let before = match setting.subject {
            Subject::Steered | Subject::Btrfs => run(&["--mechanism", mechanism]),
            Subject::Ordered => run(&["--unsafe"]),
        };
        let pauses = setting.hot != Some(writer);
        running.push(Running::start(writer, false, pauses, &launch(before))?);
    }
    if let Some(writer) = setting.durable {
        let before = if setting.durable_under_run {
            run(&["--class", "durable"])
        } else {
            Vec::new()
        };
        running.push(Running::start(writer, true, true, &launch(before))?);
    }
    let start = Instant::now();
    while running.iter().any(|running| running.returned() == 0) {
        for running in &mut running {
            running.goes_on()?;
        }
        if start.elapsed() > PATIENCE {
            return Err("writers have not begun".to_owned().into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(running)
}

/// Takes all room but a little.
fn leave_room(at: &Path) -> Result<(), Trouble> {
    let about = rustix::fs::statvfs(at).map_err(|errno| errno.to_string())?;
    let free = about.f_bfree * about.f_frsize;
    let ballast = free.saturating_sub(ROOM_BYTES).to_string();
    let mut command = Command::new("fallocate");
    succeed(command.args(["-l", &ballast]).arg(at.join(BALLAST)))?;
    Ok(())
}

/// What happened while writers worked.
#[derive(Default)]
struct Passed {
    commits: Vec<Commit>,
    snapshots: Vec<Listed>,
    supervisor_kills: u64,
}

/// The time in which writers work: with commits that are asked for, and what befalls the daemon and supervisors.
fn pass_time(
    setting: &Setting,
    running: &mut [Running],
    daemon: &mut Daemon<'_>,
    random: &mut Random,
) -> Result<Passed, Trouble> {
    let mut passed = Passed::default();
    let mut kills = Kills::default();
    let start = Instant::now();
    let mut fate = setting.fate;
    let mut ends_at = None;
    let mut sync_at = random_time(2 * setting.sync_every, random);
    while start.elapsed() < setting.lasts {
        std::thread::sleep(PAUSE);
        for running in running.iter_mut() {
            running.goes_on()?;
        }
        let now = start.elapsed();
        if setting.kills_supervisors && kills.kill(now, running) {
            passed.supervisor_kills += 1;
        }
        match (fate, ends_at) {
            (DaemonFate::Killed { at } | DaemonFate::Replaced { at, .. }, None) if now >= at => {
                daemon.signal(Signal::KILL)?;
                ends_at = Some(at);
            }
            (DaemonFate::Stopped { at, .. }, None) if now >= at => {
                daemon.signal(Signal::STOP)?;
                ends_at = Some(at);
            }
            (DaemonFate::Replaced { at, after }, Some(_)) if now >= at + after => {
                daemon.start()?;
                fate = DaemonFate::Lives;
            }
            (DaemonFate::Stopped { at, lasts }, Some(_)) if now >= at + lasts => {
                daemon.signal(Signal::CONT)?;
                fate = DaemonFate::Lives;
            }
            _ => {}
        }
        if now >= sync_at && setting.subject.is_steered() {
            sync_at = now + random_time(2 * setting.sync_every, random);
            if daemon.answers() {
                let names = snapshots::names(&daemon.at);
                let commit = daemon.commit()?;
                let returned_ns = commit.returned_ns;
                passed.commits.push(commit);
                passed.snapshots.push(Listed { names, returned_ns });
            }
        }
    }
    Ok(passed)
}

/// Kills of processes of supervisors, of one writer after the other.
#[derive(Default)]
struct Kills {
    last: Duration,
    turn: usize,
}

impl Kills {
    /// Kills one, if it is time; whether it did.
    fn kill(&mut self, now: Duration, running: &[Running]) -> bool {
        if now < self.last + KILL_EVERY {
            return false;
        }
        self.last = now;
        self.turn += 1;
        let writer = running.get(self.turn % running.len().max(1));
        writer.is_some_and(|writer| writer.kill_of_supervisor(self.turn / running.len().max(1)))
    }
}
