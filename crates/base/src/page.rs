//! A page of file content.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// [`PAGE_BYTES`] as an offset.
pub const PAGE_BYTES_U64: u64 = PAGE_BYTES as u64;

/// Storage of a short page grows in steps of this size.
const GROWTH_BYTES: usize = 512;

/// Content that lies somewhere else than on the heap, for example in memory that
/// outlives the process. It never changes as long as it is referenced.
pub trait PageContent: Send + Sync {
    /// The bytes, at most [`PAGE_BYTES`].
    fn bytes(&self) -> &[u8];
    /// Where they lie, in the numbering of their keeper.
    fn place(&self) -> u64;
}

/// Where the bytes of a page are.
#[derive(Clone)]
enum Storage {
    Heap(Arc<[u8]>),
    Kept(Arc<dyn PageContent>),
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Kept(content) => content.bytes(),
        }
    }
}

impl Storage {
    /// The bytes, if they are not shared and may be changed where they are.
    fn get_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Heap(bytes) => Arc::get_mut(bytes),
            Self::Kept(_) => None,
        }
    }

    /// The bytes for changing; copied first if they are shared or kept elsewhere.
    fn make_mut(&mut self) -> &mut [u8] {
        if let Self::Kept(content) = self {
            *self = Self::Heap(content.bytes().into());
        }
        match self {
            Self::Heap(bytes) => Arc::make_mut(bytes),
            // It is on the heap since the line above.
            Self::Kept(_) => &mut [],
        }
    }
}

/// Up to 4096 bytes of content, shared until written to. Bytes that are not stored
/// (after [`Page::stored`]) are zero, so a small file does not occupy 4 KiB.
///
/// Cloning shares the storage; [`Page::write`] copies first if it is shared. This is
/// the copy-on-write of a versioned cache transaction (S0 §4.2): a closed
/// transaction holds a clone, so what it holds never changes.
#[derive(Clone)]
pub struct Page(Storage);

impl Default for Page {
    fn default() -> Self {
        Self(Storage::Heap(Arc::default()))
    }
}

impl Page {
    /// A page whose first bytes are `content` and whose rest is zero.
    ///
    /// # Panics
    /// If `content` is longer than a page.
    pub fn new(content: &[u8]) -> Self {
        assert!(
            content.len() <= PAGE_BYTES,
            "a page holds at most 4096 bytes"
        );
        Self(Storage::Heap(content.into()))
    }

    /// A page whose first bytes `content` keeps, and whose rest is zero.
    ///
    /// # Panics
    /// If the content is longer than a page.
    pub fn kept(content: Arc<dyn PageContent>) -> Self {
        assert!(
            content.bytes().len() <= PAGE_BYTES,
            "a page holds at most 4096 bytes"
        );
        Self(Storage::Kept(content))
    }

    /// The page's content on the heap, for a holder that may outlive what it is kept in.
    #[must_use]
    pub fn on_heap(&self) -> Self {
        match &self.0 {
            Storage::Heap(_) => self.clone(),
            Storage::Kept(content) => Self::new(content.bytes()),
        }
    }

    /// Where the content is kept; none if it is on the heap.
    pub fn place(&self) -> Option<u64> {
        match &self.0 {
            Storage::Heap(_) => None,
            Storage::Kept(content) => Some(content.place()),
        }
    }

    /// A page of zeros; stores nothing.
    pub fn zero() -> Self {
        Self::default()
    }

    /// The stored bytes; all that follow are zero.
    pub fn stored(&self) -> &[u8] {
        &self.0
    }

    /// Bytes of memory that the content takes.
    pub fn stored_bytes(&self) -> usize {
        self.0.len()
    }

    /// Overwrites part of the page.
    ///
    /// # Panics
    /// If `offset + content.len()` is more than a page.
    pub fn write(&mut self, offset: usize, content: &[u8]) {
        let end = offset + content.len();
        assert!(end <= PAGE_BYTES, "a write must stay within its page");
        if offset == 0 && end >= self.0.len() {
            // Everything stored is replaced: nothing to copy.
            if let Some(stored) = self.0.get_mut().filter(|s| s.len() == end) {
                stored.copy_from_slice(content);
            } else {
                self.0 = Storage::Heap(content.into());
            }
            return;
        }
        if end > self.0.len() {
            let grown_bytes = end.next_multiple_of(GROWTH_BYTES).min(PAGE_BYTES);
            let mut grown: Arc<[u8]> = core::iter::repeat_n(0, grown_bytes).collect();
            // Freshly made, hence not shared.
            Arc::make_mut(&mut grown)[..self.0.len()].copy_from_slice(&self.0);
            self.0 = Storage::Heap(grown);
        }
        self.0.make_mut()[offset..end].copy_from_slice(content);
    }

    /// Zeroes everything from `offset` to the end of the page.
    pub fn truncate(&mut self, offset: usize) {
        if offset < self.0.len() {
            self.0 = Storage::Heap(self.0[..offset].into());
        }
    }

    /// Zeroes `start..end`.
    pub fn zero_range(&mut self, start: usize, end: usize) {
        if end >= self.0.len() {
            self.truncate(start);
        } else if start < end {
            self.0.make_mut()[start..end].fill(0);
        }
    }

    /// Copies the bytes from `offset` on into `out`, zeros included.
    ///
    /// # Panics
    /// If `offset + out.len()` is more than a page.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(
            offset + out.len() <= PAGE_BYTES,
            "a read must stay within its page"
        );
        let available = self.0.len().saturating_sub(offset).min(out.len());
        out[..available].copy_from_slice(&self.0[offset.min(self.0.len())..][..available]);
        out[available..].fill(0);
    }

    /// The whole page as an array.
    pub fn to_array(&self) -> [u8; PAGE_BYTES] {
        let mut out = [0; PAGE_BYTES];
        self.read(0, &mut out);
        out
    }
}

impl PartialEq for Page {
    fn eq(&self, other: &Self) -> bool {
        let (short, long) = if self.0.len() <= other.0.len() {
            (self, other)
        } else {
            (other, self)
        };
        let (head, tail) = long.0.split_at(short.0.len());
        *short.0 == *head && tail.iter().all(|&b| b == 0)
    }
}

impl Eq for Page {}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} bytes stored)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_never_changes() {
        let mut page = Page::new(b"before");
        let closed = page.clone();
        page.write(0, b"after!");
        page.write(4000, b"tail");
        assert_eq!(closed, Page::new(b"before"));
        let mut tail = [0; 4];
        page.read(4000, &mut tail);
        assert_eq!(&tail, b"tail");
    }

    /// Content at a place of its own.
    struct Elsewhere([u8; 8]);

    impl PageContent for Elsewhere {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn place(&self) -> u64 {
            77
        }
    }

    #[test]
    fn content_kept_elsewhere_is_copied_before_it_changes() {
        let kept = Page::kept(Arc::new(Elsewhere(*b"elsewher")));
        assert_eq!(kept.place(), Some(77));
        let mut changed = [kept.clone(), kept.clone(), kept.clone(), kept.clone()];
        changed[0].write(2, b"X");
        changed[1].write(100, b"X");
        changed[2].truncate(3);
        changed[3].zero_range(1, 2);
        assert_eq!(kept, Page::new(b"elsewher"));
        assert_eq!(changed[0], Page::new(b"elXewher"));
        assert_eq!(changed[2], Page::new(b"els"));
        assert_eq!(changed[3], Page::new(b"e\0sewher"));
        assert!(changed.iter().all(|page| page.place().is_none()));
    }

    #[test]
    fn short_pages_read_as_zero_after_their_content() {
        let mut page = Page::zero();
        page.write(10, b"x");
        assert!(page.stored_bytes() <= 512);
        page.truncate(5);
        assert_eq!(page, Page::zero());
        page.write(0, &[7; PAGE_BYTES]);
        page.zero_range(100, 200);
        let array = page.to_array();
        assert_eq!(
            (array[99], array[100], array[199], array[200]),
            (7, 0, 0, 7)
        );
    }
}
