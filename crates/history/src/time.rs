//! Moments: as snapshots are named by them, and as users name them.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A moment of the wall clock, to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(Timestamp);

impl WallTime {
    /// The current wall-clock time.
    pub fn now() -> Self {
        Self::to_the_microsecond(Timestamp::now())
    }

    fn to_the_microsecond(time: Timestamp) -> Self {
        Self(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
    }

    /// The time `seconds` and `nanoseconds` after the Unix epoch; none if out of range.
    pub fn at(seconds: i64, nanoseconds: u32) -> Option<Self> {
        let nanoseconds = i32::try_from(nanoseconds).ok()?;
        let time = Timestamp::new(seconds, nanoseconds).ok()?;
        Some(Self::to_the_microsecond(time))
    }

    /// This time minus `by`.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        Self(self.0.saturating_sub(by).unwrap_or(Timestamp::MIN))
    }

    /// The next microsecond.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        let next = self.0.saturating_add(SignedDuration::from_micros(1));
        Self(next.unwrap_or(Timestamp::MAX))
    }

    /// A moment as RFC 3339 writes it, with a time zone.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::to_the_microsecond)
    }
}

/// `2026-11-27T16:30:05.123456Z`
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

/// What cannot be understood as an age.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no age: write one as 90s, 10min, 2h or 3d")]
pub struct AgeError(String);

/// How old something is that a user means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(Duration);

impl Age {
    /// `10min`.
    ///
    /// # Errors
    /// [`AgeError`].
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        let found = duration_of(text).map(Self);
        found.ok_or_else(|| AgeError(text.to_owned()))
    }

    /// The moment of what is so old now.
    #[must_use]
    pub fn before(self, now: WallTime) -> WallTime {
        now.before(self.0)
    }
}

pub(crate) fn duration_of(text: &str) -> Option<Duration> {
    let end = text.find(|character: char| !character.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    let unit_s = match unit.trim() {
        "s" | "sec" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    count.checked_mul(unit_s).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Option<String> {
        WallTime::parse(text).map(|time| time.to_string())
    }

    #[test]
    fn a_moment_is_read_in_every_zone() {
        for (text, wanted) in [
            ("2026-11-27T16:30:05Z", "2026-11-27T16:30:05.000000Z"),
            ("2026-11-27 16:30:05.5z", "2026-11-27T16:30:05.500000Z"),
            ("2026-11-27T16:30Z", "2026-11-27T16:30:00.000000Z"),
            ("2026-11-27T00:30:05+01:30", "2026-11-26T23:00:05.000000Z"),
            (
                "2024-02-29T23:59:59.1234567-00:01",
                "2024-03-01T00:00:59.123456Z",
            ),
            ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn an_age_is_read_or_refused() {
        let now = WallTime::parse("2026-11-27T16:30:05Z").unwrap();
        for (text, wanted) in [
            ("0s", "2026-11-27T16:30:05.000000Z"),
            ("10min", "2026-11-27T16:20:05.000000Z"),
            ("3 d", "2026-11-24T16:30:05.000000Z"),
            ("18446744073709551615s", "-009999-01-02T01:59:59.000000Z"),
        ] {
            let before = Age::parse(text).unwrap().before(now);
            assert_eq!(before.to_string(), wanted, "{text}");
        }
        for text in [
            "",
            "7",
            "d",
            "-7d",
            "2026-11-27T16:30:00Z",
            "999999999999999999d",
        ] {
            let error = Age::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no age")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(microseconds in -60_000_000_000_000_000..250_000_000_000_000_000_i64) {
            let time = WallTime(Timestamp::from_microsecond(microseconds).unwrap());
            prop_assert_eq!(WallTime::parse(&time.to_string()), Some(time));
        }

        #[test]
        fn names_are_in_the_order_of_time(one in 0..250_000_000_000_000_000_i64, by in 1..i64::from(u32::MAX)) {
            let [one, other] = [one, one + by].map(|time| WallTime(Timestamp::from_microsecond(time).unwrap()));
            prop_assert!(one.to_string() < other.to_string());
        }
    }
}
