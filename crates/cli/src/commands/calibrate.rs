//! `mobifs calibrate`

use std::path::Path;

use mobifs_daemon::control::{ControlError, Reply, Request, find_mount};
use mobifs_daemon::{Failure, predecessor, raise_limits};
use mobifs_volume::{CalibrationReport, Config, OpenOptions, OpenedStore};
use serde_json::json;

use super::measured::{device, durable_up_to, table};
use super::progress::Progress;
use super::{ask, check, json_text, print, refuse_under_run, unexpected};
use crate::arguments::CalibrateArguments;

pub(crate) fn run(arguments: &CalibrateArguments) -> Result<(), Failure> {
    let place = &arguments.place;
    let measured = match find_mount(place) {
        Ok(_) => of_mount(place)?,
        Err(
            ControlError::NotMounted { .. }
            | ControlError::InsideSteered { .. }
            | ControlError::Store { .. },
        ) if place.join(".mobifs").is_dir() => of_store(place, arguments)?,
        Err(error) => return Err(error.into()),
    };
    if arguments.json {
        return print(&json_text(&document(&measured), false)?);
    }
    print(&text(&measured))
}

fn of_mount(mountpoint: &Path) -> Result<CalibrationReport, Failure> {
    let _progress = Progress::of_commit("measuring", mountpoint);
    match ask(mountpoint, &Request::Calibrate)?.1 {
        Reply::Calibration { calibration } => Ok(calibration),
        other => Err(unexpected(&other)),
    }
}

fn of_store(store: &Path, arguments: &CalibrateArguments) -> Result<CalibrationReport, Failure> {
    // What it measured there would be the supervisor's answers.
    refuse_under_run("calibrate")?;
    let path = check::existing(store, false)?;
    let _progress = Progress::of_reading("measuring", check::journal_of(&path));
    raise_limits()?;
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let opened = predecessor::for_command(&path, arguments.wait.limit(), || {
        OpenedStore::open(&path, &options)
    })?;
    let measured = opened.store().calibrate();
    let closed = opened.close();
    let failed = |error| Failure::of_store(&path, &error);
    let measured = measured.map_err(failed)?;
    closed.map_err(failed)?;
    Ok((&measured).into())
}

fn document(measured: &CalibrationReport) -> serde_json::Value {
    json!({
        "schema": 1,
        "device": measured.device,
        "durable_write_max_bytes": measured.durable_write_max_bytes,
        "sizes": measured.sizes,
    })
}

fn text(measured: &CalibrationReport) -> String {
    let mut text = format!("{}\n", device(measured));
    text += &table(measured, "");
    text += &durable_up_to(measured.durable_write_max_bytes);
    if measured.durable_write_max_bytes > 0 {
        text += ", larger ones a write and a flush";
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use mobifs_volume::WriteTimesReport;

    use super::*;

    #[test]
    fn times_and_what_follows_are_shown() {
        let mut measured = CalibrationReport {
            device: Some("Fast\u{1b} SSD".to_owned()),
            durable_write_max_bytes: 8192,
            sizes: [(4096, 31.25), (8192, 412.6)]
                .map(|(bytes, durable_us)| WriteTimesReport {
                    bytes,
                    durable_us,
                    flushed_us: 400.0,
                })
                .to_vec(),
        };
        let shown = text(&measured);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[0].starts_with("Fast") && !lines[0].contains('\u{1b}'));
        assert_eq!(lines[2], "   4.0 KiB        31.2 µs         400 µs");
        assert_eq!(lines[3], "   8.0 KiB         413 µs         400 µs");
        assert!(lines[4].starts_with("commits up to 8.0 KiB"), "{shown}");
        assert_eq!(document(&measured)["sizes"][1]["durable_us"], 412.6);
        (measured.durable_write_max_bytes, measured.device) = (0, None);
        let shown = text(&measured);
        assert!(shown.starts_with("a device that cannot be told"), "{shown}");
        assert!(shown.ends_with("every commit is a write and a flush\n"));
    }
}
