//! What `/proc` shows of a process, for all of its threads.
//!
//! A thread can have a working directory, a root and a mount namespace of its own (`unshare(CLONE_FS)`), or a table of
//! open files of its own (`unshare(CLONE_FILES)`), which the process's own directory in `/proc` does not show.
#![expect(
    unsafe_code,
    reason = "kcmp, which says whether threads share something, has no safe call"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// What `kcmp` compares.
const KCMP_FILES: libc::c_long = 2;
const KCMP_FS: libc::c_long = 3;
/// Arguments that it does not use here.
const NOTHING: libc::c_long = 0;

/// The directories of `/proc` that show what one process has: its own, and those of its threads that may have
/// something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessViews {
    process: PathBuf,
    threads: Vec<PathBuf>,
}

impl ProcessViews {
    /// What is shown of a process in `/proc`, which is that of this process's own PID namespace if `is_own_proc`:
    /// otherwise numbers say nothing to the kernel, and each thread is looked at.
    pub(crate) fn of(process: PathBuf, is_own_proc: bool) -> Self {
        let first = number_of(&process);
        let threads = fs::read_dir(process.join("task")).into_iter().flatten();
        let threads = threads.flatten().map(|thread| thread.path());
        let has_own = |thread: &PathBuf| {
            let number = number_of(thread);
            number != first && !(is_own_proc && share_everything(first, number))
        };
        let threads = threads.filter(has_own).collect();
        Self { process, threads }
    }

    /// The process's own one.
    pub(crate) fn process(&self) -> &Path {
        &self.process
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Path> {
        let threads = self.threads.iter().map(PathBuf::as_path);
        std::iter::once(self.process()).chain(threads)
    }

    /// Its open files, as links of `/proc`.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = PathBuf> {
        let tables = self.all().map(|view| view.join("fd"));
        let entries = tables.flat_map(|table| fs::read_dir(table).into_iter().flatten());
        entries.flatten().map(|descriptor| descriptor.path())
    }

    /// What is mapped: threads share it. A process whose first thread has ended shows it by another.
    pub(crate) fn maps(&self) -> String {
        let maps = self.all().map(|view| view.join("maps"));
        let mut texts = maps.filter_map(|path| fs::read_to_string(path).ok());
        texts.find(|text| !text.is_empty()).unwrap_or_default()
    }
}

/// Whether numbers of `/proc` are those that this process's calls take.
pub(crate) fn is_own_proc() -> bool {
    let own = fs::read_link("/proc/self");
    own.is_ok_and(|own| *own == *std::process::id().to_string())
}

fn number_of(directory: &Path) -> Option<libc::c_long> {
    directory.file_name()?.to_str()?.parse().ok()
}

/// Whether two threads share both their table of open files and their directories. No, where that cannot be found out.
fn share_everything(one: Option<libc::c_long>, other: Option<libc::c_long>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return false;
    };
    [KCMP_FILES, KCMP_FS].into_iter().all(|what| {
        // SAFETY: the call takes numbers only.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, what, NOTHING, NOTHING) };
        order == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn only_threads_with_something_of_their_own_are_looked_at() {
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        let (sender, receiver) = mpsc::channel();
        let mut ends = Vec::new();
        for flags in [0, libc::CLONE_FS, libc::CLONE_FILES] {
            let sender = sender.clone();
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            std::thread::spawn(move || {
                // SAFETY: it concerns this thread alone, which ends with the test.
                let done = unsafe { libc::unshare(flags) };
                let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
                sender.send((done == 0, thread)).unwrap();
                let _ended = ended.recv();
            });
            let (is_done, thread) = receiver.recv().unwrap();
            assert!(is_done);
            let views = ProcessViews::of(own.clone(), is_own_proc());
            let is_seen = views.all().any(|view| view.ends_with(&thread));
            assert!(is_seen || flags == 0, "{flags}: {views:?}");
            let all = ProcessViews::of(own.clone(), false);
            assert!(all.all().any(|view| view.ends_with(&thread)), "{all:?}");
        }
    }

    #[test]
    fn a_process_is_seen_with_its_files_and_mappings() {
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        let views = ProcessViews::of(own.clone(), is_own_proc());
        assert_eq!(views.process(), own);
        assert!(views.descriptors().next().is_some());
        assert!(views.maps().contains("[stack]"));
    }
}
