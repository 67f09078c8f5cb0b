//! The `mobifs-lab` command: what engineers of storage use beside a mount. `mobifs flash`,
//! `mobifs frag`, `mobifs sim`, `mobifs trace` and `mobifs lab` run it. A library: the program calls [`main`],
//! and the generator of manual pages and completions (`dist/manuals`) reads [`command`].
#![forbid(unsafe_code)]

mod bench;
mod device_guard;
mod failure;
mod flash;
mod frag;
mod persist;
mod sim;
mod trace;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use failure::Failure;
use mobifs_host::{LOG_VARIABLE, log_directives, printable};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it could not be done
  2  the command line or the configuration is wrong
  3  the image or the mount is in use
  4  the image, journal or trace is damaged, or of a newer format
  5  there is no served device
  130, 143  a signal (SIGINT, SIGTERM) ended `frag defrag` before it was done

The environment variable MOBIFS_LOG sets how much is logged (error, warn, info, debug, trace).

Documents that help texts and messages name as docs/… are at https://github.com/mobifs/mobifs/tree/main/docs.";

/// Traces, simulation, a flash device, and benches for MobiFS and other storage.
#[derive(Debug, Parser)]
#[command(name = "mobifs-lab", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Flash storage as a model: serve it as a block device, cut its power, see its wear
    Flash(flash::arguments::FlashArguments),
    /// How fragmented files are, and where they lie
    Frag(frag::FragArguments),
    /// What making data durable costs: journals, commits, and ways to make them, side by side
    Persist(persist::PersistArguments),
    /// What would have been flushed, when, and at what risk: traces under policies
    Sim(sim::arguments::SimArguments),
    /// Traces of what programs do to files: record, import, look at, cut, merge, replay
    Trace(trace::arguments::TraceArguments),
    /// Abort what a process serves if it is killed
    #[command(name = device_guard::NAME, hide = true)]
    GuardDevices {
        /// The process
        process: u32,
    },
    #[command(flatten)]
    Experiment(sim::LabCommand),
    #[command(flatten)]
    Bench(bench::BenchCommand),
}

/// The command line: commands, options and their help.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Does what the process's arguments say, and returns its exit code.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    hide_caught_panics();
    let directives = match log_directives("warn") {
        Ok(directives) => directives,
        Err(error) => {
            eprintln!("mobifs: {error}");
            return ExitCode::from(failure::Code::Usage.number());
        }
    };
    let filter: Targets = match directives.parse() {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("mobifs: {LOG_VARIABLE}: {error}");
            return ExitCode::from(failure::Code::Usage.number());
        }
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_target(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    match run(&arguments.command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("mobifs: {}", printable(&failure.message));
            ExitCode::from(failure.code.number())
        }
    }
}

/// A damaged trace is reported in one sentence, also where the library for Parquet panics on it.
fn hide_caught_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !mobifs_trace::catches_panics() {
            report(panic);
        }
    }));
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Flash(arguments) => flash::run(&arguments.command),
        Command::Frag(arguments) => return frag::run(arguments),
        Command::Persist(arguments) => persist::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Trace(arguments) => return trace::run(&arguments.command),
        Command::GuardDevices { process } => device_guard::run(*process),
        Command::Experiment(command) => sim::run_lab(command),
        Command::Bench(command) => bench::run(command),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Programs parse in the main thread, which has 8 MiB: without optimization the frames of clap and of
    /// what it derives are large.
    fn on_the_stack_of_a_main_thread(work: fn()) {
        let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(work);
        if let Err(panic) = thread.unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        on_the_stack_of_a_main_thread(|| Arguments::command().debug_assert());
    }

    /// Papers are cited by short names, which a reader of one help cannot know.
    #[test]
    fn every_help_says_what_its_sources_are() {
        on_the_stack_of_a_main_thread(|| explains_its_sources(Arguments::command()));
    }

    fn explains_its_sources(mut command: clap::Command) {
        let help = command.render_long_help().to_string();
        for cited in mobifs_charts::cited_sources(&help) {
            let name = &cited[..3];
            assert!(
                help.contains(name),
                "{}: {name} in\n{help}",
                command.get_name()
            );
        }
        command
            .get_subcommands()
            .cloned()
            .for_each(explains_its_sources);
    }

    #[test]
    fn the_form_that_other_tools_rely_on_is_accepted() {
        on_the_stack_of_a_main_thread(accepts_what_others_rely_on);
    }

    fn accepts_what_others_rely_on() {
        for line in [
            "flash serve --preset emmc51 --size 4GiB --scale 0 --loop IMAGE",
            "flash serve --config FILE --seed 7 --journal J --nbd S --mount DIR IMAGE",
            "flash stats --json IMAGE",
            "flash cut --keep random:7 IMAGE",
            "flash power-on MNT",
            "flash materialise --journal J --list",
            "flash materialise --journal J --base IMAGE --at 3:7 OUT",
            "flash validate --preset all --quick --json --plot FILE.svg",
            "flash validate --config FILE --seed 7",
            "flash replay --preset ufs31 --precondition P --strict --json --scale 0.5 T",
            "flash replay --as-fast-as-possible 32 --size 64GiB --wrap --fill everything T",
            "trace import --from strace --root /d --strict --out T.parquet OUTPUT",
            "trace stat --json T U",
            "trace cat --app mail --from strace T",
            "trace cut --start 1.5 --end 9 --app a* --path **/*.db --out T U",
            "trace merge --out T A B=x B@2.5",
            "trace replay --speed 10 --seed 3 --json T DIR",
            "trace replay --full-speed T DIR",
            "trace record --root DIR --out T -- git -C x status",
            "trace finish FILE",
            "frag measure --json DIR",
            "frag age --seed 3 --scale 0.1 --days 2 DIR",
            "frag age --image I --capacity 64GiB --filesystem btrfs --through native --json",
            "frag age --resume --image I",
            "frag age --fill high --holes severe --delete 5MB DIR",
            "frag measure --csv F --html P --top 5 --read-within 30 --no-sync DIR FILE IMAGE",
            "frag experiment sqlite scan --out D --json --seed 3",
            "frag experiment all --full",
            "frag waits --rounds 5 --seed 2 --json I J",
            "persist characterise --json IMAGE",
            "persist characterise --through mobifs --device I --model ufs31 --scale 0 -- git status",
            "persist characterise --html F --mount-options data=journal --mkfs -J --mkfs size=4 --trace T",
            "persist compare --preset quick --real DIR --rounds 1 --operations 9 --json --html F",
            "sim --policy tpl --against ext4 --device ufs31 --json T",
            "sim --policy tpl:age_max_ms=9 --policy ideal --format parquet -o F T T",
            "figures -o DIR --strict --png T T",
            "workload --dir D sqlite --journal wal --statement insert --seconds 1",
            "engine-write",
            "check-sqlite FILE",
        ] {
            let words = std::iter::once("mobifs-lab").chain(line.split(' '));
            Arguments::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        assert!(Arguments::try_parse_from(["mobifs-lab"]).is_err());
    }
}
