//! The report as a page.

use std::fmt::Write as _;

use mobifs_charts::{Page, escaped};
use mobifs_experiments::{Criterion, Verdict, figure};

use crate::outcome::Outcome;
use crate::report::Report;
use crate::settings::Extent;

const STYLE: &str = "\
figure{margin:14px 0;max-width:760px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}\
.criteria td,.criteria th{text-align:left}.pass{color:#00734f}.fail{color:#b3261e;font-weight:600}\
.differs{color:#8a5a00}.noted{color:var(--soft)}.because{color:var(--soft);font-size:13px}\
figure section{padding:0;border:0;margin:0}figure section h2{display:none}";

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let extent = match report.extent {
        Extent::Tiny => "tiny sizes, whose criteria mean nothing",
        Extent::Reduced => "reduced sizes",
        Extent::Full => "complete sizes",
    };
    let about = format!(
        "The experiments of S4 (“File Fragmentation in Mobile Devices”) on real filesystems over the \
         served flash device: Linux {}, {extent}, seed {}",
        report.kernel, report.seed
    );
    let mut body = cards(report);
    for outcome in &report.experiments {
        // Writing to a string cannot fail.
        let _written = experiment(&mut body, outcome);
    }
    let page = Page {
        title: "Experiments with fragmented files",
        about: &about,
        style: STYLE,
        body: &body,
        script: None,
    };
    page.html()
}

/// How many criteria have which verdict.
fn cards(report: &Report) -> String {
    let count = |verdict| {
        let all = report.experiments.iter().flat_map(|one| &one.criteria);
        all.filter(|criterion| criterion.verdict == verdict).count()
    };
    let mut text = "<div class=\"cards\">".to_owned();
    for (verdict, name) in [
        (Verdict::Pass, "criteria passed"),
        (Verdict::Fail, "failed"),
        (Verdict::Differs, "differ, with evidence"),
        (Verdict::Noted, "shown only"),
    ] {
        let count = count(verdict);
        text += &format!("<div><b>{count}</b><span>{name}</span></div>");
    }
    text + "</div>"
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
        text.push_str(&mobifs_charts::figure(&figure.svg, &figure.caption));
    }
    for table in &outcome.tables {
        text.push_str(&table.html());
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

#[cfg(test)]
mod tests {
    use mobifs_charts::Table;

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
