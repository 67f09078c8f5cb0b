//! What a machine offers to MobiFS, each with what to do about it. Nothing is changed.

use std::fs;
use std::path::Path;

use mobifs_volume::Config;
use serde::Serialize;

use super::kernels::{MINIMUM, STEPS, version_of};
use crate::commands::figures::size;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// In the way of something.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) topic: &'static str,
    pub(super) state: State,
    /// What was found, in a sentence.
    pub(super) found: String,
    /// What to do about it; none: nothing.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn good(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Good, found.into(), None)
    }

    pub(super) fn note(topic: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(topic, State::Note, found.into(), Some(advice.to_owned()))
    }

    pub(super) fn problem(topic: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(topic, State::Problem, found.into(), Some(advice.to_owned()))
    }

    const fn new(topic: &'static str, state: State, found: String, advice: Option<String>) -> Self {
        Self {
            topic,
            state,
            found,
            advice,
        }
    }
}

/// What decides, read once.
#[derive(Clone, Debug)]
struct Machine {
    release: String,
    is_root: bool,
    /// Why this user cannot make mounts.
    fuse_obstacle: Option<String>,
    has_systemd: bool,
    has_system_bus: bool,
    has_logind: bool,
    memory_bytes: u64,
    swaps: String,
    has_pressure: bool,
    has_proc: bool,
}

impl Machine {
    fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let total = rustix::system::sysinfo();
        #[expect(
            clippy::useless_conversion,
            reason = "the fields are 32 bits wide on 32-bit machines"
        )]
        let memory_bytes = u64::from(total.totalram).saturating_mul(u64::from(total.mem_unit));
        Self {
            release: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            is_root: rustix::process::geteuid().is_root(),
            fuse_obstacle: mobifs_fuse::check_permitted()
                .err()
                .map(|error| error.to_string()),
            has_systemd: Path::new("/run/systemd/system").is_dir(),
            has_system_bus: Path::new("/run/dbus/system_bus_socket").exists(),
            has_logind: Path::new("/run/systemd/seats").is_dir(),
            memory_bytes,
            swaps: read("/proc/swaps"),
            has_pressure: Path::new("/proc/pressure/memory").exists(),
            has_proc: Path::new("/proc/self").exists(),
        }
    }
}

/// What this machine offers, under this configuration.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    of(&Machine::look(), config)
}

fn of(machine: &Machine, config: &Config) -> Vec<Finding> {
    let mut all = kernel(machine);
    all.push(fuse(machine));
    all.push(sync(machine));
    all.push(supervisor(machine));
    all.push(logind(machine));
    all.push(memory(machine, config.memory_budget_bytes));
    if !machine.has_proc {
        all.push(Finding::problem(
            "proc",
            "/proc is not mounted, so neither mounts nor swap can be seen",
            "mount it (mount -t proc proc /proc): MobiFS needs it",
        ));
        return all;
    }
    all.push(swap(&machine.swaps));
    if !machine.has_pressure {
        all.push(Finding::note(
            "pressure",
            "the kernel does not tell when programs wait for memory (/proc/pressure/memory)",
            "boot with psi=1 for commits before memory is short, or set a small memory_budget_bytes",
        ));
    }
    all
}

fn kernel(machine: &Machine) -> Vec<Finding> {
    let release = &machine.release;
    let Some(version) = version_of(release) else {
        let advice = "`uname -r` shows it: docs/KERNELS.md says what each version adds";
        return vec![Finding::note(
            "kernel",
            format!("its version is not known ({release})"),
            advice,
        )];
    };
    if version < MINIMUM {
        let (major, minor) = MINIMUM;
        return vec![Finding::problem(
            "kernel",
            format!("Linux {release} is too old for a mount"),
            &format!("use Linux {major}.{minor} or later, or the SQLite VFS, which needs no FUSE"),
        )];
    }
    let missing = STEPS.iter().filter(|step| step.version > version);
    let missing: Vec<_> = missing
        .map(|step| {
            let (major, minor) = step.version;
            Finding::note(
                "kernel",
                format!(
                    "Linux {release} lacks what {major}.{minor} adds: {}",
                    step.adds
                ),
                step.without,
            )
        })
        .collect();
    if missing.is_empty() {
        vec![Finding::good(
            "kernel",
            format!("Linux {release} has everything that is used"),
        )]
    } else {
        missing
    }
}

fn fuse(machine: &Machine) -> Finding {
    match &machine.fuse_obstacle {
        None => Finding::good("fuse", "this user can mount"),
        Some(why) => Finding::problem(
            "fuse",
            why.clone(),
            "without it, native mode (root) and the SQLite VFS are left",
        ),
    }
}

fn sync(machine: &Machine) -> Finding {
    const TOPIC: &str = "sync(2)";
    let has_it = version_of(&machine.release).is_some_and(|version| version >= (6, 18));
    match (has_it, machine.is_root) {
        (true, true) => Finding::good(TOPIC, "sync(2) and syncfs(2) reach mounts that root makes"),
        (true, false) => Finding::note(
            TOPIC,
            "sync(2) and syncfs(2) do not reach a mount of an ordinary user",
            "use `mobifs sync`, or let root mount",
        ),
        (false, _) => Finding::note(
            TOPIC,
            "sync(2) and syncfs(2) do not reach mounts on this kernel",
            "use `mobifs sync`; `mobifs status` shows sync_reaches_mount",
        ),
    }
}

fn supervisor(machine: &Machine) -> Finding {
    const TOPIC: &str = "supervisor";
    if machine.has_systemd {
        Finding::good(
            TOPIC,
            "systemd runs here: mobifs@.service supervises a mount, otherwise a process of its own does",
        )
    } else {
        Finding::good(
            TOPIC,
            "without systemd, a process of its own supervises a mount",
        )
    }
}

fn logind(machine: &Machine) -> Finding {
    const TOPIC: &str = "logind";
    if machine.has_system_bus && machine.has_logind {
        return Finding::good(
            TOPIC,
            "it is there: everything is committed before the machine sleeps or is switched off",
        );
    }
    let missing = if machine.has_system_bus {
        "there is no logind"
    } else {
        "there is no system bus"
    };
    Finding::note(
        TOPIC,
        format!("{missing}: sleep, shutdown and idle sessions are not seen"),
        "run `mobifs sync` before the machine sleeps (dist/mobifs-sleep.service), and `mobifs touch` \
         where a program sees the user",
    )
}

fn memory(machine: &Machine, budget_bytes: u64) -> Finding {
    let (budget, all) = (size(budget_bytes), size(machine.memory_bytes));
    if budget_bytes > machine.memory_bytes / 2 {
        Finding::problem(
            "memory",
            format!("the budget of {budget} is more than half of the memory, {all}"),
            "set memory_budget_bytes to a quarter of the memory",
        )
    } else {
        Finding::good("memory", format!("a budget of {budget}, of {all}"))
    }
}

/// What the content of `/proc/swaps` says.
fn swap(swaps: &str) -> Finding {
    let devices: Vec<&str> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let on_disk: Vec<&str> = devices
        .iter()
        .filter(|device| !device.contains("zram"))
        .copied()
        .collect();
    if devices.is_empty() {
        return Finding::good("swap", "there is none: what is uncommitted stays in memory");
    }
    if on_disk.is_empty() {
        return Finding::good("swap", "only in memory (zram)");
    }
    Finding::note(
        "swap",
        format!(
            "on {}: uncommitted changes may be swapped out, which writes them to the disk",
            on_disk.join(", ")
        ),
        "use zram, or a memory_budget_bytes that fits",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modern() -> Machine {
        Machine {
            release: "6.18.0".to_owned(),
            is_root: true,
            fuse_obstacle: None,
            has_systemd: true,
            has_system_bus: true,
            has_logind: true,
            memory_bytes: 8 << 30,
            swaps: "Filename Type Size Used Priority\n".to_owned(),
            has_pressure: true,
            has_proc: true,
        }
    }

    fn states(machine: &Machine) -> Vec<(&'static str, State)> {
        let mut config = Config::defaults().unwrap();
        config.memory_budget_bytes = 1 << 30;
        let all = of(machine, &config);
        for finding in &all {
            let needs_advice = finding.state != State::Good;
            assert_eq!(finding.advice.is_some(), needs_advice, "{finding:?}");
        }
        let interesting = all.iter().filter(|finding| finding.state != State::Good);
        interesting
            .map(|finding| (finding.topic, finding.state))
            .collect()
    }

    #[test]
    fn a_machine_that_has_everything_has_nothing_to_do() {
        assert_eq!(states(&modern()), []);
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let old = Machine {
            release: "4.19.0-27-arm64".to_owned(),
            ..modern()
        };
        assert_eq!(
            states(&old),
            [("kernel", State::Problem), ("sync(2)", State::Note)]
        );
        let bookworm = Machine {
            release: "6.1.0-28-amd64".to_owned(),
            ..modern()
        };
        let later = STEPS.iter().filter(|step| step.version > (6, 1)).count();
        assert_eq!(states(&bookworm).len(), later + 1);
        let small = Machine {
            memory_bytes: 256 << 20,
            has_system_bus: false,
            has_pressure: false,
            swaps: "Filename Type\n/dev/mmcblk0p3 partition 1 0 -2\n".to_owned(),
            fuse_obstacle: Some("there is no /dev/fuse".to_owned()),
            ..modern()
        };
        assert_eq!(
            states(&small),
            [
                ("fuse", State::Problem),
                ("logind", State::Note),
                ("memory", State::Problem),
                ("swap", State::Note),
                ("pressure", State::Note),
            ]
        );
        let zram = Machine {
            swaps: "Filename Type\n/dev/zram0 partition 1 0 100\n".to_owned(),
            ..modern()
        };
        assert_eq!(states(&zram), []);
        let chroot = Machine {
            swaps: String::new(),
            has_pressure: false,
            has_proc: false,
            ..modern()
        };
        assert_eq!(states(&chroot), [("proc", State::Problem)]);
        let user = Machine {
            is_root: false,
            ..modern()
        };
        assert_eq!(states(&user), [("sync(2)", State::Note)]);
    }
}
