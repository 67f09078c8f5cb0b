//! Transactions of SQLite: what its log and its rollback journal get is for the most part somewhere already.

use std::ops::Range;

use mobifs_base::{FileKind, Name, PAGE_BYTES, PAGE_BYTES_U64};

use super::tree::NodeId;
use super::world::{World, content_of};

/// Pages of a database.
const PAGES: u64 = 6;
/// Frames of a log before it begins anew.
const LOG_FRAMES: u64 = 8;
const HEADER_BYTES: u64 = 32;
const LOG_FRAME_HEADER_BYTES: u64 = 24;
const SALT: Range<usize> = 16..24;
const ROLLBACK_HEADER_BYTES: u64 = 512;
/// Where a database has the size of its pages.
const PAGE_SIZE: Range<usize> = 16..18;
/// Sizes of pages; those of most databases are those of the store.
const PAGE_SIZES: [u16; 6] = [4096, 4096, 4096, 1024, 2048, 8192];

impl World {
    /// Adds a transaction to the log of a database, which is made if there is none.
    pub(super) fn log_pages(&mut self, numbers: [u64; 4]) {
        let Some((database, log)) = self.database_with(numbers[0], b"db-wal") else {
            return;
        };
        let mut frames = self.frames(log);
        if frames.is_none()
            || frames
                .as_ref()
                .is_some_and(|all| all.len() as u64 >= LOG_FRAMES)
        {
            // The size of the log's frames, which is not the database's if that was made anew.
            let in_log = self.log_page_bytes(log);
            for (frame, page) in frames.iter().flatten().enumerate() {
                let at = frame_at(frame as u64, in_log) + LOG_FRAME_HEADER_BYTES;
                let content = self.read(log, at, in_log as usize);
                self.write(database, page * in_log, &content);
            }
            let mut header = vec![0; HEADER_BYTES as usize];
            header[..4].copy_from_slice(&0x377f_0682_u32.to_be_bytes());
            let page_bytes = self.page_bytes(database);
            header[8..12].copy_from_slice(&(page_bytes as u32).to_be_bytes());
            header[SALT].copy_from_slice(&numbers[3].to_be_bytes());
            self.write(log, 0, &header);
            frames = Some(Vec::new());
        }
        let frames = frames.unwrap_or_default();
        let page = numbers[1] % PAGES;
        let page_bytes = self.log_page_bytes(log);
        let mut content = match frames.iter().rposition(|earlier| *earlier == page) {
            Some(earlier) => {
                let at = frame_at(earlier as u64, page_bytes) + LOG_FRAME_HEADER_BYTES;
                self.read(log, at, page_bytes as usize)
            }
            None => self.read(database, page * page_bytes, page_bytes as usize),
        };
        change_row(&mut content, numbers[2]);
        let mut frame = vec![0; LOG_FRAME_HEADER_BYTES as usize];
        frame[..4].copy_from_slice(&(page as u32 + 1).to_be_bytes());
        let salt = self.read(log, SALT.start as u64, SALT.len());
        frame[8..16].copy_from_slice(&salt);
        frame.append(&mut content);
        self.write(log, frame_at(frames.len() as u64, page_bytes), &frame);
    }

    /// Changes pages of a database, after its rollback journal has them as they were; most times in
    /// place of those that it had before.
    pub(super) fn roll_back_pages(&mut self, numbers: [u64; 4]) {
        let Some((database, journal)) = self.database_with(numbers[0], b"db-journal") else {
            return;
        };
        if numbers[3].is_multiple_of(5) {
            self.truncate(journal, 0);
        }
        let mut header = vec![0; HEADER_BYTES as usize];
        header[..8].copy_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
        header[20..24].copy_from_slice(&(ROLLBACK_HEADER_BYTES as u32).to_be_bytes());
        self.write(journal, 0, &header);
        let page_bytes = self.page_bytes(database);
        for number in 0..1 + numbers[3] / 5 % 3 {
            let page = (numbers[1] + number) % PAGES;
            let mut content = self.read(database, page * page_bytes, page_bytes as usize);
            let mut frame = (page as u32 + 1).to_be_bytes().to_vec();
            frame.extend_from_slice(&content);
            frame.extend(content_of(numbers[2], 4));
            self.write(
                journal,
                ROLLBACK_HEADER_BYTES + number * (4 + page_bytes + 4),
                &frame,
            );
            change_row(&mut content, numbers[2].wrapping_add(number));
            self.write(database, page * page_bytes, &content);
        }
    }

    /// A database in some directory, with all its pages, and the file beside it.
    fn database_with(&mut self, number: u64, beside: &[u8]) -> Option<(NodeId, NodeId)> {
        let parent = self.pick_directory(number);
        let database = self.file_in(parent, b"db")?;
        if !self.read(database, 0, 16).starts_with(b"SQLite format 3\0") {
            let mut header = b"SQLite format 3\0".to_vec();
            let page_bytes = PAGE_SIZES[(number / 7 % PAGE_SIZES.len() as u64) as usize];
            header.extend_from_slice(&page_bytes.to_be_bytes());
            self.write(database, 0, &header);
        }
        let size = self.tree.node(database).attributes.size;
        let wanted = PAGES * self.page_bytes(database);
        if size < wanted {
            let missing = wanted - size;
            self.write(database, size, &content_of(number, missing));
        }
        Some((database, self.file_in(parent, beside)?))
    }

    /// The file of this name, which is made if there is none.
    fn file_in(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let found = self.tree.node(parent).entries.get(name).copied();
        match found {
            Some(id) => {
                let is_file = self.tree.node(id).attributes.kind == FileKind::Regular;
                is_file.then_some(id)
            }
            None => {
                let name = Name::new(name).ok()?;
                let node = self.new_node(FileKind::Regular);
                Some(self.insert(node, parent, name))
            }
        }
    }

    /// The pages in the frames of a log that count, first to last; none if it is no log.
    fn frames(&self, log: NodeId) -> Option<Vec<u64>> {
        let header = self.read(log, 0, HEADER_BYTES as usize);
        header
            .starts_with(&0x377f_0682_u32.to_be_bytes())
            .then_some(())?;
        let page_bytes = self.log_page_bytes(log);
        let frames = (0..LOG_FRAMES).map_while(|number| {
            let at = frame_at(number, page_bytes);
            let frame = self.read(log, at, LOG_FRAME_HEADER_BYTES as usize);
            let page = u64::from(frame[3]).checked_sub(1)?;
            (frame[8..16] == header[SALT]).then_some(page % PAGES)
        });
        Some(frames.collect())
    }

    /// The size of a database's pages. What is written over its header may say anything.
    fn page_bytes(&self, database: NodeId) -> u64 {
        let header = self.read(database, PAGE_SIZE.start as u64, PAGE_SIZE.len());
        possible_page_bytes(u64::from(header[0]) << 8 | u64::from(header[1]))
    }

    /// The size of the pages in a log's frames.
    fn log_page_bytes(&self, log: NodeId) -> u64 {
        let header = self.read(log, 10, 2);
        possible_page_bytes(u64::from(header[0]) << 8 | u64::from(header[1]))
    }

    /// Bytes of a file, with zeros after its end.
    fn read(&self, id: NodeId, offset: u64, length: usize) -> Vec<u8> {
        let node = self.tree.node(id);
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES_U64) as usize;
            let count = (PAGE_BYTES - within).min(length - done);
            if let Some(page) = node.pages.get(&(at / PAGE_BYTES_U64)) {
                page.read(within, &mut bytes[done..done + count]);
            }
            done += count;
        }
        bytes
    }
}

fn frame_at(number: u64, page_bytes: u64) -> u64 {
    HEADER_BYTES + number * (LOG_FRAME_HEADER_BYTES + page_bytes)
}

fn possible_page_bytes(in_header: u64) -> u64 {
    let is_possible = PAGE_SIZES.iter().any(|&size| u64::from(size) == in_header);
    if is_possible {
        in_header
    } else {
        PAGE_BYTES_U64
    }
}

fn change_row(page: &mut [u8], number: u64) {
    let places = page.len() - 196;
    let at = 100 + (number % places as u64) as usize;
    let row = content_of(number, 8 + number / 3900 % 60);
    page[at..at + row.len()].copy_from_slice(&row);
}
