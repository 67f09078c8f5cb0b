//! The process that answers.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mobifs_steered::{Decisions, Directory, MappedFiles, MappingFlag, is_order_kept};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::calls::{Kind, kind_of};
use crate::everything::sync_others;
use crate::lapse::Watch;
use crate::ledger::PLACES;
use crate::listener::{Answer, Call, Listener, Next};
use crate::opens::open_relaxed;
use crate::received::Received;
use crate::supervisor_probe::PROBE_DESCRIPTOR;
use crate::target::{Found, MountTable, Threads};
use crate::writes::write_relaxed;

/// How many calls that may take long are answered at a time; more go on in the kernel.
const JOBS_MAX: usize = 64;
// And one that is being decided on.
const _: () = assert!(PLACES > JOBS_MAX, "each call has a place");
/// Waits after so many failures in a row.
const FAILURES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// What `sync_file_range` knows.
const RANGE_FLAGS: u64 = 7;

/// What answers calls; each of the supervisor's processes has it.
pub(crate) struct Supervisor {
    listener: Listener,
    decisions: Decisions,
    directory: Directory,
    /// A signal that does not kill leaves a call alone that has been received.
    calls_are_kept: bool,
    jobs: AtomicUsize,
    /// Where the library in the processes sees that one of them has mapped a file that it can write: from then on, who
    /// makes a call for durability is asked what it has mapped.
    mappings: Option<MappingFlag>,
    watch: Arc<Watch>,
}

impl Supervisor {
    pub(crate) fn new(
        listener: Listener,
        decisions: Decisions,
        directory: Directory,
        calls_are_kept: bool,
        mappings: Option<MappingFlag>,
    ) -> Self {
        let watch = Watch::new(directory.clone());
        Self {
            listener,
            decisions,
            directory,
            calls_are_kept,
            jobs: AtomicUsize::new(0),
            mappings,
            watch,
        }
    }

    /// Answers calls until no process is left that could make one: whether it has come to that.
    pub(crate) fn serve(self: &Arc<Self>) -> bool {
        self.finish_left_over();
        self.watch.resume();
        let mut threads = Threads::default();
        let mut failures = 0;
        loop {
            let next = self
                .listener
                .next(None, || self.directory.wait_until_awake());
            match next {
                Ok(Next::Call(call)) => {
                    failures = 0;
                    // A mistake of this program must not hold up another one.
                    let deciding = AssertUnwindSafe(|| self.decide(&call, &mut threads));
                    match catch_unwind(deciding).unwrap_or(Decision::Now(Answer::Continue)) {
                        Decision::Now(answer) => self.listener.answer(&call, answer),
                        Decision::Later(kind) => answer_later(self, call, kind),
                    }
                }
                Ok(Next::Over) => {
                    self.watch.finish();
                    return true;
                }
                Ok(Next::Late) => {}
                Err(_) if failures < FAILURES_MAX => {
                    failures += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(_) => return false,
            }
        }
    }

    /// Has the kernel carry out all calls for some time, as without a supervisor: whether no process is left that could
    /// make one. Starts no thread.
    pub(crate) fn pass_on(&self, time: Duration) -> bool {
        self.finish_left_over();
        let until = Instant::now() + time;
        loop {
            let next = self
                .listener
                .next(Some(until), || self.directory.wait_until_awake());
            match next {
                Ok(Next::Call(call)) => {
                    self.learn(&call);
                    self.listener.answer(&call, Answer::Continue);
                }
                Ok(Next::Over) => {
                    self.watch.finish();
                    return true;
                }
                Ok(Next::Late) => return false,
                Err(_) => std::thread::sleep(PAUSE),
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    /// Calls that one has taken up who was killed are the kernel's: what may be done twice may have been done already,
    /// and nothing else was begun. A program that has got its descriptor gets its number.
    fn finish_left_over(&self) {
        for (call, descriptor) in self.listener.left_over() {
            self.learn(&call);
            let answer = descriptor.map_or(Answer::Continue, |number| Answer::Value(number.into()));
            self.listener.answer(&call, answer);
        }
    }

    /// Notes what a call changes for later ones, without a look at what exactly it does.
    fn learn(&self, call: &Received) {
        match kind_of(call.architecture, call.number) {
            Some(Kind::Map | Kind::OldMap) => self.note_mapping(),
            Some(Kind::Restrict) => self.listener.ledger().note_restriction(),
            _ => {}
        }
    }
}

enum Decision {
    Now(Answer),
    /// The answer may take long.
    Later(Kind),
}

impl Supervisor {
    fn decide(&self, call: &Received, threads: &mut Threads) -> Decision {
        let kind = kind_of(call.architecture, call.number);
        let Some(kind) = kind.filter(|_| call.thread != 0) else {
            return Decision::Now(Answer::Continue);
        };
        let acts = self.calls_are_kept && !self.listener.ledger().is_restricted();
        Decision::Now(match kind {
            Kind::Descriptor => self.of_descriptor(call, threads),
            Kind::Filesystem => self.of_filesystem(call, threads),
            Kind::Range => self.of_range(call, threads),
            Kind::Memory => self.of_memory(call),
            Kind::Everything => return Decision::Later(kind),
            Kind::Open | Kind::OpenAt | Kind::OpenHow | Kind::Write if acts => {
                return Decision::Later(kind);
            }
            Kind::Open | Kind::OpenAt | Kind::OpenHow | Kind::Write | Kind::Rings => {
                Answer::Continue
            }
            Kind::Map => {
                self.look_at_mapping(call, threads);
                Answer::Continue
            }
            Kind::OldMap => {
                self.note_mapping();
                Answer::Continue
            }
            Kind::Restrict => {
                self.listener.ledger().note_restriction();
                Answer::Continue
            }
        })
    }

    /// Before it is there: another thread may store into it at once. Protection is not looked at: it
    /// can change later.
    fn look_at_mapping(&self, call: &Received, threads: &mut Threads) {
        if self.listener.ledger().has_mapped() {
            return;
        }
        let number = call.arguments[4] as RawFd;
        let may_change = match threads.descriptor(call.thread, number) {
            // Memory without a file, or a mistake of the program.
            None => false,
            Some(Found::Same(file)) => {
                let access = fcntl_getfl(&file).map(|flags| flags & OFlags::RWMODE);
                access != Ok(OFlags::RDONLY) && is_order_kept(name_of(&file).as_bytes())
            }
            Some(Found::Seen(file)) => is_order_kept(name_of(&file).as_bytes()),
        };
        if may_change {
            self.note_mapping();
        }
    }

    fn note_mapping(&self) {
        self.listener.ledger().note_mapping();
        if let Some(flag) = &self.mappings {
            flag.set();
        }
    }

    /// Whether the process can change files of steered filesystems by storing into memory.
    fn may_store(&self, thread: u32) -> bool {
        self.listener.ledger().has_mapped()
            && self
                .decisions
                .may_store(MappedFiles::at(format!("/proc/{thread}/maps")))
    }

    fn of_descriptor(&self, call: &Received, threads: &mut Threads) -> Answer {
        let number = call.arguments[0] as RawFd;
        if number == PROBE_DESCRIPTOR {
            return Answer::Value(0);
        }
        if self.may_store(call.thread) {
            return Answer::Continue;
        }
        let Some(found) = threads.descriptor(call.thread, number) else {
            // The kernel says what is wrong with it.
            return Answer::Continue;
        };
        let table = MountTable::of(call.thread);
        let table = table.path();
        match found {
            Found::Same(file) => match self.decisions.answer(&file, table) {
                None => {
                    threads.discard(file);
                    Answer::Continue
                }
                Some(Ok(())) => Answer::Value(0),
                Some(Err(error)) => Answer::Error(error),
            },
            Found::Seen(file) if self.decisions.is_relaxed_by_path(&file, table) => {
                Answer::Value(0)
            }
            Found::Seen(_) => Answer::Continue,
        }
    }

    fn of_filesystem(&self, call: &Received, threads: &mut Threads) -> Answer {
        if self.may_store(call.thread) {
            return Answer::Continue;
        }
        let found = threads.descriptor(call.thread, call.arguments[0] as RawFd);
        let table = MountTable::of(call.thread);
        let table = table.path();
        match found {
            Some(Found::Same(file)) => match self.decisions.answer_whole(&file, table) {
                None => {
                    threads.discard(file);
                    Answer::Continue
                }
                Some(answer) => answer.map_or_else(Answer::Error, |()| Answer::Value(0)),
            },
            Some(Found::Seen(file)) if self.decisions.is_relaxed_whole(&file, table) => {
                Answer::Value(0)
            }
            _ => Answer::Continue,
        }
    }

    fn of_range(&self, call: &Received, threads: &mut Threads) -> Answer {
        let [_, offset, bytes, flags, ..] = call.arguments;
        let is_valid = flags & !RANGE_FLAGS == 0
            && (offset as i64) >= 0
            && (bytes as i64) >= 0
            && (offset as i64).checked_add(bytes as i64).is_some();
        if is_valid {
            self.of_descriptor(call, threads)
        } else {
            Answer::Continue
        }
    }

    fn of_memory(&self, call: &Received) -> Answer {
        let [address, bytes, flags, ..] = call.arguments;
        let relaxed = (|| {
            let range = whole_pages(address, bytes).filter(|_| flags == libc::MS_SYNC as u64)?;
            let maps = format!("/proc/{}/maps", call.thread);
            let mapped = MappedFiles::at(maps.as_str()).ok()?;
            Some(self.decisions.are_relaxed(&mapped, &range))
        })();
        if relaxed == Some(true) {
            Answer::Value(0)
        } else {
            Answer::Continue
        }
    }

    fn answer_slowly(&self, call: &Received, kind: Kind) -> Option<Answer> {
        if self.may_store(call.thread) {
            return None;
        }
        let is_waiting = || self.listener.is_waiting(call);
        match kind {
            Kind::Everything => {
                sync_others(call.thread, &self.decisions).then_some(Answer::Value(0))
            }
            Kind::Write => write_relaxed(call, &self.decisions, &is_waiting),
            kind => open_relaxed(call, kind, &self.decisions, &self.watch, &is_waiting),
        }
    }
}

/// Where the file is, as the kernel names it.
fn name_of(file: &OwnedFd) -> OsString {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).map_or_else(|_| OsString::new(), PathBuf::into_os_string)
}

/// The pages of a range, if it starts at a page.
fn whole_pages(address: u64, bytes: u64) -> Option<Range<u64>> {
    let page = rustix::param::page_size() as u64;
    let end = address.checked_add(bytes)?.checked_next_multiple_of(page)?;
    (address.is_multiple_of(page) && bytes > 0).then_some(address..end)
}

fn answer_later(supervisor: &Arc<Supervisor>, call: Call, kind: Kind) {
    if supervisor.jobs.fetch_add(1, Ordering::AcqRel) < JOBS_MAX {
        let (job, its_call) = (Arc::clone(supervisor), call.clone());
        let started = std::thread::Builder::new().spawn(move || {
            let answering = AssertUnwindSafe(|| job.answer_slowly(&its_call, kind));
            let answer = catch_unwind(answering).ok().flatten();
            job.listener
                .answer(&its_call, answer.unwrap_or(Answer::Continue));
            job.jobs.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_ok() {
            return;
        }
    }
    supervisor.jobs.fetch_sub(1, Ordering::AcqRel);
    supervisor.listener.answer(&call, Answer::Continue);
}
