//! The steps of a salvage. A power cut at any of them leaves a store that a mount refuses, and from
//! which the next salvage goes on; or the salvaged one.

use std::collections::HashSet;

use mobifs_base::{FileKind, Name};

use crate::StoreError;
use crate::apply::reserve::Reserve;
use crate::log::epoch::{BIND_RESERVE_BYTES, Epoch, RenameMark};
use crate::log::outstanding_copies::OutstandingCopies;
use crate::log::record::Record;
use crate::log::superblock::{FORMAT_VERSION, JOURNAL_BYTES_MIN, LOG_START, Superblock};
use crate::log::{DAMAGED_PREFIX, JOURNAL, Log, create, identity, open, overflow};
use crate::lower::directories::Directories;
use crate::lower::{JOURNAL_BLOCK_BYTES, Lower, found};
use crate::options::JournalOptions;
use crate::salvage::plan::{Plan, Rescued, SALVAGED};

/// Its name until it is whole.
const UNFINISHED_SALVAGED: &[u8] = b"journal.salvaging";

/// Journal that is left free for the mount that applies the new journal.
const FREE_BYTES: u64 = 64 << 10;
/// What a transaction takes of a small journal at most: the rest goes to an overflow file.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Does what the plan says; returns the name of the damaged journal.
pub(super) fn carry_out<L: Lower>(
    lower: &L,
    options: &JournalOptions,
    plan: &Plan,
) -> Result<Option<String>, StoreError> {
    let own = Directories::open(lower, false, true)?.ok_or_else(|| {
        StoreError::Unsuitable("the store's own directories cannot be made".to_owned())
    })?;
    let mobifs: &L::Handle = own.mobifs();
    let mut kept = None;
    if !plan.survey.is_finishing {
        let uuid = plan.uuid.unwrap_or(options.uuid_if_new);
        // The damaged journal is there, or there never was one that counts: no mount takes the
        // store for a new one while there is no identity.
        if plan.must_write_identity || plan.uuid.is_none() {
            write_identity(lower, mobifs, uuid)?;
        }
        for file in &plan.rescued {
            rescue(lower, &own, file)?;
        }
        // Also what a process has written that was killed.
        lower
            .sync_all()
            .map_err(StoreError::lower("making durable what is there"))?;
        Reserve::open_with(lower, &own, || build(lower, &own, options, plan, uuid))?;
        kept = set_aside(lower, mobifs)?;
    }
    put_in_place(lower, mobifs)?;
    Ok(kept)
}

fn write_identity<L: Lower>(
    lower: &L,
    mobifs: &L::Handle,
    uuid: [u8; 16],
) -> Result<(), StoreError> {
    create::discard(lower, mobifs, identity::NAME)
        .and_then(|()| identity::write(lower, mobifs, uuid))
        .and_then(|()| lower.sync(mobifs))
        .map_err(StoreError::lower("writing .mobifs/id"))
}

/// Keeps a file in `lost/`.
fn rescue<L: Lower>(
    lower: &L,
    own: &Directories<L::Handle>,
    file: &Rescued,
) -> Result<(), StoreError> {
    let failed = || StoreError::lower("keeping a file in .mobifs/lost");
    let in_tree;
    let (directory, name, origin): (&L::Handle, &[u8], &str) = match file {
        Rescued::InLimbo(name) => (own.limbo(), name, "limbo"),
        Rescued::InStage(name) => (own.stage(), name, "new"),
        Rescued::Directory(name, inode) => {
            let limbo: &L::Handle = own.limbo();
            let wanted = inode.to_string().into_bytes();
            return lower
                .rename(own.stage(), name, limbo, &wanted)
                .map_err(failed());
        }
        Rescued::InTree(path, name) => {
            let mut handle = lower.root().map_err(failed())?;
            for part in path {
                handle = lower.open(&handle, part, true).map_err(failed())?;
            }
            in_tree = handle;
            (&in_tree, name.as_bytes(), "replaced")
        }
    };
    let lost: &L::Handle = own.lost();
    let mut number = 0_u64;
    loop {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        // A name of any length stays one.
        let mut wanted = name.to_vec();
        wanted.truncate(200);
        let mut kept = format!("salvaged-{origin}-").into_bytes();
        kept.extend(wanted);
        kept.extend(suffix.as_bytes());
        if found(lower.stat_at(lost, &kept))
            .map_err(failed())?
            .is_none()
        {
            debug_assert!(Name::new(&kept).is_ok(), "it is a name");
            return lower.rename(directory, name, lost, &kept).map_err(failed());
        }
        number += 1;
    }
}

/// Makes the new journal, whole and durable, beside the damaged one.
fn build<L: Lower>(
    lower: &L,
    own: &Directories<L::Handle>,
    options: &JournalOptions,
    plan: &Plan,
    uuid: [u8; 16],
) -> Result<(), StoreError> {
    let direct_bytes_max = options
        .direct_bytes_max
        .or(Some(plan.direct_bytes_max).filter(|&bytes| bytes > 0));
    let smallest = smallest_bytes(&plan.transactions);
    let wanted = match plan.journal_bytes {
        0 => options.journal_bytes,
        bytes => bytes,
    };
    let wanted = wanted
        .max(smallest)
        .next_multiple_of(JOURNAL_BLOCK_BYTES as u64);
    let superblock = |journal_bytes| {
        Superblock {
            version: FORMAT_VERSION,
            uuid,
            journal_bytes,
            epoch: 1,
            generation: 1,
            direct_bytes_max: direct_bytes_max.unwrap_or(0),
            clean: plan.transactions.is_empty(),
            reach: 0,
            home: None,
            carried: None,
        }
        .for_new_epoch(plan.epoch + 1, None)
    };
    let make = |bytes| {
        let measure = direct_bytes_max.is_none();
        create::unfinished(
            lower,
            own.mobifs(),
            UNFINISHED_SALVAGED,
            superblock(bytes),
            measure,
        )
    };
    let made = match make(wanted) {
        // A smaller one works, and the next mount that closes the store properly makes a large one.
        Err(error) if error.is_full() && smallest < wanted => make(smallest)?,
        made => made?,
    };
    let next_overflow = next_overflow(lower, own.stage())?;
    let log: Log<L::Handle> = open::fresh(made);
    let (recorded, outstanding) = (HashSet::new(), OutstandingCopies::default());
    let mark = RenameMark::NotBegun;
    let mut epoch = Epoch::found(log, recorded, next_overflow, mark, outstanding);
    for records in &plan.transactions {
        epoch.append(lower, own.stage(), records, BIND_RESERVE_BYTES)?;
    }
    let mobifs: &L::Handle = own.mobifs();
    // One that an earlier attempt made, and an unfinished one, beside which a mount would take the
    // store for a new one, are removed durably before there is no journal.
    create::discard(lower, mobifs, SALVAGED)
        .and_then(|()| create::discard(lower, mobifs, create::UNFINISHED))
        .and_then(|()| lower.sync(mobifs))
        .and_then(|()| lower.rename(mobifs, UNFINISHED_SALVAGED, mobifs, SALVAGED))
        .and_then(|()| lower.sync(mobifs))
        .map_err(StoreError::lower("making the new journal durable"))
}

/// The smallest journal in which these transactions have room.
fn smallest_bytes(transactions: &[Vec<Record>]) -> u64 {
    let bytes = transactions.iter().map(|records| {
        let whole = Log::<()>::transaction_bytes(records);
        whole.min(INLINE_BYTES_MAX)
    });
    let bytes: u64 = bytes.sum();
    (LOG_START + bytes + BIND_RESERVE_BYTES + FREE_BYTES).max(JOURNAL_BYTES_MIN)
}

/// A number that no overflow file has.
fn next_overflow<L: Lower>(lower: &L, stage: &L::Handle) -> Result<u64, StoreError> {
    let entries = lower
        .list(stage)
        .map_err(StoreError::lower("listing stage"))?;
    let numbers = entries.iter().filter_map(|entry| {
        let name = std::str::from_utf8(&entry.name).ok()?;
        name.strip_prefix('t')?.parse::<u64>().ok()
    });
    let first_free = numbers.max().map_or(1, |max| max.saturating_add(1));
    debug_assert!(!overflow::file_name(first_free).is_empty(), "it has a name");
    Ok(first_free)
}

/// Moves the damaged journal aside; returns its new name.
fn set_aside<L: Lower>(lower: &L, mobifs: &L::Handle) -> Result<Option<String>, StoreError> {
    let failed = || StoreError::lower("moving the damaged journal aside");
    if found(lower.stat_at(mobifs, JOURNAL))
        .map_err(failed())?
        .is_none()
    {
        return Ok(None);
    }
    let mut number = 1_u64;
    loop {
        let kept = format!("{DAMAGED_PREFIX}{number}");
        if found(lower.stat_at(mobifs, kept.as_bytes()))
            .map_err(failed())?
            .is_none()
        {
            lower
                .rename(mobifs, JOURNAL, mobifs, kept.as_bytes())
                .and_then(|()| lower.sync(mobifs))
                .map_err(failed())?;
            return Ok(Some(kept));
        }
        number += 1;
    }
}

fn put_in_place<L: Lower>(lower: &L, mobifs: &L::Handle) -> Result<(), StoreError> {
    let stat = lower.stat_at(mobifs, SALVAGED);
    let stat = stat.map_err(StoreError::lower("looking for the new journal"))?;
    debug_assert_eq!(stat.kind, FileKind::Regular, "a salvage has made it");
    lower
        .rename(mobifs, SALVAGED, mobifs, JOURNAL)
        .and_then(|()| lower.sync(mobifs))
        .map_err(StoreError::lower("putting the new journal in its place"))
}
