//! Threads that have a working directory or a table of files of their own use a directory.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::adopt::Adoption;
use crate::fixture::{IN_USE, fails, needs_mounts, succeeds};

const CLONE_FS: u32 = 0x200;
const CLONE_FILES: u32 = 0x400;

/// A program one of whose threads has something of its own, until it is dropped.
struct ThreadUser(Child);

impl ThreadUser {
    fn of(directory: &Path, flag: u32) -> Self {
        let script = format!(
            "import ctypes, os, sys, threading, time\n\
             def use():\n  \
               if ctypes.CDLL(None).unshare({flag}): os._exit(1)\n  \
               if {flag} == {CLONE_FS}: os.chdir(sys.argv[1])\n  \
               else: os.open(sys.argv[1] + '/file', os.O_RDWR)\n  \
               print('ready', flush=True)\n  \
               time.sleep(1000)\n\
             threading.Thread(target=use).start()\n"
        );
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).arg(directory);
        let command = command.current_dir("/").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 5];
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut ready).unwrap();
        Self(child)
    }
}

impl Drop for ThreadUser {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Such a thread went on past the mount, and what programs wrote through the mount was overwritten.
#[test]
fn a_thread_with_something_of_its_own_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let app = adoption.directory.join("app");
    for (flag, what) in [
        (CLONE_FS, "its working directory"),
        (CLONE_FILES, "app/file is open"),
    ] {
        let before = adoption.seen();
        let user = ThreadUser::of(&app, flag);
        let pid = user.0.id().to_string();
        let refused = adoption.begin().output().unwrap();
        fails(&refused, IN_USE, &["is in use by process", &pid, what]);
        adoption.is_as_before(&before);
        drop(user);
        adoption.adopt();
        let user = ThreadUser::of(&app, flag);
        let pid = user.0.id().to_string();
        fails(&adoption.unadopt(), IN_USE, &["stays adopted", &pid, what]);
        drop(user);
        succeeds(&adoption.unadopt());
    }
}
