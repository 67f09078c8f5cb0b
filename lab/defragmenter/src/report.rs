//! What was done, for programs and for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mobifs_fragmentation::{counted, number, size};
use serde::Serialize;

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// How fragmented the files are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct State {
    /// Files with extents.
    pub files: u64,
    /// Those of them with a degree of fragmentation above 1.
    pub fragmented_files: u64,
    /// The mean degree.
    pub mean_dof: Option<f64>,
    /// The mean degree of the fragmented ones.
    pub mean_dof_of_fragmented: Option<f64>,
    /// Extents of all.
    pub extents: u64,
}

/// Counts from which a [`State`] is made; the same in whatever order files come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    files: u64,
    fragmented_files: u64,
    extents: u64,
    /// Degrees, in parts of 2³².
    degrees: u128,
    degrees_of_fragmented: u128,
}

impl Sums {
    fn one(extents: u64, least: u64) -> Self {
        // A file of holes has no degree.
        if extents == 0 {
            return Self::default();
        }
        let degree = (u128::from(extents) << 32) / u128::from(least.max(1));
        let is_fragmented = extents > least;
        Self {
            files: 1,
            fragmented_files: u64::from(is_fragmented),
            extents,
            degrees: degree,
            degrees_of_fragmented: if is_fragmented { degree } else { 0 },
        }
    }

    /// A file with so many extents, of so many at least.
    pub(crate) fn add(&mut self, extents: u64, least: u64) {
        let one = Self::one(extents, least);
        self.files += one.files;
        self.fragmented_files += one.fragmented_files;
        self.extents += one.extents;
        self.degrees += one.degrees;
        self.degrees_of_fragmented += one.degrees_of_fragmented;
    }

    /// A file that was added has fewer extents.
    pub(crate) fn change(&mut self, from: u64, to: u64, least: u64) {
        let one = Self::one(from, least);
        self.files -= one.files;
        self.fragmented_files -= one.fragmented_files;
        self.extents -= one.extents;
        self.degrees -= one.degrees;
        self.degrees_of_fragmented -= one.degrees_of_fragmented;
        self.add(to, least);
    }

    pub(crate) fn state(&self) -> State {
        let mean =
            |sum: u128, of: u64| (of > 0).then(|| sum as f64 / f64::from(2).powi(32) / of as f64);
        State {
            files: self.files,
            fragmented_files: self.fragmented_files,
            mean_dof: mean(self.degrees, self.files),
            mean_dof_of_fragmented: mean(self.degrees_of_fragmented, self.fragmented_files),
            extents: self.extents,
        }
    }
}

/// What a served device did meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFigures {
    /// Bytes that were programmed into flash, with metadata, mapping and garbage collection.
    pub programmed_bytes: u64,
    /// Modelled time that passed, in nanoseconds.
    pub elapsed_ns: u64,
    /// Pages of 4 KiB whose copy was announced, and that were shared.
    pub pages_shared: u64,
    /// Pages that were announced and programmed all the same.
    pub pages_written: u64,
}

/// What a dry run would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// Files of which something would move.
    pub files: u64,
    /// The first of them, those that gain most first; a file that only makes room gains nothing.
    pub first: Vec<PlannedFile>,
    /// What `--copy` would write, with metadata.
    pub copied_bytes: u64,
    /// What `--remap` would have programmed; none where there is no served device.
    pub remapped_bytes: Option<u64>,
    /// The limit on flash writes, if it would end the run before everything has moved.
    pub limit: Option<Limit>,
}

/// A limit on flash writes that would end a run early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// What may be written.
    pub bytes: u64,
    /// Whether it ends `--copy`.
    pub ends_copying: bool,
    /// Whether it ends `--remap`.
    pub ends_remapping: bool,
}

impl Limit {
    /// None if neither way would write so much.
    pub(crate) fn of(bytes: u64, copied_bytes: u64, remapped_bytes: Option<u64>) -> Option<Self> {
        let limit = Self {
            bytes,
            ends_copying: copied_bytes > bytes,
            ends_remapping: remapped_bytes.is_some_and(|remapped| remapped > bytes),
        };
        (limit.ends_copying || limit.ends_remapping).then_some(limit)
    }
}

/// A file of which something would move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedFile {
    /// Its path.
    pub path: String,
    /// What would move of it.
    pub moved_bytes: u64,
    /// Its extents now.
    pub extents: u64,
    /// Its extents afterwards.
    pub extents_after: u64,
    /// How much sooner it would be read.
    pub saved_ms: f64,
}

/// A free run that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreeRun {
    /// How long it was to be.
    pub wanted_bytes: u64,
    /// The largest free run before.
    pub largest_before_bytes: u64,
    /// The largest free run after; of a dry run as it would be.
    pub largest_after_bytes: u64,
    /// Whether there is one of that length.
    pub is_reached: bool,
}

impl FreeRun {
    pub(crate) const fn ends_with(&mut self, largest_bytes: u64) {
        self.largest_after_bytes = largest_bytes;
        self.is_reached = largest_bytes >= self.wanted_bytes;
    }
}

/// Bytes that are written when so many move by copying, in so many moves.
pub(crate) const fn written_by_copying(moved_bytes: u64, moves: u64) -> u64 {
    if moves == 0 {
        return 0;
    }
    moved_bytes + metadata_bytes(moves)
}

/// Bytes that are programmed when so many are remapped: metadata of the filesystem, the device's log of remaps, and
/// mapping pages.
pub(crate) const fn written_by_remapping(moved_bytes: u64, moves: u64) -> u64 {
    const BYTES_FOR_A_PAGE: u64 = 32;
    if moves == 0 {
        return 0;
    }
    metadata_bytes(moves) + moved_bytes / 4096 * BYTES_FOR_A_PAGE
}

/// Metadata of ext4 for so many moves: a commit with the inodes, extents, groups and bitmaps, in whole flash
/// pages. Measured on the served device (`docs/FRAGMENTATION-REFERENCE.md`).
const fn metadata_bytes(moves: u64) -> u64 {
    const ONCE_BYTES: u64 = 160 << 10;
    const MOVE_BYTES: u64 = 4 << 10;
    ONCE_BYTES + moves * MOVE_BYTES
}

/// Why a run ended before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// The user asked for it.
    Cancelled,
    /// The limit on flash writes was reached.
    FlashWrites,
    /// Other programs needed the free room that the run works with.
    RoomNeeded,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The filesystem, by its name.
    pub filesystem: String,
    /// `dry-run`, `copy` or `remap`.
    pub mode: &'static str,
    /// Before.
    pub before: State,
    /// After; of a dry run as it would be.
    pub after: State,
    /// Files that were wanted: fragmented, and worth it or all.
    pub wanted_files: u64,
    /// Their extents before.
    pub wanted_extents: u64,
    /// Moves.
    pub moves: u64,
    /// Bytes that moved to join pieces.
    pub joined_bytes: u64,
    /// Bytes that moved to make room.
    pub room_bytes: u64,
    /// Files that have more extents than before, by the run or by what other programs wrote meanwhile.
    pub worse_files: u64,
    /// How much sooner all files together would be read, by the line t = a · DoF + b; below 0: later.
    pub saved_ms: f64,
    /// Whether there is a served device below, which can remap.
    pub is_served: bool,
    /// What a served device did; none without one, and of a dry run.
    pub device: Option<DeviceFigures>,
    /// What a dry run would do; none of others.
    pub planned: Option<Planned>,
    /// The free run that was asked for.
    pub free_run: Option<FreeRun>,
    /// Real time.
    pub seconds: f64,
    /// Why it ended early.
    pub stopped: Option<Stopped>,
    /// What was left alone, by reason.
    pub left_out: BTreeMap<String, u64>,
}

/// As a table.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &Report) -> std::fmt::Result {
    let degree = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
    writeln!(text, "{} by {}", report.filesystem, report.mode)?;
    writeln!(
        text,
        "{:8}{:>10}{:>13}{:>10}{:>11}{:>10}",
        "", "files", "fragmented", "mean DoF", "of those", "extents"
    )?;
    for (name, state) in [("before", &report.before), ("after", &report.after)] {
        writeln!(
            text,
            "{name:8}{:>10}{:>13}{:>10}{:>11}{:>10}",
            state.files,
            state.fragmented_files,
            degree(state.mean_dof),
            degree(state.mean_dof_of_fragmented),
            state.extents
        )?;
    }
    write_moves(text, report)?;
    if let Some(planned) = &report.planned {
        write_planned(text, planned)?;
    }
    if let Some(run) = &report.free_run {
        write_free_run(text, run, report.planned.is_some())?;
    }
    write_end(text, report)
}

/// What moved, and what it gains and costs.
fn write_moves(text: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(
        text,
        "wanted: {}; {}: {} to join pieces, {} to make room; {:.2} s",
        counted(report.wanted_files, "file", "files"),
        counted(report.moves, "move", "moves"),
        size(report.joined_bytes),
        size(report.room_bytes),
        report.seconds
    )?;
    writeln!(
        text,
        "reading all of them takes {:.0} ms {}",
        report.saved_ms.abs(),
        if report.saved_ms < 0.0 {
            "more"
        } else {
            "less"
        }
    )?;
    if report.worse_files > 0 {
        writeln!(
            text,
            "worse: {} more extents than before",
            counted(report.worse_files, "file has", "files have")
        )?;
    }
    if let Some(device) = &report.device {
        writeln!(
            text,
            "device: {} programmed in {:.0} ms of its time; {} shared, {} written although announced",
            size(device.programmed_bytes),
            device.elapsed_ns as f64 / 1e6,
            counted(device.pages_shared, "page", "pages"),
            number(device.pages_written)
        )?;
    }
    Ok(())
}

fn write_free_run(text: &mut String, run: &FreeRun, is_planned: bool) -> std::fmt::Result {
    let would = if is_planned { "would be" } else { "is" };
    writeln!(
        text,
        "free run: the largest was {} and {would} {}; {} {} asked for: {}",
        size(run.largest_before_bytes),
        size(run.largest_after_bytes),
        size(run.wanted_bytes),
        if run.wanted_bytes == 1 { "was" } else { "were" },
        if run.is_reached {
            "reached"
        } else {
            "not reached"
        }
    )
}

/// Why the run ended early, and what it left alone.
fn write_end(text: &mut String, report: &Report) -> std::fmt::Result {
    match report.stopped {
        Some(Stopped::Cancelled) => writeln!(
            text,
            "cancelled after {} with {}: every file has its content, what had moved stays moved, and a run that is started \
             anew goes on with the rest",
            counted(report.moves, "move", "moves"),
            size(report.joined_bytes + report.room_bytes)
        )?,
        Some(Stopped::FlashWrites) => {
            writeln!(text, "stopped: the limit on flash writes is reached")?
        }
        Some(Stopped::RoomNeeded) => writeln!(
            text,
            "stopped: other programs need the free room; what had moved stays moved"
        )?,
        None => {}
    }
    for (reason, count) in &report.left_out {
        writeln!(text, "left alone: {count} {reason}")?;
    }
    Ok(())
}

fn write_planned(text: &mut String, planned: &Planned) -> std::fmt::Result {
    write!(
        text,
        "would write about {} by copying",
        size(planned.copied_bytes)
    )?;
    if let Some(bytes) = planned.remapped_bytes {
        write!(text, ", about {} by remapping", size(bytes))?;
    }
    writeln!(text)?;
    if let Some(limit) = &planned.limit {
        writeln!(
            text,
            "the limit on flash writes, {}, would end {} before that",
            size(limit.bytes),
            match (limit.ends_copying, limit.ends_remapping) {
                (true, true) => "both",
                (false, true) => "remapping",
                _ => "copying",
            }
        )?;
    }
    if planned.files == 0 {
        return Ok(());
    }
    writeln!(
        text,
        "would move, of {}:\n{:>11}{:>10}{:>8}{:>11}  path",
        counted(planned.files, "file", "files"),
        "saves ms",
        "extents",
        "then",
        "moved"
    )?;
    for file in &planned.first {
        writeln!(
            text,
            "{:>11.1}{:>10}{:>8}{:>11}  {}",
            file.saved_ms,
            file.extents,
            file.extents_after,
            size(file.moved_bytes),
            file.path
        )?;
    }
    let others = planned.files - planned.first.len() as u64;
    if others > 0 {
        writeln!(
            text,
            "and {} that gain no more than these",
            counted(others, "other", "others")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a dry run did not say that the limit it was given would end the run.
    #[test]
    fn a_limit_that_would_end_a_run_is_said() {
        let of = |bytes| Limit::of(bytes, 5000, Some(300));
        assert_eq!(of(5000), None);
        assert_eq!(Limit::of(5000, 5000, None), None);
        let ends = of(299).unwrap();
        assert!(ends.ends_copying && ends.ends_remapping);
        let mut text = String::new();
        let planned = Planned {
            files: 0,
            first: Vec::new(),
            copied_bytes: 5000,
            remapped_bytes: Some(300),
            limit: of(4096),
        };
        write_planned(&mut text, &planned).unwrap();
        assert!(
            text.contains("limit on flash writes") && text.contains("would end copying"),
            "{text}"
        );
    }

    #[test]
    fn sums_do_not_depend_on_the_order_and_changes_are_exact() {
        let files = [(7, 3), (1, 1), (20, 1), (0, 1), (2, 2), (11, 7)];
        let mut there = Sums::default();
        files
            .iter()
            .for_each(|&(extents, least)| there.add(extents, least));
        let mut back = Sums::default();
        files
            .iter()
            .rev()
            .for_each(|&(extents, least)| back.add(extents, least));
        assert_eq!(there.state(), back.state());
        there.change(20, 1, 1);
        there.change(7, 3, 3);
        there.change(11, 7, 7);
        let state = there.state();
        assert_eq!((state.files, state.fragmented_files), (5, 0));
        assert_eq!(
            (state.mean_dof, state.mean_dof_of_fragmented),
            (Some(1.0), None)
        );
    }
}
