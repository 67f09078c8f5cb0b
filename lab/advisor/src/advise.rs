//! The whole advice.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mobifs_defragmenter::{DefragError, Hot, Mode, Report as Plan, defragment};
use mobifs_fragmentation::{
    Kind, MeasureError, MeasuredFile, Model, Report as Measured, counted, measure_each, shown, size,
};
use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::cost::{self, ModelSource, Sample, Samples};
use crate::database::{DatabaseHead, JournalMode};
use crate::error::{AdviseError, text};
use crate::reads::TraceFacts;
use crate::report::{Advice, AdviceReport, ModelReport, SCHEMA, Wear, What};
use crate::rules::{self, Database, FRAMES_FOR_A_PAGE, Growing, Place};

/// The directory of a store of MobiFS that has its journal.
const STORE_MARK: &str = ".mobifs";

/// How to advise.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What pieces cost, if the user says it.
    pub model: Option<Model>,
    /// Read files to find out what pieces cost.
    pub measures_cost: bool,
    /// What a trace says, and how it is named on a command line.
    pub trace: Option<(TraceFacts, PathBuf)>,
}

/// Looks at a directory, or a file, and says what is worth doing. Nothing is changed.
///
/// # Errors
/// [`AdviseError`]
pub fn advise(
    path: &Path,
    options: &Options,
    progress: &dyn Fn(u64),
) -> Result<AdviceReport, AdviseError> {
    let site = Site::of(path)?;
    let mut seen = Seen::new(&site, options);
    let measuring = mobifs_fragmentation::Options {
        as_files: true,
        worth_max: rules::NAMED,
        model: options.model.unwrap_or_default(),
        ..mobifs_fragmentation::Options::default()
    };
    let paths = [path.to_owned()];
    let measured = measure_each(&paths, &measuring, &mut |file| seen.take(file), progress)?;
    let measured = measured.report;
    let Seen {
        databases,
        growing,
        samples,
        modes,
        files_here,
        ..
    } = seen;
    let (model, source) = cost_of(path, options, &site, samples)?;
    let mut notes = site.notes(&measured, options.trace.is_some());
    let place = Place {
        free: measured.filesystems.first().and_then(|f| f.free.as_ref()),
        is_store: site.store.is_some(),
        model,
    };
    let mut advice = Vec::new();
    if site.keeps_places() {
        advice.extend(rules::for_databases(&databases, place));
        advice.extend(rules::for_files(&growing, place));
    }
    match plan(path, options, model) {
        Ok(plan) => advice.extend(defragmenting(&site, path, options, &plan)),
        Err(error) => notes.push(format!("nothing can be defragmented here: {error}")),
    }
    advice.sort_by(|a, b| b.saved_ms.total_cmp(&a.saved_ms));
    let read_ms = |pieces: u64| {
        pieces as f64 * model.piece_ms + measured.all.bytes as f64 / 1e6 * model.megabyte_ms
    };
    Ok(AdviceReport {
        schema: SCHEMA,
        path: text(path),
        filesystem: site.mount.kind.clone(),
        mountpoint: text(&site.mount.mountpoint),
        is_read_only: site.is_read_only,
        store: site.store.as_deref().map(text),
        files: measured.files,
        bytes: measured.all.bytes,
        mean_dof: measured.mean_dof,
        mean_dof_by_kind: measured.mean_dof_by_kind,
        databases: modes,
        model: ModelReport {
            piece_ms: model.piece_ms,
            megabyte_ms: model.megabyte_ms,
            source,
        },
        read_ms: read_ms(measured.all.extents),
        read_ms_whole: read_ms(measured.all.least_extents),
        trace: options
            .trace
            .as_ref()
            .map(|(facts, _)| facts.report(files_here)),
        advice,
        notes,
    })
}

/// What pieces cost, and where that comes from.
fn cost_of(
    path: &Path,
    options: &Options,
    site: &Site,
    samples: Samples,
) -> Result<(Model, ModelSource), AdviseError> {
    match options.model {
        Some(model) => Ok((model, ModelSource::Given)),
        None if options.measures_cost => cost::measure(path, &site.mount.mountpoint, samples),
        None => Ok((Model::default(), ModelSource::Paper)),
    }
}

/// Where the path lies.
struct Site {
    /// Absolute.
    path: PathBuf,
    mount: MountEntry,
    is_read_only: bool,
    /// The root of the store of MobiFS that it lies in.
    store: Option<PathBuf>,
}

impl Site {
    fn of(path: &Path) -> Result<Self, AdviseError> {
        let at = |error: std::io::Error| AdviseError::Io {
            path: path.to_owned(),
            error,
        };
        let absolute = absolute_without_touching(path).map_err(at)?;
        let table = mounts().map_err(at)?;
        let Some(mount) = mount_around(&absolute, &table) else {
            return Err(MeasureError::NoFile(path.to_owned()).into());
        };
        if mount.has_subtype("mobifs") {
            return Err(AdviseError::MobifsMount {
                path: path.to_owned(),
                mountpoint: mount.mountpoint.clone(),
                store: mount.source.clone(),
            });
        }
        let about = std::fs::symlink_metadata(path).map_err(at)?;
        if let Ok(target) = std::fs::read_link(path) {
            let path = path.to_owned();
            return Err(MeasureError::SymbolicLink { path, target }.into());
        }
        if is_image(path, &about) {
            return Err(AdviseError::Image(path.to_owned()));
        }
        let room = statvfs(path).map_err(|errno| at(errno.into()))?;
        let is_root_of_store = |directory: &&Path| {
            directory
                .join(STORE_MARK)
                .symlink_metadata()
                .is_ok_and(|m| m.is_dir())
        };
        let mut above = absolute.ancestors();
        let store = above.find(is_root_of_store).map(Path::to_owned);
        Ok(Self {
            mount: mount.clone(),
            is_read_only: room.f_flag.contains(StatVfsMountFlags::RDONLY),
            store,
            path: absolute,
        })
    }

    /// Whether content that is written over stays where it is.
    fn keeps_places(&self) -> bool {
        !matches!(
            self.mount.kind.as_str(),
            "btrfs" | "f2fs" | "bcachefs" | "nilfs2"
        )
    }

    fn notes(&self, measured: &Measured, has_trace: bool) -> Vec<String> {
        let mountpoint = text(&self.mount.mountpoint);
        let mut notes = measured.notes.clone();
        if self.is_read_only {
            notes.push(format!(
                "{mountpoint} is mounted read-only: nothing can be done there before it is remounted (mount -o \
                 remount,rw {mountpoint})"
            ));
        }
        if let Some(store) = &self.store {
            let store = text(store);
            notes.push(format!(
                "this is in the store {store} of MobiFS: unmount it before its files are defragmented, so that \
                 it does not miss the room that this takes meanwhile"
            ));
        }
        if self.mount.kind == "btrfs" {
            notes.push(
                "btrfs does not report its free room: whether there is a run for a file is known only when it is moved"
                    .to_owned(),
            );
            notes.push(format!(
                "btrfs gives what is moved, or written over, a new place: {} here are shared with other files or \
                 snapshots, such files stay as they are, and --unshare, which moves them, takes that room once more",
                size(measured.shared_bytes)
            ));
        }
        if !self.keeps_places() {
            notes.push(format!(
                "on {} content that is written over gets a new place, whatever was allocated: what journal modes and \
                 preallocation bring there is not predicted{}",
                self.mount.kind,
                if self.mount.kind == "btrfs" {
                    " (chattr +C on an empty directory keeps places for databases that are made in it, without checksums)"
                } else {
                    ""
                }
            ));
        }
        let written_once = ["executable", "multimedia"].into_iter();
        let written_once = written_once.filter_map(|kind| measured.kinds.get(kind));
        let torn: u64 = written_once.map(|counts| counts.fragmented_files).sum();
        if torn > 0 && !has_trace {
            notes.push(format!(
                "{} in pieces, although such files are written at once: the free room had no such run. Keep a tenth \
                 of the filesystem free, or make a run before a large file comes (mobifs frag defrag --free-run SIZE)",
                counted(torn, "executable or multimedia file is", "executables and multimedia files are")
            ));
        }
        notes
    }
}

fn is_image(path: &Path, about: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    const ENDINGS: [&str; 4] = ["img", "image", "ext4", "raw"];
    let ending = path.extension().and_then(|ending| ending.to_str());
    about.file_type().is_block_device()
        || (about.is_file() && ending.is_some_and(|ending| ENDINGS.contains(&ending)))
}

/// What is kept of the files.
struct Seen<'a> {
    site: &'a Site,
    options: &'a Options,
    /// What the trace reads, also by other names of the same files.
    hot: Option<Hot>,
    databases: Vec<Database>,
    growing: Vec<Growing>,
    samples: Samples,
    modes: BTreeMap<JournalMode, u64>,
    /// Files that the trace reads.
    files_here: u64,
}

impl<'a> Seen<'a> {
    fn new(site: &'a Site, options: &'a Options) -> Self {
        let hot = options.trace.as_ref().map(|(facts, _)| {
            let mut hot = facts.hot().clone();
            hot.find_links(&site.path);
            hot
        });
        Self {
            site,
            options,
            hot,
            databases: Vec::new(),
            growing: Vec::new(),
            samples: Samples::default(),
            modes: BTreeMap::new(),
            files_here: 0,
        }
    }

    fn take(&mut self, file: &MeasuredFile<'_>) {
        let path = Path::new(std::ffi::OsStr::from_bytes(file.path));
        if self.options.measures_cost {
            self.samples.offer(Sample {
                path: path.to_owned(),
                bytes: file.bytes,
                pieces: file.shape.extents,
                least: file.shape.least,
            });
        }
        // The walk gives paths below what was given, which may be relative.
        let absolute = absolute_without_touching(path).unwrap_or_else(|_| path.to_owned());
        let trace = self.options.trace.as_ref().map(|(facts, _)| facts);
        if let Some(hot) = &self.hot {
            if hot.of(&absolute, &self.site.path).is_none() {
                return;
            }
            self.files_here += 1;
        }
        let growing = || Growing {
            path: shown(file.path),
            bytes: file.bytes,
            pieces: file.shape.extents,
            least: file.shape.least,
        };
        let is_fragmented = file.shape.excess() > 0;
        match file.kind {
            Kind::Sqlite => {
                let Some(head) = DatabaseHead::read(path) else {
                    return;
                };
                *self.modes.entry(head.mode).or_default() += 1;
                if is_fragmented {
                    let growth = trace.and_then(|facts| facts.growth(&absolute, &self.site.path));
                    let frames = growth.filter(|growth| growth.grown_bytes > 0);
                    let frames = frames.map(|g| g.written_bytes as f64 / g.grown_bytes as f64);
                    self.databases.push(Database {
                        file: growing(),
                        page_bytes: head.page_bytes,
                        mode: head.mode,
                        frames_for_a_page: frames.unwrap_or(FRAMES_FOR_A_PAGE),
                    });
                }
            }
            Kind::Other if is_fragmented => self.growing.push(growing()),
            _ => {}
        }
    }
}

/// What would move.
fn plan(path: &Path, options: &Options, model: Model) -> Result<Plan, DefragError> {
    let planning = mobifs_defragmenter::Options {
        mode: Mode::DryRun,
        model,
        hot: options.trace.as_ref().map(|(facts, _)| facts.hot().clone()),
        ..mobifs_defragmenter::Options::default()
    };
    defragment(&[path.to_owned()], &planning, &|| false)
}

fn defragmenting(site: &Site, path: &Path, options: &Options, plan: &Plan) -> Option<Advice> {
    if plan.moves == 0 || plan.saved_ms <= 0.0 {
        return None;
    }
    let is_served = plan.is_served && plan.filesystem == "ext4";
    let how = if is_served { "--remap" } else { "--copy" };
    let trace = options.trace.as_ref();
    let hot = trace.map(|(_, file)| format!(" --hot {}", quoted(file)));
    let remount = if site.is_read_only {
        format!("mount -o remount,rw {} && ", quoted(&site.mount.mountpoint))
    } else {
        String::new()
    };
    let moved = plan.joined_bytes + plan.room_bytes;
    let planned = plan.planned.as_ref();
    let wear = Wear {
        copied_bytes: planned.map_or(moved, |planned| planned.copied_bytes),
        remapped_bytes: planned.and_then(|planned| planned.remapped_bytes),
    };
    let mut why = format!(
        "{} in small pieces move, in {}; more of it costs more than it brings",
        counted(plan.wanted_files, "file", "files"),
        counted(plan.moves, "move", "moves"),
    );
    if plan.room_bytes > 0 {
        why += &format!("; {} of it only make room", size(plan.room_bytes));
    }
    Some(Advice {
        what: What::Defragment,
        files: plan.wanted_files,
        bytes: moved,
        action: format!(
            "{remount}mobifs frag defrag {how}{} {}",
            hot.unwrap_or_default(),
            quoted(path)
        ),
        step_bytes: None,
        pieces: plan.wanted_extents,
        pieces_predicted_max: (plan.wanted_extents + plan.after.extents)
            .saturating_sub(plan.before.extents),
        saved_ms: plan.saved_ms,
        unused_bytes: None,
        wear: Some(wear),
        why,
        first: Vec::new(),
    })
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let shown = text(path);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !shown.is_empty() && shown.chars().all(is_plain) {
        shown
    } else {
        format!("'{}'", shown.replace('\'', "'\\''"))
    }
}
