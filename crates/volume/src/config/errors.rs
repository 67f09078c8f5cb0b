//! What is wrong with a configuration, or with a setting of a command.

use std::path::PathBuf;

/// Why a configuration cannot be used: one sentence that says where and what.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is no valid TOML.
    #[error("{path}, line {line}: {message}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line of the fault, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// There is no such key, or its value cannot be used.
    #[error("{path}{line}: {key}: {message}", path = path.display(), line = in_line(*line))]
    Value {
        /// The file.
        path: PathBuf,
        /// Line of the key, counted from 1; none where several keys may be meant.
        line: Option<usize>,
        /// The key.
        key: String,
        /// What is wrong with its value.
        message: String,
    },
}

impl ConfigError {
    /// The error of a configuration that was made of parameters, each of the whole mount or of the
    /// table `defaults`: there is no file, so no line and no table is named.
    #[must_use]
    pub fn of_parameters(mut self) -> Self {
        if let Self::Value { line, key, .. } = &mut self {
            *line = None;
            if let Some(name) = key.strip_prefix("defaults.") {
                *key = name.to_owned();
            }
        }
        self
    }
}

/// Keys and globs in a message are the user's, and may have line ends.
pub(super) fn in_one_line(text: &str) -> String {
    let shown = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(shown).collect()
}

fn in_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// What is wrong with a key.
#[derive(Debug)]
pub(super) struct Fault {
    /// Its line, where that is known already.
    pub(super) line: Option<usize>,
    /// The `[[app]]` that it is in, by its index: several may have the same glob.
    pub(super) app: Option<usize>,
    pub(super) key: String,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line: None,
            app: None,
            key: key.into(),
            message: message.into(),
        }
    }

    pub(super) fn at(line: usize, key: &str, message: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            ..Self::new(key, message)
        }
    }

    pub(super) fn in_app(self, index: usize) -> Self {
        Self {
            app: Some(index),
            ..self
        }
    }
}

/// A setting that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct SettingError {
    /// The key.
    pub key: &'static str,
    /// What is wrong with its value.
    pub message: String,
}

impl SettingError {
    pub(super) fn new(key: &'static str, message: impl Into<String>) -> Self {
        Self {
            key,
            message: message.into(),
        }
    }
}

/// Line (from 1) of the byte at `offset`.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|&byte| byte == b'\n')
        .count()
        + 1
}
