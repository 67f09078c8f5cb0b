//! Limits of resources that a process inherits from the one that started it.
//!
//! They are raised as far as the system allows: the user may have set them for other programs, and
//! the daemon works for all programs on the mount. Where a limit stays that is too low, the mount
//! is refused: the daemon would fail, or be killed, with changes that it has acknowledged.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a daemon may have open at a time.
const FILES_WANTED: u64 = 65_536;
/// The store, the connection with the kernel, commands and events need this many.
const FILES_NEEDED: u64 = 256;
/// Memory that outlives the daemon may take a quarter of the addresses (see `Arena::create`).
const ADDRESSES_NEEDED: u64 = if cfg!(target_pointer_width = "64") {
    4 << 30
} else {
    1 << 30
};
const MEMORY_NEEDED: u64 = 256 << 20;
const STACK_WANTED: u64 = 8 << 20;

/// A limit that matters. None: no limit.
struct Limited {
    resource: Resource,
    /// What is limited, in words.
    what: &'static str,
    /// How a shell's `ulimit` and a unit of systemd call it.
    shell: &'static str,
    unit: &'static str,
    /// How much is asked for, and how much there must be.
    wanted: Option<u64>,
    needed: Option<u64>,
}

const LIMITED: [Limited; 6] = [
    Limited {
        resource: Resource::Fsize,
        what: "the size of files",
        shell: "-f",
        unit: "LimitFSIZE",
        wanted: None,
        needed: None,
    },
    Limited {
        resource: Resource::Nofile,
        what: "open files",
        shell: "-n",
        unit: "LimitNOFILE",
        wanted: Some(FILES_WANTED),
        needed: Some(FILES_NEEDED),
    },
    Limited {
        resource: Resource::As,
        what: "the address space",
        shell: "-v",
        unit: "LimitAS",
        wanted: None,
        needed: Some(ADDRESSES_NEEDED),
    },
    Limited {
        resource: Resource::Data,
        what: "memory for data",
        shell: "-d",
        unit: "LimitDATA",
        wanted: None,
        needed: Some(MEMORY_NEEDED),
    },
    Limited {
        resource: Resource::Stack,
        what: "the stack",
        shell: "-s",
        unit: "LimitSTACK",
        wanted: Some(STACK_WANTED),
        needed: Some(0),
    },
    // Each daemon has its own time: where it ends, a successor begins.
    Limited {
        resource: Resource::Cpu,
        what: "processor time",
        shell: "-t",
        unit: "LimitCPU",
        wanted: None,
        needed: Some(0),
    },
];

/// A limit that is too low for a mount.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "this process is limited in {what} to {limit}, and a mount needs {}; mount from where the \
     limit \
     is higher (ulimit {shell} in a shell, {unit}= in a unit of systemd, /etc/security/limits.conf)",
    needed.map_or("to be without that limit".to_owned(), |needed| format!("at least {needed}"))
)]
pub struct LimitError {
    what: &'static str,
    limit: u64,
    needed: Option<u64>,
    shell: &'static str,
    unit: &'static str,
}

/// Raises the limits of this process, and with that those of the programs that it starts, as far as
/// it may.
///
/// # Errors
/// [`LimitError`], if one stays too low to make a mount.
pub fn raise_limits() -> Result<(), LimitError> {
    let mut lowest = Ok(());
    for limited in &LIMITED {
        raise(limited);
        let reached = getrlimit(limited.resource).current;
        if let (Some(limit), true) = (reached, is_below(reached, limited.needed)) {
            lowest = lowest.and(Err(LimitError {
                what: limited.what,
                limit,
                needed: limited.needed,
                shell: limited.shell,
                unit: limited.unit,
            }));
        }
    }
    lowest
}

fn raise(limited: &Limited) {
    let limit = getrlimit(limited.resource);
    if !is_below(limit.current, limited.wanted) {
        return;
    }
    let is_allowed = !is_below(limit.maximum, limited.wanted);
    let wanted = Rlimit {
        current: limited.wanted,
        maximum: if is_allowed {
            limit.maximum
        } else {
            limited.wanted
        },
    };
    // Only a privileged process may go above the maximum.
    if setrlimit(limited.resource, wanted).is_err() && !is_allowed {
        let most = Rlimit {
            current: limit.maximum,
            ..limit
        };
        if let Err(errno) = setrlimit(limited.resource, most) {
            tracing::debug!(%errno, limit = limited.what, "cannot raise a limit");
        }
    }
}

/// Whether a limit is lower than another one; none: there is no limit.
fn is_below(limit: Option<u64>, other: Option<u64>) -> bool {
    limit.is_some_and(|limit| other.is_none_or(|other| limit < other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_above_every_limit() {
        assert!(is_below(Some(1), Some(2)) && is_below(Some(u64::MAX), None));
        assert!(!is_below(Some(2), Some(2)) && !is_below(None, Some(2)) && !is_below(None, None));
    }

    #[test]
    fn the_message_of_a_limit_has_its_value_and_the_remedy() {
        let error = LimitError {
            what: "open files",
            limit: 100,
            needed: Some(256),
            shell: "-n",
            unit: "LimitNOFILE",
        };
        let message = error.to_string();
        assert!(
            message.contains("open files to 100, and a mount needs at least 256;"),
            "{message}"
        );
        assert!(
            message.contains("ulimit -n") && message.contains("LimitNOFILE="),
            "{message}"
        );
    }
}
