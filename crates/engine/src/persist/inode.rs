//! An object as a record. Not in it: its pages, the ranges of its change, its extended attributes
//! and its directory's entries, which are records of their own, so that an operation writes no more
//! than it changes; and derived values (usage by transactions and children, what closed transactions zero).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use foldhash::fast::FixedState;
use mobifs_base::{AppId, ByteRange, ObjectId, ObjectInfo};

use super::{Key, RestartImageError};
use crate::directory::{Directory, DisplacedCookies, Listing, check_cookie};
use crate::inode::{Body, Inode, Xattrs};
use crate::persist::dirty_tracking::Tracked;
use crate::usage::Usage;
use crate::versions::{Change, PageVersions, SavedVersions};
use mobifs_base::codec::{CodecError, Reader, Writer};

/// Which [`Body`].
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const SPECIAL: u8 = 3;

/// All fields are named, so that a new field cannot be forgotten here.
pub(crate) fn write(out: &mut Writer, inode: &Inode) {
    let Inode {
        attributes,
        allocated_bytes,
        foreign,
        immutable,
        unnamed,
        creation_closed,
        home,
        name,
        app,
        app_epoch,
        linked_apps,
        has_unknown_names,
        had_several_names,
        usage,
        pinned,
        stamp: _,
        versions,
        xattrs,
        body,
    } = inode;
    let SavedVersions {
        known_to_store,
        store_bytes,
        version,
        change,
    } = versions.saved();
    for count in parts_of(inode) {
        out.u32(count);
    }
    out.attributes(attributes);
    out.u64(*allocated_bytes);
    for flag in [
        foreign,
        immutable,
        unnamed,
        creation_closed,
        &known_to_store,
        has_unknown_names,
        had_several_names,
        pinned,
    ] {
        out.flag(*flag);
    }
    out.u64(store_bytes);
    out.u64(home.0);
    out.option(name.as_ref(), |out, name| out.bytes(name.as_bytes()));
    out.u32(app.0);
    out.u64(*app_epoch);
    out.list(linked_apps.iter(), |out, app| out.u32(app.0));
    out.u64(usage.lookups());
    out.u64(usage.opens());
    out.u64(version);
    out.option(change, write_change);
    out.flag(xattrs.is_some());
    write_body(out, body);
}

/// The write log is not written: the pages that it names have their own records. So have the
/// ranges and the extended attributes.
fn write_change(out: &mut Writer, change: &Change) {
    out.u64(change.transaction().0);
}

fn write_body(out: &mut Writer, body: &Body) {
    match body {
        Body::File => out.u8(FILE),
        Body::Directory(listing) => {
            out.u8(DIRECTORY);
            let displaced = match listing {
                Listing::Loaded(_) => None,
                Listing::NotLoaded(displaced) => Some(displaced),
            };
            out.option(displaced, |out, displaced| {
                out.list(displaced.iter(), |out, (name, &cookie)| {
                    out.bytes(name.as_bytes());
                    out.u64(cookie);
                });
            });
        }
        Body::Symlink(target) => {
            out.u8(SYMLINK);
            out.option(target.as_ref(), |out, target| out.bytes(target));
        }
        Body::Special => out.u8(SPECIAL),
    }
}

pub(crate) fn read(
    bytes: &[u8],
    hasher: &FixedState,
    is_tracked: bool,
) -> Result<Inode, RestartImageError> {
    let mut from = Reader::new(bytes);
    let from = &mut from;
    // How many parts there are: they are records of their own, and checked when all are read.
    read_parts(from)?;
    let info = ObjectInfo {
        attributes: from.attributes()?,
        allocated_bytes: from.count()?,
        foreign: from.flag()?,
        immutable: from.flag()?,
    };
    let mut inode = Inode::from_store(&info, ObjectId::ROOT, None);
    inode.unnamed = from.flag()?;
    inode.creation_closed = from.flag()?;
    let known_to_store = from.flag()?;
    inode.has_unknown_names = from.flag()?;
    inode.had_several_names = from.flag()?;
    inode.pinned = from.flag()?;
    let store_bytes = from.count()?;
    inode.home = from.id()?;
    inode.name = from.option(Reader::name)?;
    inode.app = AppId(from.u32()?);
    inode.app_epoch = from.count()?;
    inode.linked_apps = from.list(Reader::app)?;
    inode.usage = Usage::restored(from.count()?, from.count()?);
    let version = from.count()?;
    let change = from.option(|from| read_change(from, is_tracked))?;
    inode.versions = PageVersions::restore(known_to_store, store_bytes, version, change);
    inode.xattrs = Tracked::saved(from.flag()?.then(Xattrs::new));
    inode.body = read_body(from, hasher, is_tracked)?;
    Ok(inode)
}

/// The extended attributes of an object, and the names of those that its open change carries.
pub(crate) fn write_xattrs(out: &mut Writer, inode: &Inode) {
    let empty = Xattrs::new();
    let xattrs = inode.xattrs.as_ref().unwrap_or(&empty);
    out.list(xattrs.iter(), |out, (name, value)| {
        out.bytes(name);
        out.bytes(value);
    });
    let change = inode.versions.change();
    out.u32(change.map_or(0, |change| change.xattrs().len()) as u32);
    for name in change.into_iter().flat_map(Change::xattrs) {
        out.bytes(name);
    }
}

/// Puts back what [`write_xattrs`] wrote.
pub(crate) fn restore_xattrs(
    inode: &mut Inode,
    from: &mut Reader<'_>,
) -> Result<(), RestartImageError> {
    let xattrs = from.list(|from| Ok::<_, CodecError>((from.shared()?, from.shared()?)))?;
    let names: BTreeSet<Arc<[u8]>> = from.list(Reader::shared)?.into_iter().collect();
    if let Some(known) = &mut *inode.xattrs {
        known.extend(xattrs);
    } else if !xattrs.is_empty() {
        return Err(RestartImageError("extended attributes are not loaded"));
    }
    match inode.versions.change_mut() {
        Some(change) => change.restore_xattrs(names),
        None if names.is_empty() => {}
        None => return Err(RestartImageError("extended attributes are of no change")),
    }
    Ok(())
}

/// How many parts an object has that are records of their own and without which older content
/// or attributes could show again: ranges that its open change zeroes, and allocates, extended
/// attributes, and those of them that the change carries.
fn parts_of(inode: &Inode) -> [u32; 4] {
    let xattrs = inode.xattrs.as_ref().map_or(0, |xattrs| xattrs.len());
    let of_change = inode.versions.change().map_or([0; 3], |change| {
        let ranges = [change.zeroed().len(), change.allocated().len()];
        [ranges[0], ranges[1], change.xattrs().len()]
    });
    [of_change[0], of_change[1], xattrs, of_change[2]].map(|count| count as u32)
}

fn read_parts(from: &mut Reader<'_>) -> Result<[u32; 4], CodecError> {
    Ok([from.u32()?, from.u32()?, from.u32()?, from.u32()?])
}

/// Checks that all parts are there that the record of an object counts.
pub(crate) fn check_parts(inode: &Inode, record: &[u8]) -> Result<(), RestartImageError> {
    if read_parts(&mut Reader::new(record))? != parts_of(inode) {
        return Err(RestartImageError("a part of an object is missing"));
    }
    Ok(())
}

/// The end of a range, as its record has it.
pub(crate) fn write_range_end(out: &mut Writer, end: u64) {
    out.u64(end);
}

/// Puts a range back where its key says.
pub(crate) fn restore_range(
    inode: &mut Inode,
    key: Key,
    from: &mut Reader<'_>,
) -> Result<(), RestartImageError> {
    let change = inode.versions.change_mut();
    let change = change.ok_or(RestartImageError("a range is of no change"))?;
    let range = ByteRange::new(key.second, from.u64()?);
    if range.is_empty() {
        return Err(RestartImageError("a range is empty"));
    }
    change.restore_range(key.kind, range);
    Ok(())
}

fn read_change(from: &mut Reader<'_>, is_tracked: bool) -> Result<Change, RestartImageError> {
    Ok(Change::new(from.transaction()?, is_tracked))
}

fn read_displaced(from: &mut Reader<'_>) -> Result<DisplacedCookies, RestartImageError> {
    let displaced = from.list(|from| {
        let (name, cookie) = (from.name()?, from.u64()?);
        check_cookie(cookie)?;
        Ok::<_, RestartImageError>((name, cookie))
    })?;
    Ok(displaced.into_iter().collect())
}

fn read_body(
    from: &mut Reader<'_>,
    hasher: &FixedState,
    is_tracked: bool,
) -> Result<Body, RestartImageError> {
    Ok(match from.u8()? {
        FILE => Body::File,
        DIRECTORY => Body::Directory(match from.option(read_displaced)? {
            Some(displaced) => Listing::NotLoaded(displaced),
            None => Listing::Loaded(Box::new(Directory::new(hasher.clone(), is_tracked))),
        }),
        SYMLINK => Body::Symlink(from.option(Reader::shared)?),
        SPECIAL => Body::Special,
        _ => return Err(RestartImageError("an object is of no kind")),
    })
}
