//! Setting a flag on all files below a directory, and taking it away.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::Descent;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, XattrFlags, fgetxattr,
    fremovexattr, fsetxattr, fstat, ioctl_getflags, ioctl_setflags, openat2, statat,
};
use rustix::io::Errno;

/// An attribute of a directory whose files were marked by this program: it lies in the filesystem, as the
/// flags do, so that the daemon after a power cut knows that they are to be taken away.
const ATTRIBUTE: &str = "trusted.mobifs.only";

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// What is renamed, replaced or mounted over meanwhile leads nowhere else.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV)
    .union(ResolveFlags::NO_MAGICLINKS);
/// How often a tree is looked through whose directories are moved meanwhile.
const WALKS_MAX: u32 = 8;

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
        let top = openat2(
            CWD,
            directory,
            DIRECTORY,
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
        for _ in 1..WALKS_MAX {
            match self.walk(is_on) {
                // A directory was moved while it was looked through: what is done already is passed
                // over the next time.
                Err(Errno::STALE) => {}
                walked => return Ok(walked?),
            }
        }
        Ok(self.walk(is_on)?)
    }

    fn walk(&self, is_on: bool) -> Result<Marked, Errno> {
        let mut marked = Marked::default();
        let mut path = PathBuf::from(".");
        let top = openat2(&self.top, c".", DIRECTORY, Mode::empty(), RESOLVE)?;
        let mut tree = Descent::with(top, RESOLVE);
        // Of each directory on the way, those in it that are still to be looked through.
        let mut waiting = vec![self.each_in(tree.directory(), &path, is_on, &mut marked)];
        while let Some(level) = waiting.last_mut() {
            let Some(name) = level.pop() else {
                waiting.pop();
                path.pop();
                if !waiting.is_empty() {
                    tree.leave()?;
                }
                continue;
            };
            let inner = path.join(OsStr::from_bytes(name.to_bytes()));
            match tree.enter(&name) {
                Ok(()) => {
                    path = inner;
                    waiting.push(self.each_in(tree.directory(), &path, is_on, &mut marked));
                }
                Err(errno) => marked.fails(&inner, errno),
            }
        }
        Ok(marked)
    }

    /// Sets or clears the flag on a directory and the files in it; returns the directories in it.
    fn each_in(
        &self,
        directory: &OwnedFd,
        path: &Path,
        is_on: bool,
        marked: &mut Marked,
    ) -> Vec<CString> {
        let mut inner = Vec::new();
        if let Err(errno) = self.try_each_in(directory, path, is_on, marked, &mut inner) {
            marked.fails(path, errno);
        }
        inner
    }

    fn try_each_in(
        &self,
        directory: &OwnedFd,
        path: &Path,
        is_on: bool,
        marked: &mut Marked,
        inner: &mut Vec<CString>,
    ) -> Result<(), Errno> {
        set(directory, is_on)?;
        marked.done += 1;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => kind_of(directory, name)?,
                kind => kind,
            };
            match kind {
                FileType::Directory => inner.push(name.to_owned()),
                FileType::RegularFile => match self.set_file(directory, name, is_on) {
                    Ok(()) => marked.done += 1,
                    Err(errno) => {
                        let place = path.join(OsStr::from_bytes(name.to_bytes()));
                        marked.fails(&place, errno);
                    }
                },
                _ => {}
            }
        }
        Ok(())
    }

    fn set_file(&self, directory: &OwnedFd, name: &CStr, is_on: bool) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(directory, name, flags, Mode::empty(), RESOLVE)?;
        let about = fstat(&file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile
            || about.st_dev != self.device
        {
            return Ok(());
        }
        set(&file, is_on)
    }
}

fn kind_of(directory: &OwnedFd, name: &CStr) -> Result<FileType, Errno> {
    let about = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(about.st_mode))
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
