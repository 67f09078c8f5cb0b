//! How much is logged: the environment variable `MOBIFS_LOG`.

use std::env::VarError;

/// The environment variable that says how much is logged.
pub const LOG_VARIABLE: &str = "MOBIFS_LOG";
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The variable has a value that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{LOG_VARIABLE} is \"{given}\", which is no level: set it to error, warn, info, debug, trace or \
     off, or unset it"
)]
pub struct LogLevelError {
    given: String,
}

/// What is to be logged: the variable's level (or `MODULE=LEVEL`, several with commas), or the
/// default if it is not set.
///
/// # Errors
/// A value that is no level: the library that filters would take it for the name of a module, and
/// log nothing else.
pub fn log_directives(default_level: &str) -> Result<String, LogLevelError> {
    match std::env::var(LOG_VARIABLE) {
        Ok(given) if given.is_empty() => Ok(default_level.to_owned()),
        Ok(given) => checked(given),
        Err(VarError::NotPresent) => Ok(default_level.to_owned()),
        Err(VarError::NotUnicode(given)) => Err(LogLevelError {
            given: given.to_string_lossy().into_owned(),
        }),
    }
}

/// Without spaces, which the library that filters would take for parts of names.
fn checked(given: String) -> Result<String, LogLevelError> {
    let is_level = |text: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(text));
    let directive = |part: &str| match part.split_once('=') {
        None => is_level(part.trim()).then(|| part.trim().to_owned()),
        Some((module, level)) => {
            let (module, level) = (module.trim(), level.trim());
            is_level(level).then(|| format!("{module}={level}"))
        }
    };
    let directives: Option<Vec<String>> = given.split(',').map(directive).collect();
    match directives {
        Some(directives) => Ok(directives.join(",")),
        None => Err(LogLevelError { given }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt level was taken for the name of a module, and nothing was logged.
    #[test]
    fn what_is_no_level_is_refused() {
        for good in ["warn", "DEBUG", "info,mobifs_store=trace", "off"] {
            assert_eq!(checked(good.to_owned()).as_deref(), Ok(good));
        }
        for (spaced, good) in [
            (" warn ", "warn"),
            ("info, mobifs_store = trace", "info,mobifs_store=trace"),
        ] {
            assert_eq!(checked(spaced.to_owned()).as_deref(), Ok(good));
        }
        for bad in [
            "bogus",
            "inf",
            "mobifs_store",
            "info,bogus",
            "a=b",
            "a=b=info",
            ",",
        ] {
            let message = checked(bad.to_owned()).unwrap_err().to_string();
            assert!(message.contains(&format!("is \"{bad}\"")), "{message}");
        }
    }
}
