//! Moments, as users mean them.

use crate::snapshot::Snapshot;
use crate::time::{WallTime, duration_of};

/// A text that cannot be understood as a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a time: write one with its time zone (2026-11-27T16:30:00Z), a name that `mobifs \
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
        let named = || Snapshot::parse(text).map(|snapshot| snapshot.time);
        let found = named().or_else(|| WallTime::parse(text)).or_else(ago);
        found.map(Self).ok_or_else(|| AtError(text.to_owned()))
    }

    /// The moment.
    pub const fn time(self) -> WallTime {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2026-11-27",
            "2026-11-27T16:30:05",
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
                error.starts_with(&format!("`{text}` is not a time")),
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
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _read = At::parse(&text, WallTime::now());
        }
    }
}
