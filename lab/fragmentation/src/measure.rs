//! The whole measurement.

use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::benefit::Model;
use crate::collector::{Collector, EachFile, MeasuredFile, Place};
use crate::csv::Csv;
use crate::error::MeasureError;
use crate::image;
use crate::mounted::{Looks, Mounted};
use crate::report::Report;
use crate::targets::{Sort, targets};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Regular files are measured as files, images too.
    pub as_files: bool,
    /// Content that has no place yet is written out; else its file is left out.
    pub may_sync: bool,
    /// The beginning of files is read where their names do not say the kind.
    pub reads_headers: bool,
    /// Only files that were read within so many days.
    pub read_within_days: Option<u32>,
    /// How many of the files that are worth defragmenting are named.
    pub worth_max: usize,
    /// What pieces cost.
    pub model: Model,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            as_files: false,
            may_sync: true,
            reads_headers: true,
            read_within_days: None,
            worth_max: 20,
            model: Model::default(),
        }
    }
}

/// A report, and what the page needs beyond it.
pub struct Outcome {
    /// The report.
    pub report: Report,
    pub(crate) places: Vec<Place>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Outcome");
        shown.field("report", &self.report).finish_non_exhaustive()
    }
}

/// Measures all paths together. A line for each file goes to `csv`; `progress` gets how many
/// files were looked at.
///
/// # Errors
/// A path cannot be measured. What is within a tree and cannot be is counted instead.
pub fn measure(
    paths: &[PathBuf],
    options: &Options,
    csv: Option<&mut dyn Write>,
    progress: &dyn Fn(u64),
) -> Result<Outcome, MeasureError> {
    run(paths, options, (csv, None), progress)
}

/// Measures all paths together, and hands each file to `each` while it is measured.
///
/// # Errors
/// As [`measure`].
pub fn measure_each(
    paths: &[PathBuf],
    options: &Options,
    each: &mut dyn FnMut(&MeasuredFile<'_>),
    progress: &dyn Fn(u64),
) -> Result<Outcome, MeasureError> {
    run(paths, options, (None, Some(each)), progress)
}

fn run<'w>(
    paths: &[PathBuf],
    options: &Options,
    (csv, each): (Option<&'w mut dyn Write>, Option<EachFile<'w>>),
    progress: &dyn Fn(u64),
) -> Result<Outcome, MeasureError> {
    const DAY_SECONDS: i64 = 24 * 60 * 60;
    let of_csv = |error| MeasureError::Io {
        path: "the file for --csv".into(),
        error,
    };
    let targets = targets(paths, options.as_files)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let looks = Looks {
        may_sync: options.may_sync,
        reads_headers: options.reads_headers,
        read_since_s: options
            .read_within_days
            .map(|days| now_s.saturating_sub(i64::from(days) * DAY_SECONDS)),
    };
    let csv = csv.map(Csv::new).transpose().map_err(of_csv)?;
    let mut collector = Collector::new(options.model, options.worth_max, now_s, (csv, each));
    let identities: HashSet<_> = targets.iter().map(|target| target.identity).collect();
    let (images, mounted): (Vec<_>, Vec<_>) = targets
        .into_iter()
        .partition(|target| target.sort == Sort::Image);
    let mut measuring = Mounted::new(&mut collector, looks, identities, progress);
    for target in mounted {
        measuring.measure(target)?;
    }
    measuring.finish()?;
    for target in images {
        image::measure(&target.path, looks, &mut collector, progress)?;
    }
    let (report, places) = collector.into_report().map_err(of_csv)?;
    Ok(Outcome { report, places })
}
