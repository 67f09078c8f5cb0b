//! Where the durable content of a device lies.

use std::collections::BTreeMap;
use std::io;

use crate::address::{Lpn, PAGE_BYTES};

/// Durable content at logical addresses: a file, or memory. The device decides when content becomes
/// durable; a medium only keeps it.
pub trait Medium {
    /// Reads one logical page; what was never written is zeros.
    ///
    /// # Errors
    /// What the medium's own storage fails with.
    fn read_page(&mut self, page: Lpn, into: &mut [u8; PAGE_BYTES]) -> io::Result<()>;

    /// Writes part of a logical page: `content` at `offset` bytes, within the page.
    ///
    /// # Errors
    /// What the medium's own storage fails with.
    fn write_page(&mut self, page: Lpn, offset: usize, content: &[u8]) -> io::Result<()>;

    /// Makes `count` pages from `first` on zeros, and gives up their storage if it can.
    ///
    /// # Errors
    /// What the medium's own storage fails with.
    fn zero_pages(&mut self, first: Lpn, count: u32) -> io::Result<()>;
}

/// Durable content in memory; pages of zeros take none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMedium {
    pages: BTreeMap<Lpn, Box<[u8; PAGE_BYTES]>>,
}

impl MemoryMedium {
    /// All zeros.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Medium for MemoryMedium {
    fn read_page(&mut self, page: Lpn, into: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        match self.pages.get(&page) {
            Some(content) => into.copy_from_slice(&content[..]),
            None => into.fill(0),
        }
        Ok(())
    }

    fn write_page(&mut self, page: Lpn, offset: usize, content: &[u8]) -> io::Result<()> {
        let stored = self
            .pages
            .entry(page)
            .or_insert_with(|| Box::new([0; PAGE_BYTES]));
        stored[offset..offset + content.len()].copy_from_slice(content);
        Ok(())
    }

    fn zero_pages(&mut self, first: Lpn, count: u32) -> io::Result<()> {
        let end = Lpn(first.0 + count);
        let zeroed: Vec<Lpn> = self
            .pages
            .range(first..end)
            .map(|(&page, _)| page)
            .collect();
        for page in zeroed {
            self.pages.remove(&page);
        }
        Ok(())
    }
}
