//! Device configurations from files.

use std::path::Path;

use mobifs_device_model::Config;

use crate::failure::{Code, Failure};

/// Reads and validates a device configuration.
pub(super) fn load(path: &Path) -> Result<Config, Failure> {
    let usage = |message: String| {
        let path = path.display();
        Failure::new(Code::Usage, format!("the configuration {path}: {message}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    Config::from_toml(&text).map_err(|error| usage(error.to_string()))
}
