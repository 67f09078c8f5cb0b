//! Units of systemd whose processes steer filesystems.

use std::fs;
use std::process::Command;

use mobifs_steered::Directory;

/// The units of all filesystems that are steered now; a daemon that no unit has started has none.
pub(crate) fn steering_units() -> Vec<String> {
    let steered = Directory::from_environment().list().unwrap_or_default();
    let units = steered.iter().filter_map(|steered| {
        let pid = steered.record().pid();
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let unit = service_of(&groups)?;
        // What a user has started by hand may be in the group of a service, as that of sshd.
        (main_process(unit) == Some(pid)).then(|| unit.to_owned())
    });
    let mut units: Vec<String> = units.collect();
    units.sort();
    units.dedup();
    units
}

/// The service whose group this is, in the format of `/proc/PID/cgroup`.
fn service_of(groups: &str) -> Option<&str> {
    let mut lines = groups.lines();
    let group = lines.find_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        ["", "name=systemd"].contains(&controllers).then_some(group)
    })?;
    let (_above, name) = group.rsplit_once('/')?;
    name.ends_with(".service").then_some(name)
}

fn main_process(unit: &str) -> Option<u32> {
    let output = Command::new("systemctl")
        .args(["show", "--property=MainPID", "--value", "--", unit])
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_group_of_its_own() {
        let unit = r"mobifs-steer@srv-data.service";
        let own = format!(r"0::/system.slice/system-mobifs\x2dsteer.slice/{unit}");
        assert_eq!(service_of(&format!("{own}\n")), Some(unit));
        let both = format!("4:memory:/a.service\n1:name=systemd:/system.slice/{unit}\n0::/\n");
        assert_eq!(service_of(&both), Some(unit));
        for none in [
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte.scope",
            "0::/system.slice/db.service/mobifs-db",
            "0::/",
            "",
        ] {
            assert_eq!(service_of(none), None, "{none}");
        }
    }
}
