//! What to do with a directory, decided from the facts alone.

use std::path::Path;

use super::facts::{Facts, Steering};
use mobifs_host::shell_path as quoted;

/// With more than this share of its bytes in large files, a filesystem should not journal content:
/// it is written twice.
const LARGE_PERCENT_MAX: u64 = 50;
/// With at least this share in databases of SQLite, the VFS serves most of what is written.
const DATABASES_PERCENT_MIN: u64 = 90;

/// The ways to use MobiFS, and not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Native,
    Mount,
    Sqlite,
    Plain,
}

/// Whether one way can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can, with this promise.
    Possible { promise: String },
    /// It can when the user has done something.
    Needs { what: String },
    /// It cannot.
    Impossible { why: String },
}

/// The way to take, why, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) recommended: Way,
    pub(super) reason: String,
    pub(super) commands: Vec<String>,
    pub(super) verdicts: Vec<(Way, Verdict)>,
}

impl Advice {
    pub(super) fn of(facts: &Facts) -> Self {
        let verdicts = vec![
            (Way::Native, native(facts)),
            (Way::Mount, mount(facts)),
            (Way::Sqlite, sqlite(facts)),
            (Way::Plain, plain(facts)),
        ];
        let (recommended, reason) = recommend(facts, &verdicts);
        Self {
            recommended,
            reason,
            commands: commands(facts, recommended),
            verdicts,
        }
    }
}

fn native(facts: &Facts) -> Verdict {
    match &facts.steering {
        Steering::Steered {
            is_in_force: true, ..
        } => possible("the filesystem is steered already"),
        Steering::Steered {
            commits_only: true, ..
        } => possible(
            "the filesystem is steered already: when it commits, and its history; durability calls \
             block, as without MobiFS",
        ),
        Steering::Steered { .. } => Verdict::Needs {
            what: format!(
                "the filesystem is steered already, and calls for durability wait: `mobifs status {}` \
                 says why",
                quoted(&facts.mountpoint)
            ),
        },
        Steering::Left => Verdict::Needs {
            what: format!(
                "the daemon that steered the filesystem is gone: `mobifs steer {0}` goes on with it, and \
                 `mobifs steer --stop {0}` restores its mount options",
                quoted(&facts.mountpoint)
            ),
        },
        Steering::Possible => possible(
            "one point in time for the whole filesystem, but for a fault of the kernel with files that are \
             shortened within a page (docs/NATIVE.md); calls at the kernel's speed; content is written \
             twice; experimental",
        ),
        Steering::Needs(what) => Verdict::Needs { what: what.clone() },
        Steering::CommitsOnly { needs: None } => possible(
            "steers only when the filesystem commits, and keeps a history of snapshots ([history]), of \
             which those that `mobifs history` calls exact are one point in time; a commit is none, so \
             durability calls block, as without MobiFS",
        ),
        Steering::CommitsOnly { needs: Some(what) } => Verdict::Needs { what: what.clone() },
        Steering::Impossible(why) => Verdict::Impossible { why: why.clone() },
    }
}

fn mount(facts: &Facts) -> Verdict {
    if facts.is_in_mount {
        return possible("it lies in a MobiFS mount already");
    }
    if let Some(why) = &facts.store_obstacle {
        return Verdict::Impossible { why: why.clone() };
    }
    if let Some(what) = &facts.fuse_obstacle {
        return Verdict::Needs { what: what.clone() };
    }
    if let Some(mountpoint) = &facts.served_at {
        let at = mountpoint.display();
        return possible(&format!(
            "it is the store of the mount {at}: one point in time for each app"
        ));
    }
    let promise =
        "one point in time for each app (a directory below the mount); some microseconds a call";
    match &facts.adopt_obstacle {
        Some(why) if facts.path != facts.mountpoint => possible(&format!(
            "{promise}; not under its own name, as it cannot be adopted: {why}"
        )),
        _ => possible(promise),
    }
}

fn sqlite(facts: &Facts) -> Verdict {
    let most = "programs of yours that use SQLite and can load an extension or link a library";
    match facts.survey.databases {
        _ if facts.is_of_the_kernel => Verdict::Impossible {
            why: "what the kernel shows there keeps no databases".to_owned(),
        },
        _ if facts.is_in_memory => Verdict::Impossible {
            why: "a database in memory is lost with the power however it is committed".to_owned(),
        },
        0 if facts.survey.unreadable > 0 => possible(&format!(
            "for {most}; no database was found in what can be read here"
        )),
        0 => possible(&format!("for {most}; no database was found here")),
        _ => possible(&format!(
            "one point in time for each database, in the program itself; for {most}"
        )),
    }
}

fn plain(facts: &Facts) -> Verdict {
    possible(if facts.is_in_mount {
        "what the mount promises for each app, which is relaxed or durable: `mobifs status` shows it"
    } else if facts.is_of_the_kernel {
        "it is an interface of the kernel, and nothing of it is kept"
    } else if facts.is_in_memory {
        "it is in memory, and nothing of it is there after a power cut"
    } else {
        "what the filesystem promises: an fsync waits for the disk, and without it each file is of \
         another moment after a power cut"
    })
}

fn possible(promise: &str) -> Verdict {
    Verdict::Possible {
        promise: promise.to_owned(),
    }
}

fn recommend(facts: &Facts, verdicts: &[(Way, Verdict)]) -> (Way, String) {
    let can = |wanted: Way| {
        let mut all = verdicts.iter();
        all.any(|(way, verdict)| *way == wanted && matches!(verdict, Verdict::Possible { .. }))
    };
    let survey = &facts.survey;
    let (large, databases) = (
        survey.percent(survey.large_bytes),
        survey.percent(survey.database_bytes),
    );
    if facts.is_in_mount {
        return (Way::Mount, "it lies in a MobiFS mount already".to_owned());
    }
    if facts.is_of_the_kernel {
        let why = "the kernel shows itself there and keeps no files";
        return (Way::Plain, why.to_owned());
    }
    if facts.is_in_memory {
        let why = "it is in memory, which is as fast as it gets and kept by nothing";
        return (Way::Plain, why.to_owned());
    }
    if let Steering::Steered { is_in_force, .. } = facts.steering {
        let why = if is_in_force {
            "its filesystem is steered already; start programs with `mobifs run`"
        } else {
            "its filesystem is steered already; calls for durability wait, as its status says"
        };
        return (Way::Native, why.to_owned());
    }
    if facts.steering == Steering::Left {
        let why = "its filesystem was steered, and the daemon is gone: go on with it, or stop it";
        return (Way::Native, why.to_owned());
    }
    if let Some(mountpoint) = &facts.served_at {
        let at = mountpoint.display();
        let why = format!("it is the store of the mount {at}: use it through that");
        return (Way::Mount, why);
    }
    if facts.steering == Steering::Possible && large <= LARGE_PERCENT_MAX {
        let why = "its filesystem journals content, so that its own commits can be steered, which is \
                   the fastest way";
        return (Way::Native, why.to_owned());
    }
    if can(Way::Mount) {
        return (Way::Mount, why_mount(facts, large));
    }
    if survey.databases > 0 && databases >= DATABASES_PERCENT_MIN {
        let why =
            format!("{databases} % of what lies here is databases, and a mount is not possible");
        return (Way::Sqlite, why);
    }
    let why = if facts.path == Path::new("/") {
        "`/` as a whole cannot be served: name a directory with the files of programs, such as /home or \
         /var/lib"
    } else {
        "neither a mount nor native mode is possible as it is: see below"
    };
    (Way::Plain, why.to_owned())
}

fn why_mount(facts: &Facts, large: u64) -> String {
    match &facts.steering {
        Steering::Possible => format!(
            "{large} % of what lies here is in large files, which native mode writes twice and a mount \
             once"
        ),
        Steering::Needs(_) => {
            "it needs no change of the filesystem, and no root; native mode would be \
                               faster, and needs what is said below"
                .to_owned()
        }
        Steering::CommitsOnly { .. } => {
            "it has one point in time for each app, and returns from calls \
                                         for durability at once; native mode does neither on btrfs"
                .to_owned()
        }
        _ => "it works on this filesystem, and native mode does not".to_owned(),
    }
}

fn commands(facts: &Facts, way: Way) -> Vec<String> {
    let (path, mountpoint) = (quoted(&facts.path), quoted(&facts.mountpoint));
    if let (Way::Mount, Some(mountpoint)) = (way, &facts.served_at) {
        return vec![format!("mobifs status {}", quoted(mountpoint))];
    }
    match way {
        Way::Mount if facts.is_in_mount => vec![format!("mobifs status {mountpoint}")],
        // What cannot be adopted.
        Way::Mount
            if facts.is_store
                || facts.is_in_memory
                || facts.adopt_obstacle.is_some()
                || facts.path == facts.mountpoint =>
        {
            vec![format!("mobifs mount {path} EMPTY_DIRECTORY")]
        }
        Way::Mount => vec![format!("mobifs adopt {path}")],
        Way::Native if matches!(facts.steering, Steering::Steered { .. }) => {
            vec![format!("mobifs status {mountpoint}")]
        }
        Way::Native if facts.steering == Steering::Left => vec![
            format!("mobifs steer {mountpoint}"),
            format!("mobifs steer --stop {mountpoint}"),
        ],
        Way::Native => vec![
            format!("mobifs steer {mountpoint}"),
            "mobifs run -- COMMAND".to_owned(),
        ],
        Way::Sqlite | Way::Plain => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::survey::Survey;

    fn facts(steering: Steering) -> Facts {
        Facts {
            path: "/data/it's".into(),
            mountpoint: "/data".into(),
            kind: "ext4".to_owned(),
            shown_kind: "ext4".to_owned(),
            is_in_memory: false,
            is_store: false,
            is_of_the_kernel: false,
            is_in_mount: false,
            served_at: None,
            steering,
            store_obstacle: None,
            adopt_obstacle: None,
            fuse_obstacle: None,
            survey: Survey {
                is_complete: true,
                files: 10,
                bytes: 1000,
                ..Survey::default()
            },
        }
    }

    fn recommended(facts: &Facts) -> Way {
        Advice::of(facts).recommended
    }

    #[test]
    fn the_kernels_transactions_come_first_where_they_hold_content() {
        let mut able = facts(Steering::Possible);
        let advice = Advice::of(&able);
        assert_eq!(advice.recommended, Way::Native);
        assert_eq!(advice.commands[0], "mobifs steer /data");
        able.survey.large_bytes = 510;
        let advice = Advice::of(&able);
        assert_eq!(advice.recommended, Way::Mount);
        assert!(advice.reason.contains("51 %"), "{}", advice.reason);
        assert_eq!(advice.commands, [r"mobifs adopt '/data/it'\''s'"]);
        able.is_store = true;
        let advice = Advice::of(&able);
        assert_eq!(
            advice.commands,
            [r"mobifs mount '/data/it'\''s' EMPTY_DIRECTORY"]
        );
        able.fuse_obstacle = Some("no /dev/fuse".to_owned());
        assert_eq!(recommended(&able), Way::Plain);
    }

    /// `mobifs adopt` was advised, and refused.
    #[test]
    fn what_cannot_be_adopted_is_mounted_elsewhere() {
        let mut fixed = facts(Steering::Impossible("xfs".to_owned()));
        fixed.adopt_obstacle = Some("/data is immutable".to_owned());
        let advice = Advice::of(&fixed);
        assert_eq!(advice.recommended, Way::Mount);
        assert_eq!(
            advice.commands,
            [r"mobifs mount '/data/it'\''s' EMPTY_DIRECTORY"]
        );
        assert!(matches!(
            &advice.verdicts[1].1,
            Verdict::Possible { promise } if promise.ends_with("cannot be adopted: /data is immutable")
        ));
    }

    #[test]
    fn a_mount_needs_no_change_of_the_filesystem() {
        let other = facts(Steering::Needs("mount it with data=journal".to_owned()));
        let advice = Advice::of(&other);
        assert_eq!(advice.recommended, Way::Mount);
        assert!(advice.reason.contains("faster"), "{}", advice.reason);
        let other = facts(Steering::Impossible("xfs".to_owned()));
        assert_eq!(recommended(&other), Way::Mount);
    }

    /// "Not here" was said of a btrfs, which `mobifs steer` takes.
    #[test]
    fn a_btrfs_can_be_steered_and_is_better_mounted() {
        let of = |needs: Option<&str>| {
            let needs = needs.map(str::to_owned);
            Advice::of(&facts(Steering::CommitsOnly { needs }))
        };
        let advice = of(None);
        assert_eq!(advice.recommended, Way::Mount);
        assert!(advice.reason.contains("btrfs"), "{}", advice.reason);
        let (_, verdict) = &advice.verdicts[0];
        assert!(
            matches!(verdict, Verdict::Possible { promise } if promise.contains("block, as without MobiFS"))
        );
        let steered = facts(Steering::Steered {
            is_in_force: false,
            commits_only: true,
        });
        let (_, verdict) = &Advice::of(&steered).verdicts[0];
        assert!(
            matches!(verdict, Verdict::Possible { promise } if promise.contains("block, as without MobiFS"))
        );
        let advice = of(Some("remount it with datacow"));
        assert_eq!(advice.recommended, Way::Mount);
        assert!(
            matches!(&advice.verdicts[0].1, Verdict::Needs { what } if what.contains("datacow"))
        );
    }

    #[test]
    fn where_neither_is_possible_databases_have_their_own_way() {
        let mut poor = facts(Steering::Impossible("vfat".to_owned()));
        poor.store_obstacle = Some("FAT".to_owned());
        assert_eq!(recommended(&poor), Way::Plain);
        (poor.survey.databases, poor.survey.database_bytes) = (1, 950);
        assert_eq!(recommended(&poor), Way::Sqlite);
        poor.is_in_memory = true;
        assert_eq!(recommended(&poor), Way::Plain);
    }

    /// It was said to be steerable, as if nothing had been.
    #[test]
    fn what_a_killed_daemon_has_left_is_named() {
        let advice = Advice::of(&facts(Steering::Left));
        assert_eq!(advice.recommended, Way::Native);
        assert_eq!(
            advice.commands,
            ["mobifs steer /data", "mobifs steer --stop /data"]
        );
        assert!(
            matches!(&advice.verdicts[0].1, Verdict::Needs { what } if what.contains("is gone"))
        );
    }

    #[test]
    fn what_is_served_already_is_said_to_be() {
        let mut served = facts(Steering::Steered {
            is_in_force: true,
            commits_only: false,
        });
        served.survey.large_bytes = 1000;
        assert_eq!(recommended(&served), Way::Native);
        let mut store = facts(Steering::Possible);
        store.served_at = Some("/mnt".into());
        let advice = Advice::of(&store);
        assert_eq!(advice.recommended, Way::Mount);
        assert_eq!(advice.commands, ["mobifs status /mnt"]);
        served.is_in_mount = true;
        let advice = Advice::of(&served);
        assert_eq!(advice.recommended, Way::Mount);
        assert_eq!(advice.commands, ["mobifs status /data"]);
    }
}
