//! Dirty tracking for the restart image ([`crate::persist`]): which records of it are not up to
//! date.
//!
//! The containers here mark the key of every changed value as unsaved, so that no operation can
//! forget to. Where no restart image is kept they mark nothing.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A value with a record of its own, which is not up to date once the value may have changed.
#[derive(Debug, Default)]
pub(crate) struct Tracked<T> {
    value: T,
    is_changed: bool,
}

impl<T> Tracked<T> {
    /// A value whose record is up to date, or which has none because it is empty.
    pub(crate) const fn saved(value: T) -> Self {
        Self {
            value,
            is_changed: false,
        }
    }

    /// Marks it as unsaved.
    pub(crate) const fn mark_unsaved(&mut self) {
        self.is_changed = true;
    }

    /// Whether it is unsaved; from now on it counts as saved.
    pub(crate) const fn take_unsaved(&mut self) -> bool {
        core::mem::replace(&mut self.is_changed, false)
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Tracked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.is_changed = true;
        &mut self.value
    }
}

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
