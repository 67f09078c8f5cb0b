//! `mobifs doctor`: what a machine offers to MobiFS, and which of the ways to use it fits a directory,
//! and why.
//!
//! [`machine`] looks at the machine, with [`kernels`] for what its kernel has, and [`device`] at what
//! is below a directory. [`facts`] looks at the place and changes nothing, [`survey`] at what lies there, [`advice`]
//! decides from these alone, so that every case has a test without a machine for it.

mod advice;
mod device;
mod facts;
mod kernels;
mod machine;
mod survey;

use std::fmt::Write as _;

use mobifs_daemon::{ConfigText, Failure};
use mobifs_host::{printable, printable_path};
use serde_json::json;

use super::print;
use crate::arguments::DoctorArguments;
use advice::{Advice, Verdict, Way};
use facts::Facts;
use machine::{Finding, State};
use survey::Survey;

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let config = ConfigText::load(arguments.config.as_deref())?;
    let mut findings = machine::findings(&config.config);
    let Some(directory) = &arguments.directory else {
        return if arguments.json {
            print(&format!("{:#}\n", json!({ "machine": findings })))
        } else {
            print(&shown_findings(&findings))
        };
    };
    let facts = Facts::of(directory, &config.config, arguments.config.as_deref())?;
    let advice = Advice::of(&facts);
    if let Some((path, mount)) = device::place_of(directory) {
        // What a mount of ours takes for a flush is not what the device takes.
        let measures = !(facts.is_in_mount || facts.is_of_the_kernel || facts.is_in_memory);
        findings.extend(device::findings(&path, &mount, measures));
    }
    if arguments.json {
        let mut document = as_json(&facts, &advice);
        document["machine"] = json!(findings);
        return print(&format!("{document:#}\n"));
    }
    print(&format!(
        "{}\n{}",
        as_text(&facts, &advice),
        shown_findings(&findings)
    ))
}

/// One line for each finding, and below it what to do.
fn shown_findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Good => "ok",
            State::Note => "note",
            State::Problem => "PROBLEM",
        };
        let found = printable(&finding.found);
        let _written = writeln!(text, "{:<12} {state}: {found}", finding.topic);
        if let Some(advice) = &finding.advice {
            let _written = writeln!(text, "{:<12} -> {advice}", "");
        }
    }
    text
}

fn as_text(facts: &Facts, advice: &Advice) -> String {
    let mut text = format!(
        "{}: {} on {}, {}\n\n",
        printable_path(&facts.path),
        facts.shown_kind,
        printable_path(&facts.mountpoint),
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
