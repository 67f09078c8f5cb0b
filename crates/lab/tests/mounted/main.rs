//! Tests of the real binary on real mounts.
