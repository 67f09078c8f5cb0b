//! A large PostMark and a power cut in each of its phases, many times (S2's experiment).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mobifs_device_server::Scale;
use mobifs_testkit::mount::Program;
use mobifs_testkit::random::Random;

use crate::filesystem::Filesystem;
use crate::history::{Class, History, Kind, Phase, PostMark, Running};
use crate::stack::Stack;
use crate::trouble::Trouble;

/// The device: files, journal and some room.
const MEBIBYTES: u64 = 1024;
/// How long a PostMark may need to get where it is cut.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long to wait between two checks.
const PAUSE: Duration = Duration::from_micros(500);
/// Commits every now and then, so that a cut leaves something of every phase.
const CONFIG: &str = "[defaults]\nage_max_ms = 250\n";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `mobifs` program.
    pub program: Program,
    /// A program that calls [`crate::history::work`].
    pub helper: PathBuf,
    /// Where images and mount points are made.
    pub scratch: PathBuf,
    /// The lower filesystem.
    pub filesystem: Filesystem,
    /// What the PostMark does.
    pub postmark: PostMark,
    /// In which phases it is cut.
    pub phases: Vec<Phase>,
    /// Cuts in each of them.
    pub cuts_per_phase: u64,
    /// Real seconds for each of the device.
    pub scale: Scale,
}

/// What the cuts in one phase left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Cuts, after each of which everything was consistent.
    pub recovered: u64,
    /// Longest history that a cut took, in steps.
    pub steps_lost_max: u64,
    /// Longest time from the begin of the work to the cut.
    pub work_max: Duration,
}

/// Cuts in each of the phases; `progress` is called after each cut.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(
    options: &Options,
    mut progress: impl FnMut(Phase, u64),
) -> Result<BTreeMap<Phase, Outcome>, Trouble> {
    let scratch = tempfile::Builder::new()
        .prefix("mobifs-postmark-")
        .tempdir_in(&options.scratch)
        .map_err(|error| error.to_string())?;
    let mut stack = Stack::new(
        scratch.path(),
        &options.program,
        options.filesystem,
        MEBIBYTES,
        options.scale,
    )?;
    let mut outcomes = BTreeMap::new();
    let phases = options.postmark.phases();
    for (phase, steps) in (phases.into_iter()).filter(|(phase, _)| options.phases.contains(phase)) {
        let mut outcome = Outcome::default();
        for number in 0..options.cuts_per_phase {
            let mut random = Random::new(options.postmark.seed ^ number << 8 ^ steps.start << 16);
            // Each in a part of the phase of its own, so that all of it is covered.
            let length = (steps.end - steps.start) / options.cuts_per_phase;
            let step = steps.start + number * length + random.below(length.max(1));
            let place = format!("{phase:?}, cut at step {step}");
            one_cut(
                &mut stack,
                options,
                scratch.path(),
                step,
                &mut random,
                &mut outcome,
            )
            .map_err(|trouble| trouble.at(&place))?;
            progress(phase, outcome.recovered);
        }
        outcomes.insert(phase, outcome);
    }
    stack.end()?;
    Ok(outcomes)
}

fn one_cut(
    stack: &mut Stack,
    options: &Options,
    scratch: &std::path::Path,
    step: u64,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<(), Trouble> {
    let history = History {
        kind: Kind::PostMark,
        class: Class::Relaxed,
        postmark: options.postmark,
    };
    stack.make(&[], CONFIG)?;
    let start = Instant::now();
    let mut running = Running::start(history, &options.helper, &stack.root(), scratch, 0)?;
    while running.returned() < step {
        running.goes_on()?;
        if start.elapsed() > PATIENCE {
            return Err(Trouble::Failed(format!(
                "only at step {} after {PATIENCE:?}",
                running.returned()
            )));
        }
        std::thread::sleep(PAUSE);
    }
    outcome.work_max = outcome.work_max.max(start.elapsed());
    stack.disk().cut(random)?;
    stack.mount().kill()?;
    running.stop();
    stack.fall()?;
    stack.rise(random)?;
    let checked = running.check()?;
    let lost = checked.returned.saturating_sub(checked.found);
    outcome.steps_lost_max = outcome.steps_lost_max.max(lost);
    outcome.recovered += 1;
    stack.umount()?;
    stack.disk().check()
}
