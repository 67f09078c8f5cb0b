//! Trade-off point location: when to close a transaction (S0 §5.2).
//!
//! Every page write adds a point to the curve of the energy efficiency ratio
//! e = overwritten / written over the staleness s (pages written). A line is fitted
//! through the last 16 points; once it falls more steeply than the threshold, the
//! peak has passed. All arithmetic is on integers, so every machine decides alike.

/// Points in the window.
const WINDOW: usize = 16;
/// Fixed-point scale of e: 2^20 to a percent.
const SCALE_BITS: u32 = 20;
/// 16 Σx² − (Σx)² for x = 0 ..= 15: the denominator of the fitted slope.
const DENOMINATOR: i64 = 16 * 1240 - 120 * 120;
/// Σx for x = 0 ..= 15.
const SUM_X: i64 = 120;

/// Parameters of the policy; the defaults are the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TplParameters {
    /// Never close below this staleness, in pages.
    pub staleness_min_pages: u64,
    /// Always close at this staleness, in pages.
    pub staleness_max_pages: u64,
    /// Close when the slope falls below this, in millionths of a percent a page
    /// (published: −0.02 % a page).
    pub slope_min_micropercent: i64,
}

impl Default for TplParameters {
    fn default() -> Self {
        Self {
            staleness_min_pages: 128,
            staleness_max_pages: 25_600,
            slope_min_micropercent: -20_000,
        }
    }
}

/// The e curve of one open transaction.
#[derive(Clone, Debug, Default)]
pub struct Tpl {
    /// Pages written, overwritten ones included.
    written_pages: u64,
    /// Pages overwritten, or dropped by delete or truncate.
    overwritten_pages: u64,
    /// Last [`WINDOW`] values of e, as a ring.
    window: [i64; WINDOW],
    points: usize,
    sum_y: i64,
    sum_xy: i64,
}

impl Tpl {
    /// A curve whose points are lost, but not what they counted: the window fills anew.
    pub(crate) fn counted(written_pages: u64, overwritten_pages: u64) -> Self {
        Self {
            written_pages,
            overwritten_pages,
            ..Self::default()
        }
    }

    /// One page (or entry) was written; `overwritten` if this transaction had it.
    pub fn page_written(&mut self, overwritten: bool) {
        self.written_pages += 1;
        self.overwritten_pages += u64::from(overwritten);
        self.push(self.ratio());
    }

    /// Pages of this transaction were dropped by delete or truncate.
    pub fn pages_dropped(&mut self, count: u64) {
        // What is dropped was written here before, so e stays below 1.
        self.overwritten_pages = (self.overwritten_pages + count).min(self.written_pages);
    }

    /// Takes over what another transaction wrote, when two become one.
    pub fn absorb(&mut self, other: &Self) {
        self.written_pages += other.written_pages;
        self.overwritten_pages += other.overwritten_pages;
    }

    /// Staleness s, in pages.
    pub const fn written_pages(&self) -> u64 {
        self.written_pages
    }

    /// Overwritten pages o.
    pub const fn overwritten_pages(&self) -> u64 {
        self.overwritten_pages
    }

    /// Whether the transaction should close now.
    pub fn is_due(&self, parameters: &TplParameters) -> bool {
        if self.written_pages >= parameters.staleness_max_pages {
            return true;
        }
        self.written_pages >= parameters.staleness_min_pages
            && self.points >= WINDOW
            && self.slope_micropercent() < parameters.slope_min_micropercent
    }

    /// Slope of the fitted line, in millionths of a percent a page; 0 before the
    /// window is full.
    pub fn slope_micropercent(&self) -> i64 {
        if self.points < WINDOW {
            return 0;
        }
        let numerator = WINDOW as i64 * self.sum_xy - SUM_X * self.sum_y;
        let scaled = i128::from(numerator) * 1_000_000;
        (scaled / i128::from(DENOMINATOR) / (1 << SCALE_BITS)) as i64
    }

    fn ratio(&self) -> i64 {
        let percent = u128::from(self.overwritten_pages) * 100;
        ((percent << SCALE_BITS) / u128::from(self.written_pages.max(1))) as i64
    }

    /// Moves the window on by one: x counts from 0 at its oldest point, so sliding
    /// takes one from the x of every point that stays.
    fn push(&mut self, y: i64) {
        let slot = self.points % WINDOW;
        if self.points < WINDOW {
            self.sum_xy += self.points as i64 * y;
            self.sum_y += y;
        } else {
            let oldest = self.window[slot];
            let staying = self.sum_y - oldest;
            self.sum_xy += -staying + (WINDOW as i64 - 1) * y;
            self.sum_y = staying + y;
        }
        self.window[slot] = y;
        self.points += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted_slope_percent(values: &[f64]) -> f64 {
        let n = values.len() as f64;
        let (mut sx, mut sy, mut sxy, mut sxx) = (0.0, 0.0, 0.0, 0.0);
        for (x, y) in values.iter().enumerate() {
            let x = x as f64;
            sx += x;
            sy += y;
            sxy += x * y;
            sxx += x * x;
        }
        (n * sxy - sx * sy) / (n * sxx - sx * sx)
    }

    #[test]
    fn the_incremental_fit_is_the_least_squares_fit() {
        let mut tpl = Tpl::default();
        let mut history = alloc::vec::Vec::new();
        let (mut s, mut o) = (0.0, 0.0);
        for step in 0_u64..2_000 {
            let overwritten = (step * step) % 7 < 3;
            tpl.page_written(overwritten);
            s += 1.0;
            o += f64::from(u8::from(overwritten));
            history.push(100.0 * o / s);
            if history.len() >= WINDOW {
                let expected = fitted_slope_percent(&history[history.len() - WINDOW..]);
                let got = tpl.slope_micropercent() as f64 / 1e6;
                assert!((expected - got).abs() < 1e-4, "{step}: {expected} != {got}");
            }
        }
    }

    #[test]
    fn closes_behind_the_peak_and_not_before_the_minimum() {
        let parameters = TplParameters::default();
        let mut tpl = Tpl::default();
        // One page rewritten again and again: e rises, never due before the maximum.
        tpl.page_written(false);
        for _ in 0..999 {
            tpl.page_written(true);
            assert!(!tpl.is_due(&parameters));
        }
        // Then only new pages: e falls, due soon.
        let mut after = 0;
        while !tpl.is_due(&parameters) {
            tpl.page_written(false);
            after += 1;
        }
        assert!(
            (1..=16).contains(&after),
            "closed {after} pages behind the peak"
        );

        let mut fresh = Tpl::default();
        for _ in 0..64 {
            fresh.page_written(true);
        }
        for _ in 0..63 {
            fresh.page_written(false);
        }
        assert!(!fresh.is_due(&parameters), "below the minimum staleness");
        fresh.page_written(false);
        assert!(fresh.is_due(&parameters));
    }

    #[test]
    fn closes_at_the_maximum() {
        let parameters = TplParameters {
            staleness_max_pages: 200,
            ..TplParameters::default()
        };
        let mut tpl = Tpl::default();
        for written in 1..=200 {
            tpl.page_written(true);
            assert_eq!(tpl.is_due(&parameters), written == 200);
        }
    }
}
