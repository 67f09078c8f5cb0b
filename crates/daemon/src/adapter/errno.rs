//! The one place where an engine's error becomes an errno.

use mobifs_volume::FsError;
use rustix::io::Errno;

/// The errno that the kernel hands to the caller for `error`.
pub(crate) const fn errno_of(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::InvalidArgument => Errno::INVAL,
        FsError::NotPermitted => Errno::PERM,
        FsError::AccessDenied => Errno::ACCESS,
        FsError::NoSpace => Errno::NOSPC,
        FsError::FileTooBig => Errno::FBIG,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoXattr => Errno::NODATA,
        FsError::XattrTooBig => Errno::TOOBIG,
        FsError::BufferTooSmall => Errno::RANGE,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Busy => Errno::BUSY,
        FsError::CrossDevice => Errno::XDEV,
        FsError::NoSuchOffset => Errno::NXIO,
        FsError::Stale => Errno::STALE,
        FsError::NotSupported => Errno::OPNOTSUPP,
        FsError::Io => Errno::IO,
        FsError::Interrupted => Errno::INTR,
        FsError::TooManySymlinks => Errno::LOOP,
        FsError::BadDescriptor => Errno::BADF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model is compared with volumes by a table of its own, since it has no kernel above it.
    #[test]
    fn volumes_in_tests_fail_with_what_the_kernel_gets() {
        let all = [
            FsError::NotFound,
            FsError::Exists,
            FsError::NotDirectory,
            FsError::IsDirectory,
            FsError::NotEmpty,
            FsError::NameTooLong,
            FsError::InvalidArgument,
            FsError::NotPermitted,
            FsError::AccessDenied,
            FsError::NoSpace,
            FsError::FileTooBig,
            FsError::TooManyLinks,
            FsError::NoXattr,
            FsError::XattrTooBig,
            FsError::BufferTooSmall,
            FsError::ReadOnly,
            FsError::Busy,
            FsError::CrossDevice,
            FsError::NoSuchOffset,
            FsError::Stale,
            FsError::NotSupported,
            FsError::Io,
            FsError::Interrupted,
            FsError::TooManySymlinks,
            FsError::BadDescriptor,
        ];
        for error in all {
            assert_eq!(
                errno_of(error),
                mobifs_testkit::target::errno(error),
                "{error}"
            );
        }
    }
}
