//! Transactions as records.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, Name, ObjectId, ObjectState, Page, Room, XattrChange};

use super::RestartImageError;
use crate::accounting::{Charge, Charged};
use crate::policy::transactioning::{Closing, Efficiency};
use crate::transactions::{ClosedTransaction, Content, DentryChange, OpenTransaction};
use mobifs_base::codec::{CodecError, Reader, Writer};

/// The role of an object in an open transaction.
pub(crate) const DIRTY: u8 = 1;
pub(crate) const ORPHANED: u8 = 2;
pub(crate) const HELD: u8 = 4;

/// Gives back the page whose content is kept at a place, with its length in bytes.
pub type PageAt<'a> = &'a mut dyn FnMut(u64, usize) -> Option<Page>;

/// Where a page's content is kept.
pub(crate) fn write_page(out: &mut Writer, page: &Page) {
    // Without a place the page could not be stored, and cannot be restored.
    out.u64(page.place().unwrap_or(0));
    out.u32(page.stored_bytes() as u32);
}

/// The place of a page's content, and its length in bytes.
pub(crate) fn read_page_place(from: &mut Reader<'_>) -> Result<(u64, usize), RestartImageError> {
    Ok((from.u64()?, from.u32()? as usize))
}

pub(crate) fn read_page(
    from: &mut Reader<'_>,
    page_at: PageAt<'_>,
) -> Result<Page, RestartImageError> {
    let (place, length) = read_page_place(from)?;
    if length == 0 {
        return Ok(Page::zero());
    }
    page_at(place, length).ok_or(RestartImageError("a page is not where it was kept"))
}

/// The members and entries are records of their own.
pub(crate) fn write_open(out: &mut Writer, open: &OpenTransaction) {
    let OpenTransaction {
        apps,
        is_everywhere,
        opened_at,
        dirty: _,
        dentries: _,
        orphaned: _,
        held: _,
        closing,
        written_bytes,
        brought_bytes,
        charged,
    } = open;
    out.list(apps.iter(), |out, app| out.u32(app.0));
    out.flag(*is_everywhere);
    out.u64(opened_at.0);
    write_efficiency(out, closing.efficiency());
    out.u64(*written_bytes);
    out.u64(*brought_bytes);
    write_charged(out, charged);
}

/// The policies' observations begin anew: only the counts are kept.
pub(crate) fn read_open(
    bytes: &[u8],
    is_tracked: bool,
) -> Result<OpenTransaction, RestartImageError> {
    let mut from = Reader::new(bytes);
    let closing = Closing::default();
    let mut open = OpenTransaction::new(AppId(0), closing, MonotonicNs(0), is_tracked);
    open.apps = from.list(Reader::app)?;
    open.is_everywhere = from.flag()?;
    open.opened_at = MonotonicNs(from.u64()?);
    open.closing = Closing::counted(read_efficiency(&mut from)?);
    open.written_bytes = from.count()?;
    open.brought_bytes = from.count()?;
    open.charged = read_charged(&mut from)?;
    Ok(open)
}

pub(crate) fn write_closed(out: &mut Writer, closed: &ClosedTransaction) {
    let ClosedTransaction {
        order,
        is_everywhere,
        apps,
        opened_at,
        orphaned,
        held,
        efficiency,
        brought_bytes,
        charged,
        content,
        in_flight: _,
        refusal: _,
    } = closed;
    out.u64(*order);
    out.flag(*is_everywhere);
    out.list(apps.iter(), |out, app| out.u32(app.0));
    out.u64(opened_at.0);
    write_ids(out, orphaned);
    write_ids(out, held);
    write_efficiency(out, efficiency);
    out.u64(*brought_bytes);
    write_charged(out, charged);
    out.list(content.objects.iter(), write_state);
    out.list(content.dentries.iter(), |out, (parent, name, child)| {
        out.u64(parent.0);
        out.bytes(name.as_bytes());
        out.option(*child, |out, child| out.u64(child.0));
    });
    out.list(content.pages.iter(), |out, (id, index, page)| {
        out.u64(id.0);
        out.u64(index.0);
        write_page(out, page);
    });
}

/// A closed transaction without its content, which follows.
pub(crate) fn read_closed_head(
    from: &mut Reader<'_>,
) -> Result<ClosedTransaction, RestartImageError> {
    Ok(ClosedTransaction {
        order: from.count()?,
        is_everywhere: from.flag()?,
        apps: from.list(Reader::app)?,
        opened_at: MonotonicNs(from.u64()?),
        orphaned: read_ids(from)?,
        held: read_ids(from)?,
        efficiency: read_efficiency(from)?,
        brought_bytes: from.count()?,
        charged: read_charged(from)?,
        content: Arc::default(),
        in_flight: false,
        refusal: None,
    })
}

pub(crate) fn read_closed(
    bytes: &[u8],
    page_at: PageAt<'_>,
) -> Result<ClosedTransaction, RestartImageError> {
    let mut from = Reader::new(bytes);
    let from = &mut from;
    let head = read_closed_head(from)?;
    Ok(ClosedTransaction {
        content: Arc::new(Content {
            objects: from.list(read_state)?,
            dentries: from.list(read_dentry)?,
            pages: from.list(|from| {
                let (id, index) = (from.id()?, from.index()?);
                Ok::<_, RestartImageError>((id, index, read_page(from, page_at)?))
            })?,
        }),
        ..head
    })
}

fn write_charged(out: &mut Writer, charged: &Charged) {
    out.u64(charged.memory_bytes());
    out.u64(charged.room().bytes());
    out.u64(charged.room().inodes());
}

fn read_charged(from: &mut Reader<'_>) -> Result<Charged, RestartImageError> {
    Ok(Charged::restored(Charge {
        memory_bytes: from.count()?,
        room: Room::new(from.count()?, from.count()?),
    }))
}

/// An entry that an open transaction changes, without its number.
pub(crate) fn write_dentry_change(
    out: &mut Writer,
    (parent, name): &(ObjectId, Name),
    change: &DentryChange,
) {
    out.u64(parent.0);
    out.bytes(name.as_bytes());
    out.option(change.before, |out, id| out.u64(id.0));
    out.option(change.now, |out, id| out.u64(id.0));
}

/// The entry that an open transaction changes under this number.
pub(crate) fn read_dentry_change(
    from: &mut Reader<'_>,
    serial: u64,
) -> Result<((ObjectId, Name), DentryChange), RestartImageError> {
    let entry = (from.id()?, from.name()?);
    let change = DentryChange {
        before: from.option(Reader::id)?,
        now: from.option(Reader::id)?,
        serial,
    };
    Ok((entry, change))
}

fn write_efficiency(out: &mut Writer, efficiency: &Efficiency) {
    out.u64(efficiency.written_pages());
    out.u64(efficiency.overwritten_pages());
}

fn read_efficiency(from: &mut Reader<'_>) -> Result<Efficiency, RestartImageError> {
    Ok(Efficiency::new(from.count()?, from.count()?))
}

fn write_ids(out: &mut Writer, ids: &BTreeSet<ObjectId>) {
    out.list(ids.iter(), |out, id| out.u64(id.0));
}

fn read_ids(from: &mut Reader<'_>) -> Result<BTreeSet<ObjectId>, RestartImageError> {
    let ids: Vec<ObjectId> = from.list(Reader::id)?;
    Ok(ids.into_iter().collect())
}

fn write_state(out: &mut Writer, state: &ObjectState) {
    out.u64(state.id.0);
    out.flag(state.created);
    out.attributes(&state.attributes);
    out.option(state.symlink_target.as_ref(), |out, target| {
        out.bytes(target);
    });
    out.list(state.zeroed.iter(), |out, range| out.range(*range));
    out.list(state.allocated.iter(), |out, range| out.range(*range));
    out.list(state.xattrs.iter(), |out, (name, value)| {
        out.bytes(name);
        out.option(value.as_ref(), |out, value| out.bytes(value));
    });
}

type ClosedDentry = (ObjectId, Name, Option<ObjectId>);

fn read_dentry(from: &mut Reader<'_>) -> Result<ClosedDentry, CodecError> {
    Ok((from.id()?, from.name()?, from.option(Reader::id)?))
}

fn read_xattr_change(from: &mut Reader<'_>) -> Result<XattrChange, CodecError> {
    Ok((from.shared()?, from.option(Reader::shared)?))
}

pub(crate) fn read_state(from: &mut Reader<'_>) -> Result<ObjectState, RestartImageError> {
    Ok(ObjectState {
        id: from.id()?,
        created: from.flag()?,
        attributes: from.attributes()?,
        symlink_target: from.option(Reader::shared)?,
        zeroed: from.list(Reader::range)?,
        allocated: from.list(Reader::range)?,
        xattrs: from.list(read_xattr_change)?,
    })
}
