//! How a worker reports its steps: a line `STEP BEGAN RETURNED` each, with times in nanoseconds of
//! `CLOCK_BOOTTIME`, which all processes of a machine share.

use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// When the step that is under way began. A worker has one thread of steps.
static BEGAN_NS: AtomicU64 = AtomicU64::new(0);
/// Mean pause after each step, in microseconds.
static PAUSE_US: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds since the machine was started, also those that it slept.
pub fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The first step begins. After each, the worker pauses for this time on average.
pub fn begin(pause_us: u64) {
    PAUSE_US.store(pause_us, Ordering::SeqCst);
    BEGAN_NS.store(boottime_ns(), Ordering::SeqCst);
}

/// When the step that is under way began.
pub fn began_ns() -> u64 {
    BEGAN_NS.load(Ordering::SeqCst)
}

/// Reports that a step has returned; the next one begins.
///
/// # Errors
/// There is no reader any more.
pub fn returned(number: u64) -> Result<(), String> {
    let step = Step {
        number,
        began_ns: began_ns(),
        returned_ns: boottime_ns(),
    };
    let Step {
        began_ns,
        returned_ns,
        ..
    } = step;
    writeln!(std::io::stdout(), "{number} {began_ns} {returned_ns}")
        .map_err(|error| format!("reporting step {number}: {error}"))?;
    let pause_us = PAUSE_US.load(Ordering::SeqCst);
    if pause_us > 0 {
        // From 0 to twice the mean, so that programs meet each other in all ways.
        let tenths = number.wrapping_mul(7919) % 21;
        std::thread::sleep(Duration::from_micros(pause_us * tenths / 10));
    }
    BEGAN_NS.store(boottime_ns(), Ordering::SeqCst);
    Ok(())
}

/// A step that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number.
    pub number: u64,
    /// When it began, or earlier.
    pub began_ns: u64,
    /// When it had returned.
    pub returned_ns: u64,
}

impl FromStr for Step {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut words = line.split(' ').map(str::parse);
        let (Some(Ok(number)), Some(Ok(began_ns)), Some(Ok(returned_ns)), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(());
        };
        Ok(Self {
            number,
            began_ns,
            returned_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_step_and_a_part_of_one_is_not() {
        let step = Step {
            number: 7,
            began_ns: 20,
            returned_ns: 31,
        };
        assert_eq!("7 20 31".parse(), Ok(step));
        for bad in ["", "7", "7 20", "7 20 ", "7 20 31 4", "a 20 31"] {
            assert!(bad.parse::<Step>().is_err(), "{bad}");
        }
    }
}
