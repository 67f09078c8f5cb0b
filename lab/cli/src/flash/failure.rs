//! How these commands fail.

use mobifs_device_server::{ControlError, ErrorKind, ImageError, JournalError, ServeError};

use crate::failure::{Code, Failure};

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let code = match &error {
            ServeError::Image(error) => image_code(error),
            ServeError::Journal(error) => journal_code(error),
            ServeError::Mount(mobifs_fuse::MountError::AlreadyMounted(_)) => Code::InUse,
            ServeError::NoFront | ServeError::NoConfig(_) | ServeError::Config(_) => Code::Usage,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

fn image_code(error: &ImageError) -> Code {
    match error {
        ImageError::InUse(_) => Code::InUse,
        ImageError::Damaged { .. } | ImageError::NewerFormat { .. } => Code::Damaged,
        ImageError::Io { .. } => Code::Failed,
        _ => Code::Usage,
    }
}

fn journal_code(error: &JournalError) -> Code {
    match error {
        JournalError::NotAJournal(_)
        | JournalError::NewerFormat { .. }
        | JournalError::Damaged { .. } => Code::Damaged,
        JournalError::Io { .. } => Code::Failed,
        _ => Code::Usage,
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        Self::new(journal_code(&error), error.to_string())
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::NotServed(_) => Code::NotServed,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

/// What a server reported.
pub(super) fn reported(kind: ErrorKind, message: String) -> Failure {
    let code = match kind {
        ErrorKind::Usage => Code::Usage,
        ErrorKind::NotPermitted | ErrorKind::Failed => Code::Failed,
    };
    Failure::new(code, message)
}
