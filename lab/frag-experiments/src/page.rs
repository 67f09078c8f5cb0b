//! The report as a page that needs nothing else.

use std::fmt::Write as _;

use mobifs_charts::{cited_sources, escaped};
use mobifs_experiments::{Criterion, Verdict, figure};
use mobifs_fragmentation::STYLE;

use crate::outcome::{Outcome, Table};
use crate::report::Report;
use crate::settings::Extent;

const OWN_STYLE: &str = "\
figure{margin:14px 0;max-width:760px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}\
.criteria td,.criteria th{text-align:left}.pass{color:#00734f}.fail{color:#b3261e;font-weight:600}\
.differs{color:#8a5a00}.noted{color:var(--soft)}.because{color:var(--soft);font-size:13px}\
figure section{padding:0;border:0;margin:0}figure section h2{display:none}";

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, report);
    text
}

fn write_all(text: &mut String, report: &Report) -> std::fmt::Result {
    let extent = match report.extent {
        Extent::Tiny => "tiny sizes, whose criteria mean nothing",
        Extent::Reduced => "reduced sizes",
        Extent::Full => "complete sizes",
    };
    write!(
        text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Experiments with fragmented files</title><style>{STYLE}{OWN_STYLE}</style></head>\
         <body><main><h1>Experiments with fragmented files</h1>\
         <p class=\"what\">The experiments of S4 (“File Fragmentation in Mobile Devices”) on real \
         filesystems over the served flash device: Linux {}, {extent}, seed {}</p>",
        escaped(&report.kernel),
        report.seed
    )?;
    let count = |verdict| {
        let all = report.experiments.iter().flat_map(|one| &one.criteria);
        all.filter(|criterion| criterion.verdict == verdict).count()
    };
    text.push_str("<div class=\"cards\">");
    for (verdict, name) in [
        (Verdict::Pass, "criteria passed"),
        (Verdict::Fail, "failed"),
        (Verdict::Differs, "differ, with evidence"),
        (Verdict::Noted, "shown only"),
    ] {
        write!(
            text,
            "<div><b>{}</b><span>{name}</span></div>",
            count(verdict)
        )?;
    }
    text.push_str("</div>");
    for outcome in &report.experiments {
        experiment(text, outcome)?;
    }
    for source in cited_sources(text) {
        write!(text, "<p>{}</p>", escaped(&source))?;
    }
    text.push_str("</main></body></html>\n");
    Ok(())
}

fn experiment(text: &mut String, outcome: &Outcome) -> std::fmt::Result {
    write!(
        text,
        "<section id=\"{}\"><h2>{}</h2><p>{}</p>",
        outcome.name,
        escaped(outcome.title),
        escaped(&outcome.method)
    )?;
    criteria(text, &outcome.criteria)?;
    for figure in &outcome.figures {
        write!(
            text,
            "<figure>{}<figcaption>{}</figcaption></figure>",
            figure.svg,
            escaped(&figure.caption)
        )?;
    }
    for table in &outcome.tables {
        write_table(text, table)?;
    }
    for note in &outcome.notes {
        write!(text, "<p>{}</p>", escaped(note))?;
    }
    write!(text, "<p>Took {:.0} s.</p></section>", outcome.seconds)
}

fn criteria(text: &mut String, criteria: &[Criterion]) -> std::fmt::Result {
    text.push_str(
        "<table class=\"criteria\"><thead><tr><th><th>criterion<th>measured<th>accepted<th>published\
         <th>where</tr></thead><tbody>",
    );
    for criterion in criteria {
        let word = criterion.verdict.word();
        let measured = criterion.measured.map_or_else(
            || "–".to_owned(),
            |value| format!("{} {}", figure(value), criterion.unit),
        );
        write!(
            text,
            "<tr><td class=\"{}\">{word}<td>{}",
            word.to_lowercase(),
            escaped(&criterion.name)
        )?;
        if let Some(because) = &criterion.because {
            write!(
                text,
                "<div class=\"because\">differs because {}</div>",
                escaped(because)
            )?;
        }
        write!(
            text,
            "<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(measured.trim_end()),
            escaped(&criterion.accepted()),
            escaped(&criterion.published),
            escaped(criterion.source)
        )?;
    }
    text.push_str("</tbody></table>");
    Ok(())
}

fn write_table(text: &mut String, table: &Table) -> std::fmt::Result {
    write!(
        text,
        "<table><caption>{}</caption><thead><tr>",
        escaped(&table.caption)
    )?;
    for name in &table.head {
        write!(text, "<th>{}", escaped(name))?;
    }
    text.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        text.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let tag = if column == 0 { "th" } else { "td" };
            write!(text, "<{tag}>{}", escaped(cell))?;
        }
        text.push_str("</tr>");
    }
    text.push_str("</tbody></table>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Figure;

    #[test]
    fn a_page_has_figures_criteria_and_reasons() {
        let good = Criterion::new("evidence", "S4", "1", 1.0).at_most(1.0);
        let differs = Criterion::new("a < b", "S4", "5", 9.0)
            .at_most(5.0)
            .explained_by("the kernel is newer", std::slice::from_ref(&good));
        let mut table = Table::new("caption", &["x", "y"]);
        table.rows.push(vec!["1".to_owned(), "<2>".to_owned()]);
        let outcome = Outcome {
            name: "scan",
            title: "Title",
            method: "How".to_owned(),
            tables: vec![table],
            figures: vec![Figure {
                caption: "Figure".to_owned(),
                svg: "<svg></svg>".to_owned(),
            }],
            criteria: vec![differs, good],
            notes: vec!["Note".to_owned()],
            data: serde_json::Value::Null,
            seconds: 1.0,
        };
        let report = Report {
            schema: 1,
            kernel: "6.1".to_owned(),
            extent: Extent::Reduced,
            seed: 1,
            failed: 0,
            criteria: 2,
            experiments: vec![outcome],
        };
        let page = page(&report);
        for part in [
            "<svg></svg><figcaption>Figure",
            "<td class=\"differs\">differs<td>a &lt; b",
            "differs because the kernel is newer (evidence: “evidence”)",
            "<td>&lt;2&gt;",
            "<b>1</b><span>differ, with evidence",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }
}
