//! The path of an object that an apply or a commit failed for, for error messages.

use std::collections::HashSet;

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::state::State;

/// Longer paths are shown from this many directories above the object.
const NAMES_MAX: usize = 64;

/// Adds the path of the object that something failed for.
pub(crate) fn failed_for<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> impl FnOnce(StoreError) -> StoreError {
    move |error| match shown_path(&overlay.state(), id) {
        Some(path) => without_number(error, id).while_doing("applying", &path),
        None => error,
    }
}

/// The path says more than the number that the store knows the object by.
fn without_number(error: StoreError, id: ObjectId) -> StoreError {
    match error {
        StoreError::Lower { action, source } => StoreError::Lower {
            action: action.replacen(&format!(" of {id}"), "", 1),
            source,
        },
        other => other,
    }
}

/// As [`failed_for`], for an entry.
pub(crate) fn failed_at<L: Lower>(
    overlay: &Overlay<L>,
    parent: ObjectId,
    name: &Name,
) -> impl FnOnce(StoreError) -> StoreError {
    move |error| match path_of(&overlay.state(), parent) {
        Some(path) if path.is_empty() => error.while_doing("applying", &name.to_string()),
        Some(path) => error.while_doing("applying", &format!("{path}/{name}")),
        None => error,
    }
}

/// As [`failed_for`], of a commit: `dentries` are the entries that it sets, where a new
/// object has its name.
pub(crate) fn failed_to_commit<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    dentries: &[(ObjectId, Name, Option<ObjectId>)],
) -> impl FnOnce(StoreError) -> StoreError {
    let path = move || {
        let named = path_in(overlay, id, dentries);
        named.or_else(|| own_place(&overlay.state(), id))
    };
    move |error| match path() {
        Some(path) => without_number(error, id).while_doing("committing", &path),
        None => error,
    }
}

fn path_in<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    dentries: &[(ObjectId, Name, Option<ObjectId>)],
) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    let mut at = id;
    // For an object that has another name already, the end of the path is the store's.
    while names.len() < NAMES_MAX
        && let Some((parent, name, _)) = dentries.iter().find(|(_, _, child)| *child == Some(at))
    {
        names.push(name.to_string());
        at = *parent;
    }
    let above = path_of(&overlay.state(), at)?;
    names.extend(Some(above).filter(|above| !above.is_empty()));
    names.reverse();
    Some(names.join("/")).filter(|path| !path.is_empty())
}

/// The path as the mount shows it, or, of an object without a name, where it lies in the store.
fn shown_path(state: &State, id: ObjectId) -> Option<String> {
    path_of(state, id).or_else(|| own_place(state, id))
}

/// Where an object without a name lies in the store, as long as it is used.
fn own_place(state: &State, id: ObjectId) -> Option<String> {
    let location = state.table.get(id)?;
    let inode = location.inode;
    location
        .in_limbo()
        .then(|| format!(".mobifs/limbo/{inode}"))
}

/// A path of an object as the mount shows it, empty for the root; none where it has no name,
/// or none that is known.
pub(crate) fn path_of(state: &State, id: ObjectId) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    let mut at = id;
    while at != ObjectId::ROOT {
        // Names may lead in circles where an apply was interrupted.
        if names.len() == NAMES_MAX || !seen.insert(at) {
            names.push("…".to_owned());
            break;
        }
        let (parent, name) = name_of(state, at)?;
        names.push(name.to_string());
        at = *parent;
    }
    names.reverse();
    Some(names.join("/"))
}

fn name_of(state: &State, id: ObjectId) -> Option<&(ObjectId, Name)> {
    let is_current = |place: &&(ObjectId, Name)| !state.pending.dentries().contains_key(*place);
    let known = || state.table.get(id)?.names().iter().find(is_current);
    state.pending.names_of(id).first().or_else(known)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::fixtures::file_state;
    use crate::journal_store::JournalStore;
    use crate::lower::{Gate, PosixLower};
    use crate::options::JournalOptions;
    use crate::{Store, StoreError, Transaction};
    use mobifs_base::{Entry, FileKind, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex};

    /// "writing new data of object+42 failed": it did not say which file that was.
    #[test]
    fn a_commit_that_fails_names_the_object_by_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let lower = PosixLower::open(directory.path()).unwrap();
        let options = JournalOptions {
            journal_bytes: 1 << 20,
            ..JournalOptions::default()
        };
        let (store, _) = JournalStore::open(Gate::new(lower), &options).unwrap();
        let app = store.first_new_object();
        let [inner, file] = [ObjectId(app.0 + 1), ObjectId(app.0 + 2)];
        let name = |name: &str| Name::new(name.as_bytes()).unwrap();
        let message = |id, dentries: &[_]| {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            let error = StoreError::lower(format!("writing new data of {id}"))(full);
            failed_to_commit(store.overlay(), id, dentries)(error).to_string()
        };
        // The app is committed, and what is in it is not yet.
        let mut transaction = Transaction::default();
        let mut state = file_state(app, true, 0);
        state.attributes.kind = FileKind::Directory;
        let entry = Entry::Dentry {
            parent: ObjectId::ROOT,
            name: name("app"),
            child: Some(app),
        };
        transaction.extend([Entry::Object(state), entry]);
        store.commit(transaction).unwrap();
        let dentries = [
            (app, name("inner"), Some(inner)),
            (inner, name("file"), Some(file)),
            (app, name("gone"), None),
        ];
        let said = message(file, &dentries);
        assert!(
            said.starts_with("committing \"app/inner/file\": writing new data failed: "),
            "{said}"
        );
        let said = message(app, &[]);
        assert!(
            said.starts_with("committing \"app\": writing new data failed"),
            "{said}"
        );
        // One that has no name has no path.
        let said = message(file, &[]);
        assert!(said.starts_with("writing new data of object"), "{said}");
    }

    /// A file that another program removes from the store, before a commit writes anything: the
    /// message said "the store's tree (object#42)".
    #[test]
    fn a_commit_that_fails_before_it_writes_names_the_object_by_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let lower = PosixLower::open(directory.path()).unwrap();
            JournalStore::open(Gate::new(lower), &JournalOptions::default())
                .unwrap()
                .0
        };
        std::fs::create_dir(directory.path().join("app")).unwrap();
        // As much as is written to its place at once, and a page that is not.
        for pages in [64, 1] {
            let path = directory.path().join("app/file");
            std::fs::write(&path, "content").unwrap();
            let store = open();
            let child_of = |parent| store.list_directory(parent).unwrap().remove(0).id;
            let file = child_of(child_of(ObjectId::ROOT));
            std::fs::remove_file(path).unwrap();
            let mut transaction = Transaction::default();
            let size = pages * PAGE_BYTES_U64;
            transaction.extend([Entry::Object(file_state(file, false, size))]);
            let page = Page::new(&[1; PAGE_BYTES]);
            transaction.extend((0..pages).map(|index| Entry::Page {
                object: file,
                index: PageIndex(index),
                page: page.clone(),
            }));
            let error = store.commit(transaction).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("needed for \"app/file\""), "{pages}: {said}");
        }
    }

    /// A file without a name that is kept, because it has another one that is not known: the message said
    /// "of object#42", and nothing of where to look.
    #[test]
    fn what_fails_for_an_object_without_a_name_names_its_place_in_limbo() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["seen", "unseen"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("seen/file"), "x").unwrap();
        std::fs::hard_link(path("seen/file"), path("unseen/file")).unwrap();
        let inode = path("unseen/file").metadata().unwrap().ino();
        let lower = PosixLower::open(directory.path()).unwrap();
        let options = JournalOptions::default();
        let (store, _) = JournalStore::open(Gate::new(lower), &options).unwrap();
        let names = store.list_directory(ObjectId::ROOT).unwrap();
        let seen = names.iter().find(|entry| entry.name.as_bytes() == b"seen");
        let seen = seen.unwrap().id;
        let file = store.list_directory(seen).unwrap()[0].id;
        let mut transaction = Transaction::default();
        transaction.extend([Entry::Dentry {
            parent: seen,
            name: Name::new(b"file").unwrap(),
            child: None,
        }]);
        store.commit(transaction).unwrap();
        store.apply().unwrap();
        let error = || {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            StoreError::lower(format!("writing content of {file}"))(full)
        };
        let applying = failed_for(store.overlay(), file)(error()).to_string();
        let start = format!("applying \".mobifs/limbo/{inode}\": writing content failed: ");
        assert!(applying.starts_with(&start), "{applying}");
        let committing = failed_to_commit(store.overlay(), file, &[])(error()).to_string();
        let start = format!("committing \".mobifs/limbo/{inode}\": writing content failed: ");
        assert!(committing.starts_with(&start), "{committing}");
    }
}
