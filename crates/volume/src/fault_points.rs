//! Places at which tests end a process that takes over a mount.
//!
//! Without the feature `fault-points`, which only tests switch on, nothing is here.

/// Where a successor may be made to fail, in the order in which it passes them.
#[cfg(feature = "fault-points")]
pub const FAULT_POINTS: [&str; 9] = [
    "enter", "attach", "store", "engine", "session", "control", "answer", "ready", "commit",
];

/// What a process may be made to do there.
#[cfg(feature = "fault-points")]
pub const FAULTS: [&str; 5] = ["panic", "abort", "overflow", "segv", "hang"];

/// A fault point with this name: where a test asks for it, the process ends here.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub const fn fault_point(_name: &str) {}

/// From now on the process is a successor, in which fault points are active.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub const fn arm_fault_points() {}

/// How long a process may take until its next report; shorter in tests.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub const fn patience(usual: std::time::Duration) -> std::time::Duration {
    usual
}

#[cfg(feature = "fault-points")]
pub use switched_on::{arm_fault_points, fault_point, patience};

#[cfg(feature = "fault-points")]
mod switched_on {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// `POINT=FAULT`: which point, and what happens there.
    const VARIABLE: &str = "MOBIFS_FAULT_POINT";

    const PATIENCE_VARIABLE: &str = "MOBIFS_PATIENCE_MS";

    static IS_ARMED: AtomicBool = AtomicBool::new(false);

    /// From now on the process is a successor, in which fault points are active.
    pub fn arm_fault_points() {
        IS_ARMED.store(true, Ordering::Relaxed);
    }

    /// How long a process may take until its next report; shorter in tests.
    pub fn patience(usual: Duration) -> Duration {
        let wanted = std::env::var(PATIENCE_VARIABLE).ok();
        let wanted = wanted.and_then(|ms| ms.parse().ok());
        wanted.map_or(usual, Duration::from_millis)
    }

    /// A fault point with this name: where a test asks for it, the process ends here.
    pub fn fault_point(name: &str) {
        if !IS_ARMED.load(Ordering::Relaxed) {
            return;
        }
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let Some((_, fault)) = wanted.split_once('=').filter(|(point, _)| *point == name) else {
            return;
        };
        match fault {
            "panic" => panic!("a test wants a panic at {name}"),
            "abort" => std::process::abort(),
            "overflow" => {
                black_box(overflow(0));
            }
            // The first one only removes the handler that detects stack overflows, and one that
            // comes before that was handled counts for nothing.
            "segv" => loop {
                let this = rustix::process::getpid();
                let _sent = rustix::process::kill_process(this, rustix::process::Signal::SEGV);
                std::thread::sleep(Duration::from_millis(5));
            },
            _ => {}
        }
        // Also after a signal that is on its way.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    #[expect(unconditional_recursion, reason = "it is what is wanted")]
    fn overflow(depth: u64) -> u64 {
        let frame = black_box([depth; 128]);
        overflow(depth + 1) + black_box(frame)[0]
    }
}
