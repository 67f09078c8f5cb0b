//! Carries operations out on a model tree and returns what an engine would hand to a store for
//! them: the net effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, Entry, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES,
    PAGE_BYTES_U64, Page, PageIndex, RangeSet, Timestamp,
};

use super::operation::{Operation, Verb};
use super::tree::{Node, NodeId, Pages, ROOT, Tree};
use mobifs_numerics::Random;

/// Largest file that a history makes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The history's clock starts here.
const CLOCK_START_SECONDS: i64 = 1_000_000_000;
/// Few names, so that operations meet.
const NAMES: [&[u8]; 10] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"db",
    b"db-journal",
    b"db-wal",
    b"\xff\n",
    b"-x *",
    &[b'n'; 255],
];
const XATTR_NAMES: [&[u8]; 3] = [b"user.a", b"user.mobifs", b"trusted.x"];

/// Changes of one object since the last commit, beyond its attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    zeroed: RangeSet,
    allocated: RangeSet,
    dirty: BTreeSet<u64>,
    xattrs: BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>,
}

/// An object that is open and has no name: a file, or what was removed.
#[derive(Clone, Debug)]
pub(super) struct Unnamed {
    pub(super) node: NodeId,
    pub(super) id: ObjectId,
    pub(super) content: Node,
    /// The object never had a name and no transaction knows it.
    fresh: bool,
    /// The object loses its last name with the transaction under way: what it holds may be
    /// spilled only when that is committed.
    leaving: bool,
}

impl Unnamed {
    fn is_file(&self) -> bool {
        self.content.attributes.kind == FileKind::Regular
    }
}

/// What the store must be asked to do besides transactions.
#[derive(Clone, Debug)]
pub(super) enum Demand {
    Pin(ObjectId),
    Unpin(ObjectId),
    Spill(ObjectId, Vec<(PageIndex, Page)>),
}

/// A tree with the state that an engine holds of it.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// As committed.
    base: Tree,
    /// As it is now.
    pub(super) tree: Tree,
    deltas: BTreeMap<NodeId, Delta>,
    pub(super) ids: BTreeMap<NodeId, ObjectId>,
    pub(super) unnamed: Vec<Unnamed>,
    /// Objects that got a name and whose pin ends with the next commit.
    named: Vec<ObjectId>,
    next_node: NodeId,
    next_object: u64,
    clock: i64,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            base: Tree::default(),
            tree: Tree::default(),
            deltas: BTreeMap::new(),
            ids: BTreeMap::from([(ROOT, ObjectId::ROOT)]),
            unnamed: Vec::new(),
            named: Vec::new(),
            next_node: ROOT + 1,
            next_object: 0,
            clock: 0,
        };
        let root = world.new_node(FileKind::Directory);
        world.tree.nodes.insert(ROOT, Arc::new(root));
        world.accept_as_base();
        world
    }

    /// The present tree counts as the initial one.
    pub(super) fn accept_as_base(&mut self) {
        self.base = self.tree.clone();
        self.deltas.clear();
        self.unnamed.clear();
        self.named.clear();
        self.ids.retain(|id, _| *id == ROOT);
    }

    /// The mount ended: objects without a name are gone, ids mean nothing any more.
    /// `tree` is what was found; new objects are numbered from `first` on.
    pub(super) fn remount(&mut self, tree: Tree, first: ObjectId) {
        let newest = tree
            .nodes
            .values()
            .map(|node| node.attributes.ctime.seconds)
            .max();
        self.clock = self.clock.max(newest.unwrap_or(0) - CLOCK_START_SECONDS);
        self.next_node = self
            .next_node
            .max(tree.nodes.keys().max().map_or(0, |&last| last + 1));
        self.tree = tree;
        self.accept_as_base();
        self.next_object = first.0 - ObjectId::FIRST_NEW.0;
    }

    /// Sets the ids of all objects; new ones get ids that are larger by `gap`.
    pub(super) fn use_ids(&mut self, ids: BTreeMap<NodeId, ObjectId>, gap: u64) {
        self.ids = ids;
        self.next_object += gap;
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::new(
            1_000_000_000 + self.clock,
            (self.clock % 1000) as u32 * 999_999,
        )
    }

    pub(super) fn new_node(&mut self, kind: FileKind) -> Node {
        let now = self.now();
        Node {
            attributes: Attributes {
                kind,
                mode: match kind {
                    FileKind::Symlink => 0o777,
                    FileKind::Directory => 0o755,
                    _ => 0o644,
                },
                uid: 0,
                gid: 0,
                rdev: DeviceNumber::default(),
                size: 0,
                nlink: if kind == FileKind::Directory { 2 } else { 0 },
                atime: now,
                mtime: now,
                ctime: now,
            },
            target: None,
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            pages: Pages::new(),
        }
    }

    /// Changes an object's content or attributes.
    pub(super) fn touch(&mut self, id: NodeId) -> (&mut Node, &mut Delta) {
        let now = self.now();
        let delta = self.deltas.entry(id).or_default();
        let node = self.tree.node_mut(id);
        node.attributes.ctime = now;
        if id == ROOT {
            self.tree.root_times_known = true;
        }
        (self.tree.node_mut(id), delta)
    }

    fn touch_content(&mut self, id: NodeId) -> (&mut Node, &mut Delta) {
        let now = self.now();
        self.touch(id).0.attributes.mtime = now;
        self.touch(id)
    }

    fn all(&self, wanted: impl Fn(&Node) -> bool) -> Vec<NodeId> {
        let nodes = self.tree.nodes.iter();
        nodes
            .filter(|(_, node)| wanted(node))
            .map(|(&id, _)| id)
            .collect()
    }

    fn pick(&self, number: u64, wanted: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let found = self.all(wanted);
        (!found.is_empty()).then(|| found[(number % found.len() as u64) as usize])
    }

    /// Some file, in half of the cases the one that changed last: programs go on with what
    /// they have begun.
    fn pick_file(&self, number: u64) -> Option<NodeId> {
        let is_file = |node: &Node| node.attributes.kind == FileKind::Regular;
        if number % 2 == 1 {
            return self.pick(number / 2, is_file);
        }
        let files = self.all(is_file).into_iter();
        files.max_by_key(|&id| self.tree.node(id).attributes.ctime)
    }

    pub(super) fn pick_directory(&self, number: u64) -> NodeId {
        self.pick(number, |node| node.attributes.kind == FileKind::Directory)
            .unwrap_or(ROOT)
    }

    /// Some directory entry.
    fn pick_entry(&self, number: u64) -> Option<(NodeId, Name, NodeId)> {
        let nodes = self.tree.nodes.iter();
        let entries: Vec<_> = nodes
            .flat_map(|(&id, node)| {
                node.entries
                    .iter()
                    .map(move |(name, &child)| (id, name, child))
            })
            .collect();
        let chosen = entries.get((number % entries.len().max(1) as u64) as usize)?;
        Some((chosen.0, chosen.1.clone(), chosen.2))
    }

    fn name(number: u64) -> Name {
        #[expect(clippy::expect_used, reason = "all names in the table are valid")]
        Name::new(NAMES[(number % NAMES.len() as u64) as usize]).expect("a valid name")
    }

    fn is_inside(&self, directory: NodeId, ancestor: NodeId) -> bool {
        let mut waiting = vec![ancestor];
        while let Some(at) = waiting.pop() {
            if at == directory {
                return true;
            }
            let node = self.tree.nodes.get(&at);
            waiting.extend(node.iter().flat_map(|node| node.entries.values()));
        }
        false
    }

    pub(super) fn add_entry(&mut self, parent: NodeId, name: Name, child: NodeId) {
        let is_directory = self.tree.node(child).attributes.kind == FileKind::Directory;
        let (directory, _) = self.touch_content(parent);
        directory.entries.insert(name, child);
        directory.attributes.nlink += u32::from(is_directory);
        let (node, _) = self.touch(child);
        node.attributes.nlink += u32::from(!is_directory);
    }

    /// Takes an entry away; the object stays in the tree.
    pub(super) fn take_entry(&mut self, parent: NodeId, name: &Name) {
        let Some(&child) = self.tree.node(parent).entries.get(name) else {
            return;
        };
        let is_directory = self.tree.node(child).attributes.kind == FileKind::Directory;
        let (directory, _) = self.touch_content(parent);
        directory.entries.remove(name);
        directory.attributes.nlink -= u32::from(is_directory);
        let (node, _) = self.touch(child);
        node.attributes.nlink -= u32::from(!is_directory);
    }

    /// Removes an entry, with everything in it.
    pub(super) fn remove(&mut self, parent: NodeId, name: &Name) {
        let Some(&child) = self.tree.node(parent).entries.get(name) else {
            return;
        };
        let below: Vec<Name> = self.tree.node(child).entries.keys().cloned().collect();
        for entry in below {
            self.remove(child, &entry);
        }
        self.take_entry(parent, name);
        let node = self.tree.node(child);
        if node.attributes.kind == FileKind::Directory || node.attributes.nlink == 0 {
            self.tree.nodes.remove(&child);
            self.deltas.remove(&child);
        }
    }

    fn create(&mut self, kind: FileKind, numbers: [u64; 4]) -> Option<NodeId> {
        let parent = self.pick_directory(numbers[0]);
        let name = Self::name(numbers[1]);
        if self.tree.node(parent).entries.contains_key(&name) || self.tree.nodes.len() > 40 {
            return None;
        }
        let mut node = self.new_node(kind);
        if kind == FileKind::Symlink {
            let target: Vec<u8> = vec![b't'; 1 + (numbers[2] % 200) as usize];
            node.attributes.size = target.len() as u64;
            node.target = Some(target.into());
        }
        Some(self.insert(node, parent, name))
    }

    pub(super) fn insert(&mut self, node: Node, parent: NodeId, name: Name) -> NodeId {
        let id = self.next_node;
        self.next_node += 1;
        self.tree.nodes.insert(id, Arc::new(node));
        self.add_entry(parent, name, id);
        id
    }

    pub(super) fn write(&mut self, id: NodeId, offset: u64, content: &[u8]) {
        if offset + content.len() as u64 > FILE_BYTES_MAX {
            return;
        }
        let (node, delta) = self.touch_content(id);
        let mut done = 0;
        while done < content.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES_U64) as usize;
            let count = (PAGE_BYTES - within).min(content.len() - done);
            let index = at / PAGE_BYTES_U64;
            let page = node.pages.entry(index).or_default();
            page.write(within, &content[done..done + count]);
            delta.dirty.insert(index);
            done += count;
        }
        node.attributes.size = node.attributes.size.max(offset + content.len() as u64);
    }

    pub(super) fn truncate(&mut self, id: NodeId, size: u64) {
        let (node, delta) = self.touch_content(id);
        if size < node.attributes.size {
            zero(node, delta, size, u64::MAX);
        }
        node.attributes.size = size;
    }
}

/// Zeroes a range: whole pages by a range, parts of pages by writing them.
fn zero(node: &mut Node, delta: &mut Delta, start: u64, end: u64) {
    let first = start.div_ceil(PAGE_BYTES_U64);
    let whole_end = if end == u64::MAX {
        u64::MAX
    } else {
        end / PAGE_BYTES_U64
    };
    let mut part = |index: u64, from: usize, to: usize| {
        if from < to
            && let Some(page) = node.pages.get_mut(&index)
        {
            page.zero_range(from, to);
            delta.dirty.insert(index);
        }
    };
    let start_within = (start % PAGE_BYTES_U64) as usize;
    if first > whole_end {
        part(
            start / PAGE_BYTES_U64,
            start_within,
            (end % PAGE_BYTES_U64) as usize,
        );
        return;
    }
    if start_within > 0 {
        part(start / PAGE_BYTES_U64, start_within, PAGE_BYTES);
    }
    if end != u64::MAX {
        part(whole_end, 0, (end % PAGE_BYTES_U64) as usize);
    }
    if first < whole_end {
        let bytes = |index: u64| index.saturating_mul(PAGE_BYTES_U64);
        let range = match end {
            u64::MAX => ByteRange::from(bytes(first)),
            _ => ByteRange::new(bytes(first), bytes(whole_end)),
        };
        delta.zeroed.insert(range);
        delta.allocated.remove(range);
        node.pages
            .retain(|index, _| !(first..whole_end).contains(index));
        delta
            .dirty
            .retain(|index| !(first..whole_end).contains(index));
    }
}

impl World {
    /// Carries an operation out.
    pub(super) fn perform(&mut self, operation: &Operation) -> Vec<Demand> {
        let numbers = operation.numbers;
        match operation.verb {
            Verb::RemoveOpen
            | Verb::SpillRemoved
            | Verb::CreateUnnamed
            | Verb::LinkUnnamed
            | Verb::Close => return self.perform_unnamed(operation),
            Verb::CreateFile => {
                self.create(FileKind::Regular, numbers);
            }
            Verb::CreateDirectory => {
                self.create(FileKind::Directory, numbers);
            }
            Verb::CreateSymlink => {
                self.create(FileKind::Symlink, numbers);
            }
            Verb::CreateFifo => {
                self.create(FileKind::Fifo, numbers);
            }
            Verb::Rename | Verb::Exchange | Verb::Link | Verb::Remove | Verb::Recreate => {
                self.perform_on_entries(operation);
            }
            Verb::LogPages => self.log_pages(numbers),
            Verb::RollBackPages => self.roll_back_pages(numbers),
            _ => self.perform_on_object(operation),
        }
        Vec::new()
    }

    fn perform_on_entries(&mut self, operation: &Operation) {
        let [first, second, third, _] = operation.numbers;
        let Some((parent, name, id)) = self.pick_entry(first) else {
            return;
        };
        match operation.verb {
            Verb::Rename => {
                let (to, to_name) = (self.pick_directory(second), Self::name(third));
                let replaced = self.tree.node(to).entries.get(&to_name).copied();
                if replaced == Some(id)
                    || self.is_inside(to, id)
                    || replaced.is_some_and(|replaced| self.is_inside(parent, replaced))
                {
                    return;
                }
                self.remove(to, &to_name);
                self.take_entry(parent, &name);
                self.add_entry(to, to_name, id);
            }
            Verb::Exchange => {
                let Some((to, to_name, other)) = self.pick_entry(second) else {
                    return;
                };
                if id == other || self.is_inside(to, id) || self.is_inside(parent, other) {
                    return;
                }
                self.take_entry(parent, &name);
                self.take_entry(to, &to_name);
                self.add_entry(to, to_name, id);
                self.add_entry(parent, name, other);
            }
            Verb::Link => {
                let (to, to_name) = (self.pick_directory(second), Self::name(third));
                if self.tree.node(id).attributes.kind != FileKind::Directory
                    && !self.tree.node(to).entries.contains_key(&to_name)
                {
                    self.add_entry(to, to_name, id);
                }
            }
            Verb::Recreate => {
                let kind = self.tree.node(id).attributes.kind;
                self.remove(parent, &name);
                if matches!(kind, FileKind::Regular | FileKind::Directory) {
                    let mut node = self.new_node(kind);
                    node.attributes.mode = 0o600 | (second % 8) as u16;
                    let id = self.insert(node, parent, name);
                    if kind == FileKind::Regular {
                        self.write(id, 0, &content_of(third, 300));
                    }
                }
            }
            _ => self.remove(parent, &name),
        }
    }

    fn perform_on_object(&mut self, operation: &Operation) {
        let [first, second, third, fourth] = operation.numbers;
        if operation.verb == Verb::SetAttributes {
            return self.set_attributes(operation);
        }
        if matches!(operation.verb, Verb::SetXattr | Verb::RemoveXattr) {
            return self.change_xattr(operation);
        }
        let Some(id) = self.pick_file(first) else {
            return;
        };
        let size = self.tree.node(id).attributes.size;
        match operation.verb {
            Verb::Write => {
                let length = 1 + third % if fourth % 4 == 0 { 10_000 } else { 60 };
                self.write(id, second % (size + 5000), &content_of(fourth, length));
            }
            Verb::Scatter => {
                let mut dice = Random::new(second);
                for _ in 0..1 + third % 40 {
                    let at = dice.below(FILE_BYTES_MAX / 2 - 4096);
                    self.write(id, at, &content_of(dice.next_u64(), 3000));
                }
            }
            Verb::WriteBig => {
                let length = 60_000 + third % 200_000;
                let offset = match fourth % 3 {
                    0 => size.next_multiple_of(PAGE_BYTES_U64),
                    1 => size,
                    _ => second % (size + 10_000),
                };
                self.write(id, offset, &content_of(fourth, length));
            }
            Verb::Append => self.write(id, size, &content_of(fourth, 1 + third % 9000)),
            Verb::Truncate => {
                let to = match third % 6 {
                    0 => 0,
                    1 => size / 2,
                    2 => second % (size + 1),
                    3 => second % (size + 1) / PAGE_BYTES_U64 * PAGE_BYTES_U64,
                    4 => size + second % 200_000,
                    _ => size + second % 20_000,
                };
                self.truncate(id, to.min(FILE_BYTES_MAX));
            }
            Verb::Punch => {
                let start = second % (size + 1);
                let end = (start + third % 40_000).min(size);
                let (node, delta) = self.touch_content(id);
                zero(node, delta, start, end);
            }
            _ => {
                let start = (second % (size + 1)) / PAGE_BYTES_U64 * PAGE_BYTES_U64;
                let length = (1 + third % 16) * PAGE_BYTES_U64;
                self.touch(id)
                    .1
                    .allocated
                    .insert(ByteRange::new(start, start + length));
            }
        }
    }

    fn set_attributes(&mut self, operation: &Operation) {
        let [first, second, third, fourth] = operation.numbers;
        let Some(id) = self.pick(first, |_| true) else {
            return;
        };
        let attributes = &mut self.touch(id).0.attributes;
        if attributes.kind != FileKind::Symlink {
            attributes.mode = (second % 0o10000) as u16;
        }
        (attributes.uid, attributes.gid) = ((third % 3) as u32, (third / 3 % 3) as u32);
        if fourth % 3 == 0 {
            attributes.mtime = Timestamp::new((fourth % 1_000_000).cast_signed() - 500_000, 5);
            attributes.atime = Timestamp::new((fourth % 777).cast_signed(), 999_999_999);
        }
    }

    fn change_xattr(&mut self, operation: &Operation) {
        let [first, second, third, fourth] = operation.numbers;
        let Some(id) = self.pick(first, |_| true) else {
            return;
        };
        let name: Arc<[u8]> = XATTR_NAMES[(second % 3) as usize].into();
        let value = (operation.verb == Verb::SetXattr)
            .then(|| Arc::<[u8]>::from(content_of(fourth, third % 900)));
        let (node, delta) = self.touch(id);
        match &value {
            Some(value) => node.xattrs.insert(name.clone(), value.clone()),
            None => node.xattrs.remove(&name),
        };
        delta.xattrs.insert(name, value);
    }

    fn perform_unnamed(&mut self, operation: &Operation) -> Vec<Demand> {
        let [first, second, third, fourth] = operation.numbers;
        match operation.verb {
            Verb::RemoveOpen => return self.remove_open(first),
            Verb::CreateUnnamed => {
                let node = self.next_node;
                self.next_node += 1;
                let id = self.new_object();
                let content = self.new_node(FileKind::Regular);
                self.unnamed.push(Unnamed {
                    node,
                    id,
                    content,
                    fresh: true,
                    leaving: false,
                });
                return vec![
                    Demand::Pin(id),
                    self.spill(self.unnamed.len() - 1, second, third),
                ];
            }
            _ if self.unnamed.is_empty() => return Vec::new(),
            _ => {}
        }
        let chosen = (first % self.unnamed.len() as u64) as usize;
        match operation.verb {
            Verb::SpillRemoved
                if !self.unnamed[chosen].leaving && self.unnamed[chosen].is_file() =>
            {
                vec![self.spill(chosen, second, third)]
            }
            Verb::LinkUnnamed if self.unnamed[chosen].fresh => {
                let (parent, name) = (self.pick_directory(second), Self::name(third));
                if self.tree.node(parent).entries.contains_key(&name) {
                    return Vec::new();
                }
                let unnamed = self.unnamed.remove(chosen);
                let mut node = unnamed.content;
                node.attributes.nlink = 0;
                self.named.push(unnamed.id);
                self.ids.insert(unnamed.node, unnamed.id);
                self.tree.nodes.insert(unnamed.node, Arc::new(node));
                self.add_entry(parent, name, unnamed.node);
                if fourth % 2 == 0 {
                    self.write(unnamed.node, fourth % 9000, &content_of(fourth, 100));
                }
                Vec::new()
            }
            Verb::Close if !self.unnamed[chosen].leaving => {
                vec![Demand::Unpin(self.unnamed.remove(chosen).id)]
            }
            _ => Vec::new(),
        }
    }

    /// Removes the only name of a committed, unchanged object that stays open.
    fn remove_open(&mut self, number: u64) -> Vec<Demand> {
        match self.pick_entry(number) {
            Some((parent, name, id)) => self.unlink_open(parent, &name, id),
            None => Vec::new(),
        }
    }

    /// Removes an entry whose object stays open, if it is its only name and it has no changes.
    pub(super) fn unlink_open(&mut self, parent: NodeId, name: &Name, id: NodeId) -> Vec<Demand> {
        let node = self.tree.node(id);
        let unchanged = !self.deltas.contains_key(&id) && self.base.nodes.contains_key(&id);
        let Some(&object) = self.ids.get(&id) else {
            return Vec::new();
        };
        let has_one_name = match node.attributes.kind {
            FileKind::Directory => node.entries.is_empty(),
            _ => node.attributes.nlink == 1,
        };
        if !unchanged || !has_one_name {
            return Vec::new();
        }
        let content = node.clone();
        let leaving = Unnamed {
            node: id,
            id: object,
            content,
            fresh: false,
            leaving: true,
        };
        self.unnamed.push(leaving);
        self.remove(parent, name);
        vec![Demand::Pin(object)]
    }

    /// Spills some pages of an object without a name.
    fn spill(&mut self, chosen: usize, second: u64, third: u64) -> Demand {
        let unnamed = &mut self.unnamed[chosen];
        let node = &mut unnamed.content;
        let mut dice = Random::new(second);
        let mut pages = BTreeMap::new();
        for _ in 0..1 + third % 6 {
            let index = dice.below(40);
            let page = Page::new(&content_of(dice.next_u64(), 4096));
            pages.insert(index, page.clone());
            node.pages.insert(index, page);
            node.attributes.size = node.attributes.size.max((index + 1) * PAGE_BYTES_U64);
        }
        let pages = pages
            .into_iter()
            .map(|(index, page)| (PageIndex(index), page))
            .collect();
        Demand::Spill(unnamed.id, pages)
    }

    fn new_object(&mut self) -> ObjectId {
        let id = ObjectId(ObjectId::FIRST_NEW.0 + self.next_object);
        self.next_object += 2;
        id
    }

    /// The net effect since the last call, as an engine hands it over.
    pub(super) fn take_entries(&mut self) -> Vec<Entry> {
        let new: Vec<NodeId> = self
            .tree
            .nodes
            .keys()
            .filter(|id| !self.ids.contains_key(id))
            .copied()
            .collect();
        for id in new {
            let object = self.new_object();
            self.ids.insert(id, object);
        }
        let mut objects = Vec::new();
        let mut pages = Vec::new();
        for (id, delta) in std::mem::take(&mut self.deltas) {
            let (node, object) = (self.tree.node(id), self.ids[&id]);
            let created = !self.base.nodes.contains_key(&id);
            objects.push(Entry::Object(ObjectState {
                id: object,
                created,
                attributes: node.attributes,
                symlink_target: node.target.clone().filter(|_| created),
                zeroed: delta.zeroed.iter().collect(),
                allocated: delta.allocated.iter().collect(),
                xattrs: delta.xattrs.into_iter().collect(),
            }));
            for index in delta.dirty {
                let page = node.pages.get(&index).cloned().unwrap_or_default();
                pages.push(Entry::Page {
                    object,
                    index: PageIndex(index),
                    page,
                });
            }
        }
        objects.extend(self.changed_dentries());
        objects.extend(pages);
        self.base = self.tree.clone();
        for unnamed in &mut self.unnamed {
            unnamed.leaving = false;
        }
        let (tree, unnamed) = (&self.tree, &self.unnamed);
        self.ids.retain(|id, _| {
            tree.nodes.contains_key(id) || unnamed.iter().any(|unnamed| unnamed.node == *id)
        });
        objects
    }

    /// What follows a commit.
    pub(super) fn take_demands(&mut self) -> Vec<Demand> {
        std::mem::take(&mut self.named)
            .into_iter()
            .map(Demand::Unpin)
            .collect()
    }

    fn changed_dentries(&self) -> Vec<Entry> {
        let none = BTreeMap::new();
        let directories: BTreeSet<NodeId> = self
            .base
            .nodes
            .keys()
            .chain(self.tree.nodes.keys())
            .copied()
            .collect();
        let mut changed = Vec::new();
        for id in directories {
            let entries = |tree: &Tree| tree.nodes.get(&id).map(|node| node.entries.clone());
            let before = entries(&self.base).unwrap_or_else(|| none.clone());
            let now = entries(&self.tree).unwrap_or_else(|| none.clone());
            let names: BTreeSet<&Name> = before.keys().chain(now.keys()).collect();
            for name in names {
                if before.get(name) != now.get(name) {
                    let child = now.get(name).map(|child| self.ids[child]);
                    let parent = self.ids[&id];
                    changed.push(Entry::Dentry {
                        parent,
                        name: name.clone(),
                        child,
                    });
                }
            }
        }
        changed
    }
}

/// Content that differs from any other's.
pub(super) fn content_of(seed: u64, length: u64) -> Vec<u8> {
    let mut dice = Random::new(seed);
    let mut content = Vec::with_capacity(length as usize + 8);
    while (content.len() as u64) < length {
        content.extend_from_slice(&dice.next_u64().to_le_bytes());
    }
    content.truncate(length as usize);
    content
}
