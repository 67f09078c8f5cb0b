//! `mobifs frag experiment`

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use mobifs_frag_experiments::{
    Extent, FragError, Name, Report, Settings, page, run as experiments, text,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::device_guard::DeviceGuard;
use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
NAME is one of the experiments of S4 with fragmented files, repeated on real filesystems over a flash
device in virtual time (docs/AGEING.md says which device, which time, which tolerance):
  sqlite          Figs. 6, 15   threads that insert into databases, by journal mode, and where these lie
  utilisation     Fig. 7        databases and other files of two apps, by how full the filesystem is
  capacity        Fig. 8        the same by how large it is
  scan            Fig. 9        time to read 100 MB against the degree of fragmentation
  io-counts       §5.3.1        requests for the same file in one piece and in many
  waits           Figs. 10-12   launch, install, table scan, by how fragmented free room is
  dispersed       Fig. 13       random accesses over a region, by size of the mapping cache
  preallocation   Fig. 14       appends with room reserved in steps
  reservation     Fig. 16       the step that databases need, and what it wastes
  defragmentation Fig. 17       what e4defrag does for the files of Fig. 14, and what it writes
  all             all of them

It takes root (filesystems are made and mounted over loop devices). Images are sparse files in DIR,
which go when an experiment ends. With --out, report.html and report.json are written there.
The exit code is 1 if a criterion failed; one that differs from the paper for a reason whose evidence
was measured did not.

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
pub(super) struct ExperimentArguments {
    /// Which experiment, or all; may be several
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Write the report into this directory, and keep images there meanwhile
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The paper's sizes; else less of what takes time
    #[arg(long, conflicts_with = "tiny")]
    full: bool,
    /// As small as can be, for a test of the command; criteria mean nothing and are not judged
    #[arg(long, hide = true)]
    tiny: bool,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(arguments: &ExperimentArguments) -> Result<(), Failure> {
    let names = names(&arguments.names)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let watched = signal_hook::flag::register(signal, Arc::clone(&stop));
        watched.map_err(|error| failed(format!("cannot watch for signals: {error}")))?;
    }
    if let Some(out) = &arguments.out {
        fs::create_dir_all(out).map_err(|error| failed(format!("{}: {error}", out.display())))?;
    }
    let extent = match (arguments.full, arguments.tiny) {
        (true, _) => Extent::Full,
        (_, true) => Extent::Tiny,
        _ => Extent::Reduced,
    };
    let scratch = arguments.out.clone().unwrap_or_else(scratch);
    let settings = Settings {
        scratch,
        extent,
        seed: arguments.seed,
        stop,
    };
    let mut printed = Ok(());
    let _guard = DeviceGuard::start()?;
    let report = experiments(&names, &settings, &mut |outcome| {
        if !arguments.json && printed.is_ok() {
            printed = put(&format!("{}\n", text(outcome)));
        }
    });
    let report = report.map_err(|error| failure(&error))?;
    printed?;
    let document = serde_json::to_string_pretty(&report);
    let document = document.map_err(|error| failed(error.to_string()))? + "\n";
    if let Some(out) = &arguments.out {
        write(&out.join("report.html"), &page(&report))?;
        write(&out.join("report.json"), &document)?;
    }
    if arguments.json {
        put(&document)?;
    }
    judged(&report)
}

/// Where images lie while they are used.
pub(super) fn scratch() -> PathBuf {
    std::env::var_os("MOBIFS_SCRATCH").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

fn judged(report: &Report) -> Result<(), Failure> {
    if report.failed == 0 || report.extent == Extent::Tiny {
        return Ok(());
    }
    let message = format!("{} of {} criteria failed", report.failed, report.criteria);
    Err(failed(message))
}

fn names(words: &[String]) -> Result<Vec<Name>, Failure> {
    if words.iter().any(|word| word == "all") {
        return Ok(Name::ALL.to_vec());
    }
    let name = |word: &String| {
        let found = Name::ALL.into_iter().find(|name| name.word() == word);
        found.ok_or_else(|| {
            let known: Vec<_> = Name::ALL.iter().map(|name| name.word()).collect();
            let known = known.join(", ");
            let message = format!("'{word}' is no experiment: {known} or all");
            Failure::new(Code::Usage, message)
        })
    };
    words.iter().map(name).collect()
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content)
        .map_err(|error| failed(format!("cannot write {}: {error}", path.display())))
}

fn failed(message: String) -> Failure {
    Failure::new(Code::Failed, message)
}

fn failure(error: &FragError) -> Failure {
    failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failed: usize, extent: Extent) -> Report {
        Report {
            schema: 1,
            kernel: String::new(),
            extent,
            seed: 1,
            failed,
            criteria: 5,
            experiments: Vec::new(),
        }
    }

    #[test]
    fn a_criterion_that_failed_is_an_exit_code() {
        assert_eq!(judged(&report(0, Extent::Reduced)), Ok(()));
        let failure = judged(&report(2, Extent::Reduced)).unwrap_err();
        assert_eq!(failure.code, Code::Failed);
        assert_eq!(failure.message, "2 of 5 criteria failed");
        assert_eq!(judged(&report(2, Extent::Tiny)), Ok(()));
    }

    #[test]
    fn all_is_every_experiment_once() {
        let words =
            |words: &[&str]| names(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["scan", "all"]).unwrap(), Name::ALL);
        for name in Name::ALL {
            assert_eq!(words(&[name.word()]).unwrap(), [name]);
            assert!(HELP.contains(name.word()), "{}", name.word());
        }
        assert_eq!(words(&["scan", "x"]).unwrap_err().code, Code::Usage);
    }
}
