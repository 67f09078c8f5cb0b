//! File content.

use mobifs_base::{ObjectId, PAGE_BYTES, Page, seek_content};
use mobifs_engine::{
    AllocateMode, Engine, FsError, Moment, ReadSegment, SetIdBits, Stop, Whence, WriteAt,
};
use mobifs_store::Seek;

use super::Volume;
use super::errors::store_failed;

/// Most bytes that one [`Volume::copy_range`] copies; the caller goes on from there.
const COPY_BYTES_MAX: usize = 1 << 20;

impl Volume {
    /// Reads content; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// As [`Engine::read_plan`].
    pub fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        self.read_as(id, offset, out, !self.shared.options.no_access_time)
    }

    /// As [`Volume::read`], without moving the access time (`O_NOATIME`).
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read_unnoticed(
        &self,
        id: ObjectId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, FsError> {
        self.read_as(id, offset, out, false)
    }

    fn read_as(
        &self,
        id: ObjectId,
        offset: u64,
        out: &mut [u8],
        keeps_access_time: bool,
    ) -> Result<usize, FsError> {
        let length = out.len();
        let moment = keeps_access_time.then(|| self.shared.moment());
        let plan = self.shared.read_only_operation(|engine: &mut Engine| {
            let plan = engine.read_plan(id, offset, length)?;
            if let Some(moment) = moment {
                engine.accessed(id, moment);
            }
            Ok(plan)
        })?;
        let mut rest = &mut out[..plan.length];
        for segment in &plan.segments {
            let piece = match segment {
                ReadSegment::Page { length, .. }
                | ReadSegment::Zero { length }
                | ReadSegment::Store { length, .. } => *length,
            };
            let (now, after) = rest.split_at_mut(piece);
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
        Ok(plan.length)
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

    /// As [`Volume::write`], for one of several writes that nothing relies on before
    /// [`Volume::end_batch`] returns: a kill may undo them till then, the last ones first. Any
    /// other change saves them in the arena with it; reading or releasing references does not.
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

    /// From now on a kill undoes nothing that was written by [`Volume::write_batched`].
    pub fn end_batch(&self) {
        drop(self.shared.lock_engine());
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
                .read_only_operation(|engine| engine.search_content(id, offset, whence))
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
