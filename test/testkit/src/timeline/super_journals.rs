//! What SQLite's transactions over databases in several apps demand of a power cut: see
//! `crates/engine/src/engine/joint_transactions.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Part;
use crate::layout::Layout;
use crate::model::{Body, Inode, InodeNumber};

/// A file that has had one name since it was created.
#[derive(Debug)]
struct Placed {
    path: String,
    app: String,
}

/// A super-journal that exists.
#[derive(Debug)]
struct SuperJournal {
    placed: Placed,
    /// The step that created or changed it last.
    changed_at: usize,
    /// The apps of journals that were written since it was created.
    participants: BTreeSet<String>,
}

/// An app that shows a step shows another one's step, too.
#[derive(Debug)]
pub(super) struct Demand {
    pub(super) of: (String, usize),
    pub(super) needs: (String, usize),
}

/// The super-journals and rollback journals that were created since the mount.
#[derive(Debug, Default)]
pub(super) struct SuperJournals {
    supers: BTreeMap<InodeNumber, SuperJournal>,
    journals: BTreeMap<InodeNumber, Placed>,
}

impl SuperJournals {
    /// Follows a step. Returns what it demands, and the apps that show it together.
    pub(super) fn step(
        &mut self,
        layout: &Layout,
        step: usize,
        before: &Part,
        after: &Part,
    ) -> (Vec<Demand>, BTreeSet<String>) {
        let together = self.forget_gone(after);
        let written = self.follow(layout, step, before, after);
        let mut demands = Vec::new();
        for one in self.supers.values_mut() {
            demands.extend(written.iter().map(|app| Demand {
                of: (app.clone(), step),
                needs: (one.placed.app.clone(), one.changed_at),
            }));
            one.participants.extend(written.iter().cloned());
        }
        (demands, together)
    }

    /// Drops what has not its one name any more. Returns the apps that take part in the transaction of a
    /// super-journal that was removed.
    fn forget_gone(&mut self, after: &Part) -> BTreeSet<String> {
        let stays = |number: &InodeNumber, one: &Placed| {
            let found = after.get(&one.path).map(|(number, _)| number);
            found == Some(number) && names(after, *number) == 1
        };
        let mut together = BTreeSet::new();
        self.supers.retain(|number, one| {
            let is_replaced = after.contains_key(&one.placed.path);
            if names(after, *number) == 0 && !is_replaced {
                together.append(&mut one.participants);
                together.insert(one.placed.app.clone());
            }
            stays(number, &one.placed)
        });
        self.journals.retain(|number, one| stays(number, one));
        together
    }

    /// Notes what was created and changed. Returns the apps of journals that were written.
    fn follow(
        &mut self,
        layout: &Layout,
        step: usize,
        before: &Part,
        after: &Part,
    ) -> BTreeSet<String> {
        let mut written = BTreeSet::new();
        let files = after.iter().filter(|(path, (_, inode))| {
            let is_ours = is_super_journal(path) || path.ends_with("-journal");
            is_ours && matches!(inode.body, Body::Regular(_))
        });
        for (path, (number, inode)) in files {
            let placed = Placed {
                path: path.clone(),
                app: layout.app_of(path, inode.kind()),
            };
            let earlier = before.get(path).filter(|(earlier, _)| earlier == number);
            if names(before, *number) == 0 {
                if path.ends_with("-journal") {
                    self.journals.insert(*number, placed);
                } else {
                    let one = SuperJournal {
                        placed,
                        changed_at: step,
                        participants: BTreeSet::new(),
                    };
                    self.supers.insert(*number, one);
                }
            } else if let Some((_, earlier)) = earlier {
                if let Some(one) = self.supers.get_mut(number)
                    && !Arc::ptr_eq(earlier, inode)
                {
                    one.changed_at = step;
                }
                if self.journals.contains_key(number) && is_written(earlier, inode) {
                    written.insert(placed.app);
                }
            }
        }
        written
    }
}

/// How many names an object has.
fn names(paths: &Part, number: InodeNumber) -> usize {
    let all = paths.values();
    all.filter(|(other, _)| *other == number).count()
}

fn is_super_journal(path: &str) -> bool {
    let ending = path.rsplit_once("-mj").map_or("", |(_, ending)| ending);
    ending.len() == 9 && ending.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether there is more in it than before, and not only because it was cut off or zeroed.
fn is_written(before: &Inode, after: &Inode) -> bool {
    match (&before.body, &after.body) {
        (Body::Regular(before), Body::Regular(after)) => after.has_more_than(before),
        _ => false,
    }
}
