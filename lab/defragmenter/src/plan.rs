//! Which parts of files move where: pure, without a filesystem.
//!
//! A group is a row of small pieces of one file without a hole between them. It moves as one into a
//! free run that takes all of it. If there is none, what lies between free extents moves away, so
//! that one appears; if that cannot be, the group moves in several parts, of two pieces or more.
//! Every move leaves its file with fewer pieces, or, where it only makes room, with as many.
//!
//! What a move leaves is not used again before the next [`Step::MakeDurable`]: until then a power cut may
//! bring back the time when it was still the file's.

use std::collections::{BTreeMap, VecDeque};

use crate::space::Space;

/// Pieces from here on stay where they are: joining them gains nothing.
const LARGE_BYTES: u64 = 16 << 20;
/// A move is no longer than this, unless one piece is.
const MOVE_BYTES_MAX: u64 = 128 << 20;
/// Places for a new run that are tried before a group is given up.
const WINDOWS_TRIED: usize = 128;
/// What has moved makes room for what had none: how often all groups are gone through.
const PASSES_MAX: u32 = 6;

/// A part of a file that is contiguous in the file and on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the file, in bytes.
    pub logical: u64,
    /// Where it begins on the disk.
    pub physical: u64,
    /// How long it is.
    pub length: u64,
}

impl Piece {
    const fn logical_end(&self) -> u64 {
        self.logical + self.length
    }
}

/// A file as the planner knows it.
#[derive(Clone, Debug, Default)]
pub struct FileLayout {
    /// In the order of the file; what is contiguous is one.
    pub pieces: Vec<Piece>,
    /// Its pieces may move to make room.
    pub may_move: bool,
    /// The file is to be defragmented.
    pub is_wanted: bool,
    /// Only what lies in these ranges of it (start, end), in order; none: everything.
    pub hot: Option<Vec<(u64, u64)>>,
}

/// Why something moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its file gets fewer pieces.
    Join,
    /// Something else needs the place.
    MakeRoom,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part of a file goes to one free run.
    Move(Move),
    /// Everything before becomes durable.
    MakeDurable,
}

/// A part of a file goes to one free run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The index of the file.
    pub file: usize,
    /// Its parts, without a hole between them.
    pub pieces: Vec<Piece>,
    /// Where they go on the disk.
    pub to: u64,
    /// Why.
    pub reason: Reason,
}

impl Move {
    /// Where it begins in the file.
    #[must_use]
    pub fn logical(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.logical)
    }

    /// How much moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }
}

/// How far the planner goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Larger pieces are not joined.
    pub piece_bytes_max: u64,
    /// To make room for a group, this many times as much may move.
    pub room_factor: u64,
}

/// Plans, step by step; each step counts as done when it is asked for the next.
#[derive(Clone, Debug)]
pub struct Planner {
    files: Vec<FileLayout>,
    free: Space,
    /// Free after the next [`Step::MakeDurable`].
    resting: Space,
    /// Pieces that may move, by their place: file and length.
    movable: BTreeMap<u64, (usize, u64)>,
    limits: Limits,
    /// Groups that are left: file and first byte, the last first.
    groups: Vec<(usize, u64)>,
    /// Whether this pass has joined anything, and how many are left.
    has_joined: bool,
    passes_left: u32,
    queue: VecDeque<Queued>,
    /// The file of the step that was asked for last, and its pieces before.
    under_way: Option<(usize, Vec<Piece>)>,
    /// The length of a free run that is asked for besides, and where it will be: nothing moves there.
    run_wanted: Option<u64>,
    run_at: Option<u64>,
}

/// A step that was not asked for yet.
#[derive(Clone, Debug)]
struct Queued {
    step: Step,
    /// The file that moves, and its pieces before.
    before: Option<(usize, Vec<Piece>)>,
}

impl Planner {
    /// For these files and this free room. Lengths and places are whole blocks.
    #[must_use]
    pub fn new(files: Vec<FileLayout>, free: Space, limits: Limits) -> Self {
        let mut planner = Self {
            files,
            free,
            resting: Space::default(),
            movable: BTreeMap::new(),
            limits,
            groups: Vec::new(),
            has_joined: false,
            passes_left: PASSES_MAX - 1,
            queue: VecDeque::new(),
            under_way: None,
            run_wanted: None,
            run_at: None,
        };
        planner.index_all();
        planner.find_groups();
        planner
    }

    /// The files as they are after the steps so far.
    #[must_use]
    pub fn files(&self) -> &[FileLayout] {
        &self.files
    }

    /// Free room, without what rests.
    #[must_use]
    pub fn free(&self) -> &Space {
        &self.free
    }

    /// A file is not what was known of it, and stays as it is; its room and that of what was to
    /// follow are not known any more either: `free` is what there is.
    pub fn give_up(&mut self, file: usize, free: Space) {
        self.forget(free);
        if let Some(layout) = self.files.get_mut(file) {
            *layout = FileLayout::default();
        }
        self.groups.retain(|&(of, _)| of != file);
        self.index_all();
        self.place_run();
    }

    /// The step that was asked for last, `step`, has moved only its first `done` bytes, and what was to follow does not
    /// happen: `free` is what there is. All groups are gone through again.
    pub fn cut_short(&mut self, step: &Move, done: u64, free: Space) {
        self.forget(free);
        let start = step.logical();
        let (pieces, _) = clipped(&step.pieces, start, start + done);
        let happened = Move {
            pieces,
            ..step.clone()
        };
        if let Some(layout) = self.files.get_mut(step.file).filter(|_| done > 0) {
            moved(&mut layout.pieces, &happened);
        }
        self.index_all();
        self.place_run();
        self.find_groups();
    }

    fn forget(&mut self, free: Space) {
        let queued = self.queue.drain(..).rev();
        let queued = queued.filter_map(|queued| queued.before);
        for (of, pieces) in queued.chain(self.under_way.take()) {
            if let Some(layout) = self.files.get_mut(of) {
                layout.pieces = pieces;
            }
        }
        self.resting = Space::default();
        self.free = free;
        self.run_at = None;
    }

    fn index_all(&mut self) {
        self.movable.clear();
        for file in 0..self.files.len() {
            self.index(file);
        }
    }

    /// Asks for a free run of this length, besides all else; where there is one, nothing moves into it.
    pub fn make_run(&mut self, length: u64) {
        self.run_wanted = Some(length);
        self.place_run();
    }

    fn place_run(&mut self) {
        let Some(length) = self.run_wanted else {
            return;
        };
        let most = length.saturating_mul(self.limits.room_factor);
        let at = self.free.best_fit(length);
        self.run_at = at.or_else(|| self.make_room(length, most));
        if let Some(at) = self.run_at {
            self.free.take(at, length);
        }
    }

    /// What is free once everything so far is durable.
    #[must_use]
    pub fn free_at_the_end(&self) -> Space {
        let mut free = self.free.clone();
        let kept = self.run_at.zip(self.run_wanted);
        let kept = kept.map(|(at, length)| (at, at + length));
        for (start, end) in self.resting.iter().chain(kept) {
            free.add(start, end - start);
        }
        free
    }

    fn index(&mut self, file: usize) {
        let layout = &self.files[file];
        if layout.may_move {
            let places = layout.pieces.iter();
            let places = places.map(|piece| (piece.physical, (file, piece.length)));
            self.movable.extend(places);
        }
    }

    /// All groups, those that gain most for a byte last.
    fn find_groups(&mut self) {
        let mut groups = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            if !(file.is_wanted && file.may_move) {
                continue;
            }
            let mut first = 0;
            while first < file.pieces.len() {
                let count = self.group_at(file, first);
                if count >= 2 {
                    let pieces = &file.pieces[first..first + count];
                    let bytes: u64 = pieces.iter().map(|piece| piece.length).sum();
                    let gain = (count - 1) as f64 / bytes as f64;
                    groups.push((gain, number, pieces[0].logical));
                }
                first += count.max(1);
            }
        }
        groups.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
        self.groups = groups.into_iter().map(|(_, file, at)| (file, at)).collect();
    }

    /// The groups that are left, by file: first byte, bytes, pieces. Those of more than so many bytes come in parts,
    /// each of two pieces at least.
    #[must_use]
    pub fn groups(&self, most: u64) -> BTreeMap<usize, Vec<(u64, u64, usize)>> {
        let mut groups: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for &(number, logical) in self.groups.iter().rev() {
            let Some(file) = self.files.get(number) else {
                continue;
            };
            let first = file
                .pieces
                .iter()
                .position(|piece| piece.logical == logical);
            let Some(first) = first else {
                continue;
            };
            let count = self.group_at(file, first);
            let pieces = file.pieces.get(first..first + count).unwrap_or_default();
            groups
                .entry(number)
                .or_default()
                .extend(parts(pieces, most));
        }
        groups
    }

    /// What all groups that are left have.
    #[must_use]
    pub fn bytes_of_groups(&self) -> u64 {
        let groups = self.groups(u64::MAX);
        groups.values().flatten().map(|&(_, bytes, _)| bytes).sum()
    }

    /// How many pieces from this one on belong together.
    fn group_at(&self, file: &FileLayout, first: usize) -> usize {
        let most = self.limits.piece_bytes_max.min(LARGE_BYTES);
        let belongs = |piece: &Piece| piece.length <= most && is_hot(file, piece);
        let mut count = 0;
        let mut bytes = 0;
        let mut end = None;
        for piece in file.pieces.iter().skip(first) {
            let follows = end.is_none_or(|end| end == piece.logical);
            bytes += piece.length;
            if !belongs(piece) || !follows || (count > 0 && bytes > MOVE_BYTES_MAX) {
                break;
            }
            count += 1;
            end = Some(piece.logical_end());
        }
        count
    }

    /// The next step; none when there is nothing left to do.
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            if let Some(Queued { step, before }) = self.queue.pop_front() {
                self.under_way = before;
                return Some(step);
            }
            if self.groups.is_empty()
                && self.passes_left > 0
                && std::mem::take(&mut self.has_joined)
            {
                self.passes_left -= 1;
                self.find_groups();
            }
            let (file, logical) = self.groups.pop()?;
            let layout = self.files.get(file)?;
            let first = layout
                .pieces
                .iter()
                .position(|piece| piece.logical == logical);
            // It may have moved together with others meanwhile.
            let Some(first) = first else {
                continue;
            };
            let count = self.group_at(layout, first);
            if count >= 2 {
                self.place(file, first, count);
            }
        }
    }

    /// Plans the moves of a group.
    fn place(&mut self, file: usize, first: usize, count: usize) {
        let pieces = self.files[file].pieces[first..first + count].to_vec();
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        if let Some(to) = self.place_for(file, first, bytes) {
            self.do_move(file, pieces, to, Reason::Join);
            return;
        }
        self.make_durable();
        if let Some(to) = self.place_for(file, first, bytes) {
            self.do_move(file, pieces, to, Reason::Join);
            return;
        }
        let most = bytes.saturating_mul(self.limits.room_factor);
        if let Some(to) = self.make_room(bytes, most) {
            // Parts of the group may have moved, and joined what is not in it.
            let logical = pieces[0].logical;
            let (within, cut) = clipped(&self.files[file].pieces, logical, logical + bytes);
            if 1 + cut < within.len() {
                self.do_move(file, within, to, Reason::Join);
            }
            return;
        }
        // What was tried may have moved parts of the group.
        let layout = &self.files[file];
        let at = |piece: &Piece| piece.logical == pieces[0].logical;
        if let Some(first) = layout.pieces.iter().position(at) {
            let count = self.group_at(layout, first);
            let pieces = layout.pieces[first..first + count].to_vec();
            self.place_in_parts(file, &pieces);
        }
    }

    /// A run for a group: right after what precedes it, or the smallest.
    fn place_for(&self, file: usize, first: usize, bytes: u64) -> Option<u64> {
        let pieces = &self.files[file].pieces;
        let before = first.checked_sub(1).and_then(|index| pieces.get(index));
        let adjoining = before
            .filter(|before| before.logical_end() == pieces[first].logical)
            .map(|before| before.physical + before.length)
            .filter(|&at| self.free.has(at, bytes));
        adjoining.or_else(|| self.free.best_fit(bytes))
    }

    /// As few parts as there is room for, each of two pieces at least.
    fn place_in_parts(&mut self, file: usize, pieces: &[Piece]) {
        let mut rest = pieces;
        while rest.len() >= 2 {
            let largest = self.free.largest();
            let mut bytes = 0;
            let fits = rest.iter().take_while(|piece| {
                bytes += piece.length;
                bytes <= largest
            });
            let count = fits.count();
            let (part, others) = rest.split_at(count.max(1));
            if count >= 2 {
                let bytes = part.iter().map(|piece| piece.length).sum::<u64>();
                let Some(to) = self.free.best_fit(bytes) else {
                    return;
                };
                // The part before may have come to lie right before this one.
                let start = part[0].logical;
                let (within, cut) = clipped(&self.files[file].pieces, start, start + bytes);
                if 1 + cut < within.len() {
                    self.do_move(file, within, to, Reason::Join);
                }
            }
            rest = others;
        }
    }

    fn make_durable(&mut self) {
        if self.resting.is_empty() {
            return;
        }
        let resting = std::mem::take(&mut self.resting);
        for (start, end) in resting.iter() {
            self.free.add(start, end - start);
        }
        self.queue.push_back(Queued {
            step: Step::MakeDurable,
            before: None,
        });
    }

    fn do_move(&mut self, file: usize, pieces: Vec<Piece>, to: u64, reason: Reason) {
        let step = Move {
            file,
            pieces,
            to,
            reason,
        };
        let bytes = step.bytes();
        self.has_joined |= reason == Reason::Join;
        self.free.take(to, bytes);
        for piece in &step.pieces {
            self.resting.add(piece.physical, piece.length);
        }
        for piece in &self.files[file].pieces {
            self.movable.remove(&piece.physical);
        }
        let before = self.files[file].pieces.clone();
        moved(&mut self.files[file].pieces, &step);
        self.index(file);
        self.queue.push_back(Queued {
            step: Step::Move(step),
            before: Some((file, before)),
        });
    }

    /// Moves what lies between free extents away, so that a run of this length appears; says where.
    /// Where that is too much at once a shorter run comes first, into which larger pieces can move.
    fn make_room(&mut self, bytes: u64, most: u64) -> Option<u64> {
        self.make_durable();
        let mut left = most;
        loop {
            if let Some((start, _)) = self.clear_window(bytes, left) {
                return Some(start);
            }
            let largest = self.free.largest();
            let next = largest + (largest / 4).max(1);
            if next >= bytes {
                return None;
            }
            let (_, moved) = self.clear_window(next, left)?;
            left = left.saturating_sub(moved);
        }
    }

    /// Makes a run of this length by moves of no more than so many bytes; says where, and how much
    /// has moved.
    fn clear_window(&mut self, bytes: u64, most: u64) -> Option<(u64, u64)> {
        let largest = self.free.largest();
        let is_hopeful = |&(_, start, end): &(u64, u64, u64)| {
            let mut inside = self.movable.range(start..end);
            inside.all(|(_, &(_, length))| length <= largest)
        };
        let windows = self.windows(bytes, most).into_iter();
        let windows: Vec<_> = windows.filter(is_hopeful).take(WINDOWS_TRIED).collect();
        for (cost, start, end) in windows {
            if let Some(moves) = self.evacuation(start, end) {
                for (file, piece, to) in moves {
                    self.do_move(file, vec![piece], to, Reason::MakeRoom);
                }
                self.make_durable();
                return self.free.has(start, bytes).then_some((start, cost));
            }
        }
        None
    }

    /// Ranges of this length at least that are free or can be, those with the least to move first.
    fn windows(&self, bytes: u64, most: u64) -> Vec<(u64, u64, u64)> {
        // What is there, in the order of addresses: start, end, and how much of it would move.
        let free = self.free.iter().map(|(start, end)| (start, end, 0));
        let taken = self.movable.iter();
        let taken = taken.map(|(&start, &(_, length))| (start, start + length, length));
        let mut items: Vec<(u64, u64, u64)> = free.chain(taken).collect();
        items.sort_unstable();
        let mut windows = Vec::new();
        let (mut first, mut cost) = (0, 0);
        for next in 0..items.len() {
            if next > first && items[next - 1].1 != items[next].0 {
                (first, cost) = (next, 0);
            }
            cost += items[next].2;
            // As short as can be: from the left.
            while items[next].1 - items[first].1 >= bytes && first < next {
                cost -= items[first].2;
                first += 1;
            }
            if items[next].1 - items[first].0 >= bytes && cost <= most {
                windows.push((cost, items[first].0, items[next].1));
            }
        }
        windows.sort_unstable();
        windows
    }

    /// Where the pieces of a window go: each as a whole into a free run outside of it.
    fn evacuation(&self, start: u64, end: u64) -> Option<Vec<(usize, Piece, u64)>> {
        let mut free = self.free.clone();
        free.take(start, end - start);
        let inside = self.movable.range(start..end);
        let mut inside: Vec<(u64, u64, usize)> = inside
            .map(|(&physical, &(file, length))| (length, physical, file))
            .collect();
        inside.sort_unstable_by(|a, b| b.cmp(a));
        let mut moves = Vec::with_capacity(inside.len());
        for (length, physical, file) in inside {
            let pieces = self.files[file].pieces.iter();
            let piece = pieces.copied().find(|piece| piece.physical == physical)?;
            let to = free.best_fit(length)?;
            free.take(to, length);
            moves.push((file, piece, to));
        }
        without_detours(moves, start, end)
    }
}

/// The moves out of a window, in an order in which no piece comes to lie right beside one of its file that is still to
/// leave: both would be one piece, which the next move would part again. None if there is no such order.
fn without_detours(
    mut moves: Vec<(usize, Piece, u64)>,
    start: u64,
    end: u64,
) -> Option<Vec<(usize, Piece, u64)>> {
    // Only the places right before and right after the window touch what is in it.
    let touches = |&(_, piece, to): &(usize, Piece, u64)| to + piece.length == start || to == end;
    moves.sort_by_key(touches);
    let joins = |moved: &(usize, Piece, u64), stays: &(usize, Piece, u64)| {
        let (file, piece, to) = *moved;
        let (other_file, other, _) = *stays;
        let precedes = piece.logical_end() == other.logical && to + piece.length == other.physical;
        let follows = other.logical_end() == piece.logical && other.physical + other.length == to;
        file == other_file && (precedes || follows)
    };
    if let [.., first, second] = moves.as_mut_slice()
        && joins(first, second)
    {
        std::mem::swap(first, second);
        if joins(first, second) {
            return None;
        }
    }
    Some(moves)
}

/// A row in parts of no more than so many bytes where they have two pieces: first byte, bytes, pieces.
fn parts(pieces: &[Piece], most: u64) -> Vec<(u64, u64, usize)> {
    let mut parts: Vec<(u64, u64, usize)> = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        // One piece by itself is no part.
        let is_last = number + 1 == pieces.len();
        match parts.last_mut() {
            Some((_, bytes, count)) if is_last || *count < 2 || *bytes + piece.length <= most => {
                *bytes += piece.length;
                *count += 1;
            }
            _ => parts.push((piece.logical, piece.length, 1)),
        }
    }
    parts
}

fn is_hot(file: &FileLayout, piece: &Piece) -> bool {
    let overlaps = |&(start, end): &(u64, u64)| start < piece.logical_end() && end > piece.logical;
    file.hot.as_ref().is_none_or(|hot| hot.iter().any(overlaps))
}

/// What pieces have between two places of the file, and how many of them reach beyond.
pub(crate) fn clipped(pieces: &[Piece], start: u64, end: u64) -> (Vec<Piece>, usize) {
    let mut cut = 0;
    let inside = pieces.iter().filter_map(|piece| {
        let from = piece.logical.max(start);
        let to = piece.logical_end().min(end);
        if from >= to {
            return None;
        }
        cut += usize::from(from > piece.logical) + usize::from(to < piece.logical_end());
        Some(Piece {
            logical: from,
            physical: piece.physical + (from - piece.logical),
            length: to - from,
        })
    });
    (inside.collect(), cut)
}

/// Changes the pieces of a file as a move does.
fn moved(pieces: &mut Vec<Piece>, step: &Move) {
    let (start, bytes) = (step.logical(), step.bytes());
    let (mut rest, _) = clipped(pieces, 0, start);
    rest.extend(clipped(pieces, start + bytes, u64::MAX).0);
    *pieces = rest;
    pieces.push(Piece {
        logical: start,
        physical: step.to,
        length: bytes,
    });
    pieces.sort_unstable_by_key(|piece| piece.logical);
    *pieces = joined(pieces);
}

/// Pieces with what is contiguous as one; they are in the order of the file.
#[must_use]
pub fn joined(pieces: &[Piece]) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::with_capacity(pieces.len());
    for &piece in pieces {
        match out.last_mut() {
            Some(last)
                if last.logical_end() == piece.logical
                    && last.physical + last.length == piece.physical =>
            {
                last.length += piece.length;
            }
            _ => out.push(piece),
        }
    }
    out
}

#[cfg(test)]
mod tests;
