//! Operations on the content of regular files.

use rustix::io::Errno;

use super::{Body, Content, InodeNumber, Outcome, State};
use crate::operations::{AllocateMode, Answer};
use crate::tree::Mtime;

impl State {
    /// Content of a file that the caller knows to be regular.
    pub(super) fn content(&self, file: InodeNumber) -> &Content {
        match &self.inode(file).body {
            Body::Regular(content) => content,
            _ => unreachable!("callers checked that it is a regular file"),
        }
    }

    fn change_content(&mut self, file: InodeNumber, mtime: Mtime) -> &mut Content {
        let inode = self.inode_mut(file);
        inode.mtime = mtime;
        match &mut inode.body {
            Body::Regular(content) => content,
            _ => unreachable!("callers checked that it is a regular file"),
        }
    }

    pub(super) fn write(
        &mut self,
        file: InodeNumber,
        offset: u64,
        data: &[u8],
        file_bytes_max: u64,
    ) -> Outcome {
        if data.is_empty() {
            return Ok(Answer::Count(0));
        }
        if offset >= file_bytes_max {
            return Err(Errno::FBIG);
        }
        let count = (data.len() as u64).min(file_bytes_max - offset);
        self.change_content(file, Mtime::Recent)
            .write(offset, &data[..count as usize]);
        Ok(Answer::Count(count))
    }

    pub(super) fn truncate(
        &mut self,
        file: InodeNumber,
        size: u64,
        file_bytes_max: u64,
    ) -> Outcome {
        if size > file_bytes_max {
            return Err(Errno::FBIG);
        }
        // The same size: ftruncate(2) and truncate(2) differ.
        let changes = self.content(file).size() != size;
        let mtime = if changes { Mtime::Recent } else { Mtime::Any };
        self.change_content(file, mtime).truncate(size);
        Ok(Answer::Done)
    }

    pub(super) fn allocate(
        &mut self,
        file: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
        file_bytes_max: u64,
    ) -> Outcome {
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset + length;
        if end > file_bytes_max {
            return Err(Errno::FBIG);
        }
        let (zeroes, grows) = match mode {
            AllocateMode::Allocate { keep_size } => (false, !keep_size),
            AllocateMode::PunchHole => (true, false),
            AllocateMode::ZeroRange { keep_size } => (true, !keep_size),
        };
        let size = self.content(file).size();
        let changes = (zeroes && offset < size) || (grows && end > size);
        let content = self.change_content(file, if changes { Mtime::Recent } else { Mtime::Any });
        if zeroes && offset < size {
            content.zero(offset, end.min(size));
        }
        if grows && end > size {
            content.truncate(end);
        }
        Ok(Answer::Done)
    }

    pub(super) fn copy_range(
        &mut self,
        from: InodeNumber,
        from_offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
    ) -> Outcome {
        let length = length.min(self.content(from).size().saturating_sub(from_offset));
        let overlaps = to_offset + length > from_offset && to_offset < from_offset + length;
        if from == to && overlaps {
            return Err(Errno::INVAL);
        }
        if length > 0 {
            let data = self.content(from).read(from_offset, length as usize);
            self.change_content(to, Mtime::Recent)
                .write(to_offset, &data);
        }
        Ok(Answer::Count(length))
    }
}
