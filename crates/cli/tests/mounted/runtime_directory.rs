//! The runtime directory goes away under living daemons, as at the end of a login session.

use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{Fixture, PROGRAM, message, needs_mounts};
use crate::steer::{Disk, EXT4};

/// Runs a script in a mount namespace with a `/run` of its own, so that the runtime directory of other tests
/// stays. In it are `$1`, the program, and what `words` are from `$2` on.
fn run_script(script: &str, words: &[&Path]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc"]);
    command.arg(format!("mount -t tmpfs none /run\n{COMMON}\n{script}"));
    command.args(["sh", PROGRAM]).args(words);
    command.output().unwrap()
}

const COMMON: &str = r#"
until_it_works() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "never works: $*"; "$@"; exit 1; }
        sleep 0.1
    done
}
supervisor_of() {
    for process in /proc/[0-9]*; do
        [ "$(cat "$process/comm" 2>/dev/null)" = mobifs ] || continue
        words=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
        case $words in *supervise*"$1 ") echo "${process#/proc/}" ;; esac
    done
}
daemon_of() { cat "/proc/$1/task/$1/children" | tr -d ' '; }
"#;

fn works(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", message(output));
    said
}

/// Found by strangers: no daemon took over, and everything uncommitted was lost.
#[test]
fn a_daemon_that_is_killed_without_its_runtime_directory_has_a_successor() {
    needs_mounts!();
    let fixture = Fixture::new();
    let script = r#"
"$1" mount "$2" "$3"
mkdir "$3/a"
echo D >"$3/a/D"
supervisor=$(supervisor_of "$3")
for round in 1 2; do
    rm -rf /run/mobifs
    kill -9 "$(daemon_of "$supervisor")"
    cat "$3/a/D"
done
until_it_works "$1" status "$3"
"$1" umount "$3"
cat "$2/a/D"
"#;
    let said = works(&run_script(script, &[&fixture.store, &fixture.mountpoint]));
    assert_eq!(said, "D\nD\nD\n");
}

/// Found by strangers: each command said that the daemon ran where `/run` was another one.
#[test]
fn a_living_daemon_makes_its_runtime_directory_again() {
    needs_mounts!();
    let fixture = Fixture::new();
    let script = r#"
"$1" mount "$2" "$3"
echo D >"$3/D"
rm -rf /run/mobifs
"$1" status "$3" >/run/said 2>&1 || grep -q "has been removed" /run/said
! grep "another one" /run/said
until_it_works "$1" status "$3"
stat -c '%a %u' /run/mobifs
supervisor=$(supervisor_of "$3")
kill -9 "$(daemon_of "$supervisor")"
"$1" sync "$3"
cat "$2/D"
"$1" umount "$3"
"#;
    let said = works(&run_script(script, &[&fixture.store, &fixture.mountpoint]));
    assert_eq!(said, "700 0\nD\n");
}

#[test]
fn a_steering_daemon_makes_its_runtime_directory_again() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let script = r#"
"$1" steer "$2"
names() { ls /run/mobifs /run/mobifs-steered | grep -v log; }
names >/run/before
rm -rf /run/mobifs /run/mobifs-steered
"$1" status "$2" >/run/said 2>&1 || grep -q "has been removed" /run/said
until_it_works "$1" status "$2"
are_there() { names | cmp - /run/before; }
until_it_works are_there
"$1" steer --stop "$2"
"#;
    works(&run_script(script, &[&disk.at]));
}
