//! Dirty tracking for the restart image ([`crate::persist`]): which records of it are not up to
//! date.
//!
//! The containers here let nothing be changed without marking its key as unsaved, so that no
//! operation can forget to. Where no restart image is kept they mark nothing.

use alloc::vec::Vec;

/// Room for so many keys stays allocated.
const KEPT_KEYS: usize = 64;

/// Keys of what changed since the last save, each perhaps more than once.
#[derive(Debug)]
pub(crate) struct UnsavedKeys<K> {
    is_on: bool,
    keys: Vec<K>,
}

impl<K> UnsavedKeys<K> {
    pub(crate) const fn new(is_on: bool) -> Self {
        Self {
            is_on,
            keys: Vec::new(),
        }
    }

    pub(crate) fn mark(&mut self, key: K) {
        if self.is_on {
            self.keys.push(key);
        }
    }

    /// Whether changes are tracked at all.
    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<K: Ord> UnsavedKeys<K> {
    /// All keys, each once and in order. They are to be given to [`UnsavedKeys::recycle`].
    pub(crate) fn take(&mut self) -> Vec<K> {
        let mut keys = core::mem::take(&mut self.keys);
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        keys
    }

    /// The taken keys are saved: their memory is used again, if it is not much.
    pub(crate) fn recycle(&mut self, mut keys: Vec<K>) {
        if self.keys.is_empty() && keys.capacity() <= KEPT_KEYS {
            keys.clear();
            self.keys = keys;
        }
    }
}
