//! Measures an image of ext4 (or ext2, ext3) by the tools of e2fsprogs, which only read it.

#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod inode;
mod listing;
mod text;
mod tool;

use std::collections::HashSet;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::collector::{Collector, Place};
use crate::error::{MeasureError, path_text};
use crate::extent::Extent;
use crate::facts::FileFacts;
use crate::filesystem::extent_bytes_max;
use crate::kind::{HEADER_BYTES, Kind};
use crate::layout::Layout;
use crate::mounted::Looks;
use crate::names::size;
use crate::report::Filesystem;
use crate::targets::open_image;
use inode::Head;
use tool::{Debugfs, dumpe2fs};

const ROOT: u32 = 2;
/// Commands that are sent before their answers are read: they fit into a pipe.
const WINDOW: usize = 512;

/// Files and directories of one directory, as far as they are measured.
#[derive(Default)]
struct Entries {
    files: Vec<(u32, Vec<u8>)>,
    directories: Vec<(u32, Vec<u8>)>,
}

pub(crate) fn measure<'w>(
    path: &Path,
    looks: Looks,
    collector: &mut Collector<'w>,
    progress: &dyn Fn(u64),
) -> Result<(), MeasureError> {
    let image = open_image(path)?;
    let (place, has_bitmaps) = free_room(path, &image, collector)?;
    let end = (&image).seek(SeekFrom::End(0));
    let end = end.map_err(|error| MeasureError::at(path, error))?;
    let is_cut_short = say_if_cut_short(path, end, place, collector);
    if is_cut_short || !has_bitmaps {
        collector.left_out.damaged_images += 1;
    }
    let block_bytes = collector
        .places
        .get(place)
        .map_or(4096, |place| place.block_bytes);
    let debugfs = Debugfs::start(path, &image, has_bitmaps)?;
    let mut reader = Reader {
        path,
        image: &image,
        debugfs,
        looks,
        collector,
        place,
        block_bytes,
        end,
        progress,
    };
    reader.tree()?;
    reader.debugfs.end();
    Ok(())
}

/// What dumpe2fs prints: the filesystem, and its free room; the latter is not known of damaged bitmaps.
fn free_room(
    path: &Path,
    image: &File,
    collector: &mut Collector<'_>,
) -> Result<(usize, bool), MeasureError> {
    let place = collector.places.len();
    let name = "ext4".to_owned();
    collector.places.push(Place {
        about: Filesystem {
            extent_bytes_max: extent_bytes_max(&name),
            name,
            source: path_text(path),
            is_image: true,
            size_bytes: 0,
            files: 0,
            free: None,
        },
        block_bytes: 0,
        layout: Layout::default(),
    });
    let mut head = groups::Head::default();
    let mut wrong = None;
    collector.free(place, |found| {
        wrong = dumpe2fs(path, image, |output| groups::read(output, &mut head, found))?;
        Ok(true)
    })?;
    if !head.block_bytes.is_power_of_two() {
        let said = wrong.unwrap_or_else(|| "dumpe2fs prints no size of blocks".to_owned());
        let path = path.to_owned();
        return Err(MeasureError::Damaged { path, said });
    }
    if let Some(said) = &wrong {
        collector.notes.push(format!(
            "what is free on {} is not known: {said}",
            path_text(path)
        ));
        if let Some(place) = collector.places.get_mut(place) {
            (place.about.free, place.layout) = (None, Layout::default());
        }
    }
    if let Some(place) = collector.places.get_mut(place) {
        place.block_bytes = head.block_bytes;
        place.about.size_bytes = head.blocks.saturating_mul(head.block_bytes);
    }
    if head.needs_recovery {
        collector.notes.push(format!(
            "{} was not unmounted cleanly: what only its journal holds is not seen",
            path_text(path)
        ));
    }
    Ok((place, wrong.is_none()))
}

fn say_if_cut_short(path: &Path, end: u64, place: usize, collector: &mut Collector<'_>) -> bool {
    let whole = collector
        .places
        .get(place)
        .map_or(0, |place| place.about.size_bytes);
    if end < whole {
        collector.notes.push(format!(
            "{} is cut short: its filesystem has {} and it has {}; what lies after its end is lost",
            path_text(path),
            size(whole),
            size(end)
        ));
    }
    end < whole
}

struct Reader<'r, 'w> {
    path: &'r Path,
    image: &'r File,
    debugfs: Debugfs,
    looks: Looks,
    collector: &'r mut Collector<'w>,
    place: usize,
    block_bytes: u64,
    /// Bytes of the image.
    end: u64,
    progress: &'r dyn Fn(u64),
}

impl Reader<'_, '_> {
    /// All directories, one after the other.
    fn tree(&mut self) -> Result<(), MeasureError> {
        // A damaged image may have a directory below itself.
        let mut known = HashSet::from([ROOT]);
        let mut pending = vec![(ROOT, path_text(self.path).into_bytes())];
        while let Some((directory, path)) = pending.pop() {
            let entries = self.list(directory, &path)?;
            for window in entries.files.chunks(WINDOW) {
                self.files(window, &path)?;
            }
            for (inode, name) in entries.directories {
                if known.insert(inode) {
                    pending.push((inode, joined(&path, &name)));
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, directory: u32, path: &[u8]) -> Result<Entries, MeasureError> {
        let mut entries = Entries::default();
        let mut others = 0;
        let mut nothing = Vec::new();
        let end = self.debugfs.send(&[format!("ls -p <{directory}>")])?;
        let problem = self.debugfs.read(|output| {
            listing::read(output, &end, &mut |entry| {
                let kept = (entry.inode, entry.name.to_vec());
                match entry.kind {
                    listing::EntryKind::File => entries.files.push(kept),
                    listing::EntryKind::Directory => entries.directories.push(kept),
                    listing::EntryKind::Other => others += 1,
                    listing::EntryKind::Nothing => nothing.push(kept.1),
                }
            })
        })?;
        self.collector.left_out.no_files += others;
        for name in nothing {
            let problem = "its inode is not in use";
            self.collector.damaged(&joined(path, &name), problem);
        }
        if let Some(said) = problem {
            if directory == ROOT {
                let path = self.path.to_owned();
                return Err(MeasureError::Damaged { path, said });
            }
            self.collector.damaged(path, &said);
        }
        Ok(entries)
    }

    fn files(&mut self, files: &[(u32, Vec<u8>)], path: &[u8]) -> Result<(), MeasureError> {
        let commands: Vec<_> = files
            .iter()
            .map(|(inode, _)| format!("stat <{inode}>"))
            .collect();
        let ends = self.debugfs.send_each(&commands)?;
        for ((inode, name), end) in files.iter().zip(&ends) {
            self.file(*inode, joined(path, name), name, end)?;
            (self.progress)(self.collector.seen());
        }
        Ok(())
    }

    /// Reads the answer to one `stat`.
    fn file(
        &mut self,
        inode: u32,
        path: Vec<u8>,
        name: &[u8],
        end: &str,
    ) -> Result<(), MeasureError> {
        let head = self.debugfs.read(|output| inode::read_head(output, end))?;
        let is_wanted = head.problem.is_none() && head.is_file && self.is_wanted(inode, &head);
        if !is_wanted {
            if let Some(said) = &head.problem {
                self.collector.damaged(&path, said);
            } else if !head.is_file {
                self.collector
                    .damaged(&path, "its inode is not that of a file");
            }
            return self
                .debugfs
                .read(|output| inode::read_extents(output, &head, end, &mut |_| {}))
                .map(drop);
        }
        let (place, collector, block) = (self.place, &mut *self.collector, self.block_bytes);
        let mut pieces = collector.begin(place, head.size);
        let mut beginning = None;
        if head.is_inline {
            let inline = Extent {
                length: head.size,
                is_inline: true,
                ..Extent::default()
            };
            collector.extent(place, &mut pieces, inline);
        }
        let mut last = 0;
        let problem = self.debugfs.read(|output| {
            inode::read_extents(output, &head, end, &mut |blocks| {
                let extent = blocks.extent(block);
                last = last.max(extent.physical.saturating_add(extent.length));
                if extent.logical == 0 && !extent.is_unwritten {
                    beginning = Some(extent.physical);
                }
                collector.extent(place, &mut pieces, extent);
            })
        })?;
        let cut_off = || "its content lies after the end of the image".to_owned();
        if let Some(said) = problem.or_else(|| (last > self.end).then(cut_off)) {
            collector.damaged(&path, &said);
            return Ok(());
        }
        let kind = Kind::of_name(name);
        let kind = kind.or_else(|| self.kind_of_content(&head, beginning));
        let facts = FileFacts {
            path: &path,
            size: head.size,
            kind: kind.unwrap_or(Kind::Other),
            read_s: head.read_s,
        };
        let done = self.collector.finish(place, pieces, &facts);
        done.map_err(|error| MeasureError::Io {
            path: "the file for --csv".into(),
            error,
        })
    }

    fn is_wanted(&mut self, inode: u32, head: &Head) -> bool {
        if self
            .looks
            .read_since_s
            .is_some_and(|since| head.read_s < since)
        {
            self.collector.left_out.not_read_lately += 1;
            return false;
        }
        !self
            .collector
            .is_known(self.place, u64::from(inode), head.links)
    }

    fn kind_of_content(&self, head: &Head, beginning: Option<u64>) -> Option<Kind> {
        if !self.looks.reads_headers || head.is_encrypted {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        let length = usize::try_from(head.size).map_or(HEADER_BYTES, |size| size.min(HEADER_BYTES));
        let header = header.get_mut(..length)?;
        self.image.read_exact_at(header, beginning?).ok()?;
        Kind::of_header(header)
    }
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, b"/", name].concat()
}
