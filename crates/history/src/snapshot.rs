//! One snapshot, and its name.

use std::ffi::OsString;

use crate::time::WallTime;

/// At the end of the name of a snapshot that may not be one point in time.
const INEXACT: &str = "-inexact";

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot {
    /// The moment whose state it has.
    pub time: WallTime,
    /// Whether it is one point in time: nothing has changed between the commit before it and
    /// itself.
    pub is_exact: bool,
    /// Its name says so, which anyone can give.
    has_exact_name: bool,
}

impl Snapshot {
    /// One that was taken here.
    pub(crate) const fn new(time: WallTime, is_exact: bool) -> Self {
        Self {
            time,
            is_exact,
            has_exact_name: is_exact,
        }
    }

    /// Another program has taken it, and nothing is known of what changed meanwhile.
    pub(crate) const fn doubt(&mut self) {
        self.is_exact = false;
    }

    /// Its name in the history.
    pub fn name(&self) -> OsString {
        let end = if self.has_exact_name { "" } else { INEXACT };
        format!("{}{end}", self.time).into()
    }

    /// Whether a user means it by this: its name, or the moment alone, as it is listed.
    pub fn has_name(&self, name: &str) -> bool {
        self.name() == name || WallTime::parse(name) == Some(self.time)
    }

    /// The snapshot of this name.
    pub fn parse(name: &str) -> Option<Self> {
        let (time, is_exact) = match name.strip_suffix(INEXACT) {
            Some(time) => (time, false),
            None => (name, true),
        };
        let time = WallTime::parse(time)?;
        let snapshot = Self::new(time, is_exact);
        // Names that only look similar are another program's.
        (snapshot.name() == name).then_some(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_when_and_whether_it_is_exact() {
        for (name, is_exact) in [
            ("2026-11-27T16:30:05.123456Z", true),
            ("2026-11-27T16:30:05.123456Z-inexact", false),
        ] {
            let snapshot = Snapshot::parse(name).unwrap();
            assert_eq!(snapshot.is_exact, is_exact);
            assert_eq!(snapshot.name(), name);
        }
    }

    #[test]
    fn one_is_named_by_its_name_or_its_moment() {
        let one = Snapshot::parse("2026-11-27T16:30:05.500000Z-inexact").unwrap();
        for name in [
            "2026-11-27T16:30:05.500000Z-inexact",
            "2026-11-27T16:30:05.500000Z",
            "2026-11-27T17:30:05.5+01:00",
        ] {
            assert!(one.has_name(name), "{name}");
        }
        for name in ["", "new", "-1d", "2026-11-27T16:30:05Z", "../x"] {
            assert!(!one.has_name(name), "{name}");
        }
    }

    #[test]
    fn names_of_others_are_none() {
        for name in [
            "new",
            "2026-11-27T16:30:05Z",
            "2026-11-27T16:30:05.123456Z-old",
            "",
        ] {
            assert_eq!(Snapshot::parse(name), None, "{name}");
        }
    }
}
