//! How fast, how much, and whether to go on: asked before each slice of a move.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::fstatvfs;

use crate::device::Device;
use crate::error::DefragError;
use crate::options::{Mode, Options};
use crate::report::Stopped;

/// What moves between two questions, unless one piece is longer; a longer piece waits so often within it.
pub(crate) const SLICE_BYTES_MAX: u64 = 1 << 20;
/// While it waits it looks so often whether it is to end, or others need room.
const LOOK: Duration = Duration::from_millis(100);

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on.
    Move,
    /// End here.
    Stop,
    /// Other programs need the room that is kept.
    GiveRoom,
}

/// Free room that others are left, at least.
pub(crate) struct Watch {
    pub(crate) opened: OwnedFd,
    pub(crate) least_bytes: u64,
}

impl Watch {
    /// What is free for others now; all where the kernel does not say it.
    pub(crate) fn free_bytes(&self) -> u64 {
        let about = fstatvfs(&self.opened);
        about.map_or(u64::MAX, |room| room.f_bavail.saturating_mul(room.f_frsize))
    }

    fn is_short(&self) -> bool {
        self.free_bytes() < self.least_bytes
    }
}

pub(crate) struct Pace<'a> {
    rate: Option<u64>,
    most: Option<u64>,
    is_remapping: bool,
    device: Option<&'a Device>,
    is_cancelled: &'a dyn Fn() -> bool,
    pub(crate) watch: Option<Watch>,
    moved_bytes: u64,
    not_before: Instant,
    stopped: Option<Stopped>,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(
        options: &Options,
        device: Option<&'a Device>,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            rate: options.rate_bytes,
            most: options.flash_writes_max_bytes,
            is_remapping: options.mode == Mode::Remap,
            device,
            is_cancelled,
            watch: None,
            moved_bytes: 0,
            not_before: Instant::now(),
            stopped: None,
        }
    }

    pub(crate) const fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    pub(crate) const fn stop(&mut self, why: Stopped) {
        self.stopped = Some(why);
    }

    /// How much moves at a time, in whole blocks: an eighth of a second's share.
    pub(crate) fn slice_bytes(&self, block_bytes: u64) -> u64 {
        let slice = self.rate.map_or(SLICE_BYTES_MAX, |rate| rate / 8);
        let slice = slice.min(SLICE_BYTES_MAX);
        (slice - slice % block_bytes).max(block_bytes)
    }

    /// Whether there is a limit on what moves.
    pub(crate) const fn has_limit(&self) -> bool {
        self.rate.is_some() || self.most.is_some()
    }

    /// Whether so many bytes more may move. It waits first, as long as the rate asks for it.
    pub(crate) fn next(&mut self, bytes: u64) -> Result<Next, DefragError> {
        if self.wait() == Next::GiveRoom {
            return Ok(Next::GiveRoom);
        }
        if (self.is_cancelled)() {
            self.stop(Stopped::Cancelled);
        } else if let Some(most) = self.most {
            let programmed = match self.device {
                Some(device) => device.since()?.programmed_bytes,
                None => 0,
            };
            // What was copied may wait in memory, where the device has not seen it.
            let copies = !self.is_remapping && self.moved_bytes.saturating_add(bytes) > most;
            if copies || programmed >= most {
                self.stop(Stopped::FlashWrites);
            }
        }
        Ok(if self.stopped.is_some() {
            Next::Stop
        } else {
            Next::Move
        })
    }

    /// Bytes have moved, which the rate counts.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
        if let Some(rate) = self.rate.filter(|&rate| rate > 0) {
            let took = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.not_before = self.not_before.max(Instant::now()) + took;
        }
    }

    /// Holds the rate, unless it is to end or others need room.
    pub(crate) fn wait(&self) -> Next {
        loop {
            if (self.is_cancelled)() {
                return Next::Stop;
            }
            if self.watch.as_ref().is_some_and(Watch::is_short) {
                return Next::GiveRoom;
            }
            let left = self.not_before.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Move;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
