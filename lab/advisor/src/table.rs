//! The advice for people.

use std::fmt::{self, Write as _};

use mobifs_fragmentation::{counted, number, size};

use crate::cost::ModelSource;
use crate::report::{Advice, AdviceReport, What};

/// The report as text.
#[must_use]
pub fn table(report: &AdviceReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &AdviceReport) -> fmt::Result {
    let dof = |dof: Option<f64>| dof.map_or_else(|| "-".to_owned(), |dof| format!("{dof:.2}"));
    writeln!(
        text,
        "{} on {}{}: {} with {}, mean DoF {}",
        report.path,
        report.filesystem,
        if report.is_read_only {
            ", read-only"
        } else {
            ""
        },
        counted(report.files, "file", "files"),
        size(report.bytes),
        dof(report.mean_dof)
    )?;
    let kinds = report.mean_dof_by_kind.iter();
    let kinds: Vec<_> = kinds
        .filter(|(_, value)| value.is_some())
        .map(|(kind, value)| format!("{kind} {}", dof(*value)))
        .collect();
    if !kinds.is_empty() {
        writeln!(text, "DoF by kind: {}", kinds.join(", "))?;
    }
    let model = &report.model;
    writeln!(
        text,
        "reading all of it takes {:.0} ms, {:.0} ms of them for pieces, by t = {:.3} ms a piece + {:.2} ms a MB\n({})",
        report.read_ms,
        report.read_ms - report.read_ms_whole,
        model.piece_ms,
        model.megabyte_ms,
        source(model.source)
    )?;
    if let Some(trace) = &report.trace {
        writeln!(
            text,
            "the trace reads {} of {}, {} of which {} here; the advice is for these",
            size(trace.read_bytes),
            counted(trace.files, "file", "files"),
            number(trace.files_here),
            if trace.files_here == 1 { "lies" } else { "lie" },
        )?;
    }
    if report.advice.is_empty() {
        writeln!(text, "\nnothing is worth doing")?;
    }
    for (place, advice) in (1..).zip(&report.advice) {
        one(text, place, advice)?;
    }
    if !report.notes.is_empty() {
        writeln!(text)?;
    }
    for note in &report.notes {
        writeln!(text, "note: {note}")?;
    }
    Ok(())
}

fn source(source: ModelSource) -> String {
    let files = |files| counted(files, "file", "files");
    match source {
        ModelSource::Paper => "S4 Fig. 9, one phone; --measure-cost measures it here".to_owned(),
        ModelSource::Given => "as given".to_owned(),
        ModelSource::Measured { files: n } => format!("measured by reading {} here", files(n)),
        ModelSource::MeasuredOnDevice { files: n } => {
            format!(
                "measured by reading {} here, in the served device's time",
                files(n)
            )
        }
    }
}

fn one(text: &mut String, place: u32, advice: &Advice) -> fmt::Result {
    let what = match advice.what {
        What::JournalMode => "a write-ahead log",
        What::PreallocateDatabases => "databases that grow in steps",
        What::PreallocateFiles => "files that grow in steps",
        What::Defragment => "defragmenting",
    };
    writeln!(
        text,
        "\n{place}. {what}: {} with {}",
        counted(advice.files, "file", "files"),
        size(advice.bytes)
    )?;
    writeln!(text, "   {}", advice.action)?;
    let then = if advice.what == What::Defragment {
        "afterwards"
    } else {
        "if they are written anew so"
    };
    writeln!(
        text,
        "   {}, {} at most {then}: {:.1} ms less for reading them once",
        counted(advice.pieces, "piece now", "pieces now"),
        number(advice.pieces_predicted_max),
        advice.saved_ms
    )?;
    if let Some(unused) = advice.unused_bytes {
        writeln!(text, "   costs about {} that stay unused", size(unused))?;
    }
    if let Some(wear) = advice.wear {
        write!(
            text,
            "   costs {} of flash writes by copying",
            size(wear.copied_bytes)
        )?;
        match wear.remapped_bytes {
            Some(bytes) => writeln!(text, ", {} by remapping", size(bytes))?,
            None => writeln!(text, "; this device cannot remap")?,
        }
    }
    writeln!(text, "   {}", advice.why)?;
    if !advice.first.is_empty() {
        writeln!(text, "   first: {}", advice.first.join(", "))?;
    }
    Ok(())
}
