//! Programs in containers, as an OCI runtime makes them: with namespaces, few capabilities, and a root
//! directory that cannot be written to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Fixture, PROGRAM, does, needs_root};
use crate::program::{add_to, outcomes};

/// What containers of the usual engines may do by default.
const CAPABILITIES: [&str; 12] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
];

/// What the steps end with, but for files that are opened with `O_SYNC`.
const OUTCOMES: &str =
    "fsync skipped, raw-fsync skipped, msync flushed, fsync flushed, bad errno 9";

/// The machine's own root directory, read-only, as the root of a container; the fixture's files are at
/// their places.
struct Bundle<'f> {
    fixture: &'f Fixture,
    root: PathBuf,
}

impl<'f> Bundle<'f> {
    fn new(fixture: &'f Fixture) -> Self {
        let root = fixture.path("root");
        fs::create_dir(&root).unwrap();
        does("mount", &["--bind", "/", root.to_str().unwrap()]);
        does("mount", &["--make-private", root.to_str().unwrap()]);
        Self { fixture, root }
    }

    /// Why no container can be run here, if so.
    fn obstacle(&self) -> Option<String> {
        let own = std::env::current_exe().unwrap();
        for program in [Path::new(PROGRAM), &own] {
            if !self.root.join(program.strip_prefix("/").unwrap()).exists() {
                return Some("the tests are not on the root filesystem".to_owned());
            }
        }
        let mut container = self.container(&[]);
        container.arg("mobifs-test-begins");
        self.configure(&Command::new("true"));
        mobifs_skip::why_fails(&mut container)
    }

    /// Makes this command what the container runs.
    fn configure(&self, command: &Command) {
        let spec = self.fixture.path("config.json");
        let _none = fs::remove_file(&spec);
        let mut runc = Command::new("runc");
        runc.arg("spec").arg("--bundle").arg(self.fixture.path("."));
        assert!(runc.status().unwrap().success());
        let mut config: Value = serde_json::from_slice(&fs::read(&spec).unwrap()).unwrap();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
        let variables = command
            .get_envs()
            .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?)));
        let path = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        let variables: Vec<_> = path.into_iter().chain(variables).collect();
        let process = &mut config["process"];
        process["terminal"] = json!(false);
        process["args"] = json!(words);
        process["env"] = json!(variables);
        // Raising limits takes a capability that root may lack.
        process.as_object_mut().unwrap().remove("rlimits");
        for set in ["bounding", "effective", "permitted"] {
            process["capabilities"][set] = json!(CAPABILITIES);
        }
        config["root"] = json!({ "path": self.root, "readonly": true });
        let base = fs::canonicalize(self.fixture.path(".")).unwrap();
        let mounts = config["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["type"] != "cgroup");
        mounts.push(json!({
            "destination": base, "source": base, "type": "bind", "options": ["rbind", "rw"],
        }));
        fs::write(&spec, config.to_string()).unwrap();
    }

    /// The runtime, started by these words.
    fn container(&self, started_by: &[&str]) -> Command {
        let mut command = if started_by.is_empty() {
            Command::new("runc")
        } else {
            let mut command = self.fixture.command(started_by);
            command.arg("runc");
            command
        };
        let state = self.fixture.path("state");
        command.arg("--root").arg(state).arg("run");
        command.arg("--bundle").arg(self.fixture.path("."));
        command
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        let _ended = Command::new("umount").arg("-l").arg(&self.root).output();
    }
}

fn steps(fixture: &Fixture) -> String {
    let (steered, other) = (fixture.steered(), fixture.other());
    let (steered, other) = (steered.display(), other.display());
    format!(
        "fsync {steered};raw-fsync {steered};msync {steered};fsync {other};bad /;o-sync {steered}"
    )
}

#[test]
fn a_container_skips_what_the_command_skips_that_runs_the_runtime() {
    needs_root!();
    let fixture = Fixture::new();
    let bundle = Bundle::new(&fixture);
    if !mobifs_skip::can(bundle.obstacle()) {
        return;
    }
    let mut program = Command::new("env");
    add_to(&mut program, &steps(&fixture));
    bundle.configure(&program);
    let mut alone = bundle.container(&[]);
    assert!(!outcomes(alone.arg("mobifs-test-alone")).contains("skipped"));
    let mut steered = bundle.container(&["--mechanism=seccomp", "--"]);
    // The supervisor is outside and has another root directory, so the kernel opens files itself.
    let outside = outcomes(steered.arg("mobifs-test-outside"));
    assert_eq!(outside, format!("{OUTCOMES}, o-sync flushed"));
}

#[test]
fn a_container_may_begin_with_the_command() {
    needs_root!();
    let fixture = Fixture::new();
    let bundle = Bundle::new(&fixture);
    if !mobifs_skip::can(bundle.obstacle()) {
        return;
    }
    let mut program = fixture.command(&["--mechanism=seccomp", "--"]);
    add_to(&mut program, &steps(&fixture));
    bundle.configure(&program);
    let mut container = bundle.container(&[]);
    let inside = outcomes(container.arg("mobifs-test-inside"));
    assert_eq!(inside, format!("{OUTCOMES}, o-sync skipped"));
}
