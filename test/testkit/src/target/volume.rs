//! A volume without a kernel in front of it.
//!
//! It is called as the kernel calls it: objects by number, references counted, and
//! what the kernel answers by itself is answered here.

mod references;
mod trim;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_volume::{
    AllocateMode as VolumeAllocateMode, AttributeChange, Caller, FsError, NodeSpec,
    RenameMode as VolumeRenameMode, SetIdBits, TimeChange, Volume, Whence, WriteAt,
    XattrMode as VolumeXattrMode,
};
use rustix::io::Errno;

use super::Target;
use super::known_names::KnownNames;
use crate::model::{
    Content, Outcome, UMASK, only_held, only_regular, only_with_user_xattrs, split,
};
use crate::operations::{
    AllocateMode, Answer, FileRef, NodeKind, Operation, RenameMode, Slot, XattrMode,
};
use crate::tree::{Mtime, Tree, TreeNode};

/// Entries asked for at a time, so few that a listing is always continued.
const LIST_ENTRIES: usize = 3;
/// One of so many listings is disturbed.
const DISTURBED_LISTING: u64 = 4;
/// Files up to this size are read byte by byte; of larger ones only what
/// `SEEK_DATA` finds.
const READ_WHOLE_BYTES_MAX: u64 = 4 << 20;

const ROOT_USER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: UMASK,
};

/// A volume and the files that the test program has open.
#[derive(Debug)]
pub struct VolumeTarget {
    volume: Arc<Volume>,
    open: BTreeMap<Slot, ObjectId>,
    /// Open objects other than regular files.
    held: BTreeMap<Slot, (ObjectId, FileKind)>,
    /// None: every name is looked up each time, and nothing known of objects not in use.
    names: Option<RefCell<KnownNames>>,
    listings: Cell<u64>,
    /// Files that the operation under way, or the last one, has opened for its own time.
    opened_by_path: RefCell<Vec<ObjectId>>,
}

/// A counted reference to an object, given back at the end.
struct Held<'v> {
    volume: &'v Volume,
    id: ObjectId,
    kind: FileKind,
    /// The reference is among those of the known names, and stays.
    is_lent: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.id != ObjectId::ROOT && !self.is_lent {
            self.volume.forget(self.id, 1);
        }
    }
}

impl VolumeTarget {
    /// Works on this volume.
    pub const fn new(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
            names: None,
            listings: Cell::new(0),
            opened_by_path: RefCell::new(Vec::new()),
        }
    }

    /// This target with a kernel that caches names, and does not look them up again.
    #[must_use]
    pub fn remembering_names(self) -> Self {
        Self {
            names: Some(RefCell::default()),
            ..self
        }
    }

    /// The volume.
    pub const fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn hold(&self, id: ObjectId, kind: FileKind) -> Held<'_> {
        Held {
            volume: &self.volume,
            id,
            kind,
            is_lent: self.names.is_some(),
        }
    }

    fn lookup(&self, parent: ObjectId, name: &str) -> Result<Held<'_>, Errno> {
        let known = self.names.as_ref().and_then(|names| {
            let place = (parent, name.as_bytes().to_vec());
            names.borrow().get(&place)
        });
        if let Some((id, kind)) = known {
            return Ok(self.hold(id, kind));
        }
        let node = self.volume.lookup(parent, name.as_bytes()).map_err(errno)?;
        Ok(self.learn(parent, name.as_bytes(), (node.id, node.attributes.kind)))
    }

    /// The volume has counted a reference to what has this name.
    fn learn(&self, parent: ObjectId, name: &[u8], object: (ObjectId, FileKind)) -> Held<'_> {
        if let Some(names) = &self.names {
            names.borrow_mut().learn((parent, name.to_vec()), object);
        }
        self.hold(object.0, object.1)
    }

    fn unlearn(&self, parent: ObjectId, name: &[u8]) {
        if let Some(names) = &self.names {
            names.borrow_mut().removed(&(parent, name.to_vec()));
        }
    }

    fn object(&self, path: &str) -> Result<Held<'_>, Errno> {
        let mut at = self.hold(ObjectId::ROOT, FileKind::Directory);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            // The kernel walks on only below directories.
            if at.kind != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            at = self.lookup(at.id, name)?;
        }
        Ok(at)
    }

    fn directory(&self, path: &str) -> Result<Held<'_>, Errno> {
        let held = self.object(path)?;
        if held.kind == FileKind::Directory {
            Ok(held)
        } else {
            Err(Errno::NOTDIR)
        }
    }

    fn place<'p>(&self, path: &'p str) -> Result<(Held<'_>, &'p [u8]), Errno> {
        let (parent, name) = split(path)?;
        Ok((self.directory(parent)?, name.as_bytes()))
    }

    /// The regular file that is meant, open for the time of `act`.
    fn with_file<T>(
        &self,
        file: &FileRef,
        act: impl FnOnce(ObjectId) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match file {
            FileRef::Handle(slot) => act(*self.open.get(slot).ok_or(Errno::BADF)?),
            FileRef::Path(path) => {
                let held = self.object(path)?;
                only_regular(held.kind)?;
                self.opened_by_path.borrow_mut().push(held.id);
                self.volume.open(held.id).map_err(errno)?;
                let outcome = act(held.id);
                self.volume.release(held.id);
                outcome
            }
        }
    }

    fn make(&self, path: &str, kind: FileKind, mode: u16, rest: Rest<'_>) -> Result<(), Errno> {
        let (parent, name) = self.place(path)?;
        let spec = NodeSpec {
            kind,
            mode,
            rdev: rest.rdev,
            symlink_target: rest.target,
        };
        let node = self
            .volume
            .create(&ROOT_USER, parent.id, name, &spec)
            .map_err(errno)?;
        drop(self.learn(parent.id, name, (node.id, kind)));
        Ok(())
    }

    fn make_any(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        match operation {
            Op::CreateFile { path, mode } => {
                self.make(path, FileKind::Regular, *mode, Rest::default())
            }
            Op::MakeDirectory { path, mode } => {
                self.make(path, FileKind::Directory, *mode, Rest::default())
            }
            Op::MakeSymlink { path, target } => {
                let rest = Rest {
                    target: Some(target.as_bytes()),
                    ..Rest::default()
                };
                self.make(path, FileKind::Symlink, 0o777, rest)
            }
            Op::MakeNode { path, mode, kind } => {
                let (kind, rdev) = match *kind {
                    NodeKind::Fifo => (FileKind::Fifo, DeviceNumber(0)),
                    NodeKind::Socket => (FileKind::Socket, DeviceNumber(0)),
                    NodeKind::CharDevice(major, minor) => {
                        (FileKind::CharDevice, DeviceNumber::new(major, minor))
                    }
                    NodeKind::BlockDevice(major, minor) => {
                        (FileKind::BlockDevice, DeviceNumber::new(major, minor))
                    }
                };
                self.make(
                    path,
                    kind,
                    *mode,
                    Rest {
                        rdev,
                        ..Rest::default()
                    },
                )
            }
            other => unreachable!("{other:?} makes no object"),
        }
    }

    fn link(&self, id: ObjectId, to: &str) -> Result<(), Errno> {
        let (parent, name) = self.place(to)?;
        let node = self.volume.link(id, parent.id, name).map_err(errno)?;
        drop(self.learn(parent.id, name, (node.id, node.attributes.kind)));
        Ok(())
    }

    fn change_names(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        match operation {
            Op::Link { from, to } => {
                let from = self.object(from)?;
                self.link(from.id, to)
            }
            Op::LinkHandle { slot, to } => self.link(*self.open.get(slot).ok_or(Errno::BADF)?, to),
            Op::Unlink { path } => {
                let (parent, name) = self.place(path)?;
                self.volume.unlink(parent.id, name).map_err(errno)?;
                self.unlearn(parent.id, name);
                Ok(())
            }
            Op::RemoveDirectory { path } => {
                let (parent, name) = self.place(path)?;
                let removed = self.volume.remove_directory(parent.id, name);
                removed.map_err(errno)?;
                self.unlearn(parent.id, name);
                Ok(())
            }
            Op::Rename { from, to, mode } => {
                let (from, from_name) = self.place(from)?;
                let (to, to_name) = self.place(to)?;
                let mode = match mode {
                    RenameMode::Replace => VolumeRenameMode::Replace,
                    RenameMode::NoReplace => VolumeRenameMode::NoReplace,
                    RenameMode::Exchange => VolumeRenameMode::Exchange,
                    RenameMode::Whiteout => VolumeRenameMode::Whiteout(ROOT_USER),
                };
                self.volume
                    .rename(from.id, from_name, to.id, to_name, mode)
                    .map_err(errno)?;
                if let Some(names) = &self.names {
                    let (from, to) = ((from.id, from_name.to_vec()), (to.id, to_name.to_vec()));
                    names.borrow_mut().renamed(from, to, mode);
                }
                Ok(())
            }
            other => unreachable!("{other:?} changes no names"),
        }
    }

    fn set_attributes(&self, path: &str, change: AttributeChange) -> Result<(), Errno> {
        let held = self.object(path)?;
        // The kernel asks for this with every change of a file's owner.
        let set_id = if change.uid.is_some() || change.gid.is_some() {
            SetIdBits::Go
        } else {
            SetIdBits::Stay
        };
        let change = AttributeChange { set_id, ..change };
        self.volume
            .set_attributes(&ROOT_USER, held.id, &change)
            .map(drop)
            .map_err(errno)
    }

    fn change_attributes(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        let none = AttributeChange::default();
        match operation {
            Op::SetMode { path, mode } => {
                if self.object(path)?.kind == FileKind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                self.set_attributes(
                    path,
                    AttributeChange {
                        mode: Some(*mode),
                        ..none
                    },
                )
            }
            Op::SetOwner { path, uid, gid } => self.set_attributes(
                path,
                AttributeChange {
                    uid: *uid,
                    gid: *gid,
                    ..none
                },
            ),
            Op::SetMtime { path, mtime } => {
                let mtime = Some(mtime.map_or(TimeChange::Now, TimeChange::At));
                self.set_attributes(path, AttributeChange { mtime, ..none })
            }
            Op::SetXattr {
                path,
                name,
                value,
                mode,
            } => {
                let held = self.object(path)?;
                only_with_user_xattrs(held.kind)?;
                let mode = match mode {
                    XattrMode::Any => VolumeXattrMode::Any,
                    XattrMode::Create => VolumeXattrMode::Create,
                    XattrMode::Replace => VolumeXattrMode::Replace,
                };
                let (name, value) = (name.as_bytes(), value.bytes());
                self.volume
                    .set_xattr(held.id, name, &value, mode, false)
                    .map_err(errno)
            }
            Op::RemoveXattr { path, name } => {
                let held = self.object(path)?;
                only_with_user_xattrs(held.kind)?;
                self.volume
                    .remove_xattr(held.id, name.as_bytes())
                    .map_err(errno)
            }
            other => unreachable!("{other:?} changes no attributes"),
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each operation on a file"
    )]
    fn use_file(&self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Write { file, offset, data } | Op::WriteDirect { file, offset, data } => {
                self.write(file, WriteAt::Offset(*offset), *data)
            }
            Op::Append { file, data } => self.write(file, WriteAt::Append, *data),
            Op::Read {
                file,
                offset,
                length,
            }
            | Op::ReadDirect {
                file,
                offset,
                length,
            } => self.with_file(file, |id| {
                let mut out = vec![0; *length as usize];
                let count = self.volume.read(id, *offset, &mut out).map_err(errno)?;
                out.truncate(count);
                Ok(Answer::Data(out))
            }),
            Op::Truncate { file, size } => self.with_file(file, |id| {
                let change = AttributeChange {
                    size: Some(*size),
                    ..AttributeChange::default()
                };
                self.volume
                    .set_attributes(&ROOT_USER, id, &change)
                    .map_err(errno)?;
                Ok(Answer::Done)
            }),
            Op::Allocate {
                file,
                mode,
                offset,
                length,
            } => self.with_file(file, |id| {
                let mode = match *mode {
                    AllocateMode::Allocate { keep_size } => {
                        VolumeAllocateMode::Allocate { keep_size }
                    }
                    AllocateMode::PunchHole => VolumeAllocateMode::PunchHole,
                    AllocateMode::ZeroRange { keep_size } => {
                        VolumeAllocateMode::ZeroRange { keep_size }
                    }
                };
                if *length == 0 {
                    return Err(Errno::INVAL);
                }
                self.volume
                    .allocate(id, mode, *offset, *length)
                    .map_err(errno)?;
                Ok(Answer::Done)
            }),
            Op::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => self.with_file(from, |from| {
                self.with_file(to, |to| {
                    self.copy((from, *from_offset), (to, *to_offset), u64::from(*length))
                })
            }),
            Op::Fsync { file } => self.with_file(file, |id| {
                self.volume.fsync(id).map_err(errno)?;
                Ok(Answer::Done)
            }),
            other => unreachable!("{other:?} uses no file"),
        }
    }

    fn write(&self, file: &FileRef, at: WriteAt, data: crate::operations::Payload) -> Outcome {
        self.with_file(file, |id| {
            let count = self
                .volume
                .write(id, at, &data.bytes(), SetIdBits::Stay, false)
                .map_err(errno)?;
            Ok(Answer::Count(count as u64))
        })
    }

    /// The kernel shortens a copy to the end of the source and refuses one within a
    /// file that overlaps; a filesystem may copy less than asked for.
    fn copy(&self, from: (ObjectId, u64), to: (ObjectId, u64), length: u64) -> Outcome {
        let size = self
            .volume
            .attributes(from.0)
            .map_err(errno)?
            .attributes
            .size;
        let length = length.min(size.saturating_sub(from.1));
        if from.0 == to.0 && to.1 + length > from.1 && to.1 < from.1 + length {
            return Err(Errno::INVAL);
        }
        let mut copied = 0;
        while copied < length {
            let count = self
                .volume
                .copy_range(
                    from.0,
                    from.1 + copied,
                    to.0,
                    to.1 + copied,
                    length - copied,
                    SetIdBits::Stay,
                )
                .map_err(errno)?;
            if count == 0 {
                break;
            }
            copied += count as u64;
        }
        Ok(Answer::Count(copied))
    }

    /// Closes all files, as an unmount asks for.
    pub fn close_all(&mut self) {
        while let Some((&slot, _)) = self.open.first_key_value() {
            // The slot is taken: closing it succeeds.
            let _closed = self.close(slot);
        }
        while let Some((&slot, _)) = self.held.first_key_value() {
            let _closed = self.close_held(slot);
        }
        self.give_back();
    }

    /// The kernel opens neither directories nor what is opened with `O_PATH`: it holds a
    /// reference.
    fn hold_slot(&mut self, slot: Slot, path: &str) -> Result<(), Errno> {
        let held = self.object(path)?;
        only_held(held.kind)?;
        let object = (held.id, held.kind);
        std::mem::forget(held);
        self.held.insert(slot, object);
        Ok(())
    }

    fn close_held(&mut self, slot: Slot) -> Result<(), Errno> {
        let (id, _) = self.held.remove(&slot).ok_or(Errno::BADF)?;
        if self.names.is_none() && id != ObjectId::ROOT {
            self.volume.forget(id, 1);
        }
        Ok(())
    }

    fn fsync_held(&self, slot: Slot) -> Result<(), Errno> {
        match self.held.get(&slot) {
            Some((id, FileKind::Directory)) => self.volume.fsync(*id).map_err(errno),
            _ => Err(Errno::BADF),
        }
    }

    fn close(&mut self, slot: Slot) -> Result<(), Errno> {
        let id = self.open.remove(&slot).ok_or(Errno::BADF)?;
        self.volume.release(id);
        if self.names.is_none() {
            self.volume.forget(id, 1);
        }
        Ok(())
    }

    fn open_slot(&mut self, slot: Slot, path: &str) -> Result<(), Errno> {
        let held = self.object(path)?;
        only_regular(held.kind)?;
        self.volume.open(held.id).map_err(errno)?;
        let id = held.id;
        // The open file keeps the reference.
        std::mem::forget(held);
        self.open.insert(slot, id);
        Ok(())
    }

    fn read_node(&self, id: ObjectId) -> Result<TreeNode, FsError> {
        let attributes = self.volume.attributes(id)?.attributes;
        let kind = attributes.kind;
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let mut xattrs = BTreeMap::new();
        for name in self.volume.list_xattrs(id)? {
            let value = self.volume.get_xattr(id, &name)?;
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value.to_vec());
        }
        Ok(TreeNode {
            identity: id.0,
            kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            nlink: attributes.nlink,
            mtime: Mtime::Exact(attributes.mtime),
            rdev: if is_device {
                attributes.rdev
            } else {
                DeviceNumber(0)
            },
            content: if kind == FileKind::Regular {
                self.read_content(id, attributes.size)?
            } else {
                Content::default()
            },
            target: if kind == FileKind::Symlink {
                String::from_utf8_lossy(&self.volume.read_link(id)?).into_owned()
            } else {
                String::new()
            },
            xattrs,
        })
    }

    fn read_content(&self, id: ObjectId, size: u64) -> Result<Content, FsError> {
        self.volume.open(id)?;
        let content = self.read_open_content(id, size);
        self.volume.release(id);
        content
    }

    fn read_open_content(&self, id: ObjectId, size: u64) -> Result<Content, FsError> {
        let mut content = Content::default();
        content.truncate(size);
        let mut copy = |start: u64, end: u64| {
            let mut out = vec![0; (end - start) as usize];
            let count = self.volume.read(id, start, &mut out)?;
            if count != out.len() {
                return Err(FsError::Io);
            }
            content.write(start, &out);
            Ok(())
        };
        if size <= READ_WHOLE_BYTES_MAX {
            copy(0, size)?;
            return Ok(content);
        }
        let mut at = 0;
        loop {
            let start = match self.volume.seek(id, at, Whence::Data) {
                Ok(start) => start,
                Err(FsError::NoSuchOffset) => return Ok(content),
                Err(error) => return Err(error),
            };
            at = self.volume.seek(id, start, Whence::Hole)?;
            copy(start, at)?;
        }
    }

    /// Lists a directory in several parts. Every few times unused objects are evicted between them,
    /// the entries of this directory included.
    fn list(&self, id: ObjectId) -> Result<Vec<String>, FsError> {
        self.listings.set(self.listings.get() + 1);
        let is_disturbed = self.listings.get().is_multiple_of(DISTURBED_LISTING);
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = self.volume.read_directory(id, cookie, LIST_ENTRIES)?;
            let Some(last) = entries.last() else {
                return Ok(names);
            };
            cookie = last.cookie;
            if is_disturbed {
                self.volume.do_housekeeping();
            }
            names.extend(entries.iter().map(|entry| entry.name.to_string()));
        }
    }
}

#[derive(Default)]
struct Rest<'a> {
    rdev: DeviceNumber,
    target: Option<&'a [u8]>,
}

impl Target for VolumeTarget {
    fn execute(&mut self, operation: &Operation) -> Outcome {
        self.opened_by_path.borrow_mut().clear();
        let outcome = self.act(operation);
        self.give_back();
        outcome
    }

    fn tree(&mut self) -> Result<Tree, Errno> {
        let mut tree = Tree::default();
        let mut waiting = vec![String::new()];
        while let Some(path) = waiting.pop() {
            let held = self.object(&path)?;
            if held.kind == FileKind::Directory {
                let names = self.list(held.id).map_err(errno)?;
                let prefix = if path.is_empty() {
                    String::new()
                } else {
                    format!("{path}/")
                };
                waiting.extend(names.iter().map(|name| format!("{prefix}{name}")));
            }
            let node = self.read_node(held.id).map_err(errno)?;
            drop(held);
            tree.0.insert(path, node);
        }
        Ok(tree)
    }

    /// The kernel names one of several reasons to refuse a rename, before any
    /// filesystem is asked; which one a volume would name is never seen.
    fn is_equivalent(&self, operation: &Operation, expected: Errno, found: Errno) -> bool {
        const REFUSED: [Errno; 6] = [
            Errno::INVAL,
            Errno::EXIST,
            Errno::NOENT,
            Errno::NOTEMPTY,
            Errno::ISDIR,
            Errno::NOTDIR,
        ];
        let is_refused = REFUSED.contains(&expected) && REFUSED.contains(&found);
        expected == found || (matches!(operation, Operation::Rename { .. }) && is_refused)
    }
}

impl VolumeTarget {
    fn act(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::CreateFile { .. }
            | Op::MakeDirectory { .. }
            | Op::MakeSymlink { .. }
            | Op::MakeNode { .. } => self.make_any(operation)?,
            Op::Link { .. }
            | Op::LinkHandle { .. }
            | Op::Unlink { .. }
            | Op::RemoveDirectory { .. }
            | Op::Rename { .. } => self.change_names(operation)?,
            Op::SetMode { .. }
            | Op::SetOwner { .. }
            | Op::SetMtime { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. } => self.change_attributes(operation)?,
            Op::Open { slot, path } => {
                // An empty slot is as good as one that is closed now.
                let _was_open = self.close(*slot);
                self.open_slot(*slot, path)?;
            }
            Op::OpenUnnamed {
                slot,
                directory,
                mode,
            } => {
                let _was_open = self.close(*slot);
                let id = {
                    let directory = self.directory(directory)?;
                    let made = self.volume.create_unnamed(&ROOT_USER, directory.id, *mode);
                    made.map_err(errno)?.id
                };
                if let Some(names) = &self.names {
                    names.borrow_mut().count(id);
                }
                // As any other slot: closing it gives this back.
                self.volume.open(id).map_err(errno)?;
                self.open.insert(*slot, id);
            }
            Op::Close { slot } => self.close(*slot)?,
            Op::FsyncDirectory { path } => {
                let directory = self.directory(path)?;
                self.volume.fsync(directory.id).map_err(errno)?;
            }
            Op::Hold { slot, path } => {
                // An empty slot is as good as one that is closed now.
                let _was_held = self.close_held(*slot);
                self.hold_slot(*slot, path)?;
            }
            Op::FsyncHeld { slot } => self.fsync_held(*slot)?,
            Op::CloseHeld { slot } => self.close_held(*slot)?,
            _ => return self.use_file(operation),
        }
        Ok(Answer::Done)
    }
}

/// The error that the kernel adapter answers: a test of it compares the two tables.
pub const fn errno(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::InvalidArgument => Errno::INVAL,
        FsError::NotPermitted => Errno::PERM,
        FsError::AccessDenied => Errno::ACCESS,
        FsError::NoSpace => Errno::NOSPC,
        FsError::FileTooBig => Errno::FBIG,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoXattr => Errno::NODATA,
        FsError::XattrTooBig => Errno::TOOBIG,
        FsError::BufferTooSmall => Errno::RANGE,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Busy => Errno::BUSY,
        FsError::CrossDevice => Errno::XDEV,
        FsError::NoSuchOffset => Errno::NXIO,
        FsError::Stale => Errno::STALE,
        FsError::NotSupported => Errno::OPNOTSUPP,
        FsError::Io => Errno::IO,
        FsError::Interrupted => Errno::INTR,
        FsError::TooManySymlinks => Errno::LOOP,
        FsError::BadDescriptor => Errno::BADF,
    }
}
