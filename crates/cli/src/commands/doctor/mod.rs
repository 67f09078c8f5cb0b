//! `mobifs doctor`: which of the ways to use MobiFS fits a directory, and why.
//!
//! [`facts`] looks at the place and changes nothing, [`survey`] at what lies there, [`advice`]
//! decides from these alone, so that every case has a test without a machine for it.

mod advice;
mod facts;
mod survey;

use std::fmt::Write as _;

use mobifs_daemon::{ConfigText, Failure};
use serde_json::json;

use super::print;
use crate::arguments::DoctorArguments;
use advice::{Advice, Verdict, Way};
use facts::Facts;
use survey::Survey;

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let config = ConfigText::load(arguments.config.as_deref())?;
    let policy = config.config.rules.policy_of_all();
    let facts = Facts::of(&arguments.directory, &policy)?;
    let advice = Advice::of(&facts);
    let text = if arguments.json {
        format!("{:#}\n", as_json(&facts, &advice))
    } else {
        as_text(&facts, &advice)
    };
    print(&text)
}

fn as_text(facts: &Facts, advice: &Advice) -> String {
    let path = facts.path.display();
    let mut text = format!(
        "{path}: {} on {}, {}\n\n",
        facts.kind,
        facts.mountpoint.display(),
        described(&facts.survey)
    );
    let way = advice.recommended;
    let _written = writeln!(text, "Recommended: {}\n  {}", way.name(), advice.reason);
    for command in &advice.commands {
        let _written = writeln!(text, "    {command}");
    }
    text.push('\n');
    for (way, verdict) in &advice.verdicts {
        let (state, sentence) = shown(verdict);
        let _written = writeln!(text, "{:<12} {state}: {sentence}", way.name());
    }
    text
}

/// What lies there, in a few words.
fn described(survey: &Survey) -> String {
    let least = if survey.is_complete || survey.unreadable > 0 {
        ""
    } else {
        "looked at the first "
    };
    let unreadable = match survey.unreadable {
        0 => String::new(),
        count => format!("; {count} files and directories cannot be read by this user"),
    };
    format!(
        "{least}{} files with {} MiB, {} MiB of them large files, {} databases of SQLite{unreadable}",
        survey.files,
        survey.bytes >> 20,
        survey.large_bytes >> 20,
        survey.databases
    )
}

const fn shown(verdict: &Verdict) -> (&'static str, &String) {
    match verdict {
        Verdict::Possible { promise } => ("possible", promise),
        Verdict::Needs { what } => ("needs", what),
        Verdict::Impossible { why } => ("not here", why),
    }
}

fn as_json(facts: &Facts, advice: &Advice) -> serde_json::Value {
    let ways = advice.verdicts.iter().map(|(way, verdict)| {
        let (state, sentence) = shown(verdict);
        let state = state.replace(' ', "_");
        (
            way.key().to_owned(),
            json!({ "state": state, "sentence": sentence }),
        )
    });
    let survey = &facts.survey;
    json!({
        "path": facts.path.to_string_lossy(),
        "mountpoint": facts.mountpoint.to_string_lossy(),
        "filesystem": facts.kind,
        "recommended": advice.recommended.key(),
        "reason": advice.reason,
        "commands": advice.commands,
        "ways": serde_json::Map::from_iter(ways),
        "survey": {
            "is_complete": survey.is_complete,
            "files": survey.files,
            "bytes": survey.bytes,
            "large_bytes": survey.large_bytes,
            "databases": survey.databases,
            "database_bytes": survey.database_bytes,
            "unreadable": survey.unreadable,
        },
    })
}

impl Way {
    /// As documents call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Mount => "a mount",
            Self::Native => "native mode",
            Self::Sqlite => "SQLite VFS",
            Self::Plain => "as it is",
        }
    }

    /// As programs read it.
    const fn key(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Native => "native",
            Self::Sqlite => "sqlite",
            Self::Plain => "plain",
        }
    }
}
