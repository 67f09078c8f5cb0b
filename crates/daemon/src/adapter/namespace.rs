//! Names: lookup, new objects, links, renames.

use mobifs_base::{DeviceNumber, FileKind, MODE_MASK, ObjectId};
use mobifs_fuse::protocol::{CreateArgs, EntryReply, MkNodArgs, OpenReply, open};
use mobifs_fuse::{Call, Delivery, Operation};
use mobifs_volume::{FsError, Node, NodeSpec, is_rollback_journal};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Adapter, ENTRY_VALID_SECONDS, Outcome, caller, fs, object};

const fn permission_bits(mode: u32) -> u16 {
    (mode as u16) & MODE_MASK
}

impl Adapter {
    /// How a request that took these names away ended. One of a rollback journal may be gone although the
    /// request failed, because that could not be made durable; but where a request fails, the kernel
    /// keeps its names, for a day, and programs would write into the file that is removed. So it is asked to
    /// look them up again, by a thread of its own: the kernel waits for the answer to the request first.
    pub(super) fn after_removal(
        &self,
        removed: Result<(), FsError>,
        names: &[(ObjectId, &[u8])],
    ) -> Outcome<()> {
        let journals = names.iter().filter(|(_, name)| is_rollback_journal(name));
        if removed.is_err()
            && journals.count() > 0
            && let Some(connection) = self.connection.get().cloned()
        {
            let names: Vec<_> = names
                .iter()
                .map(|(id, name)| (id.0, name.to_vec()))
                .collect();
            let invalidate = move || {
                for (directory, name) in names {
                    connection.invalidate_entry(directory, &name);
                }
            };
            let started = std::thread::Builder::new()
                .name("mobifs-names".to_owned())
                .spawn(invalidate);
            if let Err(error) = started {
                tracing::error!(
                    %error,
                    "cannot start the thread that invalidates a removed journal's name in the \
                     kernel's cache"
                );
            }
        }
        removed.map_err(fs)
    }

    /// Operations that end with a directory entry.
    pub(super) fn make_entry(&self, call: &Call<'_>) -> Outcome<EntryReply> {
        let parent = object(call);
        let node = match *call.operation() {
            Operation::Lookup { name } => return self.lookup(parent, name),
            Operation::MkNod { args, name } => {
                let spec = node_spec(&args)?;
                self.volume
                    .create(&caller(call, args.umask), parent, name, &spec)
            }
            Operation::MkDir { args, name } => {
                let spec = NodeSpec {
                    kind: FileKind::Directory,
                    mode: permission_bits(args.mode),
                    rdev: DeviceNumber::default(),
                    symlink_target: None,
                };
                self.volume
                    .create(&caller(call, args.umask), parent, name, &spec)
            }
            Operation::Symlink { name, target } => {
                let spec = NodeSpec {
                    kind: FileKind::Symlink,
                    mode: 0o777,
                    rdev: DeviceNumber::default(),
                    symlink_target: Some(target),
                };
                self.volume.create(&caller(call, 0), parent, name, &spec)
            }
            Operation::Link { node, name } => self.volume.link(ObjectId(node), parent, name),
            _ => return Err(Errno::NOSYS),
        };
        node.map(|node| self.entry(&node)).map_err(fs)
    }

    pub(super) fn lookup(&self, parent: ObjectId, name: &[u8]) -> Outcome<EntryReply> {
        match self.volume.lookup(parent, name) {
            Ok(node) => Ok(self.entry(&node)),
            // The kernel may cache that there is no such name.
            Err(FsError::NotFound) => Ok(EntryReply {
                entry_valid_seconds: ENTRY_VALID_SECONDS,
                ..EntryReply::default()
            }),
            Err(error) => Err(fs(error)),
        }
    }

    /// `O_TMPFILE`.
    pub(super) fn unnamed_file(&self, call: &Call<'_>, args: &CreateArgs) -> Delivery {
        let caller = caller(call, args.umask);
        let mode = permission_bits(args.mode);
        match self.volume.create_unnamed(&caller, object(call), mode) {
            Ok(node) => self.send_unnamed(&node, call),
            Err(error) => call.reply().error(fs(error)),
        }
    }

    /// The reply to TMPFILE.
    pub(super) fn send_unnamed(&self, node: &Node, call: &Call<'_>) -> Delivery {
        let open = OpenReply {
            open_flags: open::KEEP_CACHE,
            ..OpenReply::default()
        };
        call.reply()
            .bytes(&[self.entry(node).as_bytes(), open.as_bytes()].concat())
    }
}

fn node_spec(args: &MkNodArgs) -> Outcome<NodeSpec<'static>> {
    Ok(NodeSpec {
        kind: FileKind::from_mode(args.mode).ok_or(Errno::INVAL)?,
        mode: permission_bits(args.mode),
        rdev: DeviceNumber(args.rdev),
        symlink_target: None,
    })
}
