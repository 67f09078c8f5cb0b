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

/// Up to which size commits are one durable write.
pub(super) fn durable_up_to(bytes: u64) -> String {
    match bytes {
        0 => "every commit is a write and a flush".to_owned(),
        bytes => format!("commits up to {} are one durable write", size(bytes)),
    }
}

/// The same, where `in_force` may be configured (`direct_write_max_bytes`) and not what was `measured`.
pub(super) fn in_force(in_force: u64, measured: Option<&CalibrationReport>) -> String {
    let text = durable_up_to(in_force);
    match measured.map(|measured| measured.durable_write_max_bytes) {
        Some(0) if in_force != 0 => {
            format!(
                "{text}, as configured; by what was measured every commit would be a write and a flush"
            )
        }
        Some(bytes) if bytes != in_force => {
            let by_measurement = format!("commits up to {} would be", size(bytes));
            format!("{text}, as configured; by what was measured {by_measurement}")
        }
        _ => text,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a size that was configured was shown as if it had been measured.
    #[test]
    fn a_configured_size_is_not_shown_as_measured() {
        let of = |bytes| CalibrationReport {
            device: None,
            durable_write_max_bytes: bytes,
            sizes: Vec::new(),
        };
        let shown = |bytes, measured| in_force(bytes, Some(&of(measured)));
        let plain = "commits up to 8.0 KiB are one durable write";
        assert_eq!(shown(8192, 8192), plain);
        assert_eq!(in_force(8192, None), plain);
        for (bytes, measured) in [(8192, 0), (0, 8192), (8192, 4096)] {
            let text = shown(bytes, measured);
            assert!(
                text.contains(", as configured; by what was measured"),
                "{text}"
            );
        }
        assert_eq!(shown(0, 0), "every commit is a write and a flush");
    }
}
