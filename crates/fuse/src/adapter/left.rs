//! Requests that a predecessor had read and not answered when it died.
//!
//! The predecessor may have died anywhere: before the request was executed, after, or
//! after the reply had left. What the arena knows is exact as far as single calls of the
//! volume go: each of them, with the note that it was done for this request, is there
//! whole or not at all. What the kernel knows shows when it is answered: a reply that it
//! has had already is refused with `ENOENT`, which harms nobody.
//!
//! * *Executed, with an outcome.* It is answered from the outcome and what the objects are
//!   like now. Nobody else can have changed what the sender must see: for the rest of the
//!   system, the request ended now. The second part of requests of two parts (an
//!   `O_SYNC` write commits, a write by somebody unprivileged tells the kernel about lost
//!   set-id bits) is repeated; doing it twice is as good as once.
//! * *Not executed.* It is executed. An execution that failed has changed nothing, and was
//!   noted as refused before the kernel heard of it, so it does not come here if the
//!   sender can know.
//! * *Only looked* (LOOKUP, READDIR, READ, …). It is executed anew. LOOKUP and
//!   READDIRPLUS take references, which belong to the reply: those that the predecessor
//!   took are given back if the kernel takes our reply; if it has had the predecessor's,
//!   those taken now are. A process that dies between the reply and giving back makes its
//!   successor keep references that nobody has, so an object stays in memory until the
//!   unmount; there is never one too few.
//! * *FORGET* is never answered and consists of as many calls as it names objects. The
//!   rest is done.
//! * FSYNC, SYNCFS and DESTROY commit again: what was committed costs nothing twice.
//!
//! # Requests of several calls
//!
//! WRITE with `O_SYNC`, WRITE that takes set-id bits away: one change, then what can be
//! repeated. COPY_FILE_RANGE: a read, then one change that copies and takes the bits away.
//! FALLOCATE: two changes, each of which may be repeated; the first one's outcome says no
//! more than that it was done. READDIRPLUS and the number of `..`: references, see above.
//! BATCH_FORGET: see above. RELEASE: none. All others are one call.

use std::collections::BTreeMap;

use mobifs_base::ObjectId;
use mobifs_volume::{LeftRequest, Node};
use rustix::io::Errno;
use zerocopy::FromBytes as _;

use super::{Adapter, Context, Outcome, answer, data, directory, fs};
use crate::observer::ObservedTransport;
use crate::protocol::{EntryReply, ForgetOne, WriteArgs, WriteReply, syscall, write};
use crate::reply::{Reply, invalidate_attributes};
use crate::request::{Operation, Request, forget_entries};
use crate::transport::{NotedTransport, Transport};

impl Adapter {
    /// Finishes a request of which a predecessor had done `left`.
    pub(super) fn finish(
        &self,
        transport: &NotedTransport<'_>,
        request: &Request<'_>,
        left: &LeftRequest,
        scratch: &mut [u8],
    ) {
        let observed = self.observer.as_deref();
        let observed = observed.map(|to| ObservedTransport::new(transport, to, request).left());
        let seen: &dyn Transport = match &observed {
            Some(observed) => observed,
            None => transport,
        };
        let context = Context {
            transport: seen,
            header: request.header,
        };
        match (&request.operation, left.outcome) {
            (&Operation::Forget { lookups }, _) => {
                let node = request.header.node;
                self.forget_rest([ForgetOne { node, lookups }].into_iter(), left);
            }
            (Operation::BatchForget { entries }, _) => {
                self.forget_rest(forget_entries(entries), left);
            }
            (operation, Some(outcome)) if changes(operation) => {
                self.answer_executed(&context, operation, outcome);
            }
            (Operation::Lookup { name }, _) => {
                let entry = self.lookup(context.object(), name);
                let taken: Vec<_> = entry.iter().map(|entry| entry.node).collect();
                answer(reply(&context), entry, |r, entry| r.value(&entry));
                self.settle(transport, left, &taken);
            }
            (Operation::ReadDirPlus(args), _) => {
                let listing = self.read_directory_plus(&context, args);
                let taken = listing
                    .as_ref()
                    .map_or_else(|_| Vec::new(), |l| listed_nodes(l));
                answer(reply(&context), listing, |r, listing| r.bytes(&listing));
                self.settle(transport, left, &taken);
            }
            _ => {
                self.execute(seen, request, scratch);
                self.settle(transport, left, &[]);
            }
        }
    }

    /// Answers a request that has been executed.
    fn answer_executed(&self, context: &Context<'_>, operation: &Operation<'_>, outcome: u64) {
        let reply = reply(context);
        let node = |id: ObjectId| self.volume.attributes(id).map_err(fs);
        match operation {
            Operation::Write { args, .. } => {
                let written = self.write_again(context, args, outcome);
                answer(reply, written, |r, written| r.value(&written));
            }
            Operation::CopyFileRange { args, wide_reply } => {
                if context.header.uid != 0 {
                    invalidate_attributes(context.transport, args.node_out);
                }
                data::send_copied(reply, outcome, *wide_reply);
            }
            Operation::Fallocate(_) => {
                let object = context.object();
                let changed = self.content_changed(context, object);
                if context.header.uid != 0 {
                    invalidate_attributes(context.transport, object.0);
                }
                answer(reply, changed, |r, ()| r.done());
            }
            Operation::SetAttr(_) => answer(reply, node(context.object()), |r, node: Node| {
                r.value(&self.attr_reply(&node));
            }),
            Operation::TmpFile(_) => answer(reply, node(ObjectId(outcome)), |r, node: Node| {
                self.send_unnamed(&node, r);
            }),
            Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => answer(reply, node(ObjectId(outcome)), |r, node: Node| {
                r.value(&self.entry(&node));
            }),
            _ => reply.done(),
        }
    }

    /// What follows the change of a WRITE.
    fn write_again(
        &self,
        context: &Context<'_>,
        args: &WriteArgs,
        written: u64,
    ) -> Outcome<WriteReply> {
        let object = context.object();
        if args.flags & syscall::O_DSYNC != 0 {
            self.volume.fsync(object).map_err(fs)?;
        }
        if args.write_flags & write::KILL_SUIDGID != 0 {
            invalidate_attributes(context.transport, object.0);
        }
        let size = u32::try_from(written).map_err(|_| Errno::IO)?;
        Ok(WriteReply { size, padding: 0 })
    }

    /// After a reply: gives back the references that went with the reply that the kernel
    /// did not get, the predecessor's or ours.
    fn settle(&self, transport: &NotedTransport<'_>, left: &LeftRequest, taken: &[u64]) {
        if transport.nobody_waited() {
            for &node in taken.iter().filter(|&&node| node != 0) {
                self.forget(node, 1);
            }
            return;
        }
        for (id, count) in net(left) {
            if let Ok(count @ 1..) = u64::try_from(count) {
                self.volume.forget(id, count);
            }
        }
    }

    /// Gives back what the predecessor had not given back yet.
    fn forget_rest(&self, entries: impl Iterator<Item = ForgetOne>, left: &LeftRequest) {
        let mut given_back = net(left);
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
fn net(left: &LeftRequest) -> BTreeMap<ObjectId, i64> {
    let mut net = BTreeMap::new();
    for &(id, count) in &left.references {
        *net.entry(id).or_default() += count;
    }
    net
}

fn reply<'a>(context: &Context<'a>) -> Reply<'a> {
    Reply::new(context.transport, context.header.unique)
}

/// Whether the outcome of a request tells all that is needed to answer it. What others
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
        let Some(behind) = directory::behind_name(rest) else {
            break;
        };
        listing = behind;
    }
    nodes
}

#[cfg(test)]
#[path = "left_tests.rs"]
mod tests;
