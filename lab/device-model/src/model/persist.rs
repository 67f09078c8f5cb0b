//! Power cuts, power-on, and the state as bytes.

use mobifs_base::VirtualNs;
use mobifs_base::codec::{Reader, Writer};
use thiserror::Error;

use super::Model;
use crate::address::Lpn;
use crate::config::{Config, ConfigError};
use crate::ftl::{Cause, LoadError, Stream};

const MAGIC: &[u8; 8] = b"MOBIFLSH";
const VERSION: u32 = 1;

/// Why a device cannot be saved or loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The volatile write cache has pages that no flush followed.
    #[error("the write cache has unflushed pages; flush before saving")]
    NotFlushed,
    /// The saved bytes are refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Model {
    /// The earliest time at which power can still fail: all accepted commands have begun by then.
    pub(crate) fn earliest_cut(&self, at: VirtualNs) -> VirtualNs {
        VirtualNs(at.0.max(self.now).max(self.last_accepted_at))
    }

    /// Power fails at `at`, or at the latest time of any command if that is later.
    /// Programs and erases that have not ended are lost; so is all that RAM held, except
    /// for `survivors`: pages of the write cache whose way into the cells just succeeded.
    /// Returns the time at which it happened.
    pub fn power_cut(&mut self, at: VirtualNs, survivors: &[Lpn]) -> VirtualNs {
        let at = self.earliest_cut(at);
        self.now = at.0;
        self.powered = false;
        self.cache.clear();
        self.shares.clear();
        self.shares_logged_at = 0;
        self.outstanding.clear();
        self.events.clear();
        self.controller_free_at = at.0;
        self.alone_until = at.0;
        self.active_until = self.active_until.min(at.0);
        self.bus.reset(at.0);
        self.ftl.power_cut(at.0);
        if !survivors.is_empty() {
            let counters = self.ftl.counters;
            self.ftl.recover(at.0);
            self.ftl.counters = counters;
            let owners: Vec<u32> = survivors.iter().map(|page| page.0).collect();
            self.ftl.program(&owners, Stream::Host, Cause::Host, at.0);
            self.ftl.forget_completed(u64::MAX);
            self.ftl.power_cut(at.0);
        }
        at
    }

    /// Power is back at `at`: rebuilds the mapping from the cells. Returns when the
    /// device takes commands.
    pub fn power_on(&mut self, at: VirtualNs) -> VirtualNs {
        let at = at.0.max(self.now);
        if self.powered {
            return VirtualNs(at);
        }
        self.now = at;
        self.powered = true;
        self.epoch += 1;
        self.epoch_first_version = self.next_version;
        self.destaging = (self.epoch, at);
        self.destaged_before_at = at;
        self.ftl.resources.power_up(at);
        let ready = self.ftl.recover(at);
        self.alone_until = ready;
        self.controller_free_at = ready;
        self.be_active(at, ready);
        VirtualNs(ready)
    }

    /// The state of the flash as bytes, versioned and with a checksum, as it is when all
    /// operations have ended. Loading it is a power-on: what RAM had, the mapping cache
    /// and the statistics included, starts anew.
    ///
    /// # Errors
    /// The write cache has unflushed pages.
    pub fn save(&self) -> Result<Vec<u8>, SaveError> {
        if self.cache.waiting() > 0 || !self.shares.is_empty() {
            return Err(SaveError::NotFlushed);
        }
        let mut out = Writer::default();
        out.raw(MAGIC);
        out.u32(VERSION);
        out.u32(self.config.digest());
        out.u64(self.capacity_bytes);
        self.ftl.save(&mut out);
        let checksum = crc32c::crc32c(out.as_bytes());
        out.u32(checksum);
        Ok(out.into_bytes())
    }

    /// A device from what [`Model::save`] wrote with the same configuration. Its time
    /// starts at zero; it takes commands when it has recovered.
    ///
    /// # Errors
    /// Damaged bytes, another version, configuration or capacity.
    pub fn load(config: &Config, capacity_bytes: u64, saved: &[u8]) -> Result<Self, SaveError> {
        let mut model = Self::new(config, capacity_bytes, 0)?;
        let damaged = |why| SaveError::Load(LoadError::Damaged(why));
        let (body, checksum) = saved
            .split_last_chunk::<4>()
            .ok_or_else(|| damaged("it is too short"))?;
        let mut reader = Reader::new(body);
        if reader.raw(MAGIC.len()).map_err(LoadError::from)? != MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        let found = reader.u32().map_err(LoadError::from)?;
        if found != VERSION {
            let expected = VERSION;
            return Err(LoadError::Version { found, expected }.into());
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(damaged("its checksum is wrong"));
        }
        if reader.u32().map_err(LoadError::from)? != config.digest() {
            return Err(LoadError::OtherConfig.into());
        }
        let found = reader.u64().map_err(LoadError::from)?;
        if found != capacity_bytes {
            let expected = capacity_bytes;
            return Err(LoadError::OtherCapacity { found, expected }.into());
        }
        let ready = model.ftl.load(&mut reader, 0)?;
        model.alone_until = ready;
        model.controller_free_at = ready;
        model.reset_stats();
        model
            .check()
            .map_err(|_| damaged("its mapping contradicts itself"))?;
        Ok(model)
    }
}
