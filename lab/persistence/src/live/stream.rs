//! Reading journals from the log of a device's commands: every transaction, in order.

use std::collections::{HashMap, HashSet};
use std::fs::File;

use mobifs_base::VirtualNs;
use mobifs_device_model::Config;
use mobifs_device_server::{Command, CommandKind, Journal as CommandLog};

use crate::bytes::ReadAt as _;
use crate::error::PersistError;
use crate::ext4::{Journal, Kinds, Layout};
use crate::figures::{DeviceFigures, Jbd2Figures, MobifsFigures, Observed, Tally, changed_bytes};
use crate::jbd2::{BlockType, Header, Log, MAGIC, Superblock, Transaction, fast_commits};
use crate::live::own_journal::OwnJournal;
use crate::live::times::{Clock, Written};
use crate::live::view::{Source, View};
use crate::model_time::{self, Step};

/// From when to when: by the device's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: VirtualNs,
    pub(crate) end: VirtualNs,
}

impl Window {
    const fn has(&self, at: VirtualNs) -> bool {
        self.begin.0 <= at.0 && at.0 < self.end.0
    }
}

/// What a log shows of a window.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) ext4: Option<Jbd2Figures>,
    pub(crate) mobifs: Option<MobifsFigures>,
    pub(crate) device: DeviceFigures,
    pub(crate) model: Option<ModelTimes>,
}

/// Times of the device for a window's commands by themselves, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelTimes {
    /// As they came.
    pub(crate) plain_ns: u64,
    /// On a device that has durable writes.
    pub(crate) durable_writes_ns: u64,
}

/// The model that is to do the commands once more.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    pub(crate) config: Config,
    pub(crate) capacity_bytes: u64,
}

/// Reads a log. The filesystem was made, or in `base`, before the first window begins; windows follow each
/// other.
pub(crate) fn read(
    log: &CommandLog,
    base: Option<&File>,
    windows: &[Window],
    again: Option<&Again>,
) -> Result<Vec<Found>, PersistError> {
    let mut steps = Vec::new();
    let mut view = View::new(log, base);
    let mut own = OwnJournal::default();
    let mut commands = log.commands().peekable();
    let begin = windows
        .first()
        .map_or(VirtualNs(u64::MAX), |window| window.begin);
    while let Some(command) = commands.next_if(|command| command.at < begin) {
        own.observe(log, &command, false)?;
        view.apply(&command);
        steps.push(Step::new(&command, false, None));
    }
    let mut ext4 = match Layout::read(&view) {
        Ok(layout) => Some(Ext4::new(layout, &view)?),
        Err(PersistError::NoJournal) => None,
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for (number, window) in windows.iter().enumerate() {
        let mut device = DeviceFigures::default();
        while let Some(command) = commands.next_if(|command| command.at < window.end) {
            let counts = window.has(command.at);
            view.apply(&command);
            own.observe(log, &command, counts)?;
            let (to_journal, is_ext4_commit) = match &mut ext4 {
                Some(ext4) => ext4.observe(&view, &command, counts)?,
                None => (0, false),
            };
            if counts {
                count(&mut device, &command, to_journal);
            }
            let is_commit = is_ext4_commit || own.is_committing();
            steps.push(Step::new(&command, is_commit, counts.then_some(number)));
        }
        found.push(Found {
            ext4: ext4.as_mut().map(Ext4::take),
            mobifs: own.take(),
            device,
            model: None,
        });
    }
    if let Some(again) = again {
        let times = |has_durable_writes| {
            let (config, capacity) = (&again.config, again.capacity_bytes);
            model_time::times(config, capacity, &steps, windows.len(), has_durable_writes)
        };
        let (plain, durable) = (times(false)?, times(true)?);
        for (found, (plain_ns, durable_writes_ns)) in
            found.iter_mut().zip(plain.into_iter().zip(durable))
        {
            found.model = Some(ModelTimes {
                plain_ns,
                durable_writes_ns,
            });
        }
    }
    Ok(found)
}

fn count(device: &mut DeviceFigures, command: &Command, to_journal: u64) {
    match command.kind {
        CommandKind::Write | CommandKind::DurableWrite => {
            device.writes += 1;
            device.written_bytes += command.bytes;
            device.journal_written_bytes += to_journal;
        }
        CommandKind::Flush => device.flushes += 1,
        CommandKind::Discard => {}
    }
}

/// Follows the journal of an ext4.
struct Ext4 {
    layout: Layout,
    superblock: Superblock,
    /// The block of the journal at each place of the filesystem that has one.
    journal_blocks: HashMap<u64, u32>,
    /// The last version of each place that was journaled.
    last: HashMap<u64, (Source, bool)>,
    journaled: HashSet<u64>,
    kinds: Kinds,
    tally: Tally,
    clock: Clock,
    /// Commit blocks whose transaction was not whole when they were written: `journal_async_commit`.
    waiting: Vec<(u32, u32)>,
}

impl Ext4 {
    fn new(layout: Layout, view: &View<'_>) -> Result<Self, PersistError> {
        let superblock = Journal::open(view, &layout)?.superblock;
        let mut journal_blocks = HashMap::new();
        for run in layout.journal_runs() {
            for step in 0..run.blocks {
                journal_blocks.insert(run.place + u64::from(step), run.journal_block + step);
            }
        }
        let mut ext4 = Self {
            layout,
            superblock,
            journal_blocks,
            last: HashMap::new(),
            journaled: HashSet::new(),
            kinds: Kinds::default(),
            tally: Tally::new(superblock),
            clock: Clock::default(),
            waiting: Vec::new(),
        };
        // What was journaled before the window: earlier versions of blocks.
        let journal = Journal::open(view, &ext4.layout)?;
        for transaction in superblock.ring(&journal)?.transactions {
            ext4.remember(view, &transaction);
        }
        Ok(ext4)
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.layout.block_bytes())
    }

    /// Follows a command that has taken effect; returns how much of it went to the journal, and whether a commit
    /// ends with it.
    fn observe(
        &mut self,
        view: &View<'_>,
        command: &Command,
        counts: bool,
    ) -> Result<(u64, bool), PersistError> {
        let times = (command.at, command.done_at);
        match command.kind {
            CommandKind::Discard => return Ok((0, false)),
            CommandKind::Flush => {
                self.retry(view, counts)?;
                self.clock.flush(times);
                return Ok((0, false));
            }
            CommandKind::Write | CommandKind::DurableWrite => {}
        }
        let (mut to_journal, mut is_data, mut is_log) = (0, false, false);
        let mut commits = Vec::new();
        let mut is_fast_commit = false;
        let end = command.offset + command.bytes;
        let places = command.offset / self.block_bytes()..end.div_ceil(self.block_bytes());
        for place in places {
            let Some(&block) = self.journal_blocks.get(&place) else {
                // Blocks that were journaled are brought to their places later.
                is_data |= !self.journaled.contains(&place);
                continue;
            };
            to_journal += self.block_bytes();
            is_fast_commit |= block >= self.superblock.end;
            if self.observe_journal(view, block, counts, &mut commits)? {
                is_log = true;
            }
        }
        if is_data {
            self.clock.write(Written::Data, times);
        }
        if is_log {
            self.clock.write(Written::Log, times);
        }
        let is_commit = is_fast_commit || !commits.is_empty();
        for (block, sequence) in commits {
            self.clock.commit(times);
            if !self.committed(view, block, sequence, counts)? {
                self.waiting.push((block, sequence));
            }
        }
        if !counts {
            self.clock.reset();
        }
        Ok((to_journal.min(command.bytes), is_commit))
    }

    /// Follows a block of the journal; whether it belongs to a transaction and is not its commit block.
    fn observe_journal(
        &mut self,
        view: &View<'_>,
        block: u32,
        counts: bool,
        commits: &mut Vec<(u32, u32)>,
    ) -> Result<bool, PersistError> {
        let mut content = vec![0; self.superblock.block_bytes as usize];
        let journal = Journal::open_with(view, &self.layout, self.superblock);
        journal.read(block, &mut content)?;
        if block == 0 {
            // Mounting may change the features.
            if let Ok(superblock) = Superblock::parse(&content) {
                self.superblock = superblock;
                self.tally.update(superblock);
            }
            return Ok(false);
        }
        if block >= self.superblock.end {
            if counts {
                self.tally.fast_commit_blocks += 1;
                self.tally.fast_commits += fast_commits(&content);
            }
            return Ok(false);
        }
        if let Some(header) =
            Header::parse(&content).filter(|header| header.kind == BlockType::Commit)
            && self.superblock.verifies(header.kind, &content)
        {
            commits.push((block, header.sequence));
            return Ok(false);
        }
        Ok(true)
    }

    /// Looks again for the blocks of commits that came before them.
    fn retry(&mut self, view: &View<'_>, counts: bool) -> Result<(), PersistError> {
        for (block, sequence) in std::mem::take(&mut self.waiting) {
            if !self.committed(view, block, sequence, counts)? && counts {
                self.tally.incomplete += 1;
            }
        }
        Ok(())
    }

    /// Counts the transaction that ends with a commit block; false if it is not whole.
    fn committed(
        &mut self,
        view: &View<'_>,
        commit: u32,
        sequence: u32,
        counts: bool,
    ) -> Result<bool, PersistError> {
        let journal = Journal::open_with(view, &self.layout, self.superblock);
        let start = self.superblock.start_of(&journal, commit, sequence)?;
        let transaction = self.superblock.transaction(&journal, start, sequence)?;
        let Some(transaction) = transaction.filter(|found| found.commit == commit) else {
            return Ok(false);
        };
        if counts {
            let observed = self.observe_blocks(view, &transaction)?;
            self.tally.add(&transaction, &observed);
        }
        self.remember(view, &transaction);
        Ok(true)
    }

    /// Compares the blocks of a transaction with their last versions: in the journal, or in the filesystem.
    fn observe_blocks(
        &self,
        view: &View<'_>,
        transaction: &Transaction,
    ) -> Result<Vec<Observed>, PersistError> {
        let journal = Journal::open_with(view, &self.layout, self.superblock);
        let mut observed = Vec::new();
        for logged in &transaction.logged {
            let size = self.superblock.block_bytes as usize;
            let (mut content, mut before) = (vec![0; size], vec![0; size]);
            journal.read(logged.block, &mut content)?;
            let read = match self.last.get(&logged.place) {
                Some((source, _)) => view.read_from(source, &mut before),
                None => view.read_at(&mut before, logged.place.saturating_mul(self.block_bytes())),
            };
            let is_known = read.is_ok();
            if self
                .last
                .get(&logged.place)
                .is_some_and(|(_, is_escaped)| *is_escaped)
            {
                before[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            if logged.is_escaped {
                content[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            observed.push(Observed {
                kind: self.kinds.of(Some(&self.layout), logged.place, &content),
                changed_bytes: is_known.then(|| changed_bytes(&before, &content)),
                is_escaped: logged.is_escaped,
            });
        }
        Ok(observed)
    }

    fn remember(&mut self, view: &View<'_>, transaction: &Transaction) {
        for logged in &transaction.logged {
            self.journaled.insert(logged.place);
            let place = self.layout.place_of(logged.block);
            let source = place.and_then(|place| view.source(place * self.block_bytes()));
            if let Some(source) = source {
                self.last.insert(logged.place, (source, logged.is_escaped));
            }
        }
    }

    /// What was counted since the last call.
    fn take(&mut self) -> Jbd2Figures {
        let mut tally = std::mem::replace(&mut self.tally, Tally::new(self.superblock));
        (tally.commit_time_ratios, tally.times) = std::mem::take(&mut self.clock).finish();
        tally.finish()
    }
}
