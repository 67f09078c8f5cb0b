//! An object as a record. Not in it: its pages and its directory's entries, which are
//! records of their own, and what can be counted again (`residents`, `holds`).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use foldhash::fast::FixedState;
use mobifs_types::{AppId, ObjectId, ObjectInfo};

use super::ImageError;
use super::codec::{Reader, Writer};
use crate::directory::{Directory, Displaced, Listing, check_cookie};
use crate::inode::{Body, Change, Inode, Xattrs};

/// Which [`Body`].
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const SPECIAL: u8 = 3;

/// All fields are named, so that none that is added is forgotten here.
pub(crate) fn write(out: &mut Writer, inode: &Inode) {
    let Inode {
        attributes,
        allocated_bytes,
        foreign,
        immutable,
        unnamed,
        announced,
        known_to_store,
        store_bytes,
        home,
        name,
        residents: _,
        app,
        app_epoch,
        linked_apps,
        has_unknown_names,
        had_several_names,
        lookups,
        opens,
        holds: _,
        pinned,
        version,
        pages: _,
        stamp: _,
        change,
        closed_zeroed,
        xattrs,
        body,
    } = inode;
    out.attributes(attributes);
    out.u64(*allocated_bytes);
    for flag in [
        foreign,
        immutable,
        unnamed,
        announced,
        known_to_store,
        has_unknown_names,
        had_several_names,
        pinned,
    ] {
        out.flag(*flag);
    }
    out.u64(*store_bytes);
    out.u64(home.0);
    out.option(name.as_ref(), |out, name| out.bytes(name.as_bytes()));
    out.u32(app.0);
    out.u64(*app_epoch);
    out.list(linked_apps.iter(), |out, app| out.u32(app.0));
    out.u64(*lookups);
    out.u64(*opens);
    out.u64(*version);
    out.option(change.as_deref(), write_change);
    out.list(closed_zeroed.iter(), |out, (vct, ranges)| {
        out.u64(vct.0);
        out.list(ranges.iter(), |out, range| out.range(*range));
    });
    out.option(xattrs.as_ref(), |out, xattrs| {
        out.list(xattrs.iter(), |out, (name, value)| {
            out.bytes(name);
            out.bytes(value);
        });
    });
    write_body(out, body);
}

/// The write log is not written: which pages it names, their own records tell.
fn write_change(out: &mut Writer, change: &Change) {
    let Change {
        vct,
        zeroed,
        allocated,
        log: _,
        xattrs,
    } = change;
    out.u64(vct.0);
    out.ranges(zeroed);
    out.ranges(allocated);
    out.list(xattrs.iter(), |out, name| out.bytes(name));
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

pub(crate) fn read(bytes: &[u8], hasher: &FixedState, is_noted: bool) -> Result<Inode, ImageError> {
    let mut from = Reader::new(bytes);
    let from = &mut from;
    let info = ObjectInfo {
        attributes: from.attributes()?,
        allocated_bytes: from.count()?,
        foreign: from.flag()?,
        immutable: from.flag()?,
    };
    let mut inode = Inode::from_store(&info, ObjectId::ROOT, None);
    inode.unnamed = from.flag()?;
    inode.announced = from.flag()?;
    inode.known_to_store = from.flag()?;
    inode.has_unknown_names = from.flag()?;
    inode.had_several_names = from.flag()?;
    inode.pinned = from.flag()?;
    inode.store_bytes = from.count()?;
    inode.home = from.id()?;
    inode.name = from.option(Reader::name)?;
    inode.app = AppId(from.u32()?);
    inode.app_epoch = from.count()?;
    inode.linked_apps = from.list(Reader::app)?;
    inode.lookups = from.count()?;
    inode.opens = from.count()?;
    inode.version = from.count()?;
    inode.change = from.option(read_change)?.map(Box::new);
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

fn read_displaced(from: &mut Reader<'_>) -> Result<Displaced, ImageError> {
    let displaced = from.list(|from| {
        let (name, cookie) = (from.name()?, from.u64()?);
        check_cookie(cookie)?;
        Ok((name, cookie))
    })?;
    Ok(displaced.into_iter().collect())
}

fn read_body(
    from: &mut Reader<'_>,
    hasher: &FixedState,
    is_noted: bool,
) -> Result<Body, ImageError> {
    Ok(match from.u8()? {
        FILE => Body::File,
        DIRECTORY => Body::Directory(match from.option(read_displaced)? {
            Some(displaced) => Listing::NotLoaded(displaced),
            None => Listing::Loaded(Box::new(Directory::new(hasher.clone(), is_noted))),
        }),
        SYMLINK => Body::Symlink(from.option(Reader::shared)?),
        SPECIAL => Body::Special,
        _ => return Err(ImageError("an object is of no kind")),
    })
}
