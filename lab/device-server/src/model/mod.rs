//! The model behind the interface of the port.

mod medium;
mod open;

use mobifs_base::VirtualNs;
use mobifs_device_model::{CommandError, DeviceError, Sector, WriteKind};
use serde_json::{Value, json};

use crate::block::{Refusal, SECTOR_BYTES};
use crate::device::Device;
use crate::keep::Keep;
use medium::ImageMedium;
pub(crate) use open::open;

/// Longest discard that the model takes at once, in bytes: whole pages, and a number of
/// sectors that fits its commands.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// A modelled device over an image file.
struct Modelled {
    device: mobifs_device_model::Device<ImageMedium>,
}

fn sector(offset: u64) -> Sector {
    Sector(offset / SECTOR_BYTES)
}

fn refused(error: &DeviceError) -> Refusal {
    match error {
        DeviceError::Medium(error) => medium_failed(error),
        // The port asks within the device, for whole sectors, and with power.
        _ => {
            tracing::error!(%error, "the model refused a command");
            Refusal::Misplaced
        }
    }
}

fn medium_failed(error: &std::io::Error) -> Refusal {
    tracing::error!(%error, "the image file failed");
    Refusal::Medium
}

impl Device for Modelled {
    fn read(&mut self, at: VirtualNs, offset: u64, out: &mut [u8]) -> Result<VirtualNs, Refusal> {
        let done = self.device.read(at, sector(offset), out);
        Ok(done.map_err(|error| refused(&error))?.done_at)
    }

    fn write(
        &mut self,
        at: VirtualNs,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<VirtualNs, Refusal> {
        let kind = if durable {
            WriteKind::Reliable
        } else {
            WriteKind::Plain
        };
        let done = self.device.write(at, sector(offset), data, kind);
        Ok(done.map_err(|error| refused(&error))?.done_at)
    }

    fn share(
        &mut self,
        at: VirtualNs,
        from: u64,
        to: u64,
        data: &[u8],
    ) -> Result<Option<VirtualNs>, Refusal> {
        let (from, to) = (sector(from), sector(to));
        match self.device.share(at, from, to, data) {
            // More than the device takes at once.
            Err(DeviceError::Command(CommandError::RemapTooLarge { .. })) => Ok(None),
            done => Ok(done
                .map_err(|error| refused(&error))?
                .map(|done| done.done_at)),
        }
    }

    fn flush(&mut self, at: VirtualNs) -> Result<VirtualNs, Refusal> {
        let done = self.device.flush(at);
        Ok(done.map_err(|error| refused(&error))?.done_at)
    }

    fn discard(&mut self, at: VirtualNs, offset: u64, bytes: u64) -> Result<VirtualNs, Refusal> {
        let mut done_at = at;
        let mut given_up = 0;
        while given_up < bytes {
            let piece = (bytes - given_up).min(DISCARD_BYTES_MAX);
            // At most `DISCARD_BYTES_MAX`, which fits.
            let sectors = (piece / SECTOR_BYTES) as u32;
            let done = self.device.discard(at, sector(offset + given_up), sectors);
            done_at = done_at.max(done.map_err(|error| refused(&error))?.done_at);
            given_up += piece;
        }
        Ok(done_at)
    }

    fn cut(&mut self, at: VirtualNs, keep: Keep) -> Result<Value, Refusal> {
        let keep = match keep {
            Keep::None => mobifs_device_model::Keep::None,
            Keep::All => mobifs_device_model::Keep::All,
            Keep::Random { seed } => mobifs_device_model::Keep::Random { seed },
        };
        let cut = self.device.cut(at, keep);
        let report = cut.map_err(|error| medium_failed(&error))?;
        Ok(json!({
            "at_ns": report.at.0,
            "kept_pages": report.kept_pages,
            "lost_pages": report.lost_pages,
            "torn_pages": report.torn_pages,
        }))
    }

    fn power_on(&mut self, at: VirtualNs) -> (VirtualNs, Value) {
        let ready_at = self.device.power_on(at);
        let recovery_ns = ready_at.ns_since(at);
        (ready_at, json!({ "recovery_ns": recovery_ns }))
    }

    fn peek(&self, offset: u64, out: &mut [u8]) -> Result<(), Refusal> {
        let read = self.device.medium().peek(offset, out);
        read.map_err(|error| medium_failed(&error))
    }

    fn stats(&mut self, now: VirtualNs) -> Result<Value, Refusal> {
        let advanced = self.device.advance(now);
        advanced.map_err(|error| medium_failed(&error))?;
        let model = self.device.model();
        let stats = model.stats();
        let page_bytes = u64::from(model.config().geometry.page_bytes.value);
        let mut document = json!(stats);
        document["programmed_bytes"] = json!(stats.flash.total().pages_programmed * page_bytes);
        Ok(document)
    }

    fn save(&mut self) -> Result<Vec<u8>, Refusal> {
        if self.device.is_powered() {
            let done_at = self.flush(self.device.model().now())?;
            // Content that a flush makes durable reaches the image when the flush ends.
            for until in [done_at, self.device.model().idle_at()] {
                let advanced = self.device.advance(until);
                advanced.map_err(|error| medium_failed(&error))?;
            }
        }
        self.device.model().save().map_err(|error| {
            tracing::error!(%error, "the state of the device cannot be saved");
            Refusal::Medium
        })
    }
}
