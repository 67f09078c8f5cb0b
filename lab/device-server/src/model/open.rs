//! From an image to its device.

use std::fs::File;
use std::io;

use mobifs_base::VirtualNs;
use mobifs_device_model::{Command, Config, Model, Sector, WriteKind};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::Modelled;
use super::medium::ImageMedium;
use crate::block::SECTOR_BYTES;
use crate::device::Device;
use crate::image::{About, Image, ImageError, PAGE_BYTES, Sidecar, path_beside};
use crate::serve::{ServeError, ServeOptions};

/// Content that was there before the device is written to it in pieces of this many bytes.
const ADOPTED_BYTES: u64 = 1 << 20;

/// A device with power, ready to be served.
pub(crate) struct Opened {
    pub(crate) device: Box<dyn Device>,
    /// What is beside the image while it is served.
    pub(crate) sidecar: Sidecar,
    pub(crate) name: String,
}

/// The device of an image: the one it had, or a new one that has its content.
///
/// # Errors
/// [`ServeError`].
pub(crate) fn open(image: &Image, options: &ServeOptions) -> Result<Opened, ServeError> {
    let about = about(image, options)?;
    let config = Config::from_toml(&about.config)?;
    let saved = image.sidecar.as_ref().map_or(&[][..], |old| &old.state);
    let model = if saved.is_empty() {
        new_model(image, &config, about.seed)?
    } else {
        load(image, &config, saved)?
    };
    if image
        .sidecar
        .as_ref()
        .is_some_and(|old| !old.about.is_clean)
    {
        tracing::warn!(
            image = %image.path.display(),
            "the server of this image was killed: what was in the device's cache is lost, as in a \
             power cut; mapping and wear are those of the time before"
        );
    }
    let file = image.file.try_clone();
    let medium = ImageMedium::new(file.map_err(ImageError::io(&image.path))?);
    let device = mobifs_device_model::Device::new(model, medium);
    let state = saved.to_vec();
    Ok(Opened {
        device: Box::new(Modelled { device }),
        name: config.name,
        sidecar: Sidecar { about, state },
    })
}

/// What the device is: as asked for, as it was, and no contradiction between the two.
fn about(image: &Image, options: &ServeOptions) -> Result<About, ServeError> {
    let path = || image.path.clone();
    if let Some(Sidecar { about, .. }) = &image.sidecar {
        let is_other = |config: &Config| config.digest() != about.config_digest;
        if options.config.as_ref().is_some_and(is_other) {
            let device = Config::from_toml(&about.config)?.name;
            let path = path();
            return Err(ImageError::OtherDevice { path, device }.into());
        }
        if options.seed.is_some_and(|seed| seed != about.seed) {
            let (path, found) = (path(), about.seed);
            return Err(ImageError::OtherSeed { path, found }.into());
        }
        return Ok(About {
            is_clean: false,
            ..about.clone()
        });
    }
    let config = options.config.as_ref();
    let config = config.ok_or_else(|| ServeError::NoConfig(path()))?;
    Ok(About {
        size_bytes: image.size_bytes,
        config: config.to_toml(),
        config_digest: config.digest(),
        seed: options.seed.unwrap_or(0),
        power_cycles: 0,
        is_clean: false,
    })
}

fn load(image: &Image, config: &Config, saved: &[u8]) -> Result<Model, ServeError> {
    Model::load(config, image.size_bytes, saved).map_err(|error| {
        let damaged = ImageError::Damaged {
            path: path_beside(&image.path),
            reason: error.to_string(),
        };
        damaged.into()
    })
}

/// A new device. What the image has already is in its cells, and nothing of that counts.
fn new_model(image: &Image, config: &Config, seed: u64) -> Result<Model, ServeError> {
    let mut model = Model::new(config, image.size_bytes, seed)?;
    let extents = data_extents(&image.file, image.size_bytes);
    let extents = extents.map_err(ImageError::io(&image.path))?;
    if extents.is_empty() {
        return Ok(model);
    }
    let refused = |error: &dyn std::fmt::Display| ServeError::Adopt {
        path: image.path.clone(),
        reason: error.to_string(),
    };
    let mut now = VirtualNs::ZERO;
    let mut submit = |model: &mut Model, command: &Command<'_>| {
        let done = model.submit(now, command).map_err(|error| refused(&error));
        done.map(|done| now = done.done_at)
    };
    for (start, end) in extents {
        let mut offset = start;
        while offset < end {
            let bytes = (end - offset).min(ADOPTED_BYTES);
            let command = Command::Write {
                start: Sector(offset / SECTOR_BYTES),
                // At most `ADOPTED_BYTES`.
                sectors: (bytes / SECTOR_BYTES) as u32,
                kind: WriteKind::Plain,
            };
            submit(&mut model, &command)?;
            offset += bytes;
        }
    }
    submit(&mut model, &Command::Flush)?;
    model.advance(model.idle_at());
    // As it comes out of its box: time and counters start with the first user.
    let saved = model.save().map_err(|error| refused(&error))?;
    load(image, config, &saved)
}

/// The parts of a file that hold data, in whole pages.
fn data_extents(file: &File, size_bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut extents: Vec<(u64, u64)> = Vec::new();
    let mut offset = 0;
    while offset < size_bytes {
        let start = match seek(file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // The filesystem does not say: all of it counts as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, size_bytes)]),
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        let start = start - start % PAGE_BYTES;
        let end = end.next_multiple_of(PAGE_BYTES).min(size_bytes);
        match extents.last_mut() {
            Some(last) if last.1 >= start => last.1 = end,
            _ => extents.push((start, end)),
        }
        offset = end;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn data_is_found_in_whole_pages() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(data_extents(&file, 1 << 20).unwrap(), []);
        file.write_all_at(b"x", 300_000).unwrap();
        let extents = data_extents(&file, 1 << 20).unwrap();
        let whole = |&(start, end): &(u64, u64)| start % 4096 == 0 && end % 4096 == 0;
        assert!(extents.iter().all(whole) && !extents.is_empty());
        assert!(
            extents
                .iter()
                .any(|&(start, end)| (start..end).contains(&300_000))
        );
    }
}
