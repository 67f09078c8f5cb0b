//! Walking a store, walking the lower tree, and putting a tree there.

use std::collections::BTreeMap;
use std::io;

use mobifs_base::{Attributes, FileKind, ObjectId, PAGE_BYTES_U64};
use mobifs_store::lower::{Create, Lower, SetAttributes};
use mobifs_store::{Seek, Store, StoreError};

use super::tree::{Node, NodeId, ROOT, Seen, SeenNode, Tree, push_name, read_pages, seen_size};
use crate::crash::{CrashHandle, CrashLower};

/// The store's own directory.
pub(super) const OWN_DIRECTORY: &[u8] = b".mobifs";

/// What a walk over the store's committed view finds. It may be deeper than a stack.
pub(super) fn walk_store(store: &impl Store) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    let mut first_paths: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
    let mut waiting = vec![(ObjectId::ROOT, Vec::new())];
    while let Some((id, path)) = waiting.pop() {
        let first = first_paths.entry(id).or_insert_with(|| path.clone());
        let node = see_object(store, id, path.is_empty(), first.clone())?;
        if node.kind == FileKind::Directory {
            let mut entries = store.list_directory(id)?;
            entries.sort_by(|a, b| b.name.cmp(&a.name));
            let below = entries.into_iter().map(|entry| {
                let mut path = path.clone();
                push_name(&mut path, entry.name.as_bytes());
                (entry.id, path)
            });
            waiting.extend(below);
        }
        seen.0.insert(path, node);
    }
    Ok(seen)
}

/// What is found by asking a store for one object.
pub(super) fn see_object(
    store: &impl Store,
    id: ObjectId,
    is_root: bool,
    same_as: Vec<u8>,
) -> Result<SeenNode, StoreError> {
    let attributes = store.object(id)?.attributes;
    let target = match attributes.kind {
        FileKind::Symlink => Some(store.read_link(id)?.into()),
        _ => None,
    };
    let pages = match attributes.kind {
        FileKind::Regular => {
            // What the store promises to be zero after the end shows as soon as a file grows.
            let end = attributes.size.next_multiple_of(PAGE_BYTES_U64) + PAGE_BYTES_U64;
            let pages = read_pages(end, |offset, out| store.read(id, offset, out))?;
            check_holes(store, id, attributes.size, &pages)?;
            pages
        }
        _ => BTreeMap::new(),
    };
    Ok(SeenNode {
        kind: attributes.kind,
        mode: attributes.mode,
        owner: (attributes.uid, attributes.gid),
        rdev: attributes.rdev,
        size: seen_size(&attributes),
        links: if is_root { 0 } else { attributes.nlink },
        times: Some((attributes.atime, attributes.mtime)),
        same_as,
        target,
        xattrs: store.xattrs(id)?.into_iter().collect(),
        pages,
    })
}

/// Checks that no data lies where the store says is a hole.
fn check_holes(
    store: &impl Store,
    id: ObjectId,
    size: u64,
    pages: &super::tree::Pages,
) -> Result<(), StoreError> {
    let mut at = 0;
    while at < size {
        let data = store.seek(id, at, Seek::Data)?.unwrap_or(size);
        let hidden = pages.keys().find(|&&index| {
            let page = index * PAGE_BYTES_U64;
            page >= at && page + PAGE_BYTES_U64 <= data
        });
        if let Some(index) = hidden {
            let what = format!("{id}: page {index} has data but {at}..{data} is said to be a hole");
            return Err(StoreError::lower(what)(io::Error::other("seek lies")));
        }
        if data >= size {
            break;
        }
        at = store.seek(id, data, Seek::Hole)?.unwrap_or(size);
        if at <= data {
            let what = format!("{id}: data at {data} ends at {at}");
            return Err(StoreError::lower(what)(io::Error::other("seek lies")));
        }
    }
    Ok(())
}

/// What a walk over the lower tree finds, without the store's own directory.
pub(super) fn walk_lower(lower: &CrashLower) -> io::Result<Seen> {
    let mut seen = Seen::default();
    let mut first_paths = BTreeMap::new();
    let mut waiting = vec![(lower.root()?, None, Vec::new())];
    while let Some((object, target, path)) = waiting.pop() {
        let is_directory = lower.stat(&object)?.kind == FileKind::Directory;
        insert_lower(lower, &object, target, &path, &mut first_paths, &mut seen)?;
        if !is_directory {
            continue;
        }
        let first = waiting.len();
        for entry in lower.list(&object)? {
            if path.is_empty() && entry.name == OWN_DIRECTORY {
                continue;
            }
            let child = lower.open(&object, &entry.name, false)?;
            let target = match lower.stat(&child)?.kind {
                FileKind::Symlink => Some(lower.read_link(&object, &entry.name)?),
                _ => None,
            };
            let mut path = path.clone();
            push_name(&mut path, &entry.name);
            waiting.push((child, target, path));
        }
        // In the order of the listing, one directory with all below it after the other.
        waiting[first..].reverse();
    }
    Ok(seen)
}

fn insert_lower(
    lower: &CrashLower,
    object: &CrashHandle,
    target: Option<Vec<u8>>,
    path: &[u8],
    first_paths: &mut BTreeMap<u64, Vec<u8>>,
    seen: &mut Seen,
) -> io::Result<()> {
    let stat = lower.stat(object)?;
    let pages = match stat.kind {
        FileKind::Regular => read_pages(stat.size, |offset, out| {
            lower.read_at(object, out, offset).map(|_| ())
        })?,
        _ => BTreeMap::new(),
    };
    let node = SeenNode {
        kind: stat.kind,
        mode: stat.mode,
        owner: (stat.uid, stat.gid),
        rdev: stat.rdev,
        size: if stat.kind == FileKind::Directory {
            0
        } else {
            stat.size
        },
        // The store's own directory is one of the root's.
        links: if path.is_empty() { 0 } else { stat.nlink },
        times: Some((stat.atime, stat.mtime)),
        same_as: first_paths
            .entry(stat.inode)
            .or_insert_with(|| path.to_vec())
            .clone(),
        target: target.map(Into::into),
        xattrs: lower.xattrs(object)?.into_iter().collect(),
        pages,
    };
    seen.0.insert(path.to_vec(), node);
    Ok(())
}

/// Puts a tree into an empty filesystem and makes it durable.
pub(super) fn plant(lower: &CrashLower, tree: &Tree) -> io::Result<()> {
    let mut planted = BTreeMap::new();
    // Whatever is made in a directory changes its times, so they come after all below it.
    let mut made = vec![(lower.root()?, ROOT)];
    let mut next = 0;
    while let Some((handle, id)) = made.get(next) {
        next += 1;
        if tree.node(*id).attributes.kind == FileKind::Directory {
            let below = plant_entries(lower, tree, *id, handle, &mut planted)?;
            made.extend(below);
        }
    }
    for (handle, id) in made.iter().rev() {
        plant_metadata(lower, tree.node(*id), handle)?;
    }
    lower.sync_all()
}

/// Makes what a directory names, with its content; which objects are new.
fn plant_entries(
    lower: &CrashLower,
    tree: &Tree,
    directory: NodeId,
    handle: &CrashHandle,
    planted: &mut BTreeMap<NodeId, Vec<Vec<u8>>>,
) -> io::Result<Vec<(CrashHandle, NodeId)>> {
    let mut made = Vec::new();
    for (name, &id) in &tree.node(directory).entries {
        let name = name.as_bytes();
        let node = tree.node(id);
        if let Some(path) = planted.get(&id) {
            let (last, parents) = path.split_last().ok_or(io::ErrorKind::NotFound)?;
            let mut at = lower.root()?;
            for parent in parents {
                at = lower.open(&at, parent, false)?;
            }
            lower.link(&at, last, handle, name)?;
            continue;
        }
        let create = match node.attributes.kind {
            FileKind::Directory => Create::Directory,
            FileKind::Symlink => Create::Symlink(node.target.as_deref().unwrap_or_default()),
            FileKind::Fifo => Create::Fifo,
            _ => Create::Regular,
        };
        lower.create(handle, name, create)?;
        let mut path = planted.get(&directory).cloned().unwrap_or_default();
        path.push(name.to_vec());
        planted.insert(id, path);
        let child = lower.open(handle, name, true)?;
        if node.attributes.kind == FileKind::Regular {
            for (index, page) in &node.pages {
                lower.write_at(&child, page.stored(), index * PAGE_BYTES_U64)?;
            }
            lower.truncate(&child, node.attributes.size)?;
        }
        made.push((child, id));
    }
    Ok(made)
}

fn plant_metadata(lower: &CrashLower, node: &Node, object: &CrashHandle) -> io::Result<()> {
    for (key, value) in &node.xattrs {
        lower.set_xattr(object, key, Some(value))?;
    }
    let Attributes {
        mode,
        uid,
        gid,
        atime,
        mtime,
        ..
    } = node.attributes;
    lower.set_attributes(
        object,
        &SetAttributes {
            mode,
            uid,
            gid,
            atime,
            mtime,
        },
    )
}
