//! How fragmented some files are.

use std::path::{Path, PathBuf};

use mobifs_fragmentation::{Options, Outcome, measure};
use serde::Serialize;

use crate::error::FragError;

/// Sums over some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Degrees {
    pub(crate) files: u64,
    pub(crate) extents: u64,
    pub(crate) mean_dof: f64,
    pub(crate) dof_max: f64,
    /// The share of files that lie in one piece.
    pub(crate) whole_share: f64,
    pub(crate) mean_fragment_bytes: f64,
    pub(crate) bytes: u64,
}

impl Degrees {
    /// The degrees of these files, of which there must be some.
    pub(crate) fn of(paths: &[PathBuf]) -> Result<Self, FragError> {
        let report = measured(paths)?.report;
        if report.files == 0 {
            return Err(FragError::NoResult("no file has extents"));
        }
        Ok(Self {
            files: report.files,
            extents: report.all.extents,
            mean_dof: report.mean_dof.unwrap_or(f64::NAN),
            dof_max: report.dof_max.unwrap_or(f64::NAN),
            whole_share: 1.0 - report.fragmented_files as f64 / report.files as f64,
            mean_fragment_bytes: report.all.bytes as f64 / report.all.extents.max(1) as f64,
            bytes: report.all.bytes,
        })
    }
}

/// A whole measurement, with the places for a picture.
pub(crate) fn measured(paths: &[PathBuf]) -> Result<Outcome, FragError> {
    let options = Options {
        reads_headers: false,
        ..Options::default()
    };
    Ok(measure(paths, &options, None, &|_| {})?)
}

/// The files of a directory whose name ends so, in order.
pub(crate) fn files_with_ending(directory: &Path, ending: &str) -> Result<Vec<PathBuf>, FragError> {
    let at = |error| FragError::io(directory, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(at)? {
        let path = entry.map_err(at)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(ending) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
