//! The FUSE kernel adapter of MobiFS.
