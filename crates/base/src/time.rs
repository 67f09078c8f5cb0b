//! Wall-clock timestamps as files carry them, and the engine's own time line.

/// A file time: seconds since the Unix epoch (may be negative) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// 0 ..= 999,999,999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Builds a timestamp; nanoseconds are clamped below one second.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        let nanoseconds = if nanoseconds > 999_999_999 {
            999_999_999
        } else {
            nanoseconds
        };
        Self {
            seconds,
            nanoseconds,
        }
    }
}

/// A point on a monotonic time line, in nanoseconds from an arbitrary start. The
/// engine never reads a clock; its caller passes these in (real or virtual).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Milliseconds passed since `earlier`; zero if `earlier` is later.
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }

    /// The time `ms` milliseconds later.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }
}

/// A point on a simulation's time line, in nanoseconds since the simulated device was
/// first switched on. Nothing reads a clock for it: the caller of a model passes these
/// in and gets completion times back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualNs(pub u64);

impl VirtualNs {
    /// The start of the time line.
    pub const ZERO: Self = Self(0);

    /// This point, `nanoseconds` later; stops at the end of the time line.
    #[must_use]
    pub const fn plus_ns(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }

    /// This point, `microseconds` later; stops at the end of the time line.
    #[must_use]
    pub const fn plus_us(self, microseconds: u64) -> Self {
        self.plus_ns(microseconds.saturating_mul(1_000))
    }

    /// Nanoseconds passed since `earlier`; zero if `earlier` is later.
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
