//! A page that needs nothing else.

use std::fmt::Write as _;

use mobifs_charts::{cited_sources, escaped};
use mobifs_fragmentation::STYLE;

const OWN_STYLE: &str = "\
figure{margin:14px 0;max-width:760px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}\
section{overflow-x:auto}caption{text-align:left;font-weight:600;padding:8px 0}";

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(caption: &str, head: &[&str]) -> Self {
        Self {
            caption: caption.to_owned(),
            head: head.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
        }
    }
}

/// A part of a page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub(crate) title: String,
    pub(crate) text: Vec<String>,
    /// Picture and caption.
    pub(crate) figures: Vec<(String, String)>,
    pub(crate) tables: Vec<Table>,
}

/// The page of these sections.
#[must_use]
pub fn page(about: &str, sections: &[Section]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_all(&mut text, about, sections);
    text
}

fn write_all(text: &mut String, about: &str, sections: &[Section]) -> std::fmt::Result {
    write!(
        text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Persistence</title><style>{STYLE}{OWN_STYLE}</style></head>\
         <body><main><h1>Persistence</h1><p class=\"what\">{}</p>",
        escaped(about)
    )?;
    for section in sections {
        write!(text, "<section><h2>{}</h2>", escaped(&section.title))?;
        for paragraph in &section.text {
            write!(text, "<p>{}</p>", escaped(paragraph))?;
        }
        for (svg, caption) in &section.figures {
            write!(
                text,
                "<figure>{svg}<figcaption>{}</figcaption></figure>",
                escaped(caption)
            )?;
        }
        for table in &section.tables {
            write_table(text, table)?;
        }
        text.push_str("</section>");
    }
    for source in cited_sources(text) {
        write!(text, "<p>{}</p>", escaped(&source))?;
    }
    text.push_str("</main></body></html>\n");
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
