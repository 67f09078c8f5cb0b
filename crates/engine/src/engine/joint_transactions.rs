//! Transactions of SQLite over databases in several apps.
//!
//! With rollback journals, SQLite commits a transaction over several databases like this:
//!
//! 1. it creates a *super-journal* beside the main database, `NAME-mjXXXXXXXXX`, with the names of
//!    the journals of all databases;
//! 2. it appends the super-journal's name to each of these journals, and changes the databases;
//! 3. it removes the super-journal: now the transaction is committed;
//! 4. it ends the journals.
//!
//! After a power cut, a journal that names a super-journal is rolled back if that exists, and
//! otherwise taken for an old one and removed. The files may be in several apps, and each app goes
//! back to a moment of its own. A database of which a part is changed, with a journal that is taken
//! for an old one, is malformed. So these four steps must be in what is committed in this order,
//! whatever apps they are in. Call S the app of the super-journal and A that of any journal; what
//! is committed of one app is everything up to one moment.
//!
//! * *If A has step 2, S has step 1*, with the names in the super-journal: whoever finds none of the
//!   journals that it names removes it. As long as something of the super-journal is not committed,
//!   a write to a file with a journal's name joins the open transactions of its app and of S. Step 1
//!   is in that transaction, or in a closed one of S, on which it depends.
//! * *If S has step 3, A has all of step 2.* The app of each journal that was written since step 1 is
//!   noted. The removal joins the open transactions of these apps and of S: all that they did before
//!   is in this transaction, or in closed ones on which it depends.
//! * *If A has step 4, S has step 3.* What A does after step 3 is in that joined transaction, or in a
//!   later one of A, which depends on it.
//!
//! Any moment of A that has none of step 2 is right with any moment of S before step 3: what is in
//! the journal then is rolled back, or nothing. A program that is killed leaves the super-journal;
//! the next ones roll back and end each journal that names it, and remove it last: the second and
//! third rule hold for that, too, with the end of the journals in the place of step 2.
//!
//! Which journals are the transaction's is not asked: all that are written meanwhile count, which
//! joins more than necessary, never less. Of a super-journal that was not followed from its creation
//! on (it existed at the mount, or when a predecessor was killed; a directory has moved since; there
//! are too many) the apps are not known: its removal concerns all, and so do the creation of one that
//! is too many and writes to it.

use alloc::vec::Vec;

use mobifs_base::{AppId, FileKind, MonotonicNs, Name, ObjectId, TransactionId};

use super::Engine;
use crate::error::Stop;
use crate::super_journals::{is_rollback_journal, is_super_journal};

/// What is committed together where a transaction of SQLite is over several apps.
impl Engine {
    /// A file was created in this transaction: follows it if it is a super-journal. Returns the
    /// transaction to go on with.
    pub(super) fn follow_super_journal(
        &mut self,
        transaction: TransactionId,
        id: ObjectId,
        name: &Name,
    ) -> TransactionId {
        if !is_super_journal(name.as_bytes()) {
            return transaction;
        }
        if self.super_journals.created(id, &self.namespace) {
            return transaction;
        }
        self.reach_everywhere(transaction)
    }

    /// A file is about to be written. If it is a journal, and there are super-journals, its app takes part
    /// in their transactions. True if it is a super-journal that cannot be followed: then
    /// [`Engine::reach_everywhere`] must follow.
    ///
    /// # Errors
    /// If an app that the change concerns then accepts none.
    pub(super) fn join_super_journals(
        &mut self,
        id: ObjectId,
        now: MonotonicNs,
    ) -> Result<bool, Stop> {
        let inode = self.namespace.inode(id)?;
        let name = inode.name.as_ref().filter(|_| !inode.is_orphan());
        let name = name.map_or(&[][..], Name::as_bytes);
        if is_super_journal(name) {
            return Ok(!self.super_journals.written(id, &self.namespace));
        }
        if self.super_journals.is_empty() || !is_rollback_journal(name) {
            return Ok(false);
        }
        let mut apps = self.apps_of(id);
        let uncommitted = self.super_journals.take_part(&apps, &self.namespace);
        for id in uncommitted {
            apps.extend(self.apps_of(id));
        }
        self.join_apps(apps, now)?;
        Ok(false)
    }

    /// A file is about to be removed: if it is a super-journal, joins the apps that take part in its
    /// transaction. True if these may be all: then [`Engine::reach_everywhere`] must follow.
    ///
    /// # Errors
    /// If one of them accepts no changes.
    pub(super) fn end_super_journal(
        &mut self,
        id: ObjectId,
        name: &Name,
        now: MonotonicNs,
    ) -> Result<bool, Stop> {
        let is_file = self.namespace.inode(id)?.attributes.kind == FileKind::Regular;
        if !is_file || !is_super_journal(name.as_bytes()) {
            return Ok(false);
        }
        let mut apps = self.apps_of(id);
        let Some(participants) = self.super_journals.participants(id, &self.namespace) else {
            // None of the others is to wait for room because of one that has none.
            apps.iter().try_for_each(|&app| self.check_app(app))?;
            return Ok(true);
        };
        apps.extend(participants);
        self.join_apps(apps, now)?;
        Ok(false)
    }

    /// Makes the open transactions of these apps one, unless they are.
    fn join_apps(&mut self, apps: Vec<AppId>, now: MonotonicNs) -> Result<(), Stop> {
        let mut open = apps.iter().map(|app| self.apps.open_of(*app));
        let first = open.next().flatten();
        let is_joined = first.is_some() && open.all(|open| open == first);
        let is_one = apps.iter().all(|app| Some(app) == apps.first());
        if !is_joined && !is_one {
            self.begin_apps(apps, now)?;
        }
        Ok(())
    }
}
