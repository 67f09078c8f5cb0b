//! Directories that the kernel uses, or that servers have sockets in, are not adopted.

use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use crate::adopt::Adoption;
use crate::fixture::{IN_USE, fails, needs_mounts, succeeds};

/// Ends something at the end of a test.
struct AtEnd(Command);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let _ended = self.0.output();
    }
}

fn run(name: &str, words: &[&str], path: &Path) -> std::process::Output {
    Command::new(name).args(words).arg(path).output().unwrap()
}

/// The device went on past the mount: what it wrote was of a file that the mount did not know.
#[test]
fn a_loop_device_over_a_file_inside_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let image = adoption.directory.join("app/an image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let before = adoption.seen();
    let attached = run("losetup", &["--find", "--show"], &image);
    if !mobifs_skip::can((!attached.status.success()).then_some("no loop devices")) {
        return;
    }
    let device = String::from_utf8(attached.stdout).unwrap();
    let device = Path::new(device.trim_end());
    let mut detach = Command::new("losetup");
    detach.arg("--detach").arg(device);
    let attached = AtEnd(detach);
    let name = device.file_name().unwrap().to_str().unwrap();
    let advice = format!("End what uses it (losetup -d {})", device.display());
    let needles = ["the loop device", name, "an image", &advice];
    fails(&adoption.begin().output().unwrap(), IN_USE, &needles);
    adoption.is_as_before(&before);
    // With its mount as the one to end.
    let mkfs = run("mkfs.ext4", &["-q"], device);
    let mut fixture = crate::fixture::Fixture::new();
    if mkfs.status.success() {
        let at = fixture.directory("at");
        fixture.mount_other(&[device.to_str().unwrap()], &at);
        let advice = format!("(umount {})", at.display());
        fails(&adoption.begin().output().unwrap(), IN_USE, &[&advice]);
        succeeds(&run("umount", &[], &at));
    }
    drop(attached);
    adoption.adopt();
    succeeds(&adoption.unadopt());
}

/// The kernel swapped to the blocks of a file that the mount could move.
#[test]
fn an_active_swap_file_inside_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let swap = adoption.directory.join("app/swap file");
    fs::write(&swap, vec![0; 1 << 20]).unwrap();
    let made = run("mkswap", &[], &swap);
    let active = made.status.success() && run("swapon", &[], &swap).status.success();
    if !mobifs_skip::can((!active).then_some("no swap files here")) {
        return;
    }
    let mut end = Command::new("swapoff");
    end.arg(&swap);
    let active = AtEnd(end);
    let before = adoption.seen();
    let advice = format!("End what uses it (swapoff '{}')", swap.display());
    let needles = ["the swap file", &advice];
    fails(&adoption.begin().output().unwrap(), IN_USE, &needles);
    adoption.is_as_before(&before);
    drop(active);
    adoption.adopt();
    succeeds(&adoption.unadopt());
}

/// Clients were refused from then on: the name that they found in the mount was no socket of the server's.
#[test]
fn a_server_at_a_socket_inside_is_a_use() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let path = adoption.directory.join("app/a socket");
    let listener = UnixListener::bind(&path).unwrap();
    let before = adoption.seen();
    let own = std::process::id().to_string();
    let needles = ["is in use by process", &own, "a socket is bound"];
    fails(&adoption.begin().output().unwrap(), IN_USE, &needles);
    adoption.is_as_before(&before);
    drop(listener);
    adoption.adopt();
    // One that is bound in the mount keeps it, and is named.
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let needles = ["stays adopted", &own, "a socket is bound"];
    fails(&adoption.unadopt(), IN_USE, &needles);
    drop(listener);
    succeeds(&adoption.unadopt());
}
