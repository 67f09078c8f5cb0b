//! An object as a record. Not in it: its pages and its directory's entries, which are
//! records of their own, and what can be counted again (`residents`, `holds`).

use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use foldhash::fast::FixedState;
use mobifs_types::{AppId, ObjectId, ObjectInfo};

use super::ImageError;
use super::codec::{Reader, Writer};
use crate::directory::Directory;
use crate::inode::{Body, Change, Inode, Xattrs};

/// Which [`Body`].
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const SPECIAL: u8 = 3;

pub(crate) fn write(out: &mut Writer, inode: &Inode) {
    out.attributes(&inode.attributes);
    out.u64(inode.allocated_bytes);
    for flag in [
        inode.foreign,
        inode.unnamed,
        inode.announced,
        inode.known_to_store,
        inode.has_unknown_names,
        inode.pinned,
    ] {
        out.flag(flag);
    }
    out.u64(inode.store_bytes);
    out.u64(inode.home.0);
    out.option(inode.name.as_ref(), |out, name| out.bytes(name.as_bytes()));
    out.u32(inode.app.0);
    out.u64(inode.app_epoch);
    out.list(inode.linked_apps.iter(), |out, app| out.u32(app.0));
    out.u64(inode.lookups);
    out.u64(inode.opens);
    out.u64(inode.version);
    out.option(inode.change.as_ref(), write_change);
    out.list(inode.closed_zeroed.iter(), |out, (vct, ranges)| {
        out.u64(vct.0);
        out.list(ranges.iter(), |out, range| out.range(*range));
    });
    out.option(inode.xattrs.as_ref(), |out, xattrs| {
        out.list(xattrs.iter(), |out, (name, value)| {
            out.bytes(name);
            out.bytes(value);
        });
    });
    write_body(out, &inode.body);
}

/// The write log is not written: which pages it names, their own records tell.
fn write_change(out: &mut Writer, change: &Change) {
    out.u64(change.vct.0);
    out.ranges(&change.zeroed);
    out.ranges(&change.allocated);
    out.list(change.xattrs.iter(), |out, name| out.bytes(name));
}

fn write_body(out: &mut Writer, body: &Body) {
    match body {
        Body::File => out.u8(FILE),
        Body::Directory(listing) => {
            out.u8(DIRECTORY);
            let next_cookie = listing.as_ref().map(Directory::next_cookie);
            out.option(next_cookie, Writer::u64);
        }
        Body::Symlink(target) => {
            out.u8(SYMLINK);
            out.option(target.as_ref(), |out, target| out.bytes(target));
        }
        Body::Special => out.u8(SPECIAL),
    }
}

pub(crate) fn read(bytes: &[u8], hasher: &FixedState, is_noted: bool) -> Result<Inode, ImageError> {
    let mut from = Reader::new(bytes);
    let from = &mut from;
    let info = ObjectInfo {
        attributes: from.attributes()?,
        allocated_bytes: from.u64()?,
        foreign: from.flag()?,
    };
    let mut inode = Inode::from_store(&info, ObjectId::ROOT, None);
    inode.unnamed = from.flag()?;
    inode.announced = from.flag()?;
    inode.known_to_store = from.flag()?;
    inode.has_unknown_names = from.flag()?;
    inode.pinned = from.flag()?;
    inode.store_bytes = from.u64()?;
    inode.home = from.id()?;
    inode.name = from.option(Reader::name)?;
    inode.app = AppId(from.u32()?);
    inode.app_epoch = from.u64()?;
    inode.linked_apps = from.list(Reader::app)?;
    inode.lookups = from.u64()?;
    inode.opens = from.u64()?;
    inode.version = from.u64()?;
    inode.change = from.option(read_change)?;
    inode.closed_zeroed = from.list(|from| Ok((from.vct()?, from.list(Reader::range)?)))?;
    inode.xattrs = from.option(|from| {
        let list = from.list(|from| Ok((from.shared()?, from.shared()?)))?;
        Ok(list.into_iter().collect::<Xattrs>())
    })?;
    inode.body = read_body(from, hasher, is_noted)?;
    Ok(inode)
}

fn read_change(from: &mut Reader<'_>) -> Result<Change, ImageError> {
    let mut change = Change::new(from.vct()?);
    change.zeroed = from.ranges()?;
    change.allocated = from.ranges()?;
    let names: BTreeSet<Arc<[u8]>> = from.list(Reader::shared)?.into_iter().collect();
    change.xattrs = names;
    Ok(change)
}

fn read_body(
    from: &mut Reader<'_>,
    hasher: &FixedState,
    is_noted: bool,
) -> Result<Body, ImageError> {
    Ok(match from.u8()? {
        FILE => Body::File,
        DIRECTORY => Body::Directory(from.option(|from| {
            let mut directory = Directory::new(hasher.clone(), is_noted);
            directory.continue_at(from.u64()?);
            Ok(directory)
        })?),
        SYMLINK => Body::Symlink(from.option(Reader::shared)?),
        SPECIAL => Body::Special,
        _ => return Err(ImageError("an object is of no kind")),
    })
}
