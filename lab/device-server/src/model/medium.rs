//! The image file as the model's durable content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use mobifs_device_model::{Lpn, Medium, PAGE_BYTES};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// An image file.
pub(super) struct ImageMedium(File);

fn offset_of(page: Lpn) -> u64 {
    u64::from(page.0) * PAGE_BYTES as u64
}

impl ImageMedium {
    pub(super) fn new(file: File) -> Self {
        Self(file)
    }

    /// Reads any bytes.
    pub(super) fn peek(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }
}

impl Medium for ImageMedium {
    fn read_page(&mut self, page: Lpn, into: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
        self.0.read_exact_at(into, offset_of(page))
    }

    fn write_page(&mut self, page: Lpn, offset: usize, content: &[u8]) -> io::Result<()> {
        self.0
            .write_all_at(content, offset_of(page) + offset as u64)
    }

    fn zero_pages(&mut self, first: Lpn, count: u32) -> io::Result<()> {
        let length = u64::from(count) * PAGE_BYTES as u64;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.0, punch, offset_of(first), length) {
            // Not every filesystem can.
            Err(Errno::OPNOTSUPP) => (0..count)
                .try_for_each(|number| self.write_page(Lpn(first.0 + number), 0, &[0; PAGE_BYTES])),
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_where_the_image_has_them() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 10).unwrap();
        let mut medium = ImageMedium::new(file);
        medium.write_page(Lpn(2), 512, &[7; 1024]).unwrap();
        let mut page = [1; PAGE_BYTES];
        medium.read_page(Lpn(2), &mut page).unwrap();
        assert_eq!([page[511], page[512], page[1535], page[1536]], [0, 7, 7, 0]);
        let mut byte = [0];
        medium.peek(2 * 4096 + 512, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        medium.zero_pages(Lpn(1), 3).unwrap();
        medium.read_page(Lpn(2), &mut page).unwrap();
        assert_eq!(page, [0; PAGE_BYTES]);
        assert!(medium.read_page(Lpn(4), &mut page).is_err());
    }
}
