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
    refused(&["--html", html.to_str().unwrap(), text], 1, "cannot write");
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
