//! Giving memory that is free inside the process back to the system.
//!
//! What the engine holds comes and goes in pages, between them lie small allocations that
//! live long. So the C library's heap stays as large as it ever was, although most of it is
//! free: on a device with little memory that is other programs' memory. The library gives
//! the free pages inside the heap back only when it is asked to.

/// Less than this is not worth a walk over the heap, which takes about 10 ms for 300 MB.
const WORTH_BYTES: u64 = 32 << 20;

/// Watches how much is held and says when enough became free.
#[derive(Debug, Default)]
pub(crate) struct HeapWatch {
    /// The most that was held since memory was last given back.
    peak_bytes: u64,
}

impl HeapWatch {
    /// Takes a look: `held_bytes` are in use now. Whether memory should be given back,
    /// which is done in quiet times only.
    pub(crate) fn is_due(&mut self, held_bytes: u64, is_quiet: bool) -> bool {
        self.peak_bytes = self.peak_bytes.max(held_bytes);
        let is_due = is_quiet && self.peak_bytes - held_bytes >= WORTH_BYTES;
        if is_due {
            self.peak_bytes = held_bytes;
        }
        is_due
    }
}

/// Gives free pages of the heap back, where the C library can.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no crate wraps this call")]
pub(crate) fn give_back() {
    // SAFETY: it takes the locks that malloc and free take, and changes nothing that is
    // allocated; it may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other C libraries give memory back by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_in_quiet_times() {
        let mut watch = HeapWatch::default();
        assert!(!watch.is_due(100 << 20, true));
        assert!(!watch.is_due(1 << 20, false));
        assert!(watch.is_due(1 << 20, true));
        assert!(!watch.is_due(1 << 20, true));
        assert!(!watch.is_due(20 << 20, true));
        assert!(!watch.is_due(0, true));
    }

    /// Regression: after a gigabyte had gone through a mount, hundreds of megabytes stayed
    /// with the process for good.
    #[cfg(target_env = "gnu")]
    #[test]
    fn free_pages_between_living_ones_are_given_back() {
        let resident_bytes = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with("VmRSS:"))
                .unwrap();
            let kib = line.split_whitespace().nth(1).unwrap();
            kib.parse::<u64>().unwrap() * 1024
        };
        let before = resident_bytes();
        let (mut pages, mut small) = (Vec::new(), Vec::new());
        for number in 0..25_000 {
            pages.push(vec![1_u8; 4096].into_boxed_slice());
            if number % 100 == 0 {
                small.push(Box::new(1_u8));
            }
        }
        drop(pages);
        give_back();
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 50 << 20, "{grown} bytes are still there");
        drop(small);
    }
}
