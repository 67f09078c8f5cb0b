//! Open handles on objects of the lower filesystem that may be used again.

use std::collections::HashMap;
use std::sync::Arc;

use mobifs_base::ObjectId;

/// A cache of open handles; the least recently used are closed first.
#[derive(Debug)]
pub(crate) struct Handles<H> {
    open: HashMap<ObjectId, (u64, Arc<H>)>,
    clock: u64,
    /// Most handles that are kept, but one in any case.
    count_max: usize,
}

impl<H> Handles<H> {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            open: HashMap::new(),
            clock: 0,
            count_max,
        }
    }

    pub(crate) fn get(&mut self, id: ObjectId) -> Option<Arc<H>> {
        self.clock += 1;
        let (used, handle) = self.open.get_mut(&id)?;
        *used = self.clock;
        Some(Arc::clone(handle))
    }

    pub(crate) fn insert(&mut self, id: ObjectId, handle: Arc<H>) {
        if self.open.len() >= self.count_max {
            let ages = self.open.values().map(|(used, _)| *used).collect();
            if let Some(middle) = middle_of(ages) {
                self.open.retain(|_, (used, _)| *used > middle);
            }
        }
        self.clock += 1;
        self.open.insert(id, (self.clock, handle));
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        self.open.remove(&id);
    }

    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// Takes out the older half of those that nothing else refers to, at least one if there is one:
    /// to be dropped, which closes them.
    pub(crate) fn close_unused(&mut self) -> Vec<Arc<H>> {
        let is_unused = |handle: &Arc<H>| Arc::strong_count(handle) == 1;
        let unused = self.open.values().filter(|(_, handle)| is_unused(handle));
        let Some(middle) = middle_of(unused.map(|(used, _)| *used).collect()) else {
            return Vec::new();
        };
        let is_closed = |(used, handle): &mut (u64, Arc<H>)| *used <= middle && is_unused(handle);
        let closed = self.open.extract_if(|_, entry| is_closed(entry));
        closed.map(|(_, (_, handle))| handle).collect()
    }
}

/// The age up to which one half of them is; none if there are none.
fn middle_of(mut ages: Vec<u64>) -> Option<u64> {
    let at = ages.len() / 2;
    (!ages.is_empty()).then(|| *ages.select_nth_unstable(at).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count_max: usize, count: u64) -> Handles<u64> {
        let mut handles = Handles::new(count_max);
        for number in 0..count {
            handles.insert(ObjectId(number), Arc::new(number));
        }
        handles
    }

    fn kept(handles: &Handles<u64>) -> Vec<u64> {
        let mut kept: Vec<u64> = handles.open.keys().map(|id| id.0).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn no_more_handles_are_kept_than_allowed_and_the_newest_in_any_case() {
        assert_eq!(kept(&filled(4, 4)), [0, 1, 2, 3]);
        assert_eq!(kept(&filled(4, 5)), [3, 4]);
        assert_eq!(kept(&filled(1, 9)), [8]);
        assert_eq!(kept(&filled(0, 9)), [8]);
    }

    #[test]
    fn handles_in_use_stay_and_of_the_others_the_older_half_is_closed() {
        let mut handles = filled(8, 6);
        let used = [0, 3].map(|id| handles.get(ObjectId(id)).unwrap());
        assert_eq!(handles.close_unused().len(), 3);
        assert_eq!(kept(&handles), [0, 3, 5]);
        assert_eq!(handles.close_unused().len(), 1);
        assert!(handles.close_unused().is_empty());
        drop(used);
        assert_eq!(handles.close_unused().len(), 2);
        assert!(kept(&handles).is_empty());
    }
}
