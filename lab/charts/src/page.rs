//! Pages in one file that needs nothing else.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{cited_sources, escaped};

/// The style of all pages.
const STYLE: &str = include_str!("page.css");

/// A page that is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page<'a> {
    /// Its title, and its heading.
    pub title: &'a str,
    /// What it is about, below the heading.
    pub about: &'a str,
    /// Rules of style for this page alone.
    pub style: &'a str,
    /// HTML.
    pub body: &'a str,
    /// JavaScript, with an element `tip` to show what the pointer is at.
    pub script: Option<&'a str>,
}

impl Page<'_> {
    /// The page as HTML; at its end it says what the works are that it cites.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(self.title);
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title><style>{STYLE}{}</style></head>\
             <body><main><h1>{title}</h1><p class=\"what\">{}</p>{}",
            self.style,
            escaped(self.about),
            self.body
        );
        for source in cited_sources(&text) {
            // Writing to a string cannot fail.
            let _written = write!(text, "<p>{}</p>", escaped(&source));
        }
        text.push_str("</main>");
        if let Some(script) = self.script {
            let _written = write!(
                text,
                "<div id=\"tip\" hidden></div><script>{script}</script>"
            );
        }
        text.push_str("</body></html>\n");
        text
    }
}

/// A picture with its caption, as HTML. `svg` is taken as it is.
#[must_use]
pub fn figure(svg: &str, caption: &str) -> String {
    let caption = escaped(caption);
    format!("<figure>{svg}<figcaption>{caption}</figcaption></figure>")
}

/// A table, whose first column names the rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            head: head.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// The table as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let caption = escaped(&self.caption);
        let mut text = format!("<table><caption>{caption}</caption><thead><tr>");
        for name in &self.head {
            text += "<th>";
            text += &escaped(name);
        }
        text += "</tr></thead><tbody>";
        for row in &self.rows {
            text += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                text += if column == 0 { "<th>" } else { "<td>" };
                text += &escaped(cell);
            }
            text += "</tr>";
        }
        text + "</tbody></table>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_page() {
        let mut table = Table::new("a <b>", &["<script>"]);
        table.rows.push(vec!["1 < 2".to_owned(), "&".to_owned()]);
        let html = table.html();
        assert!(html.contains("<caption>a &lt;b&gt;") && html.contains("<th>&lt;script&gt;"));
        assert!(html.contains("<tr><th>1 &lt; 2<td>&amp;</tr>"), "{html}");
        let figure = figure("<svg></svg>", "\"c\"");
        assert!(figure.contains("<svg></svg><figcaption>&quot;c&quot;"));
        let page = Page {
            title: "<title>",
            about: "a & b",
            body: &html,
            ..Page::default()
        };
        let page = page.html();
        assert!(page.contains("<h1>&lt;title&gt;</h1>") && page.contains("a &amp; b"));
        assert!(page.contains(&html) && !page.contains("<script>"));
    }

    #[test]
    fn a_page_says_what_its_sources_are() {
        let page = Page {
            about: "after S0 Figure 1",
            script: Some("let x;"),
            ..Page::default()
        };
        let page = page.html();
        assert!(page.contains("S0: the paper about MobiFS"), "{page}");
        assert!(page.contains("<script>let x;</script></body>"), "{page}");
    }
}
