//! The `mobifs` command.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod daemon;
mod failure;
mod helper;
mod logging;
mod mount_options;
mod predecessor;
mod rate_limit;
mod supervisor;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Command};
use failure::Failure;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(call) = helper::Call::recognise(&words) {
        return helper::run(call);
    }
    let arguments = Arguments::parse_from(words);
    report_panics_that_nobody_catches();
    match run(arguments.command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("mobifs: {failure}");
            ExitCode::from(failure.code.number())
        }
    }
}

/// A damaged trace is told of in one sentence, also where a library panics on it.
fn report_panics_that_nobody_catches() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !mobifs_trace::catches_panics() {
            report(panic);
        }
    }));
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match &command {
        // A daemon logs to where its own arguments say.
        Command::Mount(_) => {}
        Command::Supervise(_) => logging::start(None, "info")?,
        _ => logging::start(None, "warn")?,
    }
    match command {
        Command::Supervise(arguments) => return supervisor::run(&arguments.daemon),
        Command::Mount(arguments) => commands::mount::run(&arguments),
        Command::Umount(arguments) => commands::umount::run(&arguments),
        Command::Sync(arguments) => commands::sync::run(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Recover(arguments) => commands::recover::run(&arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Drill(arguments) => commands::drill::run(&arguments.drill),
        Command::Touch(arguments) => commands::touch::run(&arguments),
        Command::Reload(arguments) => commands::reload::run(&arguments),
        Command::Set(arguments) => commands::set::run(&arguments),
        Command::Flash(arguments) => commands::flash::run(&arguments.command),
        Command::Sim(arguments) => commands::sim::run(&arguments),
        Command::Lab(arguments) => commands::sim::run_lab(&arguments),
        Command::Trace(arguments) => return commands::trace::run(&arguments.command),
    }?;
    Ok(ExitCode::SUCCESS)
}
