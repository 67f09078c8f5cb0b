//! Trade-off point location (S0 §5.2).
//!
//! Every page write adds a point to the curve of the energy efficiency ratio e over the
//! staleness. A line is fitted through the last k points; once it falls more steeply
//! than the threshold, the peak has passed, and the transaction closes.

use super::efficiency::SCALE_BITS;
use super::{Efficiency, FitWindow, Transactioning};

/// Parameters of [`Tpl`]; the defaults are the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TplParameters {
    /// The curve is not examined below this staleness, in pages.
    pub staleness_min_pages: u64,
    /// Close when the slope falls below this, in millionths of a percent a page
    /// (published: −0.02 % a page).
    pub slope_min_micropercent: i64,
    /// Points in the window (k), from [`super::WINDOW_POINTS_MIN`] to
    /// [`super::WINDOW_POINTS_MAX`].
    pub window_points: usize,
}

impl Default for TplParameters {
    fn default() -> Self {
        Self {
            staleness_min_pages: 128,
            slope_min_micropercent: -20_000,
            window_points: 16,
        }
    }
}

/// The e curve of one open transaction.
#[derive(Clone, Debug)]
pub struct Tpl {
    staleness_min_pages: u64,
    /// The threshold in units of the window's numerator, rounded up: numerators are
    /// whole, so being below it is the same as being below the exact one.
    numerator_min: i64,
    window: FitWindow,
}

impl Tpl {
    /// A curve without points.
    pub fn new(parameters: &TplParameters) -> Self {
        let window = FitWindow::new(parameters.window_points);
        let one_percent = i128::from(window.slope_denominator()) << SCALE_BITS;
        let scaled = i128::from(parameters.slope_min_micropercent) * one_percent;
        let rounded_up = -(-scaled).div_euclid(1_000_000);
        let limits = i128::from(i64::MIN)..=i128::from(i64::MAX);
        Self {
            staleness_min_pages: parameters.staleness_min_pages,
            numerator_min: rounded_up.clamp(*limits.start(), *limits.end()) as i64,
            window,
        }
    }
}

impl Transactioning for Tpl {
    fn page_written(&mut self, efficiency: &Efficiency) {
        self.window.push(efficiency.ratio());
    }

    fn is_due(&self, efficiency: &Efficiency, _age_ms: u64) -> bool {
        efficiency.written_pages() >= self.staleness_min_pages
            && self
                .window
                .slope_numerator()
                .is_some_and(|numerator| numerator < self.numerator_min)
    }
}
