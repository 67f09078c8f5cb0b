//! Requests that come while workers wait.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use super::{OneFile, Seen, Served, can_mount, ordinary};
use crate::options::{MountOptions, WorkerPlacement};
use crate::request::Operation;
use crate::session::SessionHooks;
use crate::{Call, Connection, Filesystem};

/// Says when an `fsync` waits.
struct Declaring {
    filesystem: OneFile,
    connection: OnceLock<Connection>,
}

impl Filesystem for Declaring {
    fn handle(&self, call: &Call<'_>, scratch: &mut [u8]) {
        let waiting = matches!(call.operation(), Operation::Fsync(_))
            .then(|| self.connection.get().and_then(Connection::waiting));
        self.filesystem.handle(call, scratch);
        drop(waiting);
    }

    fn connected(&self, connection: Connection) {
        self.connection.get_or_init(|| connection);
    }
}

/// A mount without a watchdog: what is answered while workers wait, others have taken at once.
fn served(workers: WorkerPlacement) -> Served {
    let seen = Arc::new(Seen::default());
    let filesystem = Declaring {
        filesystem: OneFile(Arc::clone(&seen)),
        connection: OnceLock::new(),
    };
    let options = MountOptions {
        workers,
        ..ordinary()
    };
    let hooks = SessionHooks {
        has_no_watchdog: true,
        ..SessionHooks::default()
    };
    Served::with_hooks(seen, filesystem, &options, hooks)
}

/// Threads that call `fsync` on a file each, one after the other has arrived.
fn sync_each(served: &Served, files: usize) -> Vec<JoinHandle<io::Result<()>>> {
    let sync = |number: usize| {
        let file = File::open(path(served.path(), number)).unwrap();
        let thread = thread::spawn(move || file.sync_all());
        served.seen.fsyncs.wait_for(number);
        thread
    };
    (1..=files).map(sync).collect()
}

fn path(root: &Path, number: usize) -> std::path::PathBuf {
    root.join(format!("hello{number}"))
}

#[test]
fn more_fsyncs_than_workers_wait_together_and_others_are_answered_meanwhile() {
    if !can_mount() {
        return;
    }
    for workers in [WorkerPlacement::Single, WorkerPlacement::Pinned] {
        let mut served = served(workers);
        let waiting = sync_each(&served, 12);
        for number in 20..40 {
            std::fs::read(path(served.path(), number)).unwrap();
        }
        served.seen.fsyncs.open();
        for thread in waiting {
            thread.join().unwrap().unwrap();
        }
        served.unmount();
        served.join().unwrap();
    }
}

#[test]
fn a_worker_that_waits_again_and_again_is_stood_in_for_each_time() {
    if !can_mount() {
        return;
    }
    let served = served(WorkerPlacement::Single);
    for round in 0..200 {
        let waiting = sync_each(&served, 1 + round % 3);
        std::fs::read(path(served.path(), 50)).unwrap();
        served.seen.fsyncs.open();
        for thread in waiting {
            thread.join().unwrap().unwrap();
        }
        served.seen.fsyncs.close();
    }
}

#[test]
fn a_mount_that_is_aborted_while_workers_wait_ends() {
    if !can_mount() {
        return;
    }
    let mut served = served(WorkerPlacement::Single);
    let waiting = sync_each(&served, 3);
    served.handle.abort().unwrap();
    for thread in waiting {
        assert!(thread.join().unwrap().is_err());
    }
    served.seen.fsyncs.open();
    served.join().unwrap();
}
