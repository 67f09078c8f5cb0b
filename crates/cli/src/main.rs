//! The `mobifs` command.
fn main() {}
