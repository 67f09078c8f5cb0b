//! Which files are worth defragmenting, by the line that S4 fits through its measurements.

use crate::shape::FileShape;

/// What pieces and bytes cost when a file is read: t = a · pieces + b · size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Milliseconds for each piece more.
    pub piece_ms: f64,
    /// Milliseconds for each megabyte (10⁶ bytes), in one piece.
    pub megabyte_ms: f64,
}

impl Model {
    /// Bytes of the largest piece that makes reading longer by the share from which on a file is
    /// worth it: joining larger ones is not.
    #[must_use]
    pub fn small_piece_bytes(self) -> u64 {
        (self.piece_ms / (SLOWDOWN_LEAST * self.megabyte_ms) * 1e6) as u64
    }
}

impl Default for Model {
    /// S4, Fig. 9: t = 0.17 · DoF + 990 ms for 100 MB.
    fn default() -> Self {
        Self {
            piece_ms: 0.17,
            megabyte_ms: 9.9,
        }
    }
}

/// A file is worth it if fragmentation makes reading all of it longer by this share ...
pub(crate) const SLOWDOWN_LEAST: f64 = 0.1;
/// ... and by this time.
pub(crate) const SAVED_LEAST_MS: f64 = 1.0;

/// What the model says of one file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Benefit {
    /// How much sooner it would be read if it had no more extents than it must.
    pub saved_ms: f64,
    /// What is saved, as a share of the time that reading would take then.
    pub slowdown: f64,
}

impl Benefit {
    /// The benefit for a file of this shape.
    #[must_use]
    pub fn of(shape: &FileShape, model: Model) -> Self {
        let saved_ms = shape.excess() as f64 * model.piece_ms;
        let whole_ms = shape.mapped_bytes as f64 / 1e6 * model.megabyte_ms;
        let slowdown = if whole_ms > 0.0 {
            saved_ms / whole_ms
        } else {
            0.0
        };
        Self { saved_ms, slowdown }
    }

    /// Whether defragmenting it is worth it.
    #[must_use]
    pub fn is_worth_it(&self) -> bool {
        self.saved_ms >= SAVED_LEAST_MS && self.slowdown >= SLOWDOWN_LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(extents: u64, bytes: u64) -> FileShape {
        FileShape {
            extents,
            least: 1,
            mapped_bytes: bytes,
            ..FileShape::default()
        }
    }

    #[test]
    fn the_papers_file_gets_the_papers_line() {
        let benefit = Benefit::of(&shape(25_001, 100_000_000), Model::default());
        assert!((benefit.saved_ms - 4250.0).abs() < 1e-6, "{benefit:?}");
        // Its line: (0.17 · 25,000 + 990) / 990 = 5.29.
        assert!((benefit.slowdown - 4.293).abs() < 0.001, "{benefit:?}");
        assert!(benefit.is_worth_it());
    }

    #[test]
    fn few_or_large_pieces_are_not_worth_it() {
        let is_worth_it =
            |extents, bytes| Benefit::of(&shape(extents, bytes), Model::default()).is_worth_it();
        assert!(!is_worth_it(1, 4096));
        assert!(
            !is_worth_it(3, 12_288),
            "two pieces more cost a third of a millisecond"
        );
        assert!(is_worth_it(50, 200 * 1024));
        assert!(!is_worth_it(100, 200_000_000), "pieces of 2 MB");
        assert!(!is_worth_it(0, 0));
    }
}
