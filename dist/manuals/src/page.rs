//! Manual pages.

use std::io;

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::markdown;

const MANUAL: &str = "MobiFS";
const SOURCE: &str = concat!("MobiFS ", env!("CARGO_PKG_VERSION"));

/// What a page begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heading<'a> {
    pub(crate) name: &'a str,
    pub(crate) section: &'a str,
    /// Empty if it is not known.
    pub(crate) date: &'a str,
    pub(crate) about: &'a str,
}

/// The name of a command's page: `mobifs-flash-serve`.
pub(crate) fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The page of one command, in section 1.
pub(crate) fn of_command(command: &Command, date: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(command.clone())
        .title(name_of(command).to_uppercase())
        .section("1")
        .date(date)
        .source(SOURCE)
        .manual(MANUAL);
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut text)?;
    }
    if command
        .get_subcommands()
        .any(|command| !command.is_hide_set())
    {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(after) = command.get_after_help() {
        add_after_help(&after.to_string(), &mut rest);
    }
    see_also(command, &mut rest);
    rest.to_writer(&mut text)?;
    Ok(text)
}

/// The page of a document, whose first heading is left out.
pub(crate) fn of_document(heading: &Heading<'_>, text: &str) -> io::Result<Vec<u8>> {
    let mut page = Roff::new();
    let title = heading.name.to_uppercase();
    page.control(
        "TH",
        [&title, heading.section, heading.date, SOURCE, MANUAL],
    );
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{} - {}", heading.name, heading.about))]);
    page.control("SH", ["DESCRIPTION"]);
    markdown::add(text, &mut page);
    let mut written = Vec::new();
    page.to_writer(&mut written)?;
    Ok(written)
}

/// What help shows at its end: blocks, each of which begins with a line that ends with a colon and goes on
/// with lines whose breaks count, or paragraphs.
fn add_after_help(text: &str, page: &mut Roff) {
    let mut has_notes = false;
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        match block.split_once('\n') {
            Some((first, rest)) if first.ends_with(':') && rest.starts_with(' ') => {
                has_notes = false;
                let first = first.trim_end_matches(':');
                let (heading, remark) = first.split_once(" (").unwrap_or((first, ""));
                page.control("SH", [heading.to_uppercase().as_str()]);
                if let Some(remark) = remark.strip_suffix(')') {
                    page.text([roman(format!("({remark})"))]);
                }
                page.control("nf", []);
                for line in rest.lines() {
                    page.text([roman(line)]);
                }
                page.control("fi", []);
            }
            _ => {
                page.control(
                    if has_notes { "PP" } else { "SH" },
                    if has_notes { &[][..] } else { &["NOTES"] }.iter().copied(),
                );
                has_notes = true;
                page.text([roman(block.replace('\n', " "))]);
            }
        }
    }
}

fn see_also(command: &Command, page: &mut Roff) {
    let name = name_of(command);
    let above = name.rsplit_once('-').map(|(above, _)| above);
    let mut others: Vec<(&str, &str)> = above.into_iter().map(|above| (above, "1")).collect();
    others.push(("mobifs.toml", "5"));
    others.push(("mount.fuse.mobifs", "8"));
    page.control("SH", ["SEE ALSO"]);
    let mut inlines = Vec::new();
    for (index, (name, section)) in others.into_iter().enumerate() {
        if index > 0 {
            inlines.push(roman(", "));
        }
        inlines.push(bold(name));
        inlines.push(roman(format!("({section})")));
    }
    page.text(inlines);
}
