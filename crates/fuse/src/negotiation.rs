//! The INIT exchange: which parts of the protocol both sides use.

use crate::protocol::{InitReply, MAJOR, MINOR, MINOR_MIN, PAYLOAD_BYTES_MAX, init};
use crate::request::InitRequest;

/// Requests that the kernel may have under way without a process waiting for each
/// (read-ahead, write-back, asynchronous I/O).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// From this many on the kernel holds back further ones.
const BACKGROUND_REQUESTS_CONGESTED: u16 = 48;

/// What is wanted if the kernel has it.
///
/// Not wanted, and why:
/// * `WRITEBACK_CACHE`: each write must reach the engine, in order, when it happens.
/// * `ATOMIC_O_TRUNC`: opens are not sent at all, so the kernel must truncate by
///   SETATTR.
/// * `ASYNC_DIO`, unless the handler asks for it: see [`DirectIo`].
/// * `AUTO_INVAL_DATA`: only requests of the kernel change files, so nothing that it has
///   cached goes stale by itself.
/// * `POSIX_LOCKS`, `FLOCK_LOCKS`: all lockers are on this machine; the kernel's own
///   locks do, without a request each.
/// * `EXPORT_SUPPORT`: a node number may be used again for another object once the
///   kernel has forgotten it, so a file handle kept by an NFS client could name the
///   wrong file. `NO_EXPORT_SUPPORT` makes the kernel refuse such handles.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::NO_EXPORT_SUPPORT;

/// How the kernel carries out calls with `O_DIRECT` on the files of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// A call, an asynchronous one, too (`io_submit`, io_uring), lasts until its requests are
    /// answered, one after the other, and a write holds the file's lock meanwhile.
    ///
    /// Only so does the kernel drop what it has cached of a written range *after* the write:
    /// with `ASYNC_DIO` it does so before it sends the request and never again, and a page
    /// that another program reads meanwhile keeps the old content for as long as it is cached.
    Serial,
    /// The requests of a call are under way side by side, and an asynchronous call returns at
    /// once. Correct only where nothing else than `O_DIRECT` reads the files.
    Parallel,
}

impl DirectIo {
    const fn wanted(self) -> u64 {
        match self {
            Self::Serial => 0,
            Self::Parallel => init::ASYNC_DIO,
        }
    }
}

/// Without these the library's answers would be wrong, not only slow.
const REQUIRED: u64 = init::DONT_MASK | init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT;

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The protocol's minor version in use.
    pub minor: u32,
    /// Capabilities in use.
    pub flags: u64,
}

impl Negotiated {
    /// Whether SETXATTR requests have their newer form.
    pub(crate) const fn set_xattr_extended(self) -> bool {
        self.flags & init::SETXATTR_EXT != 0
    }
}

/// How to answer an INIT.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Ready: send the reply, then serve.
    Negotiated(Negotiated, InitReply),
    /// The kernel is of a newer major version: send the reply and expect another INIT.
    AskAgain(InitReply),
    /// The kernel is too old.
    TooOld,
}

/// Decides how to answer `request`.
pub(crate) fn negotiate(request: &InitRequest, direct_io: DirectIo) -> Answer {
    if request.major > MAJOR {
        let reply = InitReply {
            major: MAJOR,
            minor: MINOR,
            ..InitReply::default()
        };
        return Answer::AskAgain(reply);
    }
    let flags = (WANTED | direct_io.wanted()) & request.flags;
    if request.major < MAJOR || request.minor < MINOR_MIN || flags & REQUIRED != REQUIRED {
        return Answer::TooOld;
    }
    let minor = request.minor.min(MINOR);
    let [low, high] = halves(flags);
    let reply = InitReply {
        major: MAJOR,
        minor,
        max_readahead_bytes: request.max_readahead_bytes,
        flags: low,
        flags2: high,
        max_background: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: BACKGROUND_REQUESTS_CONGESTED,
        max_write_bytes: PAYLOAD_BYTES_MAX as u32,
        time_granularity_ns: 1,
        max_pages: (PAYLOAD_BYTES_MAX / 4096) as u16,
        ..InitReply::default()
    };
    Answer::Negotiated(Negotiated { minor, flags }, reply)
}

/// Low and high word.
const fn halves(flags: u64) -> [u32; 2] {
    [flags as u32, (flags >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: u64) -> InitRequest {
        InitRequest {
            major: 7,
            minor,
            max_readahead_bytes: 131_072,
            flags,
        }
    }

    #[test]
    fn nothing_is_used_that_the_kernel_did_not_offer() {
        let Answer::Negotiated(negotiated, reply) =
            negotiate(&kernel(45, REQUIRED), DirectIo::Parallel)
        else {
            panic!("refused");
        };
        assert_eq!(negotiated.flags, REQUIRED);
        assert_eq!(
            u64::from(reply.flags) | (u64::from(reply.flags2) << 32),
            REQUIRED
        );
        assert!(!negotiated.set_xattr_extended());
    }

    #[test]
    fn nothing_is_used_that_is_not_wanted() {
        for (direct_io, flags) in [
            (DirectIo::Serial, WANTED),
            (DirectIo::Parallel, WANTED | init::ASYNC_DIO),
        ] {
            let Answer::Negotiated(negotiated, reply) = negotiate(&kernel(99, u64::MAX), direct_io)
            else {
                panic!("refused");
            };
            let minor = MINOR;
            assert_eq!(negotiated, Negotiated { minor, flags });
            assert_eq!((reply.max_write_bytes, reply.max_pages), (1 << 20, 256));
        }
    }

    #[test]
    fn old_kernels_are_refused_and_newer_majors_negotiate_again() {
        let answer = |request: InitRequest| negotiate(&request, DirectIo::Serial);
        assert!(matches!(answer(kernel(30, u64::MAX)), Answer::TooOld));
        assert!(matches!(answer(kernel(45, 0)), Answer::TooOld));
        let newer = InitRequest {
            major: 8,
            ..kernel(0, 0)
        };
        assert!(matches!(answer(newer), Answer::AskAgain(_)));
    }
}
