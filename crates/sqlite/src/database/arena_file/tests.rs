use std::time::Duration;

use super::*;

const DATABASE: FileIdentity = FileIdentity {
    device: 7,
    inode: 11,
    made: Some(Duration::from_nanos(1_700_000_000_123_456_789)),
};
const FILESYSTEM: Option<u64> = Some(0x1234_5678_9abc);

/// A directory for arenas, and one for stores.
struct Bed {
    arenas: tempfile::TempDir,
    stores: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Self {
            arenas: tempfile::tempdir().unwrap(),
            stores: tempfile::tempdir().unwrap(),
        }
    }

    /// The place of the arena of a database whose store is on this medium.
    fn place(&self, file: FileIdentity, medium: &str) -> ArenaFile {
        let store = self.stores.path().join(medium);
        std::fs::create_dir_all(&store).unwrap();
        let user = ArenaUser {
            file,
            filesystem: FILESYSTEM,
            path: "/nonexistent/app.db".into(),
            store,
        };
        ArenaFile::new(self.arenas.path(), user).unwrap()
    }

    /// A process begins a session and is killed.
    fn killed(&self, file: FileIdentity, medium: &str) {
        let place = self.place(file, medium);
        let arena = place.create().unwrap();
        place.bind(&arena).unwrap();
    }

    fn finds(&self, file: FileIdentity, medium: &str) -> bool {
        matches!(self.place(file, medium).find().unwrap(), Found::Arena(_))
    }

    /// A copy of a medium, as it is now.
    fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.stores.path().join(from), self.stores.path().join(to));
        std::fs::create_dir_all(&to).unwrap();
        std::fs::copy(from.join(token::NAME), to.join(token::NAME)).unwrap();
    }

    fn arenas(&self) -> usize {
        std::fs::read_dir(self.arenas.path()).unwrap().count()
    }
}

/// A process that another thread forks has copies of all descriptors until it calls `exec`, and with them their
/// locks: the arena was passed over, and the database opened without what it held.
#[test]
fn an_arena_that_a_forked_process_still_has_locked_is_waited_for() {
    let bed = Bed::new();
    bed.killed(DATABASE, "medium");
    let arena = std::fs::read_dir(bed.arenas.path()).unwrap().next();
    let copied = File::open(arena.unwrap().unwrap().path()).unwrap();
    rustix::fs::flock(&copied, FlockOperation::NonBlockingLockExclusive).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(LOCK_PAUSE * 5);
            drop(copied);
        });
        assert!(bed.finds(DATABASE, "medium"));
    });
}

/// One that stays locked is no reason to open its database without it.
#[test]
fn an_arena_that_stays_locked_refuses_its_database() {
    let bed = Bed::new();
    bed.killed(DATABASE, "medium");
    let arena = std::fs::read_dir(bed.arenas.path()).unwrap().next();
    let copied = File::open(arena.unwrap().unwrap().path()).unwrap();
    rustix::fs::flock(&copied, FlockOperation::NonBlockingLockExclusive).unwrap();
    let refused = bed.place(DATABASE, "medium").find();
    assert!(matches!(refused, Err(Failure::InUseElsewhere(_))));
}

fn on_device(device: u64) -> FileIdentity {
    FileIdentity { device, ..DATABASE }
}

#[test]
fn an_arena_is_found_again_by_its_database_only() {
    let bed = Bed::new();
    assert!(!bed.finds(DATABASE, "medium"));
    bed.killed(DATABASE, "medium");
    assert!(bed.finds(DATABASE, "medium"));
    let other = FileIdentity {
        inode: 12,
        ..DATABASE
    };
    assert!(!bed.finds(other, "medium"));
    // Another database got the number of one that is gone: a copy of one in use was refused for
    // that.
    let later = FileIdentity {
        made: DATABASE.made.map(|made| made + Duration::from_nanos(1)),
        ..DATABASE
    };
    assert!(!bed.finds(later, "medium"));
    let place = bed.place(DATABASE, "medium");
    assert!(matches!(place.find().unwrap(), Found::Arena(_)));
    place.remove();
    assert!(!bed.finds(DATABASE, "medium"));
}

/// What had not been committed was lost.
#[test]
fn an_arena_is_found_again_when_the_device_has_another_number() {
    let bed = Bed::new();
    bed.killed(DATABASE, "medium");
    assert!(bed.finds(on_device(8), "medium"));
    assert!(bed.finds(DATABASE, "medium"), "and again with its own");
}

/// The first one's arena was removed.
#[test]
fn two_media_with_the_same_numbers_do_not_take_each_others_arena() {
    let bed = Bed::new();
    bed.killed(DATABASE, "medium");
    // A copy that has been used by itself, then another filesystem.
    let other = FileIdentity {
        made: DATABASE.made.map(|made| made + Duration::from_nanos(1)),
        ..DATABASE
    };
    assert!(!bed.finds(DATABASE, "copy"));
    bed.killed(DATABASE, "copy");
    let mut user = bed.place(other, "other").user;
    user.filesystem = Some(1);
    let place = ArenaFile::new(bed.arenas.path(), user).unwrap();
    let arena = place.create().unwrap();
    place.bind(&arena).unwrap();
    assert_eq!(bed.arenas(), 3);
    place.remove();
    assert!(bed.finds(DATABASE, "medium") && bed.finds(DATABASE, "copy"));
}

#[test]
fn a_copy_gets_the_arena_only_if_the_original_is_neither_alive_nor_mounted() {
    let bed = Bed::new();
    let place = bed.place(DATABASE, "medium");
    let arena = place.create().unwrap();
    place.bind(&arena).unwrap();
    bed.copy("medium", "copy");
    assert!(!bed.finds(on_device(8), "copy"), "it is alive");
    drop((place, arena));
    assert!(bed.finds(on_device(8), "copy"));
    // A database that is there, under the device's number that its arena has.
    let file = bed.stores.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let mut user = bed.place(FileIdentity::of(&file).unwrap(), "mounted").user;
    user.path = file.clone();
    let place = ArenaFile::new(bed.arenas.path(), user).unwrap();
    let arena = place.create().unwrap();
    place.bind(&arena).unwrap();
    let identity = place.user.file;
    drop((place, arena));
    bed.copy("mounted", "copy");
    let elsewhere = FileIdentity {
        device: identity.device + 1,
        ..identity
    };
    assert!(!bed.finds(elsewhere, "copy"), "it is mounted");
    std::fs::remove_file(&file).unwrap();
    assert!(bed.finds(elsewhere, "copy"));
}

/// They stayed until the machine was started again.
#[test]
fn an_arena_that_is_certainly_of_no_use_is_removed() {
    let bed = Bed::new();
    bed.killed(DATABASE, "medium");
    let place = bed.place(DATABASE, "medium");
    let Found::Arena(arena) = place.find().unwrap() else {
        panic!("it is there");
    };
    let mut owner: Owner = serde_json::from_slice(&arena.session().unwrap()).unwrap();
    owner.boot = "an earlier one".to_owned();
    arena
        .set_session(&serde_json::to_vec(&owner).unwrap())
        .unwrap();
    drop((place, arena));
    bed.killed(DATABASE, "medium");
    assert_eq!(bed.arenas(), 1, "from before the last boot");
    let later = FileIdentity {
        made: DATABASE.made.map(|made| made + Duration::from_nanos(1)),
        ..DATABASE
    };
    bed.killed(later, "medium");
    assert_eq!(bed.arenas(), 1, "its file's inode is another file's");
    drop(bed.place(DATABASE, "new").create().unwrap());
    bed.killed(DATABASE, "medium");
    assert_eq!(bed.arenas(), 1, "nothing was changed");
}

#[test]
fn a_foreign_file_with_the_name_is_skipped() {
    let bed = Bed::new();
    let place = bed.place(DATABASE, "medium");
    let path = |suffix: &str| bed.arenas.path().join(format!("{}{suffix}", place.name()));
    let precious = bed.arenas.path().join("precious");
    std::fs::write(&precious, "content").unwrap();
    // It may not be removed, like another user's file in a sticky directory.
    std::fs::create_dir(path("")).unwrap();
    std::fs::create_dir(path(".2")).unwrap();
    std::os::unix::fs::symlink(&precious, path(".7")).unwrap();
    assert!(matches!(place.find().unwrap(), Found::Nothing));
    let arena = place.create().unwrap();
    place.bind(&arena).unwrap();
    assert!(path(".1").is_file());
    drop(arena);
    place.leave();
    assert!(matches!(place.find().unwrap(), Found::Arena(_)));
    // Nor is the arena of a database whose inode has the same beginning.
    let longer = path("0");
    std::fs::write(&longer, "another's").unwrap();
    place.remove();
    assert!(!path(".1").exists() && longer.exists());
    assert_eq!(std::fs::read(&precious).unwrap(), b"content");
}

#[test]
fn what_others_can_get_at_is_refused() {
    let bed = Bed::new();
    let place = bed.place(DATABASE, "medium");
    // As readable for others as files usually are.
    std::fs::write(bed.arenas.path().join(place.name()), "forged").unwrap();
    let error = place.find().unwrap_err();
    assert!(
        error.to_string().contains("other users can access it"),
        "{error}"
    );
}

#[test]
fn where_there_is_no_such_directory_there_is_no_arena() {
    let user = Bed::new().place(DATABASE, "medium").user;
    assert!(ArenaFile::new(Path::new("/nonexistent"), user).is_none());
}

#[test]
fn a_filesystem_whose_identity_is_its_devices_number_has_none() {
    assert_eq!(filesystem_of(0x701, 0x701), None);
    assert_eq!(filesystem_of(0, 0x701), None);
    assert_eq!(filesystem_of(9, 0x701), Some(9));
}

#[test]
fn mount_points_are_read_as_the_kernel_writes_them() {
    assert_eq!(unescaped(br"/mnt/a\040b\134c\04"), br"/mnt/a b\c\04");
    let root = FileIdentity::of(Path::new("/proc")).unwrap();
    let points = mount_points_of(root.device);
    assert!(points.contains(&PathBuf::from("/proc")), "{points:?}");
}

/// It stayed in memory until the machine was started again, unless another file got the inode's number.
#[test]
fn the_arena_of_a_database_that_is_gone_for_a_week_is_removed() {
    let bed = Bed::new();
    let database = bed.stores.path().join("data/app.db");
    std::fs::create_dir(database.parent().unwrap()).unwrap();
    std::fs::write(&database, "").unwrap();
    let file = FileIdentity::of(&database).unwrap();
    let reported = rustix::fs::statvfs(&database).unwrap().f_fsid;
    let user = ArenaUser {
        file,
        filesystem: filesystem_of(reported, file.device),
        path: database.clone(),
        store: bed.stores.path().to_owned(),
    };
    let begin = |user: &ArenaUser| {
        let place = ArenaFile::new(bed.arenas.path(), user.clone()).unwrap();
        let arena = place.create().unwrap();
        place.bind(&arena).unwrap();
        (place, arena)
    };
    let living = begin(&user);
    let start = gone::since_boot();
    let sweep = |weeks: u32| gone::remove_gone(bed.arenas.path(), start + gone::KEPT * weeks);
    let away = bed.stores.path().join("moved.db");
    std::fs::rename(&database, &away).unwrap();
    sweep(0);
    sweep(2);
    assert_eq!(
        bed.arenas(),
        2,
        "its process lives; that it is away is noted"
    );
    drop(living);
    std::fs::rename(&away, &database).unwrap();
    sweep(3);
    assert_eq!(bed.arenas(), 1, "it is back");
    std::fs::remove_dir_all(database.parent().unwrap()).unwrap();
    sweep(4);
    gone::remove_gone(
        bed.arenas.path(),
        start + gone::KEPT * 5 - Duration::from_secs(1),
    );
    assert_eq!(bed.arenas(), 2, "less than a week");
    // Another arena gets the name: what is noted is not about it.
    let other = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        (!name.contains("-gone-")).then_some(path)
    };
    let mut arenas = std::fs::read_dir(bed.arenas.path()).unwrap();
    let arena = arenas.find_map(other).unwrap();
    std::fs::copy(&arena, bed.stores.path().join("arena")).unwrap();
    std::fs::remove_file(&arena).unwrap();
    std::fs::copy(bed.stores.path().join("arena"), &arena).unwrap();
    sweep(5);
    assert_eq!(bed.arenas(), 2, "it was seen just now");
    sweep(6);
    assert_eq!(bed.arenas(), 0);
}

#[test]
fn the_arena_of_a_database_that_cannot_be_looked_for_stays() {
    let bed = Bed::new();
    // Its filesystem is not mounted.
    bed.killed(DATABASE, "medium");
    // It is where paths are others, as in a container.
    let file = FileIdentity {
        device: FileIdentity::of(Path::new("/")).unwrap().device,
        ..DATABASE
    };
    let reported = rustix::fs::statvfs("/").unwrap().f_fsid;
    let mut user = bed.place(file, "elsewhere").user;
    user.filesystem = filesystem_of(reported, file.device);
    let place = ArenaFile::new(bed.arenas.path(), user.clone()).unwrap();
    let arena = place.create().unwrap();
    let mut owner = Owner::new(&user).unwrap();
    owner.view = None;
    owner.token = Some("a session's".to_owned());
    arena
        .set_session(&serde_json::to_vec(&owner).unwrap())
        .unwrap();
    drop((place, arena));
    let start = gone::since_boot();
    for weeks in [0, 2] {
        gone::remove_gone(bed.arenas.path(), start + gone::KEPT * weeks);
        assert_eq!(bed.arenas(), 2);
    }
}
