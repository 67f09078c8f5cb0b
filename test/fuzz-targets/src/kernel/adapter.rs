//! A volume in memory, served to a kernel that sends any requests in any order.
//!
//! Oracles: each request that wants an answer gets one, of its own number, in the form of
//! the protocol; what was never handed out is refused; and what was acknowledged can be
//! committed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use mobifs_daemon::fuzzing::Exchange;
use mobifs_store::MemoryStore;
use mobifs_testkit::life::SteppingClock;
use mobifs_volume::{Config, Volume, VolumeOptions};

use super::layout::{BATCH_FORGET, Opcode, REPLY_HEADER_BYTES, fixed_bytes, header};
use crate::noise::noises;
use crate::{Target, Verdict};

/// A sequence of requests.
pub const FUSE_ADAPTER: Target = Target {
    name: "fuse_adapter",
    run,
    seeds: noises,
};

const REQUESTS_MAX: usize = 48;
const ROOT: u64 = 1;
const ENTRY_BYTES: usize = 128;
const DIRECTORY_ENTRY_BYTES: usize = 24;
const NAMES: [&[u8]; 8] = [
    b"a",
    b"b",
    b"user.x",
    b"system.posix_acl_access",
    b".mobifs",
    b"..",
    b"",
    b"trusted.y",
];

/// One request, before it is laid out.
#[derive(Debug)]
struct Ask {
    opcode: Opcode,
    node: u64,
    uid: u32,
    arguments: Vec<u8>,
}

/// The kernel's side.
struct Kernel {
    exchange: Exchange,
    /// Nodes that replies have named, and how often.
    lookups: BTreeMap<u64, u64>,
    unique: u64,
    successes: usize,
}

fn run(input: &[u8]) -> Verdict {
    let volume = volume();
    let mut kernel = Kernel {
        exchange: Exchange::new(Arc::clone(&volume)),
        lookups: BTreeMap::new(),
        unique: 0,
        successes: 0,
    };
    let mut u = Unstructured::new(input);
    for _ in 0..REQUESTS_MAX {
        if u.is_empty() {
            break;
        }
        let Ok(ask) = kernel.ask(&mut u) else { break };
        kernel.send(&ask);
    }
    for (node, count) in std::mem::take(&mut kernel.lookups) {
        let replies = kernel.forget(node, count);
        assert!(replies.is_empty(), "a FORGET is not answered");
    }
    volume
        .sync_app(None, true)
        .unwrap_or_else(|error| panic!("what was acknowledged cannot be committed: {error}"));
    if kernel.successes > 0 {
        Verdict::Taken
    } else {
        Verdict::Refused
    }
}

fn volume() -> Arc<Volume> {
    let config = Config::parse(
        "[[app]]\nmatch = \"a\"\nclass = \"durable\"\n",
        Path::new("fuzzing.toml"),
    );
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let options = VolumeOptions {
        background: false,
        memory_budget_bytes: 64 << 20,
        objects_max: 4,
        clock: Arc::new(SteppingClock::default()),
        hash_seed: Some(7),
        ..VolumeOptions::new(&config)
    };
    Volume::start(Arc::new(MemoryStore::new()), options).unwrap_or_else(|error| panic!("{error}"))
}

impl Kernel {
    fn ask(&self, u: &mut Unstructured<'_>) -> Result<Ask> {
        let opcode = Opcode::arbitrary(u)?;
        let fixed = u.bytes(fixed_bytes(opcode).min(u.len()))?;
        let mut arguments = fixed.to_vec();
        arguments.resize(fixed_bytes(opcode), 0);
        self.patch(opcode, &mut arguments, u)?;
        Ok(Ask {
            opcode,
            node: self.node(u)?,
            uid: *u.choose(&[0, 1000])?,
            arguments,
        })
    }

    /// Mostly a node that a reply has named.
    fn node(&self, u: &mut Unstructured<'_>) -> Result<u64> {
        let known: Vec<u64> = self.lookups.keys().copied().collect();
        Ok(match u.int_in_range(0..=15)? {
            0 => u.arbitrary()?,
            1..=4 => ROOT,
            _ if known.is_empty() => ROOT,
            _ => *u.choose(&known)?,
        })
    }

    /// Gives the arguments what they need to get past the parser, and names and data.
    fn patch(
        &self,
        opcode: Opcode,
        arguments: &mut Vec<u8>,
        u: &mut Unstructured<'_>,
    ) -> Result<()> {
        let put32 = |bytes: &mut Vec<u8>, at: usize, value: u32| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        let put64 = |bytes: &mut Vec<u8>, at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        match opcode {
            Opcode::Rename | Opcode::Rename2 | Opcode::Link => {
                put64(arguments, 0, self.node(u)?);
                if opcode == Opcode::Rename2 {
                    put32(arguments, 8, u.int_in_range(0..=4)?);
                }
                names(arguments, 2, u)?;
            }
            Opcode::Write | Opcode::Read => {
                let is_far = u.ratio(1, 8)?;
                if !is_far {
                    put64(arguments, 8, u.int_in_range(0..=40_000)?);
                }
                let size = u.int_in_range(0..=9000)?;
                put32(arguments, 16, size);
                if opcode == Opcode::Write {
                    arguments.resize(arguments.len() + size as usize, 7);
                }
            }
            Opcode::ReadDir | Opcode::ReadDirPlus if u.ratio(7, 8)? => {
                put64(arguments, 8, u.int_in_range(0..=6)?);
                put32(arguments, 16, u.int_in_range(0..=3000)?);
            }
            Opcode::SetXattr => {
                let size = u.int_in_range(0..=200)?;
                put32(arguments, 0, size);
                put32(arguments, 4, u.int_in_range(0..=3)?);
                names(arguments, 1, u)?;
                arguments.resize(arguments.len() + size as usize, 2);
            }
            Opcode::SetAttr if u.ratio(7, 8)? => {
                put64(arguments, 16, u.int_in_range(0..=40_000)?);
            }
            Opcode::MkNod if u.ratio(7, 8)? => {
                let kind = *u.choose(&[0o100_000, 0o100_000, 0o010_000, 0o020_000, 0o140_000])?;
                put32(arguments, 0, kind | u.int_in_range(0..=0o7777)?);
                names(arguments, 1, u)?;
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                put64(arguments, 8, u.int_in_range(0..=40_000)?);
                put64(arguments, 16, self.node(u)?);
                if u.ratio(7, 8)? {
                    put64(arguments, 32, u.int_in_range(0..=40_000)?);
                    put64(arguments, 40, u.int_in_range(0..=40_000)?);
                }
            }
            Opcode::Fallocate if u.ratio(7, 8)? => {
                put64(arguments, 8, u.int_in_range(0..=40_000)?);
                put64(arguments, 16, u.int_in_range(0..=40_000)?);
                put32(arguments, 24, *u.choose(&[0, 1, 3, 0x10, 0x11])?);
            }
            Opcode::Lseek if u.ratio(7, 8)? => {
                put64(arguments, 8, u.int_in_range(0..=40_000)?);
                put32(arguments, 16, u.int_in_range(3..=4)?);
            }
            Opcode::BatchForget => put32(arguments, 0, 0),
            Opcode::Forget => put64(arguments, 0, 0),
            _ => names(arguments, 2, u)?,
        }
        Ok(())
    }

    fn send(&mut self, ask: &Ask) {
        self.unique += 1;
        let opcode = ask.opcode as u32;
        let bytes = header(opcode, self.unique, ask.node, ask.uid, &ask.arguments);
        let sent = self.exchange.send(&bytes);
        for notification in &sent.notifications {
            let header = Header::of(notification);
            assert_eq!((header.error, header.unique), (2, 0), "an invalidation");
        }
        if matches!(ask.opcode, Opcode::Forget | Opcode::BatchForget) {
            assert!(sent.replies.is_empty(), "a FORGET is not answered");
            return;
        }
        let [reply] = &sent.replies[..] else {
            // What the parser refuses is answered by the worker.
            let is_whole = mobifs_fuse::Request::parse(&bytes, true).is_ok();
            let count = sent.replies.len();
            assert!(count == 0 && !is_whole, "{ask:?} has {count} answers");
            return;
        };
        let header = Header::of(reply);
        assert_eq!(header.unique, self.unique);
        assert!(
            (-4095..=0).contains(&header.error),
            "error {}",
            header.error
        );
        if header.error != 0 {
            assert_eq!(reply.len(), REPLY_HEADER_BYTES, "an error has no content");
            return;
        }
        self.check_known(ask);
        self.successes += 1;
        self.record_nodes(ask, &reply[REPLY_HEADER_BYTES..]);
    }

    /// No request for a node succeeds that no reply has named.
    fn check_known(&self, ask: &Ask) {
        let is_about_node = matches!(
            ask.opcode,
            Opcode::Lookup
                | Opcode::GetAttr
                | Opcode::SetAttr
                | Opcode::ReadLink
                | Opcode::Symlink
                | Opcode::MkNod
                | Opcode::MkDir
                | Opcode::Unlink
                | Opcode::RmDir
                | Opcode::Read
                | Opcode::Write
                | Opcode::ReadDir
                | Opcode::ReadDirPlus
                | Opcode::SetXattr
                | Opcode::TmpFile
        );
        let is_known = ask.node == ROOT || self.lookups.contains_key(&ask.node);
        assert!(is_known || !is_about_node, "{ask:?} succeeded");
    }

    /// Records the nodes that a reply names.
    fn record_nodes(&mut self, ask: &Ask, content: &[u8]) {
        let asked = |at: usize| {
            let bytes = [0, 1, 2, 3].map(|step| ask.arguments[at + step]);
            u32::from_le_bytes(bytes) as usize
        };
        match ask.opcode {
            Opcode::Lookup
            | Opcode::MkNod
            | Opcode::MkDir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::TmpFile => {
                assert!(content.len() >= ENTRY_BYTES, "{ask:?}");
                self.learn(content);
            }
            Opcode::Read | Opcode::GetXattr | Opcode::ListXattr => {
                let at = if ask.opcode == Opcode::Read { 16 } else { 0 };
                // The size alone takes eight bytes.
                assert!(content.len() <= asked(at).max(8), "more than was asked for");
            }
            Opcode::ReadDir => self.hear_listing(content, 0, asked(16)),
            Opcode::ReadDirPlus => self.hear_listing(content, ENTRY_BYTES, asked(16)),
            _ => {}
        }
    }

    fn hear_listing(&mut self, content: &[u8], prefix: usize, bytes_max: usize) {
        assert!(content.len() <= bytes_max);
        let mut rest = content;
        let mut last_offset = 0;
        while !rest.is_empty() {
            if prefix > 0 {
                self.learn(rest);
            }
            let entry = &rest[prefix..];
            let offset = number64(entry, 8);
            let name_bytes = number32(entry, 16) as usize;
            assert!(offset > last_offset, "offsets ascend");
            assert!((1..=255).contains(&name_bytes));
            last_offset = offset;
            let end = (prefix + DIRECTORY_ENTRY_BYTES + name_bytes).next_multiple_of(8);
            rest = &rest[end..];
        }
    }

    fn learn(&mut self, entry: &[u8]) {
        let node = number64(entry, 0);
        if node != 0 {
            *self.lookups.entry(node).or_default() += 1;
        }
    }

    fn forget(&mut self, node: u64, count: u64) -> Vec<Vec<u8>> {
        let mut arguments = vec![1, 0, 0, 0, 0, 0, 0, 0];
        arguments.extend(node.to_le_bytes());
        arguments.extend(count.to_le_bytes());
        let bytes = header(BATCH_FORGET, 0, 0, 0, &arguments);
        self.exchange.send(&bytes).replies
    }
}

/// In front of everything that the kernel gets.
struct Header {
    error: i32,
    unique: u64,
}

impl Header {
    fn of(bytes: &[u8]) -> Self {
        assert!(bytes.len() >= REPLY_HEADER_BYTES);
        assert_eq!(number32(bytes, 0) as usize, bytes.len(), "its own length");
        Self {
            error: number32(bytes, 4).cast_signed(),
            unique: number64(bytes, 8),
        }
    }
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|step| bytes[at + step]))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from(number32(bytes, at)) | u64::from(number32(bytes, at + 4)) << 32
}

/// Adds names as the kernel does, mostly such as were used before.
fn names(arguments: &mut Vec<u8>, count: usize, u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..count {
        if u.ratio(1, 16)? {
            let length = u.int_in_range(0..=300)?;
            arguments.extend(u.bytes(length.min(u.len()))?);
        } else {
            let likely = if u.ratio(3, 4)? {
                &NAMES[..2]
            } else {
                &NAMES[..]
            };
            arguments.extend(*u.choose(likely)?);
        }
        arguments.push(0);
    }
    Ok(())
}
