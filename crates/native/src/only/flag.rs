//! Setting a flag on all files below a directory, and taking it away.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, XattrFlags, fgetxattr, fremovexattr,
    fsetxattr, fstat, ioctl_getflags, ioctl_setflags, openat2,
};
use rustix::io::Errno;

/// An attribute of a directory whose files were marked by this program: it lies in the filesystem, as the
/// flags do, so that the daemon after a power cut knows that they are to be taken away.
const ATTRIBUTE: &str = "trusted.mobifs.only";

/// A directory with all that is below it in its filesystem.
pub(super) struct Tree {
    top: OwnedFd,
    device: u64,
}

/// What was marked.
#[derive(Debug, Default)]
pub(super) struct Marked {
    pub(super) done: u64,
    /// What could not be marked.
    pub(super) left: u64,
    /// The first of these.
    pub(super) first: Option<(PathBuf, Errno)>,
}

impl Tree {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = openat2(
            CWD,
            directory,
            flags,
            Mode::empty(),
            ResolveFlags::NO_MAGICLINKS,
        )?;
        let device = fstat(&top)?.st_dev;
        Ok(Self { top, device })
    }

    /// Marks everything. If the directory was marked by someone else, it stays so when this is undone.
    pub(super) fn mark(&self) -> io::Result<Marked> {
        let was_marked = ioctl_getflags(&self.top)?.contains(IFlags::JOURNALING);
        if !was_marked {
            fsetxattr(&self.top, ATTRIBUTE, b"1", XattrFlags::empty())?;
        }
        // The directory itself tells whether that is possible at all.
        if let Err(errno) = set(&self.top, true) {
            let _removed = fremovexattr(&self.top, ATTRIBUTE);
            return Err(errno.into());
        }
        self.each(true)
    }

    /// Takes the flag away from everything, if this program has set it.
    pub(super) fn unmark(&self) -> io::Result<()> {
        match fgetxattr(&self.top, ATTRIBUTE, &mut [0_u8; 8]) {
            Err(Errno::NODATA) => return Ok(()),
            other => other?,
        };
        let marked = self.each(false)?;
        if let Some((_, errno)) = marked.first {
            return Err(errno.into());
        }
        fremovexattr(&self.top, ATTRIBUTE)?;
        Ok(())
    }

    /// Sets or clears the flag on all directories, each before what is in it, and files.
    fn each(&self, is_on: bool) -> io::Result<Marked> {
        let mut marked = Marked::default();
        let mut waiting = vec![PathBuf::from(".")];
        while let Some(directory) = waiting.pop() {
            if let Err(errno) = self.each_in(&directory, is_on, &mut waiting, &mut marked) {
                marked.fails(&directory, errno);
            }
        }
        Ok(marked)
    }

    fn each_in(
        &self,
        directory: &Path,
        is_on: bool,
        waiting: &mut Vec<PathBuf>,
        marked: &mut Marked,
    ) -> Result<(), Errno> {
        // What is renamed, replaced or mounted over meanwhile leads nowhere else.
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_XDEV
            | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(&self.top, directory, flags, Mode::empty(), resolve)?;
        set(&opened, is_on)?;
        marked.done += 1;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let place = || directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                FileType::RegularFile => false,
                FileType::Unknown => place().is_dir(),
                _ => continue,
            };
            if is_directory {
                waiting.push(place());
                continue;
            }
            match self.set_file(&opened, &name.to_owned(), is_on, resolve) {
                Ok(()) => marked.done += 1,
                Err(errno) => marked.fails(&place(), errno),
            }
        }
        Ok(())
    }

    fn set_file(
        &self,
        directory: &OwnedFd,
        name: &CString,
        is_on: bool,
        resolve: ResolveFlags,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(directory, name, flags, Mode::empty(), resolve)?;
        let about = fstat(&file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile
            || about.st_dev != self.device
        {
            return Ok(());
        }
        set(&file, is_on)
    }
}

impl Marked {
    fn fails(&mut self, path: &Path, errno: Errno) {
        // It has gone meanwhile, or another filesystem is mounted there.
        if matches!(errno, Errno::NOENT | Errno::XDEV) {
            return;
        }
        self.left += 1;
        self.first.get_or_insert_with(|| (path.to_owned(), errno));
    }
}

fn set(file: impl AsFd, is_on: bool) -> Result<(), Errno> {
    let flags = ioctl_getflags(&file)?;
    let mut wanted = flags;
    wanted.set(IFlags::JOURNALING, is_on);
    if wanted == flags {
        return Ok(());
    }
    ioctl_setflags(&file, wanted)
}
