//! What a power cut leaves of the content that nothing had made durable.

use std::io;

use mobifs_base::VirtualNs;
use mobifs_numerics::Random;

use super::volatile::Version;
use super::{Device, Medium};
use crate::address::{Lpn, PAGE_BYTES, SECTORS_PER_PAGE, SectorMask};
use crate::model::WriteKind;

/// Which of the unflushed content survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// A subset that the seed decides, by page, sectors of plain writes torn. Barriers
    /// hold: of one stretch between barriers a subset survives, all before it, nothing
    /// after it.
    Random {
        /// Where the subset comes from.
        seed: u64,
    },
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutReport {
    /// When power failed.
    pub at: VirtualNs,
    /// Pages with unflushed content that came through as it was last written.
    pub kept_pages: u32,
    /// Pages with unflushed content of which nothing came through.
    pub lost_pages: u32,
    /// Pages with a mixture, or with an older unflushed version.
    pub torn_pages: u32,
}

/// What survives of one page.
enum Fate {
    Lost,
    Kept,
    Torn,
}

struct Chooser {
    keep: Keep,
    random: Random,
    /// Epochs before this one survive, later ones do not.
    frontier: u64,
    unit_sectors: u32,
}

impl Chooser {
    fn new(keep: Keep, epochs: &[u64], unit_sectors: u32) -> Self {
        let seed = match keep {
            Keep::Random { seed } => seed,
            Keep::None | Keep::All => 0,
        };
        let mut random = Random::new(seed);
        let frontier = match epochs.len() as u64 {
            0 => 0,
            count => epochs[random.below(count) as usize],
        };
        Self {
            keep,
            random,
            frontier,
            unit_sectors,
        }
    }

    /// The sectors of a version that survive.
    fn surviving(&mut self, version: &Version) -> SectorMask {
        match self.keep {
            Keep::None => return 0,
            Keep::All => return version.mask,
            Keep::Random { .. } => {}
        }
        if version.epoch != self.frontier {
            let survives = version.epoch < self.frontier;
            return if survives { version.mask } else { 0 };
        }
        match self.random.below(3) {
            0 => 0,
            1 => version.mask,
            _ => version.mask & self.some_sectors(version.kind),
        }
    }

    fn some_sectors(&mut self, kind: WriteKind) -> SectorMask {
        let unit = match kind {
            WriteKind::Plain => 1,
            WriteKind::Reliable => self.unit_sectors,
        };
        let ones = ((1_u16 << unit) - 1) as SectorMask;
        let units = 0..SECTORS_PER_PAGE / unit;
        units.fold(0, |mask, number| {
            let survives = self.random.below(2) == 1;
            mask | if survives { ones << (number * unit) } else { 0 }
        })
    }
}

impl<M: Medium> Device<M> {
    /// Power fails at `at`. What was durable by then stays; of the rest `keep` decides.
    /// Until [`Device::power_on`] every command is refused.
    ///
    /// Power does not fail before the last command was accepted: a time before that
    /// counts as that time. Commands that have not ended by then are in flight.
    ///
    /// # Errors
    /// What the medium fails with.
    pub fn cut(&mut self, at: VirtualNs, keep: Keep) -> io::Result<CutReport> {
        let at = self.model.earliest_cut(at);
        let mut report = CutReport {
            at,
            kept_pages: 0,
            lost_pages: 0,
            torn_pages: 0,
        };
        if !self.model.is_powered() {
            return Ok(report);
        }
        self.apply_durable(at)?;
        let epochs = self.volatile.epochs();
        let interface = &self.model.config().interface;
        let unit_sectors = interface.reliable_write_unit_sectors.value;
        let mut chooser = Chooser::new(keep, &epochs, unit_sectors);
        let mut survivors = Vec::new();
        for lpn in self.volatile.pages() {
            match self.decide(lpn, &mut chooser)? {
                Fate::Lost => report.lost_pages += 1,
                Fate::Kept => report.kept_pages += 1,
                Fate::Torn => report.torn_pages += 1,
            }
            if self.touched {
                survivors.push(Lpn(lpn));
            }
        }
        self.volatile.clear();
        self.pending.clear();
        self.destaged.clear();
        self.model.power_cut(at, &survivors);
        Ok(report)
    }

    /// Writes what survives of a page to the medium.
    fn decide(&mut self, lpn: u32, chooser: &mut Chooser) -> io::Result<Fate> {
        let versions = self.volatile.versions(lpn);
        let mut page = [0; PAGE_BYTES];
        self.medium.read_page(Lpn(lpn), &mut page)?;
        let durable = page;
        let mut newest = page;
        self.touched = false;
        for version in versions {
            let surviving = chooser.surviving(version);
            version.lay_over(surviving, &mut page);
            version.lay_over(version.mask, &mut newest);
            self.touched |= surviving != 0;
        }
        if self.touched {
            self.medium.write_page(Lpn(lpn), 0, &page)?;
        }
        Ok(if page == newest {
            Fate::Kept
        } else if page == durable {
            Fate::Lost
        } else {
            Fate::Torn
        })
    }

    /// Power is back at `at`. Returns when the device takes commands.
    pub fn power_on(&mut self, at: VirtualNs) -> VirtualNs {
        self.model.power_on(at)
    }
}
