//! Counting calls for durability in the output of `strace`.

/// Options of `strace`: follow children, stop at these calls only, no messages about processes.
pub(super) const STRACE: [&str; 5] = [
    "-f",
    "--seccomp-bpf",
    "-qqq",
    "-e",
    "trace=fsync,fdatasync,sync,syncfs,msync,sync_file_range",
];
const CALLS: [&str; 6] = [
    "fsync(",
    "fdatasync(",
    "sync(",
    "syncfs(",
    "msync(",
    "sync_file_range(",
];

/// Calls that succeeded; one that another process interrupted is two lines, of which the second has its result.
/// `msync` counts where it waits, `sync_file_range` where it waits before or after.
pub(super) fn count(text: &str) -> u64 {
    text.lines().filter(|line| is_sync(line)).count() as u64
}

fn is_sync(line: &str) -> bool {
    let call = line
        .trim_start_matches(|letter: char| letter.is_ascii_digit())
        .trim_start();
    let is_waiting = match call {
        _ if call.starts_with("msync(") => call.contains("MS_SYNC"),
        _ if call.starts_with("sync_file_range(") => call.contains("_WAIT_"),
        _ if call.starts_with("<... ") => {
            let call = call.trim_start_matches("<... ");
            return CALLS
                .iter()
                .any(|name| call.starts_with(&name[..name.len() - 1]))
                && line.trim_end().ends_with("= 0");
        }
        _ => CALLS.iter().any(|name| call.starts_with(name)),
    };
    is_waiting && line.trim_end().ends_with("= 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_made_something_durable_are_counted() {
        let text = "12 fsync(3)                           = 0\n\
                    fdatasync(4) = 0\n\
                    12 fsync(9) = -1 EBADF (Bad file descriptor)\n\
                    12 fdatasync(5 <unfinished ...>\n\
                    13 sync()              = 0\n\
                    12 <... fdatasync resumed>)            = 0\n\
                    12 msync(0x7f, 4096, MS_ASYNC) = 0\n\
                    12 msync(0x7f, 4096, MS_SYNC) = 0\n\
                    12 sync_file_range(3, 0, 0, SYNC_FILE_RANGE_WRITE) = 0\n";
        assert_eq!(count(text), 5);
    }
}
