//! `mobifs flash materialise`

use mobifs_device_server::{BoundaryKind, Journal, materialise};
use serde_json::json;

use super::arguments::MaterialiseArguments;
use super::server::print;
use crate::failure::{Code, Failure};

pub(crate) fn run(arguments: &MaterialiseArguments) -> Result<(), Failure> {
    let journal = Journal::open(&arguments.journal)?;
    if journal.is_cut_short() {
        eprintln!(
            "mobifs: the journal {} ends in the middle of a record, as when its server was \
             killed; that record is left out",
            arguments.journal.display()
        );
    }
    if arguments.list {
        return list(&journal);
    }
    let (Some(base), Some(state), Some(output)) =
        (&arguments.base, arguments.at, &arguments.output)
    else {
        return Err(Failure::new(
            Code::Usage,
            "say which state to make of what: --base IMAGE --at N OUT",
        ));
    };
    let made = materialise(&journal, base, state, output)?;
    let document = json!({ "kept": made.kept, "lost": made.lost, "torn": made.torn });
    print(&document, false)
}

fn list(journal: &Journal) -> Result<(), Failure> {
    let mut text = format!(
        "{:>6}  {:<13}  {:>14}  MAY BE LOST\n",
        "STATE", "BEGINS WITH", "AT (ms)"
    );
    for (number, interval) in journal.intervals().iter().enumerate() {
        let begin = match interval.begins_with {
            BoundaryKind::Start => "the journal",
            BoundaryKind::Flush => "a flush",
            BoundaryKind::Cut => "a power cut",
        };
        text.push_str(&format!(
            "{number:>6}  {begin:<13}  {:>14.3}  {}\n",
            interval.begins_at.0 as f64 / 1e6,
            interval.uncertain
        ));
    }
    text.pop();
    print(&text.into(), false)
}
