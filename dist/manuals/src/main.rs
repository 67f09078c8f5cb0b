//! Makes manual pages and shell completions from the command lines and the documents:
//!
//! ```sh
//! mobifs-manuals DIRECTORY   # `make manuals`
//! ```
//!
//! `DIRECTORY/mobifs` and `DIRECTORY/mobifs-lab` are then as PREFIX is after `make install` and
//! `make install-lab`. No program that is installed contains this.
#![forbid(unsafe_code)]

mod command_line;
mod markdown;
mod page;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use jiff::Timestamp;

use command_line::{CommandLines, Package};
use page::Heading;

/// Documents that are manual pages as well: file, section, name, one line.
const DOCUMENTS: [(&str, &str, &str, &str); 2] = [
    (
        include_str!("../../../docs/CONFIG.md"),
        "5",
        "mobifs.toml",
        "configuration of a MobiFS mount",
    ),
    (
        include_str!("../mount.fuse.mobifs.md"),
        "8",
        "mount.fuse.mobifs",
        "helper of mount(8) and umount(8) for MobiFS",
    ),
];

/// Names by which umount(8) finds the second of the documents' programs.
const HELPER_ALIASES: [&str; 2] = ["umount.fuse.mobifs", "umount.fuseblk.mobifs"];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("mobifs-manuals: say where the pages go: mobifs-manuals DIRECTORY");
        return ExitCode::from(2);
    };
    // Trees of commands are deep, and clap recurses over them.
    let work = move || generate(&directory);
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(work);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(Ok(Err(error))) | Err(error) => {
            eprintln!("mobifs-manuals: {error}");
            ExitCode::FAILURE
        }
        Ok(Err(_panic)) => ExitCode::FAILURE,
    }
}

fn generate(directory: &Path) -> io::Result<()> {
    let share = |package: Package| directory.join(package.name()).join("share");
    let lines = CommandLines::new();
    let date = date()?;
    for (package, command) in lines.pages() {
        let pages = share(package).join("man/man1");
        std::fs::create_dir_all(&pages)?;
        let file = pages.join(format!("{}.1", page::name_of(command)));
        std::fs::write(file, page::of_command(command, &date)?)?;
    }
    for package in [Package::Product, Package::Laboratory] {
        write_completions(&share(package), package.name(), &lines.completed(package))?;
    }
    write_documents(&share(Package::Product), &date)
}

/// The date on the pages: `SOURCE_DATE_EPOCH`, so that the same source makes the same pages.
fn date() -> io::Result<String> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(String::new());
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.ok_or_else(|| {
        io::Error::other(format!(
            "SOURCE_DATE_EPOCH is {}, and not a number of seconds",
            text.display()
        ))
    })?;
    Ok(time.strftime("%Y-%m-%d").to_string())
}

fn write_documents(share: &Path, date: &str) -> io::Result<()> {
    for (text, section, name, about) in DOCUMENTS {
        let heading = Heading {
            name,
            section,
            date,
            about,
        };
        let directory = share.join(format!("man/man{section}"));
        std::fs::create_dir_all(&directory)?;
        let page = page::of_document(&heading, text)?;
        std::fs::write(directory.join(format!("{name}.{section}")), page)?;
    }
    for alias in HELPER_ALIASES {
        let file = share.join(format!("man/man8/{alias}.8"));
        std::fs::write(file, ".so man8/mount.fuse.mobifs.8\n")?;
    }
    Ok(())
}

fn write_completions(share: &Path, name: &str, command: &Command) -> io::Result<()> {
    let files = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (
            Shell::Fish,
            format!("fish/vendor_completions.d/{name}.fish"),
        ),
    ];
    for (shell, file) in files {
        let path = share.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(share))?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), name, &mut text);
        std::fs::write(path, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let entries = directory.read_dir().unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    /// Runs as main does.
    fn on_a_large_stack(work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(work);
        if let Err(panic) = thread.unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn generated() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        on_a_large_stack(move || generate(&path).unwrap());
        directory
    }

    #[test]
    fn every_command_that_is_shown_has_a_page_and_a_completion() {
        on_a_large_stack(check_pages_and_completions);
    }

    fn check_pages_and_completions() {
        let directory = generated();
        let pages = names(&directory.path().join("mobifs/share/man/man1"));
        let bash = directory
            .path()
            .join("mobifs/share/bash-completion/completions/mobifs");
        let bash = std::fs::read_to_string(bash).unwrap();
        for command in mobifs_cli::command().get_subcommands() {
            let name = command.get_name();
            let laboratory = names(&directory.path().join("mobifs-lab/share/man/man1"));
            let page = OsString::from(format!("mobifs-{name}.1"));
            let has_page = pages.contains(&page) || laboratory.contains(&page);
            assert_eq!(has_page || name == "lab", !command.is_hide_set(), "{name}");
            // The words that are offered.
            let is_offered = bash
                .split_ascii_whitespace()
                .any(|word| word.trim_matches('"') == name);
            assert_eq!(is_offered, !command.is_hide_set(), "{name}");
        }
    }

    /// `mobifs flash serve` is what a user types, so its options are completed there, and its page has that name.
    #[test]
    fn commands_of_the_laboratory_are_shown_as_they_are_typed() {
        let directory = generated();
        let pages = names(&directory.path().join("mobifs-lab/share/man/man1"));
        for page in [
            "mobifs-lab.1",
            "mobifs-flash-serve.1",
            "mobifs-lab-figures.1",
        ] {
            assert!(pages.contains(&OsString::from(page)), "{page}: {pages:?}");
        }
        let fish = directory
            .path()
            .join("mobifs/share/fish/vendor_completions.d/mobifs.fish");
        assert!(std::fs::read_to_string(fish).unwrap().contains("-l preset"));
    }

    /// It had an option that does not exist, and neither those that do nor the keys.
    #[test]
    fn the_page_of_top_is_that_of_its_program() {
        let directory = generated();
        let page = directory.path().join("mobifs/share/man/man1/mobifs-top.1");
        let page = std::fs::read_to_string(page).unwrap();
        for word in [
            "interval\\-ms",
            "MS",
            "mobifs top",
            "mobifs\\-top",
            "Control\\-L",
            "commit the app",
            "KEYS",
        ] {
            assert!(page.contains(word), "{word}: {page}");
        }
        assert!(!page.contains("WORD"), "{page}");
    }

    #[test]
    fn the_page_of_the_configuration_has_every_key() {
        let directory = generated();
        let page = directory.path().join("mobifs/share/man/man5/mobifs.toml.5");
        let page = std::fs::read_to_string(page).unwrap();
        for key in [
            "memory_budget_bytes",
            "staleness_min_bytes",
            "flush_interval_ms",
            "keep_count",
        ] {
            assert!(page.contains(key), "{key}");
        }
        assert!(!page.contains("](") && !page.contains("| ---"), "{page}");
    }
}
