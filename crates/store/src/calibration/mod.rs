//! What was measured of the device below a store: from which size on a write with a flush beats one
//! durable write (`docs/DESIGN.md#a-commit-is-one-sequential-write`).
//!
//! The threshold that commits use is in the superblock. The times that led to it, and the device that
//! they were measured on, are in `.mobifs/calibration` ([`file`]), so that a store on another device
//! is measured again, and people can see why.

pub(crate) mod file;
pub(crate) mod measure;
pub(crate) mod shared;

/// Identities of devices are cut to this length.
pub(crate) const DEVICE_BYTES_MAX: usize = 512;
/// Largest size measured; larger transactions are always written with a flush.
pub(crate) const LARGEST_BYTES: u64 = 256 * 1024;

/// How long writing so much to the journal takes, in each of the two ways to make it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTimes {
    /// Size of the write.
    pub bytes: u64,
    /// One durable (FUA) write: the median, in ns.
    pub durable_ns: u64,
    /// A write and a flush: the median, in ns.
    pub flushed_ns: u64,
}

/// What was measured of a device, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The device ([`device_identity`](crate::lower::Lower::device_identity)); none if it was not
    /// known.
    pub device: Option<String>,
    /// By size, the smallest first.
    pub sizes: Vec<WriteTimes>,
    /// Transactions up to this size are one durable write; 0: none is.
    pub direct_bytes_max: u64,
}

impl Calibration {
    /// The largest durable write of a new store whose device is not measured yet: S3 finds FUA faster below this.
    pub const UNMEASURED_BYTES_MAX: u64 = 128 * 1024;

    pub(crate) fn of(device: Option<String>, sizes: Vec<WriteTimes>) -> Self {
        Self {
            device: device.map(shortened),
            direct_bytes_max: choose(&sizes),
            sizes,
        }
    }

    /// Whether this was measured on `device`. Where one of both is not known, only a known device
    /// counts as another one.
    fn is_of(&self, device: Option<&str>) -> bool {
        device.is_none_or(|device| self.device.as_deref() == Some(device))
    }

    /// Whether the journal had room for every size.
    fn has_all_sizes(&self) -> bool {
        self.sizes
            .last()
            .is_some_and(|times| times.bytes == LARGEST_BYTES)
    }

    /// One like others, for tests and fuzz targets.
    pub(crate) fn example(sizes: u32) -> Self {
        let sizes = (0..sizes).map(|n| WriteTimes {
            bytes: 4096 << n,
            durable_ns: 300_000 + 40_000 * u64::from(n),
            flushed_ns: 420_000,
        });
        Self::of(Some("disk \"Model\", serial 1".to_owned()), sizes.collect())
    }
}

/// An identity as the file can have it.
fn shortened(mut device: String) -> String {
    while device.len() > DEVICE_BYTES_MAX {
        device.pop();
    }
    device
}

/// The size up to which durable writes are to be used: the one with which writes of all the sizes
/// measured together cost the least, relative to what each costs at best. So a single outlier does
/// not decide.
pub(crate) fn choose(measured: &[WriteTimes]) -> u64 {
    let mut best_bytes = 0;
    let (mut gain, mut best_gain) = (0.0, 0.0);
    for times in measured {
        let (durable, flushed) = (times.durable_ns as f64, times.flushed_ns as f64);
        gain += (flushed - durable) / flushed.min(durable).max(1.0);
        // Of equal sizes the larger: it saves a command.
        if gain >= best_gain {
            (best_bytes, best_gain) = (times.bytes, gain);
        }
    }
    best_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(pairs: &[(u64, u64)]) -> Vec<WriteTimes> {
        let times = |(index, &(durable, flushed)): (usize, &(u64, u64))| WriteTimes {
            bytes: 4096 << index,
            durable_ns: durable * 1000,
            flushed_ns: flushed * 1000,
        };
        pairs.iter().enumerate().map(times).collect()
    }

    #[test]
    fn the_crossover_is_found() {
        assert_eq!(choose(&measured(&[(3, 5), (4, 5), (7, 6), (9, 7)])), 8192);
        assert_eq!(choose(&measured(&[(6, 5), (7, 6), (9, 7)])), 0);
        assert_eq!(choose(&measured(&[(5, 6), (5, 6), (5, 6)])), 16_384);
        assert_eq!(choose(&[]), 0);
    }

    #[test]
    fn one_disturbed_size_does_not_decide() {
        assert_eq!(choose(&measured(&[(9, 8), (3, 5), (4, 6), (9, 7)])), 16_384);
    }

    #[test]
    fn of_equals_the_durable_write_is_taken() {
        assert_eq!(choose(&measured(&[(5, 5), (6, 6)])), 8192);
        assert_eq!(choose(&measured(&[(0, 0)])), 4096, "a clock that stands");
    }

    #[test]
    fn another_device_is_one_that_is_known_and_differs() {
        let on = |device: Option<&str>| Calibration::of(device.map(Into::into), vec![]);
        assert!(on(Some("a")).is_of(Some("a")));
        assert!(!on(Some("a")).is_of(Some("b")));
        assert!(!on(None).is_of(Some("a")), "it may have been any");
        assert!(on(Some("a")).is_of(None) && on(None).is_of(None));
        let long = "ä".repeat(400);
        let kept = on(Some(&long)).device.unwrap();
        assert!(kept.len() <= DEVICE_BYTES_MAX && long.starts_with(&kept));
        assert!(!on(Some(&long)).is_of(Some("ä")));
    }
}
