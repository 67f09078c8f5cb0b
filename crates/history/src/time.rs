//! Moments: as snapshots are named by them, and as users name them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_S: i64 = 86_400;
const SECOND_US: i64 = 1_000_000;

/// A moment of the wall clock, to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// Microseconds since 1970, which may be negative.
    microseconds: i64,
}

impl WallTime {
    /// Now.
    pub fn now() -> Self {
        let microseconds = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_micros().try_into().unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
        };
        Self { microseconds }
    }

    /// So long before this.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self {
            microseconds: self.microseconds.saturating_sub(by),
        }
    }

    /// The next microsecond.
    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self {
            microseconds: self.microseconds.saturating_add(1),
        }
    }

    /// A moment as RFC 3339 writes it: with a time zone, and with any number of decimals, of which
    /// six count.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let (year, month, day) = date_of(date)?;
        let rest = rest.strip_prefix(['T', 't', ' '])?;
        let (clock, rest) = rest.split_at_checked(8)?;
        let seconds = clock_of(clock)?;
        let (fraction, zone) = match rest.strip_prefix('.') {
            Some(rest) => {
                let end = rest.find(|character: char| !character.is_ascii_digit())?;
                let (digits, zone) = rest.split_at_checked(end)?;
                (fraction_of(digits)?, zone)
            }
            None => (0, rest),
        };
        let seconds = days_of(year, month, day) * DAY_S + seconds - zone_of(zone)?;
        Some(Self {
            microseconds: seconds * SECOND_US + fraction,
        })
    }
}

fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// `2026-11-27`
fn date_of(text: &str) -> Option<(i64, i64, i64)> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || [year.len(), month.len(), day.len()] != [4, 2, 2] {
        return None;
    }
    let (year, month, day) = (number(year)?, number(month)?, number(day)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    (1..=days).contains(&day).then_some((year, month, day))
}

/// `13:45:59`, in seconds.
fn clock_of(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || [hour.len(), minute.len(), second.len()] != [2, 2, 2] {
        return None;
    }
    let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
    // A leap second counts as the one after it.
    (hour < 24 && minute < 60 && second <= 60).then(|| (hour * 60 + minute) * 60 + second)
}

/// Digits after the point, in microseconds.
fn fraction_of(digits: &str) -> Option<i64> {
    number(digits)?;
    let six: String = digits.chars().chain("000000".chars()).take(6).collect();
    number(&six)
}

/// `Z`, or `+02:00`, in seconds.
fn zone_of(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match text.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, text.strip_prefix('-')?),
    };
    let (hours, minutes) = rest.split_once(':')?;
    if [hours.len(), minutes.len()] != [2, 2] {
        return None;
    }
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 60 + minutes) * 60)
}

/// Days since 1970 (H. Hinnant, "chrono-compatible low-level date algorithms").
const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_of`].
const fn date_of_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// `2026-11-27T16:30:05.123456Z`
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.microseconds.div_euclid(SECOND_US);
        let fraction = self.microseconds.rem_euclid(SECOND_US);
        let (year, month, day) = date_of_days(seconds.div_euclid(DAY_S));
        let second = seconds.rem_euclid(DAY_S);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z"
        )
    }
}

/// What cannot be understood as a moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no moment: write one with its time zone (2026-11-27T16:30:00Z), a name that `mobifs \
     history` shows, or how long ago it was (-90s, -10min, -2h, -3d)"
)]
pub struct AtError(String);

/// The moment that a user means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(WallTime);

impl At {
    /// `2026-11-27T16:30:00+01:00`, the name of a snapshot, or `-10min`.
    ///
    /// # Errors
    /// [`AtError`].
    pub fn parse(text: &str, now: WallTime) -> Result<Self, AtError> {
        let ago = || Some(now.before(duration_of(text.strip_prefix('-')?)?));
        let named = || crate::Snapshot::parse(text).map(|snapshot| snapshot.time);
        let found = named().or_else(|| WallTime::parse(text)).or_else(ago);
        found.map(Self).ok_or_else(|| AtError(text.to_owned()))
    }

    /// The moment.
    pub const fn time(self) -> WallTime {
        self.0
    }
}

fn duration_of(text: &str) -> Option<Duration> {
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
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2026-11-27",
            "2026-11-27T16:30:05",
            "2026-11-27T16:30Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.5",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+01:60",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Zx",
            "２026-01-01T00:00:00Z",
            "yesterday",
            "-10",
            "-min",
            "-10 parsecs",
            "10min",
            "-99999999999999999999d",
        ] {
            let now = WallTime::now();
            let error = At::parse(text, now).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no moment")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_moment_can_be_so_long_ago() {
        let now = WallTime::parse("2026-11-27T16:30:05Z").unwrap();
        for (text, wanted) in [
            ("-90s", "2026-11-27T16:28:35.000000Z"),
            ("-10min", "2026-11-27T16:20:05.000000Z"),
            ("-2h", "2026-11-27T14:30:05.000000Z"),
            ("-3 d", "2026-11-24T16:30:05.000000Z"),
            (
                "2026-11-27T16:00:00.000001Z-inexact",
                "2026-11-27T16:00:00.000001Z",
            ),
        ] {
            let at = At::parse(text, now).unwrap();
            assert_eq!(at.time().to_string(), wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(microseconds in -60_000_000_000_000_000..250_000_000_000_000_000_i64) {
            let time = WallTime { microseconds };
            prop_assert_eq!(WallTime::parse(&time.to_string()), Some(time));
        }

        #[test]
        fn names_are_in_the_order_of_time(one in 0..250_000_000_000_000_000_i64, by in 1..i64::from(u32::MAX)) {
            let (one, other) = (WallTime { microseconds: one }, WallTime { microseconds: one + by });
            prop_assert!(one.to_string() < other.to_string());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _read = At::parse(&text, WallTime::now());
        }
    }
}
