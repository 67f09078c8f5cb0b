//! Seeded random numbers: the generator that the laboratory has, too.

pub use mobifs_numerics::Random;
