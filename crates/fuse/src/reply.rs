//! Answers to requests.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::protocol::{
    InvalidateEntry, InvalidateInode, NOTIFY_INVALIDATE_ENTRY, NOTIFY_INVALIDATE_INODE,
    NOTIFY_PRUNE, Prune, ReplyHeader,
};
use crate::transport::Transport;

/// Answers one request. Every request but FORGET is answered exactly once: the
/// methods that send consume the value.
pub(crate) struct Reply<'a> {
    transport: &'a dyn Transport,
    unique: u64,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(transport: &'a dyn Transport, unique: u64) -> Self {
        Self { transport, unique }
    }

    /// Success with a structure.
    pub(crate) fn value<T: IntoBytes + Immutable>(self, value: &T) {
        self.bytes(value.as_bytes());
    }

    /// Success with bytes, which may be none.
    pub(crate) fn bytes(self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Success without content.
    pub(crate) fn done(self) {
        self.send(0, &[]);
    }

    /// Failure.
    pub(crate) fn error(self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    fn send(self, error: i32, payload: &[u8]) {
        let header = header(error, self.unique, payload.len());
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
        let parts = if payload.is_empty() {
            &parts[..1]
        } else {
            &parts[..]
        };
        match self.transport.reply(parts) {
            // Nobody waits any more: the sender was killed, or the mount is gone.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => {}
            Err(errno) => {
                tracing::error!(%errno, unique = self.unique, "the kernel refused a reply");
            }
        }
    }
}

fn header(error: i32, unique: u64, payload_bytes: usize) -> ReplyHeader {
    let bytes = size_of::<ReplyHeader>() + payload_bytes;
    // No payload comes near 4 GiB: the largest is a READ's 1 MiB.
    ReplyHeader {
        len: u32::try_from(bytes).unwrap_or(u32::MAX),
        error,
        unique,
    }
}

/// Makes the kernel ask again for the attributes of `node`; its cached content stays.
pub(crate) fn invalidate_attributes(transport: &dyn Transport, node: u64) {
    let notification = InvalidateInode {
        node,
        offset: -1,
        length: 0,
    };
    notify(
        transport,
        NOTIFY_INVALIDATE_INODE,
        &[notification.as_bytes()],
    );
}

/// Has the kernel forget a name, and what it names if that is not in use.
pub(crate) fn invalidate_entry(transport: &dyn Transport, parent: u64, name: &[u8]) {
    let notification = InvalidateEntry {
        parent,
        // No name is longer than 255 bytes.
        name_bytes: u32::try_from(name.len()).unwrap_or(u32::MAX),
        flags: 0,
    };
    let parts = [notification.as_bytes(), name, &[0]];
    notify(transport, NOTIFY_INVALIDATE_ENTRY, &parts);
}

/// Has the kernel forget those of these objects that no program uses.
pub(crate) fn prune(transport: &dyn Transport, nodes: &[u64]) {
    let notification = Prune {
        count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        ..Prune::default()
    };
    let parts = [notification.as_bytes(), nodes.as_bytes()];
    notify(transport, NOTIFY_PRUNE, &parts);
}

fn notify(transport: &dyn Transport, code: i32, payload: &[&[u8]]) {
    let bytes = payload.iter().map(|part| part.len()).sum();
    let header = header(code, 0, bytes);
    let mut parts = vec![IoSlice::new(header.as_bytes())];
    parts.extend(payload.iter().map(|part| IoSlice::new(part)));
    match transport.notify(&parts) {
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => {}
        Err(errno) => tracing::error!(%errno, code, "the kernel refused a notification"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the replies that it gets.
    #[derive(Default)]
    struct Told(parking_lot::Mutex<Vec<u8>>);

    impl Transport for Told {
        fn try_receive(&self, _: &mut [u8]) -> Result<Option<usize>, Errno> {
            Ok(None)
        }

        fn sleep(&self) -> Result<(), Errno> {
            Ok(())
        }

        fn reply(&self, _: &[IoSlice<'_>]) -> Result<(), Errno> {
            Err(Errno::INVAL)
        }

        fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
            let bytes = parts.iter().flat_map(|part| part.iter().copied());
            self.0.lock().extend(bytes);
            Ok(())
        }
    }

    fn told(tell: impl Fn(&Told)) -> Vec<u8> {
        let told = Told::default();
        tell(&told);
        told.0.into_inner()
    }

    /// As `<linux/fuse.h>` has them: a length that is not right is refused as a whole.
    #[test]
    fn notifications_have_the_kernels_form() {
        let bytes = told(|told| prune(told, &[7, 8]));
        let words: Vec<u32> = bytes
            .chunks(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let [seven, eight] = [7_u64, 8].map(u64::to_ne_bytes);
        assert_eq!(words[..8], [48, 9, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[32..], [seven, eight].concat());

        let bytes = told(|told| invalidate_entry(told, 5, b"name"));
        let length = u32::try_from(bytes.len()).unwrap();
        assert_eq!(
            bytes[..8],
            [length.to_ne_bytes(), 3_u32.to_ne_bytes()].concat()
        );
        assert_eq!(bytes[16..24], 5_u64.to_ne_bytes());
        assert_eq!(bytes[24..28], 4_u32.to_ne_bytes());
        assert_eq!(bytes[32..], *b"name\0");
    }
}
