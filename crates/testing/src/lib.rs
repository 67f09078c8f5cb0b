//! Reference model, crash double and harnesses shared by the tests of MobiFS.
//!
//! * [`crash`]: a filesystem in memory whose unsynced effects a crash loses or tears;

pub mod crash;
