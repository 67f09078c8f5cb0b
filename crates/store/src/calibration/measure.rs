//! When a device is measured: when a store without a measurement of it is opened, or has committed enough
//! ([`Measuring`]); and on request.

use std::sync::Arc;

use crate::StoreError;
use crate::calibration::shared::{MeasuredDevices, Measuring, Turn};
use crate::calibration::{Calibration, file};
use crate::log::epoch::Epoch;
use crate::lower::Lower;
use crate::options::JournalOptions;
use crate::overlay::Overlay;

/// When a store is opened: finds what was measured, and measures if that is due. `may_measure`:
/// everything committed is applied. Returns whether the device is to be measured
/// [after an apply](after_apply).
pub(crate) fn at_open<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    may_measure: bool,
    options: &JournalOptions,
) -> bool {
    let recorded = file::read(overlay.lower(), overlay.mobifs(), epoch.log().uuid()).map(Arc::new);
    if let Some(recorded) = &recorded {
        epoch.set_calibration(Arc::clone(recorded));
    }
    if overlay.is_read_only() || options.direct_bytes_max.is_some() {
        return false;
    }
    let is_left = match options.measuring {
        Measuring::AtOpening if may_measure => {
            at_once(overlay, epoch, recorded.as_deref()).map(|()| false)
        }
        Measuring::AtOpening => Ok(false),
        Measuring::Deferred { devices, .. } => {
            take_known(overlay, epoch, may_measure, recorded.as_ref(), devices)
        }
    };
    is_left.unwrap_or_else(|error| {
        report_failed(&error);
        false
    })
}

/// Only speed depends on it.
fn report_failed(error: &StoreError) {
    tracing::warn!(%error, "the largest durable write cannot be measured or set; the old one stays");
}

/// Measures, unless the device is the one of the `recorded` measurement.
fn at_once<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    recorded: Option<&Calibration>,
) -> Result<(), StoreError> {
    let lower = overlay.lower();
    match (epoch.take_measured(), recorded, lower.device_identity()) {
        (Some(sizes), _, device) => {
            keep(overlay, epoch, Arc::new(Calibration::of(device, sizes)));
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
    }
}

/// Uses the measurement of the device that is recorded, or the one of another store; returns whether there is
/// none yet.
fn take_known<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    may_measure: bool,
    recorded: Option<&Arc<Calibration>>,
    devices: &MeasuredDevices,
) -> Result<bool, StoreError> {
    let lower = overlay.lower();
    let (number, device) = (overlay.device(), lower.device_identity());
    if let Some(recorded) = recorded.filter(|recorded| recorded.is_of(device.as_deref())) {
        devices.add(number, recorded);
        if may_measure {
            // As above.
            epoch.set_direct_bytes_max(lower, recorded.direct_bytes_max)?;
        }
        return Ok(false);
    }
    match devices.find(number, device.as_deref()) {
        Some(known) if may_measure => adopt(overlay, epoch, known).map(|()| false),
        _ => Ok(true),
    }
}

/// After an apply of a store whose device is not measured yet: uses the measurement of another store, or measures
/// if that `is_due`. Returns whether this is done; what fails is not tried again.
pub(crate) fn after_apply<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    devices: &MeasuredDevices,
    is_due: bool,
) -> bool {
    let (lower, number) = (overlay.lower(), overlay.device());
    let is_applied = epoch.log().is_empty()
        && epoch.log().carried().is_none()
        && overlay.state().pending.is_empty();
    if !is_applied || !(is_due || devices.may_have(number)) {
        return false;
    }
    let device = lower.device_identity();
    let Some(turn) = devices.turn(number, device.as_deref(), is_due) else {
        return false;
    };
    let done = epoch
        .invalidate_tail(lower, overlay.sink())
        .and_then(|()| match turn {
            Turn::Known(known) => adopt(overlay, epoch, known),
            Turn::Measure(claim) => {
                claim.finish(&anew(overlay, epoch, device)?);
                Ok(())
            }
        });
    if let Err(error) = done {
        report_failed(&error);
    }
    true
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
    let calibration = Arc::new(calibration);
    epoch.set_direct_bytes_max(overlay.lower(), calibration.direct_bytes_max)?;
    keep(overlay, epoch, Arc::clone(&calibration));
    Ok(calibration)
}

/// Uses what another store has measured of the device, and notes it as this store's own.
fn adopt<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    known: Arc<Calibration>,
) -> Result<(), StoreError> {
    epoch.set_direct_bytes_max(overlay.lower(), known.direct_bytes_max)?;
    keep(overlay, epoch, known);
    Ok(())
}

/// Notes what was measured. The superblock has the threshold already: a crash in between, or a disk
/// without room, has a later opening measure again.
fn keep<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    calibration: Arc<Calibration>,
) {
    tracing::debug!(
        device = calibration.device,
        durable_write_max_bytes = calibration.direct_bytes_max,
        "the device is measured"
    );
    if let Err(error) = file::write(overlay, epoch.log().uuid(), &calibration) {
        tracing::info!(%error, "what was measured of the device cannot be kept");
    }
    epoch.set_calibration(calibration);
}
