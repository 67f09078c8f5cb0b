//! Keeping a journal.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use super::JournalError;
use super::record::{FileHeader, Record};

const BUFFER_BYTES: usize = 1 << 20;

/// A journal being written. Records are in the file after each flush of the device.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl JournalWriter {
    /// Makes a journal for a device of `device_bytes`.
    ///
    /// # Errors
    /// [`JournalError::Exists`], [`JournalError::Io`].
    pub(crate) fn create(path: &Path, device_bytes: u64) -> Result<Self, JournalError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => JournalError::Exists(path.to_owned()),
                _ => JournalError::io(path)(error),
            })?;
        let mut writer = Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
        };
        writer.append(FileHeader::new(device_bytes).as_bytes(), &[])?;
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a record with its data.
    ///
    /// # Errors
    /// [`JournalError::Io`]; the journal then ends here.
    pub(crate) fn record(&mut self, record: &Record, data: &[u8]) -> Result<(), JournalError> {
        self.append(record.encode(data).as_bytes(), data)
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub(crate) fn flush(&mut self) -> Result<(), JournalError> {
        self.file.flush().map_err(JournalError::io(&self.path))
    }

    fn append(&mut self, header: &[u8], data: &[u8]) -> Result<(), JournalError> {
        self.file
            .write_all(header)
            .and_then(|()| self.file.write_all(data))
            .map_err(JournalError::io(&self.path))
    }
}
