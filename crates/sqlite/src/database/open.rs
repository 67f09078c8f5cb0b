//! Opening a database: checks, recovery, and the volume over its store.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_store::{Inspection, MeasuredDevices, Measuring, StoreError, StoreScope, check_owner};
use mobifs_volume::{
    Arena, ArenaError, Config, OpenOptions, OpenedStore, Resumption, StoreLock, Volume,
    VolumeOptions, inspect,
};
use rustix::process::Uid;

use crate::database::arena_file::{self, ArenaFile, ArenaUser, Found, gone};
use crate::database::companion_name;
use crate::database::header::Beginning;
use crate::database::lower_file::LowerFile;
use crate::database::sqlite::{Sqlite, Unrecovered};
use crate::failure::Failure;

/// What a database commits before its device is measured for it. A measurement writes 7 MiB, which is 5 % of this: an
/// app with small databases writes none, and its commits are durable writes up to a size that suits most devices.
const COMMITTED_BYTES_MIN: u64 = 128 << 20;
/// All databases of the process share the measurements.
static DEVICES: MeasuredDevices = MeasuredDevices::new();

/// A store that is open, and the volume over it.
pub(crate) type Running = (OpenedStore, Arc<Volume>);

/// Opens the store of one database.
pub(crate) struct Opener<'a> {
    path: &'a Path,
    directory: PathBuf,
    name: OsString,
    config: &'a Config,
    warn: &'a dyn Fn(&str),
}

impl<'a> Opener<'a> {
    pub(crate) fn new(
        path: &'a Path,
        config: &'a Config,
        warn: &'a dyn Fn(&str),
    ) -> Result<Self, Failure> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::NO_NAME);
        };
        Ok(Self {
            path,
            directory: directory.to_owned(),
            name: name.to_owned(),
            config,
            warn,
        })
    }

    /// The names of what is kept beside the database are longer than its own. That is checked at
    /// opening, not only when a journal is made. One that was used before may have a name that is
    /// too long for transactions over several databases: what is in its store must not become
    /// unreachable.
    ///
    /// # Errors
    /// [`Failure::NameTooLong`], [`Failure::System`].
    pub(crate) fn require_short_name(&self) -> Result<(), Failure> {
        let looking = Failure::system("asking how long names may be");
        let max = rustix::fs::statvfs(&self.directory)
            .map_err(looking)?
            .f_namemax;
        let own = StoreScope::File(self.name.clone()).own_path(&self.directory);
        let added = match own.exists() {
            true => companion_name::JOURNAL_ADDS_BYTES,
            false => companion_name::ADDED_BYTES_MAX,
        };
        if (self.name.len() + added) as u64 <= max {
            return Ok(());
        }
        let path = self.path.to_owned();
        Err(Failure::NameTooLong { path, added, max })
    }

    /// A database that was used without MobiFS and not closed is first recovered as it was
    /// used, by SQLite's own VFS.
    ///
    /// # Errors
    /// [`Failure::Unrecovered`], [`Failure::InUse`].
    pub(crate) fn recover_with_base_vfs(
        &self,
        beginning: Beginning,
        sqlite: &dyn Sqlite,
    ) -> Result<(), Failure> {
        if beginning.is_in_use() || self.left_behind().is_none() {
            return Ok(());
        }
        let unrecovered = |reason: String| Failure::Unrecovered {
            path: self.path.to_owned(),
            reason,
        };
        match sqlite.recover(self.path) {
            Err(Unrecovered::Busy) => return Err(Failure::InUse(self.path.to_owned())),
            recovered => recovered.map_err(|error| unrecovered(error.to_string()))?,
        }
        // If another program has it open, its log stays.
        match self.left_behind() {
            None => Ok(()),
            Some(_) => Err(Failure::InUse(self.path.to_owned())),
        }
    }

    /// Refuses a file that is another user's before it is opened; one that is not there is not.
    ///
    /// # Errors
    /// [`Failure::NotOwner`].
    pub(crate) fn require_own_file(&self) -> Result<(), Failure> {
        let user = rustix::process::geteuid();
        match self.path.symlink_metadata() {
            Ok(about) if !user.is_root() && about.uid() != user.as_raw() => {
                let (path, owner) = (self.path.to_owned(), about.uid());
                Err(Failure::NotOwner { path, owner })
            }
            _ => Ok(()),
        }
    }

    /// Only its owner, or root, can restore a file's attributes. What lies beside it and is another
    /// user's could be forged, for root, too.
    ///
    /// # Errors
    /// [`Failure::NotOwner`], [`Failure::StoreOfOther`].
    pub(crate) fn require_owner(&self, beginning: Beginning) -> Result<(), Failure> {
        self.require_owner_is(rustix::process::geteuid(), beginning)
    }

    fn require_owner_is(&self, user: Uid, beginning: Beginning) -> Result<(), Failure> {
        let other = |path: &Path| {
            let owner = path.symlink_metadata().ok()?.uid();
            (!user.is_root() && owner != user.as_raw()).then_some(owner)
        };
        if let Some(owner) = other(self.path) {
            let path = self.path.to_owned();
            return Err(Failure::NotOwner { path, owner });
        }
        let beside = StoreScope::File(self.name.clone()).own_path(&self.directory);
        let owner = beside.symlink_metadata().ok().map(|about| about.uid());
        let Some(owner) = owner.filter(|&owner| owner != user.as_raw()) else {
            return Ok(());
        };
        let remedy = self.remedy(user, beginning);
        Err(Failure::StoreOfOther {
            beside,
            owner,
            remedy,
        })
    }

    /// What can be done about another user's files beside the database.
    fn remedy(&self, user: Uid, beginning: Beginning) -> &'static str {
        if !beginning.is_in_use() {
            "the database was closed, so it may be deleted"
        } else if user.is_root() {
            "the database was not closed: open and close it through MobiFS as that user; or, if you \
             trust it and do without what is in that user's memory, give it to root, with all that is \
             in it"
        } else {
            "the database was not closed: that user has to open and close it through MobiFS, and to \
             delete it then"
        }
    }

    /// Finds the process that has the database open through MobiFS, if that is why it cannot be
    /// opened here.
    pub(crate) fn named(&self, failure: Failure) -> Failure {
        let scope = StoreScope::File(self.name.clone());
        match (&failure, StoreLock::acquire(&self.directory, &scope, true)) {
            (
                Failure::InUse(_) | Failure::InUseElsewhere(_),
                Err(error @ StoreError::InUse { .. }),
            ) => Failure::of_store(self.path, error),
            _ => failure,
        }
    }

    /// Refuses journals and logs of other users: SQLite would apply them.
    ///
    /// # Errors
    /// [`Failure::StoreOfOther`], [`Failure::System`].
    pub(crate) fn check_companions(&self, beginning: Beginning) -> Result<(), Failure> {
        let looking = || Failure::system("looking at what is beside the database");
        let around = self.directory.metadata().map_err(looking())?;
        for name in self.companions().map_err(looking())? {
            let beside = self.directory.join(&name);
            let owner = beside.symlink_metadata().map_err(looking())?.uid();
            if check_owner(&name.display().to_string(), owner, around.uid()).is_err() {
                let remedy = self.remedy(rustix::process::geteuid(), beginning);
                return Err(Failure::StoreOfOther {
                    beside,
                    owner,
                    remedy,
                });
            }
        }
        Ok(())
    }

    /// A journal or log with something in it, under SQLite's own name.
    fn left_behind(&self) -> Option<PathBuf> {
        let mut all = companion_name::left_behind(self.path).into_iter();
        all.find(|path| {
            // An ended journal begins with a zero.
            let mut first = [0];
            let file = std::fs::File::open(path);
            file.and_then(|mut file| std::io::Read::read(&mut file, &mut first))
                .is_ok_and(|length| length > 0 && first != [0])
        })
    }

    /// Whether the store has changes for another file than the one that lies here, which is marked as in use:
    /// another program has replaced that by a copy of it, as tools do that write a new file and rename it.
    pub(crate) fn has_store_of_another_file(&self) -> bool {
        let is_here = |name: &Vec<u8>| *name == self.name.as_bytes();
        self.inspected()
            .is_ok_and(|found| found.missing.iter().any(is_here))
    }

    /// An unmarked database file beside a store with changes is another database than that store's, and so is a
    /// marked one whose store is [of another file](Self::has_store_of_another_file):
    /// another program has put it there, or copied it over the one that was in use. The store must
    /// not be applied to it, and is kept in a directory that MobiFS does not use.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn set_aside_foreign_files(&self) -> Result<(), Failure> {
        let setting_aside = || Failure::system("setting aside what belonged to another file");
        let companions = self.companions().map_err(setting_aside())?;
        if companions.is_empty() && !self.has_uncommitted_store() {
            return Ok(());
        }
        let aside = self.name_for_old().map_err(setting_aside())?;
        let own = StoreScope::File(self.name.clone()).own_path(&self.directory);
        let moved = if own.exists() {
            std::fs::rename(own, &aside)
        } else {
            std::fs::create_dir(&aside)
        };
        moved.map_err(setting_aside())?;
        for name in companions {
            let from = self.directory.join(&name);
            std::fs::rename(from, aside.join(name)).map_err(setting_aside())?;
        }
        (self.warn)(&format!(
            "{} was replaced while MobiFS held changes of what was there before; those are kept \
             in {}",
            self.path.display(),
            aside.display()
        ));
        Ok(())
    }

    /// What is in the store. What cannot be read is reported when it is opened.
    fn inspected(&self) -> Result<Inspection, StoreError> {
        let scope = StoreScope::File(self.name.clone());
        inspect(&self.directory, scope)
    }

    /// Whether the store has changes that are not in its file yet.
    fn has_uncommitted_store(&self) -> bool {
        self.inspected()
            .is_ok_and(|found| found.report.transactions > 0)
    }

    /// Whether the store is a copy from before the last commit of the killed process: then what was
    /// not committed by that is of no use in it.
    fn is_older_than(&self, killed: &Resumption) -> bool {
        let next = self.inspected().ok().and_then(|found| found.next);
        killed
            .committed_last()
            .zip(next)
            .is_some_and(|(last, next)| next <= last)
    }

    /// Names of the files that a database in use has beside it.
    fn companions(&self) -> io::Result<Vec<OsString>> {
        let begin = [self.name.as_bytes(), companion_name::INFIX, b"-"].concat();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.as_bytes().starts_with(&begin) && entry.file_type()?.is_file() {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// A path that does not exist.
    fn name_for_old(&self) -> io::Result<PathBuf> {
        let names = (1..1000).map(|number| {
            let mut name = self.name.clone();
            name.push(format!(".mobifs-replaced-{number}"));
            self.directory.join(name)
        });
        let mut free = names.filter(|path| !path.exists());
        free.next()
            .ok_or_else(|| io::Error::other("there are too many of them"))
    }

    /// The database as its arena knows it.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub(crate) fn arena_user(&self, lower: &LowerFile) -> Result<ArenaUser, Failure> {
        let asking = Failure::system("asking which filesystem the database is in");
        let about = rustix::fs::fstatvfs(&**lower.file()).map_err(asking)?;
        let file = lower.identity();
        Ok(ArenaUser {
            file,
            filesystem: arena_file::filesystem_of(about.f_fsid, file.device),
            path: self.path.to_owned(),
            store: StoreScope::File(self.name.clone()).own_path(&self.directory),
        })
    }

    fn open_options<'o>(
        &'o self,
        lower: &'o LowerFile,
        arena: Option<&'o Arena>,
    ) -> OpenOptions<'o> {
        OpenOptions {
            scope: StoreScope::File(self.name.clone()),
            arena,
            file: Some(lower.file()),
            measuring: Measuring::Deferred {
                committed_bytes_min: COMMITTED_BYTES_MIN,
                devices: &DEVICES,
            },
            ..OpenOptions::new(self.config)
        }
    }

    fn volume_options(&self, arena: Option<Arena>) -> VolumeOptions {
        VolumeOptions {
            no_access_time: true,
            rolls_back: true,
            arena,
            ..VolumeOptions::new(self.config)
        }
    }

    /// Opens the store, and starts a volume over it.
    pub(crate) fn start(
        &self,
        lower: &LowerFile,
        arena: Option<&ArenaFile>,
    ) -> Result<Running, Failure> {
        let made = arena.and_then(|file| Some((file, self.make_arena(file)?)));
        let in_store = made.as_ref().map(|(_, arena)| arena);
        let opened = OpenedStore::open(&self.directory, &self.open_options(lower, in_store))
            .map_err(|error| Failure::of_store(self.path, error))?;
        let arena = match made {
            Some((file, arena)) => self.bind(file, arena)?,
            None => None,
        };
        let volume = Volume::start(opened.store(), self.volume_options(arena))?;
        Ok((opened, volume))
    }

    /// A new arena. A database is not refused where there is no room for one, or the limits of
    /// the process leave none: its status says that it does not outlive the process.
    fn make_arena(&self, file: &ArenaFile) -> Option<Arena> {
        gone::remove_now_and_then(file.directory());
        let made = file.create();
        made.inspect_err(|error| self.warn_of_loss(error)).ok()
    }

    /// Names the arena beside the journal; none if it cannot be named, and so not be found.
    fn bind(&self, file: &ArenaFile, arena: Arena) -> Result<Option<Arena>, Failure> {
        match file.bind(&arena) {
            Ok(()) => Ok(Some(arena)),
            Err(failure) if failure.lacks_descriptors() => Err(failure),
            Err(failure) => {
                self.warn_of_loss(&failure);
                file.remove();
                Ok(None)
            }
        }
    }

    fn warn_of_loss(&self, error: &Failure) {
        (self.warn)(&format!(
            "{}: if the process is killed, what is not committed is lost: {error}",
            self.path.display()
        ));
    }

    /// Looks for the store of a database that is marked as in use: what was committed since it was opened is in
    /// that, also durably. If the file has other names, the store is beside one of these, and would be of no use once
    /// the mark was gone. Else what is missing is said: the file may be all that its owner has.
    ///
    /// # Errors
    /// [`Failure::OtherName`].
    pub(crate) fn require_own_store(&self, beginning: Beginning) -> Result<(), Failure> {
        let own = StoreScope::File(self.name.clone()).own_path(&self.directory);
        if !beginning.is_in_use() || own.exists() {
            return Ok(());
        }
        if self.path.metadata().is_ok_and(|about| about.nlink() > 1) {
            return Err(Failure::OtherName {
                path: self.path.to_owned(),
                store: own,
            });
        }
        (self.warn)(&format!(
            "{}: it was not closed, and {}, which has what was committed since it was opened, is not there: \
             it is opened without that",
            self.path.display(),
            own.display()
        ));
        Ok(())
    }

    /// Commits what the arena of a killed process holds, and applies it. Where there is no room for
    /// that the database goes on as the killed process left it, in the same arena: what is there can
    /// be read, and is committed when there is room.
    pub(crate) fn salvage(
        &self,
        lower: &LowerFile,
        file: &ArenaFile,
    ) -> Result<Option<Running>, Failure> {
        let lost = |reason: &dyn std::fmt::Display| {
            (self.warn)(&format!(
                "{}: a process was killed, and what it had not committed cannot be recovered: \
                 {reason}",
                self.path.display()
            ));
        };
        let arena = match file.find()? {
            Found::Nothing => return Ok(None),
            Found::Unusable(reason) => {
                lost(&reason);
                return Ok(None);
            }
            Found::Arena(arena) => arena,
        };
        let resumption = match Resumption::of(&arena) {
            Ok(resumption) => resumption,
            Err(error) => {
                // Else it was killed before there was anything to lose.
                if !matches!(error, ArenaError::Empty) {
                    lost(&error);
                }
                file.remove();
                return Ok(None);
            }
        };
        if self.is_older_than(&resumption) {
            file.leave();
            return Ok(None);
        }
        let options = self.open_options(lower, None);
        let of_store = |error| Failure::of_store(self.path, error);
        let opened = match OpenedStore::resume(&self.directory, &options, &arena, None) {
            // The killed process had another file, and this one has its inode number.
            Err(StoreError::Copied) => {
                file.give_up();
                return Ok(None);
            }
            opened => opened.map_err(of_store)?,
        };
        file.take_over(&arena)?;
        let options = self.volume_options(Some(arena));
        let volume = match opened.resumption() {
            Some(resumption) => Volume::resume(opened.store(), options, resumption)?,
            None => Volume::start(opened.store(), options)?,
        };
        match volume.sync_path(None, true) {
            Err(error) if error.is_full() => {
                (self.warn)(&format!(
                    "{}: the disk is full, so what a killed process had not committed stays in memory \
                     until there is room: {error}",
                    self.path.display()
                ));
                return Ok(Some((opened, volume)));
            }
            committed => committed?,
        }
        volume.shutdown()?;
        drop(volume);
        opened.close().map_err(of_store)?;
        file.remove();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn what_belongs_to_another_user_is_named() {
        const USER: u32 = 12_345;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let store = directory.path().join("app.db-mobifs");
        std::fs::write(&path, "").unwrap();
        std::fs::create_dir(&store).unwrap();
        let config = Options::read(&|_| None).unwrap().config(None).unwrap();
        let opener = Opener::new(&path, &config, &|_| {}).unwrap();
        let require = |user, beginning| {
            let required = opener.require_owner_is(Uid::from_raw(user), beginning);
            required.map_err(|failure| failure.to_string())
        };
        let closed = Beginning::Database { is_marked: false };
        let own = rustix::process::geteuid().as_raw();
        require(own, closed).unwrap();
        let why = require(USER, closed).unwrap_err();
        assert!(why.contains("app.db belongs to user"), "{why}");
        if std::os::unix::fs::chown(&path, Some(USER), None).is_err() {
            mobifs_skip::skip_part("only root can give files away");
            return;
        }
        let why = require(USER, closed).unwrap_err();
        assert!(why.contains("app.db-mobifs belongs to user 0"), "{why}");
        assert!(why.contains("may be deleted"), "{why}");
        let not_closed = Beginning::Database { is_marked: true };
        let why = require(USER, not_closed).unwrap_err();
        assert!(why.contains("has to open and close it"), "{why}");
        // What root was told: that the user's store must not be used by root, and that root may.
        std::os::unix::fs::chown(&store, Some(USER), None).unwrap();
        let why = require(0, not_closed).unwrap_err();
        assert!(
            why.contains("as that user") && !why.contains("store"),
            "{why}"
        );
        let why = require(USER + 1, not_closed).unwrap_err();
        assert!(
            why.contains("only that user") && !why.contains("root"),
            "{why}"
        );
    }
}
