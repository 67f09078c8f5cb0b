//! The interface of a device for its fronts (the file in the mount, the NBD server).

use thiserror::Error;

/// Unit of addresses and of tearing, in bytes.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Counts how often the device has been given power. A client uses the device within one power
/// cycle: after a cut it must connect again, as with a card that was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PowerCycle(pub(crate) u64);

/// What a front asks for. Offsets and lengths are in bytes and lie within the device;
/// those of writes and clears are multiples of [`SECTOR_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Read {
        offset: u64,
        bytes: usize,
    },
    /// `durable`: done only when it survives a cut, and then never torn (FUA).
    Write {
        offset: u64,
        data: &'a [u8],
        durable: bool,
    },
    Flush,
    /// The content is not needed any more and reads as zeros.
    Discard {
        offset: u64,
        bytes: u64,
        durable: bool,
    },
    /// Zeros are written.
    Zero {
        offset: u64,
        bytes: u64,
        durable: bool,
    },
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// The power failed before or during it.
    #[error("the device has no power")]
    NoPower,
    /// The request belongs to a power cycle before the last cut.
    #[error("the device had its power cut since; connect again")]
    Stale,
    /// The request lies outside the device or is not made of whole sectors.
    #[error("the request does not lie on whole sectors of the device")]
    Misplaced,
    /// The image file failed.
    #[error("the image file failed")]
    Medium,
}

/// Takes the result of one request, exactly once: the data of a read, nothing otherwise.
pub(crate) type Completion = Box<dyn FnOnce(Result<Vec<u8>, Refusal>) + Send>;

/// A device. Any number of threads call it at the same time.
pub(crate) trait Block: Send + Sync + 'static {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// The power cycle that is now, or comes with the next power-on.
    fn power_cycle(&self) -> PowerCycle;

    /// Carries out a request of a client of the power cycle `cycle`, and
    /// returns when the device would have been done with it. Does not wait for that.
    fn submit(&self, cycle: PowerCycle, request: Request<'_>, completion: Completion);
}
