//! What an experiment found, as the report shows it.

use mobifs_charts::Table;
use mobifs_experiments::{Criterion, Verdict};
use serde::Serialize;

/// A picture.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it shows.
    pub caption: String,
    /// The picture, as SVG.
    pub svg: String,
}

/// What one experiment found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The name by which it is called.
    pub name: &'static str,
    /// What it repeats.
    pub title: &'static str,
    /// What was done, and which time its figures have.
    pub method: String,
    /// The tables.
    pub tables: Vec<Table>,
    /// The pictures; only in the page.
    #[serde(skip)]
    pub figures: Vec<Figure>,
    /// What it was held against.
    pub criteria: Vec<Criterion>,
    /// What else has to be known.
    pub notes: Vec<String>,
    /// What was measured, for programs.
    pub data: serde_json::Value,
    /// How long it took, in real time.
    pub seconds: f64,
}

impl Outcome {
    /// Criteria that failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        let criteria = self.criteria.iter();
        criteria
            .filter(|criterion| criterion.verdict == Verdict::Fail)
            .count()
    }
}
