//! strace: a program is traced, and what it is known to do must be what the trace says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Cursor, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use mobifs_trace::{EventKind, Format, LoadOptions, Loaded, Trace, import, load};

const DIRECTORY: &str = "MOBIFS_TRACED_DIRECTORY";

/// What is traced: run by the test below in a process of its own.
#[test]
#[ignore = "is run under strace by another test"]
fn traced_program() {
    let directory = std::env::var_os(DIRECTORY).unwrap();
    std::env::set_current_dir(directory).unwrap();
    fs::create_dir("app").unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open("app/a, \"b\"")
        .unwrap();
    file.write_all(&[1; 100]).unwrap();
    file.write_all_at(&[2; 10], 4096).unwrap();
    let mut twin = file.try_clone().unwrap();
    twin.seek(SeekFrom::Start(50)).unwrap();
    file.write_all(&[3; 7]).unwrap();
    file.sync_data().unwrap();
    fs::rename("app/a, \"b\"", "app/renamed").unwrap();
    file.set_len(60).unwrap();
    fs::hard_link("app/renamed", "app/linked").unwrap();
    std::os::unix::fs::symlink("renamed", "app/symlink").unwrap();
    let mut appending = OpenOptions::new().append(true).open("app/linked").unwrap();
    appending.write_all(&[4; 5]).unwrap();
    drop(appending);
    std::env::set_current_dir("app").unwrap();
    assert!(File::open("none").is_err());
    let status = Command::new("/bin/sh")
        .args(["-c", "echo x > child; cat child >> renamed"])
        .status();
    assert!(status.unwrap().success());
    std::thread::spawn(|| fs::write("thread", [5; 9]).unwrap())
        .join()
        .unwrap();
    fs::remove_file("linked").unwrap();
    fs::remove_file("renamed").unwrap();
    twin.write_all(&[6; 3]).unwrap();
    fs::write("renamed", [7; 2]).unwrap();
    drop((file, twin));
    let mut content = String::new();
    File::open("child")
        .unwrap()
        .read_to_string(&mut content)
        .unwrap();
    fs::create_dir("../empty").unwrap();
    fs::remove_dir("../empty").unwrap();
    rustix::fs::sync();
}

const EXPECTED: &[&str] = &[
    "app make_directory app 0",
    "app create app/a, \"b\" 0",
    "app open app/a, \"b\" 0",
    "app write app/a, \"b\" 0+100 100",
    "app write app/a, \"b\" 4096+10 10",
    "app write app/a, \"b\" 50+7 7",
    "app sync app/a, \"b\" 0",
    "app rename app/a, \"b\" app/renamed 0",
    "app truncate app/renamed 60 0",
    "app link app/renamed app/linked 0",
    "app symlink app/symlink renamed 0",
    "app open app/linked 0",
    "app write app/linked 60+5 5",
    "app close app/linked 0",
    "app open app/none -2",
    "app open app/child 0",
    "app write app/child 0+2 2",
    "app open app/renamed 0",
    "app open app/child 0",
    "app read app/child 2",
    "app write app/renamed 65+2 2",
    "app read app/child 0",
    "app open app/thread 0",
    "app write app/thread 0+9 9",
    "app close app/thread 0",
    "app unlink app/linked 0",
    "app unlink app/renamed 0",
    "app write app/renamed\0 57+3 3",
    "app create app/renamed 0",
    "app open app/renamed 0",
    "app write app/renamed 0+2 2",
    "app close app/renamed 0",
    "app close app/renamed\0 0",
    "app open app/child 0",
    "app read app/child 2",
    "app read app/child 0",
    "app close app/child 0",
    "empty make_directory empty 0",
    "empty remove_directory empty 0",
    ". sync_all  0",
];

fn described(trace: &Trace) -> Vec<String> {
    let name = |path| String::from_utf8_lossy(trace.paths.get(path)).into_owned();
    let relevant = trace
        .events
        .iter()
        .filter(|event| !matches!(event.kind, EventKind::Stat { .. }));
    let events = relevant.map(|event| {
        let app = String::from_utf8_lossy(trace.app_of(event));
        let path = event.kind.path().map(name).unwrap_or_default();
        let rest = match event.kind {
            EventKind::Write { offset, length, .. } => format!(" {offset}+{length}"),
            EventKind::Truncate { length, .. } => format!(" {length}"),
            kind => kind
                .target()
                .map(|target| format!(" {}", name(target)))
                .unwrap_or_default(),
        };
        format!("{app} {} {path}{rest} {}", event.kind.name(), event.result)
    });
    events.collect()
}

/// The trace of the program above; none if there is no strace.
fn recorded(directory: &Path, extra: &[&str], start: Option<&Path>) -> Option<Loaded> {
    let output = directory.join("output");
    let root = directory.join("root");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir(&root).unwrap();
    let status = Command::new("strace")
        .args(["-f", "-ttt", "-T", "-s", "0", "-o"])
        .arg(&output)
        .args(extra)
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "strace::traced_program",
            "--ignored",
            "--test-threads",
            "1",
        ])
        .env(DIRECTORY, &root)
        .output();
    let status = match status {
        Err(error) => {
            mobifs_skip::skip(format_args!("strace cannot be run: {error}"));
            return None;
        }
        Ok(output) => output.status,
    };
    assert!(status.success(), "{status}");
    let options = LoadOptions {
        strict: true,
        root: Some(root),
        directory: start.map(Path::to_owned),
        ..LoadOptions::default()
    };
    Some(load(&output, &options).unwrap())
}

/// The shell closes its descriptors in ways of its own, and asks for attributes.
fn without_shell_closings(mut described: Vec<String>) -> Vec<String> {
    let shell: Vec<usize> = (0..described.len())
        .filter(|&at| described[at].ends_with("none -2"))
        .collect();
    let thread = described
        .iter()
        .position(|line| line.contains("open app/thread"))
        .unwrap();
    let mut at = shell[0];
    let mut end = thread;
    while at < end {
        if described[at].contains(" close ") {
            described.remove(at);
            end -= 1;
        } else {
            at += 1;
        }
    }
    described
}

#[test]
fn a_trace_says_what_the_program_did() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let start = std::env::current_dir().unwrap();
    // With and without the help of -y.
    for (extra, start) in [(&["-y"][..], None), (&[], Some(start.as_path()))] {
        let Some(Loaded { trace, .. }) = recorded(&directory, extra, start) else {
            return;
        };
        let seen = without_shell_closings(described(&trace));
        // That child and thread are new is not known: no call had looked for them.
        assert_eq!(seen, EXPECTED, "{extra:?}");
        let tasks: BTreeMap<u32, u32> = trace
            .events
            .iter()
            .map(|event| (event.thread, event.process))
            .collect();
        let processes: std::collections::BTreeSet<u32> = tasks.values().copied().collect();
        assert!(
            processes.len() >= 2 && tasks.len() > processes.len(),
            "{tasks:?}"
        );
        assert!(trace.events.iter().any(|event| event.duration_ns > 0));
    }
}

const SAMPLE: &str = "\
7 1700000000.000000 chdir(\"/r\") = 0 <0.000010>
7 1700000000.000100 openat(AT_FDCWD, \"app/x\\ny\", O_RDWR|O_CREAT|O_EXCL, 0640) = 3 <0.000020>
7 1700000000.000200 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>
8 1700000000.000250 write(3, \"\"..., 5 <unfinished ...>
7 1700000000.000260 <... clone resumed>, child_tidptr=0x7f) = 8 <0.000060>
8 1700000000.000300 <... write resumed>) = 5 <0.000050>
7 1700000000.000310 lseek(3, 0, SEEK_CUR) = 5 <0.000001>
garbage
8 1700000000.000320 writev(3, [{iov_base=\"\"..., iov_len=3}, {iov_base=\"\"..., iov_len=4}], 2) = 7 <0.000001>
8 1700000000.000330 write(1</dev/pts/0<char 136:0>>, \"\"..., 9) = 9 <0.000001>
8 1700000000.000340 write(4<TCP:[127.0.0.1:1->127.0.0.1:2]>, \"\"..., 9) = 9 <0.000001>
8 1700000000.000350 fallocate(3, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 0, 4096) = 0 <0.000001>
8 1700000000.000360 read(3, 0x7ffe, 10) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
8 1700000000.000370 pwrite64(3, \"\"..., 10, 0) = -1 ENOSPC (No space left on device) <0.000001>
8 1700000000.000380 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000 <0.000001>
8 1700000000.000390 msync(0x7f0000001000, 4096, MS_SYNC) = 0 <0.000001>
8 1700000000.000395 copy_file_range(3, [0], 3, [100] => [110], 10, 0) = 10 <0.000001>
8 1700000000.000400 +++ exited with 0 +++
7 1700000000.000500 utimensat(3, NULL, NULL, 0) = 0 <0.000001>
7 1700000000.000600 exit_group(0) = ?
7 1700000000.000700 +++ exited with 0 +++
";

fn sample(strict: bool) -> Result<Loaded, mobifs_trace::LoadError> {
    let options = LoadOptions {
        strict,
        root: Some("/r".into()),
        ..LoadOptions::default()
    };
    let input = Box::new(Cursor::new(SAMPLE.as_bytes()));
    import(Format::Strace, Path::new("file"), input, &options)
}

#[test]
fn unfinished_calls_and_processes_are_followed() {
    let Loaded { trace, report } = sample(false).unwrap();
    let file = "app/x\ny";
    let expected = [
        format!("app create {file} 0"),
        format!("app open {file} 0"),
        format!("app write {file} 0+5 5"),
        format!("app write {file} 5+7 7"),
        format!("app allocate {file} 0"),
        format!("app read {file} -4"),
        format!("app write {file} 0+10 -28"),
        format!("app sync {file} 0"),
        format!("app read {file} 10"),
        format!("app write {file} 100+10 10"),
        format!("app set_attributes {file} 0"),
        format!("app close {file} 0"),
    ];
    assert_eq!(described(&trace), expected);
    let write = &trace.events[2];
    assert_eq!(
        (write.time.0, write.duration_ns, write.process),
        (250_000, 50_000, 8)
    );
    assert_eq!((report.malformed, report.lines), (1, 21));
    assert!(report.malformed_quoted[0].starts_with("file: line 8: "));
    assert!(
        sample(true)
            .unwrap_err()
            .to_string()
            .starts_with("file: line 8: ")
    );
    assert_eq!(
        report.left_out["descriptor that is no file: a pipe, a socket, a terminal"],
        1
    );
    assert_eq!(report.left_out["outside the root"], 2);
    assert_eq!(report.inexact.len(), 1);
}

/// A file in the root that was renamed was an app of its own.
#[test]
fn a_rename_is_of_the_app_of_its_directories() {
    let text = "\
7 1700000000.000100 rename(\"/r/f\", \"/r/g\") = 0 <0.000001>
7 1700000000.000200 rename(\"/r/app/f\", \"/r/app/g\") = 0 <0.000001>
7 1700000000.000300 +++ exited with 0 +++
";
    let options = LoadOptions {
        strict: true,
        root: Some("/r".into()),
        ..LoadOptions::default()
    };
    let input = Box::new(Cursor::new(text.as_bytes()));
    let loaded = import(Format::Strace, Path::new("file"), input, &options).unwrap();
    let expected = [". rename f g 0", "app rename app/f app/g 0"];
    assert_eq!(described(&loaded.trace), expected);
}
