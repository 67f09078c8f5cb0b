//! Memory that a process shares with those that it forks, and that outlives each of them.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::FromZeros;

/// A value in shared memory, zeros at first. A forked process has the same one.
///
/// Other processes change it as other threads do. So there are only shared references to it, and its type, which is
/// [`Sync`], says what changes behind them.
pub(crate) struct SharedPage<T> {
    start: NonNull<T>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and any thread may have references to a `Sync` value.
unsafe impl<T: Sync> Send for SharedPage<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedPage<T> {}

impl<T: FromZeros + Sync> SharedPage<T> {
    pub(crate) fn create() -> Result<Self, Errno> {
        const {
            assert!(size_of::<T>() > 0, "the kernel maps no less than a byte");
            assert!(
                align_of::<T>() <= 4096,
                "a mapping is aligned to pages, which are no smaller"
            );
        }
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel finds room.
        let start = unsafe { mmap_anonymous(null_mut(), size_of::<T>(), both, MapFlags::SHARED) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start })
    }
}

impl<T> Deref for SharedPage<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `create` has made the mapping, which is aligned, as long as the type, and full of zeros at first,
        // which are a value of it. It lives as long as this value. No process has a reference by which it may be
        // changed.
        unsafe { self.start.as_ref() }
    }
}

impl<T> fmt::Debug for SharedPage<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("SharedPage").finish_non_exhaustive()
    }
}

impl<T> Drop for SharedPage<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference outlives it.
        let _gone = unsafe { munmap(self.start.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::{WaitOptions, waitpid};

    use super::*;
    use crate::background::{Forked, exit, fork};

    #[test]
    fn what_a_forked_process_writes_is_there_when_it_has_ended() {
        let page = SharedPage::<[AtomicU32; 2048]>::create().unwrap();
        assert!(page.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        let child = match fork().unwrap() {
            Forked::Child => {
                page[2047].store(7, Ordering::Release);
                exit(0);
            }
            Forked::Parent(child) => child,
        };
        waitpid(Some(child), WaitOptions::empty()).unwrap();
        assert_eq!(page[2047].load(Ordering::Acquire), 7);
    }
}
