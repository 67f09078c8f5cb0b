//! Side-by-side benches of MobiFS.
