//! What keeps an object in memory.

/// Counts of what uses an object: as long as one of them is not 0, it stays in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    lookups: u64,
    opens: u64,
    transactions: u64,
    children: u64,
}

impl Usage {
    /// The usage in a restart image, which has only what the kernel and programs refer to; the rest
    /// follows from other records of it.
    pub(crate) fn restored(lookups: u64, opens: u64) -> Self {
        Self {
            lookups,
            opens,
            ..Self::default()
        }
    }

    /// References from look-ups, which the kernel gives back.
    pub(crate) const fn lookups(&self) -> u64 {
        self.lookups
    }

    /// Open handles.
    pub(crate) const fn opens(&self) -> u64 {
        self.opens
    }

    /// Uncommitted transactions that mention the object.
    pub(crate) const fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Objects in memory whose home this one is.
    pub(crate) const fn children(&self) -> u64 {
        self.children
    }

    /// Whether the kernel or a program refers to the object.
    pub(crate) const fn is_referenced(&self) -> bool {
        self.lookups > 0 || self.opens > 0
    }

    /// Whether an uncommitted transaction or another object in memory needs it.
    pub(crate) const fn is_needed(&self) -> bool {
        self.transactions > 0 || self.children > 0
    }

    /// A look-up returned the object.
    pub(crate) fn look_up(&mut self) {
        self.lookups = self.lookups.saturating_add(1);
    }

    /// The kernel gave back `count` references. What it says is not relied on: one that gives back
    /// too many has none left.
    pub(crate) fn forget(&mut self, count: u64) {
        self.lookups = self.lookups.saturating_sub(count);
    }

    /// A program opened the object.
    pub(crate) fn open(&mut self) {
        self.opens = self.opens.saturating_add(1);
    }

    /// A handle was closed; of the kernel, as [`Usage::forget`].
    pub(crate) fn close(&mut self) {
        self.opens = self.opens.saturating_sub(1);
    }

    /// A transaction mentions the object from now on.
    pub(crate) fn hold(&mut self) {
        self.transactions = self.transactions.saturating_add(1);
    }

    /// A transaction that mentioned it is committed, or has joined another one.
    pub(crate) fn release_hold(&mut self) {
        debug_assert!(self.transactions > 0, "a transaction held the object");
        self.transactions = self.transactions.saturating_sub(1);
    }

    /// Another object has this one as its home from now on.
    pub(crate) fn add_child(&mut self) {
        self.children = self.children.saturating_add(1);
    }

    /// An object left memory, or moved to another home.
    pub(crate) fn remove_child(&mut self) {
        debug_assert!(self.children > 0, "the home counted the object");
        self.children = self.children.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_used_until_everything_is_given_back() {
        let mut usage = Usage::restored(1, 0);
        usage.look_up();
        usage.open();
        assert!(usage.is_referenced() && !usage.is_needed());
        usage.forget(2);
        assert!(usage.is_referenced());
        usage.close();
        assert!(!usage.is_referenced());
        usage.hold();
        usage.add_child();
        usage.release_hold();
        assert!(usage.is_needed());
        usage.remove_child();
        assert!(!usage.is_needed());
    }

    #[test]
    fn a_kernel_that_forgets_too_much_has_no_reference() {
        let mut usage = Usage::restored(2, 1);
        usage.forget(u64::MAX);
        usage.close();
        usage.close();
        assert!(!usage.is_referenced());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a transaction held the object")]
    fn a_transaction_releases_only_what_it_held() {
        Usage::default().release_hold();
    }
}
