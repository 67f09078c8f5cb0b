//! The file `.mobifs/calibration` (`docs/FORMAT.md` has the bytes).
//!
//! It is overwritten in place. Nothing but speed depends on it: one that is damaged, torn by a power
//! cut, of another store or missing means that the next mount measures again.

use std::io;

use mobifs_base::FileKind;
use mobifs_base::codec::{CodecError, Reader, Writer};

use crate::calibration::{Calibration, DEVICE_BYTES_MAX, WriteTimes};
use crate::lower::{Create, Lower, found};
use crate::overlay::Overlay;
use crate::own_file::{Damage, is_ours};

/// Its name in `.mobifs`.
pub const NAME: &str = "calibration";
const MAGIC: &[u8; 8] = b"MOBICALI";
const VERSION: u32 = 1;
/// Magic, version, store, bytes of the body, checksum.
const HEADER_BYTES: usize = 8 + 4 + 16 + 4 + 4;
/// The checksum covers the header before it, and the body.
const CRC_AT: usize = HEADER_BYTES - 4;
const SIZES_MAX: usize = 32;
/// No file is larger.
const FILE_BYTES_MAX: usize = HEADER_BYTES + 1 + 4 + DEVICE_BYTES_MAX + 8 + 4 + SIZES_MAX * 24;

/// The content of the file.
pub(crate) fn encode(uuid: [u8; 16], calibration: &Calibration) -> Vec<u8> {
    let mut body = Writer::default();
    let device = calibration.device.as_deref();
    body.option(device, |body, device| body.bytes(device.as_bytes()));
    body.u64(calibration.direct_bytes_max);
    body.list(calibration.sizes.iter(), |body, times| {
        body.u64(times.bytes);
        body.u64(times.durable_ns);
        body.u64(times.flushed_ns);
    });
    let body = body.into_bytes();
    let mut content = Writer::default();
    content.raw(MAGIC);
    content.u32(VERSION);
    content.raw(&uuid);
    content.u32(body.len() as u32);
    content.u32(crc32c::crc32c_append(
        crc32c::crc32c(content.as_bytes()),
        &body,
    ));
    content.raw(&body);
    content.into_bytes()
}

/// The calibration in the file of this store.
pub(crate) fn parse(content: &[u8], uuid: [u8; 16]) -> Result<Calibration, Damage> {
    let short = |_| Damage::Length;
    let mut header = Reader::new(content);
    if header.raw(MAGIC.len()).map_err(short)? != MAGIC {
        return Err(Damage::Magic);
    }
    let version = header.u32().map_err(short)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let of_store = header.raw(uuid.len()).map_err(short)?;
    let bytes = header.u32().map_err(short)? as usize;
    let crc = header.u32().map_err(short)?;
    let body = header.rest();
    if body.len() != bytes || content.len() > FILE_BYTES_MAX {
        return Err(Damage::Length);
    }
    if crc32c::crc32c_append(crc32c::crc32c(&content[..CRC_AT]), body) != crc {
        return Err(Damage::Checksum);
    }
    if of_store != uuid {
        return Err(Damage::OtherStore);
    }
    parse_body(body)
}

fn parse_body(body: &[u8]) -> Result<Calibration, Damage> {
    let mut body = Reader::new(body);
    let device = body.option(|body| {
        let device = str::from_utf8(body.bytes()?).map_err(|_| Damage::Value)?;
        Ok::<_, Damage>(device.to_owned())
    })?;
    let direct_bytes_max = body.u64()?;
    let sizes = body.list(|body| {
        Ok::<_, CodecError>(WriteTimes {
            bytes: body.u64()?,
            durable_ns: body.u64()?,
            flushed_ns: body.u64()?,
        })
    })?;
    let is_ordered = sizes.is_sorted_by(|one, next| one.bytes < next.bytes);
    let is_measured = |bytes| sizes.iter().any(|times| times.bytes == bytes);
    let is_valid = is_ordered
        && sizes.first().is_none_or(|times| times.bytes > 0)
        && sizes.len() <= SIZES_MAX
        && (direct_bytes_max == 0 || is_measured(direct_bytes_max))
        && device.as_ref().is_none_or(|d| d.len() <= DEVICE_BYTES_MAX);
    if !is_valid || !body.rest().is_empty() {
        return Err(Damage::Value);
    }
    Ok(Calibration {
        device,
        sizes,
        direct_bytes_max,
    })
}

/// The calibration that an earlier mount has left in this directory; one that cannot be used is
/// none, with a line in the log.
pub(crate) fn read<L: Lower>(lower: &L, mobifs: &L::Handle, uuid: [u8; 16]) -> Option<Calibration> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        let stat = found(lower.stat_at(mobifs, NAME.as_bytes()))?;
        let Some(stat) = stat else { return Ok(None) };
        if !is_ours(&stat) {
            return Err(io::Error::other("it is not a file of the store"));
        }
        let file = lower.open(mobifs, NAME.as_bytes(), false)?;
        let mut content = vec![0; FILE_BYTES_MAX + 1];
        let length = lower.read_at(&file, &mut content, 0)?;
        content.truncate(length);
        Ok(Some(content))
    };
    let content = match read() {
        Ok(content) => content?,
        Err(error) => {
            tracing::warn!(%error, "the calibration of the device cannot be read");
            return None;
        }
    };
    let parsed = parse(&content, uuid);
    let parsed = parsed.inspect_err(|damage| {
        tracing::warn!(%damage, "the calibration of the device cannot be used");
    });
    parsed.ok()
}

/// Writes the file. A new one is not made while changes are pending: see
/// [`keep_reserve`](crate::apply::reserve::keep_reserve).
pub(super) fn write<L: Lower>(
    overlay: &Overlay<L>,
    uuid: [u8; 16],
    calibration: &Calibration,
) -> io::Result<()> {
    let content = encode(uuid, calibration);
    debug_assert!(content.len() <= FILE_BYTES_MAX, "{} bytes", content.len());
    debug_assert!(parse(&content, uuid).is_ok(), "what is written is read");
    let (lower, own) = (overlay.lower(), overlay.mobifs());
    let stat = found(lower.stat_at(own, NAME.as_bytes()))?;
    if !stat.as_ref().is_some_and(is_ours) {
        if !overlay.state().pending.is_empty() {
            return Err(io::Error::other("changes are pending"));
        }
        match stat {
            Some(stat) if stat.kind == FileKind::Directory => {
                return Err(io::Error::other("a directory has its name"));
            }
            Some(_) => lower.unlink(own, NAME.as_bytes())?,
            None => {}
        }
        lower.create(own, NAME.as_bytes(), Create::Regular)?;
    }
    let file = lower.open(own, NAME.as_bytes(), true)?;
    lower.write_at(&file, &content, 0)?;
    lower.truncate(&file, content.len() as u64)?;
    lower.sync(&file)?;
    lower.sync(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    #[test]
    fn what_is_written_is_read() {
        for sizes in [0, 1, 7, 32] {
            let mut calibration = Calibration::example(sizes);
            assert_eq!(
                parse(&encode(UUID, &calibration), UUID).unwrap(),
                calibration
            );
            calibration.device = None;
            let content = encode(UUID, &calibration);
            assert_eq!(parse(&content, UUID).unwrap(), calibration);
            assert!(content.len() <= FILE_BYTES_MAX);
        }
    }

    #[test]
    fn nothing_else_is_taken() {
        let content = encode(UUID, &Calibration::example(7));
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            assert!(parse(&damaged, UUID).is_err(), "byte {at}");
            assert!(parse(&content[..at], UUID).is_err(), "{at} bytes");
        }
        assert_eq!(parse(&content, [8; 16]), Err(Damage::OtherStore));
        assert_eq!(
            parse(&[&content[..], b"\0"].concat(), UUID),
            Err(Damage::Length)
        );
        assert_eq!(parse(&[0; 100], UUID), Err(Damage::Magic));
        let mut newer = content;
        newer[8] = 2;
        assert_eq!(parse(&newer, UUID), Err(Damage::Version(2)));
    }

    #[test]
    fn values_that_are_never_written_are_refused() {
        let refused = |change: fn(&mut Calibration)| {
            let mut calibration = Calibration::example(3);
            change(&mut calibration);
            let parsed = parse(&encode(UUID, &calibration), UUID);
            assert!(
                matches!(parsed, Err(Damage::Value | Damage::Length)),
                "{parsed:?}"
            );
        };
        refused(|calibration| calibration.direct_bytes_max = 5000);
        refused(|calibration| calibration.sizes.reverse());
        refused(|calibration| calibration.sizes[0].bytes = 0);
        refused(|calibration| calibration.device = Some("x".repeat(DEVICE_BYTES_MAX + 1)));
        refused(|calibration| calibration.sizes = Calibration::example(33).sizes);
    }
}
