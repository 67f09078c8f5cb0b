//! Which events must have ended before another may begin.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::model::Event;

/// Which events have ended.
#[derive(Debug)]
struct Progress {
    /// By place in the order of ends.
    has_ended: Vec<bool>,
    /// All before this place have ended.
    ended: usize,
    is_given_up: bool,
}

/// The order of a trace's events.
#[derive(Debug)]
pub(super) struct Order {
    /// The place of each event in the order of ends.
    place: Vec<usize>,
    /// How many events had ended when each event began.
    needed: Vec<usize>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Order {
    pub(super) fn of(events: &[Event]) -> Self {
        let end_ns = |event: &Event| event.time.0.saturating_add(event.duration_ns);
        let mut by_end: Vec<usize> = (0..events.len()).collect();
        by_end.sort_by_key(|&index| (end_ns(&events[index]), index));
        let mut place = vec![0; events.len()];
        for (at, &index) in by_end.iter().enumerate() {
            place[index] = at;
        }
        // Ends at the very moment of a beginning count as before, but only of earlier events.
        let mut needed = Vec::with_capacity(events.len());
        let mut ended = 0;
        for (index, event) in events.iter().enumerate() {
            while by_end
                .get(ended)
                .is_some_and(|&other| other < index && end_ns(&events[other]) <= event.time.0)
            {
                ended += 1;
            }
            needed.push(ended);
        }
        Self {
            place,
            needed,
            progress: Mutex::new(Progress {
                has_ended: vec![false; events.len()],
                ended: 0,
                is_given_up: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits until an event may begin; false if the replay was given up.
    pub(super) fn wait(&self, index: usize) -> bool {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let waits =
            |progress: &mut Progress| progress.ended < self.needed[index] && !progress.is_given_up;
        let progress = self.changed.wait_while(progress, waits);
        !progress.unwrap_or_else(PoisonError::into_inner).is_given_up
    }

    /// An event has ended; how many of the earliest have.
    pub(super) fn end(&self, index: usize) -> usize {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.has_ended[self.place[index]] = true;
        let before = progress.ended;
        while progress.has_ended.get(progress.ended) == Some(&true) {
            progress.ended += 1;
        }
        let ended = progress.ended;
        drop(progress);
        if ended != before {
            self.changed.notify_all();
        }
        ended
    }

    /// Wakes all waiting threads, which then give up.
    pub(super) fn give_up(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.is_given_up = true;
        drop(progress);
        self.changed.notify_all();
    }
}
