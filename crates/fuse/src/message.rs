//! What is sent to the kernel: answers, and notifications that answer nothing.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::IntoBytes as _;

use crate::delivery::Delivery;
use crate::protocol::{
    InvalidateEntry, InvalidateInode, NOTIFY_INVALIDATE_ENTRY, NOTIFY_INVALIDATE_INODE,
    NOTIFY_PRUNE, Prune, ReplyHeader,
};
use crate::transport::Transport;

/// Sends a reply; `error` is a negative errno or 0.
pub(crate) fn send(transport: &dyn Transport, unique: u64, error: i32, payload: &[u8]) -> Delivery {
    let header = header(error, unique, payload.len());
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
    let parts = if payload.is_empty() {
        &parts[..1]
    } else {
        &parts[..]
    };
    match transport.reply(parts) {
        Ok(()) => Delivery::Delivered,
        // ENOENT: the kernel has already received a reply to this request. (It waits for a reply to
        // every request that was read, even if the caller was killed.)
        Err(Errno::NOENT) => Delivery::NotAwaited,
        // The mount is gone.
        Err(Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => Delivery::Delivered,
        Err(errno) => {
            tracing::error!(%errno, unique, "the kernel refused a reply");
            // Counted as delivered: there is nothing to send again.
            Delivery::Delivered
        }
    }
}

fn header(error: i32, unique: u64, payload_bytes: usize) -> ReplyHeader {
    let bytes = size_of::<ReplyHeader>() + payload_bytes;
    // The largest payload is a READ's 1 MiB.
    debug_assert!(u32::try_from(bytes).is_ok(), "a reply has less than 4 GiB");
    ReplyHeader {
        len: u32::try_from(bytes).unwrap_or(u32::MAX),
        error,
        unique,
    }
}

/// Has the kernel ask again for the attributes of `node`; its cached content stays.
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
    debug_assert!(name.len() <= 255, "no name is longer than 255 bytes");
    let notification = InvalidateEntry {
        parent,
        name_bytes: u32::try_from(name.len()).unwrap_or(u32::MAX),
        flags: 0,
    };
    let parts = [notification.as_bytes(), name, &[0]];
    notify(transport, NOTIFY_INVALIDATE_ENTRY, &parts);
}

/// Has the kernel forget those of these objects that no program uses.
pub(crate) fn prune(transport: &dyn Transport, nodes: &[u64]) {
    debug_assert!(u32::try_from(nodes.len()).is_ok(), "a prune has few nodes");
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

    /// Keeps the notifications that it gets.
    #[derive(Default)]
    struct Notified(parking_lot::Mutex<Vec<u8>>);

    impl Transport for Notified {
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

    fn notified(notify: impl Fn(&Notified)) -> Vec<u8> {
        let transport = Notified::default();
        notify(&transport);
        transport.0.into_inner()
    }

    /// As `<linux/fuse.h>` has them: a length that is not right is refused as a whole.
    #[test]
    fn notifications_have_the_kernels_form() {
        let bytes = notified(|to| prune(to, &[7, 8]));
        let words: Vec<u32> = bytes
            .chunks(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let [seven, eight] = [7_u64, 8].map(u64::to_ne_bytes);
        assert_eq!(words[..8], [48, 9, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[32..], [seven, eight].concat());

        let bytes = notified(|to| invalidate_entry(to, 5, b"name"));
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
