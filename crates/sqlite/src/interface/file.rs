//! Open files as SQLite calls them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::database::locks::Level;
use crate::database::shared_memory::Change;
use crate::failure::{Failure, remember};
use crate::interface::abi::{self, Code, File, IoMethods};
use crate::interface::app_data::NAME;
use crate::interface::host::Host;
use crate::interface::opened_file::{CHARACTERISTICS, OpenedFile};
use crate::interface::pragma;
use crate::interface::vfs_choice::DeferredOpen;
use crate::limits::SignalHeldBack;

static METHODS: IoMethods = abi::io_methods!(version: 2, fetch: None, unfetch: None);

/// What SQLite has room for: the file that it sees, and our state of it.
#[repr(C)]
pub(crate) struct OurFile {
    file: File,
    inner: *mut Inner,
}

struct Inner {
    host: &'static Host,
    state: State,
}

/// The state of a file.
pub(crate) enum State {
    Open(OpenedFile),
    /// Nothing yet: another process uses the database.
    Deferred(Box<DeferredOpen>),
}

impl State {
    /// The open file.
    ///
    /// # Errors
    /// [`Failure`], if it is not open and cannot be opened now.
    fn opened(&mut self) -> Result<&mut OpenedFile, Failure> {
        if let Self::Deferred(waiting) = self {
            *self = Self::Open(waiting.open()?);
        }
        match self {
            Self::Open(opened) => Ok(opened),
            Self::Deferred(_) => Err(Failure::Misuse("what was opened waits on")),
        }
    }
}

impl OurFile {
    /// Puts an open file where SQLite wants it.
    ///
    /// # Safety
    /// There is room for an [`OurFile`].
    pub(crate) unsafe fn place(out: *mut File, host: &'static Host, state: State) {
        let inner = Box::into_raw(Box::new(Inner { host, state }));
        let file = File { methods: &METHODS };
        // SAFETY: the caller's.
        unsafe { out.cast::<Self>().write(Self { file, inner }) };
    }
}

/// The state of the file that SQLite passes.
///
/// # Safety
/// `file` was placed by [`OurFile::place`] and is not closed. SQLite calls the methods of
/// one file from one thread at a time.
unsafe fn inner<'a>(file: *mut File) -> &'a mut Inner {
    // SAFETY: the caller's.
    unsafe { &mut *(*file.cast::<OurFile>()).inner }
}

/// Makes an outcome a code of SQLite's; what has no code of its own becomes `otherwise`.
pub(crate) fn answer(
    host: &Host,
    otherwise: Code,
    call: impl FnOnce() -> Result<(), Failure>,
) -> Code {
    let _held_back = SignalHeldBack::new();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => abi::OK,
        Ok(Err(failure)) => {
            let code = failure.code(otherwise);
            let message = failure.to_string();
            host.log(code, &message);
            remember(message);
            code
        }
        Err(_) => {
            remember("this is a bug in MobiFS: an invariant does not hold".to_owned());
            otherwise
        }
    }
}

/// As [`answer`], where being refused is no failure.
fn answer_lock(
    host: &Host,
    otherwise: Code,
    call: impl FnOnce() -> Result<Result<(), Code>, Failure>,
) -> Code {
    let mut refused = abi::OK;
    let code = answer(host, otherwise, || {
        if let Err(code) = call()? {
            refused = code;
        }
        Ok(())
    });
    if code == abi::OK { refused } else { code }
}

fn offset_of(at: i64) -> Result<u64, Failure> {
    u64::try_from(at).map_err(|_| Failure::Misuse("an offset is negative"))
}

fn length_of(length: c_int) -> Result<usize, Failure> {
    usize::try_from(length).map_err(|_| Failure::Misuse("a length is negative"))
}

unsafe extern "C" fn close(file: *mut File) -> Code {
    // SAFETY: SQLite closes a file once, so what was placed there can be taken back.
    let inner = unsafe { Box::from_raw((*file.cast::<OurFile>()).inner) };
    let Inner { host, state } = *inner;
    match state {
        State::Open(opened) => answer(host, abi::IOERR, || opened.close()),
        State::Deferred(_) => abi::OK,
    }
}

unsafe extern "C" fn read(file: *mut File, out: *mut c_void, length: c_int, at: i64) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    let mut is_whole = true;
    let code = answer(host, abi::IOERR_READ, || {
        // SAFETY: SQLite passes a buffer of this length.
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), length_of(length)?) };
        is_whole = match state {
            State::Open(opened) => opened.read(offset_of(at)?, out)?,
            // SQLite looks at the header before it locks, and again when it has locked.
            State::Deferred(_) => {
                out.fill(0);
                false
            }
        };
        Ok(())
    });
    if code == abi::OK && !is_whole {
        return abi::IOERR_SHORT_READ;
    }
    code
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, length: c_int, at: i64) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR_WRITE, || {
        // SAFETY: SQLite passes a buffer of this length.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length_of(length)?) };
        state.opened()?.write(offset_of(at)?, data)
    })
}

unsafe extern "C" fn truncate(file: *mut File, bytes: i64) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR_TRUNCATE, || {
        state.opened()?.truncate(offset_of(bytes)?)
    })
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR_FSYNC, || state.opened()?.sync())
}

unsafe extern "C" fn file_size(file: *mut File, out: *mut i64) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR_FSTAT, || {
        let bytes = i64::try_from(state.opened()?.size()?).unwrap_or(i64::MAX);
        // SAFETY: a place for the answer.
        unsafe { *out = bytes };
        Ok(())
    })
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer_lock(host, abi::IOERR_LOCK, || {
        let level = Level::of(level).ok_or(Failure::Misuse("there is no such lock"))?;
        state.opened()?.lock(level)
    })
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR, || {
        let level = Level::of(level).ok_or(Failure::Misuse("there is no such lock"))?;
        match state {
            State::Open(opened) => opened.unlock(level),
            State::Deferred(_) => Ok(()),
        }
    })
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR, || {
        let has_writer = state.opened()?.has_writer()?;
        // SAFETY: a place for the answer.
        unsafe { *out = c_int::from(has_writer) };
        Ok(())
    })
}

unsafe extern "C" fn file_control(
    file: *mut File,
    operation: c_int,
    argument: *mut c_void,
) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    match operation {
        abi::FCNTL_PRAGMA => {
            // SAFETY: for this operation it is an array of three strings.
            return unsafe { answer_pragma(host, state, argument.cast()) };
        }
        abi::FCNTL_COMMIT_PHASETWO => {
            return answer(host, abi::IOERR_FSYNC, || {
                state.opened()?.transaction_committed()
            });
        }
        abi::FCNTL_VFSNAME => {
            // SAFETY: for this operation it is a place for a string that SQLite frees.
            unsafe { *argument.cast::<*mut c_char>() = host.copy(&NAME.to_string_lossy()) };
        }
        abi::FCNTL_HAS_MOVED => {
            let has_moved = match state {
                State::Open(opened) => opened.database().is_ok_and(|database| database.has_moved()),
                State::Deferred(_) => false,
            };
            // SAFETY: for these operations it is a number.
            unsafe { *argument.cast::<c_int>() = c_int::from(has_moved) };
        }
        abi::FCNTL_LOCKSTATE => {
            let level = match state {
                State::Open(opened) => opened.level(),
                State::Deferred(_) => Level::None,
            };
            // SAFETY: as above.
            unsafe { *argument.cast::<c_int>() = level as c_int };
        }
        abi::FCNTL_PERSIST_WAL => {
            // SAFETY: as above; a negative one asks.
            let flag = unsafe { &mut *argument.cast::<c_int>() };
            return answer(host, abi::IOERR, || {
                let opened = state.opened()?;
                match *flag {
                    0 => opened.keeps_log = false,
                    asked if asked > 0 => opened.keeps_log = true,
                    _ => *flag = c_int::from(opened.keeps_log),
                }
                Ok(())
            });
        }
        abi::FCNTL_POWERSAFE_OVERWRITE => {
            // SAFETY: as above. It is always so, whatever is requested.
            unsafe { *argument.cast::<c_int>() = 1 };
        }
        // Hints that make no difference.
        abi::FCNTL_SIZE_HINT | abi::FCNTL_CHUNK_SIZE => {}
        _ => return abi::NOTFOUND,
    }
    abi::OK
}

/// # Safety
/// `strings` are those of `SQLITE_FCNTL_PRAGMA`: a place for the answer, the name, and the
/// argument or null.
unsafe fn answer_pragma(host: &Host, state: &mut State, strings: *mut *mut c_char) -> Code {
    // SAFETY: the caller's.
    let (name, argument) = unsafe {
        let argument = *strings.add(2);
        let argument = (!argument.is_null()).then(|| CStr::from_ptr(argument).to_string_lossy());
        (CStr::from_ptr(*strings.add(1)).to_string_lossy(), argument)
    };
    if !pragma::is_ours(&name) {
        return abi::NOTFOUND;
    }
    let mut is_ours = true;
    let mut text = None;
    let code = answer(host, abi::ERROR, || {
        match pragma::answer(state.opened()?.database()?, &name, argument.as_deref()) {
            Some(answer) => text = Some(answer?),
            None => is_ours = false,
        }
        Ok(())
    });
    if !is_ours {
        return abi::NOTFOUND;
    }
    let text = match code {
        abi::OK => text,
        _ => crate::last_error(),
    };
    let copy = host.copy(&text.unwrap_or_default());
    if copy.is_null() {
        return abi::NOMEM;
    }
    // SAFETY: the caller's.
    unsafe { *strings = copy };
    code
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_file: *mut File) -> c_int {
    CHARACTERISTICS
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    index: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> Code {
    // SAFETY: SQLite's own file, and a place for the answer.
    let Inner { host, state } = unsafe {
        *out = std::ptr::null_mut();
        inner(file)
    };
    answer(host, abi::IOERR, || {
        let region = state
            .opened()?
            .map(length_of(index)?, length_of(bytes)?, extend != 0)?;
        if let Some(region) = region {
            // SAFETY: as above.
            unsafe { *out = region.as_ptr().cast() };
        }
        Ok(())
    })
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer_lock(host, abi::IOERR, || {
        let (first, count) = (length_of(first)?, length_of(count)?);
        if first + count > abi::SHM_LOCKS {
            return Err(Failure::Misuse("there are no such locks"));
        }
        let change = match flags {
            flags if flags & abi::SHM_UNLOCK != 0 => Change::Release,
            flags if flags & abi::SHM_EXCLUSIVE != 0 => Change::Exclude,
            _ => Change::Share,
        };
        state.opened()?.change_shared((first, count), change)
    })
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    // SQLite takes no answer; the calls that come next have the same one.
    let _answered = answer(host, abi::IOERR, || state.opened()?.barrier());
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> Code {
    // SAFETY: SQLite's own file.
    let Inner { host, state } = unsafe { inner(file) };
    answer(host, abi::IOERR, || match state {
        State::Open(opened) => opened.unmap(),
        State::Deferred(_) => Ok(()),
    })
}
