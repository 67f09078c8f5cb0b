//! What became of the lines of a file.

use std::collections::BTreeMap;
use std::path::Path;

/// Malformed lines that a report quotes.
const QUOTED_MAX: usize = 20;

/// What became of the lines of a file that was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// All lines, headers and empty ones included.
    pub lines: u64,
    /// Lines that could not be understood and were skipped.
    pub malformed: u64,
    /// The first of them, with file, number and reason.
    pub malformed_quoted: Vec<String>,
    /// What was understood and left out: how many of each reason.
    pub left_out: BTreeMap<String, u64>,
    /// What is in the trace, but not exactly as it was: how many of each reason.
    pub inexact: BTreeMap<String, u64>,
}

fn count(counts: &mut BTreeMap<String, u64>, reason: &str) {
    if let Some(count) = counts.get_mut(reason) {
        *count += 1;
    } else {
        counts.insert(reason.to_owned(), 1);
    }
}

impl ImportReport {
    pub(super) fn note_malformed(&mut self, path: &Path, line: u64, reason: &str) {
        self.malformed += 1;
        if self.malformed_quoted.len() < QUOTED_MAX {
            let quoted = format!("{}: line {line}: {reason}", path.display());
            self.malformed_quoted.push(quoted);
        }
    }

    /// Counts something that is left out.
    pub(crate) fn leave_out(&mut self, reason: &str) {
        count(&mut self.left_out, reason);
    }

    /// Counts something that is not exactly as it was.
    pub(super) fn note_inexact(&mut self, reason: &str) {
        count(&mut self.inexact, reason);
    }

    /// The report in lines, for the header of a trace.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.malformed > 0 {
            notes.push(format!("{} malformed lines skipped", self.malformed));
        }
        for (reason, count) in &self.left_out {
            notes.push(format!("left out: {reason}: {count}"));
        }
        for (reason, count) in &self.inexact {
            notes.push(format!("inexact: {reason}: {count}"));
        }
        notes
    }
}
