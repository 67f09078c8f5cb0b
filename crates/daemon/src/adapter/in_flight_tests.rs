//! Each state in which a predecessor can leave a request.

use std::io::IoSlice;
use std::sync::Arc;

use mobifs_fuse::protocol::{
    Attr, AttrReply, CopyFileRangeArgs, CopyFileRangeReply, CreateArgs, FallocateArgs, MkDirArgs,
    MkNodArgs, OpenReply, ReadArgs, ReplyHeader, RequestHeader, SetAttrArgs, set_attr,
};
use mobifs_fuse::transport::Transport;
use mobifs_fuse::{
    Dispatcher, Filesystem, Request, RequestLedger as _, RequestSlot, SCRATCH_BYTES,
};
use mobifs_store::MemoryStore;
use mobifs_volume::{Arena, Config, FsError, Volume, VolumeOptions};
use parking_lot::Mutex;
use zerocopy::{Immutable, IntoBytes};

use super::*;
use crate::adapter::ledger::ArenaLedger;

const ROOT: u64 = 1;
const USER: u32 = 1000;

/// What the kernel got, and whether it waits for a reply.
#[derive(Default)]
struct Kernel {
    answered_already: bool,
    replies: Mutex<Vec<Vec<u8>>>,
    invalidated: Mutex<usize>,
}

impl Transport for Kernel {
    fn try_receive(&self, _: &mut [u8]) -> Result<Option<usize>, Errno> {
        Err(Errno::NODEV)
    }

    fn sleep(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        if self.answered_already {
            return Err(Errno::NOENT);
        }
        let bytes = parts.iter().flat_map(|part| part.iter().copied());
        self.replies.lock().push(bytes.collect());
        Ok(())
    }

    fn notify(&self, _: &[IoSlice<'_>]) -> Result<(), Errno> {
        *self.invalidated.lock() += 1;
        Ok(())
    }
}

/// An adapter that finishes requests of which the test says what was executed.
struct Finishing {
    adapter: Adapter,
    executed: Arc<Mutex<InFlightRequest>>,
}

impl Filesystem for Finishing {
    fn handle(&self, _: &Call<'_>, _: &mut [u8]) {
        panic!("a request in flight is finished");
    }

    fn finish_in_flight(&self, call: &Call<'_>, scratch: &mut [u8]) {
        self.adapter.finish(call, &self.executed.lock(), scratch);
    }
}

/// A successor.
struct Successor {
    dispatcher: Dispatcher,
    executed: Arc<Mutex<InFlightRequest>>,
    volume: Arc<Volume>,
    slot: Box<dyn RequestSlot>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
struct Answered {
    error: i32,
    payload: Vec<u8>,
}

impl Answered {
    fn value<T: zerocopy::FromBytes + zerocopy::KnownLayout + Immutable>(&self) -> T {
        assert_eq!(self.error, 0);
        T::read_from_prefix(&self.payload).unwrap().0
    }
}

impl Successor {
    fn new() -> Self {
        Self::with(&Config::defaults().unwrap())
    }

    fn with(config: &Config) -> Self {
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(config)
        };
        let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
        let executed = Arc::default();
        Self {
            dispatcher: inheriting(&volume, &executed),
            executed,
            volume,
            slot: ArenaLedger(Arena::create().unwrap()).take(0).unwrap(),
        }
    }

    /// Finishes a request; what the kernel got.
    fn finish(
        &mut self,
        kernel: &Kernel,
        uid: u32,
        operation: Operation<'_>,
        node: u64,
        executed: &InFlightRequest,
    ) -> Option<Answered> {
        let header = RequestHeader {
            unique: 77,
            node,
            uid,
            ..RequestHeader::default()
        };
        let mut scratch = vec![0; SCRATCH_BYTES];
        let request = Request { header, operation };
        *self.executed.lock() = executed.clone();
        self.dispatcher
            .finish_in_flight(kernel, &*self.slot, &request, &mut scratch);
        let replies = std::mem::take(&mut *kernel.replies.lock());
        assert!(replies.len() <= 1, "one reply at most");
        replies.first().map(|reply| {
            let (header, payload) = ReplyHeader::read_from_prefix(reply).unwrap();
            assert_eq!((header.unique, header.len as usize), (77, reply.len()));
            Answered {
                error: header.error,
                payload: payload.to_vec(),
            }
        })
    }

    /// Finishes a request that the kernel waits for.
    fn answer(
        &mut self,
        operation: Operation<'_>,
        node: u64,
        executed: &InFlightRequest,
    ) -> Answered {
        let kernel = Kernel::default();
        self.finish(&kernel, 0, operation, node, executed).unwrap()
    }

    fn make(&mut self, name: &[u8]) -> u64 {
        let made = self.answer(mknod(name), ROOT, &nothing());
        made.value::<EntryReply>().node
    }

    /// Whether an unlinked object is still in use.
    fn is_in_use(&self, node: u64) -> bool {
        self.volume.sync_app(None, true).unwrap();
        self.volume.do_housekeeping();
        self.volume.attributes(ObjectId(node)).is_ok()
    }
}

fn inheriting(volume: &Arc<Volume>, executed: &Arc<Mutex<InFlightRequest>>) -> Dispatcher {
    let finishing = Finishing {
        adapter: Adapter::inheriting(Arc::clone(volume), false),
        executed: Arc::clone(executed),
    };
    Dispatcher::new(finishing, None)
}

fn nothing() -> InFlightRequest {
    InFlightRequest::default()
}

fn executed(outcome: u64) -> InFlightRequest {
    InFlightRequest {
        outcome: Some(outcome),
        references: Vec::new(),
    }
}

fn took(references: &[(u64, i64)]) -> InFlightRequest {
    let references = references.iter().map(|&(id, count)| (ObjectId(id), count));
    InFlightRequest {
        outcome: None,
        references: references.collect(),
    }
}

fn mknod(name: &[u8]) -> Operation<'_> {
    let args = MkNodArgs {
        mode: 0o100_644,
        ..MkNodArgs::default()
    };
    Operation::MkNod { args, name }
}

fn write_of(args: WriteArgs, data: &[u8]) -> Operation<'_> {
    Operation::Write { args, data }
}

#[test]
fn what_was_not_executed_is_executed() {
    let mut successor = Successor::new();
    let node = successor.make(b"f");
    let written = successor.answer(write_of(WriteArgs::default(), b"abc"), node, &nothing());
    assert_eq!(written.value::<WriteReply>().size, 3);
    let attributes = successor.volume.attributes(ObjectId(node)).unwrap();
    assert_eq!(attributes.attributes.size, 3);
    let again = successor.answer(mknod(b"f"), ROOT, &nothing());
    assert_eq!(again.error, -Errno::EXIST.raw_os_error());
    assert_eq!(
        successor.slot.recorded_error(),
        Some(-Errno::EXIST.raw_os_error()),
        "recorded before it is sent"
    );
}

#[test]
fn what_was_executed_is_answered_and_not_done_again() {
    let mut successor = Successor::new();
    let node = successor.make(b"f");
    let before = successor.volume.attributes(ObjectId(node)).unwrap();
    let written = successor.answer(write_of(WriteArgs::default(), b"abc"), node, &executed(3));
    assert_eq!(written.value::<WriteReply>().size, 3);
    let after = successor.volume.attributes(ObjectId(node)).unwrap();
    assert_eq!(before, after, "it was not written");

    for operation in [
        mknod(b"f"),
        Operation::MkDir {
            args: MkDirArgs::default(),
            name: b"f",
        },
        Operation::Symlink {
            name: b"f",
            target: b"t",
        },
        Operation::Link { node, name: b"f" },
    ] {
        let made = successor.answer(operation, ROOT, &executed(node));
        assert_eq!(made.value::<EntryReply>().node, node);
        assert_eq!(made.value::<EntryReply>().attr.nlink, 1);
    }
    for operation in [
        Operation::Unlink { name: b"f" },
        Operation::RmDir { name: b"f" },
        Operation::Rename {
            new_directory: ROOT,
            flags: 0,
            name: b"f",
            new_name: b"g",
        },
        Operation::RemoveXattr { name: b"user.x" },
    ] {
        let done = successor.answer(operation, ROOT, &executed(0));
        assert_eq!((done.error, done.payload.len()), (0, 0));
    }
    assert!(successor.volume.lookup(ObjectId::ROOT, b"f").is_ok());
}

#[test]
fn attributes_are_answered_as_they_are_now() {
    let mut successor = Successor::new();
    let node = successor.make(b"f");
    let args = SetAttrArgs {
        valid: set_attr::MODE,
        mode: 0o600,
        ..SetAttrArgs::default()
    };
    let shown = successor.answer(Operation::SetAttr(args), node, &executed(0));
    let Attr { mode, .. } = shown.value::<AttrReply>().attr;
    assert_eq!(mode, 0o100_644, "it was not done again");
}

#[test]
fn an_unnamed_file_lives_as_long_as_its_reference() {
    let mut successor = Successor::new();
    let made = successor.answer(Operation::TmpFile(CreateArgs::default()), ROOT, &nothing());
    let node = made.value::<EntryReply>().node;
    let again = successor.answer(
        Operation::TmpFile(CreateArgs::default()),
        ROOT,
        &executed(node),
    );
    assert_eq!(again, made);
    assert_eq!(
        made.payload.len(),
        size_of::<EntryReply>() + size_of::<OpenReply>()
    );
    successor.answer(Operation::Release, node, &nothing());
    assert!(successor.is_in_use(node), "the kernel still knows it");
    successor.volume.forget(ObjectId(node), 1);
    assert!(!successor.is_in_use(node));
}

#[test]
fn a_lookup_counts_once_whichever_process_answered_it() {
    // The predecessor took a reference and its reply did not arrive.
    let mut successor = Successor::new();
    let node = successor.make(b"f");
    successor.volume.lookup(ObjectId::ROOT, b"f").unwrap();
    let found = successor.answer(Operation::Lookup { name: b"f" }, ROOT, &took(&[(node, 1)]));
    assert_eq!(found.value::<EntryReply>().node, node);
    successor.volume.unlink(ObjectId::ROOT, b"f").unwrap();
    successor.volume.forget(ObjectId(node), 1);
    assert!(successor.is_in_use(node), "the kernel has two references");
    successor.volume.forget(ObjectId(node), 1);
    assert!(!successor.is_in_use(node), "and nothing else has one");

    // Its reply did arrive.
    let node = successor.make(b"g");
    successor.volume.lookup(ObjectId::ROOT, b"g").unwrap();
    let kernel = Kernel {
        answered_already: true,
        ..Kernel::default()
    };
    let lookup = Operation::Lookup { name: b"g" };
    successor.finish(&kernel, 0, lookup, ROOT, &took(&[(node, 1)]));
    successor.volume.unlink(ObjectId::ROOT, b"g").unwrap();
    successor.volume.forget(ObjectId(node), 1);
    assert!(successor.is_in_use(node));
    successor.volume.forget(ObjectId(node), 1);
    assert!(!successor.is_in_use(node));
}

#[test]
fn a_name_that_is_not_there_is_looked_up_without_a_reference() {
    let mut successor = Successor::new();
    for answered_already in [false, true] {
        let kernel = Kernel {
            answered_already,
            ..Kernel::default()
        };
        let lookup = Operation::Lookup { name: b"absent" };
        let found = successor.finish(&kernel, 0, lookup, ROOT, &nothing());
        assert_eq!(found.is_none(), answered_already);
        assert!(found.is_none_or(|found| found.value::<EntryReply>().node == 0));
    }
}

#[test]
fn a_listing_with_attributes_counts_each_entry_once() {
    let mut successor = Successor::new();
    let nodes: Vec<u64> = [&b"a"[..], b"bb", b"a-longer-name"]
        .map(|name| successor.make(name))
        .to_vec();
    let args = ReadArgs {
        size: 4096,
        ..ReadArgs::default()
    };
    for answered_already in [false, true] {
        let kernel = Kernel {
            answered_already,
            ..Kernel::default()
        };
        // The predecessor had come to the second entry, or to the end.
        let count = if answered_already { 3 } else { 2 };
        let mut references = Vec::new();
        for (node, name) in nodes
            .iter()
            .zip([&b"a"[..], b"bb", b"a-longer-name"])
            .take(count)
        {
            successor.volume.lookup(ObjectId::ROOT, name).unwrap();
            references.push((*node, 1));
        }
        let operation = Operation::ReadDirPlus(args);
        let listed = successor.finish(&kernel, 0, operation, ROOT, &took(&references));
        if let Some(listed) = listed {
            let mut found = listed_nodes(&listed.payload);
            found.retain(|&node| node != 0);
            found.sort_unstable();
            assert_eq!(found, nodes);
        }
    }
    // One from making, two from the listings.
    for (node, name) in nodes.iter().zip([&b"a"[..], b"bb", b"a-longer-name"]) {
        successor.volume.unlink(ObjectId::ROOT, name).unwrap();
        successor.volume.forget(ObjectId(*node), 2);
        assert!(successor.is_in_use(*node));
        successor.volume.forget(ObjectId(*node), 1);
        assert!(!successor.is_in_use(*node));
    }
}

#[test]
fn a_reference_that_no_reply_carries_is_given_back() {
    let mut successor = Successor::new();
    let made = Operation::MkDir {
        args: MkDirArgs::default(),
        name: b"d",
    };
    let directory = successor
        .answer(made, ROOT, &nothing())
        .value::<EntryReply>()
        .node;
    let node = {
        let inner = mknod(b"x");
        let made = successor.answer(inner, directory, &nothing());
        made.value::<EntryReply>().node
    };
    successor.volume.lookup(ObjectId(directory), b"x").unwrap();
    let args = ReadArgs {
        size: 4096,
        ..ReadArgs::default()
    };
    successor.answer(Operation::ReadDir(args), directory, &took(&[(node, 1)]));
    successor.volume.unlink(ObjectId(directory), b"x").unwrap();
    successor.volume.forget(ObjectId(node), 1);
    assert!(!successor.is_in_use(node));
}

#[test]
fn forgetting_goes_on_where_it_stopped() {
    let mut successor = Successor::new();
    let nodes = [
        successor.make(b"a"),
        successor.make(b"b"),
        successor.make(b"c"),
    ];
    for (node, name) in nodes.iter().zip([b"a", b"b", b"c"]) {
        successor.volume.lookup(ObjectId::ROOT, name).unwrap();
        successor.volume.unlink(ObjectId::ROOT, name).unwrap();
        assert!(successor.is_in_use(*node));
    }
    // Two references each. The predecessor gave back all of the first object's and died.
    let lookups = 2;
    let entries = nodes.map(|node| ForgetOne { node, lookups });
    successor.volume.forget(ObjectId(nodes[0]), 2);
    let kernel = Kernel::default();
    let given_back = took(&[(nodes[0], -2)]);
    let batch = Operation::BatchForget {
        entries: entries.as_bytes(),
    };
    let reply = successor.finish(&kernel, 0, batch, 0, &given_back);
    assert_eq!(reply, None, "the kernel waits for none");
    assert!(nodes.iter().all(|&node| !successor.is_in_use(node)));

    let node = successor.make(b"d");
    successor.volume.lookup(ObjectId::ROOT, b"d").unwrap();
    successor.volume.unlink(ObjectId::ROOT, b"d").unwrap();
    successor.volume.forget(ObjectId(node), 1);
    let forget = Operation::Forget { lookups: 1 };
    successor.finish(&kernel, 0, forget, node, &took(&[(node, -1)]));
    assert!(successor.is_in_use(node), "that one had been given back");
    successor.finish(&kernel, 0, forget, node, &nothing());
    assert!(!successor.is_in_use(node));
}

#[test]
fn a_copy_is_answered_with_its_length_in_both_forms() {
    let mut successor = Successor::new();
    let (from, to) = (successor.make(b"from"), successor.make(b"to"));
    let args = CopyFileRangeArgs {
        node_out: to,
        length: 9,
        ..CopyFileRangeArgs::default()
    };
    for wide_reply in [false, true] {
        let copy = Operation::CopyFileRange { args, wide_reply };
        let copied = successor.answer(copy, from, &executed(9));
        if wide_reply {
            assert_eq!(copied.value::<CopyFileRangeReply>().bytes_copied, 9);
        } else {
            assert_eq!(copied.value::<WriteReply>().size, 9);
        }
    }
    let size = successor
        .volume
        .attributes(ObjectId(to))
        .unwrap()
        .attributes
        .size;
    assert_eq!(size, 0, "it was not done again");
}

/// A caller that may not keep set-id bits when it writes: the predecessor took them away (or
/// not) and notified the kernel (or not).
#[test]
fn the_kernel_is_notified_again_of_lost_set_id_bits() {
    let mut successor = Successor::new();
    let node = successor.make(b"f");
    let set = SetAttrArgs {
        valid: set_attr::MODE,
        mode: 0o4755,
        ..SetAttrArgs::default()
    };
    let mode = |successor: &Successor| {
        let node = successor.volume.attributes(ObjectId(node)).unwrap();
        node.attributes.mode
    };
    let args = WriteArgs {
        write_flags: write::KILL_SUIDGID,
        ..WriteArgs::default()
    };
    let notifications = |successor: &mut Successor, operation, executed: &InFlightRequest| {
        let kernel = Kernel::default();
        let done = successor
            .finish(&kernel, USER, operation, node, executed)
            .unwrap();
        assert_eq!(done.error, 0);
        *kernel.invalidated.lock()
    };
    let allocate = FallocateArgs {
        length: 10,
        ..FallocateArgs::default()
    };
    // Executed, and the bits are gone: perhaps the kernel does not know.
    assert_eq!(
        notifications(&mut successor, write_of(args, b"x"), &executed(1)),
        1
    );
    assert_eq!(
        notifications(&mut successor, Operation::Fallocate(allocate), &executed(0)),
        1
    );
    // Executed, and the second change is missing.
    successor.answer(Operation::SetAttr(set), node, &nothing());
    assert!(notifications(&mut successor, Operation::Fallocate(allocate), &executed(0)) >= 1);
    assert_eq!(mode(&successor), 0o755);
    // Not executed, and a predecessor has shown the bits.
    successor.answer(Operation::SetAttr(set), node, &nothing());
    successor.dispatcher = inheriting(&successor.volume, &successor.executed);
    assert_eq!(
        notifications(&mut successor, write_of(args, b"x"), &nothing()),
        1
    );
    assert_eq!(mode(&successor), 0o755);
    assert_eq!(
        notifications(&mut successor, write_of(args, b"x"), &nothing()),
        0
    );
}

/// A transaction of SQLite is committed when its journal is removed or renamed. The predecessor had
/// changed the names, and died before it committed that.
#[test]
fn what_removed_a_rollback_journal_is_durable_before_it_is_answered() {
    let text = "[defaults]\nclass = \"durable\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let rename = |name, new_name| Operation::Rename {
        new_directory: ROOT,
        flags: 0,
        name,
        new_name,
    };
    let requests = [
        (Operation::Unlink { name: b"other" }, false),
        (rename(b"other", b"f"), false),
        (
            Operation::Unlink {
                name: b"db-journal",
            },
            true,
        ),
        (rename(b"db-journal", b"f"), true),
        (rename(b"f", b"db-journal"), true),
    ];
    for (operation, is_durable) in requests {
        let mut successor = Successor::with(&config);
        successor.make(b"f");
        let done = successor.answer(operation, ROOT, &executed(0));
        assert_eq!(done.error, 0);
        let at_risk: u64 = successor
            .volume
            .status()
            .apps
            .iter()
            .map(|app| app.bytes_at_risk)
            .sum();
        assert_eq!(at_risk == 0, is_durable, "{operation:?}");
    }
}

/// As above, in mode TRUNCATE; with `synchronous=NORMAL` SQLite does not call for durability afterwards.
#[test]
fn what_cut_a_rollback_journal_off_is_durable_before_it_is_answered() {
    let text = "[defaults]\nclass = \"durable\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let cases = [
        ("db-journal", set_attr::SIZE, 0, true),
        ("db-journal", set_attr::SIZE, 4096, false),
        ("db-journal", set_attr::MODE, 0, false),
        ("other", set_attr::SIZE, 0, false),
    ];
    for (name, valid, size, is_durable) in cases {
        let mut successor = Successor::with(&config);
        let file = successor.make(name.as_bytes());
        let args = SetAttrArgs {
            valid,
            size,
            ..SetAttrArgs::default()
        };
        let done = successor.answer(Operation::SetAttr(args), file, &executed(0));
        assert_eq!(done.error, 0);
        let apps = successor.volume.status().apps;
        let at_risk: u64 = apps.iter().map(|app| app.bytes_at_risk).sum();
        assert_eq!(at_risk == 0, is_durable, "{name} {valid} {size}");
    }
}

#[test]
fn an_object_that_is_gone_is_an_error() {
    let mut successor = Successor::new();
    let gone = successor.answer(mknod(b"f"), ROOT, &executed(1 << 60));
    assert_eq!(
        gone.error,
        -crate::adapter::errno_of(FsError::Stale).raw_os_error()
    );
}
