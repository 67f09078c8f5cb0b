//! Finds the files below the paths, and where they lie.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_fragmentation::{
    Benefit, Model, Pieces, extent_bytes_max, extents_of, is_rollback_journal,
};
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, accessat, fstat,
    ioctl_getflags, openat, openat2,
};
use rustix::io::Errno;

use crate::error::DefragError;
use crate::plan::{FileLayout, Piece, joined};
use crate::report::Sums;

/// A file, and where it lies.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The path that was given, above it.
    pub(crate) top: usize,
    /// Its path from there; empty: it was given itself.
    pub(crate) path: PathBuf,
    pub(crate) inode: u64,
    pub(crate) extents: u64,
    /// The least that it could have.
    pub(crate) least: u64,
    pub(crate) layout: FileLayout,
    /// Physical ranges that were allocated and never written.
    pub(crate) unwritten: Vec<Piece>,
    pub(crate) is_shared: bool,
}

/// Which files are kept; all are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Those that are wanted and may move.
    Wanted,
    /// All that may move, to make room.
    Movable,
}

/// The files that are kept, and counts of all.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) tops: Vec<(PathBuf, OwnedFd)>,
    pub(crate) files: Vec<Found>,
    pub(crate) sums: Sums,
    /// Extents that files had before, by inode, and how many have more now.
    pub(crate) extents_before: HashMap<u64, u64>,
    pub(crate) worse_files: u64,
    /// What is left alone, by reason.
    pub(crate) left_out: BTreeMap<&'static str, u64>,
}

/// What a scan has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks<'a> {
    pub(crate) filesystem: &'a str,
    pub(crate) block_bytes: u64,
    pub(crate) model: Model,
    /// All fragmented files are wanted, not only those that are worth it.
    pub(crate) takes_all: bool,
    /// Files with shared extents are moved, too, and have their own afterwards.
    pub(crate) unshares: bool,
}

pub(crate) const ROOT_ONLY: &str = "files that only root may move without changing their times";

pub(crate) const EXT4_STAYS: &str =
    "files that ext4 does not move (encrypted, without extents, or with a journal for their data)";

/// `EXT4_ENCRYPT_FL` and `EXT4_JOURNAL_DATA_FL`, which keep a file where it is.
const EXT4_FIXED: IFlags = IFlags::from_bits_retain(0x800 | 0x4000);
/// `EXT4_EXTENTS_FL`, which a file must have.
const EXT4_EXTENTS: IFlags = IFlags::from_bits_retain(0x8_0000);

const RESOLVE: ResolveFlags = ResolveFlags::NO_SYMLINKS
    .union(ResolveFlags::NO_XDEV)
    .union(ResolveFlags::BENEATH);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

pub(crate) fn scan(
    paths: &[PathBuf],
    looks: Looks<'_>,
    keep: Keep,
    extents_before: HashMap<u64, u64>,
) -> Result<Tree, DefragError> {
    let mut tree = Tree {
        extents_before,
        ..Tree::default()
    };
    let mut known = HashSet::new();
    for path in paths {
        let opened =
            openat(CWD, path, READ, Mode::empty()).map_err(|e| DefragError::at(path, e))?;
        let about = fstat(&opened).map_err(|e| DefragError::at(path, e))?;
        let top = tree.tops.len();
        tree.tops.push((path.clone(), opened));
        if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
            tree.walk(top, (looks, keep), &mut known);
        } else {
            tree.file(top, Path::new(""), (looks, keep), &mut known);
        }
    }
    Ok(tree)
}

impl Tree {
    fn leave_out(&mut self, reason: &'static str) {
        *self.left_out.entry(reason).or_default() += 1;
    }

    fn walk(&mut self, top: usize, how: (Looks<'_>, Keep), known: &mut HashSet<u64>) {
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let Ok(entries) = self.entries(top, &directory) else {
                self.leave_out("directories that cannot be read");
                continue;
            };
            for (name, kind) in entries {
                let path = directory.join(name);
                match kind {
                    FileType::Directory => directories.push(path),
                    FileType::RegularFile => self.file(top, &path, how, known),
                    _ => {}
                }
            }
        }
    }

    fn entries(&self, top: usize, directory: &Path) -> io::Result<Vec<(OsString, FileType)>> {
        let opened = self.open(top, directory, READ | OFlags::DIRECTORY)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let name = std::ffi::OsStr::from_bytes(name).to_owned();
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let at = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                        let about = rustix::fs::statat(&opened, name.as_os_str(), at)?;
                        FileType::from_raw_mode(about.st_mode)
                    }
                    kind => kind,
                };
                found.push((name, kind));
            }
        }
        // The order of names, so that the same tree gives the same plan.
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Opens what lies below a path that was given; neither links nor mounts lead out.
    pub(crate) fn open(&self, top: usize, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (given, opened) = self.tops.get(top).ok_or(Errno::NOENT)?;
        if path.as_os_str().is_empty()
            && FileType::from_raw_mode(fstat(opened)?.st_mode) != FileType::Directory
        {
            return openat(CWD, given, flags, Mode::empty());
        }
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        openat2(opened, path, flags, Mode::empty(), RESOLVE)
    }

    /// The path of a file, for people.
    pub(crate) fn path(&self, file: &Found) -> PathBuf {
        let top = self.tops.get(file.top).map(|(path, _)| path.as_path());
        let top = top.unwrap_or(Path::new(""));
        if file.path.as_os_str().is_empty() {
            top.to_owned()
        } else {
            top.join(&file.path)
        }
    }

    fn file(
        &mut self,
        top: usize,
        path: &Path,
        (looks, keep): (Looks<'_>, Keep),
        known: &mut HashSet<u64>,
    ) {
        match self.look(top, path, looks, known) {
            Ok(Some(mut found)) => {
                self.sums.add(found.extents, found.least);
                let was = self.extents_before.get(&found.inode);
                self.worse_files += u64::from(was.is_some_and(|&was| found.extents > was));
                let layout = &mut found.layout;
                if layout.may_move && (layout.is_wanted || keep == Keep::Movable) {
                    // Nothing else looks at it, and there may be many.
                    found.unwritten = Vec::new();
                    layout.pieces.shrink_to_fit();
                    self.files.push(found);
                }
            }
            Ok(None) => {}
            Err(Errno::NOENT | Errno::LOOP) => self.leave_out("files that vanished"),
            Err(Errno::ACCESS | Errno::PERM) => self.leave_out("files that this user may not read"),
            Err(Errno::XDEV) => self.leave_out("files of other filesystems"),
            Err(_) => self.leave_out("files that cannot be read"),
        }
    }

    fn look(
        &mut self,
        top: usize,
        path: &Path,
        looks: Looks<'_>,
        known: &mut HashSet<u64>,
    ) -> Result<Option<Found>, Errno> {
        let file = self.open(top, path, READ)?;
        let about = fstat(&file)?;
        let (inode, size) = (about.st_ino, u64::try_from(about.st_size).unwrap_or(0));
        if size == 0 {
            return Ok(None);
        }
        // Only a file of several names, or below several paths, is met twice.
        if (about.st_nlink > 1 || self.tops.len() > 1) && !known.insert(inode) {
            return Ok(None);
        }
        let Some(mut found) = look_at(&file, size, looks)? else {
            self.leave_out("files without extents of their own (inline, compressed, no place yet)");
            return Ok(None);
        };
        (found.top, found.inode) = (top, inode);
        found.path = path.to_owned();
        let name = self.path(&found);
        if let Some(reason) = self.why_left_alone(&file, &name, &found, looks) {
            // It is measured, but does not move.
            found.layout.may_move = false;
            if found.layout.pieces.len() > 1 {
                self.leave_out(reason);
            }
        }
        Ok(Some(found))
    }

    fn why_left_alone(
        &self,
        file: &OwnedFd,
        name: &Path,
        found: &Found,
        looks: Looks<'_>,
    ) -> Option<&'static str> {
        if is_rollback_journal(name.as_os_str().as_bytes()) {
            return Some("rollback journals, which live for one transaction");
        }
        if found.is_shared && !looks.unshares {
            return Some(
                "files with shared extents (--unshare moves them, and they take more room)",
            );
        }
        let flags = ioctl_getflags(file);
        let has = |of: IFlags| flags.is_ok_and(|flags| flags.intersects(of));
        if has(IFlags::IMMUTABLE | IFlags::APPEND) {
            return Some("immutable and append-only files");
        }
        let has_no_extents = flags.is_ok() && !has(EXT4_EXTENTS);
        if looks.filesystem == "ext4" && (has(EXT4_FIXED) || has_no_extents) {
            return Some(EXT4_STAYS);
        }
        if rustix::process::geteuid().is_root() {
            return None;
        }
        if looks.filesystem == "xfs" {
            return Some(ROOT_ONLY);
        }
        let may_not = matches!(self.may_write(found), Err(Errno::ACCESS | Errno::PERM));
        may_not.then_some("files that this user may not write")
    }

    fn may_write(&self, file: &Found) -> Result<(), Errno> {
        let (given, opened) = self.tops.get(file.top).ok_or(Errno::NOENT)?;
        if file.path.as_os_str().is_empty() {
            accessat(CWD, given, Access::WRITE_OK, AtFlags::EACCESS)
        } else {
            accessat(opened, &file.path, Access::WRITE_OK, AtFlags::EACCESS)
        }
    }
}

/// Where an open file lies; none if it has no extents that could move.
pub(crate) fn look_at(
    file: impl AsFd,
    size: u64,
    looks: Looks<'_>,
) -> Result<Option<Found>, Errno> {
    let mut pieces = Pieces::new(size, looks.block_bytes, extent_bytes_max(looks.filesystem));
    let end = pieces.end();
    let extents = extents_of(file, end);
    let extents = extents.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut places = Vec::with_capacity(extents.len());
    let mut unwritten = Vec::new();
    let mut is_shared = false;
    for extent in extents {
        pieces.push(extent, true, &mut |_| {});
        is_shared |= extent.is_shared;
        if extent.is_inline || extent.is_unplaced || extent.is_encoded {
            return Ok(None);
        }
        let length = extent.length.min(end.saturating_sub(extent.logical));
        if length == 0 {
            continue;
        }
        let piece = Piece {
            logical: extent.logical,
            physical: extent.physical,
            length,
        };
        if extent.is_unwritten {
            unwritten.push(piece);
        }
        places.push(piece);
    }
    let shape = pieces.finish(&mut |_| {});
    let is_fragmented = shape.excess() > 0;
    let is_worth_it = Benefit::of(&shape, looks.model).is_worth_it();
    let layout = FileLayout {
        pieces: joined(&places),
        may_move: true,
        is_wanted: is_fragmented && (looks.takes_all || is_worth_it),
        hot: None,
    };
    Ok(Some(Found {
        top: 0,
        path: PathBuf::new(),
        inode: 0,
        extents: shape.extents,
        least: shape.least,
        layout,
        unwritten,
        is_shared,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_one_piece_are_counted_and_kept_only_to_make_room() {
        const FILES: u64 = 50;
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        for number in 0..FILES {
            let path = base.path().join(number.to_string());
            std::fs::write(&path, [7; 4096]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
        }
        let looks = Looks {
            filesystem: "ext4",
            block_bytes: 4096,
            model: Model::default(),
            takes_all: true,
            unshares: true,
        };
        let found = |keep| scan(&[base.path().into()], looks, keep, HashMap::new()).unwrap();
        let counted = found(Keep::Wanted);
        let why = (counted.sums.state().files < FILES).then_some("no extents in /var/tmp");
        if !mobifs_skip::can(why) {
            return;
        }
        assert_eq!(counted.sums.state().files, FILES);
        assert!(counted.files.is_empty());
        let movable = found(Keep::Movable);
        assert_eq!(movable.files.len() as u64, FILES);
        assert_eq!(movable.sums.state(), counted.sums.state());
        let is_small =
            |file: &Found| file.unwritten.capacity() == 0 && file.layout.pieces.capacity() == 1;
        assert!(movable.files.iter().all(is_small));
    }
}
