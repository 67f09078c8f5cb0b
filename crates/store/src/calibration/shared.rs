//! What the stores of one process have measured of their devices, so that one measurement serves all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::calibration::Calibration;

/// When the device below a store is measured, where the largest durable write is not configured.
#[derive(Clone, Copy, Debug)]
pub enum Measuring {
    /// When the store is opened without a measurement of its device.
    AtOpening,
    /// At the end of an apply, when the store has committed so much since it was opened that the bytes of a
    /// measurement are few beside that; never, if another of the stores that share `devices` has measured the
    /// device. A new store uses [`Calibration::UNMEASURED_BYTES_MAX`] until then, any other what it used before.
    Deferred {
        /// Bytes that its commits have written.
        committed_bytes_min: u64,
        /// The measurements of all stores that are opened with this.
        devices: &'static MeasuredDevices,
    },
}

/// The measurements of the devices below several stores.
///
/// They are found by the number of the filesystem's device, because filesystems on one device make writes durable in
/// ways of their own, and hold for the device that they name: another one may have got the number.
#[derive(Debug, Default)]
pub struct MeasuredDevices {
    /// Locked only to look up and to insert. Only [`MeasuredDevices::end`] waits for the lock: in the child of a
    /// fork it may be held by a thread that does not exist there, and then the child's stores do not measure.
    by_number: Mutex<BTreeMap<u64, Measurement>>,
}

#[derive(Debug)]
enum Measurement {
    UnderWay,
    Done(Arc<Calibration>),
}

impl MeasuredDevices {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            by_number: Mutex::new(BTreeMap::new()),
        }
    }

    /// The measurement of `device`, which has this number now.
    pub(super) fn find(&self, number: u64, device: Option<&str>) -> Option<Arc<Calibration>> {
        match self.by_number.try_lock()?.get(&number)? {
            Measurement::Done(found) if found.is_of(device) => Some(Arc::clone(found)),
            _ => None,
        }
    }

    /// Whether a measurement of the device with this number, or of an earlier one, is there: asking which one it
    /// is takes many system calls.
    pub(super) fn may_have(&self, number: u64) -> bool {
        let all = self.by_number.try_lock();
        all.is_some_and(|all| matches!(all.get(&number), Some(Measurement::Done(_))))
    }

    /// Adds what is recorded in a store on the device with this number. That of a small journal lacks sizes, and
    /// is of no use to others.
    pub(super) fn add(&self, number: u64, recorded: &Arc<Calibration>) {
        if let Some(mut all) = self.by_number.try_lock()
            && recorded.has_all_sizes()
            && !matches!(all.get(&number), Some(Measurement::UnderWay))
        {
            all.insert(number, Measurement::Done(Arc::clone(recorded)));
        }
    }

    /// What a store without a measurement does next; `may_measure`: it has committed enough. None: it goes on
    /// without one. That is also so while another store measures, as two at once would disturb each other.
    pub(super) fn turn(
        &self,
        number: u64,
        device: Option<&str>,
        may_measure: bool,
    ) -> Option<Turn<'_>> {
        if let Some(known) = self.find(number, device) {
            return Some(Turn::Known(known));
        }
        let mut all = self.by_number.try_lock()?;
        if !may_measure || matches!(all.get(&number), Some(Measurement::UnderWay)) {
            return None;
        }
        all.insert(number, Measurement::UnderWay);
        Some(Turn::Measure(Claim {
            devices: self,
            number,
            measured: None,
        }))
    }

    fn end(&self, number: u64, measured: Option<Arc<Calibration>>) {
        let mut all = self.by_number.lock();
        match measured.filter(|measured| measured.has_all_sizes()) {
            Some(measured) => all.insert(number, Measurement::Done(measured)),
            None => all.remove(&number),
        };
    }
}

/// What a store does that has no measurement of its device.
pub(super) enum Turn<'a> {
    /// It uses this one.
    Known(Arc<Calibration>),
    /// It measures.
    Measure(Claim<'a>),
}

/// The right to measure a device. Where it ends without a result, another store may try.
pub(super) struct Claim<'a> {
    devices: &'a MeasuredDevices,
    number: u64,
    measured: Option<Arc<Calibration>>,
}

impl Claim<'_> {
    /// Gives the result to all stores.
    pub(super) fn finish(mut self, measured: &Arc<Calibration>) {
        self.measured = Some(Arc::clone(measured));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.devices.end(self.number, self.measured.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Option<&str> = Some("disk \"Model\", serial 1");

    fn whole() -> Arc<Calibration> {
        Arc::new(Calibration::example(7))
    }

    fn claim(devices: &MeasuredDevices, number: u64) -> Option<Claim<'_>> {
        match devices.turn(number, DEVICE, true)? {
            Turn::Measure(claim) => Some(claim),
            Turn::Known(known) => panic!("it is known: {known:?}"),
        }
    }

    #[test]
    fn one_measures_and_all_find_it() {
        let devices = MeasuredDevices::new();
        assert!(devices.turn(8, DEVICE, false).is_none());
        let claimed = claim(&devices, 8).unwrap();
        assert!(claim(&devices, 8).is_none(), "one measures it");
        assert!(claim(&devices, 9).is_some(), "another device");
        // What a store has from before is older than what is under way.
        devices.add(8, &whole());
        assert!(!devices.may_have(8));
        claimed.finish(&whole());
        assert!(devices.may_have(8) && !devices.may_have(9));
        for may_measure in [false, true] {
            let turn = devices.turn(8, DEVICE, may_measure);
            assert!(matches!(turn, Some(Turn::Known(known)) if known == whole()));
        }
        assert_eq!(devices.find(8, None), Some(whole()), "it may be that one");
        assert_eq!(devices.find(9, DEVICE), None);
        // A card that was exchanged.
        assert_eq!(devices.find(8, Some("another")), None);
        let turn = devices.turn(8, Some("another"), true);
        assert!(matches!(turn, Some(Turn::Measure(_))));
    }

    #[test]
    fn a_measurement_that_failed_is_another_stores_turn() {
        let devices = MeasuredDevices::new();
        drop(claim(&devices, 8).unwrap());
        assert!(claim(&devices, 8).is_some());
    }

    #[test]
    fn what_a_small_journal_measured_is_not_given_to_others() {
        let devices = MeasuredDevices::new();
        let small = Arc::new(Calibration::example(6));
        devices.add(8, &small);
        assert!(!devices.may_have(8));
        claim(&devices, 8).unwrap().finish(&small);
        assert!(!devices.may_have(8));
        devices.add(8, &whole());
        assert!(devices.may_have(8));
    }

    /// A fork may have copied the lock while it was held.
    #[test]
    fn a_lock_that_is_never_released_means_that_nothing_is_measured() {
        let devices = MeasuredDevices::new();
        devices.add(8, &whole());
        let _held = devices.by_number.lock();
        devices.add(8, &whole());
        assert!(!devices.may_have(8));
        assert_eq!(devices.find(8, DEVICE), None);
        assert!(devices.turn(8, DEVICE, true).is_none());
    }
}
