//! How these commands fail.

use mobifs_trace::{LoadError, ReplayError, WriteError};

use crate::failure::{Code, Failure};

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        let code = match &error {
            LoadError::Unrecognised { .. } => Code::Usage,
            LoadError::Parquet { .. } => Code::Damaged,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        let code = match &error {
            ReplayError::Block | ReplayError::NotEmpty(_) => Code::Usage,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}
