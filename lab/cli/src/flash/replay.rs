//! `mobifs flash replay`

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mobifs_device_model::{Config, ConfigError, Host, Preset};
use mobifs_experiments::replay::{
    Fill, Options, Pace, Phase, ReadOptions, Replay, ReplayError, replay,
};
use mobifs_volume::parse_size;

use super::config;
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
A trace has one request a line, and may be gzipped:
  process,device,rw_flag,sector,size,timestamp
Sector and size are in sectors of 512 bytes, the timestamp in seconds. The flag is R, W, D
(discard) or F (flush), with the kernel's letters after it (WFS: durable, by FUA), and with
an F before W for a flush before it.

Lines that cannot be understood are reported with their number and skipped. A request that
was issued again because the phone's controller slept (the same range, by a kernel worker,
within 5 ms) counts once. Latencies are from the recorded time, or with --as-fast-as-possible
from the time of issue, to the end.

  mobifs flash replay --preset ufs31 --precondition precond.csv.gz exec.csv.gz";

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// The device: microsd, emmc51 or ufs31
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ufs31",
        conflicts_with = "config"
    )]
    pub(crate) preset: String,
    /// The device, described in a file (TOML, as the presets are)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Size of the device
    #[arg(long, value_name = "SIZE", default_value = "128GB")]
    pub(crate) size: String,
    /// Seed of everything that is random in the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Replay this trace before, without measuring it; may be repeated
    #[arg(long, value_name = "TRACE")]
    pub(crate) precondition: Vec<PathBuf>,
    /// What is on the device before anything else
    #[arg(long, value_name = "WHAT", default_value = "reads")]
    pub(crate) fill: FillArgument,
    /// Multiply the times between requests: 0.5 is twice as fast as recorded
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Take no notice of the recorded times: keep this many requests under way
    #[arg(long, value_name = "REQUESTS", conflicts_with = "scale")]
    pub(crate) as_fast_as_possible: Option<usize>,
    /// Let addresses beyond the device start again at its beginning
    #[arg(long)]
    pub(crate) wrap: bool,
    /// Count requests that were issued twice twice
    #[arg(long)]
    pub(crate) keep_repeats: bool,
    /// Stop at the first line that cannot be understood
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The traces to measure, one after the other
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FillArgument {
    /// Nothing: a new device
    Nothing,
    /// What the traces read before they write it
    Reads,
    /// Every page: a full device
    Everything,
}

impl From<FillArgument> for Fill {
    fn from(argument: FillArgument) -> Self {
        match argument {
            FillArgument::Nothing => Self::Nothing,
            FillArgument::Reads => Self::Reads,
            FillArgument::Everything => Self::Everything,
        }
    }
}

pub(crate) fn run(arguments: &ReplayArguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    let options = options(arguments)?;
    let size_bytes = parse_size(&arguments.size).map_err(usage)?;
    let config = config(arguments)?;
    let mut host =
        Host::new(&config, size_bytes, arguments.seed).map_err(|error| usage(error.to_string()))?;
    let result = replay(
        &mut host,
        &arguments.precondition,
        &arguments.traces,
        &options,
    );
    let result = result.map_err(|error| failure(&error))?;
    for phase in result.precondition.iter().chain([&result.execution]) {
        report_malformed(phase);
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&result);
        return put(&(text.map_err(|error| Failure::new(Code::Failed, error.to_string()))? + "\n"));
    }
    put(&text(&result))
}

fn options(arguments: &ReplayArguments) -> Result<Options, Failure> {
    let usage = |message: &str| Failure::new(Code::Usage, message);
    let scale = arguments.scale;
    if !(scale.is_finite() && scale >= 0.0) {
        return Err(usage("--scale takes a number that is not negative"));
    }
    let pace = match arguments.as_fast_as_possible {
        Some(0) => return Err(usage("--as-fast-as-possible takes a number above 0")),
        Some(depth) => Pace::AsFastAsPossible { depth },
        None => Pace::Recorded { scale },
    };
    Ok(Options {
        pace,
        read: ReadOptions {
            strict: arguments.strict,
            wrap: arguments.wrap,
            keep_repeats: arguments.keep_repeats,
        },
        fill: arguments.fill.into(),
    })
}

fn config(arguments: &ReplayArguments) -> Result<Config, Failure> {
    if let Some(path) = &arguments.config {
        return config::load(path);
    }
    let preset: Result<Preset, ConfigError> = arguments.preset.parse();
    let config = preset.and_then(Preset::config);
    config.map_err(|error| Failure::new(Code::Usage, error.to_string()))
}

fn failure(error: &ReplayError) -> Failure {
    let hint = match error {
        ReplayError::Beyond { .. } => "; give a larger --size, or --wrap",
        _ => "",
    };
    Failure::new(Code::Failed, format!("{error}{hint}"))
}

fn report_malformed(phase: &Phase) {
    let lines = &phase.lines;
    for quoted in &lines.malformed_quoted {
        eprintln!("mobifs: skipped: {quoted}");
    }
    let rest = lines.malformed - lines.malformed_quoted.len() as u64;
    if rest > 0 {
        eprintln!("mobifs: skipped: {rest} more lines");
    }
}

fn text(result: &Replay) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, result);
    text
}

fn write_all(text: &mut String, result: &Replay) -> std::fmt::Result {
    let pace = match result.pace {
        Pace::Recorded { scale: 1.0 } => "at the recorded times".to_owned(),
        Pace::Recorded { scale } => format!("at the recorded times × {scale}"),
        Pace::AsFastAsPossible { depth } => format!("as fast as possible, {depth} under way"),
    };
    writeln!(
        text,
        "{} of {:.1} GB, {pace}; {:.1} MB written before",
        result.device,
        result.capacity_bytes as f64 / 1e9,
        result.filled_pages as f64 * mobifs_device_model::PAGE_BYTES as f64 / 1e6
    )?;
    if let Some(phase) = &result.precondition {
        write_phase(text, "precondition", phase)?;
    }
    write_phase(text, "execution", &result.execution)
}

fn write_phase(text: &mut String, name: &str, phase: &Phase) -> std::fmt::Result {
    let lines = &phase.lines;
    let seconds = |ns: u64| ns as f64 / 1e9;
    writeln!(
        text,
        "\n{name}: {} lines, {} requests; {} malformed, {} repeats dropped, {} out of order, \
         {} wrapped",
        lines.lines,
        phase.requests,
        lines.malformed,
        lines.repeats_dropped,
        lines.out_of_order,
        lines.wrapped
    )?;
    writeln!(
        text,
        "recorded {:.1} s, took {:.1} s, device active {:.1} s; {} pages still in its cache",
        seconds(phase.recorded_ns),
        seconds(phase.elapsed_ns),
        seconds(phase.device.active_ns),
        phase.dirty_pages
    )?;
    write_latencies(text, phase)?;
    write_flash(text, phase)
}

fn write_latencies(text: &mut String, phase: &Phase) -> std::fmt::Result {
    writeln!(
        text,
        "{:14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "latency in µs", "commands", "MB", "mean", "50 %", "90 %", "99 %", "99.9 %", "most"
    )?;
    for of_kind in &phase.device.commands {
        let latency = &of_kind.latency;
        write!(
            text,
            "{:14} {:>9} {:>9.1} {:>9.0}",
            of_kind.kind.replace('_', " "),
            of_kind.commands,
            of_kind.sectors as f64 * mobifs_device_model::SECTOR_BYTES as f64 / 1e6,
            latency.mean_ns / 1e3
        )?;
        for ns in [
            latency.p50_ns,
            latency.p90_ns,
            latency.p99_ns,
            latency.p999_ns,
            latency.max_ns,
        ] {
            write!(text, " {:>9.0}", ns as f64 / 1e3)?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn write_flash(text: &mut String, phase: &Phase) -> std::fmt::Result {
    let device = &phase.device;
    let flash = &device.flash;
    let total = flash.total();
    let known = |value: Option<f64>, factor: f64| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value * factor))
    };
    writeln!(
        text,
        "mapping cache: {} % of {} lookups hit, {} changed pages pushed out",
        known(device.mapping_hit_rate, 100.0),
        flash.mapping_hits + flash.mapping_misses,
        flash.mapping_dirty_evictions
    )?;
    writeln!(
        text,
        "write amplification {}: pages programmed {} for the host, {} collection, {} folding, \
         {} levelling, {} mapping, {} log; {} erases",
        known(device.write_amplification, 1.0),
        flash.host.pages_programmed,
        flash.collection.pages_programmed,
        flash.folding.pages_programmed,
        flash.levelling.pages_programmed,
        flash.mapping.pages_programmed,
        flash.log.pages_programmed,
        total.erases
    )?;
    let energy = &device.energy;
    writeln!(
        text,
        "energy {:.1} J: read {:.1}, program {:.1}, erase {:.1}, transfer {:.1}, active {:.1}, \
         idle {:.1}",
        energy.total_mj() / 1e3,
        energy.read_mj / 1e3,
        energy.program_mj / 1e3,
        energy.erase_mj / 1e3,
        energy.transfer_mj / 1e3,
        energy.active_mj / 1e3,
        energy.idle_mj / 1e3
    )
}
