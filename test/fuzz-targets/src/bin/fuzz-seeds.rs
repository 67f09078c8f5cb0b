//! Writes the seeds of a fuzz target into a directory, for a fuzzer to start from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mobifs_fuzz_targets::TARGETS;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory] = &arguments[..] else {
        eprintln!("usage: fuzz-seeds TARGET DIRECTORY");
        return ExitCode::from(2);
    };
    match write_seeds(name, Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("fuzz-seeds: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn write_seeds(name: &str, directory: &Path) -> Result<(), String> {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| format!("there is no target {name}"))?;
    let failed = |path: PathBuf| move |error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(directory).map_err(failed(directory.to_owned()))?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        let path = directory.join(format!("seed-{number:02}"));
        std::fs::write(&path, seed).map_err(failed(path))?;
    }
    Ok(())
}
