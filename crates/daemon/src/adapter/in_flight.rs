//! Requests in flight when a predecessor died: it had read and not answered them.
//!
//! The predecessor may have died anywhere: before the request was executed, after, or after the
//! reply was sent. The arena is exact for single calls of the volume: each of them, with the record
//! that it was done for this request, is in it whole or not at all. Whether the kernel has been
//! answered shows when the request is answered again: a reply that it has had already is refused
//! with `ENOENT`, which does no harm.
//!
//! * *Executed, with an outcome.* It is answered from the outcome and the objects' present state.
//!   No other program can have changed what the sender must see: for the rest of the system, the
//!   request ended now. The second part of requests of two parts (an `O_SYNC` write commits, a
//!   write by an unprivileged caller notifies the kernel of lost set-id bits, the end of a
//!   rollback journal commits) is repeated; doing it twice is as good as once.
//! * *Not executed.* It is executed. An execution that failed has changed nothing, and its error
//!   was recorded before the kernel learned of it, so a request whose sender may know the error is
//!   not executed again.
//! * *Only read* (LOOKUP, READDIR, READ, …). It is executed anew. LOOKUP and READDIRPLUS take
//!   references, which belong to the reply: those that the predecessor took are given back if the
//!   kernel takes our reply; if it has had the predecessor's, those taken now are given back. A
//!   process that dies between the reply and giving back makes its successor keep references that
//!   the kernel does not have, so an object stays in memory until the unmount; a reference is never
//!   missing.
//! * *FORGET* is never answered and consists of as many calls as it names objects. The
//!   rest is done.
//! * FSYNC, SYNCFS and DESTROY commit again: what was committed costs nothing twice.
//!
//! # Requests of several calls
//!
//! WRITE with `O_SYNC`, WRITE that takes set-id bits away, UNLINK and RENAME of a rollback journal, SETATTR that
//! cuts one off: one change, then what can be repeated. COPY_FILE_RANGE: a read, then one change that copies and takes
//! the bits away.
//! FALLOCATE: two changes, each of which may be repeated; the first one's outcome says no
//! more than that it was done. READDIRPLUS and the number of `..`: references, see above.
//! BATCH_FORGET: see above. RELEASE: none. All others are one call.

use std::collections::BTreeMap;

use mobifs_base::ObjectId;
use mobifs_fuse::protocol::{
    EntryReply, ForgetOne, SetAttrArgs, WriteArgs, WriteReply, set_attr, syscall, write,
};
use mobifs_fuse::{Call, Delivery, Operation, forget_entries};
use mobifs_volume::{InFlightRequest, Node};
use rustix::io::Errno;
use zerocopy::FromBytes as _;

use super::{Adapter, Outcome, answer, directory, fs, object, wire};

impl Adapter {
    /// Finishes a request that a predecessor had in flight; `executed`: how far it came.
    pub(super) fn finish(&self, call: &Call<'_>, executed: &InFlightRequest, scratch: &mut [u8]) {
        match (call.operation(), executed.outcome) {
            (&Operation::Forget { lookups }, _) => {
                let node = call.header().node;
                self.forget_rest([ForgetOne { node, lookups }].into_iter(), executed);
            }
            (Operation::BatchForget { entries }, _) => {
                self.forget_rest(forget_entries(entries), executed);
            }
            (operation, Some(outcome)) if changes(operation) => {
                self.answer_executed(call, outcome);
            }
            (Operation::Lookup { name }, _) => {
                let entry = self.lookup(object(call), name);
                let taken: Vec<_> = entry.iter().map(|entry| entry.node).collect();
                let delivery = answer(call, entry, |r, entry| r.value(&entry));
                self.return_references(delivery, executed, &taken);
            }
            (Operation::ReadDirPlus(args), _) => {
                let listing = self.read_directory_plus(call, args);
                let taken = listing
                    .as_ref()
                    .map_or_else(|_| Vec::new(), |l| listed_nodes(l));
                let delivery = answer(call, listing, |r, listing| r.bytes(&listing));
                self.return_references(delivery, executed, &taken);
            }
            _ => {
                self.execute(call, scratch);
                self.return_references(call.delivery(), executed, &[]);
            }
        }
    }

    /// Answers a request that has been executed.
    fn answer_executed(&self, call: &Call<'_>, outcome: u64) -> Delivery {
        let node = |id: ObjectId| self.volume.attributes(id).map_err(fs);
        match call.operation() {
            Operation::Write { args, .. } => {
                let written = self.write_again(call, args, outcome);
                answer(call, written, |r, written| r.value(&written))
            }
            Operation::CopyFileRange { args, wide_reply } => {
                if call.header().uid != 0 {
                    call.invalidate_attributes(args.node_out);
                }
                wire::send_copied(call.reply(), outcome, *wide_reply)
            }
            Operation::Fallocate(_) => {
                let object = object(call);
                let changed = self.content_changed(call, object);
                if call.header().uid != 0 {
                    call.invalidate_attributes(object.0);
                }
                answer(call, changed, |r, ()| r.done())
            }
            Operation::SetAttr(args) => {
                let node = self
                    .truncate_again(call, args)
                    .and_then(|()| node(object(call)));
                answer(call, node, |r, node: Node| r.value(&self.attr_reply(&node)))
            }
            Operation::TmpFile(_) => match node(ObjectId(outcome)) {
                Ok(node) => self.send_unnamed(&node, call),
                Err(errno) => call.reply().error(errno),
            },
            Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => answer(call, node(ObjectId(outcome)), |r, node: Node| {
                r.value(&self.entry(&node))
            }),
            _ => answer(call, self.end_rollback_again(call), |r, ()| r.done()),
        }
    }

    /// What follows the change of names that may have been those of a rollback journal.
    fn end_rollback_again(&self, call: &Call<'_>) -> Outcome<()> {
        let directory = object(call);
        let names = match *call.operation() {
            Operation::Unlink { name } => vec![(directory, name)],
            Operation::Rename {
                new_directory,
                name,
                new_name,
                ..
            } => vec![(directory, name), (ObjectId(new_directory), new_name)],
            _ => return Ok(()),
        };
        let committed = names
            .iter()
            .try_for_each(|&(directory, name)| self.volume.end_rollback_again(directory, name));
        self.after_removal(committed, &names)
    }

    /// What follows a change of attributes that may have cut off a rollback journal.
    fn truncate_again(&self, call: &Call<'_>, args: &SetAttrArgs) -> Outcome<()> {
        if args.valid & set_attr::SIZE == 0 {
            return Ok(());
        }
        let committed = self
            .volume
            .end_truncated_rollback_again(object(call), args.size);
        if committed.is_err() {
            call.invalidate_attributes(object(call).0);
        }
        committed.map_err(fs)
    }

    /// What follows the change of a WRITE.
    fn write_again(&self, call: &Call<'_>, args: &WriteArgs, written: u64) -> Outcome<WriteReply> {
        let object = object(call);
        if args.flags & syscall::O_DSYNC != 0 {
            self.volume.fsync(object).map_err(fs)?;
        }
        if args.write_flags & write::KILL_SUIDGID != 0 {
            call.invalidate_attributes(object.0);
        }
        let size = u32::try_from(written).map_err(|_| Errno::IO)?;
        Ok(WriteReply { size, padding: 0 })
    }

    /// After a reply: gives back the references that went with the reply that the kernel
    /// did not get, the predecessor's or this one.
    fn return_references(&self, delivery: Delivery, executed: &InFlightRequest, taken: &[u64]) {
        if delivery == Delivery::NotAwaited {
            for &node in taken.iter().filter(|&&node| node != 0) {
                self.forget(node, 1);
            }
            return;
        }
        for (id, count) in net(executed) {
            if let Ok(count @ 1..) = u64::try_from(count) {
                self.volume.forget(id, count);
            }
        }
    }

    /// Gives back what the predecessor had not given back yet.
    fn forget_rest(&self, entries: impl Iterator<Item = ForgetOne>, executed: &InFlightRequest) {
        let mut given_back = net(executed);
        for ForgetOne { node, mut lookups } in entries {
            if let Some(count) = given_back.get_mut(&ObjectId(node)) {
                let done = lookups.min((*count).min(0).unsigned_abs());
                lookups -= done;
                *count += i64::try_from(done).unwrap_or(0);
            }
            if lookups > 0 {
                self.forget(node, lookups);
            }
        }
    }
}

/// References that were taken and not given back, or, negative, only given back.
fn net(executed: &InFlightRequest) -> BTreeMap<ObjectId, i64> {
    let mut net = BTreeMap::new();
    for &(id, count) in &executed.references {
        *net.entry(id).or_default() += count;
    }
    net
}

/// Whether the outcome of a request is all that is needed to answer it. What other requests
/// change in passing (READ: the time of access) does not matter.
const fn changes(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Write { .. }
            | Operation::CopyFileRange { .. }
            | Operation::Fallocate(_)
            | Operation::SetAttr(_)
            | Operation::TmpFile(_)
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
    )
}

/// The nodes that a READDIRPLUS reply hands over.
fn listed_nodes(mut listing: &[u8]) -> Vec<u64> {
    let mut nodes = Vec::new();
    while let Ok((entry, rest)) = EntryReply::read_from_prefix(listing) {
        nodes.push(entry.node);
        let Some(next) = directory::after_name(rest) else {
            break;
        };
        listing = next;
    }
    nodes
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
