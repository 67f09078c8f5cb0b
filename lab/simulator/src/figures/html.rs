//! Figures as one page that needs nothing else.

use std::fmt::Write as _;

use mobifs_charts::{cited_sources, escaped};

use super::Figure;

const STYLE: &str = "\
body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
figure{margin:3rem 0}figcaption{margin:.5rem 0}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;font-size:.85rem}td,th{padding:.15rem .6rem;text-align:right}\
td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f3f3f3}";

/// The page.
pub(super) fn page(figures: &[Figure], introduction: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_page(&mut text, figures, introduction);
    text
}

fn write_page(text: &mut String, figures: &[Figure], introduction: &str) -> std::fmt::Result {
    writeln!(
        text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>MobiFS: when to write</title><style>{STYLE}</style></head><body>\n\
         <h1>When to write</h1>\n<p>{}</p>",
        escaped(introduction)
    )?;
    for figure in figures {
        write_figure(text, figure)?;
    }
    for source in cited_sources(text) {
        writeln!(text, "<p>{}</p>", escaped(&source))?;
    }
    writeln!(text, "</body></html>")
}

fn write_figure(text: &mut String, figure: &Figure) -> std::fmt::Result {
    writeln!(
        text,
        "<figure id=\"{}\"><h2>{}</h2>\n{}\n<figcaption>{}</figcaption>\n\
         <details><summary>The data</summary><table><tr>",
        figure.name,
        escaped(&figure.title),
        figure.svg,
        escaped(&figure.remark)
    )?;
    for column in &figure.columns {
        write!(text, "<th>{}</th>", escaped(column))?;
    }
    writeln!(text, "</tr>")?;
    for row in &figure.rows {
        write!(text, "<tr>")?;
        for cell in row {
            write!(text, "<td>{}</td>", escaped(cell))?;
        }
        writeln!(text, "</tr>")?;
    }
    writeln!(text, "</table></details></figure>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_its_sources_are() {
        let introduction = "after S0 Figure 1";
        let page = page(&[], introduction);
        assert!(page.contains("S0: the paper about MobiFS"), "{page}");
    }

    #[test]
    fn names_of_traces_cannot_break_the_page() {
        let figure = Figure {
            name: "one".to_owned(),
            title: "a <b> & \"c\"".to_owned(),
            svg: "<svg></svg>".to_owned(),
            columns: vec!["<script>".to_owned()],
            rows: vec![vec!["1 < 2".to_owned()]],
            remark: String::new(),
        };
        let page = page(&[figure], "");
        assert!(page.contains("a &lt;b&gt; &amp; &quot;c&quot;"));
        assert!(page.contains("<svg></svg>") && !page.contains("<script>"));
    }
}
