//! Documents in Markdown as the body of a manual page.
//!
//! A table becomes a list: the first column is what a row is about, the last what is said of it, and what is
//! between them stands beside the first with its heading. Of links the text remains.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

/// Adds the text without its first heading.
pub(crate) fn add(text: &str, page: &mut Roff) {
    let mut writer = Writer::default();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        writer.take(event, page);
    }
}

#[derive(Debug, Default)]
struct Writer {
    /// What was read since the last block began.
    inlines: Vec<Inline>,
    emphasis: usize,
    strong: usize,
    is_code_block: bool,
    /// The text of the heading that is being read.
    heading: Option<String>,
    table: Table,
    /// In an item of a list whose first paragraph has not begun.
    item_begins: bool,
    list_depth: usize,
}

#[derive(Debug, Default)]
struct Table {
    is_head: bool,
    is_open: bool,
    headings: Vec<String>,
    cells: Vec<Vec<Inline>>,
}

impl Writer {
    fn take(&mut self, event: Event<'_>, page: &mut Roff) {
        match event {
            Event::Start(tag) => self.start(&tag, page),
            Event::End(tag) => self.end(tag, page),
            Event::Text(text) if self.is_code_block => {
                for line in text.lines() {
                    page.text([roman(line)]);
                }
            }
            Event::Text(text) => self.text(&text),
            Event::Code(text) => self.code(&text),
            Event::SoftBreak | Event::HardBreak => self.text(" "),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(heading) = &mut self.heading {
            heading.push_str(text);
        } else if self.strong > 0 {
            self.inlines.push(bold(text));
        } else if self.emphasis > 0 {
            self.inlines.push(italic(text));
        } else {
            self.inlines.push(roman(text));
        }
    }

    fn code(&mut self, text: &str) {
        match &mut self.heading {
            Some(heading) => heading.push_str(text),
            None => self.inlines.push(bold(text)),
        }
    }

    fn start(&mut self, tag: &Tag<'_>, page: &mut Roff) {
        match tag {
            Tag::Heading { .. } => self.heading = Some(String::new()),
            Tag::Emphasis => self.emphasis += 1,
            Tag::Strong => self.strong += 1,
            Tag::CodeBlock(_) => {
                self.is_code_block = true;
                page.control("PP", []);
                page.control("RS", ["4"]);
                page.control("nf", []);
            }
            Tag::List(_) => {
                self.flush(page);
                self.list_depth += 1;
                if self.list_depth > 1 {
                    page.control("RS", ["4"]);
                }
            }
            Tag::Item => {
                page.control("IP", ["\\(bu", "2"]);
                self.item_begins = true;
            }
            Tag::Paragraph => {
                if !self.item_begins {
                    page.control(if self.list_depth > 0 { "IP" } else { "PP" }, []);
                }
                self.item_begins = false;
            }
            Tag::TableHead => self.table.is_head = true,
            Tag::Table(_) => self.table.is_open = true,
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, page: &mut Roff) {
        match tag {
            TagEnd::Heading(level) => self.end_heading(level, page),
            TagEnd::Emphasis => self.emphasis -= 1,
            TagEnd::Strong => self.strong -= 1,
            TagEnd::CodeBlock => {
                self.is_code_block = false;
                page.control("fi", []);
                page.control("RE", []);
            }
            TagEnd::List(_) => {
                if self.list_depth > 1 {
                    page.control("RE", []);
                }
                self.list_depth -= 1;
            }
            TagEnd::Paragraph | TagEnd::Item => {
                self.item_begins = false;
                self.flush(page);
            }
            TagEnd::TableCell => self.table.cells.push(std::mem::take(&mut self.inlines)),
            TagEnd::TableHead => self.table.end_head(),
            TagEnd::TableRow => self.table.end_row(page),
            TagEnd::Table => self.table = Table::default(),
            _ => {}
        }
    }

    fn end_heading(&mut self, level: HeadingLevel, page: &mut Roff) {
        let Some(heading) = self.heading.take() else {
            return;
        };
        match level {
            // The page has a title already.
            HeadingLevel::H1 => {}
            HeadingLevel::H2 => {
                page.control("SH", [heading.to_uppercase().as_str()]);
            }
            _ => {
                page.control("SS", [heading.as_str()]);
            }
        }
    }

    fn flush(&mut self, page: &mut Roff) {
        if !self.inlines.is_empty() {
            page.text(std::mem::take(&mut self.inlines));
        }
    }
}

impl Table {
    fn end_head(&mut self) {
        self.is_head = false;
        let text = |cell: Vec<Inline>| {
            let words = cell.into_iter().map(|inline| match inline {
                Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text,
                Inline::LineBreak => " ".to_owned(),
            });
            words.collect::<String>()
        };
        self.headings = self.cells.drain(..).map(text).collect();
    }

    fn end_row(&mut self, page: &mut Roff) {
        let cells = std::mem::take(&mut self.cells);
        let last = cells.len().saturating_sub(1);
        let mut tag = Vec::new();
        for (index, (mut cell, heading)) in cells.into_iter().zip(&self.headings).enumerate() {
            if index == last {
                page.control("TP", []);
                page.text(std::mem::take(&mut tag));
                page.text(cell);
            } else if !cell.is_empty() {
                if !tag.is_empty() {
                    tag.push(roman(format!("; {heading}: ")));
                }
                tag.append(&mut cell);
            }
        }
    }
}
