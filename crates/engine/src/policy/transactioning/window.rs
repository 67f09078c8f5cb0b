//! The line through the last k points, fitted incrementally.

use alloc::boxed::Box;

/// Fewest points that have a slope.
pub const WINDOW_POINTS_MIN: usize = 2;
/// Most points of a window: the sums stay within 64 bits.
pub const WINDOW_POINTS_MAX: usize = 1024;

/// A sliding window over a curve whose points are one apart, with the sums of a least
/// squares fit through them.
///
/// x counts from 0 at the oldest point, so sliding takes one from the x of every point
/// that stays. Integers only: nothing drifts, and every machine gets the same.
///
/// Values must lie between 0 and 2^27; then Σxy of 1,024 points stays below 2^46, and
/// the numerator below 2^57.
#[derive(Clone, Debug)]
pub struct FitWindow {
    /// A ring; the oldest value is at `next` once it is full.
    values: Box<[i64]>,
    next: usize,
    is_full: bool,
    sum_y: i64,
    sum_xy: i64,
}

impl FitWindow {
    /// A window of `points` points, brought into [`WINDOW_POINTS_MIN`] ..=
    /// [`WINDOW_POINTS_MAX`].
    pub fn new(points: usize) -> Self {
        let points = points.clamp(WINDOW_POINTS_MIN, WINDOW_POINTS_MAX);
        Self {
            values: alloc::vec![0; points].into_boxed_slice(),
            next: 0,
            is_full: false,
            sum_y: 0,
            sum_xy: 0,
        }
    }

    /// Adds a point; the oldest goes if the window is full.
    pub fn push(&mut self, y: i64) {
        let last = self.values.len() - 1;
        let slot = &mut self.values[self.next];
        if self.is_full {
            let staying = self.sum_y - *slot;
            self.sum_xy += last as i64 * y - staying;
            self.sum_y = staying + y;
        } else {
            self.sum_xy += self.next as i64 * y;
            self.sum_y += y;
            self.is_full = self.next == last;
        }
        *slot = y;
        self.next = if self.next == last { 0 } else { self.next + 1 };
    }

    /// The slope's numerator k·Σxy − Σx·Σy; none before the window is full.
    pub fn slope_numerator(&self) -> Option<i64> {
        let points = self.values.len() as i64;
        let sum_x = points * (points - 1) / 2;
        self.is_full
            .then(|| points * self.sum_xy - sum_x * self.sum_y)
    }

    /// The slope's denominator k·Σx² − (Σx)² = k²·(k² − 1) / 12.
    pub fn slope_denominator(&self) -> i64 {
        let square = (self.values.len() * self.values.len()) as i64;
        square * (square - 1) / 12
    }
}
