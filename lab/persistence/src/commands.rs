//! The commands by which the commits of several programs can become durable, in the model's own time (S3: direct
//! persistence, packed commands).

use mobifs_base::VirtualNs;
use mobifs_charts::Table;
use mobifs_device_model::{Command, Config, Model, PackedPart, Sector, WriteKind};
use serde::Serialize;

use crate::error::PersistError;
use crate::report::Section;

/// How many programs commit at once.
const PROGRAMS: [u32; 5] = [1, 2, 4, 8, 16];
/// What a commit of one row takes: a block.
const COMMIT_SECTORS: u32 = 8;
/// Groups of each cell; all figures are means over them.
const GROUPS: u32 = 500;
/// The journal, which goes around.
const JOURNAL_SECTORS: u64 = (64 << 20) / 512;
const CAPACITY_BYTES: u64 = 1 << 30;

/// A way to make the commits of a group durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One after the other, each a write and a flush.
    EachFlushed,
    /// One after the other, each a durable write.
    EachDurable,
    /// One write each and one flush for all.
    OneFlush,
    /// One packed command of durable writes.
    Packed,
    /// One transaction for all, as MobiFS's group commit makes it, with a flush.
    JoinedFlushed,
    /// The same as one durable write.
    JoinedDurable,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::EachFlushed,
        Self::EachDurable,
        Self::OneFlush,
        Self::Packed,
        Self::JoinedFlushed,
        Self::JoinedDurable,
    ];

    /// As tables name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EachFlushed => "each: write, flush",
            Self::EachDurable => "each: durable write",
            Self::OneFlush => "a write each, one flush",
            Self::Packed => "packed, durable parts",
            Self::JoinedFlushed => "joined: write, flush",
            Self::JoinedDurable => "joined: durable write",
        }
    }
}

/// What a group of commits costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GroupCost {
    /// How.
    pub way: Way,
    /// How many programs commit at once.
    pub programs: u32,
    /// Until the last one is durable, in ms.
    pub ms: f64,
    /// Bytes programmed.
    pub programmed_bytes: f64,
    /// Energy in mJ, without that of being idle.
    pub energy_mj: f64,
}

/// All ways, for groups of each size.
#[derive(Clone, Debug, Serialize)]
pub struct GroupCosts {
    /// Version of the document's form.
    pub schema: u32,
    /// Which device.
    pub device: String,
    /// The cells.
    pub cells: Vec<GroupCost>,
}

/// Measures in virtual time: the same numbers on every machine.
///
/// # Errors
/// The configuration makes no device.
pub fn group_costs(config: &Config) -> Result<GroupCosts, PersistError> {
    let mut cells = Vec::new();
    for way in Way::ALL {
        for programs in PROGRAMS {
            cells.push(measure(config, way, programs)?);
        }
    }
    Ok(GroupCosts {
        schema: crate::SCHEMA,
        device: config.name.clone(),
        cells,
    })
}

fn measure(config: &Config, way: Way, programs: u32) -> Result<GroupCost, PersistError> {
    let mut run = Run {
        model: Model::new(config, CAPACITY_BYTES, 1)?,
        at: VirtualNs(0),
        next: 0,
    };
    for _ in 0..GROUPS {
        run.group(way, programs)?;
    }
    let stats = run.model.stats();
    let each = |sum: f64| sum / f64::from(GROUPS);
    let slots = stats.flash.total().slots_programmed;
    Ok(GroupCost {
        way,
        programs,
        ms: each(run.at.0 as f64 / 1e6),
        programmed_bytes: each((slots * mobifs_device_model::PAGE_BYTES as u64) as f64),
        energy_mj: each(stats.energy.total_mj() - stats.energy.idle_mj),
    })
}

struct Run {
    model: Model,
    at: VirtualNs,
    /// Where the journal goes on.
    next: u64,
}

impl Run {
    fn place(&mut self, sectors: u32) -> Sector {
        if self.next + u64::from(sectors) > JOURNAL_SECTORS {
            self.next = 0;
        }
        let place = Sector(self.next);
        self.next += u64::from(sectors);
        place
    }

    /// Sends a command when everything before has ended, and waits for it.
    fn wait(&mut self, command: &Command<'_>) -> Result<(), PersistError> {
        let done = self.model.submit(self.at, command);
        let done = done.map_err(|error| PersistError::Unexpected(error.to_string()))?;
        self.at = self.at.max(done.done_at);
        Ok(())
    }

    fn write(&mut self, kind: WriteKind) -> Result<(), PersistError> {
        let (start, sectors) = (self.place(COMMIT_SECTORS), COMMIT_SECTORS);
        self.wait(&Command::Write {
            start,
            sectors,
            kind,
        })
    }

    fn group(&mut self, way: Way, programs: u32) -> Result<(), PersistError> {
        match way {
            Way::EachFlushed => {
                for _ in 0..programs {
                    self.write(WriteKind::Plain)?;
                    self.wait(&Command::Flush)?;
                }
            }
            Way::EachDurable => {
                for _ in 0..programs {
                    self.write(WriteKind::Reliable)?;
                }
            }
            Way::OneFlush => {
                for _ in 0..programs {
                    self.write(WriteKind::Plain)?;
                }
                self.wait(&Command::Flush)?;
            }
            Way::Packed => {
                let parts: Vec<PackedPart> = (0..programs)
                    .map(|_| PackedPart {
                        start: self.place(COMMIT_SECTORS),
                        sectors: COMMIT_SECTORS,
                        kind: WriteKind::Reliable,
                    })
                    .collect();
                self.wait(&Command::PackedWrite(&parts))?;
            }
            // Up to sixteen commits of 250 bytes are one block.
            Way::JoinedFlushed => {
                self.write(WriteKind::Plain)?;
                self.wait(&Command::Flush)?;
            }
            Way::JoinedDurable => self.write(WriteKind::Reliable)?,
        }
        Ok(())
    }
}

impl GroupCosts {
    /// As a section of a page.
    #[must_use]
    pub fn section(&self, about: &str) -> Section {
        Section {
            title: "Commands for the commits of several programs".to_owned(),
            text: vec![about.to_owned()],
            figures: Vec::new(),
            tables: self.tables(),
        }
    }

    /// As tables: ways in rows, sizes of groups in columns.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        type Value = fn(&GroupCost) -> f64;
        let values: [(&str, Value); 3] = [
            ("Until all commits are durable, ms", |cost| cost.ms),
            ("KiB programmed, without padding", |cost| {
                cost.programmed_bytes / 1024.0
            }),
            ("mJ, without idling", |cost| cost.energy_mj),
        ];
        let table = |(caption, value): (&str, fn(&GroupCost) -> f64)| {
            let mut table = Table::new(format!("{caption}: {}", self.device), &["programs"]);
            table
                .head
                .extend(PROGRAMS.map(|programs| programs.to_string()));
            for way in Way::ALL {
                let cells = self.cells.iter().filter(|cell| cell.way == way);
                let mut row = vec![way.name().to_owned()];
                row.extend(cells.map(|cell| format!("{:.2}", value(cell))));
                table.rows.push(row);
            }
            table
        };
        values.into_iter().map(table).collect()
    }
}

#[cfg(test)]
mod tests {
    use mobifs_device_model::Preset;

    use super::*;

    #[test]
    fn fewer_commands_take_less_time_and_a_joined_commit_programs_the_least() {
        let config = Preset::Emmc51.config().unwrap();
        let of = |way, programs| measure(&config, way, programs).unwrap();
        let four = Way::ALL.map(|way| of(way, 4));
        let [each, durable, one_flush, packed, joined, joined_durable] = four;
        assert!(durable.ms < each.ms && packed.ms < durable.ms, "{four:?}");
        assert!(one_flush.ms < each.ms, "{four:?}");
        assert!(joined_durable.ms <= joined.ms, "{four:?}");
        for other in [each, durable, one_flush, packed] {
            assert!(
                joined.programmed_bytes <= other.programmed_bytes,
                "{four:?}"
            );
        }
        let costs = group_costs(&config).unwrap();
        assert_eq!(costs.tables()[0].rows.len(), Way::ALL.len());
    }
}
