//! Tests that make mount namespaces run alone: a new namespace has a copy of every mount of this
//! machine, and a filesystem lives as long as one of its copies, also when another test unmounts it.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
struct State {
    /// Fixtures of all tests.
    fixtures: usize,
    /// A test runs alone, or waits until it can.
    is_claimed: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    fixtures: 0,
    is_claimed: false,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// Fixtures of this thread's test, and whether it runs alone: then it need not wait.
    static MINE: Cell<usize> = const { Cell::new(0) };
}

fn state() -> MutexGuard<'static, State> {
    // A test that failed has not left it in between.
    STATE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn wait_while(condition: impl Fn(&State) -> bool) -> MutexGuard<'static, State> {
    let waited = CHANGED.wait_while(state(), |state| condition(state));
    waited.unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As long as it lives, no test runs alone but its own.
pub(crate) struct Shared(());

impl Shared {
    pub(crate) fn new() -> Self {
        // A test that has a fixture already keeps others from running alone by that one.
        let may_enter_at_once = MINE.get() > 0;
        let mut state = wait_while(|state| state.is_claimed && !may_enter_at_once);
        state.fixtures += 1;
        MINE.set(MINE.get() + 1);
        Self(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        state().fixtures -= 1;
        MINE.set(MINE.get() - 1);
        CHANGED.notify_all();
    }
}

/// As long as it lives, no other test has a fixture. Made before the test's own.
pub(crate) struct Alone(());

impl Alone {
    pub(crate) fn new() -> Self {
        assert_eq!(MINE.get(), 0, "a fixture was made before");
        wait_while(|state| state.is_claimed).is_claimed = true;
        drop(wait_while(|state| state.fixtures > 0));
        MINE.set(1);
        Self(())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        MINE.set(MINE.get() - 1);
        state().is_claimed = false;
        CHANGED.notify_all();
    }
}
