//! Processes that were killed and have not ended yet: the last of their threads waits in the kernel.

/// SIGKILL among pending signals (`/proc/PID/status`).
const KILL: u64 = 1 << 8;

/// Whether a process was killed and has not ended.
#[must_use]
pub fn is_being_killed(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    is_being_killed_by(&status)
}

fn is_being_killed_by(status: &str) -> bool {
    let value = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let is_pending = |name| {
        let signals = value(name).and_then(|text| u64::from_str_radix(text, 16).ok());
        signals.is_some_and(|signals| signals & KILL != 0)
    };
    value("State").is_some_and(|state| state.starts_with(['Z', 'X']))
        || is_pending("SigPnd")
        || is_pending("ShdPnd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_is_told_from_one_that_waits() {
        let status = |state: &str, own: &str, shared: &str| {
            format!(
                "Name:\tx\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n"
            )
        };
        let none = "0000000000000000";
        for (state, own, shared, expected) in [
            ("S (sleeping)", none, none, false),
            ("D (disk sleep)", none, none, false),
            ("D (disk sleep)", "0000000000004002", none, false),
            ("D (disk sleep)", "0000000000000100", none, true),
            ("D (disk sleep)", none, "0000000000000100", true),
            ("Z (zombie)", none, none, true),
        ] {
            let found = is_being_killed_by(&status(state, own, shared));
            assert_eq!(found, expected, "{state} {own} {shared}");
        }
        assert!(!is_being_killed_by(""));
        assert!(!is_being_killed(std::process::id()));
    }
}
