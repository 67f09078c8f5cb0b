//! Commits in the background give way to programs that wait for durable ones.
//!
//! A program whose `fsync` has returned often calls the next one at once: a database makes its
//! journal durable, then its content. If the checkpointer began to commit another app's transaction
//! in between, each of these calls would wait for one. So it waits for a moment in which none comes,
//! as a disk scheduler does that expects the next request of a reader; but not for long, or such a
//! program would keep all others' changes in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::types::CallingThreads;

/// None has come for so long: the program does something else.
const PAUSE: Duration = Duration::from_millis(2);
/// How many pauses the checkpointer waits at most at a time.
const PAUSES_MAX: u32 = 10;
/// The checkpointer commits so much before it gives way again: small transactions keep an `fsync`
/// waiting for a moment only, and there may be thousands of them that reach their age.
const BYTES_BETWEEN: u64 = 128 << 10;

/// The durable `fsync`s of a volume.
pub(super) struct DurableSyncs {
    /// Who wants to know when one waits.
    callers: OnceLock<Arc<dyn CallingThreads>>,
    /// That have not returned.
    waiting: AtomicU64,
    /// That have.
    ended: AtomicU64,
    /// How many had when the checkpointer looked last.
    seen: AtomicU64,
    /// What the checkpointer has committed since it gave way last.
    committed_bytes: AtomicU64,
}

impl Default for DurableSyncs {
    fn default() -> Self {
        Self {
            callers: OnceLock::new(),
            waiting: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            // It gives way before its first commit.
            committed_bytes: AtomicU64::new(BYTES_BETWEEN),
        }
    }
}

/// A program waits for a commit.
pub(super) struct Waiting<'a> {
    all: &'a DurableSyncs,
    _declared: Option<Box<dyn Send>>,
}

impl DurableSyncs {
    /// A program waits for a commit, until the value is dropped.
    pub(super) fn begin(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting {
            all: self,
            _declared: self.callers.get().map(|callers| callers.waiting()),
        }
    }

    /// Tells these from now on. They are set once.
    pub(super) fn set_callers(&self, callers: Arc<dyn CallingThreads>) {
        let first = self.callers.set(callers);
        debug_assert!(first.is_ok(), "the calling threads are set twice");
    }

    /// The checkpointer has committed so much.
    pub(super) fn committed(&self, bytes: u64) {
        self.committed_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Whether the checkpointer is to give way before its next commit.
    pub(super) fn is_due(&self) -> bool {
        self.committed_bytes.load(Ordering::SeqCst) >= BYTES_BETWEEN
    }

    /// Waits for a pause in which none comes; returns how many were waited. `wait` waits for one, or
    /// returns false because it must not wait.
    pub(super) fn wait_for_pause(&self, mut wait: impl FnMut(Duration) -> bool) -> u32 {
        self.committed_bytes.store(0, Ordering::SeqCst);
        let mut pauses = 0;
        while pauses < PAUSES_MAX && self.any_since_last_check() && wait(PAUSE) {
            pauses += 1;
        }
        pauses
    }

    /// Whether one is under way, or has ended since this was asked last.
    fn any_since_last_check(&self) -> bool {
        let ended = self.ended.load(Ordering::SeqCst);
        let has_ended = self.seen.swap(ended, Ordering::SeqCst) != ended;
        has_ended || self.waiting.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.ended.fetch_add(1, Ordering::SeqCst);
        self.all.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
#[expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use mobifs_base::{FileKind, ObjectId};
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

    /// A volume whose app `small` is durable, without a checkpointer.
    fn volume(store: &Arc<Faulty>) -> Arc<Volume> {
        let text = "[[app]]\nmatch = \"small\"\nclass = \"durable\"\n";
        let config = Config::parse(text, Path::new("test.toml")).unwrap();
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&config)
        };
        Volume::start(Arc::clone(store) as _, options).unwrap()
    }

    /// An app with a file.
    fn app(volume: &Volume, name: &str) -> ObjectId {
        let directory = volume.create(
            &CALLER,
            ObjectId::ROOT,
            name.as_bytes(),
            &node(FileKind::Directory),
        );
        let directory = directory.unwrap().id;
        let file = volume.create(&CALLER, directory, b"file", &node(FileKind::Regular));
        file.unwrap().id
    }

    fn write(volume: &Volume, file: ObjectId, content: &[u8]) {
        let at = WriteAt::Offset(0);
        let written = volume.write(file, at, content, SetIdBits::Stay, false);
        assert_eq!(written.unwrap(), content.len());
    }

    /// Commits of a store that stop on their way: the number of each arrives, and it goes on when
    /// the test says so.
    fn stopping(store: &Faulty) -> (Receiver<u64>, Sender<()>) {
        let (began, begins) = channel();
        let (go, goes) = channel();
        let goes = parking_lot::Mutex::new(goes);
        *store.during_commit.lock() = Some(Arc::new(move |number| {
            began.send(number).unwrap();
            let told = goes.lock().recv_timeout(PATIENCE);
            told.unwrap();
        }));
        (begins, go)
    }

    /// Returns when this thread of the process waits for a lock.
    fn wait_until_asleep(thread: rustix::process::Pid) {
        let path = format!("/proc/self/task/{thread}/stat");
        let is_asleep = || {
            let text = std::fs::read_to_string(&path).unwrap();
            // The name of the thread, in parentheses, may have anything in it.
            let (_, state) = text.rsplit_once(") ").unwrap();
            state.starts_with('S')
        };
        while !is_asleep() {
            thread::yield_now();
        }
    }

    /// After its own commit a durable `fsync` took the commit lock once more, only to find out that
    /// it had nothing to do, and waited for the commit of another app for that.
    #[test]
    fn a_durable_fsync_does_not_wait_for_the_commit_after_its_own() {
        let store = Faulty::new();
        let volume = volume(&store);
        let (small, large) = (app(&volume, "small"), app(&volume, "large"));
        volume.sync_all().unwrap();
        write(&volume, large, &[1; 4096]);
        volume.close_app("large");
        write(&volume, small, &[2; 10]);
        let before = store.attempts.load(Ordering::SeqCst);
        let (begins, go) = stopping(&store);
        thread::scope(|scope| {
            let (returned, returns) = channel();
            let own = &volume;
            scope.spawn(move || returned.send(own.fsync(small)).unwrap());
            assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), before + 1);
            let (started, starts) = channel();
            let other = scope.spawn(move || {
                started.send(rustix::thread::gettid()).unwrap();
                own.commit_next()
            });
            // The only lock that is held for longer is the commit lock.
            wait_until_asleep(starts.recv_timeout(PATIENCE).unwrap());
            go.send(()).unwrap();
            assert_eq!(begins.recv_timeout(PATIENCE).unwrap(), before + 2);
            let result = returns.recv_timeout(PATIENCE);
            go.send(()).unwrap();
            result.expect("it has returned").unwrap();
            assert!(other.join().unwrap().unwrap());
        });
    }

    /// The checkpointer's thread of this volume is the test.
    fn give_way(volume: &Volume) -> u32 {
        volume.shared.give_way()
    }

    fn volume_with_thread() -> Arc<Volume> {
        let config = Config::parse("", Path::new("test.toml")).unwrap();
        let options = VolumeOptions {
            background: true,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Faulty::new(), options).unwrap();
        volume.sync_all().unwrap();
        // Its own thread is not to commit what the test closes.
        volume.stop_threads();
        volume.shared.stopping.store(false, Ordering::SeqCst);
        volume
    }

    #[test]
    fn a_large_commit_gives_way_to_durable_fsyncs_and_not_for_ever() {
        let volume = volume_with_thread();
        let syncs = &volume.shared.durable_syncs;
        let file = app(&volume, "large");
        volume.close_all();
        let paused = || {
            syncs.committed(BYTES_BETWEEN);
            give_way(&volume)
        };
        assert_eq!(paused(), 0, "none has come");
        drop(syncs.begin());
        assert_eq!(paused(), 1, "the next one may come");
        assert_eq!(paused(), 0, "none did");
        let waiting = syncs.begin();
        assert_eq!(paused(), PAUSES_MAX, "it does not return");
        assert_eq!(give_way(&volume), 0, "little was committed since");
        syncs.committed(BYTES_BETWEEN);
        volume.shared.pressure_flush.store(true, Ordering::SeqCst);
        assert_eq!(give_way(&volume), 0, "memory of the machine is short");
        volume.shared.pressure_flush.store(false, Ordering::SeqCst);
        drop(waiting);
        volume.sync_all().unwrap();
        let waiting = syncs.begin();
        syncs.committed(BYTES_BETWEEN);
        assert_eq!(give_way(&volume), 0, "there is nothing to commit");
        write(&volume, file, &[1; 4096]);
        volume.close_all();
        assert_eq!(give_way(&volume), PAUSES_MAX);
        volume
            .shared
            .memory_budget_bytes
            .store(4096, Ordering::Relaxed);
        syncs.committed(BYTES_BETWEEN);
        assert_eq!(give_way(&volume), 0, "memory is short");
        drop(waiting);
    }
}
