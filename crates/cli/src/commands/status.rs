//! `mobifs status`

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::Duration;

use mobifs_daemon::control::AnswerPatience;
use mobifs_daemon::{Code, Failure};
use mobifs_host::{printable, printable_lines, shell_word};
use mobifs_volume::{
    AppName, AppReport, AppSelection, AppTotals, HistoryStatus, MemoryStatus, NativeStatus,
    RecordingStatus, Status, StoreStatus,
};

use unicode_width::UnicodeWidthStr as _;

use super::figures::{duration, padded, size};
use super::measured::{self, microseconds};
use super::{AS_LONG_AS_IT_TAKES, fetch, json_text, mounts, print_as_is, print_while_read, totals};
use crate::arguments::StatusArguments;

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The status is there at once, or the daemon is stopped: programs that poll it must notice.
const PATIENCE: AnswerPatience = AnswerPatience {
    limit: Some(Duration::from_secs(10)),
    ..AS_LONG_AS_IT_TAKES
};

pub(crate) fn run(arguments: &StatusArguments) -> Result<(), Failure> {
    if arguments.history {
        return totals::run(arguments.mountpoint.as_deref(), arguments.json);
    }
    loop {
        let text = match &arguments.mountpoint {
            Some(mountpoint) => of_mount(mountpoint, arguments)?,
            None => mounts::report(arguments.json, arguments.watch)?,
        };
        if arguments.watch && !arguments.json && io::stdout().is_terminal() {
            // Cursor home, clear the screen.
            print_as_is("\x1b[H\x1b[2J")?;
        }
        let is_read = print_while_read(&printable_lines(&text))?;
        if !(arguments.watch && is_read) {
            return Ok(());
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn of_mount(mountpoint: &Path, arguments: &StatusArguments) -> Result<String, Failure> {
    let select = AppSelection {
        glob: arguments.app.clone().map(AppName::from),
        after: arguments.after.clone().map(AppName::from),
        limit: arguments.limit,
    };
    let (status, left_tree) = match fetch(mountpoint, select.clone(), &PATIENCE) {
        Ok(status) => (status, None),
        // The listing of all mounts has it, too.
        Err(failure) if failure.code == Code::NotMounted => {
            let found = mounts::status_out_of_tree(mountpoint, &select);
            let (status, why) = found.ok_or(failure)?;
            (status, Some(why))
        }
        Err(failure) => return Err(failure),
    };
    if arguments.json {
        return json_text(&status, arguments.watch);
    }
    let why = left_tree.map_or_else(String::new, |why| format!("{why}\n\n"));
    Ok(why + &table(&status))
}

/// The report for people.
fn table(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write_head(&mut text, status);
    let names = status.apps.iter();
    let names = names.map(|app| shown_name(app).width());
    let width = names.max().unwrap_or(0).clamp(3, 40);
    let _written = writeln!(
        text,
        "\n{:width$}  {:8} {:10} {:>9} {:>8} {:>12} {:>5} {:>9} {:>9} {:>9} {:>10}",
        "APP",
        "CLASS",
        "POLICY",
        "AT RISK",
        "SINCE",
        "TRANSACTIONS",
        "E",
        "WRITTEN",
        "SENT",
        "SAVED",
        "CHECKPOINT"
    );
    for app in &status.apps {
        text += &row(app, width);
    }
    if let (Some(last), 1..) = (status.apps.last(), status.apps_omitted) {
        let _written = writeln!(
            text,
            "\n{} more apps; `--after {}` shows the next, `--limit` more at once",
            status.apps_omitted,
            shell_word(&shown_name(last))
        );
    }
    for app in &status.apps {
        if let Some(reason) = &app.read_only {
            let _written = writeln!(
                text,
                "\n{} is READ-ONLY: {}",
                shown_name(app),
                printable(reason)
            );
        }
    }
    text
}

fn write_head(text: &mut String, status: &Status) -> std::fmt::Result {
    if let Some(native) = &status.native {
        write_native(text, status, native)?;
        return write_user(text, status);
    }
    write_daemon(text, status)?;
    write_memory(text, &status.memory)?;
    write_journal(text, &status.store)?;
    if let Some(history) = &status.store.history {
        writeln!(text, "history  {}", kept(history, status.read_only))?;
    }
    write_apps(text, &status.totals)?;
    write_user(text, status)?;
    if let Some(recording) = &status.recording {
        writeln!(text, "record   {}", recorded(recording))?;
    }
    writeln!(
        text,
        "sync(2)  {}",
        if status.sync_reaches_mount {
            "reaches this mount"
        } else {
            "does not reach this mount: use `mobifs sync`"
        }
    )
}

fn write_native(text: &mut String, status: &Status, native: &NativeStatus) -> std::fmt::Result {
    writeln!(
        text,
        "{} on {}, a steered {}  (process {}, version {}, up {})",
        printable(status.store.path.as_deref().unwrap_or("-")),
        printable(status.mountpoint.as_deref().unwrap_or("-")),
        native.filesystem,
        status.daemon_pid,
        status.version,
        duration(status.uptime_ms as f64 / 1e3)
    )?;
    if !native.only.is_empty() {
        writeln!(
            text,
            "only     {}; other files are the kernel's",
            printable(&native.only.join(", "))
        )?;
    }
    match &native.promise_withdrawn {
        None => writeln!(text, "promise  in force")?,
        Some(reason) if native.can_promise() => {
            writeln!(text, "promise  WITHDRAWN: {}", printable(reason))?;
        }
        Some(reason) => writeln!(text, "promise  none: {}", printable(reason))?,
    }
    writeln!(
        text,
        "calls    for durability {}",
        if native.calls_return_at_once {
            "return at once where `mobifs run` has started the program"
        } else if native.promise_withdrawn.is_some() {
            "wait"
        } else if status.battery_low {
            "wait: the battery is low"
        } else {
            "wait: the class is durable (`mobifs set --app . --class relaxed`, or the configuration)"
        }
    )?;
    if native.promise_withdrawn.is_some() {
        writeln!(
            text,
            "kernel   commits every {} s by itself, if its options are those that this daemon has set",
            native.commit_interval_s
        )?;
    } else {
        writeln!(
            text,
            "kernel   commits every {} s by itself; without this daemon changes are {} old at the most",
            native.commit_interval_s,
            duration(native.age_max_without_daemon_ms as f64 / 1e3)
        )?;
    }
    writeln!(
        text,
        "commits  {} by the policy{}; the device wrote {}",
        status.store.commits,
        native
            .other_commits
            .map_or_else(String::new, |others| format!(", {others} others")),
        size(status.store.commit_written_bytes)
    )?;
    for sentence in &native.not_counted {
        writeln!(text, "missing  {}", printable(sentence))?;
    }
    if let Some(history) = &native.history {
        writeln!(text, "history  {}", kept(history, status.read_only))?;
    }
    Ok(())
}

fn kept(history: &HistoryStatus, read_only: bool) -> String {
    let mut text = match (history.is_off, read_only) {
        (true, true) => "off (the mount is read-only); ".to_owned(),
        (true, false) => "off (keep_count = 0); ".to_owned(),
        (false, _) => String::new(),
    };
    text += &match history.kept {
        0 if history.failed.is_some() => "no snapshot is kept".to_owned(),
        0 => "no snapshot is kept yet".to_owned(),
        1 => "1 snapshot is kept".to_owned(),
        count => format!("{count} snapshots are kept"),
    };
    if let Some(last) = &history.last {
        let exact = match history.last_is_exact {
            Some(false) => "not exact",
            _ => "exact",
        };
        text += &format!("; the last is of {last}, {exact}");
    }
    if let Some(why) = &history.failed {
        text += &format!("; FAILED: {}", printable(why));
    }
    text
}

fn write_daemon(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        text,
        "{} on {}  (process {}, version {}, up {}){}",
        printable(status.store.path.as_deref().unwrap_or("-")),
        printable(status.mountpoint.as_deref().unwrap_or("-")),
        status.daemon_pid,
        status.version,
        duration(status.uptime_ms as f64 / 1e3),
        if status.read_only { "  read-only" } else { "" }
    )?;
    writeln!(
        text,
        "watched  {}",
        match (&status.supervised_by, status.restarts) {
            (Some(by), 0) => format!("supervised by {by}"),
            (Some(by), 1) => format!("supervised by {by}; the daemon was restarted once"),
            (Some(by), times) =>
                format!("supervised by {by}; the daemon was restarted {times} times"),
            (None, _) =>
                "unsupervised: if the daemon is killed, what is at risk is lost".to_owned(),
        }
    )
}

fn write_memory(text: &mut String, memory: &MemoryStatus) -> std::fmt::Result {
    writeln!(
        text,
        "memory   {} of {}, {} committed and not applied, {} objects{}",
        size(memory.used_bytes),
        size(memory.budget_bytes),
        size(memory.committed_held_bytes),
        memory.objects,
        memory
            .budget_lasts_seconds
            .map_or_else(String::new, |seconds| format!(
                "; without commits it would last {}",
                duration(seconds)
            ))
    )
}

fn write_journal(text: &mut String, store: &StoreStatus) -> std::fmt::Result {
    writeln!(
        text,
        "journal  {} of {}; {} commits wrote {}, applying wrote {}",
        size(store.journal_used_bytes),
        size(store.journal_total_bytes),
        store.commits,
        size(store.commit_written_bytes),
        size(store.apply_written_bytes)
    )?;
    if store.preallocated_unused_bytes > 0 {
        writeln!(
            text,
            "         {} preallocated for growing files and unused",
            size(store.preallocated_unused_bytes)
        )?;
    }
    if store.moved_bytes > 0 {
        writeln!(
            text,
            "         {} of growing files moved to where there is room",
            size(store.moved_bytes)
        )?;
    }
    write_commits(text, store)?;
    write_durable(text, store)?;
    if let Some(reason) = &store.not_applied {
        writeln!(text, "         NOT APPLIED: {}", printable(reason))?;
    }
    Ok(())
}

fn write_commits(text: &mut String, store: &StoreStatus) -> std::fmt::Result {
    let journal = &store.journal;
    if store.commits == 0 || journal.blocks == 0 {
        return Ok(());
    }
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    writeln!(
        text,
        "         a commit takes {:.2} blocks; {:.1} % of changed pages whole, {:.1} % control \
         information; {} flushes",
        journal.blocks as f64 / store.commits as f64,
        percent(journal.whole_pages, journal.pages),
        percent(journal.control_bytes, journal.written_bytes()),
        journal.flushes
    )
}

/// Up to which size a commit is one durable write, and what was measured of the smallest.
fn write_durable(text: &mut String, store: &StoreStatus) -> std::fmt::Result {
    let Some(measured) = &store.calibration else {
        return Ok(());
    };
    let in_force = store.journal.durable_write_max_bytes;
    let direct = measured::in_force(in_force, Some(measured));
    let times = measured.sizes.first().map_or_else(String::new, |times| {
        format!(
            " ({}: {}, with a flush {})",
            size(times.bytes),
            microseconds(times.durable_us),
            microseconds(times.flushed_us)
        )
    });
    writeln!(
        text,
        "         {direct}{times}; measured on {}",
        measured::device(measured)
    )
}

fn write_apps(text: &mut String, totals: &AppTotals) -> std::fmt::Result {
    writeln!(
        text,
        "apps     {}, {} with changes at risk; they wrote {}, {} of it went to the store{}",
        totals.apps,
        totals.at_risk,
        size(totals.bytes_written_by_apps),
        size(totals.bytes_sent_to_store),
        match totals.read_only {
            0 => String::new(),
            some => format!("; {some} READ-ONLY"),
        }
    )
}

fn write_user(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        text,
        "user     {}{}{}",
        status.user.state,
        if status.screen_off {
            "; the screen is off"
        } else {
            ""
        },
        if status.battery_low {
            "; the battery is low, so every app is durable"
        } else {
            ""
        }
    )
}

fn recorded(recording: &RecordingStatus) -> String {
    let mut text = format!(
        "{} observations for {}",
        recording.events,
        printable(&recording.file)
    );
    if recording.lost > 0 {
        text += &format!("; {} more were lost", recording.lost);
    }
    if let Some(why) = &recording.stopped {
        text += &format!("; STOPPED: {}", printable(why));
    }
    text
}

fn row(app: &AppReport, width: usize) -> String {
    let counts = app.transactions;
    let transactions = format!("{}/{}/{}", counts.open, counts.closed, counts.committed);
    let since = if counts.open + counts.closed > 0 {
        duration(app.seconds_at_risk)
    } else {
        "-".to_owned()
    };
    let checkpoint = app.last_checkpoint.as_ref().map_or_else(
        || "-".to_owned(),
        |last| format!("{} ago", duration(last.age_seconds)),
    );
    format!(
        "{}  {:8} {:10} {:>9} {since:>8} {transactions:>12} {:>4.0}% {:>9} {:>9} {:>9} \
         {checkpoint:>10}\n",
        padded(&shown_name(app), width),
        app.class,
        app.policy.name(),
        size(app.bytes_at_risk),
        app.e * 100.0,
        size(app.bytes_written_by_app),
        size(app.bytes_sent_to_store),
        size(app.bytes_saved),
    )
}

/// The name of an app as a shell takes it, and a terminal as a name.
pub(super) fn shown_name(app: &AppReport) -> String {
    printable(&app.full_name().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text had nothing of the history.
    #[test]
    fn the_history_is_shown() {
        let mut history = HistoryStatus {
            kept: 2,
            last: Some("2026-11-27T16:30:05.123456Z".to_owned()),
            last_is_exact: Some(false),
            ..HistoryStatus::default()
        };
        assert_eq!(
            kept(&history, false),
            "2 snapshots are kept; the last is of 2026-11-27T16:30:05.123456Z, not exact"
        );
        history = HistoryStatus {
            failed: Some("no\nroom".to_owned()),
            ..HistoryStatus::default()
        };
        assert_eq!(
            kept(&history, false),
            "no snapshot is kept; FAILED: no\\nroom"
        );
        history = HistoryStatus::default();
        assert_eq!(kept(&history, false), "no snapshot is kept yet");
        history = HistoryStatus {
            kept: 1,
            is_off: true,
            ..HistoryStatus::default()
        };
        assert_eq!(
            kept(&history, false),
            "off (keep_count = 0); 1 snapshot is kept"
        );
        assert_eq!(
            kept(&history, true),
            "off (the mount is read-only); 1 snapshot is kept"
        );
    }
}
