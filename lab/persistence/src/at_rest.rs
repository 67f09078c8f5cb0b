//! Journals as they lie in an image or a file.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use crate::bytes::{ReadAt, open};
use crate::error::PersistError;
use crate::ext4::{Journal, JournalFile, Kinds, Layout};
use crate::figures::{Characterisation, Jbd2Figures, Observed, SCHEMA, Tally, changed_bytes};
use crate::jbd2::{self, Log, Logged, MAGIC, Superblock, Transaction, fast_commits};
use crate::mobifs_log;

/// The journal in the directory of a store.
const STORE_JOURNAL: &str = ".mobifs/journal";

/// Characterises the journal of an image of ext3 or ext4, a journal file of JBD2 (as `debugfs` extracts it) or
/// of MobiFS, or the store of MobiFS in a directory.
///
/// # Errors
/// It is none of these, or damaged.
pub fn characterise(path: &Path) -> Result<Characterisation, PersistError> {
    let is_store = path.is_dir();
    let file = if is_store {
        open_store(path)?
    } else {
        open(path)?
    };
    let mut found = Characterisation {
        schema: SCHEMA,
        source: path.display().to_string(),
        ..Characterisation::default()
    };
    if is_store || mobifs_log::is_journal(&file) {
        found.mobifs = Some(mobifs_log::characterise(&file)?);
    } else {
        found.ext4 = Some(characterise_jbd2(&file)?);
    }
    Ok(found)
}

/// The journal of the store in a directory.
fn open_store(directory: &Path) -> Result<File, PersistError> {
    open(&directory.join(STORE_JOURNAL)).map_err(|error| match error {
        PersistError::Io { error, .. }
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            PersistError::NoStore
        }
        PersistError::NotAFile => {
            PersistError::DamagedStore("its .mobifs/journal is no regular file".to_owned())
        }
        other => other,
    })
}

/// What a journal of JBD2 shows that lies in `image`: an ext3 or ext4, or a journal alone.
///
/// # Errors
/// It is none, or damaged.
pub fn characterise_jbd2(image: &(impl ReadAt + ?Sized)) -> Result<Jbd2Figures, PersistError> {
    Ok(read(image)?.0)
}

/// As [`characterise_jbd2`], with the transactions.
///
/// # Errors
/// As there.
pub fn read(
    image: &(impl ReadAt + ?Sized),
) -> Result<(Jbd2Figures, Vec<Transaction>), PersistError> {
    let mut start = vec![0; 1024];
    let is_journal = image.read_at(&mut start, 0).is_ok() && start[..4] == MAGIC.to_be_bytes();
    if is_journal {
        let superblock = Superblock::parse(&start)?;
        let log = JournalFile {
            image,
            block_bytes: superblock.block_bytes,
        };
        return tally(&superblock, &log, None);
    }
    let layout = Layout::read(image)?;
    let journal = Journal::open(image, &layout)?;
    tally(&journal.superblock, &journal, Some(&layout))
}

fn tally(
    superblock: &Superblock,
    log: &dyn Log,
    layout: Option<&Layout>,
) -> Result<(Jbd2Figures, Vec<Transaction>), PersistError> {
    let ring = superblock.ring(log)?;
    let mut tally = Tally::new(*superblock);
    let kinds = Kinds::default();
    let mut last: HashMap<u64, Logged> = HashMap::new();
    for transaction in &ring.transactions {
        let mut observed = Vec::new();
        for logged in &transaction.logged {
            let content = content(superblock, log, logged)?;
            let before = last.get(&logged.place);
            let before = before
                .map(|before| self::content(superblock, log, before))
                .transpose()?;
            observed.push(Observed {
                kind: kinds.of(layout, logged.place, &content),
                changed_bytes: before.map(|before| changed_bytes(&before, &content)),
                is_escaped: logged.is_escaped,
            });
            last.insert(logged.place, *logged);
        }
        tally.add(transaction, &observed);
    }
    tally.incomplete = ring.incomplete;
    tally.damaged_blocks = ring.damaged_blocks;
    let mut block = vec![0; superblock.block_bytes as usize];
    for number in superblock.end..superblock.blocks {
        log.read(number, &mut block)?;
        tally.fast_commits += fast_commits(&block);
        tally.fast_commit_blocks += u64::from(jbd2::has_fast_commit(&block));
    }
    Ok((tally.finish(), ring.transactions))
}

/// A block as it was in the filesystem.
fn content(
    superblock: &Superblock,
    log: &dyn Log,
    logged: &Logged,
) -> Result<Vec<u8>, PersistError> {
    let mut content = vec![0; superblock.block_bytes as usize];
    log.read(logged.block, &mut content)?;
    if logged.is_escaped {
        content[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    Ok(content)
}
