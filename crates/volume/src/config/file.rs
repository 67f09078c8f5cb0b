//! Reading the file of a configuration, without waiting for what may never come.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, makedev, statfs};

/// Larger than any configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The filesystem of pipes without a name, as a shell makes them for `<(COMMAND)`.
const PIPEFS_MAGIC: u64 = 0x5049_5045;
/// Major and minor number of `/dev/null`, which is an empty configuration.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// The text of a file, or of a pipe that a program writes to.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = "it is larger than 1 MiB or has no end, as no configuration is";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    String::from_utf8(bytes).map_err(|_| {
        let message = "it is not UTF-8";
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Opens what has content: a named pipe without a writer and a terminal keep a reader waiting.
fn open(path: &Path) -> io::Result<File> {
    let about = fs::metadata(path)?;
    let is_pipe = about.file_type().is_fifo()
        && statfs(path)
            .is_ok_and(|about| u64::try_from(about.f_type).is_ok_and(|kind| kind == PIPEFS_MAGIC));
    let is_null =
        about.file_type().is_char_device() && about.rdev() == makedev(NULL_DEVICE.0, NULL_DEVICE.1);
    if !(about.is_file() || is_pipe || is_null) {
        let message = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // Something else may have its name by now.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refused(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    /// The command waited for ever for a program that writes to it.
    #[test]
    fn what_has_no_content_of_its_own_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("pipe", &link).unwrap();
        let socket = directory.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [
            &pipe,
            &link,
            &socket,
            directory.path(),
            Path::new("/dev/zero"),
        ] {
            assert_eq!(
                refused(path),
                "it is not a regular file",
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn files_and_pipes_of_shells_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read(&path).unwrap(), "text");
        assert_eq!(read(Path::new("/dev/null")).unwrap(), "");
        fs::write(&path, vec![b'#'; 1 << 21]).unwrap();
        assert!(refused(&path).contains("larger than 1 MiB"));
        let (reader, mut writer) = io::pipe().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(b"piped").unwrap());
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read(Path::new(&path)).unwrap(), "piped");
        writing.join().unwrap();
    }
}
