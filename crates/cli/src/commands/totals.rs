//! `mobifs status --history`: what was written and saved on each day.

use std::path::Path;

use mobifs_daemon::control::{ControlError, Reply, Request, find_mount};
use mobifs_daemon::{Code, DayTotals, Failure, read_totals};
use serde_json::json;

use super::figures::size;
use super::json_text;
use super::{ask, print, unexpected};

/// What writing takes by the flash model's fit for eMMC (docs/FLASH.md), in mJ for 10⁶ bytes.
const EMMC_WRITE_MJ_PER_MB: f64 = 6.0;

pub(super) fn run(place: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let Some(place) = place else {
        let message = "name the mount whose history is wanted, or its store; `mobifs status` lists \
                       the mounts";
        return Err(Failure::new(Code::Usage, message));
    };
    let days = days_of(place)?;
    let text = if as_json {
        json_text(&document(&days), false)?
    } else {
        table(&days)
    };
    print(&text)
}

fn days_of(place: &Path) -> Result<Vec<DayTotals>, Failure> {
    match find_mount(place) {
        Ok(_) => match ask(place, &Request::Totals)?.1 {
            Reply::Totals { days } => Ok(days),
            other => Err(unexpected(&other)),
        },
        Err(
            error @ (ControlError::NotMounted { .. }
            | ControlError::InsideSteered { .. }
            | ControlError::Store { .. }),
        ) if place.join(".mobifs").is_dir() => match read_totals(place) {
            Ok(days) => Ok(days),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(why) => Err(Failure::new(
                Failure::from(error).code,
                format!(
                    "cannot read the totals of the store {}: {why}",
                    place.display()
                ),
            )),
        },
        Err(error) => Err(error.into()),
    }
}

fn sum(days: &[DayTotals], of: fn(&DayTotals) -> u64) -> u64 {
    days.iter().map(of).fold(0, u64::saturating_add)
}

/// The part of what programs wrote that the device did not get; negative where it got more.
fn saved(days: &[DayTotals]) -> i128 {
    let written = sum(days, |day| day.bytes_written_by_apps);
    i128::from(written) - i128::from(sum(days, DayTotals::device_bytes))
}

/// Energy in J of writing so much.
fn energy_j(bytes: i128) -> f64 {
    bytes as f64 / 1e6 * EMMC_WRITE_MJ_PER_MB / 1e3
}

fn document(days: &[DayTotals]) -> serde_json::Value {
    let saved = saved(days);
    json!({
        "schema": 1,
        "days": days,
        "bytes_written_by_apps": sum(days, |day| day.bytes_written_by_apps),
        "device_written_bytes": sum(days, DayTotals::device_bytes),
        "commits": sum(days, |day| day.commits),
        "device_saved_bytes": saved,
        "energy_saved_joules": energy_j(saved),
    })
}

fn table(days: &[DayTotals]) -> String {
    if days.is_empty() {
        return "nothing was written since totals are kept\n".to_owned();
    }
    let mut text = format!(
        "{:12} {:>12} {:>12} {:>12} {:>9} {:>10}\n",
        "DAY (UTC)", "PROGRAMS", "DEVICE", "SAVED", "COMMITS", "ENERGY"
    );
    for day in days {
        text += &row(&day.day, std::slice::from_ref(day));
    }
    text += &row("all", days);
    text += "\nSAVED is what programs wrote without what the device got for it (journal, places), and \
             ENERGY\nwhat writing that takes by the model of an eMMC. What a filesystem would have \
             written besides for\nevery fsync (its own journal, flushes) is not counted: both are \
             lower bounds.\n";
    text
}

fn row(name: &str, days: &[DayTotals]) -> String {
    let saved = saved(days);
    let magnitude = u64::try_from(saved.unsigned_abs()).unwrap_or(u64::MAX);
    let sign = if saved < 0 { "-" } else { "" };
    format!(
        "{name:12} {:>12} {:>12} {:>12} {:>9} {:>8.2} J\n",
        size(sum(days, |day| day.bytes_written_by_apps)),
        size(sum(days, DayTotals::device_bytes)),
        format!("{sign}{}", size(magnitude)),
        sum(days, |day| day.commits),
        // Without the sign of a loss that is rounded to nothing.
        (energy_j(saved) * 100.0).round() / 100.0 + 0.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: &str, written: u64, device: u64) -> DayTotals {
        DayTotals {
            day: day.to_owned(),
            bytes_written_by_apps: written,
            commit_written_bytes: device / 2,
            apply_written_bytes: device - device / 2,
            commits: 3,
            ..DayTotals::default()
        }
    }

    #[test]
    fn days_and_their_sum_are_shown() {
        let days = [
            day("2026-11-27", 3_000_000_000, 1_000_000_000),
            day("2026-11-28", 1 << 20, 2 << 20),
            day("2026-11-29", 4096, 8192),
        ];
        let text = table(&days);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("2026-11-27"), "{text}");
        assert!(lines[1].ends_with("1.9 GiB         3    12.00 J"), "{text}");
        assert!(lines[2].contains("-1.0 MiB"), "more than was saved: {text}");
        assert!(lines[3].ends_with(" 0.00 J"), "no -0.00: {text}");
        assert!(lines[4].starts_with("all"), "{text}");
        let document = document(&days);
        assert_eq!(document["commits"], 9);
        assert_eq!(
            document["device_saved_bytes"],
            2_000_000_000 - (1 << 20) - 4096
        );
    }
}
