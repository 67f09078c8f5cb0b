//! What all users have adopted, for root: who removes the program has to know.
//!
//! The notes of a user are what the user has written, so they are read with care: they are not waited for, and what
//! cannot be understood keeps nothing from being listed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_daemon::{Code, Failure};
use mobifs_host::printable_path;

use super::note::{Note, Notes, read_of_user};
use crate::commands::tell;

/// Where a user without a setting of another place has them.
const NOTES_IN_HOME: &str = ".config/mobifs/adopted";

/// The notes of root and of all users of the machine's user database, each with the user who has written it.
///
/// # Errors
/// The caller is not root, or root's own notes cannot be read.
pub(super) fn notes(root: &Notes) -> Result<Vec<(Note, u32)>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            Code::Usage,
            "--all-users is for root: the notes of other users lie in their homes",
        ));
    }
    let mut found: Vec<_> = root.all()?.into_iter().map(|note| (note, 0)).collect();
    for home in homes(&passwd()) {
        found.extend(of_home(&home.join(NOTES_IN_HOME)));
    }
    Ok(found)
}

/// All users that the machine knows, as `/etc/passwd` has them.
fn passwd() -> String {
    let asked = Command::new("getent").arg("passwd").output();
    asked
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .or_else(|| fs::read_to_string("/etc/passwd").ok())
        .unwrap_or_default()
}

/// The homes in it, of all users but root.
fn homes(passwd: &str) -> BTreeSet<PathBuf> {
    let home = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_root = fields.get(2) == Some(&"0");
        let home = PathBuf::from(fields.get(5)?);
        (!is_root && home.is_absolute()).then_some(home)
    };
    passwd.lines().filter_map(home).collect()
}

fn of_home(directory: &Path) -> Vec<(Note, u32)> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            let is_absent = matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            );
            if !is_absent {
                let shown = printable_path(directory);
                tell(&format!("warning: cannot list {shown}: {error}"));
            }
            return Vec::new();
        }
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let notes = paths.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    let mut found = Vec::new();
    for path in notes {
        match read_of_user(&path) {
            Ok(note) => found.extend(note),
            Err(failure) => tell(&format!("warning: {}", failure.message)),
        }
    }
    found.sort_by(|(one, _), (other, _)| one.directory().cmp(other.directory()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_those_of_users_and_each_is_looked_at_once() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbin:x:2:2::/bin:/x\nsys:x:3:3::/bin:/x\n\
                      a:x:1000:1000:A,,,:/home/a:/bin/sh\nbroken\nb:x:1001:1001::relative:/bin/sh\n";
        let expected = ["/bin", "/home/a"].map(PathBuf::from);
        assert_eq!(homes(passwd), BTreeSet::from(expected));
    }
}
