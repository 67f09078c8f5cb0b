//! Real time and the time of the model.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mobifs_base::VirtualNs;

/// Real seconds for each second of the model; 0: time is counted and not spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(f64);

/// Largest scale: a microsecond becomes a second.
const SCALE_MAX: f64 = 1e6;

impl Scale {
    /// As the modelled device.
    pub const REAL: Self = Self(1.0);
    /// No thread waits.
    pub const COUNT_ONLY: Self = Self(0.0);

    /// A scale, if it is one.
    pub fn new(factor: f64) -> Option<Self> {
        (0.0..=SCALE_MAX).contains(&factor).then_some(Self(factor))
    }

    /// The factor.
    pub const fn factor(self) -> f64 {
        self.0
    }

    fn spends_time(self) -> bool {
        self.0 > 0.0
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| {
            format!(
                "'{text}' is not a time scale: a number from 0 (do not wait) to {SCALE_MAX}, 1 \
                 being real time"
            )
        })
    }
}

/// The clock of the model's time.
///
/// With a scale, the model's time is the time since the start, divided by it. Without
/// (scale 0), the clock runs as real time does, so that the device has its idle times,
/// and *skips* each time that a thread would have waited for.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    scale: Scale,
    skipped_ns: AtomicU64,
}

impl Clock {
    /// A clock that shows zero now.
    pub(crate) fn start(scale: Scale) -> Self {
        Self {
            origin: Instant::now(),
            scale,
            skipped_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> VirtualNs {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> VirtualNs {
        let elapsed = instant.saturating_duration_since(self.origin).as_nanos();
        let elapsed = if self.scale.spends_time() {
            (elapsed as f64 / self.scale.0) as u64
        } else {
            u64::try_from(elapsed)
                .unwrap_or(u64::MAX)
                .saturating_add(self.skipped_ns.load(Ordering::SeqCst))
        };
        VirtualNs(elapsed)
    }

    /// The instant at which the clock will show `time`; none if no thread waits for it: then
    /// the clock shows it from now on.
    pub(crate) fn wait_until(&self, time: VirtualNs) -> Option<Instant> {
        let now = Instant::now();
        let missing = time.0.saturating_sub(self.at(now).0);
        if self.scale.spends_time() {
            let wait = Duration::from_secs_f64(missing as f64 / 1e9 * self.scale.0);
            return Some(now.checked_add(wait).unwrap_or(now));
        }
        self.skipped_ns.fetch_add(missing, Ordering::SeqCst);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_clock_counts_in_the_models_time() {
        let clock = Clock::start(Scale::new(4.0).unwrap());
        let later = clock.origin + Duration::from_nanos(8_000);
        assert_eq!(clock.at(later), VirtualNs(2_000));
        let due = clock.wait_until(VirtualNs(1_000_000_000_000)).unwrap();
        let wait = due.duration_since(clock.origin);
        assert!(wait > Duration::from_secs(3_999) && wait < Duration::from_secs(4_001));
    }

    #[test]
    fn a_counting_clock_skips_what_would_be_waited_for() {
        let clock = Clock::start(Scale::COUNT_ONLY);
        let hour = VirtualNs(3_600_000_000_000);
        assert_eq!(clock.wait_until(hour), None);
        let now = clock.now();
        assert!(now >= hour && now.0 < 2 * hour.0);
        // What is in the past skips nothing.
        assert_eq!(clock.wait_until(VirtualNs(5)), None);
        assert!(clock.now().0 < 2 * hour.0);
    }

    #[test]
    fn scales_are_numbers_from_zero() {
        assert_eq!("0".parse(), Ok(Scale::COUNT_ONLY));
        assert_eq!("2.5".parse::<Scale>().unwrap().factor(), 2.5);
        for bad in ["-1", "fast", "NaN", "inf", "1e9"] {
            let message = bad.parse::<Scale>().unwrap_err();
            assert!(message.contains("is not a time scale"), "{message}");
        }
    }
}
