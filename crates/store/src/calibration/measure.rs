//! When a device is measured: when the journal is made, when an open finds the store on another
//! device, and on request.

use std::sync::Arc;

use crate::StoreError;
use crate::calibration::{Calibration, file};
use crate::log::epoch::Epoch;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// When a store is opened: finds what was measured, and measures if that is due. `may_measure`:
/// everything committed is applied. `is_configured`: the threshold is not to be measured.
pub(crate) fn at_open<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    may_measure: bool,
    is_configured: bool,
) {
    let lower = overlay.lower();
    let recorded = file::read(lower, overlay.mobifs(), epoch.log().uuid());
    let measured_now = epoch.take_measured();
    if let Some(recorded) = &recorded {
        epoch.set_calibration(Arc::new(recorded.clone()));
    }
    if overlay.is_read_only() || is_configured || !may_measure {
        return;
    }
    let device = lower.device_identity();
    let done = match (measured_now, recorded, device) {
        (Some(sizes), _, device) => {
            keep(overlay, epoch, Calibration::of(device, sizes));
            Ok(())
        }
        (None, Some(recorded), device) if recorded.is_of(device.as_deref()) => {
            // The configuration may have had another threshold for a while.
            epoch.set_direct_bytes_max(lower, recorded.direct_bytes_max)
        }
        // Measured by an older version, on a device that cannot be told from others.
        (None, _, None) => Ok(()),
        (None, _, Some(device)) => {
            tracing::info!(
                device,
                "measuring the device: there is no measurement of it"
            );
            anew(overlay, epoch, Some(device)).map(drop)
        }
    };
    if let Err(error) = done {
        // Only speed depends on it.
        tracing::warn!(%error, "the largest durable write cannot be measured or set; the old one stays");
    }
}

/// Measures the device. Nothing is pending, and the log is empty.
///
/// # Errors
/// [`StoreError::Lower`]: the threshold may be the new one or that of before.
pub(crate) fn on_request<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
) -> Result<Arc<Calibration>, StoreError> {
    let device = overlay.lower().device_identity();
    anew(overlay, epoch, device)
}

fn anew<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    device: Option<String>,
) -> Result<Arc<Calibration>, StoreError> {
    let calibration = Calibration::of(device, epoch.measure(overlay.lower())?);
    epoch.set_direct_bytes_max(overlay.lower(), calibration.direct_bytes_max)?;
    Ok(keep(overlay, epoch, calibration))
}

/// Notes what was measured. The superblock has the threshold already: a crash in between, or a disk
/// without room, has the next mount measure again.
fn keep<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    calibration: Calibration,
) -> Arc<Calibration> {
    tracing::debug!(
        device = calibration.device,
        durable_write_max_bytes = calibration.direct_bytes_max,
        "the device is measured"
    );
    if let Err(error) = file::write(overlay, epoch.log().uuid(), &calibration) {
        tracing::info!(%error, "what was measured of the device cannot be kept");
    }
    let calibration = Arc::new(calibration);
    epoch.set_calibration(Arc::clone(&calibration));
    calibration
}
