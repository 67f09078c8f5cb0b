//! Configurations of tests, each parsed once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use mobifs_volume::Config;

/// Searches mount thousands of volumes with the same few texts, and compiling their globs takes
/// more time than everything that such a volume does.
static PARSED: Mutex<Option<HashMap<String, Config>>> = Mutex::new(None);

/// More texts are those of a random search, which come once.
const KEPT_MAX: usize = 64;

/// What a configuration file with this text says.
///
/// # Errors
/// What is wrong with it.
pub fn parsed(text: &str) -> Result<Config, String> {
    // Entries are whole whenever a thread panics.
    let mut kept = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(config) = kept.get(text) {
        return Ok(config.clone());
    }
    let config = Config::parse(text, Path::new("test.toml")).map_err(|error| error.to_string())?;
    if kept.len() == KEPT_MAX {
        kept.clear();
    }
    kept.insert(text.to_owned(), config.clone());
    Ok(config)
}
