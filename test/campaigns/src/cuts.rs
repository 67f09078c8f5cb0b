//! The campaign: rounds of work, a power cut, perhaps more cuts while it recovers, and the
//! checks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mobifs_device_server::Scale;
use mobifs_testkit::mount::Program;
use mobifs_testkit::random::Random;
use mobifs_testkit::statistics::statistics;
use mobifs_testkit::tree::Tree;
use tempfile::TempDir;

use crate::filesystem::Filesystem;
use crate::history::{self, History, Running};
use crate::stack::{Stack, tree};
use crate::trouble::{OnPath as _, Trouble};
use crate::world::{Past, World};

/// Rounds after which the filesystem is made anew, so that checks stay short.
const ROUNDS_OF_A_FILESYSTEM: u64 = 20;
/// Longest wait for the work that a round needs; a slow machine cuts earlier.
const WORK_MAX: Duration = Duration::from_millis(1500);
/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_micros(500);
/// How long work goes on after a sync, and after an apply or an unmount began.
const SYNCED_MAX: Duration = Duration::from_millis(20);
const CUT_AFTER_MAX: Duration = Duration::from_millis(12);
/// How long a recovery may run before it is cut.
const RECOVERY_MAX: Duration = Duration::from_millis(40);

/// What a campaign is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `mobifs` program.
    pub program: Program,
    /// A program that calls [`history::work`].
    pub helper: PathBuf,
    /// Where images and mount points are made.
    pub scratch: PathBuf,
    /// The lower filesystem.
    pub filesystem: Filesystem,
    /// Power cuts.
    pub cuts: u64,
    /// Fixes all random choices, but not the machine's timing.
    pub seed: u64,
    /// Real seconds for each of the device.
    pub scale: Scale,
    /// How many times slower than usual the machine is: cuts come so much later.
    pub slowness: u32,
}

/// When the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// While programs work.
    Work,
    /// During an apply.
    Apply,
    /// During the unmount.
    Unmount,
    /// While a mount recovers from a cut.
    Recovery,
    /// While a mount recovers from a cut of a recovery.
    RecoveryOfRecovery,
}

statistics! {
    /// Cuts by when they came.
    pub struct MomentStatistics {
        /// While programs worked.
        pub work: u64,
        /// During an apply.
        pub apply: u64,
        /// During an unmount.
        pub unmount: u64,
        /// While a mount recovered from a cut.
        pub recovery: u64,
        /// While a mount recovered from a cut of a recovery.
        pub recovery_of_recovery: u64,
    }
}

impl MomentStatistics {
    /// All cuts.
    pub const fn all(&self) -> u64 {
        self.work + self.apply + self.unmount + self.recovery + self.recovery_of_recovery
    }

    const fn count(&mut self, moment: Moment) {
        let count = match moment {
            Moment::Work => &mut self.work,
            Moment::Apply => &mut self.apply,
            Moment::Unmount => &mut self.unmount,
            Moment::Recovery => &mut self.recovery,
            Moment::RecoveryOfRecovery => &mut self.recovery_of_recovery,
        };
        *count += 1;
    }
}

impl fmt::Display for MomentStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cuts ({} of work, {} of an apply, {} of an unmount, {} of a recovery, {} of a \
             recovery of one)",
            self.all(),
            self.work,
            self.apply,
            self.unmount,
            self.recovery,
            self.recovery_of_recovery
        )
    }
}

statistics! {
    /// What a campaign did.
    pub struct CutStatistics {
        /// Cuts.
        pub cuts: MomentStatistics,
        /// Steps of histories that had returned before a cut and were checked after it.
        pub steps: u64,
        /// How many of these were promised to be there.
        pub promised: u64,
        /// How many of these were there.
        pub found: u64,
        /// Operations of random worlds.
        pub operations: u64,
        /// Cuts that the lower filesystem did not survive by itself, so that nothing could be
        /// checked.
        pub lower_lost: u64,
    }
}

impl fmt::Display for CutStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; {} steps had returned, {} of them were promised, {} were there; \
             {} operations of random worlds; {} cuts destroyed the lower filesystem",
            self.cuts, self.steps, self.promised, self.found, self.operations, self.lower_lost
        )
    }
}

/// A campaign on one filesystem.
pub struct Campaign {
    options: Options,
    stack: Stack,
    scratch: TempDir,
    statistics: CutStatistics,
    /// The step that each history has reached on the present filesystem.
    at: BTreeMap<String, u64>,
    /// What the present round did, for an engineer that looks for a fault.
    story: Vec<String>,
}

impl Campaign {
    /// Serves a device.
    ///
    /// # Errors
    /// It cannot be served.
    pub fn new(options: Options) -> Result<Self, Trouble> {
        let scratch = tempfile::Builder::new()
            .prefix("mobifs-campaign-")
            .tempdir_in(&options.scratch)
            .map_err(|error| error.to_string())?;
        let stack = Stack::new(
            scratch.path(),
            &options.program,
            options.filesystem,
            options.filesystem.mebibytes_min(),
            options.scale,
        )?;
        Ok(Self {
            options,
            stack,
            scratch,
            statistics: CutStatistics::default(),
            at: BTreeMap::new(),
            story: Vec::new(),
        })
    }

    /// Cuts as often as requested, or until `goes_on`, called after each round, returns false.
    ///
    /// # Errors
    /// The first thing that is wrong, with the seed of its round.
    pub fn run(
        mut self,
        mut goes_on: impl FnMut(&CutStatistics) -> bool,
    ) -> Result<CutStatistics, Trouble> {
        let mut number = 0;
        let mut known = None;
        let mut is_over = false;
        while !is_over && self.statistics.cuts.all() < self.options.cuts {
            let seed = self
                .options
                .seed
                .wrapping_mul(1_000_003)
                .wrapping_add(number);
            let round = self.round(seed, known.take());
            number += 1;
            let tree = match round {
                Err(Trouble::LowerLost(_)) => {
                    self.statistics.lower_lost += 1;
                    continue;
                }
                other => other.map_err(|trouble| self.explain(trouble, seed))?,
            };
            if number.is_multiple_of(ROUNDS_OF_A_FILESYSTEM) {
                self.stack.umount()?;
                self.stack.disk().check()?;
            } else {
                known = Some(tree);
            }
            is_over = !goes_on(&self.statistics);
        }
        if known.is_some() {
            self.stack.umount()?;
            self.stack.disk().check()?;
        }
        self.stack.end()?;
        Ok(self.statistics)
    }

    fn explain(&mut self, trouble: Trouble, seed: u64) -> Trouble {
        let name = self.options.filesystem.name();
        let log = self.stack.mount().log();
        let last = log.len().saturating_sub(2000);
        let last = log.char_indices().map(|(at, _)| at).find(|at| *at >= last);
        let config = &self.stack.mount().places().config;
        let config = std::fs::read_to_string(config).unwrap_or_default();
        eprintln!("the round: {:#?}, with\n{config}", self.story);
        eprintln!("the daemon's log ends with:\n{}", &log[last.unwrap_or(0)..]);
        if keeps_evidence() {
            let kernel_log = std::process::Command::new("dmesg").output();
            let kernel_log = kernel_log.map(|output| output.stdout).unwrap_or_default();
            let kept = std::fs::write(self.scratch.path().join("kernel.log"), kernel_log);
            eprintln!("kept: {}, {kept:?}", self.scratch.path().display());
            self.scratch.disable_cleanup(true);
        }
        trouble.at(&format!("{name}, round of seed {seed}"))
    }

    /// One round; returns the tree after it, which is mounted and committed.
    fn round(&mut self, seed: u64, known: Option<Tree>) -> Result<Tree, Trouble> {
        self.story.clear();
        if keeps_evidence() {
            self.stack
                .keep_evidence(&self.scratch.path().join("evidence"))?;
        }
        let mut random = Random::new(seed);
        let known = match known {
            Some(known) => known,
            None => self.make(&mut random)?,
        };
        let cutting = Arc::new(AtomicBool::new(false));
        let mut programs = self.start(&mut random)?;
        let world = (programs.is_empty() || random.chance(70))
            .then(|| {
                let (program, root) = (&self.options.program, self.stack.root());
                World::start(program, &root, &known, random.below(u64::MAX), &cutting)
            })
            .transpose()?;
        wait_for_work(
            &programs,
            world.as_ref(),
            WORK_MAX * self.options.slowness,
            &mut random,
        );
        if random.chance(40) {
            let returned: Vec<u64> = programs.iter().map(Running::returned).collect();
            self.stack.mount().command(&["sync", "--commit-only"])?;
            self.story.push(format!("synced after {returned:?}"));
            for (program, step) in programs.iter_mut().zip(returned) {
                program.promise(step);
            }
            self.pause(SYNCED_MAX, &mut random);
        }
        for program in &mut programs {
            program.goes_on()?;
        }
        let past = self.cut(&mut programs, world, &cutting, &mut random)?;
        self.recover(&mut random)?;
        let found = self.stack.rise(&mut random)?;
        if let Some(past) = past {
            if keeps_evidence() {
                let path = self.scratch.path().join("operations");
                std::fs::write(&path, past.story()).on(&path)?;
            }
            past.check(&found, crate::view(self.options.filesystem))?;
        }
        self.check(&mut programs)
    }

    fn make(&mut self, random: &mut Random) -> Result<Tree, Trouble> {
        self.stack.make(&[], &config(random))?;
        self.at.clear();
        tree(&self.stack.root())
    }

    /// Starts some of the histories again.
    fn start(&mut self, random: &mut Random) -> Result<Vec<Running>, Trouble> {
        let all = history::all();
        let wanted = 1 + random.below(3);
        let mut chosen: Vec<History> = Vec::new();
        for _ in 0..wanted {
            let history = *random.pick(&all);
            if chosen.iter().all(|other| other.app() != history.app()) {
                chosen.push(history);
            }
        }
        let (helper, root, scratch) =
            (&self.options.helper, self.stack.root(), self.scratch.path());
        let start = |history: History| {
            let from = self.at.get(&history.app()).copied().unwrap_or(0);
            Running::start(history, helper, &root, scratch, from)
        };
        let names: Vec<String> = chosen.iter().map(History::app).collect();
        self.story.push(format!("{names:?} at work"));
        chosen.into_iter().map(start).collect()
    }

    /// Cuts the power at some moment and unmounts everything.
    fn cut(
        &mut self,
        programs: &mut [Running],
        world: Option<World>,
        cutting: &AtomicBool,
        random: &mut Random,
    ) -> Result<Option<Past>, Trouble> {
        let moment = match random.below(10) {
            0..5 => Moment::Work,
            5..8 => Moment::Apply,
            _ => Moment::Unmount,
        };
        self.statistics.cuts.count(moment);
        self.story.push(format!("cut during {moment:?}"));
        let mut world = world;
        let mut past = None;
        if moment == Moment::Unmount {
            // A running program would keep the mount busy.
            programs.iter_mut().for_each(Running::stop);
            self.statistics.operations += world.as_ref().map_or(0, World::done);
            past = world.take().map(World::stop).transpose()?;
        }
        let places = self.stack.mount().places();
        let (program, root) = (self.options.program.clone(), places.mountpoint.clone());
        let words: Option<&[&str]> = match moment {
            Moment::Apply => Some(&["sync"]),
            Moment::Unmount => Some(&["umount"]),
            _ => None,
        };
        let command = words.map(|words| std::thread::spawn(move || program.run(words, &[&root])));
        self.pause(CUT_AFTER_MAX, random);
        let is_over = command
            .as_ref()
            .is_some_and(|command| command.is_finished());
        cutting.store(true, Ordering::SeqCst);
        programs.iter_mut().for_each(Running::power_goes);
        self.stack.disk().cut(random)?;
        let returned: Vec<u64> = programs.iter().map(Running::returned).collect();
        self.story
            .push(format!("{returned:?} returned; command over: {is_over}"));
        // From here on no write reaches the device, whatever the daemon answers.
        self.stack.mount().kill().map_err(Trouble::Violation)?;
        programs.iter_mut().for_each(Running::stop);
        self.statistics.operations += world.as_ref().map_or(0, World::done);
        past = match world {
            Some(world) => Some(world.stop()?),
            None => past,
        };
        let said = command.map(|command| command.join());
        if moment == Moment::Unmount && is_over {
            let Some(Ok(Ok(_))) = said else {
                let said = format!("umount before the power was cut: {said:?}");
                return Err(Trouble::Violation(said));
            };
            // It had committed everything, well before the cut.
            for program in programs.iter_mut() {
                program.promise(program.returned());
            }
            if let Some(past) = &mut past {
                past.all_committed();
            }
        }
        self.stack.fall()?;
        Ok(past)
    }

    /// A random time shorter than the usual one, scaled by the machine's slowness.
    fn below(&self, usual: Duration, random: &mut Random) -> Duration {
        let longest = usual * self.options.slowness;
        Duration::from_micros(random.below(longest.as_micros() as u64))
    }

    fn pause(&self, usual: Duration, random: &mut Random) {
        std::thread::sleep(self.below(usual, random));
    }

    /// Recovers a few times, each time cut by power loss.
    fn recover(&mut self, random: &mut Random) -> Result<(), Trouble> {
        for moment in [Moment::Recovery, Moment::RecoveryOfRecovery] {
            if random.chance(50) {
                return Ok(());
            }
            let delay = self.below(RECOVERY_MAX, random);
            let is_in_time = self.stack.cut_recovery(delay, random)?;
            // A recovery that had already mounted counts as a cut of work.
            let moment = if is_in_time { moment } else { Moment::Work };
            self.story.push(format!("cut during {moment:?}"));
            self.statistics.cuts.count(moment);
        }
        Ok(())
    }

    /// Checks every history; returns the tree as the checks left it.
    fn check(&mut self, programs: &mut [Running]) -> Result<Tree, Trouble> {
        for program in programs.iter_mut() {
            let name = program.history().app();
            let before = self.at.get(&name).copied().unwrap_or(0);
            let checked = program.check()?;
            self.statistics.steps += checked.returned - before;
            self.statistics.promised += checked.floor - before;
            self.statistics.found += checked.found.min(checked.returned).saturating_sub(before);
            self.at.insert(name, checked.found);
        }
        let worked: Vec<String> = programs.iter().map(|p| p.history().app()).collect();
        let root = self.stack.root();
        for history in history::all() {
            let name = history.app();
            let at = self.at.get(&name).copied();
            if let Some(at) = at.filter(|_| !worked.contains(&name)) {
                history
                    .check(&root.join(&name), at, at)
                    .map_err(|problem| Trouble::Violation(format!("{name} at rest: {problem}")))?;
            }
        }
        // Looking at a database may change it (a rollback), and what is changed now must
        // not count as known before it is committed.
        self.stack.mount().command(&["sync", "--commit-only"])?;
        tree(&root)
    }
}

/// Whether the environment asks to keep the files of a failed round; keeps them then.
fn keeps_evidence() -> bool {
    std::env::var_os("MOBIFS_KEEP").is_some()
}

/// Waits until one of those at work, chosen at random, has done so much: they are not equally fast.
fn wait_for_work(
    programs: &[Running],
    world: Option<&World>,
    longest: Duration,
    random: &mut Random,
) {
    let start = Instant::now();
    let count = |index: usize| match programs.get(index) {
        Some(program) => program.returned(),
        None => world.map_or(0, World::done),
    };
    let workers = programs.len() + usize::from(world.is_some());
    let chosen = random.below(workers as u64) as usize;
    let most = if chosen < programs.len() { 60 } else { 400 };
    let wanted = count(chosen) + 1 + random.below(most);
    while count(chosen) < wanted && start.elapsed() < longest {
        std::thread::sleep(PAUSE);
    }
}

/// Apps commit and apply all the time, so that a cut meets every stage.
fn config(random: &mut Random) -> String {
    let journal_kib = *random.pick(&[256, 1024, 8192]);
    let direct_bytes_max = *random.pick(&[0, 16 << 10, 1 << 20]);
    let apply_idle_ms = *random.pick(&[5, 40, 30_000]);
    let age_max_ms = *random.pick(&[3, 20, 200]);
    format!(
        "journal_bytes = \"{journal_kib}KiB\"
direct_write_max_bytes = {direct_bytes_max}
apply_idle_ms = {apply_idle_ms}
[defaults]
age_max_ms = {age_max_ms}
[[app]]
match = \"*{}\"
class = \"durable\"
{}",
        history::DURABLE_SUFFIX,
        crate::world::LAYOUT.config
    )
}
