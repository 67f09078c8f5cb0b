//! Figures as one page.

use mobifs_charts::{Page, Table, escaped, figure};

use super::figure::Figure;

const STYLE: &str = "\
section figure{margin:14px 0}figcaption{margin:.5rem 0}svg{max-width:100%;height:auto}";

/// The page.
pub(super) fn page(figures: &[Figure], introduction: &str) -> String {
    let body: String = figures.iter().map(section).collect();
    let page = Page {
        title: "When to write",
        about: introduction,
        style: STYLE,
        body: &body,
        script: None,
    };
    page.html()
}

fn section(one: &Figure) -> String {
    let table = Table {
        caption: String::new(),
        head: one.columns.clone(),
        rows: one.rows.clone(),
    };
    format!(
        "<section id=\"{}\"><h2>{}</h2>{}<details><summary>The data</summary>{}</details></section>",
        escaped(&one.name),
        escaped(&one.title),
        figure(&one.svg, &one.remark),
        table.html()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_their_data() {
        let figure = Figure {
            name: "one".to_owned(),
            title: "a <b> & \"c\"".to_owned(),
            svg: "<svg></svg>".to_owned(),
            columns: vec!["<script>".to_owned()],
            rows: vec![vec!["1 < 2".to_owned()]],
            remark: String::new(),
        };
        let page = page(&[figure], "after S0 Figure 1");
        assert!(page.contains("a &lt;b&gt; &amp; &quot;c&quot;"));
        assert!(page.contains("<svg></svg>") && !page.contains("<script>"));
        assert!(page.contains("<th>1 &lt; 2") && page.contains("S0: the paper about MobiFS"));
    }
}
