//! The system calls that are looked at, by architecture.

use mobifs_steered::{PROBE_BYTES, PROBE_FLAGS, PROBE_OFFSET};

/// What a call does, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "not every architecture has each")
)]
pub(crate) enum Kind {
    /// `fsync(fd)`, `fdatasync(fd)`.
    Descriptor,
    /// `syncfs(fd)`.
    Filesystem,
    /// `sync_file_range(fd, offset, bytes, flags)`.
    Range,
    /// `msync(address, bytes, flags)`.
    Memory,
    /// `sync()`.
    Everything,
    /// `open(path, flags, mode)`.
    Open,
    /// `openat(directory, path, flags, mode)`.
    OpenAt,
    /// `openat2(directory, path, how, size)`.
    OpenHow,
    /// `pwritev2(fd, vector, count, low, high, flags)`.
    Write,
    /// `io_uring_setup`, whose rings make calls that no filter sees.
    Rings,
    /// `mmap(address, bytes, protection, flags, fd, offset)`, of a file, to share it.
    Map,
    /// `mmap(arguments)`, which only the process can read.
    OldMap,
    /// `landlock_restrict_self`: the process will be allowed less than the supervisor.
    Restrict,
}

/// When a call is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "not every architecture has each")
)]
pub(crate) enum Condition {
    Always,
    /// An argument has one of these bits.
    Bits {
        argument: u32,
        mask: u32,
    },
    /// Memory that is shared, of a file: an argument has the one bit, and not the other.
    SharedFile {
        argument: u32,
    },
    /// Not the question for pending errors, which changes nothing.
    IsNoProbe,
}

/// A call that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) condition: Condition,
}

/// The calls of an architecture; machines of 64 bits run programs of 32 bits, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// `AUDIT_ARCH_…`.
    pub(crate) audit: u32,
    pub(crate) rules: &'static [Rule],
}

/// `O_DSYNC` and the bit that makes it `O_SYNC`.
pub(crate) const SYNCHRONOUS: u32 = (libc::O_SYNC | libc::O_DSYNC) as u32;
/// What makes one write durable.
pub(crate) const DURABLE_WRITE: u32 = (libc::RWF_DSYNC | libc::RWF_SYNC) as u32;
/// The argument of `sync_file_range` with the flags.
pub(crate) const RANGE_FLAGS: u32 = 3;

const fn rule(number: libc::c_long, kind: Kind) -> Rule {
    Rule {
        number: number as u32,
        kind,
        condition: Condition::Always,
    }
}

const fn with_bits(number: libc::c_long, kind: Kind, argument: u32, mask: u32) -> Rule {
    Rule {
        number: number as u32,
        kind,
        condition: Condition::Bits { argument, mask },
    }
}

const fn shared_file(number: libc::c_long) -> Rule {
    Rule {
        number: number as u32,
        kind: Kind::Map,
        condition: Condition::SharedFile { argument: 3 },
    }
}

/// The numbers that are the same everywhere.
const RINGS: Rule = rule(425, Kind::Rings);
const OPEN_HOW: Rule = rule(437, Kind::OpenHow);
const RESTRICT: Rule = rule(446, Kind::Restrict);
const MS_SYNC: u32 = libc::MS_SYNC as u32;
/// The bit that `MAP_SHARED_VALIDATE` has as well.
pub(crate) const SHARED: u32 = libc::MAP_SHARED as u32;
/// Memory without a file.
pub(crate) const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;

#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
))]
const RANGE: Rule = Rule {
    number: libc::SYS_sync_file_range as u32,
    kind: Kind::Range,
    condition: Condition::IsNoProbe,
};

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        audit: 0xC000_003E,
        rules: &[
            with_bits(libc::SYS_openat, Kind::OpenAt, 2, SYNCHRONOUS),
            with_bits(libc::SYS_open, Kind::Open, 1, SYNCHRONOUS),
            with_bits(libc::SYS_pwritev2, Kind::Write, 5, DURABLE_WRITE),
            rule(libc::SYS_fsync, Kind::Descriptor),
            rule(libc::SYS_fdatasync, Kind::Descriptor),
            with_bits(libc::SYS_msync, Kind::Memory, 2, MS_SYNC),
            shared_file(libc::SYS_mmap),
            RANGE,
            rule(libc::SYS_syncfs, Kind::Filesystem),
            rule(libc::SYS_sync, Kind::Everything),
            RINGS,
            OPEN_HOW,
            RESTRICT,
            // x32; what takes structures keeps its meaning there.
            rule(X32 | libc::SYS_fsync, Kind::Descriptor),
            rule(X32 | libc::SYS_fdatasync, Kind::Descriptor),
            with_bits(X32 | libc::SYS_msync, Kind::Memory, 2, MS_SYNC),
            shared_file(X32 | libc::SYS_mmap),
            rule(X32 | libc::SYS_syncfs, Kind::Filesystem),
            rule(X32 | libc::SYS_sync, Kind::Everything),
            rule(X32 | 425, Kind::Rings),
            rule(X32 | 446, Kind::Restrict),
        ],
    },
    Architecture {
        audit: 0x4000_0003,
        rules: &[
            rule(118, Kind::Descriptor),
            rule(148, Kind::Descriptor),
            with_bits(144, Kind::Memory, 2, MS_SYNC),
            shared_file(192),
            rule(90, Kind::OldMap),
            rule(344, Kind::Filesystem),
            rule(36, Kind::Everything),
            RINGS,
            RESTRICT,
        ],
    },
];
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;

#[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
const ARM: Architecture = Architecture {
    audit: 0x4000_0028,
    rules: &[
        rule(118, Kind::Descriptor),
        rule(148, Kind::Descriptor),
        with_bits(144, Kind::Memory, 2, MS_SYNC),
        shared_file(192),
        rule(373, Kind::Filesystem),
        rule(36, Kind::Everything),
        RINGS,
        RESTRICT,
    ],
};

#[cfg(target_arch = "arm")]
pub(crate) const ARCHITECTURES: &[Architecture] = &[Architecture {
    audit: ARM.audit,
    rules: &[
        with_bits(libc::SYS_openat, Kind::OpenAt, 2, SYNCHRONOUS),
        with_bits(libc::SYS_open, Kind::Open, 1, SYNCHRONOUS),
        with_bits(libc::SYS_pwritev2, Kind::Write, 5, DURABLE_WRITE),
        ARM.rules[0],
        ARM.rules[1],
        ARM.rules[2],
        ARM.rules[3],
        ARM.rules[4],
        ARM.rules[5],
        RINGS,
        OPEN_HOW,
        RESTRICT,
    ],
}];

#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        audit: if cfg!(target_arch = "aarch64") {
            0xC000_00B7
        } else {
            0xC000_00F3
        },
        rules: &[
            with_bits(libc::SYS_openat, Kind::OpenAt, 2, SYNCHRONOUS),
            with_bits(libc::SYS_pwritev2, Kind::Write, 5, DURABLE_WRITE),
            rule(libc::SYS_fsync, Kind::Descriptor),
            rule(libc::SYS_fdatasync, Kind::Descriptor),
            with_bits(libc::SYS_msync, Kind::Memory, 2, MS_SYNC),
            shared_file(libc::SYS_mmap),
            RANGE,
            rule(libc::SYS_syncfs, Kind::Filesystem),
            rule(libc::SYS_sync, Kind::Everything),
            RINGS,
            OPEN_HOW,
            RESTRICT,
        ],
    },
    #[cfg(target_arch = "aarch64")]
    ARM,
];

/// No other architecture is known.
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "arm"
)))]
pub(crate) const ARCHITECTURES: &[Architecture] = &[];

/// What the call with this number does.
pub(crate) fn kind_of(audit: u32, number: u32) -> Option<Kind> {
    let is_it = |architecture: &&Architecture| architecture.audit == audit;
    let architecture = ARCHITECTURES.iter().find(is_it)?;
    let is_it = |rule: &&Rule| rule.number == number;
    Some(architecture.rules.iter().find(is_it)?.kind)
}

/// The arguments of the question for pending errors: low and high halves that must be equal.
pub(crate) const PROBE: [(u32, u64); 3] = [
    (1, PROBE_OFFSET as u64),
    (2, PROBE_BYTES as u64),
    (RANGE_FLAGS, PROBE_FLAGS as u64),
];
