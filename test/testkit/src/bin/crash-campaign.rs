//! Long searches over the crash double: power cuts (`--stage cuts`), tight limits
//! (`--stage limits`), daemons killed under them (`--stage lives`), failing calls
//! (`--stage faults`), or all of these, a fourth of the time each; and processes killed over the
//! journal store alone (`--stage kills`).
//!
//! Ends with status 1 at the first violation, which it prints shrunk.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mobifs_testkit::campaign::{Campaign, Search};
use mobifs_testkit::crash::search::SearchOptions;
use mobifs_testkit::crash::search::kill::KillOptions;
use mobifs_testkit::faults::FaultSearchOptions;
use mobifs_testkit::lives::LifeSearch;
use parking_lot::Mutex;

const USAGE: &str = "usage: crash-campaign [--seconds N] [--seed S] [--threads T] [--no-shrink] \
                     [--stage cuts|limits|lives|faults|kills|all]";
/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Power cuts.
    Cuts,
    /// Next to no memory, few objects in it, a small journal; nothing fails.
    Limits,
    /// Killed daemons and power cuts, with and without such limits.
    Lives,
    /// Tight limits with failing calls, and power cuts after them.
    Faults,
    /// Processes killed at every instant over the journal store.
    Kills,
}

const ALL: &[Stage] = &[Stage::Cuts, Stage::Limits, Stage::Lives, Stage::Faults];

/// The command line.
struct Arguments {
    stages: &'static [Stage],
    seconds: u64,
    first_seed: u64,
    threads: usize,
    shrink: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        stages: ALL,
        seconds: 60,
        first_seed: 1,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        shrink: true,
    };
    while let Some(argument) = arguments.next() {
        if argument == "--no-shrink" {
            parsed.shrink = false;
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("{argument} needs a value"))?;
        let number = || {
            let number = value.parse::<u64>();
            number.map_err(|_| format!("\"{value}\" is no number"))
        };
        match argument.as_str() {
            "--seconds" => parsed.seconds = number()?,
            "--seed" => parsed.first_seed = number()?,
            "--threads" => parsed.threads = usize::try_from(number()?).unwrap_or(1).max(1),
            "--stage" => {
                parsed.stages = match value.as_str() {
                    "cuts" => &[Stage::Cuts],
                    "limits" => &[Stage::Limits],
                    "lives" => &[Stage::Lives],
                    "faults" => &[Stage::Faults],
                    "kills" => &[Stage::Kills],
                    "all" => ALL,
                    _ => return Err(format!("there is no stage \"{value}\"")),
                }
            }
            _ => return Err(format!("unknown option {argument}")),
        }
    }
    Ok(parsed)
}

/// Shows progress now and then, and says when the time is over.
struct Progress {
    started: Instant,
    limit: Duration,
    shown: Mutex<Instant>,
}

impl Progress {
    fn new(limit: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            limit,
            shown: Mutex::new(started),
        }
    }

    fn go_on(&self, statistics: &impl Display) -> bool {
        let mut shown = self.shown.lock();
        if shown.elapsed() >= PROGRESS_INTERVAL {
            *shown = Instant::now();
            eprintln!("{} s: {statistics}", self.started.elapsed().as_secs());
        }
        self.started.elapsed() < self.limit
    }
}

/// What a stage found, in words.
struct Found {
    next_seed: u64,
    statistics: String,
    violation: Option<String>,
}

fn search<S>(options: S, arguments: &Arguments, progress: &Progress) -> Found
where
    S: Search,
    S::Statistics: Display,
    S::Violation: Display,
{
    let campaign = Campaign {
        first_seed: arguments.first_seed,
        threads: arguments.threads,
        options,
        shrink: arguments.shrink,
    };
    let result = campaign.run(|statistics| progress.go_on(statistics));
    Found {
        next_seed: result.next_seed,
        statistics: result.statistics.to_string(),
        violation: result.violation.map(|violation| violation.to_string()),
    }
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let stages = arguments.stages.len() as u64;
    let limit = Duration::from_secs(arguments.seconds / stages);
    let mut outcome = ExitCode::SUCCESS;
    for &stage in arguments.stages {
        let progress = Progress::new(limit);
        let found = match stage {
            Stage::Cuts => search(SearchOptions::default(), &arguments, &progress),
            Stage::Limits => search(FaultSearchOptions::WITHOUT_FAULTS, &arguments, &progress),
            Stage::Lives => search(LifeSearch, &arguments, &progress),
            Stage::Faults => search(FaultSearchOptions::default(), &arguments, &progress),
            Stage::Kills => search(KillOptions::default(), &arguments, &progress),
        };
        println!(
            "{stage:?}, seeds {}..{}: {}",
            arguments.first_seed, found.next_seed, found.statistics
        );
        println!(
            "{:.1} s on {} threads",
            progress.started.elapsed().as_secs_f64(),
            arguments.threads
        );
        match found.violation {
            None => println!("no violation"),
            Some(violation) => {
                println!("VIOLATION: {violation}");
                outcome = ExitCode::FAILURE;
            }
        }
    }
    outcome
}
