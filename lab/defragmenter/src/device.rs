//! The served flash device below a filesystem, if there is one.

use std::path::{Path, PathBuf};

use mobifs_device_server::{RemapPair, Reply, Request, ask};
use serde_json::Value;

use crate::error::DefragError;
use crate::report::DeviceFigures;

/// Pairs in one request, which is a line of 64 KiB.
const PAIRS_MAX: usize = 400;

/// A served device.
#[derive(Debug)]
pub(crate) struct Device {
    mountpoint: PathBuf,
    before: DeviceFigures,
}

impl Device {
    /// The device below a mount. An error says why there is none.
    pub(crate) fn below(mountpoint: &Path) -> Result<Self, String> {
        let mut device = Self {
            mountpoint: mountpoint.to_owned(),
            before: DeviceFigures::default(),
        };
        device.before = device.figures()?;
        Ok(device)
    }

    fn ask(&self, request: &Request) -> Result<Reply, String> {
        match ask(&self.mountpoint, request) {
            Ok(Reply::Error { message, .. }) => Err(message),
            Ok(reply) => Ok(reply),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What it has counted since it was met.
    pub(crate) fn since(&self) -> Result<DeviceFigures, DefragError> {
        let now = self.figures().map_err(DefragError::NoDevice)?;
        let before = &self.before;
        Ok(DeviceFigures {
            programmed_bytes: now.programmed_bytes.saturating_sub(before.programmed_bytes),
            elapsed_ns: now.elapsed_ns.saturating_sub(before.elapsed_ns),
            pages_shared: now.pages_shared.saturating_sub(before.pages_shared),
            pages_written: now.pages_written.saturating_sub(before.pages_written),
        })
    }

    fn figures(&self) -> Result<DeviceFigures, String> {
        let Reply::Stats { stats } = self.ask(&Request::Stats)? else {
            return Err(
                "the server of the device gave an answer that is not understood".to_owned(),
            );
        };
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        Ok(DeviceFigures {
            programmed_bytes: number(&stats["device"]["programmed_bytes"]),
            elapsed_ns: number(&stats["device"]["elapsed_ns"]),
            pages_shared: number(&stats["remaps"]["pages_shared"]),
            pages_written: number(&stats["remaps"]["pages_written"]),
        })
    }

    /// Announces copies.
    pub(crate) fn announce(&self, pairs: &[RemapPair]) -> Result<(), DefragError> {
        for part in pairs.chunks(PAIRS_MAX) {
            let pairs = part.to_vec();
            let asked = self.ask(&Request::Remap { pairs });
            asked.map_err(DefragError::NoDevice)?;
        }
        Ok(())
    }

    /// What has not arrived by now is not expected any more.
    pub(crate) fn forget(&self) -> Result<(), DefragError> {
        let asked = self.ask(&Request::RemapEnd);
        asked.map_err(DefragError::NoDevice)?;
        Ok(())
    }
}
