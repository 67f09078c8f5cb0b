//! A straight line through points.

use serde::Serialize;

/// y = slope · x + intercept, by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Change of y for each unit of x.
    pub slope: f64,
    /// y at x = 0.
    pub intercept: f64,
    /// Share of y's variance that the line explains; 1 is a straight line.
    pub r_squared: f64,
}

impl Line {
    /// The line through `points`; none unless at least two of them differ in x.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let sum = |term: fn(f64, f64) -> f64| -> f64 {
            points
                .iter()
                .map(|(x, y)| term(x - mean_x, y - mean_y))
                .sum()
        };
        let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
        if points.len() < 2 || xx == 0.0 {
            return None;
        }
        let slope = xy / xx;
        Some(Self {
            slope,
            intercept: mean_y - slope * mean_x,
            // Points on a horizontal line are explained wholly.
            r_squared: if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) },
        })
    }

    /// y at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.slope * x + self.intercept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_are_found_again() {
        let line = Line::through(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!((line.slope - 2.0).abs() < 1e-12);
        assert!((line.intercept - 3.0).abs() < 1e-12);
        assert!((line.r_squared - 1.0).abs() < 1e-12);
        assert!((line.at(10.0) - 23.0).abs() < 1e-12);
    }

    #[test]
    fn scatter_lowers_r_squared() {
        // By hand: slope 1.5, intercept 1/3, r² = 27/28.
        let line = Line::through(&[(0.0, 0.5), (1.0, 1.5), (2.0, 3.5)]).unwrap();
        assert!((line.slope - 1.5).abs() < 1e-12);
        assert!((line.r_squared - 27.0 / 28.0).abs() < 1e-12);
    }

    #[test]
    fn no_line_through_one_place() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 1.0)]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
