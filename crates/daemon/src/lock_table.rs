//! The kernel's table of locks, which names the processes that share a lock: they can write nothing
//! into its file.

use std::io;

/// The processes that hold a lock of flock(2) on the file with this inode number. Of a lock that
/// was handed over, the process that took it, even if it has ended since.
///
/// Files of several filesystems may have the same inode number; the table's device numbers do not
/// tell them apart, because those of btrfs are others than stat(2) shows.
pub(crate) fn holders_of(inode: u64) -> io::Result<Vec<u32>> {
    Ok(parse(&std::fs::read_to_string("/proc/locks")?, inode))
}

fn parse(table: &str, inode: u64) -> Vec<u32> {
    table
        .lines()
        .filter_map(|line| {
            // number: FLOCK ADVISORY READ|WRITE pid major:minor:inode start end; a process
            // that waits for a lock has an arrow after the number.
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else {
                return None;
            };
            let of = file.rsplit(':').next()?.parse::<u64>().ok()?;
            (of == inode).then(|| pid.parse().ok()).flatten()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn only_holders_of_a_flock_lock_on_the_file_are_named() {
        let table = "1: POSIX  ADVISORY  WRITE 11 fe:00:99 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 12 fe:00:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:00:99 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 14 00:1f:99 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 15 fe:00:100 0 EOF\n\
                     rubbish\n";
        assert_eq!(parse(table, 99), [12, 14]);
        assert!(parse("", 99).is_empty());
    }

    #[test]
    fn a_process_that_shares_a_lock_is_named() {
        let file = tempfile::tempfile().unwrap();
        let inode = file.metadata().unwrap().ino();
        let is_named = || holders_of(inode).unwrap().contains(&std::process::id());
        assert!(!is_named());
        flock(&file, FlockOperation::LockShared).unwrap();
        assert!(is_named());
    }
}
