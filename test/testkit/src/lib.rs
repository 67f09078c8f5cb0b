//! Reference model, crash double and harnesses shared by the tests of MobiFS.
//!
//! * [`campaign`]: searches through many histories on several threads;
//! * [`configuration`]: configurations, each parsed once;
//! * [`crash`]: a filesystem in memory whose unsynced effects a crash loses or tears;
//! * [`direct_io`]: input and output past the kernel's cache;
//! * [`faults`]: runs histories in which calls to that filesystem fail;
//! * [`model`]: a filesystem in memory that is obviously correct;
//! * [`operations`]: what a test does to a filesystem, generated and shrunk;
//! * [`target`]: filesystems that execute operations and show their tree;
//! * [`timeline`]: the model's history, app by app, and what of it a power cut may
//!   leave;
//! * [`harness`]: runs scripts against a target and the model;
//! * [`layout`]: which directories are apps in a test;
//! * [`life`]: runs scripts on a volume, power cuts included;
//! * [`lives`]: runs many of them, with kills and under tight limits;
//! * [`media`]: what a volume's committed state may lie on;
//! * [`mount`]: runs scripts on a real mount;
//! * [`shrink`]: makes what fails as short as it gets.

pub mod campaign;
pub mod configuration;
pub mod crash;
pub mod direct_io;
pub mod entries;
pub mod faults;
pub mod harness;
pub mod layout;
pub mod life;
pub mod lives;
pub mod media;
pub mod model;
pub mod mount;
pub mod operations;
pub mod random;
pub mod shrink;
pub mod statistics;
pub mod target;
pub mod timeline;
pub mod tree;
