//! Opening a journal, in each of the states that its directory may be in.

use std::io;

use crate::StoreError;
use crate::log::blocks::{cut_short, read_blocks};
use crate::log::create;
use crate::log::create::{Made, UNFINISHED};
use crate::log::identity;
use crate::log::identity::Identity;
use crate::log::read_ahead::with_read_ahead;
use crate::log::scan;
use crate::log::scan::Found;
use crate::log::superblock::{
    FORMAT_VERSION, Home, JOURNAL_BYTES_MIN, LOG_START, SLOTS, Superblock, choose, parse,
};
use crate::log::{Access, JOURNAL, Log, LogOptions, Scanned};
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower, LowerStat};

/// No file is larger.
const JOURNAL_BYTES_MAX: u64 = (1 << 62) - JOURNAL_BLOCK_BYTES as u64;
/// A log of a smaller reach is read without a thread.
const READ_AHEAD_BYTES_MIN: u64 = 2 << 20;
/// Opens the journal in the `.mobifs` directory and reads its transactions. Makes a journal if the
/// directory has none.
///
/// # Errors
/// [`StoreError::Corrupt`] if the journal is damaged, cut short, missing though it was once made,
/// or belongs to another store, and [`StoreError::NewerFormat`]: nothing is changed then.
/// [`StoreError::Unsuitable`] for a size that cannot work, [`StoreError::Lower`].
pub(crate) fn open<L: Lower>(
    lower: &L,
    directory: &L::Handle,
    options: &LogOptions,
) -> Result<(Log<L::Handle>, Scanned), StoreError> {
    let journal_bytes = wanted_bytes(options)?;
    let identity = identity::read(lower, directory)?;
    if exists(lower, directory, JOURNAL)? {
        return existing(lower, directory, options, journal_bytes, identity);
    }
    if identity.is_some() && !exists(lower, directory, UNFINISHED)? {
        return Err(StoreError::Corrupt {
            what: "the store".to_owned(),
            detail: "its journal is missing, and with it what was committed and not yet applied"
                .to_owned(),
        });
    }
    let direct_bytes_max = options.direct_bytes_max.or(options.direct_bytes_max_if_new);
    let superblock = Superblock {
        version: FORMAT_VERSION,
        uuid: options.uuid_if_new,
        journal_bytes,
        epoch: 1,
        generation: 1,
        direct_bytes_max: direct_bytes_max.unwrap_or(0),
        clean: true,
        reach: 0,
        home: None,
        carried: None,
    }
    .for_new_epoch(1, None);
    let log = if options.read_only {
        absent(superblock)
    } else {
        let measure = direct_bytes_max.is_none();
        fresh(create::first(lower, directory, superblock, measure)?)
    };
    let found = nothing(&log);
    Ok((log, found))
}

fn wanted_bytes(options: &LogOptions) -> Result<u64, StoreError> {
    let block = JOURNAL_BLOCK_BYTES as u64;
    let bytes = options.journal_bytes - options.journal_bytes % block;
    if !options.read_only && !(JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX).contains(&bytes) {
        return Err(StoreError::Unsuitable(format!(
            "a journal of {} bytes cannot be used: it takes at least {JOURNAL_BYTES_MIN}, and at \
             most {JOURNAL_BYTES_MAX}",
            options.journal_bytes
        )));
    }
    Ok(bytes)
}

fn existing<L: Lower>(
    lower: &L,
    directory: &L::Handle,
    options: &LogOptions,
    journal_bytes: u64,
    identity: Option<Identity>,
) -> Result<(Log<L::Handle>, Scanned), StoreError> {
    let (journal, direct_io) = lower
        .open_journal(directory, JOURNAL)
        .map_err(StoreError::lower("opening the journal"))?;
    let (superblock, current) = read_superblock(lower, &journal)?;
    check_identity(&superblock, identity)?;
    let stat = lower
        .stat(&journal)
        .map_err(StoreError::lower("looking at the journal"))?;
    check_size(&stat, &superblock)?;
    let home = Home::of(&stat);
    let found = scan_log(lower, &journal, &superblock)?;
    let mut log = Log {
        journal: Some(journal),
        direct_io,
        access: if options.read_only {
            Access::ReadOnly
        } else if found.discarded_tail_bytes > 0 {
            Access::TailUnknown
        } else {
            Access::ReadWrite
        },
        generation: superblock.generation,
        current,
        position: found.end,
        last: found.last,
        sequence: found.next_sequence,
        pristine: superblock.clean && found.end == LOG_START && found.discarded_tail_bytes == 0,
        superblock,
        home,
        measured: None,
        buffer: JournalBuffer::default(),
    };
    let is_copied = superblock
        .home
        .zip(home)
        .is_some_and(|(recorded, found)| recorded.is_not(found));
    let scanned = scanned(&superblock, found, is_copied);
    if !options.read_only {
        log = make_ready(log, lower, directory, options, journal_bytes)?;
    }
    Ok((log, scanned))
}

/// The transactions in the log; a large one is read ahead.
fn scan_log<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    superblock: &Superblock,
) -> Result<Found, StoreError> {
    let mut read =
        |offset: u64, buffer: &mut JournalBuffer| read_blocks(lower, journal, offset, buffer);
    let mut next_data = |offset| next_data(lower, journal, offset);
    if superblock.reach - LOG_START <= READ_AHEAD_BYTES_MIN {
        return scan::scan(superblock, &mut read, &mut next_data);
    }
    with_read_ahead(&read, |blocks| {
        scan::scan(superblock, blocks, &mut next_data)
    })
}

/// The writes of opening, once everything is validated.
fn make_ready<L: Lower>(
    mut log: Log<L::Handle>,
    lower: &L,
    directory: &L::Handle,
    options: &LogOptions,
    journal_bytes: u64,
) -> Result<Log<L::Handle>, StoreError> {
    create::discard(lower, directory, UNFINISHED)
        .map_err(StoreError::lower("removing an unfinished journal"))?;
    let mut wanted = log.superblock;
    wanted.direct_bytes_max = options.direct_bytes_max.unwrap_or(wanted.direct_bytes_max);
    if log.is_empty() && wanted.carried.is_none() {
        wanted.home = wanted.home.and(log.home);
    }
    let has_other_size = log.superblock.journal_bytes != journal_bytes;
    if has_other_size && !options.keeps_size && !log.pristine {
        tracing::warn!(
            journal_bytes = log.superblock.journal_bytes,
            wanted_bytes = journal_bytes,
            "the journal keeps its size, because it is in use: a mount of a store that was \
             properly closed changes it"
        );
    }
    if log.pristine && has_other_size && !options.keeps_size {
        let resized = Superblock {
            journal_bytes,
            ..wanted
        }
        .for_new_epoch(wanted.epoch + 1, log.home);
        match create::unfinished(lower, directory, UNFINISHED, resized, false) {
            Ok(made) => {
                create::replace(lower, directory)?;
                return Ok(fresh(made));
            }
            // The configured size is not required: the old journal works.
            Err(error) => tracing::warn!(%error, journal_bytes, "the journal keeps its size"),
        }
    }
    // Also after a crash or damage that left only one good copy.
    if wanted != log.superblock || log.current != [true; SLOTS] {
        log.write_superblock(lower, wanted)
            .map_err(StoreError::lower("writing the journal's superblock"))?;
    }
    Ok(log)
}

fn read_superblock<L: Lower>(
    lower: &L,
    journal: &L::Handle,
) -> Result<(Superblock, [bool; SLOTS]), StoreError> {
    let mut blocks = JournalBuffer::zeroed(SLOTS * JOURNAL_BLOCK_BYTES);
    read_blocks(lower, journal, 0, &mut blocks)?;
    let (first, second) = blocks.as_bytes().split_at(JOURNAL_BLOCK_BYTES);
    choose([parse(first), parse(second)])
}

fn check_identity(superblock: &Superblock, identity: Option<Identity>) -> Result<(), StoreError> {
    let detail = match identity {
        Some(Identity::Uuid(uuid)) if uuid == superblock.uuid => return Ok(()),
        Some(Identity::Uuid(uuid)) => format!(
            "it belongs to another store: it is of {}, the store is {}",
            identity::text(superblock.uuid).trim_end(),
            identity::text(uuid).trim_end()
        ),
        Some(Identity::Illegible) => "the store's identity, .mobifs/id, is damaged".to_owned(),
        None => "the store's identity, .mobifs/id, is missing".to_owned(),
    };
    Err(StoreError::Corrupt {
        what: "journal".to_owned(),
        detail,
    })
}

fn check_size(journal: &LowerStat, superblock: &Superblock) -> Result<(), StoreError> {
    if journal.size < superblock.journal_bytes {
        return Err(cut_short(journal.size, superblock.journal_bytes));
    }
    Ok(())
}

/// As [`scan::NextData`].
fn next_data<L: Lower>(lower: &L, journal: &L::Handle, offset: u64) -> Result<u64, StoreError> {
    let found = lower
        .seek_data(journal, offset)
        .map_err(StoreError::lower("looking for data in the journal"))?;
    let block = JOURNAL_BLOCK_BYTES as u64;
    Ok(found.map_or(u64::MAX, |found| found - found % block))
}

fn exists<L: Lower>(lower: &L, directory: &L::Handle, name: &[u8]) -> Result<bool, StoreError> {
    match lower.stat_at(directory, name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::lower(format!(
            "looking for .mobifs/{}",
            name.escape_ascii()
        ))(error)),
    }
}

/// The log of a journal that was just made.
pub(crate) fn fresh<H>(made: Made<H>) -> Log<H> {
    Log {
        journal: Some(made.journal),
        direct_io: made.direct_io,
        access: Access::ReadWrite,
        generation: made.superblock.generation,
        superblock: made.superblock,
        home: made.superblock.home,
        current: [true; SLOTS],
        position: LOG_START,
        last: LOG_START,
        sequence: 1,
        pristine: true,
        measured: made.measured,
        buffer: JournalBuffer::default(),
    }
}

/// A read-only store without a journal: empty, without free bytes.
fn absent<H>(superblock: Superblock) -> Log<H> {
    Log {
        journal: None,
        direct_io: false,
        access: Access::ReadOnly,
        generation: superblock.generation,
        superblock: Superblock {
            journal_bytes: LOG_START,
            reach: LOG_START,
            ..superblock
        },
        home: None,
        current: [false; SLOTS],
        position: LOG_START,
        last: LOG_START,
        sequence: 1,
        pristine: true,
        measured: None,
        buffer: JournalBuffer::default(),
    }
}

fn scanned(superblock: &Superblock, mut found: Found, is_copied: bool) -> Scanned {
    // The carried records are not a transaction in the log; they come before the first one.
    if let Some(carried) = superblock.carried {
        found.transactions.insert(0, (0, vec![carried.into()]));
    }
    Scanned {
        is_copied: is_copied && !found.transactions.is_empty(),
        clean: superblock.clean && found.transactions.is_empty() && found.discarded_tail_bytes == 0,
        bytes: found.end - LOG_START,
        transactions: found.transactions,
        discarded_tail_bytes: found.discarded_tail_bytes,
        epoch: superblock.epoch,
        next_sequence: found.next_sequence,
    }
}

fn nothing<H>(log: &Log<H>) -> Scanned {
    let (epoch, next_sequence) = log.next();
    Scanned {
        transactions: Vec::new(),
        bytes: 0,
        discarded_tail_bytes: 0,
        clean: true,
        is_copied: false,
        epoch,
        next_sequence,
    }
}
