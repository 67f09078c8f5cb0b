//! The report as a page.

use mobifs_charts::{Page, Table, escaped, figure};

const STYLE: &str = "\
figure{margin:14px 0;max-width:760px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}\
section{overflow-x:auto}caption{text-align:left;font-weight:600;padding:8px 0}";

/// A part of a page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub(crate) title: String,
    pub(crate) text: Vec<String>,
    /// Picture and caption.
    pub(crate) figures: Vec<(String, String)>,
    pub(crate) tables: Vec<Table>,
}

impl Section {
    fn html(&self) -> String {
        let mut text = format!("<section><h2>{}</h2>", escaped(&self.title));
        for paragraph in &self.text {
            text += &format!("<p>{}</p>", escaped(paragraph));
        }
        let figures = self.figures.iter();
        text.extend(figures.map(|(svg, caption)| figure(svg, caption)));
        text.extend(self.tables.iter().map(Table::html));
        text + "</section>"
    }
}

/// The page of these sections.
#[must_use]
pub fn page(about: &str, sections: &[Section]) -> String {
    let body: String = sections.iter().map(Section::html).collect();
    let page = Page {
        title: "Persistence",
        about,
        style: STYLE,
        body: &body,
        script: None,
    };
    page.html()
}
