//! The `mobifs` command, as a library: the program calls [`main`], and the generator of manual pages and
//! completions (`dist/manuals`) reads [`command`].
#![forbid(unsafe_code)]

mod adopt_arguments;
mod arguments;
mod commands;
mod helper;
mod history_arguments;
mod laboratory;
mod mount_options;
mod policy_arguments;

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use mobifs_daemon::{Code, Failure, logging, supervisor};
use mobifs_host::printable_lines;

use arguments::{Arguments, Command};

/// The command line: commands, options and their help.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Does what the process's arguments say, and returns its exit code.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // A command that is run inherits what this program was started with.
    if words.get(1).is_none_or(|word| word != "run") {
        mobifs_daemon::reset_inherited();
    }
    if let Some(call) = helper::Call::recognise(&words) {
        return helper::run(call);
    }
    let arguments = match parse(words) {
        Ok(arguments) => arguments,
        Err(error) => return refused(&error),
    };
    match run(arguments.command) {
        Ok(code) => code,
        Err(failure) => {
            commands::tell(&failure.message);
            ExitCode::from(failure.code.number())
        }
    }
}

/// Parses the command line, which takes 100 KiB of stack: more than what `ulimit -s` may have left for the main thread,
/// and its limit is the command's that `mobifs run` becomes.
fn parse(words: Vec<OsString>) -> Result<Arguments, clap::Error> {
    const SMALL_BYTES: u64 = 1 << 20;
    const LARGE_BYTES: usize = 8 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= SMALL_BYTES) {
        return Arguments::try_parse_from(words);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(LARGE_BYTES);
        let given = words.clone();
        match thread.spawn_scoped(scope, || Arguments::try_parse_from(given)) {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => Arguments::try_parse_from(words),
        }
    })
}

/// The command line is wrong, or asked for help. The parser repeats what it got, which a script may
/// have got from a file's name.
fn refused(error: &clap::Error) -> ExitCode {
    let is_printable = |text: &str| matches!(printable_lines(text), Cow::Borrowed(_));
    let text = error.render().to_string();
    if is_printable(&text) {
        error.exit()
    }
    eprint!("{}", printable_lines(&text));
    ExitCode::from(Code::Usage.number())
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match &command {
        // A daemon logs to where its own arguments say.
        Command::Mount(_) | Command::Steer(_) => {}
        Command::Supervise(_) => logging::start(None, "info")?,
        _ => logging::start(None, "warn")?,
    }
    match command {
        Command::Supervise(arguments) => return supervisor::run(&arguments.daemon),
        Command::Mount(arguments) => commands::mount::run(&arguments),
        Command::Steer(arguments) => commands::steer::run(&arguments),
        Command::Adopt(arguments) => return commands::adopt::adopt(&arguments),
        Command::Unadopt(arguments) => commands::adopt::unadopt(&arguments),
        Command::Umount(arguments) => commands::umount::run(&arguments),
        Command::Sync(arguments) => commands::sync::run(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Metrics(arguments) => commands::metrics::run(&arguments),
        Command::Top(words) => commands::top::run(&words.all),
        Command::Recover(arguments) if arguments.salvage => commands::salvage::run(&arguments),
        Command::Recover(arguments) => commands::recover::run(&arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Calibrate(arguments) => commands::calibrate::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Drill(arguments) => commands::drill::run(&arguments.drill),
        Command::Touch(arguments) => commands::touch::run(&arguments),
        Command::Reload(arguments) => commands::reload::run(&arguments),
        Command::Set(arguments) => commands::set::run(&arguments),
        Command::History(arguments) => commands::history::run(&arguments),
        Command::Restore(arguments) => commands::restore::run(&arguments),
        Command::FreezeProbe(arguments) => {
            commands::freeze_probe::run(&arguments);
            Ok(())
        }
        Command::KeepNamespace(arguments) => commands::keep_namespace::run(&arguments),
        Command::Every(arguments) => commands::every::run(&arguments),
        Command::ThawWatchdog(arguments) => commands::thaw_watchdog::run(&arguments),
        Command::Run(arguments) => return commands::run::run(&arguments),
        Command::Flash(words) => laboratory::run(Some("flash"), &words.all),
        Command::Frag(words) => laboratory::run(Some("frag"), &words.all),
        Command::Persist(words) => laboratory::run(Some("persist"), &words.all),
        Command::Sim(words) => laboratory::run(Some("sim"), &words.all),
        Command::Trace(words) => laboratory::run(Some("trace"), &words.all),
        Command::Lab(words) => laboratory::run(None, &words.all),
    }?;
    Ok(ExitCode::SUCCESS)
}
