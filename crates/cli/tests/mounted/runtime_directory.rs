//! The runtime directory goes away under living daemons, as at the end of a login session.

use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{Fixture, PROGRAM, message, needs_mounts};
use crate::steer::{Disk, EXT4};

/// Runs a script in a mount namespace with a `/run` of its own, so that the runtime directory of other tests
/// stays. In it are `$1`, the program, and what `words` are from `$2` on.
fn run_script(script: &str, words: &[&Path]) -> Output {
    run_script_in(&[], script, words)
}

fn run_script_in(namespaces: &[&str], script: &str, words: &[&Path]) -> Output {
    let mut command = Command::new("unshare");
    command.args(namespaces);
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

/// What scripts of packages do, where nothing is seen of other tests: not their processes, and not their mounts.
fn run_script_alone(script: &str, words: &[&Path]) -> Output {
    let script = format!(
        r#"
grep -E ' fuse(blk)?\.mobifs ' /proc/self/mounts | cut -d' ' -f2 | while read -r other; do
    umount --internal-only --lazy "$(printf "%b" "$other")" || true
done
{script}"#
    );
    run_script_in(&["--pid", "--fork", "--mount-proc"], &script, words)
}

/// Found by strangers: removing the package saw no lazily unmounted mounts, and took escapes of the table of mounts
/// for names.
#[test]
fn all_mounts_are_committed_and_ended_at_once() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let stores = ["s1", "s2"].map(|name| fixture.directory(name));
    let odd = fixture.directory("with\ttab\nand line");
    fixture.unmount_at_end(&odd);
    let script = r#"
"$1" mount "$2" "$3"
"$1" mount "$4" "$5"
echo one >"$3/file"
echo two >"$5/file"
"$1" every adopted
"$1" every commit
[ "$("$1" status --json "$5" | grep -c '"uncommitted_bytes": *[1-9]')" = 0 ]
exec 7>"$3/open"
echo open >&7
umount --internal-only --lazy "$3"
! "$1" every end 7>&- 2>/run/said
grep -q "still serves $3, which was unmounted lazily" /run/said
cat "$4/file"
echo last >&7
exec 7>&-
"$1" every end
cat "$2/open"
"#;
    let [first, second] = &stores;
    let words = [first.as_path(), &fixture.mountpoint, second, &odd];
    let said = works(&run_script_alone(script, &words));
    assert_eq!(said, "two\nopen\nlast\n");
}

/// Found by strangers: a filesystem that was steered by hand was not looked for.
#[test]
fn steering_is_ended_with_the_mounts() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let before = disk.options();
    let script = r#"
"$1" steer "$2"
"$1" every commit
"$1" every end
! pidof mobifs
"#;
    works(&run_script_alone(script, &[&disk.at]));
    assert_eq!(disk.options(), before);
}

#[test]
fn an_adopted_directory_is_named() {
    needs_mounts!();
    let fixture = Fixture::new();
    let store = fixture.directory("mount.mobifs-store");
    let script = r#"
"$1" mount "$2" "$3"
! "$1" every adopted 2>/run/said
grep -q "$3 is adopted" /run/said
"$1" every end
"$1" every adopted
"#;
    works(&run_script_alone(script, &[&store, &fixture.mountpoint]));
}
