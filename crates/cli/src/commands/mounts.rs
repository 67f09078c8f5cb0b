//! `mobifs status` without a mount: all of them.

use std::io;
use std::path::Path;

use mobifs_daemon::control::{
    ControlClient, ControlError, Reply, Request, covered_mounts, detached_mounts, own_mounts,
};
use mobifs_daemon::{Code, Failure};
use mobifs_host::{MountEntry, absolute_without_touching, printable, printable_path};
use mobifs_volume::{AppSelection, Status};
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::figures::{padded, size};
pub(super) use super::out_of_tree::PATIENCE;
use super::out_of_tree::place_in_status;
use super::{fetch, json_text, unexpected};

/// A mount, and what its daemon says.
pub(super) struct Found {
    pub(super) mount: MountEntry,
    pub(super) status: Result<Status, Failure>,
    /// False: a lazy unmount has taken it out while programs use it, or it is in another mount
    /// namespace.
    pub(super) is_in_tree: bool,
    /// Another filesystem is mounted over it.
    pub(super) is_covered: bool,
}

/// All mounts that this process sees, in the order of mounting, then those that are covered, then those that are not in
/// the tree.
/// `apps_max`: so many apps of each.
pub(super) fn all(apps_max: u64) -> Result<Vec<Found>, Failure> {
    let failed = |error| {
        let message = format!("cannot read the table of mounts: {error}");
        Failure::new(Code::Failed, message)
    };
    let select = || AppSelection {
        limit: Some(apps_max),
        ..AppSelection::default()
    };
    let mounts = own_mounts().map_err(failed)?.into_iter();
    let mut found: Vec<Found> = mounts
        .map(|mount| Found {
            status: fetch(&mount.mountpoint, select(), &PATIENCE),
            mount,
            is_in_tree: true,
            is_covered: false,
        })
        .collect();
    found.extend(covered(&select()).map_err(failed)?);
    // Its apps say why one has not ended.
    let mut select = select();
    select.limit = select.limit.max(Some(AS_MANY_AS_ONE_MOUNT));
    found.extend(out_of_tree(&select).map_err(failed)?);
    Ok(found)
}

/// The mounts that others are mounted over.
fn covered(select: &AppSelection) -> io::Result<Vec<Found>> {
    let found = covered_mounts()?.into_iter().map(|(mount, client)| {
        let select = select.clone();
        let asked =
            client.and_then(|mut client| client.ask(&Request::Status { select }, &PATIENCE));
        Found {
            mount,
            status: match asked {
                Ok(Reply::Status { status }) => Ok(*status),
                Ok(other) => Err(unexpected(&other)),
                Err(error) => Err(error.into()),
            },
            is_in_tree: true,
            is_covered: true,
        }
    });
    Ok(found.collect())
}

/// The mounts that are not in the tree. One that ends meanwhile is left out: nothing waits for it.
fn out_of_tree(select: &AppSelection) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for mut client in detached_mounts()? {
        let select = select.clone();
        if let Ok(Reply::Status { status }) = client.ask(&Request::Status { select }, &PATIENCE) {
            found.push(Found {
                mount: place_in_status(client.mount(), &status),
                status: Ok(*status),
                is_in_tree: false,
                is_covered: false,
            });
        }
    }
    Ok(found)
}

/// What the daemon of a mount says that was at this path and has left the tree, and in a line why it has
/// not ended.
pub(super) fn status_out_of_tree(path: &Path, select: &AppSelection) -> Option<(Status, String)> {
    let path = absolute_without_touching(path).ok()?;
    let mut found = out_of_tree(select).ok()?.into_iter();
    let found = found.find(|found| found.mount.mountpoint == path)?;
    let status = found.status.ok()?;
    let why = state(&status, false);
    Some((status, why))
}

/// Whether this user may ask the mount's daemon at all.
pub(super) fn may_ask(mount: &MountEntry) -> bool {
    let connected = ControlClient::connect(&mount.mountpoint);
    !matches!(connected, Err(ControlError::NotPermitted { .. }))
}

/// One line for each, or a JSON document.
pub(super) fn report(as_json: bool, in_one_line: bool) -> Result<String, Failure> {
    if as_json {
        let found = all(AS_MANY_AS_ONE_MOUNT)?;
        let mounts: Vec<_> = found.iter().map(document).collect();
        return json_text(&json!({ "schema": 1, "mounts": mounts }), in_one_line);
    }
    Ok(table(&all(0)?))
}

/// As many apps as the status of one mount lists by default.
const AS_MANY_AS_ONE_MOUNT: u64 = 1000;

fn document(found: &Found) -> serde_json::Value {
    json!({
        "mountpoint": found.mount.mountpoint.to_string_lossy(),
        "kind": kind(found),
        "is_in_tree": found.is_in_tree,
        "is_covered": found.is_covered,
        "problem": found.status.as_ref().err().map(|failure| &failure.message),
        "status": found.status.as_ref().ok(),
    })
}

fn kind(found: &Found) -> &'static str {
    if found.mount.is_fuse() {
        "mount"
    } else {
        "steered"
    }
}

fn table(found: &[Found]) -> String {
    if found.is_empty() {
        return "nothing is mounted or steered here; `mobifs doctor` says what can be\n".to_owned();
    }
    let lines: Vec<_> = found.iter().map(Line::of).collect();
    let width = |column: fn(&Line) -> &str, title: &str| {
        let columns = lines.iter().map(|line| column(line).width());
        columns.max().unwrap_or(0).clamp(title.len(), 60)
    };
    let place = width(|line| &line.place, "MOUNT");
    let store = width(|line| &line.store, "STORE");
    let mut text = format!(
        "{:place$}  {:store$}  {:7}  {:>10}  {:>13}  {:>10}  STATE\n",
        "MOUNT", "STORE", "KIND", "AT RISK", "APPS AT RISK", "SAVED"
    );
    for line in &lines {
        text += &format!(
            "{}  {}  {:7}  {:>10}  {:>13}  {:>10}  {}\n",
            padded(&line.place, place),
            padded(&line.store, store),
            line.kind,
            line.at_risk,
            line.apps,
            line.saved,
            line.state
        );
    }
    text
}

/// What is shown of one mount.
struct Line {
    place: String,
    store: String,
    kind: &'static str,
    at_risk: String,
    apps: String,
    saved: String,
    state: String,
}

impl Line {
    fn of(found: &Found) -> Self {
        let none = || "-".to_owned();
        let mut line = Self {
            place: printable_path(&found.mount.mountpoint),
            store: printable_path(&found.mount.source),
            kind: kind(found),
            at_risk: none(),
            apps: none(),
            saved: none(),
            state: String::new(),
        };
        match &found.status {
            Ok(status) => {
                if let Some(path) = &status.store.path {
                    line.store = printable(path).into_owned();
                }
                let uncommitted = status.memory.used_bytes;
                line.at_risk =
                    size(uncommitted - status.memory.deleted_in_use_bytes.min(uncommitted));
                line.apps = format!("{} of {}", status.totals.at_risk, status.totals.apps);
                line.saved = size(status.totals.bytes_saved);
                line.state = printable(&state(status, found.is_in_tree)).into_owned();
            }
            Err(failure) => line.state = printable(&failure.message).into_owned(),
        }
        if found.is_covered {
            line.state = format!(
                "COVERED by another filesystem mounted over it; {}",
                line.state
            );
        }
        line
    }
}

/// What a user should know, the worst first.
fn state(status: &Status, is_in_tree: bool) -> String {
    let mut all = Vec::new();
    let kept_by = (!is_in_tree).then(|| status.not_stored());
    match &kept_by {
        Some(Some(why)) => all.push(format!("NOT IN THE TREE: its daemon cannot end yet: {why}")),
        Some(None) => all.push(
            "NOT IN THE TREE: unmounted lazily while programs use it, or in another mount namespace"
                .to_owned(),
        ),
        None => {}
    }
    if let Some(native) = &status.native
        && let Some(reason) = &native.promise_withdrawn
    {
        let what = match native.can_promise() {
            true => "PROMISE WITHDRAWN",
            false => "no promise",
        };
        all.push(format!("{what}: {reason}"));
    }
    match status.totals.read_only {
        0 => {}
        1 => all.push("1 app READ-ONLY".to_owned()),
        some => all.push(format!("{some} apps READ-ONLY")),
    }
    if let Some(reason) = status.store.not_applied.as_ref().filter(|_| is_in_tree) {
        all.push(format!("NOT APPLIED: {reason}"));
    }
    if status.native.is_none() && status.supervised_by.is_none() {
        all.push("unsupervised".to_owned());
    }
    if status.battery_low {
        all.push("battery low".to_owned());
    }
    if status.read_only {
        all.push("read-only".to_owned());
    }
    if all.is_empty() {
        all.push("ok".to_owned());
    }
    all.join("; ")
}
