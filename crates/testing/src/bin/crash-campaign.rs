//! A long crash search: `crash-campaign --seconds N --seed S [--threads T]`.
//!
//! Ends with status 1 at the first violation, which it prints shrunk.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mobifs_testing::crash::search::{
    SearchOptions, SearchStatistics, Violation, search, search_and_shrink,
};
use parking_lot::Mutex;

const USAGE: &str = "usage: crash-campaign [--seconds N] [--seed S] [--threads T] [--no-shrink]";
/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

struct Arguments {
    seconds: u64,
    seed: u64,
    threads: usize,
    shrink: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut parsed = Arguments {
        seconds: 60,
        seed: 1,
        threads,
        shrink: true,
    };
    while let Some(argument) = arguments.next() {
        if argument == "--no-shrink" {
            parsed.shrink = false;
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("{argument} needs a number"))?;
        let number: u64 = value
            .parse()
            .map_err(|_| format!("\"{value}\" is no number"))?;
        match argument.as_str() {
            "--seconds" => parsed.seconds = number,
            "--seed" => parsed.seed = number,
            "--threads" => parsed.threads = usize::try_from(number).unwrap_or(usize::MAX).max(1),
            _ => return Err(format!("unknown option {argument}")),
        }
    }
    Ok(parsed)
}

/// What the threads share.
struct Campaign {
    arguments: Arguments,
    started: Instant,
    next_seed: AtomicU64,
    total: Mutex<SearchStatistics>,
    shown: Mutex<Instant>,
    violation: Mutex<Option<Box<Violation>>>,
}

impl Campaign {
    fn work(&self) {
        let options = SearchOptions::default();
        while self.started.elapsed().as_secs() < self.arguments.seconds
            && self.violation.lock().is_none()
        {
            let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
            let run = if self.arguments.shrink {
                search_and_shrink
            } else {
                search
            };
            match run(seed, &options) {
                Ok(statistics) => *self.total.lock() += statistics,
                Err(violation) => {
                    self.violation.lock().get_or_insert(violation);
                }
            }
            self.show_progress();
        }
    }

    fn show_progress(&self) {
        let mut shown = self.shown.lock();
        if shown.elapsed() >= PROGRESS_INTERVAL {
            *shown = Instant::now();
            let seconds = self.started.elapsed().as_secs();
            eprintln!("{seconds} s: {}", *self.total.lock());
        }
    }
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (first, threads) = (arguments.seed, arguments.threads);
    let campaign = Campaign {
        arguments,
        started: Instant::now(),
        next_seed: AtomicU64::new(first),
        total: Mutex::default(),
        shown: Mutex::new(Instant::now()),
        violation: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| campaign.work());
        }
    });
    let last = campaign.next_seed.load(Ordering::Relaxed);
    println!("seeds {first}..{last}: {}", *campaign.total.lock());
    println!(
        "{:.1} s on {threads} threads",
        campaign.started.elapsed().as_secs_f64()
    );
    match campaign.violation.into_inner() {
        None => {
            println!("no violation");
            ExitCode::SUCCESS
        }
        Some(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}
