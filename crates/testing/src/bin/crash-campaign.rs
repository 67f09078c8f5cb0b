//! A long crash search: `crash-campaign --seconds N --seed S [--threads T]`.
//!
//! Ends with status 1 at the first violation, which it prints shrunk.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mobifs_testing::crash::search::{Campaign, SearchOptions};
use parking_lot::Mutex;

const USAGE: &str = "usage: crash-campaign [--seconds N] [--seed S] [--threads T] [--no-shrink]";
/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The campaign, and for how many seconds.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(Campaign, u64), String> {
    let mut seconds = 60;
    let mut campaign = Campaign {
        first_seed: 1,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        options: SearchOptions::default(),
        shrink: true,
    };
    while let Some(argument) = arguments.next() {
        if argument == "--no-shrink" {
            campaign.shrink = false;
            continue;
        }
        let value = arguments
            .next()
            .ok_or_else(|| format!("{argument} needs a number"))?;
        let number: u64 = value
            .parse()
            .map_err(|_| format!("\"{value}\" is no number"))?;
        match argument.as_str() {
            "--seconds" => seconds = number,
            "--seed" => campaign.first_seed = number,
            "--threads" => campaign.threads = usize::try_from(number).unwrap_or(1).max(1),
            _ => return Err(format!("unknown option {argument}")),
        }
    }
    Ok((campaign, seconds))
}

fn main() -> ExitCode {
    let (campaign, seconds) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let started = Instant::now();
    let shown = Mutex::new(started);
    let result = campaign.run(|statistics| {
        let mut shown = shown.lock();
        if shown.elapsed() >= PROGRESS_INTERVAL {
            *shown = Instant::now();
            eprintln!("{} s: {statistics}", started.elapsed().as_secs());
        }
        started.elapsed().as_secs() < seconds
    });
    println!(
        "seeds {}..{}: {}",
        campaign.first_seed, result.next_seed, result.statistics
    );
    println!(
        "{:.1} s on {} threads",
        started.elapsed().as_secs_f64(),
        campaign.threads
    );
    match result.violation {
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
