//! A run for people.

use std::fmt::Write as _;

use crate::state::{Day, LargeAndSmall, Scenarios, State, Work};

const KINDS: [&str; 4] = ["sqlite", "executable", "multimedia", "other"];

/// The report as a table.
#[must_use]
pub fn table(state: &State) -> String {
    match &state.work {
        Work::Scenarios(work) => scenarios(work),
        Work::LargeAndSmall(work) => large_and_small(work),
    }
}

/// The head of the table of days.
fn head() -> String {
    "day  used %  cleaned    sqlite executable multimedia     other   fragments <= 16 KiB     all    written MB  checksum"
        .to_owned()
}

/// A day in one line.
fn line(day: &Day) -> String {
    let mut line = format!(
        "{:>3} {:>7.1} {:>8}",
        day.day,
        f64::from(day.space.used_permille()) / 10.0,
        day.pictures_cleaned
    );
    for kind in KINDS {
        let dof = day.mean_dof_by_kind.get(kind).copied().flatten();
        let dof = dof.map_or_else(|| "-".to_owned(), |dof| format!("{dof:.2}"));
        let _ = write!(line, " {dof:>9}");
    }
    let first = day.fs_levels.first().copied().unwrap_or(0);
    let all: u64 = day.fs_levels.iter().sum();
    let written = day.written_bytes as f64 / 1e6;
    let _ = write!(
        line,
        " {first:>22} {all:>9} {written:>13.1}  {}",
        day.checksum
    );
    if day.resumed {
        line.push_str("  (resumed)");
    }
    line
}

fn scenarios(work: &Scenarios) -> String {
    let settings = &work.settings;
    let mut text = format!(
        "seed {}, scale {}, {:.0} minutes a day, profiles {}; written as the {} counts\n\n{}\n",
        settings.seed,
        settings.scale,
        settings.minutes_per_day,
        work.profiles_checksum,
        work.written_by,
        head()
    );
    for day in &work.days {
        text.push_str(&line(day));
        text.push('\n');
    }
    text
}

fn large_and_small(work: &LargeAndSmall) -> String {
    let Some(filled) = &work.filled else {
        return "not done yet\n".to_owned();
    };
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let mut text = format!(
        "seed {}: {:.1} % used, {:.0} MB free\n",
        filled.procedure.seed,
        f64::from(filled.after.used_permille()) / 10.0,
        megabytes(filled.after.free_bytes),
    );
    if filled.large_files + filled.small_files_made == 0 {
        text.push_str("no files were made\n");
        return text;
    }
    text += &format!(
        "{} large files of {:.0} MB ({})\n{} small files made, {} of them deleted ({:.1} MB)\nchecksum {:016x}\n",
        filled.large_files,
        megabytes(filled.large_bytes),
        if filled.large_were_allocated {
            "allocated"
        } else {
            "written"
        },
        filled.small_files_made,
        filled.small_files_deleted,
        megabytes(filled.deleted_bytes),
        filled.checksum
    );
    if filled.was_full_early {
        text.push_str(
            "The filesystem was full before the mark: another run may end with other files. Choose a lower mark.\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::fill::{Filled, Procedure, Utilisation};
    use crate::space::Space;

    use super::*;

    /// Regression: "0 large files of 0 MB (written)".
    #[test]
    fn a_filesystem_that_nothing_was_done_to_has_no_files() {
        let before = Space {
            used_bytes: 1 << 20,
            free_bytes: 1 << 30,
            free_files: None,
            block_bytes: 4096,
        };
        let procedure = Procedure::new(7, Utilisation::Low);
        let filled = Filled {
            procedure,
            before,
            after: before,
            large_files: 0,
            large_bytes: 0,
            large_were_allocated: false,
            small_files_made: 0,
            small_files_deleted: 0,
            deleted_bytes: 0,
            was_full_early: false,
            checksum: 0,
        };
        let text = large_and_small(&LargeAndSmall {
            procedure,
            before,
            filled: Some(filled),
        });
        assert!(text.ends_with("no files were made\n"), "{text}");
    }
}
