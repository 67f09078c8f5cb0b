//! The whole run.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use mobifs_fragmentation::is_network;
use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts};
use rustix::fs::{CWD, FileType, Mode as FileMode, OFlags, fstatvfs, openat, statat, syncfs};
use rustix::io::Errno;

use crate::device::Device;
use crate::donor::NO_RUN;
use crate::dry_run::free_room;
use crate::error::DefragError;
use crate::ext4::Ext4;
use crate::moved::{End, Moved, Outcome};
use crate::mover::Mover;
use crate::options::{Mode, Options};
use crate::pace::{Next, Pace, Watch};
use crate::place::Place;
use crate::plan::{Planner, Reason, Step};
use crate::report::{FreeRun, Report, SCHEMA, Stopped};
use crate::scan::{Keep, Looks, Tree, scan};
use crate::space::Space;
use crate::work::Work;

/// Where there are limits, a row of a filesystem that chooses the places itself is no longer.
const LIMITED_ROW_BYTES_MAX: u64 = 1 << 20;

/// The report while nothing has moved.
fn unmoved(
    place: &Place,
    options: &Options,
    tree: &Tree,
    is_served: bool,
) -> Result<Report, DefragError> {
    let before = tree.sums.state();
    let wanted = tree.files.iter().filter(|file| file.layout.is_wanted);
    let wanted_extents = wanted.clone().map(|file| file.layout.pieces.len() as u64);
    Ok(Report {
        schema: SCHEMA,
        filesystem: place.filesystem.clone(),
        mode: options.mode.name(),
        before,
        after: before,
        wanted_files: wanted.count() as u64,
        wanted_extents: wanted_extents.sum(),
        moves: 0,
        joined_bytes: 0,
        room_bytes: 0,
        worse_files: 0,
        saved_ms: 0.0,
        is_served,
        device: None,
        planned: None,
        free_run: free_run(place, options)?,
        seconds: 0.0,
        stopped: None,
        left_out: BTreeMap::new(),
    })
}

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
    let mut report = unmoved(&place, options, &tree, device.is_some())?;
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
        if let Some(run) = &mut report.free_run {
            run.ends_with(largest_free(&place)?);
        }
    }
    let fewer = report.before.extents as f64 - report.after.extents as f64;
    report.saved_ms = fewer * options.model.piece_ms;
    report.seconds = begun.elapsed().as_secs_f64();
    for (reason, count) in tree.left_out {
        *report.left_out.entry(reason.to_owned()).or_default() += count;
    }
    Ok(report)
}

/// The run of free room that is asked for, with what there is before.
fn free_run(place: &Place, options: &Options) -> Result<Option<FreeRun>, DefragError> {
    let Some(wanted_bytes) = options.free_run_bytes else {
        return Ok(None);
    };
    if place.filesystem != "ext4" {
        return Err(DefragError::Unsupported {
            path: place.mountpoint.clone(),
            filesystem: place.filesystem.clone(),
            why: "which chooses new places itself, so that no free run can be made; leave --free-run out",
        });
    }
    let largest = largest_free(place)?;
    Ok(Some(FreeRun {
        wanted_bytes,
        largest_before_bytes: largest,
        largest_after_bytes: largest,
        is_reached: largest >= wanted_bytes,
    }))
}

fn largest_free(place: &Place) -> Result<u64, DefragError> {
    let Some(free) = free_room(&place.directory)? else {
        return Err(DefragError::Unsupported {
            path: place.mountpoint.clone(),
            filesystem: place.filesystem.clone(),
            why: "whose free room this kernel does not report (FS_IOC_GETFSMAP), so that no free run can be made; \
                  leave --free-run out",
        });
    };
    Ok(free.largest())
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
        is_read_only,
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
    let mut hot = hot.clone();
    tops.iter().for_each(|top| hot.find_links(top));
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

impl Work<'_> {
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
