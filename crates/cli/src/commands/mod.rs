//! One file for each command.

pub(crate) mod adopt;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod drill;
pub(crate) mod every;
mod figures;
pub(crate) mod freeze_probe;
pub(crate) mod history;
pub(crate) mod keep_namespace;
mod measured;
pub(crate) mod metrics;
pub(crate) mod mount;
pub(crate) mod mounts;
mod out_of_tree;
mod progress;
pub(crate) mod recover;
pub(crate) mod reload;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod salvage;
pub(crate) mod set;
pub(crate) mod status;
pub(crate) mod steer;
pub(crate) mod sync;
pub(crate) mod thaw_watchdog;
pub(crate) mod top;
mod totals;
pub(crate) mod touch;
pub(crate) mod umount;

use std::io::{self, Write as _};
use std::path::Path;

use mobifs_daemon::control::{AnswerPatience, ControlClient, Reply, Request};

use mobifs_daemon::{Code, Failure};
use mobifs_host::{printable, printable_lines, shell_word};
use mobifs_volume::{AppSelection, Status};

/// Waits as long as the daemon takes: it completes the request in the end.
const AS_LONG_AS_IT_TAKES: AnswerPatience = AnswerPatience {
    limit: None,
    report: tell,
};

/// Asks the daemon of the mount at `path`; an error that it reports becomes a failure.
fn ask(path: &Path, request: &Request) -> Result<(ControlClient, Reply), Failure> {
    ask_patiently(path, request, &AS_LONG_AS_IT_TAKES)
}

/// Asks a daemon as [`ask`] does, with another limit.
fn ask_patiently(
    path: &Path,
    request: &Request,
    patience: &AnswerPatience,
) -> Result<(ControlClient, Reply), Failure> {
    let mut client = match ControlClient::connect(path).map_err(Failure::from) {
        Ok(client) => client,
        // The listing of all mounts has it by this name.
        Err(failure) if failure.code == Code::NotMounted && is_for_any_mount(request) => {
            out_of_tree::client_out_of_tree(path).ok_or(failure)?
        }
        Err(failure) => return Err(failure),
    };
    match client.ask(request, patience)? {
        Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
        reply => Ok((client, reply)),
    }
}

/// Whether a request is also for a mount that was at the path and has left the tree: not what ends a mount, as the path
/// does not say which.
fn is_for_any_mount(request: &Request) -> bool {
    matches!(
        request,
        Request::Sync { .. } | Request::Set { .. } | Request::Reload { .. }
    )
}

/// Tells the user something beside the result, in one line. What it names may be hostile.
pub(crate) fn tell(sentence: &str) {
    eprintln!("mobifs: {}", printable(sentence));
}

/// Prints what a command has found, safe for a terminal: a report for people, or JSON, in which
/// control characters are escaped already. A program that reads only the beginning of it is no
/// failure.
fn print(text: &str) -> Result<(), Failure> {
    print_as_is(&printable_lines(text))
}

/// Prints a text that has commands for the terminal.
fn print_as_is(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// Prints such a text; returns whether a reader is still there.
fn print_while_read(text: &str) -> Result<bool, Failure> {
    let mut output = io::stdout().lock();
    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            Code::Failed,
            format!("writing to the standard output failed: {error}"),
        )),
    }
}

/// Refuses under `mobifs run`, which answers this program's calls for durability, too, what relies on
/// them: a daemon, as what it makes durable for others would not be, and measurements.
fn refuse_under_run(command: &str) -> Result<(), Failure> {
    if !mobifs_run::is_supervised() {
        return Ok(());
    }
    let message = format!(
        "`mobifs {command}` was started under `mobifs run`, which would answer its own calls for \
         durability before anything is durable: start it outside"
    );
    Err(Failure::new(Code::Usage, message))
}

/// The daemon's reply does not fit the request.
fn unexpected(reply: &Reply) -> Failure {
    Failure::new(
        Code::Failed,
        format!("the daemon gave an answer that this version does not understand: {reply:?}"),
    )
}

/// The status of a mount.
pub(super) fn fetch(
    mountpoint: &Path,
    select: AppSelection,
    patience: &AnswerPatience,
) -> Result<Status, Failure> {
    let request = Request::Status { select };
    match ask_patiently(mountpoint, &request, patience)?.1 {
        Reply::Status { status } => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

/// Says of a read-only mount that what its journal has stays there: nothing else shows that it is not in the
/// files of the store.
fn tell_what_stays(status: &Status) {
    let store = &status.store;
    if status.read_only && store.journal_used_bytes > 0 {
        let path = store.path.as_deref().unwrap_or("the store");
        tell(&format!(
            "{} is mounted read-only: committed transactions ({}) stay in the journal of {path}, and the next \
             writable mount, or `mobifs recover {}`, brings them to their places",
            status.mountpoint.as_deref().unwrap_or("it"),
            figures::size(store.journal_used_bytes),
            shell_word(path),
        ));
    }
}

/// A document for programs: of several that follow each other one a line.
pub(super) fn json_text(
    document: &impl serde::Serialize,
    in_one_line: bool,
) -> Result<String, Failure> {
    let json = if in_one_line {
        serde_json::to_string(document)
    } else {
        serde_json::to_string_pretty(document)
    };
    let mut text = json.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    text.push('\n');
    Ok(text)
}
