//! What each version of Linux adds, as the code negotiates and uses it. `docs/KERNELS.md` has the same
//! table, which a test compares.

/// The oldest kernel whose FUSE the mount works with.
pub(super) const MINIMUM: (u32, u32) = (5, 4);

/// A version, and what it adds for MobiFS.
pub(super) struct Step {
    pub(super) version: (u32, u32),
    pub(super) adds: &'static str,
    /// What is so without it.
    pub(super) without: &'static str,
}

/// The later versions that matter, the oldest first.
#[rustfmt::skip]
pub(super) const STEPS: &[Step] = &[
    Step { version: (5, 7), adds: "`mobifs run` marks its control groups", without: "a group of a supervisor that was killed stays until the next start" },
    Step { version: (5, 11), adds: "the kernel leaves the clearing of set-id bits to the daemon (`HANDLE_KILLPRIV_V2`)", without: "the kernel asks for an attribute before a write, which costs a request" },
    Step { version: (5, 13), adds: "ACLs clear the set-group-id bit as on other filesystems (`SETXATTR_EXT`)", without: "the bit stays when an ACL is set by a user outside the group" },
    Step { version: (5, 16), adds: "native mode hears of errors of ext4 when they happen (`FAN_FS_ERROR`)", without: "they are found by a look every second, and every ten seconds at rest; calls for durability return at once until then" },
    Step { version: (5, 17), adds: "more than 32 capabilities of FUSE (`INIT_EXT`)", without: "capabilities of later kernels cannot be used" },
    Step { version: (5, 19), adds: "a program of `mobifs run` is not interrupted in a call that its supervisor decides on", without: "such a call may be made twice after a signal" },
    Step { version: (6, 8), adds: "mounts have numbers that are never used again (`statmount`): native mode recognises a filesystem by them", without: "it is recognised by its device number and identity" },
    Step { version: (6, 9), adds: "NFS clients are told that handles do not last (`NO_EXPORT_SUPPORT`)", without: "do not export a mount over NFS: a handle could name another file later" },
    Step { version: (6, 11), adds: "`mobifs run` looks up one mapping of a program instead of all", without: "calls of programs with many mappings take longer" },
    Step { version: (6, 12), adds: "workers ask for short slices of a processor", without: "an `fsync` beside busy programs waits longer for a processor" },
    Step { version: (6, 18), adds: "`sync(2)` and `syncfs(2)` reach mounts of root; the kernel forgets names that only its caches keep (`NOTIFY_PRUNE`)", without: "use `mobifs sync`: `sync(2)` does not commit a mount; large trees stay in memory for longer" },
];

/// `6.1` of `6.1.0-28-amd64`.
pub(super) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        for (release, version) in [
            ("6.1.0-28-amd64", Some((6, 1))),
            ("5.15.167.4-microsoft-standard-WSL2", Some((5, 15))),
            ("6.18", Some((6, 18))),
            ("6.18-rc3", Some((6, 18))),
            ("unknown", None),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
    }

    #[test]
    fn the_document_has_the_table() {
        let document = include_str!("../../../../../docs/KERNELS.md");
        let (major, minor) = MINIMUM;
        let mut rows = vec![format!("| {major}.{minor} |")];
        let mut last = MINIMUM;
        for step in STEPS {
            assert!(step.version > last, "in order");
            last = step.version;
            let (major, minor) = step.version;
            rows.push(format!(
                "| {major}.{minor} | {} | {} |",
                step.adds, step.without
            ));
        }
        for row in rows {
            assert!(document.contains(&row), "docs/KERNELS.md lacks {row}");
        }
    }
}
