//! What outlives the daemon, and how it reaches the daemon's successor.
//!
//! The supervisor keeps descriptors for the daemon: systemd in its file descriptor store, or
//! `mobifs supervise`, which speaks the same protocol (`sd_notify(3)`, `sd_listen_fds(3)`). The
//! daemon sends them with `FDSTORE=1`, and its successor finds them open from descriptor 3 on, with
//! their names in `LISTEN_FDNAMES`.

mod inherited;
mod notifier;
mod supervisor_link;

pub use inherited::Inherited;
pub(crate) use notifier::Notifier;
pub use supervisor_link::SupervisorLink;

/// Name of the connection with the kernel.
pub(crate) const DEVICE_NAME: &str = "mobifs-device";
/// Name of the arena.
pub(crate) const ARENA_NAME: &str = "mobifs-arena";
/// Name of the store's lock.
pub(crate) const LOCK_NAME: &str = "mobifs-lock";
/// Name of the control socket that listens.
pub(crate) const CONTROL_NAME: &str = "mobifs-control";
/// Name of the text of the configuration in force.
pub(crate) const CONFIG_NAME: &str = "mobifs-config";
/// Name of the store's directory.
pub(crate) const STORE_NAME: &str = "mobifs-store";
/// Every name there is.
pub(crate) const NAMES: [&str; 6] = [
    STORE_NAME,
    LOCK_NAME,
    CONTROL_NAME,
    CONFIG_NAME,
    ARENA_NAME,
    DEVICE_NAME,
];

/// Where to send messages to, as `sd_notify(3)` defines it.
pub(crate) const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";
/// Process for which the descriptors are meant, as `sd_listen_fds(3)` defines it.
pub(crate) const LISTEN_PID_VARIABLE: &str = "LISTEN_PID";
/// How many descriptors there are, as `sd_listen_fds(3)` defines it.
pub(crate) const LISTEN_COUNT_VARIABLE: &str = "LISTEN_FDS";
/// Their names, as `sd_listen_fds_with_names(3)` defines it.
pub(crate) const LISTEN_NAMES_VARIABLE: &str = "LISTEN_FDNAMES";
/// Process id of our own supervisor, which cannot know its child's before it is there.
pub(crate) const SUPERVISOR_VARIABLE: &str = "MOBIFS_SUPERVISOR";

/// Set if the predecessor was killed from outside.
pub(crate) const KILLED_VARIABLE: &str = "MOBIFS_PREDECESSOR_KILLED";

/// Set for the last process, which does not serve the mount, but commits what the arena holds.
pub(crate) const LAST_VARIABLE: &str = "MOBIFS_LAST";
/// How many requests to end came before the last process was started.
pub(crate) const ENDS_VARIABLE: &str = "MOBIFS_ENDS";

/// Whether our supervisor wants this process to commit what the arena holds, and to end.
pub(crate) fn is_last() -> bool {
    supervisor_pid().is_some() && std::env::var_os(LAST_VARIABLE).is_some()
}

/// Whether an end of the mount was requested before this last process was started.
pub(crate) fn is_end_wanted() -> bool {
    let ends = std::env::var(ENDS_VARIABLE).ok();
    let ends = ends.and_then(|ends| ends.parse::<u32>().ok());
    is_last() && ends.is_some_and(|ends| ends > 0)
}

/// Whether our supervisor says that the predecessor was killed from outside.
pub(crate) fn predecessor_was_killed() -> bool {
    supervisor_pid().is_some() && std::env::var_os(KILLED_VARIABLE).is_some()
}

/// The process that watches over this one, if it is `mobifs supervise` and lives.
pub(crate) fn supervisor_pid() -> Option<u32> {
    let named = std::env::var(SUPERVISOR_VARIABLE).ok()?.parse().ok()?;
    let parent = rustix::process::getppid()?;
    (u32::try_from(parent.as_raw_nonzero().get()) == Ok(named)).then_some(named)
}
