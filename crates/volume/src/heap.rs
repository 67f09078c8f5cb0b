//! Giving memory that is free inside the process back to the system.
//!
//! What the engine holds comes and goes in pages, between them lie small allocations that
//! live long. So the C library's heap stays as large as it ever was, although most of it is
//! free: on a device with little memory that is other programs' memory. The library gives
//! the free pages inside the heap back only when it is asked to.

use mobifs_base::MonotonicNs;

/// Less than this is not worth a walk over the heap, which takes about 10 ms for 300 MB.
const WORTH_BYTES: u64 = 32 << 20;
/// How much is worth a walk when work ends: nothing waits for the walk then, and it may be the last one for long.
const WORTH_AT_REST_BYTES: u64 = 16 << 20;
/// While there is work, memory is returned no more often than this.
const BUSY_INTERVAL_MS: u64 = 5_000;

/// What the process is doing when its memory is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Load {
    /// Something was committed since the last look.
    Busy,
    /// Nothing was, but something waits to be committed or applied.
    Quiet,
    /// Nothing waits.
    #[default]
    AtRest,
}

/// Tracks how much memory the process has beyond what it uses.
#[derive(Debug, Default)]
pub(crate) struct HeapWatch {
    /// The excess when memory was last returned, or the least since: the program itself, and what
    /// could not be returned.
    floor_bytes: u64,
    given_back_at: MonotonicNs,
    /// The load at the last check.
    load: Load,
}

impl HeapWatch {
    /// Gives memory back if that is worth it; to be called with the bytes that the engine and the
    /// store use.
    pub(crate) fn sample(&mut self, held_bytes: u64, load: Load, now: MonotonicNs) {
        if self.is_due(resident_bytes(), held_bytes, load, now) {
            give_back();
            self.given_back(resident_bytes(), held_bytes, now);
        }
    }

    fn is_due(
        &mut self,
        resident_bytes: u64,
        held_bytes: u64,
        load: Load,
        now: MonotonicNs,
    ) -> bool {
        let beyond_bytes = resident_bytes.saturating_sub(held_bytes);
        self.floor_bytes = self.floor_bytes.min(beyond_bytes);
        let is_calmer = load != Load::Busy && load != self.load;
        self.load = load;
        let is_worth_it = beyond_bytes - self.floor_bytes >= WORTH_BYTES;
        if load == Load::Busy {
            return is_worth_it && now.ms_since(self.given_back_at) >= BUSY_INTERVAL_MS;
        }
        // Memory that could not be returned under load, because every page had small allocations in
        // use, mostly can be now.
        is_worth_it || is_calmer && beyond_bytes >= WORTH_AT_REST_BYTES
    }

    fn given_back(&mut self, resident_bytes: u64, held_bytes: u64, now: MonotonicNs) {
        self.floor_bytes = resident_bytes.saturating_sub(held_bytes);
        self.given_back_at = now;
    }
}

/// Memory of this process that is not shared with others; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut fields = text.split(' ').map(|field| field.parse().unwrap_or(0_u64));
    let (resident, shared) = (fields.nth(1).unwrap_or(0), fields.next().unwrap_or(0));
    resident.saturating_sub(shared) * page_bytes()
}

/// Asked of the C library: rustix would look into the kernel's code in the process for it, which
/// ends a program that runs under valgrind.
#[expect(unsafe_code, reason = "no safe call asks the C library for this")]
fn page_bytes() -> u64 {
    // SAFETY: it takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(0)
}

/// Has the C library keep no more than a few heaps, where it can; to be called before there are
/// threads. It would keep up to eight for each CPU, and returns little of each: 70 MB of a
/// daemon at rest on two CPUs. A few are enough for threads that mostly wait for the engine.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no crate wraps this call")]
pub fn keep_few_heaps() {
    const HEAPS_MAX: libc::c_int = 4;
    // SAFETY: it sets a number that malloc looks at. An old library refuses, which changes
    // nothing.
    let _set = unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX) };
}

/// Other C libraries are left as they are.
#[cfg(not(target_env = "gnu"))]
pub fn keep_few_heaps() {}

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
    fn memory_is_given_back_when_it_is_worth_it_and_helps() {
        let mut watch = HeapWatch::default();
        let mut is_due = |resident_mib: u64, held_mib: u64| {
            watch.is_due(resident_mib << 20, held_mib << 20, Load::Quiet, at_ms(0))
        };
        assert!(!is_due(110, 100));
        assert!(is_due(110, 0));
        // 50 MiB cannot be returned: no reason to try for ever.
        watch.given_back(50 << 20, 0, at_ms(0));
        let mut is_due = |resident_mib: u64, held_mib: u64| {
            watch.is_due(resident_mib << 20, held_mib << 20, Load::Quiet, at_ms(0))
        };
        assert!(!is_due(80, 0));
        assert!(is_due(90, 1));
        // Meanwhile they could.
        assert!(!is_due(10, 0));
        assert!(is_due(50, 0));
    }

    fn at_ms(ms: u64) -> MonotonicNs {
        MonotonicNs(ms * 1_000_000)
    }

    /// Regression: what could not be returned once was never tried again. A daemon that had
    /// made and deleted 200,000 files with a budget of 16 MiB kept 110 MiB, of which it used 10.
    #[test]
    fn whenever_work_ends_memory_is_given_back() {
        let mut watch = HeapWatch::default();
        let mut is_due = |load| watch.is_due(80 << 20, 0, load, at_ms(0));
        assert!(!is_due(Load::Busy));
        assert!(is_due(Load::Quiet));
        watch.given_back(70 << 20, 0, at_ms(0));
        let mut is_due = |load| watch.is_due(80 << 20, 0, load, at_ms(0));
        assert!(!is_due(Load::Quiet), "it was tried");
        assert!(is_due(Load::AtRest), "less is in use");
        assert!(!is_due(Load::AtRest));
        assert!(!is_due(Load::Busy));
        assert!(is_due(Load::Quiet));
    }

    #[test]
    fn while_there_is_work_memory_is_given_back_now_and_then() {
        let mut watch = HeapWatch::default();
        watch.given_back(10 << 20, 0, at_ms(1000));
        assert!(!watch.is_due(90 << 20, 0, Load::Busy, at_ms(1000 + BUSY_INTERVAL_MS - 1)));
        assert!(watch.is_due(90 << 20, 0, Load::Busy, at_ms(1000 + BUSY_INTERVAL_MS)));
    }

    /// Regression: after a gigabyte had gone through a mount, hundreds of megabytes stayed
    /// allocated in the process.
    #[cfg(target_env = "gnu")]
    #[test]
    fn free_pages_between_living_ones_are_given_back() {
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
