//! `mobifs run`

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use mobifs_daemon::{Code, Failure};
use mobifs_run::{Class, DropIn, Mechanism, Run, RunError};

use super::{print, tell};
use crate::arguments::{RunArguments, RunClass, RunMechanism, RunRings};

const UNSAFE_WARNING: &str = "--unsafe: nothing is durable when the command asks for it, on any \
     filesystem, and no order is kept: after a crash or power cut, files can be damaged";

pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    refuse_what_means_nothing(arguments)?;
    if let Some(unit) = &arguments.systemd {
        return drop_in(unit, arguments);
    }
    if arguments.is_unsafe && arguments.class == RunClass::Relaxed {
        tell(UNSAFE_WARNING);
    }
    let run = Run {
        command: arguments.command.clone(),
        app: app_of(arguments),
        class: match arguments.class {
            RunClass::Relaxed => Class::Relaxed,
            RunClass::Durable => Class::Durable,
        },
        is_unsafe: arguments.is_unsafe,
        mechanism: match arguments.mechanism {
            RunMechanism::Both => Mechanism::Both,
            RunMechanism::Preload => Mechanism::Preload,
            RunMechanism::Seccomp => Mechanism::Seccomp,
        },
        allows_rings: arguments.io_uring == Some(RunRings::Allow),
    };
    let report = |sentence: &str| {
        if arguments.verbose {
            tell(sentence);
        }
    };
    let warn = |sentence: &str| tell(&format!("warning: {sentence}"));
    let Err(error) = run.exec(&report, &warn);
    if let Some(code) = error.exit_code() {
        tell(&error.to_string());
        return Ok(ExitCode::from(code));
    }
    let code = match error {
        RunError::NothingSteered { .. } => Code::NotMounted,
        _ => Code::Failed,
    };
    Err(Failure::new(code, error.to_string()))
}

/// The words after the options are the command, and nothing else says that one of them was misspelt.
fn refuse_what_means_nothing(arguments: &RunArguments) -> Result<(), Failure> {
    let command = arguments.command.first().map(|word| word.to_string_lossy());
    let message = if let Some(word) = command.filter(|word| word.starts_with('-')) {
        format!("there is no option {word}; a command of that name is given by its path (./{word})")
    } else if arguments.is_unsafe && arguments.class == RunClass::Durable {
        "--unsafe and --class durable exclude each other".to_owned()
    } else if arguments.mechanism == RunMechanism::Preload
        && arguments.io_uring == Some(RunRings::Refuse)
    {
        "--io-uring refuse needs the supervisor, which --mechanism preload does without: choose another mechanism, or \
         leave --io-uring away"
            .to_owned()
    } else if arguments.install && arguments.systemd.is_none() {
        "--install installs what --systemd UNIT prints: name the unit".to_owned()
    } else if arguments.app.as_deref() == Some("") {
        "--app: a name is missing".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::new(Code::Usage, message))
}

fn app_of(arguments: &RunArguments) -> String {
    let program = arguments.command.first().cloned().unwrap_or_default();
    let named = || {
        let name = Path::new(&program).file_name()?;
        Some(name.to_string_lossy().into_owned())
    };
    arguments.app.clone().or_else(named).unwrap_or_default()
}

fn drop_in(unit: &str, arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Failed, error.to_string());
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let drop_in = DropIn::of(
        unit,
        &program,
        arguments.app.as_deref(),
        &words_of(arguments),
    );
    let drop_in = drop_in.map_err(|error| failed(&error))?;
    if !drop_in.is_ordered() && arguments.class == RunClass::Relaxed && !arguments.is_unsafe {
        tell(&format!(
            "warning: no service of systemd steers a filesystem at present (mobifs-steer@.service), so the \
             drop-in does not order {} after one: when it is started before the filesystem is steered, it is refused",
            drop_in.unit()
        ));
    }
    if !arguments.install {
        print(&format!(
            "# {}\n{}",
            drop_in.path().display(),
            drop_in.text()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    drop_in.install().map_err(|error| failed(&error))?;
    print(&format!(
        "installed {}: `systemctl daemon-reload` and `systemctl restart {}` put it into effect\n",
        drop_in.path().display(),
        drop_in.unit()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What the unit's commands are to be run with.
fn words_of(arguments: &RunArguments) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if arguments.class == RunClass::Durable {
        words.push("--class=durable".into());
    }
    if arguments.is_unsafe {
        words.push("--unsafe".into());
    }
    match arguments.mechanism {
        RunMechanism::Both => {}
        RunMechanism::Preload => words.push("--mechanism=preload".into()),
        RunMechanism::Seccomp => words.push("--mechanism=seccomp".into()),
    }
    if arguments.io_uring == Some(RunRings::Allow) {
        words.push("--io-uring=allow".into());
    }
    words
}
