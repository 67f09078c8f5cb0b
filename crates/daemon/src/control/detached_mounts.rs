//! Mounts that are served and are not in this process's table of mounts: a lazy unmount has taken
//! them out of the tree while programs use them, or they are in another mount namespace.

use std::io;
use std::path::PathBuf;

use mobifs_host::{MountEntry, mounts, runtime_directories_of};

use super::client::ControlClient;
use super::stale::Purpose;

/// Connections to the daemons of such mounts of this user. Their mount points are not known here;
/// each says in its status where it was mounted.
///
/// # Errors
/// If the table of mounts cannot be read.
pub fn detached_mounts() -> io::Result<Vec<ControlClient>> {
    let table = mounts()?;
    let own = rustix::process::geteuid().as_raw();
    let directories = runtime_directories_of(own).into_iter();
    let entries = directories
        .filter_map(|directory| directory.read_dir().ok())
        .flat_map(Iterator::flatten);
    let mut found: Vec<ControlClient> = Vec::new();
    for entry in entries {
        let (major, minor) = match entry.file_name().to_str().and_then(Purpose::of) {
            Some(Purpose::Control { major, minor }) => (major, minor),
            Some(Purpose::Displaced) => {
                let mount = out_of_tree(0, 0, own);
                found.extend(
                    ControlClient::connect_at(&entry.path(), &mount)
                        .ok()
                        .flatten(),
                );
                continue;
            }
            _ => continue,
        };
        let mount = out_of_tree(major, minor, own);
        // A filesystem of the kernel may have the number by now.
        let is_seen = table
            .iter()
            .any(|seen| seen.is_fuse() && seen.has_device_of(&mount))
            || found
                .iter()
                .any(|other| other.mount().has_device_of(&mount));
        if is_seen {
            continue;
        }
        // Of a daemon that was killed only the socket is there.
        found.extend(ControlClient::connect_to(&mount).ok());
    }
    Ok(found)
}

/// A mount of which only the device number is known.
fn out_of_tree(device_major: u32, device_minor: u32, user: u32) -> MountEntry {
    MountEntry {
        id: 0,
        parent_id: 0,
        root: PathBuf::from("/"),
        mountpoint: PathBuf::from("-"),
        kind: "fuse.mobifs".to_owned(),
        source: PathBuf::from("-"),
        device_major,
        device_minor,
        user_id: Some(user),
    }
}
