//! The tree as the history defines it, and as a walk over a store finds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::{
    Attributes, DeviceNumber, FileKind, Name, PAGE_BYTES, PAGE_BYTES_U64, Page, Timestamp,
};

/// Identifies an object of a history for ever.
pub(super) type NodeId = u64;
/// The root directory.
pub(super) const ROOT: NodeId = 0;

/// Pages of a file by index; zero pages are left out.
pub(super) type Pages = BTreeMap<u64, Page>;
/// Extended attributes.
pub(super) type Xattrs = BTreeMap<Arc<[u8]>, Arc<[u8]>>;

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) attributes: Attributes,
    pub(super) target: Option<Arc<[u8]>>,
    pub(super) xattrs: Xattrs,
    pub(super) entries: BTreeMap<Name, NodeId>,
    pub(super) pages: Pages,
}

/// A tree; cloning shares the objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<NodeId, Arc<Node>>,
    /// Whether the root's times were ever set: before, the store's own directory
    /// made in it changes them.
    pub(super) root_times_known: bool,
}

/// One object as a walk finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenNode {
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) rdev: DeviceNumber,
    pub(super) size: u64,
    pub(super) links: u32,
    /// None where they are not compared.
    pub(super) times: Option<(Timestamp, Timestamp)>,
    /// The first path of the same object.
    pub(super) same_as: Vec<u8>,
    pub(super) target: Option<Arc<[u8]>>,
    pub(super) xattrs: Xattrs,
    pub(super) pages: Pages,
}

/// A tree as a walk finds it, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(pub(super) BTreeMap<Vec<u8>, SeenNode>);

impl Node {
    fn nonzero_pages(&self) -> Pages {
        let nonzero = |page: &Page| page.stored().iter().any(|&byte| byte != 0);
        let pages = self.pages.iter().filter(|(_, page)| nonzero(page));
        pages.map(|(&index, page)| (index, page.clone())).collect()
    }
}

impl Tree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let node = self.nodes.get_mut(&id);
        #[expect(clippy::expect_used, reason = "histories name living objects only")]
        Arc::make_mut(node.expect("the object is in the tree"))
    }

    /// What a walk over this tree finds.
    pub(super) fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        let mut first_paths = BTreeMap::new();
        let mut waiting = vec![(ROOT, Vec::new())];
        while let Some((id, path)) = waiting.pop() {
            let entries = self.node(id).entries.iter().rev();
            let below = entries.map(|(name, &child)| {
                let mut path = path.clone();
                push_name(&mut path, name.as_bytes());
                (child, path)
            });
            waiting.extend(below);
            let first = first_paths.entry(id).or_insert_with(|| path.clone());
            let node = self.seen_node(id, first.clone());
            seen.0.insert(path, node);
        }
        seen
    }

    fn seen_node(&self, id: NodeId, same_as: Vec<u8>) -> SeenNode {
        let node = self.node(id);
        let attributes = &node.attributes;
        let times =
            (id != ROOT || self.root_times_known).then_some((attributes.atime, attributes.mtime));
        SeenNode {
            kind: attributes.kind,
            mode: attributes.mode,
            owner: (attributes.uid, attributes.gid),
            rdev: attributes.rdev,
            size: seen_size(attributes),
            links: if id == ROOT { 0 } else { attributes.nlink },
            times,
            same_as,
            target: node.target.clone(),
            xattrs: node.xattrs.clone(),
            pages: node.nonzero_pages(),
        }
    }
}

/// Appends a component to a path; returns its length before.
pub(super) fn push_name(path: &mut Vec<u8>, name: &[u8]) -> usize {
    let length = path.len();
    path.push(b'/');
    path.extend_from_slice(name);
    length
}

/// The size as far as it is compared: that of a directory means nothing.
pub(super) const fn seen_size(attributes: &Attributes) -> u64 {
    if matches!(attributes.kind, FileKind::Directory) {
        0
    } else {
        attributes.size
    }
}

/// Cuts content into pages, without the zero ones.
pub(super) fn pages_of(content: &[u8], first: u64, pages: &mut Pages) {
    for (index, page) in (first..).zip(content.chunks(PAGE_BYTES)) {
        if page.iter().any(|&byte| byte != 0) {
            pages.insert(index, Page::new(page));
        }
    }
}

/// Reads a whole file by `read`.
pub(super) fn read_pages<E>(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Pages, E> {
    const CHUNK_BYTES: u64 = 16 * PAGE_BYTES_U64;
    let mut pages = Pages::new();
    for offset in (0..size).step_by(CHUNK_BYTES as usize) {
        let mut chunk = vec![0xcc; (size - offset).min(CHUNK_BYTES) as usize];
        read(offset, &mut chunk)?;
        pages_of(&chunk, offset / PAGE_BYTES_U64, &mut pages);
    }
    Ok(pages)
}

impl Seen {
    /// Whether a walk that found `found` may have seen this tree.
    pub(super) fn allows(&self, found: &Self) -> bool {
        self.first_difference(found).is_none()
    }

    /// The first path at which `found` is not this tree, with what is wrong.
    pub(super) fn first_difference(&self, found: &Self) -> Option<String> {
        for (path, expected) in &self.0 {
            let Some(actual) = found.0.get(path) else {
                return Some(format!("\"{}\" is missing", path.escape_ascii()));
            };
            if let Some(what) = difference(expected, actual) {
                return Some(format!("\"{}\": {what}", path.escape_ascii()));
            }
        }
        let extra = found.0.keys().find(|path| !self.0.contains_key(*path))?;
        Some(format!("\"{}\" should not exist", extra.escape_ascii()))
    }
}

/// What is wrong with an object, if anything is.
pub(super) fn difference(expected: &SeenNode, actual: &SeenNode) -> Option<String> {
    let mut actual = actual.clone();
    if expected.times.is_none() {
        actual.times = None;
    }
    if *expected == actual {
        return None;
    }
    if expected.pages != actual.pages {
        let indices = expected.pages.keys().chain(actual.pages.keys());
        let differing =
            indices.filter(|index| expected.pages.get(index) != actual.pages.get(index));
        let first = differing.min().copied().unwrap_or(0);
        let begin = |pages: &Pages| {
            pages
                .get(&first)
                .map(|page| page.stored()[..page.stored().len().min(8)].to_vec())
        };
        let (expected, actual) = (begin(&expected.pages), begin(&actual.pages));
        return Some(format!(
            "page {first} begins {actual:?}, expected {expected:?}"
        ));
    }
    if expected.xattrs != actual.xattrs {
        let differs = |name: &&Arc<[u8]>| expected.xattrs.get(*name) != actual.xattrs.get(*name);
        let name = expected
            .xattrs
            .keys()
            .chain(actual.xattrs.keys())
            .find(differs)?;
        let length = |xattrs: &Xattrs| xattrs.get(name).map(|value| value.len());
        return Some(format!(
            "attribute {} has length {:?}, expected {:?}",
            name.escape_ascii(),
            length(&actual.xattrs),
            length(&expected.xattrs)
        ));
    }
    let brief = |node: &SeenNode| {
        format!(
            "{:?} {:o} {:?} {:?} size {} links {} times {:?} same as \"{}\" target {:?}",
            node.kind,
            node.mode,
            node.owner,
            node.rdev,
            node.size,
            node.links,
            node.times,
            node.same_as.escape_ascii(),
            node.target.as_ref().map(|target| target.len()),
        )
    };
    Some(format!(
        "found {}, expected {}",
        brief(&actual),
        brief(expected)
    ))
}
