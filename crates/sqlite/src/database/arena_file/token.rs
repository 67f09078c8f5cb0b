//! The file beside a journal that leads to the arena of its session: the token, a line, and the directory in which
//! the arena is, which ends with a zero byte. A later session may be told another directory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file's name.
pub(super) const NAME: &str = "arena";
/// A number in the way the kernel writes a UUID.
const TOKEN_BYTES: usize = 36;
/// The kernel takes no longer path.
const PATH_BYTES_MAX: usize = 4096;

/// The token; none if no session has written one.
pub(super) fn token(store: &Path) -> Option<String> {
    let content = content(store)?;
    let (token, rest) = content.split_at_checked(TOKEN_BYTES)?;
    rest.starts_with(b"\n")
        .then(|| String::from_utf8(token.to_vec()).ok())?
}

/// The directory of the arena.
pub(super) fn directory(store: &Path) -> Option<PathBuf> {
    let content = content(store)?;
    let path = content.get(TOKEN_BYTES + 1..)?;
    let end = path.iter().position(|&byte| byte == 0)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.get(..end)?.to_vec()));
    path.is_absolute().then_some(path)
}

fn content(store: &Path) -> Option<Vec<u8>> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(store.join(NAME));
    let mut content = Vec::new();
    let limit = TOKEN_BYTES + 1 + PATH_BYTES_MAX;
    file.ok()?
        .take(limit as u64)
        .read_to_end(&mut content)
        .ok()?;
    Some(content)
}

/// Writes both over what is there, which needs no room; what is longer stays behind the zero byte.
pub(super) fn write(store: &Path, token: &str, directory: &Path) -> io::Result<()> {
    let path = store.join(NAME);
    let open = || {
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
    };
    let mut file = match open() {
        // Root has used the database.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            std::fs::remove_file(&path)?;
            open()?
        }
        opened => opened?,
    };
    let directory = std::path::absolute(directory)?;
    let mut content = format!("{token}\n").into_bytes();
    content.extend_from_slice(directory.as_os_str().as_bytes());
    content.push(0);
    file.write_all(&content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn what_is_written_is_read_also_over_what_was_longer() {
        let store = tempfile::tempdir().unwrap();
        let other = TOKEN.replace('0', "f");
        for (token_written, path) in [
            (TOKEN, "/a/longer/path\nin two lines"),
            (&other, "/x"),
            (TOKEN, "/dev/shm"),
        ] {
            write(store.path(), token_written, Path::new(path)).unwrap();
            assert_eq!(token(store.path()).as_deref(), Some(token_written));
            assert_eq!(directory(store.path()), Some(PathBuf::from(path)));
        }
        write(store.path(), TOKEN, Path::new("relative")).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(directory(store.path()), Some(here.join("relative")));
    }

    #[test]
    fn half_of_a_file_leads_nowhere() {
        let store = tempfile::tempdir().unwrap();
        let file = store.path().join(NAME);
        assert_eq!(token(store.path()), None);
        for (content, has_token) in [
            (TOKEN[1..].to_owned(), false),
            (TOKEN.to_owned(), false),
            (format!("{TOKEN}\n"), true),
            (format!("{TOKEN}\n/dev/shm"), true),
            (format!("{TOKEN}\nshm\0"), true),
        ] {
            std::fs::write(&file, &content).unwrap();
            assert_eq!(token(store.path()).is_some(), has_token, "{content}");
            assert_eq!(directory(store.path()), None, "{content}");
        }
    }
}
