//! Which metrics there are of a mount, made of its status.

use std::collections::{BTreeMap, BTreeSet};

use mobifs_volume::{AppReport, NativeStatus, Status};

use super::exposition::Kind::{Counter, Gauge, Info};
use super::exposition::{Family, Kind, Labels};
use crate::commands::mounts::Found;

/// A metric of a mount: name, kind, unit, help, and its value, if the mount has one.
type OfMount = (
    &'static str,
    Kind,
    &'static str,
    &'static str,
    fn(&Status) -> Option<f64>,
);
type OfApp = (
    &'static str,
    Kind,
    &'static str,
    &'static str,
    fn(&AppReport) -> Option<f64>,
);

const fn flag(is: bool) -> Option<f64> {
    Some(if is { 1.0 } else { 0.0 })
}

const fn count(number: u64) -> Option<f64> {
    Some(number as f64)
}

fn of_mount_of_ours(status: &Status, number: u64) -> Option<f64> {
    status.native.is_none().then_some(number as f64)
}

fn of_native(status: &Status, of: fn(&NativeStatus) -> Option<f64>) -> Option<f64> {
    status.native.as_ref().and_then(of)
}

/// What is said of each mount.
#[rustfmt::skip]
const OF_MOUNT: &[OfMount] = &[
    ("mobifs_uptime_seconds", Gauge, "seconds", "Time since the mount, or since the last restart of its daemon.",
        |status| Some(status.uptime_ms as f64 / 1e3)),
    ("mobifs_restarts", Counter, "", "Daemons that took over after one that died.",
        |status| of_mount_of_ours(status, status.restarts)),
    ("mobifs_supervised", Gauge, "", "Whether a new daemon is started if this one dies.",
        |status| status.native.is_none().then(|| if status.supervised_by.is_some() { 1.0 } else { 0.0 })),
    ("mobifs_read_only", Gauge, "", "Whether the whole mount is read-only.",
        |status| flag(status.read_only)),
    ("mobifs_battery_low", Gauge, "", "Whether the battery is low, so that every app is durable.",
        |status| flag(status.battery_low)),
    ("mobifs_screen_off", Gauge, "", "Whether the screen is off, so that commits wait for their limits.",
        |status| flag(status.screen_off)),
    ("mobifs_memory_budget_bytes", Gauge, "bytes", "Most that uncommitted changes may take.",
        |status| count(status.memory.budget_bytes)),
    ("mobifs_memory_used_bytes", Gauge, "bytes", "Uncommitted changes, and deleted files that are still in use.",
        |status| count(status.memory.used_bytes)),
    ("mobifs_memory_deleted_in_use_bytes", Gauge, "bytes", "Deleted files that are still in use.",
        |status| of_mount_of_ours(status, status.memory.deleted_in_use_bytes)),
    ("mobifs_memory_committed_held_bytes", Gauge, "bytes", "Memory of committed changes that are not applied.",
        |status| of_mount_of_ours(status, status.memory.committed_held_bytes)),
    ("mobifs_objects", Gauge, "", "Files, directories and other objects in memory.",
        |status| of_mount_of_ours(status, status.memory.objects)),
    ("mobifs_journal_used_bytes", Gauge, "bytes", "Bytes of the journal in use.",
        |status| of_mount_of_ours(status, status.store.journal_used_bytes)),
    ("mobifs_journal_size_bytes", Gauge, "bytes", "Size of the journal.",
        |status| of_mount_of_ours(status, status.store.journal_total_bytes)),
    ("mobifs_commits", Counter, "", "Commits since the mount, or since the last restart of its daemon.",
        |status| count(status.store.commits)),
    ("mobifs_commit_written_bytes", Counter, "bytes", "Bytes written to the device by commits.",
        |status| count(status.store.commit_written_bytes)),
    ("mobifs_apply_written_bytes", Counter, "bytes", "Bytes written to the device by applies.",
        |status| of_mount_of_ours(status, status.store.apply_written_bytes)),
    ("mobifs_ordered_fsyncs", Counter, "", "Calls of fsync in durable apps that needed no commit.",
        |status| of_mount_of_ours(status, status.store.ordered_fsyncs)),
    ("mobifs_externally_modified_objects", Counter, "", "Objects that another program moved or removed in the store.",
        |status| of_mount_of_ours(status, status.store.externally_modified)),
    ("mobifs_apply_failed", Gauge, "", "Whether the last apply failed, or could not bring all to its place.",
        |status| status.native.is_none().then(|| if status.store.not_applied.is_some() { 1.0 } else { 0.0 })),
    ("mobifs_apps", Gauge, "", "Apps touched since the mount.",
        |status| count(status.totals.apps)),
    ("mobifs_apps_at_risk", Gauge, "", "Apps with changes that a power cut would take.",
        |status| count(status.totals.at_risk)),
    ("mobifs_apps_read_only", Gauge, "", "Apps that accept no changes, because a commit failed.",
        |status| count(status.totals.read_only)),
    ("mobifs_written_bytes", Counter, "bytes", "Bytes that programs wrote since the mount.",
        |status| count(status.totals.bytes_written_by_apps)),
    ("mobifs_sent_bytes", Counter, "bytes", "Bytes that programs wrote and that were committed since the mount.",
        |status| count(status.totals.bytes_sent_to_store)),
    ("mobifs_saved_bytes", Gauge, "bytes", "Bytes written that were overwritten or deleted before a commit.",
        |status| count(status.totals.bytes_saved)),
    ("mobifs_promise_in_force", Gauge, "", "Whether the promise of a steered filesystem holds.",
        |status| of_native(status, |native| flag(native.promise_withdrawn.is_none()))),
    ("mobifs_kernel_commit_interval_seconds", Gauge, "seconds", "The kernel's own commit interval of a steered filesystem.",
        |status| of_native(status, |native| count(native.commit_interval_s))),
    ("mobifs_other_commits", Counter, "", "Commits of a steered filesystem that the daemon did not ask for.",
        |status| of_native(status, |native| native.other_commits.map(|commits| commits as f64))),
];

/// What is put after a name that another app has.
const TAKEN: char = '#';

/// What is said of each app.
#[rustfmt::skip]
const OF_APP: &[OfApp] = &[
    ("mobifs_app_at_risk_bytes", Gauge, "bytes", "Memory of the changes that a power cut would take.",
        |app| count(app.bytes_at_risk)),
    ("mobifs_app_at_risk_seconds", Gauge, "seconds", "Age of the oldest of these changes.",
        |app| Some(app.seconds_at_risk)),
    ("mobifs_app_overwritten_ratio", Gauge, "ratio", "Share of what was written that was overwritten or deleted before a commit (e).",
        |app| Some(app.e)),
    ("mobifs_app_written_bytes", Counter, "bytes", "Bytes that write calls brought since the mount.",
        |app| count(app.bytes_written_by_app)),
    ("mobifs_app_sent_bytes", Counter, "bytes", "Bytes that programs wrote and that were committed since the mount.",
        |app| count(app.bytes_sent_to_store)),
    ("mobifs_app_saved_bytes", Gauge, "bytes", "Bytes written that were overwritten or deleted before a commit.",
        |app| count(app.bytes_saved)),
    ("mobifs_app_transactions", Counter, "", "Transactions committed since the mount.",
        |app| count(app.transactions.committed)),
    ("mobifs_app_durable", Gauge, "", "Whether its fsync waits for the disk.",
        |app| flag(app.class == "durable")),
    ("mobifs_app_read_only", Gauge, "", "Whether it accepts no changes, because a commit failed.",
        |app| flag(app.read_only.is_some())),
    ("mobifs_app_age_limit_seconds", Gauge, "seconds", "Age at which its changes are committed at the latest.",
        |app| Some(app.age_max_ms as f64 / 1e3)),
];

/// All metrics of these mounts; of each mount so many apps, those with the most at risk.
pub(super) fn families(mounts: &[Found], apps_max: usize) -> Vec<Family> {
    let mut build = Family::new("mobifs_build", Info, "", "Version of this command.");
    build.push(
        &vec![("version", env!("CARGO_PKG_VERSION").to_owned())],
        1.0,
    );
    let mut up = Family::new(
        "mobifs_up",
        Gauge,
        "",
        "Whether the mount's daemon answers.",
    );
    let mut daemons = Family::new(
        "mobifs_daemon",
        Info,
        "",
        "Version of the mount's daemon, and its store.",
    );
    for found in mounts {
        let labels = mount_labels(found);
        let answers = if found.status.is_ok() { 1.0 } else { 0.0 };
        up.push(&labels, answers);
        if let Ok(status) = &found.status {
            let mut labels = labels;
            labels.push(("store", status.store.path.clone().unwrap_or_default()));
            labels.push(("version", status.version.clone()));
            daemons.push(&labels, 1.0);
        }
    }
    let mut all = vec![build, up, daemons];
    for &(name, kind, unit, help, value) in OF_MOUNT {
        let mut family = Family::new(name, kind, unit, help);
        for (labels, status) in answered(mounts) {
            if let Some(value) = value(status) {
                family.push(&labels, value);
            }
        }
        all.push(family);
    }
    for &(name, kind, unit, help, value) in OF_APP {
        let mut family = Family::new(name, kind, unit, help);
        for (labels, status) in answered(mounts) {
            for (name, app) in riskiest(status, apps_max) {
                let mut labels = labels.clone();
                labels.push(("app", name));
                if let Some(value) = value(app) {
                    family.push(&labels, value);
                }
            }
        }
        all.push(family);
    }
    all
}

fn answered(mounts: &[Found]) -> impl Iterator<Item = (Labels, &Status)> {
    mounts
        .iter()
        .filter_map(|found| Some((mount_labels(found), found.status.as_ref().ok()?)))
}

fn mount_labels(found: &Found) -> Labels {
    let place = found.mount.mountpoint.to_string_lossy().into_owned();
    vec![("mount", place)]
}

/// The apps with the most at risk, by name. A name is there once, as two metrics of one name would make the whole text
/// void: one that is not UTF-8 is written in another way, and marked where another app has that as its name.
fn riskiest(status: &Status, apps_max: usize) -> BTreeMap<String, &AppReport> {
    let written = status.apps.iter().filter(|app| app.name_hex.is_none());
    let written: BTreeSet<&str> = written.map(|app| app.name.as_str()).collect();
    let mut apps: Vec<&AppReport> = status.apps.iter().collect();
    apps.sort_by_key(|app| std::cmp::Reverse(app.bytes_at_risk));
    let named = apps.into_iter().take(apps_max).map(|app| {
        let mut name = match app.name_hex {
            Some(_) => app.full_name().to_string(),
            None => return (app.name.clone(), app),
        };
        while written.contains(name.as_str()) {
            name.push(TAKEN);
        }
        (name, app)
    });
    named.collect()
}
