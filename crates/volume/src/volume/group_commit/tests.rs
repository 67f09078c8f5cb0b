#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use mobifs_base::{FileKind, ObjectId, PAGE_BYTES};
use mobifs_engine::{Caller, SetIdBits, WriteAt};

use super::super::faulty::Faulty;
use super::*;
use crate::fixtures::node;
use crate::{Config, Volume, VolumeOptions};

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
/// What waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume with durable apps, without a checkpointer, and a store whose commits stop on their way:
/// the number of each arrives, and it goes on when the test says so.
struct Bed {
    store: Arc<Faulty>,
    volume: Arc<Volume>,
    begins: Receiver<u64>,
    go: Sender<()>,
}

impl Bed {
    /// With files, each in an app of its own unless they are `of_one` app.
    fn with_files(count: usize, of_one: bool) -> (Self, Vec<ObjectId>) {
        let store = Faulty::new();
        let text = "[[app]]\nmatch = \"*\"\nclass = \"durable\"\n";
        let config = Config::parse(text, Path::new("test.toml")).unwrap();
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Arc::clone(&store) as _, options).unwrap();
        let make = |parent, name: &str, kind| {
            let made = volume.create(&CALLER, parent, name.as_bytes(), &node(kind));
            made.unwrap().id
        };
        let common = make(ObjectId::ROOT, "app", FileKind::Directory);
        let files = (0..count).map(|number| {
            let app = if of_one {
                common
            } else {
                make(
                    ObjectId::ROOT,
                    &format!("app-{number}"),
                    FileKind::Directory,
                )
            };
            make(app, &format!("file-{number}"), FileKind::Regular)
        });
        let files = files.collect();
        volume.sync_all().unwrap();
        let (began, begins) = channel();
        let (go, goes) = channel();
        let goes = parking_lot::Mutex::new(goes);
        *store.during_commit.lock() = Some(Arc::new(move |number| {
            began.send(number).unwrap();
            goes.lock().recv_timeout(PATIENCE).unwrap();
        }));
        let bed = Self {
            store,
            volume,
            begins,
            go,
        };
        (bed, files)
    }

    fn attempts(&self) -> u64 {
        self.store.attempts.load(Ordering::SeqCst)
    }

    fn write(&self, file: ObjectId, pages: usize) {
        let content = vec![7; pages * PAGE_BYTES];
        let at = WriteAt::Offset(0);
        let written = self
            .volume
            .write(file, at, &content, SetIdBits::Stay, false);
        assert_eq!(written.unwrap(), content.len());
    }

    fn fsync<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        file: ObjectId,
    ) -> ScopedJoinHandle<'scope, Result<(), FsError>> {
        let volume = Arc::clone(&self.volume);
        scope.spawn(move || volume.fsync(file))
    }

    /// Returns when so many calls are in the queue.
    fn await_calls(&self, count: usize) {
        let since = Instant::now();
        while self.volume.shared.commit_queue.calls.lock().waiting.len() < count {
            assert!(since.elapsed() < PATIENCE, "calls wait for the commit");
            thread::yield_now();
        }
    }

    /// The next commit begins; it goes on.
    fn let_one_commit(&self) {
        self.begins.recv_timeout(PATIENCE).unwrap();
        self.go.send(()).unwrap();
    }

    /// The first file's `fsync` stops in its commit, and those of the others wait for it; then it
    /// goes on, and so do as many commits after it. Returns how all ended.
    fn run(&self, files: &[ObjectId], commits_after: u64) -> Vec<Result<(), FsError>> {
        let (&first, others) = files.split_first().unwrap();
        let before = self.attempts();
        thread::scope(|scope| {
            let mut calls = vec![self.fsync(scope, first)];
            self.begins.recv_timeout(PATIENCE).unwrap();
            for (number, &file) in others.iter().enumerate() {
                // Each closes its transaction, if it does, before the next one comes.
                calls.push(self.fsync(scope, file));
                self.await_calls(number + 2);
            }
            self.go.send(()).unwrap();
            (0..commits_after).for_each(|_| self.let_one_commit());
            let ended = calls.into_iter().map(|call| call.join().unwrap());
            let ended = ended.collect();
            assert_eq!(self.attempts(), before + 1 + commits_after);
            ended
        })
    }
}

#[test]
fn apps_that_wait_share_one_commit() {
    let (bed, files) = Bed::with_files(5, false);
    files.iter().for_each(|&file| bed.write(file, 1));
    assert_eq!(bed.run(&files, 1), [Ok(()); 5]);
    let uncommitted = bed.volume.status().totals.at_risk;
    assert_eq!(uncommitted, 0, "all that they waited for is committed");
}

#[test]
fn threads_of_one_app_share_one_commit() {
    let (bed, files) = Bed::with_files(5, true);
    bed.write(files[0], 1);
    let (&first, others) = files.split_first().unwrap();
    let before = bed.attempts();
    thread::scope(|scope| {
        let leader = bed.fsync(scope, first);
        bed.begins.recv_timeout(PATIENCE).unwrap();
        let calls: Vec<_> = others
            .iter()
            .enumerate()
            .map(|(number, &file)| {
                // After the call before it: that has closed nothing yet.
                bed.write(file, 1);
                let call = bed.fsync(scope, file);
                bed.await_calls(number + 2);
                call
            })
            .collect();
        bed.go.send(()).unwrap();
        bed.let_one_commit();
        leader.join().unwrap().unwrap();
        calls
            .into_iter()
            .for_each(|call| call.join().unwrap().unwrap());
    });
    assert_eq!(bed.attempts(), before + 2);
    assert_eq!(bed.volume.status().totals.at_risk, 0);
}

#[test]
fn a_large_transaction_does_not_delay_others() {
    let (bed, files) = Bed::with_files(4, false);
    let large_pages = GROUP_BYTES_MAX as usize / PAGE_BYTES + 1;
    let sizes = [1, 1, large_pages, 1];
    for (&file, pages) in files.iter().zip(sizes) {
        bed.write(file, pages);
    }
    assert_eq!(
        bed.run(&files, 2),
        [Ok(()); 4],
        "small ones, and the large one"
    );
}

/// Where a group finds no room, its members are tried by themselves: only those fail that have none.
#[test]
fn an_app_without_room_does_not_fail_those_that_commit_with_it() {
    let (bed, files) = Bed::with_files(4, false);
    for (&file, pages) in files.iter().zip([1, 1, 5, 1]) {
        bed.write(file, pages);
    }
    bed.store.pages_max.store(4, Ordering::SeqCst);
    // The group of three, and each by itself. The order of the others is that of waking up.
    let (&first, others) = files.split_first().unwrap();
    thread::scope(|scope| {
        let leader = bed.fsync(scope, first);
        bed.begins.recv_timeout(PATIENCE).unwrap();
        let calls: Vec<_> = others.iter().map(|&file| bed.fsync(scope, file)).collect();
        bed.await_calls(4);
        bed.go.send(()).unwrap();
        while !calls.iter().all(ScopedJoinHandle::is_finished) {
            if bed.begins.recv_timeout(Duration::from_millis(1)).is_ok() {
                bed.go.send(()).unwrap();
            }
        }
        leader.join().unwrap().unwrap();
        let ended: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        assert_eq!(ended, [Ok(()), Err(FsError::NoSpace), Ok(())]);
    });
    bed.store.pages_max.store(u64::MAX, Ordering::SeqCst);
    *bed.store.during_commit.lock() = None;
    bed.volume.fsync(files[2]).unwrap();
    assert_eq!(bed.volume.status().totals.at_risk, 0);
}

/// A medium that is gone fails every call, and none waits for ever.
#[test]
fn all_calls_end_where_nothing_can_be_committed() {
    let (bed, files) = Bed::with_files(4, false);
    files.iter().for_each(|&file| bed.write(file, 1));
    let (&first, others) = files.split_first().unwrap();
    thread::scope(|scope| {
        let leader = bed.fsync(scope, first);
        bed.begins.recv_timeout(PATIENCE).unwrap();
        let calls: Vec<_> = others.iter().map(|&file| bed.fsync(scope, file)).collect();
        bed.await_calls(4);
        bed.store.broken.store(true, Ordering::SeqCst);
        bed.go.send(()).unwrap();
        leader.join().unwrap().unwrap();
        for call in calls {
            assert_eq!(call.join().unwrap(), Err(FsError::Io));
        }
    });
    bed.store.broken.store(false, Ordering::SeqCst);
    *bed.store.during_commit.lock() = None;
    bed.volume.sync_all().unwrap();
}
