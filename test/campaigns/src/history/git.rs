//! A repository: each step is a commit.

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use mobifs_testkit::mount::succeed;
use mobifs_testkit::operations::Payload;

use super::returned;

/// Files that change in turn, beside the one to which every step adds a line.
const FILES: u64 = 6;

fn git(app: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command
        .current_dir(app)
        // Repositories in directories above are not meant.
        .env("GIT_CEILING_DIRECTORIES", app.parent().unwrap_or(app))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .args(["-c", "user.name=campaign", "-c", "user.email=campaign"])
        .args(["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync"])
        .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
        .args(words);
    succeed(&mut command)
}

/// Commits.
pub(super) fn work(app: &Path, from: u64) -> Result<Infallible, String> {
    if from == 0 {
        // Remains of the first attempt after a cut.
        fs::remove_dir_all(app).map_err(|error| error.to_string())?;
        fs::create_dir(app).map_err(|error| error.to_string())?;
        git(app, &["init", "--quiet", "--initial-branch=main"])?;
    }
    remove_locks(&app.join(".git")).map_err(|error| error.to_string())?;
    if from > 0 {
        git(app, &["reset", "--quiet", "--hard"])?;
    }
    let mut step = from;
    loop {
        step += 1;
        change(app, step).map_err(|error| error.to_string())?;
        git(app, &["add", "--all"])?;
        git(app, &["commit", "--quiet", "-m", &format!("step {step}")])?;
        returned(step)?;
    }
}

fn change(app: &Path, step: u64) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut lines = options.create(true).append(true).open(app.join("lines"))?;
    writeln!(lines, "{step}")?;
    let data = Payload {
        tag: step as u32,
        length: (step.wrapping_mul(7919) % 9000) as u32,
    };
    fs::write(app.join(format!("file-{}", step % FILES)), data.bytes())
}

/// Removes the locks of processes that a cut killed, as git advises.
fn remove_locks(directory: &Path) -> std::io::Result<()> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                waiting.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "lock")
            {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// The repository is consistent and its history is a prefix of all.
pub(super) fn check(app: &Path) -> Result<u64, String> {
    if !app.join(".git").exists()
        || git(app, &["rev-parse", "--verify", "--quiet", "HEAD"]).is_err()
    {
        // Not even the first commit is there.
        return Ok(0);
    }
    git(app, &["fsck", "--full", "--strict", "--no-progress"])?;
    let commits = git(app, &["rev-list", "--count", "HEAD"])?;
    let commits: u64 = commits
        .trim()
        .parse()
        .map_err(|_| format!("rev-list says {commits}"))?;
    let last = git(app, &["log", "-1", "--format=%s"])?;
    let lines = git(app, &["show", "HEAD:lines"])?;
    let expected: String = (1..=commits).map(|step| format!("{step}\n")).collect();
    if last.trim() != format!("step {commits}") || lines != expected {
        return Err(format!(
            "{commits} commits, the last is {last:?} with these lines: {lines:?}"
        ));
    }
    Ok(commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_counted_and_damage_is_found() {
        let base = tempfile::tempdir().unwrap();
        let app = base.path().join("git");
        fs::create_dir(&app).unwrap();
        assert_eq!(check(&app), Ok(0));
        git(&app, &["init", "--quiet", "--initial-branch=main"]).unwrap();
        assert_eq!(check(&app), Ok(0));
        for step in 1..=3 {
            change(&app, step).unwrap();
            git(&app, &["add", "--all"]).unwrap();
            git(&app, &["commit", "--quiet", "-m", &format!("step {step}")]).unwrap();
            assert_eq!(check(&app), Ok(step));
        }
        let blob = git(&app, &["rev-parse", "HEAD:lines"]).unwrap();
        let blob = blob.trim();
        let object = app.join(".git/objects").join(&blob[..2]).join(&blob[2..]);
        fs::remove_file(object).unwrap();
        assert!(check(&app).is_err());
    }
}
