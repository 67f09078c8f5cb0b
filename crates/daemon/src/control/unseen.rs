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
pub fn unseen_mounts() -> io::Result<Vec<ControlClient>> {
    let table = mounts()?;
    let own = rustix::process::geteuid().as_raw();
    let directories = runtime_directories_of(own).into_iter();
    let names = directories
        .filter_map(|directory| directory.read_dir().ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.file_name()));
    let mut found: Vec<ControlClient> = Vec::new();
    for name in names {
        let Some(Purpose::Control { major, minor }) = name.to_str().and_then(Purpose::of) else {
            continue;
        };
        let mount = out_of_tree(major, minor, own);
        let is_seen = table.iter().any(|seen| seen.has_device_of(&mount))
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
