//! What several processes do to one file: mappings, fork, locks.

use crate::harness::{on_both, python};

#[test]
fn shared_mappings_are_seen_by_others_and_by_read() {
    on_both(|dir| {
        python(
            dir,
            r#"
import mmap, os
size = 64 * 4096
with open("mapped", "wb") as f:
    f.truncate(size)
fd = os.open("mapped", os.O_RDWR)
view = mmap.mmap(fd, size, mmap.MAP_SHARED)
child = os.fork()
if child == 0:
    for page in range(64):
        view[page * 4096:page * 4096 + 8] = b"child%03d" % page
    view.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for page in range(64):
    assert view[page * 4096:page * 4096 + 8] == b"child%03d" % page, page
    assert os.pread(fd, 8, page * 4096) == b"child%03d" % page, page
# What write(2) puts there is in the mapping, and the other way round after msync.
os.pwrite(fd, b"written", 100)
assert view[100:107] == b"written"
view[200:206] = b"mapped"
view.flush()
assert os.pread(fd, 6, 200) == b"mapped"
view.close()
os.close(fd)
with open("mapped", "rb") as f:
    data = f.read()
assert len(data) == size and data[100:107] == b"written" and data[200:206] == b"mapped"
"#,
        );
    });
}

#[test]
fn private_mappings_stay_private() {
    on_both(|dir| {
        python(
            dir,
            r#"
import mmap, os
with open("file", "wb") as f:
    f.write(b"a" * 10000)
fd = os.open("file", os.O_RDWR)
view = mmap.mmap(fd, 10000, mmap.MAP_PRIVATE)
view[5000:5004] = b"mine"
assert os.pread(fd, 4, 5000) == b"aaaa"
assert view[5000:5004] == b"mine"
# The rest of the last page after the end reads as zeros; a file that shrinks is shorter.
os.ftruncate(fd, 100)
assert os.fstat(fd).st_size == 100
"#,
        );
    });
}

#[test]
fn a_program_runs_from_the_mount() {
    on_both(|dir| {
        python(
            dir,
            r#"
import os, shutil, subprocess
shutil.copy(shutil.which("true"), "program")
os.chmod("program", 0o755)
assert subprocess.run(["./program"]).returncode == 0
# A running program cannot be written to.
shutil.copy(shutil.which("sleep"), "sleeper")
os.chmod("sleeper", 0o755)
running = subprocess.Popen(["./sleeper", "60"])
try:
    os.open("sleeper", os.O_WRONLY)
    raise SystemExit("a running program was opened for writing")
except OSError as error:
    assert error.errno == 26, error
finally:
    running.kill()
    running.wait()
"#,
        );
    });
}

const LOCKS: &str = r#"
import fcntl, os, struct, errno
def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
def refused(call):
    try:
        call()
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EACCES), error
        return
    raise AssertionError("the lock was granted")
open("file", "wb").write(b"x" * 1000)
fd = os.open("file", os.O_RDWR)
"#;

#[test]
fn record_locks_exclude_other_processes() {
    on_both(|dir| {
        let program = r#"
fcntl.lockf(fd, fcntl.LOCK_EX, 100, 50)
def other():
    mine = os.open("file", os.O_RDWR)
    refused(lambda: fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 149))
    refused(lambda: fcntl.lockf(mine, fcntl.LOCK_SH | fcntl.LOCK_NB, 0, 0))
    fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 0)
    fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 150)
child(other)
fcntl.lockf(fd, fcntl.LOCK_UN, 100, 50)
def free():
    mine = os.open("file", os.O_RDWR)
    fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
child(free)
"#;
        python(dir, &format!("{LOCKS}{program}"));
    });
}

#[test]
fn whole_file_locks_exclude_other_opens() {
    on_both(|dir| {
        let program = r#"
fcntl.flock(fd, fcntl.LOCK_EX)
def other():
    mine = os.open("file", os.O_RDWR)
    refused(lambda: fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB))
child(other)
# The lock belongs to the open file, which a child shares.
child(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
second = os.open("file", os.O_RDWR)
refused(lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB))
os.close(fd)
fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
"#;
        python(dir, &format!("{LOCKS}{program}"));
    });
}

#[test]
fn open_file_locks_exclude_other_opens_of_the_same_process() {
    on_both(|dir| {
        let program = r#"
F_OFD_SETLK = 37
def lock(descriptor, kind, start, length):
    fcntl.fcntl(descriptor, F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, start, length, 0))
lock(fd, fcntl.F_WRLCK, 0, 100)
second = os.open("file", os.O_RDWR)
refused(lambda: lock(second, fcntl.F_WRLCK, 99, 1))
lock(second, fcntl.F_WRLCK, 100, 1)
child(lambda: lock(fd, fcntl.F_WRLCK, 0, 100))
lock(fd, fcntl.F_UNLCK, 0, 100)
lock(second, fcntl.F_WRLCK, 0, 100)
"#;
        python(dir, &format!("{LOCKS}{program}"));
    });
}
