//! Files that were opened without `O_SYNC` while a promise held, when it lapses: their inodes get the flag of
//! `chattr +S`, so that writes wait through descriptors that are open already.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::process::{Signal, kill_process};

use crate::fixture::{By, Fixture, PROMISE_S, needs_root, wait_until};
use crate::program::add_to;
use crate::supervisors::wait_until_whole;

const NOBODY: u32 = 65_534;

fn is_synchronous(path: &Path) -> bool {
    let flags = ioctl_getflags(File::open(path).unwrap()).unwrap();
    flags.contains(IFlags::SYNC)
}

fn set_synchronous(path: &Path) {
    let file = File::open(path).unwrap();
    let flags = ioctl_getflags(&file).unwrap();
    ioctl_setflags(&file, flags | IFlags::SYNC).unwrap();
}

/// What only the commands of this test have in their words: others may run the same tests at the same time.
fn word_of(fixture: &Fixture) -> String {
    let place = fixture.steered();
    let base = place.parent().and_then(Path::file_name).unwrap();
    format!("lapses-{}", base.to_string_lossy())
}

/// A program that has files open which it opened with `O_DSYNC`.
struct Writer {
    place: PathBuf,
    program: Option<Child>,
    stage: u32,
}

impl Writer {
    /// Makes the files that are not there, and starts the program.
    fn start(fixture: &Fixture, names: &str, adapt: impl Fn(&mut Command)) -> Self {
        let place = fixture.steered();
        for name in names.split_whitespace() {
            let options = &mut File::options();
            let made = options.append(true).create(true).open(place.join(name));
            made.unwrap();
        }
        fs::write(place.join("names"), names).unwrap();
        // What tests do here is on the disk before flushes are counted.
        rustix::fs::syncfs(File::open(&place).unwrap()).unwrap();
        let word = word_of(fixture);
        let mut command = fixture.command(&[By::Seccomp.word(), "--app", &word, "--"]);
        add_to(&mut command, &format!("stages {}", place.display()));
        adapt(&mut command);
        let program = Some(command.stdout(Stdio::piped()).spawn().unwrap());
        Self {
            place,
            program,
            stage: 0,
        }
    }

    /// Has the program write to all of its files.
    fn write(&mut self) {
        fs::write(self.place.join(format!("begin-{}", self.stage)), "").unwrap();
        let done = self.place.join(format!("done-{}", self.stage));
        wait_until(|| done.exists());
        self.stage += 1;
    }

    /// What each write has done.
    fn end(mut self) -> String {
        fs::write(self.place.join("end"), "").unwrap();
        let output = self.program.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let said = text
            .lines()
            .filter_map(|line| line.split("OUTCOME ").nth(1));
        let said = said.filter(|said| !said.starts_with("stages"));
        said.collect::<Vec<_>>().join(", ")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A test has failed.
        if let Some(program) = &mut self.program {
            let _killed = program.kill();
            let _ended = program.wait();
        }
    }
}

/// Writes through descriptors that were open already went on to return at once, and were lost in a crash.
#[test]
fn writes_wait_when_the_promise_has_lapsed_and_return_when_it_holds_again() {
    needs_root!();
    let fixture = Fixture::new();
    let place = fixture.steered();
    let (file, moved, marked) = (
        place.join("file"),
        place.join("moved"),
        place.join("marked"),
    );
    File::create(&marked).unwrap();
    set_synchronous(&marked);
    let mut writer = Writer::start(&fixture, "file moving marked", |_| ());
    writer.write();
    assert!(!is_synchronous(&file));
    fs::rename(place.join("moving"), &moved).unwrap();
    for _ in 0..2 {
        fixture.registration().withdraw().unwrap();
        wait_until(|| is_synchronous(&file) && is_synchronous(&moved));
        writer.write();
        fixture.registration().promise(PROMISE_S).unwrap();
        wait_until(|| !is_synchronous(&file) && !is_synchronous(&moved));
        writer.write();
    }
    let returns = "file returns, moving returns, marked waits";
    let waits = "file waits, moving waits, marked waits";
    let expected = [returns, waits, returns, waits, returns].join(", ");
    assert_eq!(writer.end(), expected);
    // It had the flag before.
    assert!(is_synchronous(&marked));
}

#[test]
fn the_flag_goes_with_the_last_program_and_a_promise_that_is_not_renewed_lapses() {
    needs_root!();
    let fixture = Fixture::new();
    let file = fixture.steered().join("file");
    let mut writer = Writer::start(&fixture, "file", |_| ());
    writer.write();
    fixture.registration().promise(1).unwrap();
    wait_until(|| is_synchronous(&file));
    writer.write();
    // Another `mobifs run` that ends takes away what it has set.
    let opened = File::open(&file).unwrap();
    let flags = ioctl_getflags(&opened).unwrap();
    ioctl_setflags(&opened, flags - IFlags::SYNC).unwrap();
    wait_until(|| is_synchronous(&file));
    assert_eq!(writer.end(), "file returns, file waits");
    wait_until(|| !is_synchronous(&file));
}

/// There is room for the files that programs have open, not for all that they have had open.
#[test]
fn files_that_were_closed_are_forgotten() {
    const MANY: u32 = 2500;
    needs_root!();
    let fixture = Fixture::new();
    let place = fixture.steered();
    fs::write(place.join("closed"), MANY.to_string()).unwrap();
    let mut writer = Writer::start(&fixture, "file", |_| ());
    writer.write();
    fixture.registration().withdraw().unwrap();
    wait_until(|| is_synchronous(&place.join("file")));
    let closed = |number: u32| place.join(format!("closed-{number}"));
    wait_until(|| !(0..MANY).any(|number| is_synchronous(&closed(number))));
    assert!(is_synchronous(&place.join("file")));
    assert_eq!(writer.end(), "file returns");
}

/// What a killed process of the supervisor has remembered, the next one knows.
#[test]
fn kills_of_the_supervisor_change_nothing() {
    needs_root!();
    let fixture = Fixture::new();
    let file = fixture.steered().join("file");
    let mut writer = Writer::start(&fixture, "file", |_| ());
    writer.write();
    let word = word_of(&fixture);
    let kill = |process: usize| {
        let before = wait_until_whole(&word);
        kill_process(before[process], Signal::KILL).unwrap();
        wait_until(|| wait_until_whole(&word)[2] != before[2]);
    };
    kill(2);
    fixture.registration().withdraw().unwrap();
    wait_until(|| is_synchronous(&file));
    writer.write();
    kill(1);
    fixture.registration().promise(PROMISE_S).unwrap();
    wait_until(|| !is_synchronous(&file));
    writer.write();
    let expected = "file returns, file waits, file returns";
    assert_eq!(writer.end(), expected);
}

/// Who may not set the flag could not make the file synchronous later.
#[test]
fn who_may_not_set_the_flag_opens_files_unchanged() {
    needs_root!();
    let fixture = Fixture::new();
    let place = fixture.steered();
    for open in [fixture.path("."), place.clone()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    for name in ["own", "other"] {
        File::create(place.join(name)).unwrap();
        let mode = fs::Permissions::from_mode(0o666);
        fs::set_permissions(place.join(name), mode).unwrap();
    }
    std::os::unix::fs::chown(place.join("own"), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut version = Command::new(crate::fixture::PROGRAM);
    let version = version.arg("--version").current_dir("/").uid(NOBODY);
    let can = version.output().is_ok_and(|output| output.status.success());
    if !mobifs_skip::can((!can).then_some("other users cannot reach the program")) {
        return;
    }
    let mut writer = Writer::start(&fixture, "own other", |command| {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    });
    writer.write();
    fixture.registration().withdraw().unwrap();
    wait_until(|| is_synchronous(&place.join("own")));
    assert!(!is_synchronous(&place.join("other")));
    writer.write();
    let expected = "own returns, other waits, own waits, other waits";
    assert_eq!(writer.end(), expected);
    wait_until(|| !is_synchronous(&place.join("own")));
}
