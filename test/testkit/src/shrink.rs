//! The shrinker: makes what fails as short as it gets.

use std::mem;

/// Leaves pieces out of a list: first halves, at last single items, until no single item can be left
/// out. The caller says of each candidate whether what was left out of it mattered.
#[derive(Clone, Debug)]
pub struct Pieces<T> {
    items: Vec<T>,
    /// What the last step left out.
    left_out: Vec<T>,
    position: usize,
    piece: usize,
    /// Something was left out permanently in this pass.
    progress: bool,
}

impl<T> Pieces<T> {
    /// Nothing is left out yet.
    pub const fn new(items: Vec<T>) -> Self {
        let piece = items.len().div_ceil(2);
        Self {
            items,
            left_out: Vec::new(),
            position: 0,
            piece,
            progress: false,
        }
    }

    /// The candidate.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// The piece that was left out last did not matter and stays out; leaves the next piece out.
    /// False at the end.
    pub fn stays_out(&mut self) -> bool {
        self.progress |= !self.left_out.is_empty();
        self.left_out.clear();
        self.leave_out_next()
    }

    /// The piece that was left out last mattered and is put back; leaves the next piece out. False
    /// at the end.
    pub fn comes_back(&mut self) -> bool {
        let came_back = self.left_out.len();
        let at = self.position;
        self.items.splice(at..at, self.left_out.drain(..));
        self.position += came_back;
        came_back > 0 && self.leave_out_next()
    }

    fn leave_out_next(&mut self) -> bool {
        if self.position >= self.items.len() {
            if self.piece <= 1 && !self.progress {
                return false;
            }
            self.piece = self.piece.div_ceil(2).max(1);
            self.position = 0;
            self.progress = false;
        }
        let end = (self.position + self.piece).min(self.items.len());
        self.left_out = self.items.drain(self.position..end).collect();
        !self.left_out.is_empty()
    }
}

/// Shortens a list that fails, to one of which no item can be left out. `fails` is asked of shorter
/// lists; the order of the items stays.
pub fn shrink<T>(items: &mut Vec<T>, mut fails: impl FnMut(&[T]) -> bool) {
    let mut pieces = Pieces::new(mem::take(items));
    let mut more = pieces.stays_out();
    while more {
        more = if fails(pieces.items()) {
            pieces.stays_out()
        } else {
            pieces.comes_back()
        };
    }
    *items = pieces.items;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_ends_with_exactly_what_matters() {
        for length in [1, 2, 3, 17, 100] {
            for (a, b) in [(0, 0), (0, length - 1), (length / 2, length - 1)] {
                let mut items: Vec<usize> = (0..length).collect();
                shrink(&mut items, |left| left.contains(&a) && left.contains(&b));
                let expected = if a == b { vec![a] } else { vec![a, b] };
                assert_eq!(items, expected, "{length}");
            }
        }
    }

    #[test]
    fn a_list_that_fails_without_any_item_becomes_empty() {
        let mut items = vec![1, 2, 3];
        shrink(&mut items, |_| true);
        assert!(items.is_empty());
        shrink(&mut items, |_| true);
        assert!(items.is_empty());
    }

    #[test]
    fn a_list_of_which_nothing_can_be_left_out_stays() {
        let mut items: Vec<u32> = (0..9).collect();
        shrink(&mut items, |left| left.len() == 9);
        assert_eq!(items, (0..9).collect::<Vec<_>>());
    }
}
