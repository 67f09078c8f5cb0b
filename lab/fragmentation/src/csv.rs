//! A line for each file, as spreadsheets read it, written while files are measured.

use std::io::{self, Write};

use crate::facts::FileFacts;
use crate::names::shown;
use crate::shape::FileShape;

pub(crate) const HEAD: &str = "path,kind,bytes,dof,extents,least_extents,fragments,level_1,level_2,level_3,\
                    level_4,level_5,level_6,level_7,unwritten_bytes,shared_bytes,saved_ms\n";

pub(crate) struct Csv<'w> {
    out: &'w mut dyn Write,
}

impl<'w> Csv<'w> {
    pub(crate) fn new(out: &'w mut dyn Write) -> io::Result<Self> {
        out.write_all(HEAD.as_bytes())?;
        Ok(Self { out })
    }

    pub(crate) fn row(
        &mut self,
        facts: &FileFacts<'_>,
        shape: &FileShape,
        dof: f64,
        saved_ms: f64,
    ) -> io::Result<()> {
        let levels = shape.levels.map(|count| count.to_string()).join(",");
        writeln!(
            self.out,
            "{},{},{},{dof:.4},{},{},{},{levels},{},{},{saved_ms:.2}",
            quoted(&shown(facts.path)),
            facts.kind.name(),
            facts.size,
            shape.extents,
            shape.least,
            shape.runs,
            shape.unwritten_bytes,
            shape.shared_bytes,
        )
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A field, in quotes where it must be.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    #[test]
    fn names_stay_one_field_and_one_line() {
        let mut out = Vec::new();
        let mut csv = Csv::new(&mut out).unwrap();
        let facts = FileFacts {
            path: b"a,\"b\"\nc",
            size: 5,
            kind: Kind::Other,
            read_s: 0,
        };
        let shape = FileShape {
            extents: 3,
            least: 2,
            runs: 3,
            levels: [3, 0, 0, 0, 0, 0, 0],
            ..FileShape::default()
        };
        csv.row(&facts, &shape, 1.5, 0.17).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1],
            "\"a,\"\"b\"\"\\x0ac\",other,5,1.5000,3,2,3,3,0,0,0,0,0,0,0,0,0.17"
        );
        assert_eq!(lines[0].split(',').count(), 17);
    }
}
