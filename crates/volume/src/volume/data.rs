//! File content.

use std::io::IoSlice;

use mobifs_base::{ObjectId, PAGE_BYTES, Page, seek_content};
use mobifs_engine::{
    AllocateMode, Engine, FsError, Moment, ReadPlan, ReadSegment, SetIdBits, Stop, Whence, WriteAt,
};
use mobifs_store::Seek;

use super::{Volume, store_failed};

/// Most bytes that one [`Volume::copy_range`] copies; the caller goes on from there.
const COPY_BYTES_MAX: usize = 1 << 20;
/// Most parts that [`Volume::read_parts`] hands over: with a header in front, what one system call
/// takes (`IOV_MAX`, 1024).
const READ_PARTS_MAX: usize = 1000;
/// Zeros for parts of a read.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

fn add_zeros(parts: &mut Vec<IoSlice<'_>>, length: usize) {
    let mut rest = length;
    while rest > 0 {
        let now = rest.min(ZEROS.len());
        parts.push(IoSlice::new(&ZEROS[..now]));
        rest -= now;
    }
}

impl Volume {
    /// Reads content; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// As [`Engine::read_plan`].
    pub fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        let plan = self.plan_read(id, offset, out.len(), true)?;
        self.fill(id, &plan, &mut out[..plan.length])?;
        Ok(plan.length)
    }

    /// As [`Volume::read`] of `scratch.len()` bytes, for a caller that can use them in parts: pages
    /// in memory are parts as they are, without a copy; only what comes from the store is read
    /// into `scratch`. There are at most 1000. Without `keeps_access_time`
    /// (`O_NOATIME`) the access time stays.
    ///
    /// No lock is held while `send` runs, so it may block.
    ///
    /// # Errors
    /// As [`Volume::read`]; `send` was not called then.
    pub fn read_parts<R>(
        &self,
        id: ObjectId,
        offset: u64,
        scratch: &mut [u8],
        keeps_access_time: bool,
        send: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> Result<R, FsError> {
        let plan = self.plan_read(id, offset, scratch.len(), keeps_access_time)?;
        let out = &mut scratch[..plan.length];
        // A page is a part of its own, and its zeros another one.
        let parts_max = 2 * plan.segments.len() + plan.length / ZEROS.len();
        if parts_max > READ_PARTS_MAX {
            self.fill(id, &plan, out)?;
            return Ok(send(&[IoSlice::new(out)]));
        }
        let mut parts = Vec::with_capacity(parts_max);
        let mut rest = out;
        for segment in &plan.segments {
            match segment {
                ReadSegment::Page {
                    page,
                    offset,
                    length,
                } => {
                    let stored = page.stored().get(*offset..).unwrap_or_default();
                    let stored = &stored[..stored.len().min(*length)];
                    parts.extend((!stored.is_empty()).then(|| IoSlice::new(stored)));
                    add_zeros(&mut parts, length - stored.len());
                }
                ReadSegment::Zero { length } => add_zeros(&mut parts, *length),
                ReadSegment::Store { offset, length } => {
                    let (now, after) = std::mem::take(&mut rest).split_at_mut(*length);
                    let read = self.shared.store.read(id, *offset, now);
                    read.map_err(|error| store_failed(&error))?;
                    parts.push(IoSlice::new(now));
                    rest = after;
                }
            }
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(bytes, plan.length, "the parts of a read do not make it up");
        Ok(send(&parts))
    }

    fn plan_read(
        &self,
        id: ObjectId,
        offset: u64,
        length: usize,
        keeps_access_time: bool,
    ) -> Result<ReadPlan, FsError> {
        let keeps_access_time = keeps_access_time && !self.shared.options.no_access_time;
        let moment = keeps_access_time.then(|| self.shared.moment());
        self.shared.look(|engine: &mut Engine| {
            let plan = engine.read_plan(id, offset, length)?;
            if let Some(moment) = moment {
                engine.accessed(id, moment);
            }
            Ok(plan)
        })
    }

    /// Carries out a plan; `out` is as long as it is.
    fn fill(&self, id: ObjectId, plan: &ReadPlan, out: &mut [u8]) -> Result<(), FsError> {
        let mut rest = out;
        for segment in &plan.segments {
            let length = match segment {
                ReadSegment::Page { length, .. }
                | ReadSegment::Zero { length }
                | ReadSegment::Store { length, .. } => *length,
            };
            let (now, after) = std::mem::take(&mut rest).split_at_mut(length);
            match segment {
                ReadSegment::Page { page, offset, .. } => page.read(*offset, now),
                ReadSegment::Zero { .. } => now.fill(0),
                ReadSegment::Store { offset, .. } => {
                    let read = self.shared.store.read(id, *offset, now);
                    read.map_err(|error| store_failed(&error))?;
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Writes content. With `sync` (a file opened with `O_SYNC` or `O_DSYNC`) it is
    /// followed by what [`Volume::fsync`] does.
    ///
    /// # Errors
    /// As [`Engine::write`] and [`Volume::fsync`].
    pub fn write(
        &self,
        id: ObjectId,
        at: WriteAt,
        data: &[u8],
        set_id: SetIdBits,
        sync: bool,
    ) -> Result<usize, FsError> {
        let moment = self.shared.moment();
        let written = self
            .shared
            .change(|engine| self.write_pages(engine, moment, id, at, data, set_id))?;
        if sync {
            self.fsync(id)?;
        }
        Ok(written)
    }

    /// As [`Volume::write`], for one of several writes that nobody relies on before
    /// [`Volume::end_batch`] returns: a kill may take them back till then, the last ones first.
    /// Whoever changes something else brings them into the arena with it; whoever reads, or
    /// gives references back, does not.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write_batched(&self, id: ObjectId, at: WriteAt, data: &[u8]) -> Result<usize, FsError> {
        let moment = self.shared.moment();
        self.shared.change_batched(data.len(), |engine| {
            self.write_pages(engine, moment, id, at, data, SetIdBits::Stay)
        })
    }

    /// Whole pages go to the arena at once, where they would be copied to otherwise.
    fn write_pages(
        &self,
        engine: &mut Engine,
        moment: Moment,
        id: ObjectId,
        at: WriteAt,
        data: &[u8],
        set_id: SetIdBits,
    ) -> Result<usize, Stop> {
        match &self.shared.options.arena {
            Some(arena) if data.len() >= PAGE_BYTES => {
                let mut replacement = arena.replacement();
                let mut replace = |page: &mut Page, new: &[u8]| replacement.replace(page, new);
                engine.write_pages(moment, id, at, data, set_id, &mut replace)
            }
            _ => engine.write(moment, id, at, data, set_id),
        }
    }

    /// A kill takes back nothing of what was written by [`Volume::write_batched`].
    pub fn end_batch(&self) {
        drop(self.shared.live());
    }

    /// `fallocate`.
    ///
    /// # Errors
    /// As [`Engine::allocate`].
    pub fn allocate(
        &self,
        id: ObjectId,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.allocate(moment, id, mode, offset, length))
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// `NoSuchOffset` if there is no such place, and as [`Engine::search_content`].
    pub fn seek(&self, id: ObjectId, offset: u64, whence: Whence) -> Result<u64, FsError> {
        let what = match whence {
            Whence::Data => Seek::Data,
            Whence::Hole => Seek::Hole,
        };
        let search = |offset| {
            self.shared
                .look(|engine| engine.search_content(id, offset, whence))
        };
        let below = |offset| {
            let found = self.shared.store.seek(id, offset, what);
            found.map_err(|error| store_failed(&error))
        };
        seek_content(offset, whence, search, below)?.ok_or(FsError::NoSuchOffset)
    }

    /// `copy_file_range`: returns how much was copied, which may be less than asked
    /// for; 0 only at the end of `from`. `set_id` concerns `to`, if anything is copied.
    ///
    /// # Errors
    /// `InvalidArgument` for overlapping ranges of one file, and as
    /// [`Volume::read`] and [`Volume::write`].
    pub fn copy_range(
        &self,
        from: ObjectId,
        from_offset: u64,
        to: ObjectId,
        to_offset: u64,
        length: u64,
        set_id: SetIdBits,
    ) -> Result<usize, FsError> {
        if from == to
            && from_offset < to_offset.saturating_add(length)
            && to_offset < from_offset.saturating_add(length)
        {
            return Err(FsError::InvalidArgument);
        }
        let mut buffer = vec![
            0;
            usize::try_from(length)
                .unwrap_or(usize::MAX)
                .min(COPY_BYTES_MAX)
        ];
        let read = self.read(from, from_offset, &mut buffer)?;
        if read == 0 {
            return Ok(0);
        }
        let (at, data) = (WriteAt::Offset(to_offset), &buffer[..read]);
        self.write(to, at, data, set_id, false)
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use std::sync::Arc;

    use mobifs_base::{DeviceNumber, FileKind};
    use mobifs_engine::{Caller, NodeSpec};
    use mobifs_store::MemoryStore;

    use super::*;
    use crate::{Config, VolumeOptions};

    fn volume() -> Arc<Volume> {
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&Config::defaults().unwrap())
        };
        Volume::start(Arc::new(MemoryStore::new()), options).unwrap()
    }

    fn file(volume: &Volume) -> ObjectId {
        let spec = NodeSpec {
            kind: FileKind::Regular,
            mode: 0o644,
            rdev: DeviceNumber(0),
            symlink_target: None,
        };
        let made = volume.create(&Caller::default(), ObjectId::ROOT, b"f", &spec);
        made.unwrap().id
    }

    fn write(volume: &Volume, id: ObjectId, offset: usize, content: &[u8]) {
        let at = WriteAt::Offset(offset as u64);
        let written = volume.write(id, at, content, SetIdBits::Stay, false);
        assert_eq!(written, Ok(content.len()));
    }

    /// What is read in parts, and how many these are.
    fn in_parts(volume: &Volume, id: ObjectId, offset: usize, length: usize) -> (Vec<u8>, usize) {
        let mut scratch = vec![0xee; length];
        let join = |parts: &[IoSlice<'_>]| {
            let bytes = parts.iter().flat_map(|part| part.iter().copied());
            (bytes.collect(), parts.len())
        };
        volume
            .read_parts(id, offset as u64, &mut scratch, true, join)
            .unwrap()
    }

    fn compare(volume: &Volume, id: ObjectId, size: usize) {
        for offset in [
            0,
            1,
            PAGE_BYTES - 1,
            PAGE_BYTES,
            3 * PAGE_BYTES + 7,
            size - 1,
            size,
        ] {
            for length in [0, 1, 100, PAGE_BYTES, 2 * PAGE_BYTES + 5, 2 * size] {
                let mut out = vec![0xdd; length];
                let read = volume.read(id, offset as u64, &mut out).unwrap();
                let (found, _) = in_parts(volume, id, offset, length);
                assert!(found == out[..read], "{length} bytes from {offset} on");
            }
        }
    }

    #[test]
    fn a_read_in_parts_gives_what_a_read_gives() {
        let volume = volume();
        let id = file(&volume);
        // A page that stores less than it has, a hole, a whole page, and a long hole.
        write(&volume, id, 0, b"short");
        write(&volume, id, 2 * PAGE_BYTES, &[7; PAGE_BYTES]);
        write(&volume, id, 9 * PAGE_BYTES, b"end");
        let size = 9 * PAGE_BYTES + 3;
        compare(&volume, id, size);
        volume.sync_app(None, true).unwrap();
        compare(&volume, id, size);
        write(&volume, id, PAGE_BYTES + 100, b"over what is committed");
        compare(&volume, id, size);
    }

    #[test]
    fn a_read_of_very_many_pieces_is_one_part() {
        let volume = volume();
        let id = file(&volume);
        let pages = READ_PARTS_MAX;
        for page in 0..pages {
            write(&volume, id, page * PAGE_BYTES, b"x");
        }
        let (found, parts) = in_parts(&volume, id, 0, pages * PAGE_BYTES);
        assert_eq!(parts, 1);
        let expected = (0..pages * PAGE_BYTES)
            .filter(|at| at % PAGE_BYTES == 0)
            .count();
        assert_eq!(found.iter().filter(|&&byte| byte == b'x').count(), expected);
        let (found, parts) = in_parts(&volume, id, 0, 2 * PAGE_BYTES);
        assert_eq!((found.len(), parts), (2 * PAGE_BYTES, 4));
    }
}
