//! Reference model, crash double and harnesses shared by the tests of MobiFS.
