//! The `mobifs-campaign` command.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use mobifs_campaigns::cuts::{Campaign, Options};
use mobifs_campaigns::filesystem::Filesystem;
use mobifs_campaigns::history::{self, Kind, Phase, PostMark};
use mobifs_campaigns::native::{self, writers::Writer};
use mobifs_campaigns::postmark;
use mobifs_campaigns::recovery::{self, Measured, Subject};
use mobifs_campaigns::trouble::Trouble;
use mobifs_device_server::Scale;
use mobifs_testkit::mount::Program;
use signal_hook::consts::{SIGINT, SIGTERM};

/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Further violations are counted only.
const VIOLATIONS_LISTED: usize = 40;

/// Power cuts of MobiFS over real filesystems on the modelled flash device.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    /// The mobifs program (default: the one beside this).
    #[arg(long, global = true)]
    mobifs: Option<PathBuf>,
    /// Where images and mount points are made.
    #[arg(long, global = true, default_value = "/var/tmp")]
    scratch: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Cut the power at random moments, also during recovery, and check everything.
    Cuts {
        /// Filesystems to lie on.
        #[arg(long, value_delimiter = ',', default_values = ["ext4", "btrfs", "xfs"])]
        filesystems: Vec<Filesystem>,
        /// Cuts on each of them.
        #[arg(long, default_value_t = 200)]
        cuts: u64,
        /// Fixes what is chosen at random.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Real seconds for each of the device; 0: never wait.
        #[arg(long, default_value = "0.25")]
        scale: Scale,
        /// How many times slower than usual the machine is: cuts come so much later.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
        slowness: u32,
    },
    /// Cut the power in each phase of a large PostMark.
    Postmark {
        /// Filesystem to lie on.
        #[arg(long, default_value = "ext4")]
        filesystem: Filesystem,
        /// In which phases to cut.
        #[arg(long, value_delimiter = ',', default_values = ["create", "write", "delete"])]
        phases: Vec<Phase>,
        /// Cuts in each of them.
        #[arg(long, default_value_t = 10)]
        cuts_per_phase: u64,
        /// Real seconds for each of the device; 0: never wait.
        #[arg(long, default_value = "0.25")]
        scale: Scale,
        #[command(flatten)]
        postmark: PostMark,
    },
    /// Measure recovery against what the journal holds, beside ext4's own.
    Recovery {
        /// What the journal holds.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 240])]
        mebibytes: Vec<u64>,
        /// Recoveries of which the median is taken.
        #[arg(long, default_value_t = 5)]
        runs: u64,
        /// Real seconds for each of the device.
        #[arg(long, default_value = "1")]
        scale: Scale,
    },
    /// Record sessions on a steered ext4 and cut their power at many moments.
    Native(NativeArguments),
    /// Write in steps (the campaign starts this itself).
    #[command(hide = true)]
    Write {
        writer: Writer,
        app: PathBuf,
        #[arg(long)]
        pause_us: u64,
    },
    /// Work on a history (the campaign starts this itself).
    #[command(hide = true)]
    Work {
        kind: Kind,
        app: PathBuf,
        #[arg(long)]
        from: u64,
        #[command(flatten)]
        postmark: PostMark,
    },
}

/// Arguments of the campaign of steered filesystems.
#[derive(Debug, clap::Args)]
struct NativeArguments {
    /// Cuts.
    #[arg(long, default_value_t = 1000)]
    cuts: u64,
    /// Cuts of each session.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    cuts_per_session: u64,
    /// How long a session lasts.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(3..=600))]
    session_seconds: u64,
    /// Fixes what is chosen at random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first session, to repeat one.
    #[arg(long, default_value_t = 0)]
    first_session: u64,
    /// Real seconds for each of the device; not 0, as times are compared.
    #[arg(long, default_value = "0.25")]
    scale: Scale,
    /// How much older than `age_max_ms` what is lost may be.
    #[arg(long, default_value_t = 3000)]
    slack_ms: u64,
    /// These writers in every session, and no others.
    #[arg(long, value_delimiter = ',')]
    writers: Vec<Writer>,
    /// This writer in every session, with calls that are waited for.
    #[arg(long)]
    waits: Option<Writer>,
    /// A writer in every session that shortens a file to any size. The kernel has a fault in that
    /// (docs/NATIVE.md#faults-of-the-kernel): what it breaks is counted and is no violation.
    #[arg(long)]
    shortened: bool,
    /// What is steered: ext4, or btrfs, which promises less.
    #[arg(long, default_value = "ext4", value_parser = parse_steered)]
    filesystem: Filesystem,
    /// On ext4 with data=ordered, which promises nothing: this must find violations.
    #[arg(long, conflicts_with = "filesystem")]
    control: bool,
}

/// Those that can be steered.
fn parse_steered(text: &str) -> Result<Filesystem, String> {
    let steered = [Filesystem::Ext4, Filesystem::Btrfs];
    let named = steered.into_iter().find(|other| other.name() == text);
    named.ok_or_else(|| "ext4 and btrfs can be steered".to_owned())
}

impl NativeArguments {
    fn options(self, programs: Programs) -> native::Options {
        native::Options {
            program: programs.mobifs,
            helper: programs.helper,
            scratch: programs.scratch,
            subject: match self.filesystem {
                _ if self.control => native::Subject::Ordered,
                Filesystem::Btrfs => native::Subject::Btrfs,
                _ => native::Subject::Steered,
            },
            cuts: self.cuts,
            cuts_of_a_session: self.cuts_per_session,
            session: Duration::from_secs(self.session_seconds),
            seed: self.seed,
            scale: self.scale,
            slack: Duration::from_millis(self.slack_ms),
            first_session: self.first_session,
            only: native::Only {
                relaxed: self.writers,
                durable: self.waits,
                shortened: self.shortened,
            },
        }
    }
}

/// Programs of this build.
struct Programs {
    mobifs: Program,
    helper: PathBuf,
    scratch: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("mobifs-campaign: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Trouble> {
    let helper = std::env::current_exe().map_err(|error| error.to_string())?;
    let mobifs = cli
        .mobifs
        .unwrap_or_else(|| helper.with_file_name("mobifs"));
    let programs = Programs {
        mobifs: Program::at(mobifs),
        helper,
        scratch: cli.scratch,
    };
    match cli.command {
        Command::Cuts {
            filesystems,
            cuts,
            seed,
            scale,
            slowness,
        } => {
            let options = |filesystem| Options {
                program: programs.mobifs.clone(),
                helper: programs.helper.clone(),
                scratch: programs.scratch.clone(),
                filesystem,
                cuts,
                seed,
                scale,
                slowness,
            };
            cut_all(filesystems.iter().map(|&filesystem| options(filesystem)))
        }
        Command::Postmark {
            filesystem,
            phases,
            cuts_per_phase,
            scale,
            postmark,
        } => {
            let options = postmark::Options {
                program: programs.mobifs.clone(),
                helper: programs.helper.clone(),
                scratch: programs.scratch.clone(),
                filesystem,
                postmark,
                phases,
                cuts_per_phase,
                scale,
            };
            run_postmark(&options)
        }
        Command::Recovery {
            mebibytes,
            runs,
            scale,
        } => measure_recovery(&programs, &mebibytes, runs, scale),
        Command::Native(arguments) => cut_native(arguments.options(programs)),
        Command::Write {
            writer,
            app,
            pause_us,
        } => failed(writer.work(&app, pause_us)),
        Command::Work {
            kind,
            app,
            from,
            postmark,
        } => failed(history::work_on_mount(kind, &app, from, &postmark)),
    }
}

/// A worker ends with an error.
fn failed(worked: Result<Infallible, String>) -> Result<(), Trouble> {
    match worked {
        Ok(never) => match never {},
        Err(problem) => Err(problem.into()),
    }
}

/// What is mounted must be taken down again: the round in hand is finished first.
fn notice_interruption() -> Result<Arc<AtomicBool>, Trouble> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| error.to_string())?;
    }
    Ok(interrupted)
}

fn cut_native(options: native::Options) -> Result<(), Trouble> {
    if let Some(obstacle) = mobifs_campaigns::obstacle(options.subject.filesystem()) {
        println!("native: SKIPPED, {obstacle}");
        return Ok(());
    }
    let interrupted = notice_interruption()?;
    let subject = options.subject;
    let started = Instant::now();
    let mut shown = started;
    let mut violations = 0;
    let mut setting = String::new();
    let tally = native::Campaign::new(options)?.run(|tally| {
        let listed = tally.violations.iter().take(VIOLATIONS_LISTED);
        for violation in listed.skip(violations) {
            if setting != violation.setting {
                setting.clone_from(&violation.setting);
                println!("session {}: {setting}", violation.session);
            }
            println!("VIOLATION: {violation}");
        }
        violations = tally.violations.len();
        if shown.elapsed() >= PROGRESS_INTERVAL {
            shown = Instant::now();
            println!("{} s: {tally}", started.elapsed().as_secs());
        }
        !interrupted.load(Ordering::SeqCst)
    })?;
    println!("{tally}; {} s", started.elapsed().as_secs());
    if tally.kernel_faults > 0 {
        println!(
            "KNOWN FAULT OF THE KERNEL: {} cuts left the file that was shortened as it never was, or a journal \
             that takes `e2fsck -p` (docs/NATIVE.md#faults-of-the-kernel)",
            tally.kernel_faults
        );
    }
    match (subject, tally.violations.len()) {
        (native::Subject::Steered | native::Subject::Btrfs, 0) => Ok(()),
        (native::Subject::Steered | native::Subject::Btrfs, count) => {
            Err(Trouble::Violation(format!("{count}, listed above")))
        }
        (native::Subject::Ordered, 0) => Err(Trouble::Failed(
            "ext4 with data=ordered broke no promise: the oracle is blind".into(),
        )),
        (native::Subject::Ordered, _) => Ok(()),
    }
}

fn cut_all(campaigns: impl Iterator<Item = Options>) -> Result<(), Trouble> {
    let interrupted = notice_interruption()?;
    let mut summary = Vec::new();
    for options in campaigns {
        let name = options.filesystem.name();
        if let Some(obstacle) = mobifs_campaigns::obstacle(options.filesystem) {
            summary.push(format!("{name}: SKIPPED, {obstacle}"));
            continue;
        }
        let started = Instant::now();
        let mut shown = started;
        let campaign = Campaign::new(options)?;
        let statistics = campaign.run(|statistics| {
            if shown.elapsed() >= PROGRESS_INTERVAL {
                shown = Instant::now();
                println!("{name}, {} s: {statistics}", started.elapsed().as_secs());
            }
            !interrupted.load(Ordering::SeqCst)
        })?;
        let seconds = started.elapsed().as_secs();
        summary.push(format!("{name}: {statistics}; {seconds} s, no violation"));
        if interrupted.load(Ordering::SeqCst) {
            summary.push("interrupted".to_owned());
            break;
        }
    }
    for line in summary {
        println!("{line}");
    }
    Ok(())
}

fn run_postmark(options: &postmark::Options) -> Result<(), Trouble> {
    let postmark::Options {
        filesystem,
        postmark,
        cuts_per_phase,
        ..
    } = options;
    let outcomes = postmark::run(options, |phase, recovered| {
        println!("{phase:?}: {recovered} of {cuts_per_phase} recovered");
    })?;
    println!("{postmark:?} on {}:", filesystem.name());
    for (phase, outcome) in outcomes {
        println!(
            "{phase:?}: {} cuts, all recovered; a cut took at most {} steps, after at most \
             {:.1} s of work",
            outcome.recovered,
            outcome.steps_lost_max,
            outcome.work_max.as_secs_f64()
        );
    }
    Ok(())
}

fn measure_recovery(
    programs: &Programs,
    mebibytes: &[u64],
    runs: u64,
    scale: Scale,
) -> Result<(), Trouble> {
    println!("from the mount after a cut to the first answer, median of {runs}, milliseconds");
    println!(
        "| content | journal held | ext4 | it read | ext4 data=journal | it read | lower ext4 | \
         MobiFS | both | of data=journal | they read | then applied |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for &mebibytes in mebibytes {
        // In turns, so that what else the machine does hits all.
        let mut of_subjects = Subject::ALL.map(|_| Vec::new());
        for seed in 0..runs {
            for (subject, measured) in Subject::ALL.into_iter().zip(&mut of_subjects) {
                let options = recovery::Options {
                    program: programs.mobifs.clone(),
                    scratch: programs.scratch.clone(),
                    content_bytes: mebibytes << 20,
                    scale,
                    seed,
                };
                measured.push(recovery::measure(subject, &options)?);
            }
        }
        let [Some(ordered), Some(journaled), Some(mobifs)] = of_subjects.map(|mut measured| {
            measured.sort_by_key(Measured::total);
            measured.get(measured.len() / 2).copied()
        }) else {
            return Err(Trouble::Failed("not one run was asked for".into()));
        };
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "| {mebibytes} MiB | {:.1} MiB | {:.0} | {:.1} MiB | {:.0} | {:.1} MiB | {:.0} | {:.0} | \
             {:.0} | {:.1} | {:.1} MiB | {:.0} |",
            mib(mobifs.journal_bytes.unwrap_or(0)),
            ms(ordered.total()),
            mib(ordered.read_bytes),
            ms(journaled.total()),
            mib(journaled.read_bytes),
            ms(mobifs.lower),
            ms(mobifs.upper.unwrap_or_default()),
            ms(mobifs.total()),
            mobifs.total().as_secs_f64() / journaled.total().as_secs_f64(),
            mib(mobifs.read_bytes),
            ms(mobifs.applied.unwrap_or_default())
        );
    }
    Ok(())
}
