//! Measures files and directories of mounted filesystems.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, fstatvfs, openat};
use rustix::io::{Errno, pread};

use crate::collector::{Collector, Place};
use crate::error::MeasureError;
use crate::facts::FileFacts;
use crate::fiemap::Mapper;
use crate::filesystem::{extent_bytes_max, is_defined};
use crate::fsmap;
use crate::kind::{HEADER_BYTES, Kind};
use crate::layout::Layout;
use crate::report::Filesystem;
use crate::targets::{Identity, Sort, Target};
use crate::tree::{self, Visitor};

/// How files are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    /// Content without a place is written out.
    pub(crate) may_sync: bool,
    /// The beginning of files is read where their names do not say the kind.
    pub(crate) reads_headers: bool,
    /// Only files that were read since.
    pub(crate) read_since_s: Option<i64>,
}

/// A filesystem with something to measure.
struct Met {
    device: u64,
    /// Its number in the report.
    place: usize,
    /// Something of it, and its path.
    opened: OwnedFd,
    path: PathBuf,
}

pub(crate) struct Mounted<'c, 'w> {
    collector: &'c mut Collector<'w>,
    looks: Looks,
    mapper: Mapper,
    targets: HashSet<Identity>,
    progress: &'c dyn Fn(u64),
    /// The filesystems met.
    places: Vec<Met>,
    place: usize,
    /// What is being measured.
    target: Option<Target>,
}

impl<'c, 'w> Mounted<'c, 'w> {
    pub(crate) fn new(
        collector: &'c mut Collector<'w>,
        looks: Looks,
        targets: HashSet<Identity>,
        progress: &'c dyn Fn(u64),
    ) -> Self {
        Self {
            collector,
            looks,
            mapper: Mapper::new(),
            targets,
            progress,
            places: Vec::new(),
            place: 0,
            target: None,
        }
    }

    pub(crate) fn measure(&mut self, target: Target) -> Result<(), MeasureError> {
        let path = target.path.clone();
        let sort = target.sort;
        let at = |errno: Errno| MeasureError::at(&path, errno);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, &path, flags, Mode::empty()).map_err(at)?;
        self.place = self.place_of(&target, opened).map_err(at)?;
        self.target = Some(target);
        if sort == Sort::Directory {
            return tree::walk(&path, self);
        }
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent, flags, Mode::empty()).map_err(at)?;
        let name = path.file_name().unwrap_or_default();
        let name = CString::new(name.as_bytes()).map_err(|_| at(Errno::INVAL))?;
        let file =
            tree::open_file(&directory, &name).map_err(|error| MeasureError::at(&path, error))?;
        self.opened_file(&file, path.as_os_str().as_bytes())
    }

    /// Takes up what is free. It comes last: the files that were measured have their places by then, also
    /// those that the kernel had not written out.
    pub(crate) fn finish(self) -> Result<(), MeasureError> {
        for met in &self.places {
            let extents = |found: &mut dyn FnMut(u64, u64)| fsmap::free_extents(&met.opened, found);
            let taken = self.collector.free(met.place, extents);
            taken.map_err(|errno: Errno| MeasureError::at(&met.path, errno))?;
        }
        Ok(())
    }

    /// The number of the filesystem that a target lies on.
    fn place_of(&mut self, target: &Target, opened: OwnedFd) -> Result<usize, Errno> {
        let device = target.identity.0;
        if let Some(met) = self.places.iter().find(|met| met.device == device) {
            return Ok(met.place);
        }
        let size = fstatvfs(&opened)?;
        let mount = target.mount.as_ref();
        let name = mount.map_or_else(|| "unknown".to_owned(), |mount| mount.kind.clone());
        if !is_defined(&name) {
            self.collector.notes.push(format!(
                "{name} is a filesystem for which the degree of fragmentation is not defined: \
                 1 extent counts as the least, as for XFS"
            ));
        }
        let source = mount.map(|mount| mount.source.to_string_lossy().into_owned());
        let place = self.collector.places.len();
        self.collector.places.push(Place {
            about: Filesystem {
                extent_bytes_max: extent_bytes_max(&name),
                name,
                source: source.unwrap_or_default(),
                is_image: false,
                size_bytes: size.f_blocks.saturating_mul(size.f_frsize),
                files: 0,
                free: None,
            },
            block_bytes: size.f_frsize,
            layout: Layout::default(),
        });
        self.places.push(Met {
            device,
            place,
            opened,
            path: target.path.clone(),
        });
        Ok(place)
    }

    fn opened_file(&mut self, file: &OwnedFd, path: &[u8]) -> Result<(), MeasureError> {
        match self.look(file, path) {
            Ok(()) => {}
            Err(Trouble::NoMap) => return Err(self.no_map()),
            Err(Trouble::Io(error)) => self.collector.failed(path, &error),
            Err(Trouble::Output(error)) => {
                let path = "the file for --csv".into();
                return Err(MeasureError::Io { path, error });
            }
        }
        (self.progress)(self.collector.seen());
        Ok(())
    }

    fn no_map(&self) -> MeasureError {
        let target = self.target.as_ref();
        let mount = target.and_then(|target| target.mount.as_ref());
        MeasureError::NoMap {
            path: target.map(|target| target.path.clone()).unwrap_or_default(),
            filesystem: mount.map_or_else(|| "a filesystem".to_owned(), |mount| mount.kind.clone()),
        }
    }

    fn look(&mut self, file: &OwnedFd, path: &[u8]) -> Result<(), Trouble> {
        let about = fstat(file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            self.collector.left_out.vanished += 1;
            return Ok(());
        }
        let numbers = Numbers::of(&about);
        if self
            .looks
            .read_since_s
            .is_some_and(|since| numbers.read_s < since)
        {
            self.collector.left_out.not_read_lately += 1;
            return Ok(());
        }
        if self
            .collector
            .is_known(self.place, numbers.inode, numbers.names)
        {
            return Ok(());
        }
        let (place, collector) = (self.place, &mut *self.collector);
        let mut pieces = collector.begin(place, numbers.size);
        // Of an empty file as well, because the answer says whether there are any.
        let end = pieces.end().max(1);
        self.mapper
            .extents(file.as_fd(), end, self.looks.may_sync, &mut |extent| {
                collector.extent(place, &mut pieces, extent);
            })
            .map_err(|errno| match errno {
                Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS => Trouble::NoMap,
                errno => errno.into(),
            })?;
        let facts = FileFacts {
            path,
            size: numbers.size,
            kind: self.kind(file, path, numbers.size),
            read_s: numbers.read_s,
        };
        self.collector
            .finish(place, pieces, &facts)
            .map_err(Trouble::Output)
    }

    fn kind(&self, file: &OwnedFd, path: &[u8], size: u64) -> Kind {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if let Some(kind) = Kind::of_name(name) {
            return kind;
        }
        let mut header = [0; HEADER_BYTES];
        if !self.looks.reads_headers || size == 0 {
            return Kind::Other;
        }
        // A file that cannot be read has a kind by its name only.
        let read = pread(file, &mut header, 0).unwrap_or(0);
        let header = header.get(..read).unwrap_or_default();
        Kind::of_header(header).unwrap_or(Kind::Other)
    }
}

impl<'w> Visitor<'w> for Mounted<'_, 'w> {
    fn collector(&mut self) -> &mut Collector<'w> {
        self.collector
    }

    fn file(&mut self, directory: &OwnedFd, name: &CStr, path: &[u8]) -> Result<(), MeasureError> {
        match tree::open_file(directory, name) {
            Ok(file) => {
                let is_other = self.targets.len() > 1
                    && fstat(&file).is_ok_and(|about| {
                        let numbers = Numbers::of(&about);
                        self.is_other_target(numbers.device, numbers.inode)
                    });
                if is_other {
                    return Ok(());
                }
                self.opened_file(&file, path)
            }
            Err(error) => {
                let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
                if is(Errno::XDEV) {
                    self.collector.left_out.other_filesystems += 1;
                } else if is(Errno::LOOP) || is(Errno::NXIO) {
                    // What was a file when it was listed is none any more.
                    self.collector.left_out.vanished += 1;
                } else {
                    self.collector.failed(path, &error);
                }
                Ok(())
            }
        }
    }

    fn is_other_target(&self, device: u64, inode: u64) -> bool {
        self.targets.len() > 1 && self.targets.contains(&(device, inode))
    }
}

/// Why a file could not be looked at.
enum Trouble {
    NoMap,
    Io(io::Error),
    Output(io::Error),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Numbers of a file, whose types differ between machines.
struct Numbers {
    device: u64,
    inode: u64,
    names: u64,
    size: u64,
    read_s: i64,
}

impl Numbers {
    #[allow(clippy::unnecessary_cast, reason = "narrower on 32-bit machines")]
    const fn of(about: &Stat) -> Self {
        Self {
            device: about.st_dev as u64,
            inode: about.st_ino as u64,
            names: about.st_nlink as u64,
            size: about.st_size as u64,
            read_s: about.st_atime as i64,
        }
    }
}
