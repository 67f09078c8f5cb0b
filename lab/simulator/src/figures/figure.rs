//! A figure.

use serde::Serialize;

/// A picture, the numbers in it, and what they say.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// File name without its ending.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The picture.
    #[serde(skip)]
    pub svg: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// The numbers.
    pub rows: Vec<Vec<String>>,
    /// How ours compares with what was published, and why.
    pub remark: String,
}

impl Figure {
    /// The numbers as comma-separated values.
    pub fn csv(&self) -> String {
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| {
                if cell.contains([',', '"', '\n']) {
                    format!("\"{}\"", cell.replace('"', "\"\""))
                } else {
                    cell.clone()
                }
            });
            cells.collect::<Vec<_>>().join(",") + "\n"
        };
        let rows = self.rows.iter().map(|row| line(row));
        line(&self.columns) + &rows.collect::<String>()
    }
}
