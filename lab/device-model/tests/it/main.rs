//! Tests of the flash model through its interface, as one program.

mod device;
mod oracle;
mod support;
