//! What was measured of a device, as people read it.

use mobifs_host::printable;
use mobifs_volume::CalibrationReport;

use super::figures::size;

/// Where it was measured.
pub(super) fn device(measured: &CalibrationReport) -> String {
    let device = measured.device.as_deref();
    device.map_or_else(
        || "a device that cannot be told from others".to_owned(),
        |device| printable(device).into_owned(),
    )
}

/// The times by size, each line after `indent`.
pub(super) fn table(measured: &CalibrationReport, indent: &str) -> String {
    let mut text = format!(
        "{indent}{:>10} {:>14} {:>14}\n",
        "SIZE", "DURABLE", "WITH A FLUSH"
    );
    for times in &measured.sizes {
        text += &format!(
            "{indent}{:>10} {:>14} {:>14}\n",
            size(times.bytes),
            microseconds(times.durable_us),
            microseconds(times.flushed_us)
        );
    }
    text
}

pub(super) fn microseconds(us: f64) -> String {
    if us < 100.0 {
        format!("{us:.1} µs")
    } else {
        format!("{us:.0} µs")
    }
}
