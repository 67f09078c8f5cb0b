//! Going through trees of any depth with one descriptor and no recursion.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Number of the device, and of the inode.
type Identity = (u64, u64);

/// A directory in a tree, and the way back to its top. One that is moved elsewhere meanwhile leads
/// nowhere else: going up ends with `ESTALE` then.
#[derive(Debug)]
pub struct Descent {
    directory: OwnedFd,
    /// Those above it, the top first.
    above: Vec<Identity>,
    resolve: ResolveFlags,
}

impl Descent {
    /// Begins at the top of a tree.
    pub const fn new(top: OwnedFd) -> Self {
        Self::with(top, ResolveFlags::empty())
    }

    /// A descent where entering a directory is limited in this way.
    pub const fn with(top: OwnedFd, resolve: ResolveFlags) -> Self {
        Self {
            directory: top,
            above: Vec::new(),
            resolve,
        }
    }

    /// The directory that it is in.
    pub const fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Goes into a directory of the one that it is in; a symbolic link is none.
    ///
    /// # Errors
    /// There is no such directory. It stays where it is.
    pub fn enter(&mut self, name: &CStr) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let above = identity(&self.directory)?;
        let inner = if self.resolve.is_empty() {
            openat(&self.directory, name, flags, Mode::empty())?
        } else {
            openat2(&self.directory, name, flags, Mode::empty(), self.resolve)?
        };
        self.above.push(above);
        self.directory = inner;
        Ok(())
    }

    /// Goes back to the directory that this one was entered from; `false` at the top.
    ///
    /// # Errors
    /// `ESTALE`: it is not there any more.
    pub fn leave(&mut self) -> Result<bool, Errno> {
        let Some(&above) = self.above.last() else {
            return Ok(false);
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outer = openat(&self.directory, c"..", flags, Mode::empty())?;
        if identity(&outer)? != above {
            return Err(Errno::STALE);
        }
        self.above.pop();
        self.directory = outer;
        Ok(true)
    }
}

fn identity(directory: &OwnedFd) -> Result<Identity, Errno> {
    let about = fstat(directory)?;
    // Their types differ between machines.
    #[allow(clippy::unnecessary_cast, reason = "narrower on 32-bit machines")]
    Ok((about.st_dev as u64, about.st_ino as u64))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, mkdirat, open, renameat};

    use super::*;

    fn top(path: &std::path::Path) -> Descent {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Descent::new(open(path, flags, Mode::empty()).unwrap())
    }

    #[test]
    fn a_tree_may_be_deeper_than_any_path() {
        const DEPTH: usize = 3_000;
        let base = tempfile::tempdir().unwrap();
        let mut tree = top(base.path());
        for _ in 0..DEPTH {
            mkdirat(tree.directory(), c"directory", Mode::RWXU).unwrap();
            tree.enter(c"directory").unwrap();
        }
        let mut depth = 0;
        while tree.leave().unwrap() {
            let flags = rustix::fs::AtFlags::REMOVEDIR;
            rustix::fs::unlinkat(tree.directory(), c"directory", flags).unwrap();
            depth += 1;
        }
        assert_eq!(depth, DEPTH);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_moved_meanwhile_leads_nowhere_else() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("tree/inner")).unwrap();
        fs::create_dir(base.path().join("other")).unwrap();
        let mut tree = top(&base.path().join("tree"));
        tree.enter(c"inner").unwrap();
        let (from, to) = (
            base.path().join("tree/inner"),
            base.path().join("other/inner"),
        );
        renameat(CWD, &from, CWD, &to).unwrap();
        assert_eq!(tree.leave(), Err(Errno::STALE));
        std::os::unix::fs::symlink("other", base.path().join("link")).unwrap();
        let mut tree = top(base.path());
        assert!(tree.enter(c"link").is_err());
        assert!(tree.enter(c"missing").is_err());
        assert_eq!(tree.leave(), Ok(false));
    }
}
