//! The supervisor is killed while programs make calls: they go on, and each call does what it says.
#![allow(unsafe_code, reason = "these are the calls that are tested")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::ptr::null_mut;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{By, Fixture, build_go, mechanisms, needs_root, wait_until};
use crate::life::{go_on, waiting};
use crate::supervisors::{kill_all, supervisors, wait_until_whole, whole, zombies};

/// Where the program of these tests works, separated by colons.
const PLACES: &str = "MOBIFS_RUN_WORK";
/// Who finds this file in the first place ends.
const STOP: &str = "stop";
const WORKED: &str = "OUTCOME worked";
const THREADS: usize = 4;
const RECORD: usize = size_of::<u32>();
const KILLS: usize = 30;
/// How often a file is opened in one round.
const OPENED_AGAIN: usize = 50;
/// The three processes.
const OUTER: usize = 0;
const INNER: usize = 1;
const WORKER: usize = 2;

/// The program: works in several threads, by calls that the supervisor looks at.
#[test]
fn works_until_it_is_stopped() {
    let Ok(places) = std::env::var(PLACES) else {
        return mobifs_skip::no_test();
    };
    let places: Vec<PathBuf> = places.split(':').map(PathBuf::from).collect();
    let stop = places[0].join(STOP);
    let work = |thread: usize| {
        let place = &places[thread % places.len()];
        let files = Files::new(place, thread);
        let mut rounds = 0;
        while !stop.exists() {
            files.work(rounds);
            rounds += 1;
        }
        files.check(rounds);
        rounds
    };
    let rounds: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{WORKED} {rounds:?}");
}

/// The files of one thread.
struct Files {
    place: PathBuf,
    thread: usize,
    synced: File,
    written: File,
    appended: File,
    mapped: File,
}

impl Files {
    fn new(place: &Path, thread: usize) -> Self {
        let open = |name: &str| {
            let path = place.join(format!("{name}-{thread}"));
            // What another program has left.
            let _none_there = fs::remove_file(&path);
            let mut options = OpenOptions::new();
            let appends = name == "appended";
            options.read(true).write(!appends).append(appends);
            options.create(true).open(path).unwrap()
        };
        let _none_there = fs::remove_file(place.join(format!("opened-{thread}")));
        let mapped = open("mapped");
        mapped.set_len(4096).unwrap();
        Self {
            place: place.to_owned(),
            thread,
            synced: open("synced"),
            written: open("written"),
            appended: open("appended"),
            mapped,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(format!("{name}-{}", self.thread))
    }

    fn work(&self, round: u32) {
        let place = u64::from(round) * RECORD as u64;
        self.synced
            .write_all_at(&round.to_ne_bytes(), place)
            .unwrap();
        let number = self.synced.as_raw_fd();
        // SAFETY: the calls touch no memory.
        unsafe {
            does("fsync", libc::syscall(libc::SYS_fsync, number));
            does("fdatasync", libc::syscall(libc::SYS_fdatasync, number));
            let all = libc::syscall(libc::SYS_sync_file_range, number, 0_i64, 0_i64, 7);
            does("sync_file_range", all);
            does("fsync of the C library", libc::fsync(number).into());
        }
        if round.is_multiple_of(16) {
            // SAFETY: the call touches no memory.
            let done = unsafe { libc::syscall(libc::SYS_syncfs, number) };
            does("syncfs", done);
        }
        write_durably(&self.written, round, place as i64);
        // To the end, and to where the descriptor is.
        write_durably(&self.appended, round, place as i64);
        write_durably(&self.appended, round, -1);
        self.map(round);
        let opened = self.path("opened");
        let append = libc::O_APPEND | libc::O_CREAT;
        open_durably(&opened, append)
            .write_all(&round.to_ne_bytes())
            .unwrap();
        // A kill just when the program gets its descriptor had it take 0 for that.
        for _ in 0..OPENED_AGAIN {
            open_durably(&opened, libc::O_CREAT);
        }
        let new = self.path("new");
        open_durably(&new, libc::O_CREAT | libc::O_EXCL);
        open_durably(&new, libc::O_CREAT | libc::O_TRUNC)
            .write_all(b"words")
            .unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"words");
        fs::remove_file(&new).unwrap();
    }

    fn map(&self, round: u32) {
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let number = self.mapped.as_raw_fd();
        // SAFETY: a mapping of a file that is as long, taken away at the end.
        unsafe {
            let none = null_mut::<libc::c_void>();
            let start = libc::syscall(libc::SYS_mmap, none, 4096, both, shared, number, 0_i64);
            does("mmap", start.min(0));
            let start = std::ptr::with_exposed_provenance_mut::<u32>(start as usize);
            start.write_volatile(round);
            does(
                "msync",
                libc::msync(start.cast(), 4096, libc::MS_SYNC).into(),
            );
            libc::munmap(start.cast(), 4096);
        }
        let mut read = [0; RECORD];
        self.mapped.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, round.to_ne_bytes(), "what was stored is in the file");
    }

    /// Nothing is missing, and nothing there twice.
    fn check(&self, rounds: u32) {
        let bytes = |times: usize| -> Vec<u8> {
            let rounds = 0..rounds;
            rounds
                .flat_map(|round| round.to_ne_bytes().repeat(times))
                .collect()
        };
        for (name, times) in [
            ("synced", 1),
            ("written", 1),
            ("opened", 1),
            ("appended", 2),
        ] {
            let read = fs::read(self.path(name)).unwrap();
            assert!(read == bytes(times), "{name}: {} bytes", read.len());
        }
    }
}

fn does(what: &str, answer: i64) {
    assert!(answer == 0, "{what}: {}", Error::last_os_error());
}

fn write_durably(file: &File, round: u32, place: i64) {
    let bytes = round.to_ne_bytes();
    let piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: RECORD,
    };
    let (number, piece, flags) = (file.as_raw_fd(), &raw const piece, libc::RWF_DSYNC);
    // SAFETY: one piece of memory that lives.
    let count = unsafe { libc::syscall(libc::SYS_pwritev2, number, piece, 1, place, place, flags) };
    does("pwritev2", count - RECORD as i64);
}

/// Opens with `O_SYNC`, and makes sure that it is the file of this name.
fn open_durably(path: &Path, flags: libc::c_int) -> File {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let flags = flags | libc::O_SYNC | libc::O_WRONLY | libc::O_CLOEXEC;
    let directory = libc::AT_FDCWD;
    // SAFETY: the path ends with a NUL.
    let number = unsafe { libc::syscall(libc::SYS_openat, directory, name.as_ptr(), flags, 0o644) };
    does("openat", number.min(0));
    assert!(number > 2, "{}: descriptor {number}", path.display());
    // SAFETY: the kernel has just made the descriptor.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number as RawFd) });
    let (opened, named) = (file.metadata().unwrap(), fs::metadata(path).unwrap());
    assert_eq!(opened.ino(), named.ino(), "{}", path.display());
    file
}

/// The same in Go, whose programs are static: goroutines that open, write, map and make durable.
const GO: &str = r#"
package main

import ("encoding/binary"; "fmt"; "os"; "sync"; "syscall")

func must(err error) { if err != nil { panic(err) } }

func work(place string, stop string, name int) uint32 {
	path := func(kind string) string { return fmt.Sprintf("%s/go-%s-%d", place, kind, name) }
	file, err := os.Create(path("synced"))
	must(err)
	mapped, err := os.Create(path("mapped"))
	must(err)
	must(mapped.Truncate(4096))
	record := make([]byte, 4)
	for round := uint32(0); ; round++ {
		if _, err := os.Stat(stop); err == nil { return round }
		binary.NativeEndian.PutUint32(record, round)
		_, err := file.Write(record)
		must(err)
		must(file.Sync())
		must(syscall.Fdatasync(int(file.Fd())))
		opened, err := os.OpenFile(path("opened"), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_SYNC, 0644)
		must(err)
		_, err = opened.Write(record)
		must(err)
		must(opened.Close())
		memory, err := syscall.Mmap(int(mapped.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		must(err)
		copy(memory, record)
		must(syscall.Munmap(memory))
		read := make([]byte, 4)
		_, err = mapped.ReadAt(read, 0)
		must(err)
		if string(read) != string(record) { panic("what was stored is not in the file") }
	}
}

func main() {
	var all sync.WaitGroup
	for name := range 4 {
		place := os.Args[1+name%2]
		all.Add(1)
		go func() {
			defer all.Done()
			rounds := work(place, os.Args[1]+"/stop", name)
			for _, kind := range []string{"synced", "opened"} {
				bytes, err := os.ReadFile(fmt.Sprintf("%s/go-%s-%d", place, kind, name))
				must(err)
				if len(bytes) != int(4*rounds) { panic(fmt.Sprintf("%s: %d bytes, %d rounds", kind, len(bytes), rounds)) }
				for at := uint32(0); at < rounds; at++ {
					if binary.NativeEndian.Uint32(bytes[4*at:]) != at { panic(kind) }
				}
			}
		}()
	}
	all.Wait()
	fmt.Println("OUTCOME worked")
}
"#;

/// A program that works, with a steered filesystem and another one.
struct Working {
    /// None: it has ended.
    child: Option<Child>,
    word: String,
    stop: PathBuf,
}

impl Drop for Working {
    fn drop(&mut self) {
        // A test has failed.
        if let Some(child) = &mut self.child {
            let _killed = child.kill();
            let _ended = child.wait();
        }
    }
}

impl Working {
    fn start(fixture: &Fixture, by: By, go: Option<&str>) -> Self {
        let (steered, other) = (fixture.steered(), fixture.other());
        let stop = steered.join(STOP);
        let _none_there = fs::remove_file(&stop);
        // Of this test only: others run at the same time.
        let place = steered.parent().and_then(Path::file_name).unwrap();
        let word = format!("works-{}", place.to_string_lossy());
        let words = [by.word(), "--app", &word, "--"];
        let mut command = fixture.command(&words);
        match go {
            Some(program) => {
                command.arg(program).args([&steered, &other]);
            }
            None => {
                let places = format!("{}:{}", steered.display(), other.display());
                command.arg(std::env::current_exe().unwrap());
                command.args(["--exact", "kills::works_until_it_is_stopped", "--nocapture"]);
                command.env(PLACES, places);
            }
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Some(command.spawn().unwrap());
        Self { child, word, stop }
    }

    /// Kills one of the three processes, when there are all, and waits for its end.
    fn kill(&self, which: usize) {
        kill(&[wait_until_whole(&self.word)[which]]);
    }

    /// The program ends without a complaint, and nothing of the supervisor is left.
    fn end(mut self) {
        File::create(&self.stop).unwrap();
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains(WORKED),
            "{output:?}"
        );
        wait_until(|| supervisors(&self.word).is_empty());
    }
}

fn kill(pids: &[Pid]) {
    for pid in pids {
        kill_process(*pid, Signal::KILL).unwrap();
    }
    let has_ended = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    wait_until(|| pids.iter().all(has_ended));
}

fn programs(fixture: &Fixture) -> Vec<(By, Option<String>)> {
    let mut programs: Vec<(By, Option<String>)> = mechanisms()
        .into_iter()
        .filter(|by| *by != By::Preload)
        .map(|by| (by, None))
        .collect();
    programs.extend(build_go(fixture, GO).map(|go| (By::Both, Some(go))));
    programs
}

/// Each call that the filter passes on failed with `ENOSYS` for the rest of the program's life, mapping a file and
/// `sync` as well, when the one process of the supervisor was killed.
#[test]
fn programs_go_on_when_any_process_of_the_supervisor_is_killed() {
    needs_root!();
    let fixture = Fixture::new();
    for (by, go) in programs(&fixture) {
        let working = Working::start(&fixture, by, go.as_deref());
        for turn in 0..KILLS {
            // Each in turn, at different moments of the program's rounds.
            working.kill((turn + turn / 3) % 3);
            std::thread::sleep(Duration::from_millis(turn as u64 * 7 % 13));
        }
        wait_until_whole(&working.word);
        assert_eq!(zombies(), 0);
        working.end();
    }
}

/// A worker that ends all the time, whatever ends it, is started less often; the calls are the kernel's meanwhile.
#[test]
fn programs_go_on_when_the_worker_does_not_stay() {
    needs_root!();
    let fixture = Fixture::new();
    let working = Working::start(&fixture, By::Seccomp, None);
    for _ in 0..16 {
        working.kill(WORKER);
    }
    working.end();
}

#[test]
fn programs_go_on_when_two_processes_of_the_supervisor_are_killed() {
    needs_root!();
    let fixture = Fixture::new();
    let working = Working::start(&fixture, By::Seccomp, None);
    for (first, second) in [(INNER, WORKER), (WORKER, OUTER), (OUTER, WORKER)] {
        let all = wait_until_whole(&working.word);
        // None of them does anything after the first kill.
        let both = [all[first], all[second]];
        for pid in both {
            kill_process(pid, Signal::STOP).unwrap();
        }
        kill(&both);
    }
    // Without guards the worker goes on.
    let all = wait_until_whole(&working.word);
    for pid in all {
        kill_process(pid, Signal::STOP).unwrap();
    }
    kill(&all[..2]);
    kill_process(all[WORKER], Signal::CONT).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(whole(&working.word).is_none());
    assert_eq!(supervisors(&working.word), [all[WORKER]]);
    working.end();
}

/// As docs/RUN.md says: nothing is taken for durable that is not.
#[test]
fn calls_fail_when_the_whole_supervisor_was_killed() {
    needs_root!();
    let fixture = Fixture::new();
    let child = waiting(&fixture, By::Seccomp, "raw-fsync", "calls-alone");
    kill_all("calls-alone");
    let told = go_on(child);
    let expected = format!("raw-fsync errno {}", libc::ENOSYS);
    assert!(told.contains(&expected), "{told}");
}

/// `sync` cannot say that it failed, and did nothing, on any filesystem.
#[test]
fn sync_ends_a_program_whose_whole_supervisor_was_killed() {
    needs_root!();
    if !mechanisms().contains(&By::Both) {
        return;
    }
    let fixture = Fixture::new();
    let mut child = waiting(&fixture, By::Both, "sync", "syncs-alone");
    kill_all("syncs-alone");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSYS));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the supervisor was killed"), "{said}");
}
