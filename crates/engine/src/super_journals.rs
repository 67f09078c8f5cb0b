//! Super-journals of SQLite that exist, and who takes part in their transactions: see
//! `engine/joint_transactions.rs`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use mobifs_base::{AppId, ObjectId};

use crate::inode::Inode;
use crate::namespace::Namespace;

/// Super-journals that are followed at a time: far more than programs commit at once. One that a
/// killed program has left stays.
const FOLLOWED_MAX: usize = 64;
/// What SQLite adds to the name of a database for its journal.
const JOURNAL: &[u8] = b"-journal";
/// What it adds for a super-journal, before the digits.
const SUPER_JOURNAL: &[u8] = b"-mj";
const SUPER_JOURNAL_DIGITS: usize = 9;

/// Whether SQLite may have given a super-journal this name.
pub(crate) fn is_super_journal(name: &[u8]) -> bool {
    name.split_last_chunk::<SUPER_JOURNAL_DIGITS>()
        .is_some_and(|(rest, digits)| {
            rest.ends_with(SUPER_JOURNAL) && digits.iter().all(u8::is_ascii_hexdigit)
        })
}

/// Whether it may have given it to a database's own journal.
pub(crate) fn is_rollback_journal(name: &[u8]) -> bool {
    name.ends_with(JOURNAL)
}

/// The super-journals that are followed. They are not in the restart image: what has to be known after
/// a kill is in the objects.
#[derive(Debug, Default)]
pub(crate) struct SuperJournals {
    followed: BTreeMap<ObjectId, Participants>,
}

/// The apps of the journals that were written since a super-journal was created.
#[derive(Debug)]
enum Participants {
    Known {
        apps: BTreeSet<AppId>,
        /// Where a directory has moved since, files may be in other apps than those noted.
        app_epoch: u64,
    },
    /// It was not followed from its creation on.
    Unknown,
}

impl SuperJournals {
    /// Those of an engine that was restored: of which something is not committed.
    pub(crate) fn restored(namespace: &Namespace) -> Self {
        let uncommitted = namespace.iter().filter(|(_, inode)| {
            let name = inode.name.as_ref();
            is_uncommitted(inode) && name.is_some_and(|name| is_super_journal(name.as_bytes()))
        });
        let followed = uncommitted.map(|(&id, _)| (id, Participants::Unknown));
        Self {
            followed: followed.collect(),
        }
    }

    /// Follows one that was just created; false if there are too many.
    pub(crate) fn created(&mut self, id: ObjectId, namespace: &Namespace) -> bool {
        let participants = Participants::Known {
            apps: BTreeSet::new(),
            app_epoch: namespace.app_epoch(),
        };
        self.follow(id, participants, namespace)
    }

    /// Follows one that is written, if it is not followed; false if there are too many.
    pub(crate) fn written(&mut self, id: ObjectId, namespace: &Namespace) -> bool {
        self.followed.contains_key(&id) || self.follow(id, Participants::Unknown, namespace)
    }

    fn follow(&mut self, id: ObjectId, participants: Participants, namespace: &Namespace) -> bool {
        if self.followed.len() >= FOLLOWED_MAX {
            // Only their ends still matter.
            self.followed
                .retain(|id, _| namespace.get(id).is_some_and(is_uncommitted));
        }
        let has_room = self.followed.len() < FOLLOWED_MAX;
        if has_room {
            self.followed.insert(id, participants);
        }
        has_room
    }

    /// A journal of these apps is written: they take part from now on. Returns the super-journals of
    /// which something is not committed.
    pub(crate) fn take_part(&mut self, apps: &[AppId], namespace: &Namespace) -> Vec<ObjectId> {
        let epoch = namespace.app_epoch();
        let mut uncommitted = Vec::new();
        for (id, participants) in &mut self.followed {
            match participants {
                Participants::Known {
                    apps: known,
                    app_epoch,
                } if *app_epoch == epoch => known.extend(apps),
                _ => {}
            }
            if namespace.get(id).is_some_and(is_uncommitted) {
                uncommitted.push(*id);
            }
        }
        uncommitted
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }

    /// The apps that take part in its transaction, besides its own; none if they are not known.
    pub(crate) fn participants(
        &self,
        id: ObjectId,
        namespace: &Namespace,
    ) -> Option<&BTreeSet<AppId>> {
        match self.followed.get(&id)? {
            Participants::Known { apps, app_epoch } => {
                (*app_epoch == namespace.app_epoch()).then_some(apps)
            }
            Participants::Unknown => None,
        }
    }

    /// It was removed.
    pub(crate) fn removed(&mut self, id: ObjectId) {
        self.followed.remove(&id);
    }
}

/// Whether a file exists of which something is not committed: that it exists, or what is in it.
fn is_uncommitted(inode: &Inode) -> bool {
    !inode.is_orphan() && inode.usage.transactions() > 0
}

#[cfg(test)]
mod tests {
    use super::is_super_journal;

    #[test]
    fn super_journals_are_known_by_their_names() {
        for name in ["app.db-mj0A1B2C9FF", "-mj00000090a"] {
            assert!(is_super_journal(name.as_bytes()), "{name}");
        }
        for name in [
            "app.db-mj0A1B2C9F",
            "app.db-mj0A1B2C9FG",
            "app.db-mj0A1B2C9FF0",
            "app.db-journal",
            "0A1B2C9FF",
            "",
        ] {
            assert!(!is_super_journal(name.as_bytes()), "{name}");
        }
    }
}
