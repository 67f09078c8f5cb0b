//! Walking a store, walking the lower tree, and putting a tree there.

use std::collections::BTreeMap;
use std::io;

use mobifs_store::lower::{Create, Lower, SetAttributes};
use mobifs_store::{Seek, Store, StoreError};
use mobifs_types::{Attributes, FileKind, ObjectId, PAGE_BYTES_U64};

use super::tree::{Node, NodeId, ROOT, Seen, SeenNode, Tree, push_name, read_pages, seen_size};
use crate::crash::{CrashHandle, CrashLower};

/// The store's own directory.
pub(super) const OWN_DIRECTORY: &[u8] = b".mobifs";

/// What a walk over the store's committed view finds.
pub(super) fn walk_store(store: &impl Store) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    let mut first_paths = BTreeMap::new();
    walk_object(
        store,
        ObjectId::ROOT,
        &mut Vec::new(),
        &mut first_paths,
        &mut seen,
    )?;
    Ok(seen)
}

fn walk_object(
    store: &impl Store,
    id: ObjectId,
    path: &mut Vec<u8>,
    first_paths: &mut BTreeMap<ObjectId, Vec<u8>>,
    seen: &mut Seen,
) -> Result<(), StoreError> {
    let same_as = first_paths
        .entry(id)
        .or_insert_with(|| path.clone())
        .clone();
    let node = see_object(store, id, path.is_empty(), same_as)?;
    let kind = node.kind;
    seen.0.insert(path.clone(), node);
    if kind == FileKind::Directory {
        let mut entries = store.list_directory(id)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let length = push_name(path, entry.name.as_bytes());
            walk_object(store, entry.id, path, first_paths, seen)?;
            path.truncate(length);
        }
    }
    Ok(())
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
            // What the store promises to be zero behind the end shows as soon as a file grows.
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
    walk_directory(
        lower,
        &lower.root()?,
        &mut Vec::new(),
        &mut first_paths,
        &mut seen,
    )?;
    Ok(seen)
}

fn walk_directory(
    lower: &CrashLower,
    object: &CrashHandle,
    path: &mut Vec<u8>,
    first_paths: &mut BTreeMap<u64, Vec<u8>>,
    seen: &mut Seen,
) -> io::Result<()> {
    insert_lower(lower, object, None, path, first_paths, seen)?;
    for entry in lower.list(object)? {
        if path.is_empty() && entry.name == OWN_DIRECTORY {
            continue;
        }
        let length = push_name(path, &entry.name);
        let child = lower.open(object, &entry.name, false)?;
        match lower.stat(&child)?.kind {
            FileKind::Directory => walk_directory(lower, &child, path, first_paths, seen)?,
            FileKind::Symlink => {
                let target = lower.read_link(object, &entry.name)?;
                insert_lower(lower, &child, Some(target), path, first_paths, seen)?;
            }
            _ => insert_lower(lower, &child, None, path, first_paths, seen)?,
        }
        path.truncate(length);
    }
    Ok(())
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
    let root = lower.root()?;
    plant_entries(lower, tree, ROOT, &root, &mut planted)?;
    plant_metadata(lower, tree.node(ROOT), &root)?;
    lower.sync_all()
}

fn plant_entries(
    lower: &CrashLower,
    tree: &Tree,
    directory: NodeId,
    handle: &CrashHandle,
    planted: &mut BTreeMap<NodeId, Vec<Vec<u8>>>,
) -> io::Result<()> {
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
        if node.attributes.kind == FileKind::Directory {
            plant_entries(lower, tree, id, &child, planted)?;
        }
        if node.attributes.kind == FileKind::Regular {
            for (index, page) in &node.pages {
                lower.write_at(&child, page.stored(), index * PAGE_BYTES_U64)?;
            }
            lower.truncate(&child, node.attributes.size)?;
        }
        plant_metadata(lower, node, &child)?;
    }
    Ok(())
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
