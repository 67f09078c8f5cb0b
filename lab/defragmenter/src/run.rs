//! The whole run.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use mobifs_fragmentation::{free_extents_of, is_network};
use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode as FileMode, OFlags, accessat, fstatvfs, openat, statat,
    syncfs,
};
use rustix::io::Errno;

use crate::device::Device;
use crate::donor::NO_RUN;
use crate::error::DefragError;
use crate::ext4::{self, Ext4};
use crate::moved::{End, Moved, Outcome};
use crate::mover::Mover;
use crate::options::{Mode, Options};
use crate::pace::{Next, Pace, Watch};
use crate::place::Place;
use crate::plan::{Limits, Planner, Reason, Step};
use crate::report::{Report, SCHEMA, Stopped};
use crate::scan::{Found, Keep, Looks, Tree, scan};
use crate::space::Space;

/// Making room may move so many times what then fits in. By remapping the content costs next to
/// nothing, but each time that room is made the filesystem is synchronised.
const ROOM_FACTOR: u64 = 4;

/// The part of the free room that is left to other programs.
const LEFT_PART: u64 = 4;
/// Moving takes metadata, so that some room is always left: this part of it, and so much at most.
const METADATA_PART: u64 = 16;
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// Room that is always enough to work with, unless four times what is to move is more.
const POOL_BYTES_ENOUGH: u64 = 64 << 20;
/// Where there are limits, a row of a filesystem that chooses the places itself is no longer.
const LIMITED_ROW_BYTES_MAX: u64 = 1 << 20;

/// Defragments the files below the paths, which lie on one filesystem. It ends between two moves when
/// `is_cancelled` says so.
///
/// # Errors
/// [`DefragError`]; what had moved until then stays moved, and is durable.
pub fn defragment(
    paths: &[PathBuf],
    options: &Options,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Report, DefragError> {
    let begun = Instant::now();
    if options.rate_bytes == Some(0) {
        return Err(DefragError::NoRate);
    }
    let place = place_of(paths, options.mode)?;
    let looks = Looks {
        filesystem: &place.filesystem,
        block_bytes: place.block_bytes,
        model: options.model,
        takes_all: options.takes_all,
        unshares: options.unshares,
    };
    let device = Device::below(&place.mountpoint);
    let device = match (options.mode, device) {
        (Mode::Remap, Err(why)) => return Err(DefragError::NoDevice(why)),
        (_, device) => device.ok(),
    };
    let mut tree = look(paths, options, looks)?;
    let before = tree.sums.state();
    let wanted = tree.files.iter().filter(|file| file.layout.is_wanted);
    let wanted_files = wanted.count() as u64;
    let mut report = Report {
        schema: SCHEMA,
        filesystem: place.filesystem.clone(),
        mode: options.mode.name(),
        before,
        after: before,
        wanted_files,
        moves: 0,
        joined_bytes: 0,
        room_bytes: 0,
        worse_files: 0,
        saved_ms: 0.0,
        is_served: device.is_some(),
        device: None,
        seconds: 0.0,
        stopped: None,
        left_out: BTreeMap::new(),
    };
    let mut work = Work {
        options,
        place: &place,
        looks,
        device: device.as_ref(),
        report: &mut report,
    };
    if options.mode == Mode::DryRun {
        work.plan_only(&mut tree)?;
    } else {
        let mut pace = Pace::new(options, device.as_ref(), is_cancelled);
        work.carry_out(&mut tree, &mut pace)?;
        report.stopped = pace.stopped();
        let extents = tree.files.iter().map(|file| (file.inode, file.extents));
        let after = scan(paths, looks, Keep::Wanted, extents.collect())?;
        report.worse_files = after.worse_files;
        report.after = after.sums.state();
        report.device = device.as_ref().map(Device::since).transpose()?;
    }
    let fewer = before.extents as f64 - report.after.extents as f64;
    report.saved_ms = fewer * options.model.piece_ms;
    report.seconds = begun.elapsed().as_secs_f64();
    for (reason, count) in tree.left_out {
        *report.left_out.entry(reason.to_owned()).or_default() += count;
    }
    Ok(report)
}

/// The files that may move. Where none is wanted nothing has to make room, and the others are only counted: there may
/// be very many.
fn look(paths: &[PathBuf], options: &Options, looks: Looks<'_>) -> Result<Tree, DefragError> {
    let mut tree = scan(paths, looks, Keep::Wanted, HashMap::new())?;
    mark_hot(&mut tree, options);
    let is_any = tree.files.iter().any(|file| file.layout.is_wanted);
    if looks.filesystem == "ext4" && (is_any || options.free_run_bytes.is_some()) {
        tree = scan(paths, looks, Keep::Movable, HashMap::new())?;
        mark_hot(&mut tree, options);
    }
    Ok(tree)
}

/// The filesystem of all paths.
fn place_of(paths: &[PathBuf], mode: Mode) -> Result<Place, DefragError> {
    let table = mounts().unwrap_or_default();
    let mut found: Option<(PathBuf, MountEntry)> = None;
    for path in paths {
        let at = |error: Errno| DefragError::at(path, error);
        let absolute = absolute_without_touching(path).map_err(|e| DefragError::at(path, e))?;
        let about = statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).map_err(at)?;
        let kind = FileType::from_raw_mode(about.st_mode);
        if !matches!(kind, FileType::Directory | FileType::RegularFile) {
            return Err(DefragError::NoTree(path.clone()));
        }
        let image = ["img", "image", "ext4", "raw"];
        let ending = path.extension().and_then(|ending| ending.to_str());
        if kind == FileType::RegularFile && ending.is_some_and(|ending| image.contains(&ending)) {
            return Err(DefragError::Image(path.clone()));
        }
        let Some(mount) = mount_around(&absolute, &table) else {
            return Err(DefragError::NoTree(path.clone()));
        };
        check_filesystem(path, mount)?;
        match &found {
            Some((first, other)) if !other.has_device_of(mount) => {
                return Err(DefragError::Several(first.clone(), path.clone()));
            }
            Some(_) => {}
            None => found = Some((path.clone(), mount.clone())),
        }
    }
    let Some((path, mount)) = found else {
        return Err(DefragError::NoTree(PathBuf::new()));
    };
    let at = |error: Errno| DefragError::at(&path, error);
    let opened = openat(
        CWD,
        &path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        FileMode::empty(),
    )
    .map_err(at)?;
    let room = fstatvfs(&opened).map_err(at)?;
    let is_read_only = room.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    if is_read_only && mode != Mode::DryRun {
        return Err(DefragError::ReadOnly(mount.mountpoint));
    }
    let directory = if path.is_dir() {
        path.clone()
    } else {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).to_owned()
    };
    // The kernel moves parts of pages only to the same place in a page.
    if mount.kind == "ext4" && room.f_frsize < rustix::param::page_size() as u64 {
        return Err(DefragError::Unsupported {
            path,
            filesystem: mount.kind,
            why: "whose blocks are smaller than a page, which this program does not move; e4defrag does",
        });
    }
    Ok(Place {
        filesystem: mount.kind,
        mountpoint: mount.mountpoint,
        directory,
        block_bytes: room.f_frsize,
        free_bytes: room.f_bavail.saturating_mul(room.f_frsize),
    })
}

fn check_filesystem(path: &Path, mount: &MountEntry) -> Result<(), DefragError> {
    let (path, filesystem) = (path.to_owned(), mount.kind.clone());
    if is_network(&filesystem) {
        return Err(DefragError::Network { path, filesystem });
    }
    if mount.has_subtype("mobifs") {
        let (mountpoint, store) = (mount.mountpoint.clone(), mount.source.clone());
        return Err(DefragError::MobifsMount {
            path,
            mountpoint,
            store,
        });
    }
    let why = match filesystem.as_str() {
        "ext4" | "xfs" | "btrfs" | "f2fs" => return Ok(()),
        "ext2" | "ext3" => "which has no extents; convert it to ext4 (tune2fs -O extents)",
        _ => "which cannot be defragmented while it is mounted; ext4, XFS, btrfs and f2fs can",
    };
    Err(DefragError::Unsupported {
        path,
        filesystem,
        why,
    })
}

/// What a trace says of files that are read; the others are not wanted.
fn mark_hot(tree: &mut Tree, options: &Options) {
    let Some(hot) = &options.hot else {
        return;
    };
    let absolute = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let tops = tree.tops.iter().map(|(path, _)| absolute(path.clone()));
    let tops: Vec<PathBuf> = tops.collect();
    for number in 0..tree.files.len() {
        let wanted = tree.files.get(number).filter(|file| file.layout.is_wanted);
        let Some(path) = wanted.map(|file| tree.path(file)) else {
            continue;
        };
        if let Some(file) = tree.files.get_mut(number) {
            let top = tops.get(file.top).map_or(Path::new("/"), PathBuf::as_path);
            file.layout.hot = hot.of(&absolute(path), top).map(<[_]>::to_vec);
            file.layout.is_wanted = file.layout.hot.is_some();
        }
    }
}

struct Work<'a> {
    options: &'a Options,
    place: &'a Place,
    looks: Looks<'a>,
    device: Option<&'a Device>,
    report: &'a mut Report,
}

impl Work<'_> {
    fn limits(&self) -> Limits {
        Limits {
            piece_bytes_max: if self.options.takes_all {
                u64::MAX
            } else {
                self.options.model.small_piece_bytes()
            },
            room_factor: ROOM_FACTOR,
        }
    }

    /// What all rows have that are to be joined.
    fn wanted_bytes(&self, tree: &Tree) -> u64 {
        let wanted = tree.files.iter().filter(|file| file.layout.is_wanted);
        let layouts = wanted.map(|file| file.layout.clone()).collect();
        Planner::new(layouts, Space::default(), self.limits()).bytes_of_groups()
    }

    /// The planner has the layouts from then on, the tree no more.
    fn planner(&self, tree: &mut Tree, free: Space) -> Planner {
        let layouts = tree.files.iter_mut();
        let layouts = layouts
            .map(|file| std::mem::take(&mut file.layout))
            .collect();
        let mut planner = Planner::new(layouts, free, self.limits());
        if let Some(length) = self.options.free_run_bytes {
            planner.make_run(length.next_multiple_of(self.place.block_bytes));
        }
        planner
    }

    fn count(&mut self, bytes: u64, reason: Reason) {
        self.report.moves += 1;
        match reason {
            Reason::Join => self.report.joined_bytes += bytes,
            Reason::MakeRoom => self.report.room_bytes += bytes,
        }
    }

    /// Says what would be done with the room that is free now.
    fn plan_only(&mut self, tree: &mut Tree) -> Result<(), DefragError> {
        let directory = &self.place.directory;
        let is_wanted = tree.files.iter().any(|file| file.layout.is_wanted);
        // Files without a name would be made there.
        if is_wanted && self.place.filesystem != "f2fs" {
            let access = accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS);
            if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = access {
                return Err(DefragError::at(directory, errno));
            }
        }
        let opened = openat(
            CWD,
            directory,
            OFlags::RDONLY | OFlags::CLOEXEC,
            FileMode::empty(),
        );
        let opened = opened.map_err(|errno| DefragError::at(directory, errno))?;
        let free = free_extents_of(&opened).map_err(|error| DefragError::at(directory, error))?;
        let mut sums = tree.sums;
        let mut fewer = |file: &Found, fewer: usize| {
            let extents = file.extents.saturating_sub(fewer as u64).max(file.least);
            sums.change(file.extents, extents, file.least);
        };
        if let Some(extents) = free.filter(|_| self.place.filesystem == "ext4") {
            let mut free = Space::default();
            let ranges = extents.iter();
            ranges.for_each(|&(start, length)| free.add(start, length));
            let pieces = tree.files.iter().map(|file| file.layout.pieces.len());
            let pieces: Vec<usize> = pieces.collect();
            let mut planner = self.planner(tree, free);
            while let Some(step) = planner.next_step() {
                if let Step::Move(step) = step {
                    self.count(step.bytes(), step.reason);
                }
            }
            let after = planner.files().iter().map(|layout| layout.pieces.len());
            for (file, (before, after)) in tree.files.iter().zip(pieces.into_iter().zip(after)) {
                fewer(file, before.saturating_sub(after));
            }
        } else {
            // The filesystem chooses the places itself: each group becomes one piece at best.
            let groups = self.planner(tree, Space::default()).groups(u64::MAX);
            for (number, groups) in groups {
                let bytes = groups.iter().map(|&(_, bytes, _)| bytes);
                bytes.for_each(|bytes| self.count(bytes, Reason::Join));
                if let Some(file) = tree.files.get(number) {
                    fewer(file, groups.iter().map(|&(_, _, pieces)| pieces - 1).sum());
                }
            }
        }
        self.report.after = sums.state();
        Ok(())
    }

    fn carry_out(&mut self, tree: &mut Tree, pace: &mut Pace<'_>) -> Result<(), DefragError> {
        match self.place.filesystem.as_str() {
            "ext4" => self.on_ext4(tree, pace),
            filesystem if self.options.mode == Mode::Remap => Err(DefragError::Unsupported {
                path: self.place.mountpoint.clone(),
                filesystem: filesystem.to_owned(),
                why: "which chooses new places itself, so that nothing can be remapped; use --copy",
            }),
            _ => self.by_the_filesystem(tree, pace),
        }
    }

    /// Moves what the plan says, by a pool of free room.
    fn on_ext4(&mut self, tree: &mut Tree, pace: &mut Pace<'_>) -> Result<(), DefragError> {
        let wanted = self.wanted_bytes(tree);
        if wanted == 0 && self.options.free_run_bytes.is_none() {
            return Ok(());
        }
        let (room, leave) = self.room(wanted)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.place.directory, flags, FileMode::empty());
        pace.watch = Some(Watch {
            opened: opened.map_err(|errno| DefragError::at(&self.place.directory, errno))?,
            least_bytes: leave / 2,
        });
        let device = self.device.filter(|_| self.options.mode == Mode::Remap);
        let mut ext4 = Ext4::new(self.place, room, self.looks, device)?;
        let mut planner = self.planner(tree, ext4.free());
        let result = self.follow(&mut planner, &mut ext4, tree, pace);
        // Also after a failure: what has moved becomes durable, if it still can.
        let finished = ext4.finish();
        result.and(finished)
    }

    /// How much free room is taken to work with, and how much is left to others.
    fn room(&self, wanted: u64) -> Result<(u64, u64), DefragError> {
        let (free_bytes, block) = (self.place.free_bytes, self.place.block_bytes);
        let path = || self.place.mountpoint.clone();
        let least = ext4::BLOCKS_MIN * block;
        let metadata = (free_bytes / METADATA_PART).min(METADATA_BYTES_MAX);
        let leave = self.options.leave_bytes.unwrap_or(free_bytes / LEFT_PART);
        let leave = leave.max(metadata);
        if free_bytes.saturating_sub(metadata) < least {
            let path = path();
            return Err(DefragError::NoRoom { path, free_bytes });
        }
        let mut room = free_bytes.saturating_sub(leave);
        if room < least {
            return Err(DefragError::LeavesTooMuch {
                path: path(),
                free_bytes,
                leave_bytes: leave,
            });
        }
        if self.options.free_run_bytes.is_none() {
            let enough = wanted.saturating_mul(ROOM_FACTOR).max(POOL_BYTES_ENOUGH);
            room = room.min(enough);
        }
        Ok((room - room % block, leave))
    }

    fn sync(&self) -> Result<(), DefragError> {
        let directory = &self.place.directory;
        let opened = openat(
            CWD,
            directory,
            OFlags::RDONLY | OFlags::CLOEXEC,
            FileMode::empty(),
        );
        let synced = opened.and_then(syncfs);
        synced.map_err(|errno| DefragError::at(directory, errno))
    }

    fn follow(
        &mut self,
        planner: &mut Planner,
        ext4: &mut Ext4<'_>,
        tree: &mut Tree,
        pace: &mut Pace<'_>,
    ) -> Result<(), DefragError> {
        while let Some(step) = planner.next_step() {
            let step = match step {
                Step::MakeDurable => {
                    ext4.make_durable()?;
                    continue;
                }
                Step::Move(step) => step,
            };
            let Outcome { bytes, end } = ext4.carry_out(&step, tree, pace)?;
            if bytes > 0 {
                self.count(bytes, step.reason);
            }
            match end {
                End::Whole => {}
                End::LeftAlone(reason) => {
                    *tree.left_out.entry(reason).or_default() += 1;
                    planner.give_up(step.file, ext4.look_again()?);
                }
                End::Stopped => return Ok(()),
                End::RoomNeeded => {
                    if !ext4.give_room(pace)? {
                        pace.stop(Stopped::RoomNeeded);
                        return Ok(());
                    }
                    let free = ext4.look_again()?;
                    planner.cut_short(&step, bytes, free);
                }
            }
        }
        Ok(())
    }

    /// Has a filesystem move groups that chooses the places itself.
    fn by_the_filesystem(
        &mut self,
        tree: &mut Tree,
        pace: &mut Pace<'_>,
    ) -> Result<(), DefragError> {
        let mut mover = Mover::new(self.place, self.looks)?;
        let planner = self.planner(tree, Space::default());
        let mut most = mover.row_bytes_max();
        if pace.has_limit() {
            most = most.min(LIMITED_ROW_BYTES_MAX);
        }
        'files: for (number, groups) in planner.groups(most) {
            let Some(known) = tree.files.get(number) else {
                continue;
            };
            let mut file = match mover.open(tree, known) {
                Ok(file) => file,
                Err(reason) => {
                    *tree.left_out.entry(reason).or_default() += 1;
                    continue;
                }
            };
            let mut skipped = None;
            for (start, bytes, _) in mover.parts(&file, &groups) {
                if pace.next(bytes)? != Next::Move {
                    break 'files;
                }
                match mover.carry_out(&mut file, start, bytes) {
                    Ok(Moved::Bytes(bytes)) => {
                        self.count(bytes, Reason::Join);
                        pace.moved(bytes);
                    }
                    Ok(Moved::Skipped(reason)) => {
                        skipped = Some(reason);
                        // There may be a run for another part.
                        if reason != NO_RUN {
                            break;
                        }
                    }
                    Err(errno) => return Err(DefragError::at(&self.place.mountpoint, errno)),
                }
            }
            if let Some(reason) = skipped {
                *tree.left_out.entry(reason).or_default() += 1;
            }
        }
        self.sync()
    }
}
