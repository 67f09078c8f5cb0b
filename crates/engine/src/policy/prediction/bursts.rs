//! Detects a user by the requests of programs, on machines without input devices.

use mobifs_base::MonotonicNs;

use super::TOUCH_GAP_NS;

/// A burst follows a pause of this length, in nanoseconds. What programs do by themselves (a poll,
/// a timer) comes more often than that or is no burst, and work that goes on by itself (a build, a
/// backup) has no such pauses.
pub const BURST_PAUSE_NS: u64 = 1_000_000_000;
/// Requests in a burst. A program that polls a file makes a handful of them; a person
/// starting a program, listing a directory or opening a page makes dozens.
pub const BURST_REQUESTS: u32 = 16;
/// They come within this, in nanoseconds: what belongs to one operation of a user.
pub const BURST_NS: u64 = TOUCH_GAP_NS;

/// Finds bursts of requests that a user waits for: names looked up, files opened and read.
#[derive(Clone, Debug, Default)]
pub struct Bursts {
    last_at: Option<MonotonicNs>,
    /// What began after the last pause: when, and how many requests; none if it is decided.
    begun: Option<(MonotonicNs, u32)>,
}

impl Bursts {
    /// A request came; true if it makes a burst of those before it, which stands for an
    /// operation of a user.
    pub fn request(&mut self, at: MonotonicNs) -> bool {
        let before = self.last_at.replace(at);
        if before.is_none_or(|before| at.0.saturating_sub(before.0) >= BURST_PAUSE_NS) {
            self.begun = Some((at, 1));
            return false;
        }
        let Some((began_at, requests)) = &mut self.begun else {
            return false;
        };
        if at.0.saturating_sub(began_at.0) > BURST_NS {
            self.begun = None;
            return false;
        }
        *requests += 1;
        if *requests < BURST_REQUESTS {
            return false;
        }
        self.begun = None;
        true
    }
}
