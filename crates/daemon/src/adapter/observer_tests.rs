use std::sync::Arc;

use mobifs_fuse::protocol::{
    FsyncArgs, MkNodArgs, Opcode, ROOT_NODE, ReadArgs, ReplyHeader, RequestHeader, WriteArgs,
};
use mobifs_store::MemoryStore;
use mobifs_volume::{Config, Volume, VolumeOptions};
use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::IntoBytes as _;

use super::*;
use crate::fuzzing::Exchange;

/// What was observed, as text, without times.
#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl OperationObserver for Recorded {
    fn observe(&self, operation: &ObservedOperation<'_>) {
        assert_ne!(operation.begun_at, MonotonicNs(0));
        let ObservedOperation {
            thread,
            object,
            operation,
            error,
            ..
        } = operation;
        let recorded = format!("{thread} {} {operation:?} {error}", object.0);
        self.0.lock().push(recorded);
    }
}

fn request(opcode: Opcode, node: u64, arguments: &[&[u8]]) -> Vec<u8> {
    let arguments = arguments.concat();
    let header = RequestHeader {
        len: (size_of::<RequestHeader>() + arguments.len()) as u32,
        opcode: opcode as u32,
        unique: 6,
        node,
        pid: 42,
        ..RequestHeader::default()
    };
    [header.as_bytes(), &arguments].concat()
}

fn volume(config: &str) -> Arc<Volume> {
    let config = Config::parse(config, std::path::Path::new("test")).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&config)
    };
    Volume::start(Arc::new(MemoryStore::new()), options).unwrap()
}

#[test]
fn an_observer_gets_each_request_and_its_result() {
    let recorded = Arc::new(Recorded::default());
    let mut exchange = Exchange::observed(volume(""), Arc::clone(&recorded) as Arc<_>);
    let make = MkNodArgs {
        mode: 0o100_666,
        umask: 0o022,
        ..MkNodArgs::default()
    };
    exchange.send(&request(Opcode::Lookup, ROOT_NODE, &[b"a\0"]));
    let made = exchange.send(&request(
        Opcode::MkNod,
        ROOT_NODE,
        &[make.as_bytes(), b"a\0"],
    ));
    let (entry, _) =
        EntryReply::read_from_prefix(&made.replies[0][size_of::<ReplyHeader>()..]).unwrap();
    let node = entry.node;
    let write = WriteArgs {
        offset: 7,
        size: 3,
        ..WriteArgs::default()
    };
    exchange.send(&request(Opcode::Write, node, &[write.as_bytes(), b"abc"]));
    let read = ReadArgs {
        offset: 8,
        size: 100,
        ..ReadArgs::default()
    };
    exchange.send(&request(Opcode::Read, node, &[read.as_bytes()]));
    let sync = FsyncArgs {
        flags: 1,
        ..FsyncArgs::default()
    };
    exchange.send(&request(Opcode::Fsync, node, &[sync.as_bytes()]));
    exchange.send(&request(
        Opcode::ReadDirPlus,
        ROOT_NODE,
        &[read_from_start().as_bytes()],
    ));
    exchange.send(&request(Opcode::RmDir, ROOT_NODE, &[b"a\0"]));
    exchange.send(&request(Opcode::Forget, node, &[2_u64.as_bytes()]));
    exchange.send(&request(Opcode::StatFs, ROOT_NODE, &[]));
    let found = format!(
        "FoundObject {{ id: {:?}, is_directory: false }}",
        ObjectId(node)
    );
    let expected = [
        "42 1 Lookup { name: [97], found: None } 0".to_owned(),
        format!("42 1 MakeFile {{ name: [97], mode: 420, made: Some({found}) }} 0"),
        format!("42 {node} Write {{ offset: 7, length: 3, moved: 3 }} 0"),
        format!("42 {node} Read {{ offset: 8, length: 100, moved: 2 }} 0"),
        format!("42 {node} Sync {{ is_data_only: true }} 0"),
        "42 1 ReadDirectory 0".to_owned(),
        format!("42 1 Listed {{ name: [97], found: {found} }} 0"),
        format!(
            "42 1 RemoveDirectory {{ name: [97] }} {}",
            Errno::NOTDIR.raw_os_error()
        ),
        format!("42 {node} Forget {{ lookups: 2 }} 0"),
    ];
    assert_eq!(*recorded.0.lock(), expected);
}

fn read_from_start() -> ReadArgs {
    ReadArgs {
        size: 4096,
        ..ReadArgs::default()
    }
}

#[test]
fn a_sync_that_has_nothing_to_do_is_observed_all_the_same() {
    let config = "allow_durable = false";
    let sync = request(Opcode::Fsync, ROOT_NODE, &[FsyncArgs::default().as_bytes()]);
    let error_of = |exchange: &mut Exchange| {
        let sent = exchange.send(&sync);
        let (header, _) = ReplyHeader::read_from_prefix(&sent.replies[0]).unwrap();
        header.error
    };
    // The kernel does not ask again.
    let refused = -Errno::NOSYS.raw_os_error();
    assert_eq!(error_of(&mut Exchange::new(volume(config))), refused);
    let recorded = Arc::new(Recorded::default());
    let mut exchange = Exchange::observed(volume(config), Arc::clone(&recorded) as Arc<_>);
    assert_eq!(error_of(&mut exchange), 0);
    assert_eq!(recorded.0.lock().len(), 1);
}
