//! The content of a device at a moment, from the log of its commands.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use mobifs_device_server::{Command, CommandKind, Journal};

use crate::bytes::ReadAt;

/// Where a range of the device got its content.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// From this byte of a command on.
    Command(Command, u64),
    /// The range was discarded.
    Zeros,
}

/// The content of a device after some of the commands in a log.
#[derive(Debug)]
pub(crate) struct View<'a> {
    log: &'a Journal,
    /// What the device had before the log; none: zeros.
    base: Option<&'a File>,
    /// By start: end and origin. They do not overlap.
    ranges: BTreeMap<u64, (u64, Origin)>,
}

impl<'a> View<'a> {
    pub(crate) const fn new(log: &'a Journal, base: Option<&'a File>) -> Self {
        Self {
            log,
            base,
            ranges: BTreeMap::new(),
        }
    }

    /// A command takes effect.
    pub(crate) fn apply(&mut self, command: &Command) {
        let origin = match command.kind {
            CommandKind::Write | CommandKind::DurableWrite => Origin::Command(*command, 0),
            CommandKind::Discard => Origin::Zeros,
            CommandKind::Flush => return,
        };
        let (start, end) = (command.offset, command.offset + command.bytes);
        if start == end {
            return;
        }
        self.cut(start);
        self.cut(end);
        let covered: Vec<u64> = self.ranges.range(start..end).map(|(&at, _)| at).collect();
        for at in covered {
            self.ranges.remove(&at);
        }
        self.ranges.insert(start, (end, origin));
    }

    /// No range goes over `at` afterwards.
    fn cut(&mut self, at: u64) {
        let before = self.ranges.range(..at).next_back();
        let Some((&start, &(end, origin))) = before.filter(|(_, (end, _))| *end > at) else {
            return;
        };
        let rest = match origin {
            Origin::Command(command, skip) => Origin::Command(command, skip + (at - start)),
            Origin::Zeros => Origin::Zeros,
        };
        self.ranges.insert(start, (at, origin));
        self.ranges.insert(at, (end, rest));
    }

    /// Where a block has its content now, which stays there: for [`View::read_from`].
    pub(crate) fn source(&self, offset: u64) -> Option<Source> {
        let (&start, &(end, origin)) = self.ranges.range(..=offset).next_back()?;
        match origin {
            Origin::Command(command, skip) if offset < end => Some(Source {
                command,
                skip: skip + (offset - start),
            }),
            _ => None,
        }
    }

    /// Reads what was written there then.
    pub(crate) fn read_from(&self, source: &Source, out: &mut [u8]) -> io::Result<()> {
        let read = self.log.written(&source.command, source.skip, out);
        read.map_err(io::Error::other)
    }
}

/// A place in what a command wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    command: Command,
    skip: u64,
}

impl ReadAt for View<'_> {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset + out.len() as u64;
        if end > self.log.device_bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self.base {
            Some(base) => base.read_at(out, offset)?,
            None => out.fill(0),
        }
        let first = self
            .ranges
            .range(..=offset)
            .next_back()
            .map_or(offset, |(&start, _)| start);
        for (&start, &(range_end, origin)) in self.ranges.range(first..end) {
            let (from, to) = (start.max(offset), range_end.min(end));
            if from >= to {
                continue;
            }
            // Both are within `out`.
            let part = &mut out[(from - offset) as usize..(to - offset) as usize];
            match origin {
                Origin::Zeros => part.fill(0),
                Origin::Command(command, skip) => {
                    let read = self.log.written(&command, skip + (from - start), part);
                    read.map_err(io::Error::other)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mobifs_device_model::{Config, Preset};
    use mobifs_device_server::{Scale, ServeOptions, Served};
    use std::os::unix::fs::FileExt as _;

    /// Overlapping writes and a discard, in a served device, whose file has the same content afterwards.
    #[test]
    fn a_view_has_what_the_device_has() {
        if !mobifs_skip::can_mount() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (image, log) = (directory.path().join("image"), directory.path().join("log"));
        let mountpoint = directory.path().join("mnt");
        std::fs::create_dir(&mountpoint).unwrap();
        let config: Config = Preset::Emmc51.config().unwrap();
        let served = Served::start(&ServeOptions {
            image: image.clone(),
            size_bytes: Some(64 << 20),
            config: Some(config),
            seed: Some(1),
            scale: Scale::COUNT_ONLY,
            journal: Some(log.clone()),
            nbd: None,
            loop_device: false,
            mountpoint: Some(mountpoint),
        })
        .unwrap();
        let file = File::options()
            .write(true)
            .open(served.ready().file.unwrap())
            .unwrap();
        let mut random = mobifs_numerics::Random::new(3);
        for number in 1..=200_u8 {
            let offset = random.below(60) * 512;
            let bytes = (1 + random.below(20)) as usize * 512;
            file.write_all_at(&vec![number; bytes], offset).unwrap();
        }
        file.sync_all().unwrap();
        drop(file);
        let end = served.end_handle();
        end.end().unwrap();
        served.wait().unwrap();
        let log = Journal::open(&log).unwrap();
        let mut view = View::new(&log, None);
        log.commands().for_each(|command| view.apply(&command));
        let (mut expected, mut found) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        File::open(&image)
            .unwrap()
            .read_exact_at(&mut expected, 0)
            .unwrap();
        view.read_at(&mut found, 0).unwrap();
        assert!(expected == found, "the content differs");
        assert!(expected.iter().any(|&byte| byte > 0));
        // From the middle of what a command wrote.
        view.read_at(&mut found[..700], 1111).unwrap();
        assert_eq!(found[..700], expected[1111..1811]);
        view.read_at(&mut found[..1], 64 << 20).unwrap_err();
    }
}
