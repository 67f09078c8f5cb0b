//! `mobifs frag measure` as a user calls it.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn measure(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command
        .args(["frag", "measure"])
        .args(arguments)
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An ext4 image with three files; none, and the test is skipped, without mke2fs.
fn image(base: &Path) -> Option<PathBuf> {
    let tree = base.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a.db"), [1; 9000]).unwrap();
    fs::write(tree.join("b.jpg"), [1; 9000]).unwrap();
    fs::write(tree.join("c"), [1; 9000]).unwrap();
    let image = base.join("data.img");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .arg(&tree)
        .arg(&image);
    mobifs_skip::can(mobifs_skip::why_fails(&mut mke2fs)).then_some(image)
}

#[test]
fn a_measurement_has_a_table_a_document_lines_and_a_page() {
    let base = tempfile::tempdir().unwrap();
    let Some(image) = image(base.path()) else {
        return;
    };
    let image = image.to_str().unwrap();
    let (csv, html) = (base.path().join("f.csv"), base.path().join("p.html"));
    let files = [
        "--csv",
        csv.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ];
    let output = measure(&[&["--json"], &files[..], &[image]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["files"], 3);
    assert_eq!(report["mean_dof"], 1.0);
    assert_eq!(report["mean_dof_by_kind"]["sqlite"], 1.0);
    assert_eq!(report["mean_dof_by_kind"]["executable"], Value::Null);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 4);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    // Regression: "1 extents".
    assert!(page.contains("<small>1 extent, ") && !page.contains("<small>1 extents"));
    // Neither a link nor a device is replaced.
    let link = base.path().join("link");
    std::os::unix::fs::symlink("f.csv", &link).unwrap();
    let output = measure(&[
        "--csv",
        link.to_str().unwrap(),
        "--html",
        "/dev/stdout",
        image,
    ]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(link.is_symlink() && Path::new("/dev/stdout").is_symlink());
    assert!(String::from_utf8_lossy(&output.stdout).contains("</html>"));
    let output = measure(&[image]);
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(
        output.status.success() && table.contains("3 files measured"),
        "{table}"
    );
    assert_eq!(errors(&output), "", "progress is for terminals");
}

#[test]
fn bad_input_is_refused_in_one_sentence_and_nothing_is_lost() {
    let base = tempfile::tempdir().unwrap();
    let Some(image) = image(base.path()) else {
        return;
    };
    let text = image.to_str().unwrap();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = measure(arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    let before = fs::read(&image).unwrap();
    refused(&["--csv", text, text], 2, "cannot be written over");
    refused(&["--html", text, text], 2, "cannot be written over");
    refused(&["/nonexistent"], 1, "No such file");
    refused(&["/dev/null"], 2, "no extents");
    refused(&["/proc/self"], 2, "symbolic link");
    refused(&["/proc"], 1, "does not report where files lie");
    let html = base.path().join("missing/p.html");
    // Regression: the message had the name that the file has until it is complete, too.
    for option in ["--html", "--csv"] {
        let output = html.to_str().unwrap();
        let found = format!("cannot write {output}: No such file or directory (os error 2)");
        refused(&[option, output, text], 1, &found);
        let said = errors(&measure(&[option, output, text]));
        assert!(!said.contains(".mobifs-frag"), "{said}");
    }
    let locked = File::open(&image).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refused(&[text], 3, "in use");
    drop(locked);
    assert!(fs::read(&image).unwrap() == before);
    fs::write(&image, &before[..4096]).unwrap();
    refused(&[text], 4, "damaged");
    // What was written before stays, and nothing half done does.
    let csv = base.path().join("old.csv");
    fs::write(&csv, "old").unwrap();
    refused(&["--csv", csv.to_str().unwrap(), text], 4, "damaged");
    assert_eq!(fs::read_to_string(&csv).unwrap(), "old");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 3);
}

fn make_pipe(path: &str) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// One output took the place of the other, or of a file that had been measured, and a pipe was waited for.
#[test]
fn what_is_written_takes_the_place_of_nothing_else() {
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/mine"), "mine").unwrap();
    std::os::unix::fs::symlink("tree", at("link")).unwrap();
    let tree = at("tree");
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = measure(arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    let (new, same) = (at("new"), at("tree/../new"));
    refused(
        &["--csv", &new, "--html", &same, &tree],
        2,
        "are the same file",
    );
    refused(&["--csv", "-", &tree], 2, "/dev/stdout");
    for mine in [at("tree/mine"), at("link/mine")] {
        refused(&["--csv", &mine, &tree], 2, "cannot be written over");
    }
    let output = measure(&["--piece-ms", "1e300", &tree]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        errors(&output).contains("to 1000000"),
        "no table of 300 digits"
    );
    let pipe = at("pipe");
    make_pipe(&pipe);
    refused(&["--csv", &pipe, &tree], 1, "nothing reads this pipe");
    assert!(!Path::new(&new).exists());
    assert_eq!(fs::read_to_string(at("tree/mine")).unwrap(), "mine");
    // What an earlier measurement has written there is replaced.
    let (csv, html) = (at("tree/f.csv"), at("tree/p.html"));
    for _time in 0..2 {
        let output = measure(&["--csv", &csv, "--html", &html, &tree]);
        if !mobifs_skip::can((!output.status.success()).then(|| errors(&output))) {
            return;
        }
    }
    assert!(fs::read_to_string(&csv).unwrap().contains("p.html"));
    // A pipe that something reads gets all of it.
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let start = std::time::Instant::now();
    let output = loop {
        let output = measure(&["--csv", &pipe, &tree]);
        let waits = errors(&output).contains("nothing reads");
        if !waits || start.elapsed() > std::time::Duration::from_secs(60) {
            break output;
        }
    };
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(reader.join().unwrap().lines().count(), 4);
}

/// Only a sentence was printed of it, and no report.
#[test]
fn what_can_be_read_of_a_damaged_image_is_reported() {
    let base = tempfile::tempdir().unwrap();
    let Some(path) = image(base.path()) else {
        return;
    };
    let text = path.to_str().unwrap();
    let whole = fs::read(&path).unwrap();
    let reported = |files: u64, words: &str| {
        let output = measure(&["--json", text]);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(
            said.contains("damaged") && said.lines().count() == 1,
            "{said}"
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["files"], files, "{report}");
        assert_eq!(report["left_out"]["damaged_images"], 1);
        let notes = report["notes"].to_string();
        assert!(notes.contains(words), "{notes}");
        report
    };
    // Cut where the content of the first file begins.
    let first = ["/a.db", "/b.jpg", "/c"].map(|name| {
        let mut debugfs = Command::new("debugfs");
        let output = debugfs
            .args(["-R", &format!("blocks {name}")])
            .arg(&path)
            .output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        output
            .split_whitespace()
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    });
    let output = Command::new("dumpe2fs").arg(&path).output().unwrap();
    let about = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |key: &str| -> usize {
        let rest = about.split(key).nth(1).unwrap().trim_start();
        rest.split(|sign: char| !sign.is_ascii_digit())
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    let block = number("Block size:");
    fs::write(&path, &whole[..first.iter().min().unwrap() * block]).unwrap();
    let report = reported(0, "is cut short: its filesystem has 16 MiB and it has");
    assert_eq!(report["left_out"]["damaged"], 3);
    // The first bitmap of blocks, which lies where the tool says.
    let at = number("Block bitmap at ") * block + 700;
    let mut spoiled = whole.clone();
    spoiled[at] ^= 0x55;
    fs::write(&path, &spoiled).unwrap();
    let report = reported(
        3,
        "is not known: dumpe2fs: Block bitmap checksum does not match",
    );
    assert_eq!(report["filesystems"][0]["free"], Value::Null);
    // Only the checksum of the superblock: its volume's name.
    let mut spoiled = whole.clone();
    spoiled[1024 + 0x78] ^= 0x55;
    fs::write(&path, &spoiled).unwrap();
    reported(3, "Superblock checksum does not match");
}

/// `1 files measured`.
#[test]
fn one_file_is_in_the_singular() {
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(base.path().join("one"), [1; 9000]).unwrap();
    let output = measure(&[base.path().to_str().unwrap()]);
    if !mobifs_skip::can((!output.status.success()).then(|| errors(&output))) {
        return;
    }
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(": 1 file measured\n"), "{said}");
}

/// A pipe was waited for, and of what is no trace an option was named that these commands do not have.
#[test]
fn what_is_no_trace_is_refused_by_the_commands_that_take_one() {
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_owned();
    let (pipe, junk, tree) = (at("pipe"), at("junk.parquet"), at("tree"));
    fs::create_dir(&tree).unwrap();
    fs::write(&junk, "junk\n").unwrap();
    make_pipe(&pipe);
    for (trace, words) in [
        (&pipe, "this is no file"),
        (&junk, "mobifs trace import --from FORMAT"),
        (&tree, "this is no file"),
    ] {
        for arguments in [
            &["advise", "--trace", trace, &tree][..],
            &["defrag", "--dry-run", "--hot", trace, &tree],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
            let output = command.arg("frag").args(arguments).output().unwrap();
            let said = errors(&output);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
            assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        }
    }
}

/// Runs a command as a user who owns nothing.
fn as_nobody(arguments: &[&str]) -> Command {
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65534;
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.args(arguments).current_dir("/");
    command.uid(NOBODY).gid(NOBODY);
    command
}

#[test]
fn a_user_who_may_not_is_told_so_in_one_sentence() {
    if !mobifs_skip::is_root()
        || !mobifs_skip::can(mobifs_skip::why_fails(&mut as_nobody(&["--help"])))
    {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_owned();
    let secret = at("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(at("secret/mine"), "mine").unwrap();
    let set_mode = |path: &Path, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(base.path(), 0o777);
    set_mode(Path::new(&secret), 0o700);
    let new = at("new.img");
    for (arguments, words) in [
        (&["measure", &secret][..], "cannot be read by this user"),
        (&["advise", &secret], "cannot be read by this user"),
        (
            &["defrag", "--copy", &secret],
            "may not be written by this user",
        ),
        (&["age", "--yes", &secret], "Permission denied"),
        (&["age", "--image", &new], "takes root"),
        (&["experiment", "scan"], "takes root"),
    ] {
        let output = as_nobody(&["frag"]).args(arguments).output().unwrap();
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.contains(words) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    assert!(!Path::new(&new).exists());
}
