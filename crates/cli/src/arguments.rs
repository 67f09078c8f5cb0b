//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use mobifs_daemon::predecessor::WAIT_DEFAULT;

use crate::adopt_arguments::{ADOPT_HELP, AdoptArguments, UnadoptArguments};
use crate::history_arguments::{HISTORY_HELP, HistoryArguments, RESTORE_HELP, RestoreArguments};
use crate::policy_arguments::PolicyArguments;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it could not be done
  2  the command line or the configuration is wrong
  3  the store, the mount or the image is in use
  4  the store or the image is damaged, or of a newer format
  5  there is no MobiFS mount or served device, or its daemon is gone
  6  a daemon could not take over the mount of one that died; start it again

The environment variable MOBIFS_LOG sets how much is logged (error, warn, info, debug, trace).

Documents that help texts and messages name as docs/… are at https://github.com/mobifs/mobifs/tree/main/docs.";

const MOUNT_HELP: &str = "\
Options for -o (comma-separated; the standard ones mean what mount(8) says):
  ro rw              refuse changes, or not
  allow_other        other users may enter (default for root; noallow_other: not)
  default_permissions  always in effect: modes, owners and ACLs are enforced
  dev suid exec (nodev nosuid noexec), noatime relatime strictatime nodiratime,
  sync async dirsync, fsname=NAME, max_read=BYTES
  syncfs=auto|on|off make sync(2) reach the mount: if possible, or fail, or not
  nonempty           mount over a directory that is not empty
  nosupervise        in the background: no new daemon is started if this one dies, so
                     what is not committed is lost then, as in a power cut
  wait=SECONDS       how long to wait for a daemon that still brings to the store what was
                     changed through a mount which has ended (60)
  config=FILE        as --config        log=FILE   as --log       record=FILE  as --record
  noauto nofail _netdev user users x-... comment=... are for others and passed over

Keys of the configuration file (TOML; docs/CONFIG.md explains them):
  memory_budget_bytes, journal_bytes, direct_write_max_bytes, apply_idle_ms,
  preallocate_database_bytes, preallocate_large_bytes, objects_max, allow_durable, predictor, predictor_short_intervals,
  predictor_long_intervals, predictor_short_ms, predictor_long_ms,
  predictor_timeout_factor, touch_gap_us, scheduler, user_events = \"auto\" | \"bursts\" | \"none\",
  memory_pressure, screens, system_bus, battery_low_percent, standby_age_max_ms,
  status_group, apps = [\"GLOB\", ...]
  [defaults]   class = \"relaxed\" | \"durable\", age_max_ms, staleness_max_bytes,
               policy = \"tpl\" | \"interval\" | \"quiet\" | \"staleness\" | \"fsync\",
               staleness_min_bytes, slope_min_micropercent, window_points (tpl),
               interval_ms, quiet_ms, quiet_age_min_ms, staleness_bytes,
               flush_interval_ms (fsync)
  [[app]]      match = \"GLOB\", and any key of [defaults]
  [history]    keep_count, keep_age_max_ms, interval_min_ms, freeze_max_ms,
               free_min_percent

In /etc/fstab:
  /srv/store  /mnt/data  fuse.mobifs  noauto,config=/etc/mobifs.toml  0 0";

const RUN_HELP: &str = "\
The command takes the place of this process: its number, terminal, signals and exit status are
the command's own. docs/RUN.md says what holds on which filesystem.

Exit codes beside the command's own: 126 if it cannot be started, 127 if there is none.";

const STEER_HELP: &str = "\
The configuration file is that of a mount (`mobifs mount --help` lists its keys). A filesystem is
committed as a whole: the settings of `.` hold, within the age_max_ms and staleness_max_bytes of
every app. docs/NATIVE.md says what is promised and how to set it up.";

const RECOVER_HELP: &str = "\
A store whose journal is damaged is refused by mount, recover and check, which change nothing. Copy it
if you can, then let --salvage show what is certain and what is lost (--dry-run shows only). The
damaged journal is kept in .mobifs. docs/DESIGN.md says what is promised of the files afterwards.";

/// Memory-speed storage over the filesystem you have: after a crash every app is at a
/// point in time that really existed.
#[derive(Debug, Parser)]
#[command(name = "mobifs", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Mount a store
    #[command(after_help = MOUNT_HELP)]
    Mount(MountArguments),
    /// Decide when a filesystem of the kernel commits: ext4 with data=journal, or btrfs (native mode)
    #[command(after_help = STEER_HELP)]
    Steer(SteerArguments),
    /// Commit everything, bring it to its final place, and unmount
    Umount(UmountArguments),
    /// Put a directory in use behind MobiFS, under its own name, from now on and at every start
    #[command(after_help = ADOPT_HELP)]
    Adopt(AdoptArguments),
    /// Make an adopted directory an ordinary one again
    Unadopt(UnadoptArguments),
    /// Commit now
    Sync(SyncArguments),
    /// Show what is at risk, what was written and what was saved
    Status(StatusArguments),
    /// Print figures of mounts for a monitoring system (OpenMetrics)
    Metrics(MetricsArguments),
    /// Watch the apps of a mount in the terminal, and act on them
    #[command(disable_help_flag = true)]
    Top(LaboratoryArguments),
    /// Bring a store that is not mounted to its last committed state
    #[command(after_help = RECOVER_HELP)]
    Recover(RecoverArguments),
    /// Check a store that is not mounted for damage; changes nothing
    Check(CheckArguments),
    /// Measure up to which size one durable write is faster than a write and a flush, and use it
    Calibrate(CalibrateArguments),
    /// Find out what a failure would do
    Drill(DrillArguments),
    /// Load the configuration of a mount again
    Reload(ReloadArguments),
    /// Change the class, limits or policy of an app while mounted
    Set(SetArguments),
    /// Tell a mount that the user is active, or what the screen does (for kiosks, phones
    /// and tests)
    Touch(TouchArguments),
    /// List the snapshots that are kept of a steered btrfs, or of a store on btrfs, or delete some
    #[command(after_help = HISTORY_HELP)]
    History(HistoryArguments),
    /// Bring back files as a snapshot has them
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArguments),
    /// Run a command whose calls for durability return at once on steered filesystems
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Say what this machine offers to MobiFS, and which way to use it fits a directory, and why;
    /// changes nothing
    Doctor(DoctorArguments),
    /// Return when a filesystem takes changes
    #[command(hide = true)]
    FreezeProbe(FreezeProbeArguments),
    /// Thaw frozen control groups if the daemon dies
    #[command(hide = true)]
    ThawWatchdog(ThawWatchdogArguments),
    /// Stay in a mount namespace as long as a daemon is in it
    #[command(hide = true)]
    KeepNamespace(KeepNamespaceArguments),
    /// Do something to all daemons of this machine
    #[command(hide = true)]
    Every(EveryArguments),
    /// Watch over a daemon: start a new one if it dies
    #[command(hide = true)]
    Supervise(SuperviseArguments),
    /// Flash storage as a model: serve it as a block device, cut its power, see its wear
    #[command(disable_help_flag = true)]
    Flash(LaboratoryArguments),
    /// How fragmented files are, and where they lie
    #[command(disable_help_flag = true)]
    Frag(LaboratoryArguments),
    /// What making data durable costs: journals, commits, and ways to make them, side by side
    #[command(disable_help_flag = true)]
    Persist(LaboratoryArguments),
    /// What would have been flushed, when, and at what risk: traces under policies
    #[command(disable_help_flag = true)]
    Sim(LaboratoryArguments),
    /// Experiments with traces, and benches
    #[command(disable_help_flag = true)]
    Lab(LaboratoryArguments),
    /// Traces of what programs do to files: record, import, look at, cut, merge, replay
    #[command(disable_help_flag = true)]
    Trace(LaboratoryArguments),
}

/// A number in words that say what is expected.
fn whole_number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is not a whole number from 0 on"))
}

/// The name of an app, which is not empty: nothing would be done to any.
fn app_name() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|name| {
        if name.is_empty() {
            return Err("no app has an empty name, and what lies in no app is called \".\"");
        }
        Ok(name)
    })
}

/// What the laboratory's own program understands.
#[derive(Clone, Debug, Args)]
pub(crate) struct LaboratoryArguments {
    /// Handed to mobifs-lab, which must be installed
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) all: Vec<OsString>,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MountArguments {
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub(crate) foreground: bool,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Log file [default in the background: the system's journal, or without journald a file
    /// per mount point in the runtime directory, /run/mobifs for root]
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Record what programs do with the mount as a trace (docs/TRACES.md); FILE must not be
    /// there, is written when the mount ends, and is FILE.part until then
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Mount options, comma-separated; may be repeated
    #[arg(short = 'o', value_name = "OPT,...")]
    pub(crate) options: Vec<String>,
    /// Tell the parent process on standard output when the mount is usable
    #[arg(long, hide = true)]
    pub(crate) background_child: bool,
    /// Pass over mount options that are not known
    #[arg(long, hide = true)]
    pub(crate) sloppy: bool,
    /// Directory that holds the files, on ext4, btrfs, XFS or f2fs
    pub(crate) store: PathBuf,
    /// Where to mount it: an empty directory outside the store
    pub(crate) mountpoint: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SteerArguments {
    /// Only say, in sentences, whether it is possible, what is missing and how to get it
    #[arg(long, conflicts_with_all = ["stop", "foreground"])]
    pub(crate) check: bool,
    /// Commit everything, and restore the mount options of before
    #[arg(long, conflicts_with_all = ["foreground", "config"])]
    pub(crate) stop: bool,
    /// Only these directories, of an ext4 with data=ordered and nodelalloc: the content of files there is
    /// journalled (`chattr +j`), that of others is not (relative: to MOUNTPOINT)
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        conflicts_with = "stop"
    )]
    pub(crate) only: Vec<PathBuf>,
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub(crate) foreground: bool,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Log file [default in the background: the system's journal, or without journald a file
    /// per mount point in the runtime directory, /run/mobifs]
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Tell the parent process on standard output when it is steered
    #[arg(long, hide = true)]
    pub(crate) background_child: bool,
    /// Where the filesystem is mounted; with --check any directory in it
    pub(crate) mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The configuration that is to hold
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What is to be served: a directory with the files of programs; none: only the machine
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct EveryArguments {
    /// What is done
    pub(crate) action: EveryAction,
}

/// What `mobifs every` does.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum EveryAction {
    /// Fail if a mount is that of an adopted directory
    Adopted,
    /// End all mounts and steering, with everything committed; fail if something stays
    End,
    /// Commit
    Commit,
}

#[derive(Debug, Args)]
pub(crate) struct FreezeProbeArguments {
    /// Where the filesystem is mounted
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct KeepNamespaceArguments {
    /// Be the process that stays; without it, start that one
    #[arg(long)]
    pub(crate) detached: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ThawWatchdogArguments {
    /// Where the daemon notes what stands still
    pub(crate) note: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SuperviseArguments {
    /// The daemon's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) daemon: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArguments {
    /// Take the mount out of the tree although it is in use; its daemon ends, with
    /// everything committed, when its last user is gone
    #[arg(long, short)]
    pub(crate) lazy: bool,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArguments {
    /// Only this app: its path relative to the mount (`.`: what lies in no app)
    #[arg(long, value_name = "NAME", value_parser = app_name())]
    pub(crate) app: Option<OsString>,
    /// Commit only; do not apply to the lower tree
    #[arg(long)]
    pub(crate) commit_only: bool,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Print JSON (docs/STATUS.md describes it)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print it again every second
    #[arg(long)]
    pub(crate) watch: bool,
    /// What was written and what was saved, day by day: whether it pays
    #[arg(long, conflicts_with_all = ["watch", "app", "after", "limit"])]
    pub(crate) history: bool,
    /// Only apps whose path relative to the mount this matches
    #[arg(long, value_name = "GLOB", requires = "mountpoint")]
    pub(crate) app: Option<OsString>,
    /// Only apps after this one in the order of names: the next page
    #[arg(long, value_name = "NAME", requires = "mountpoint")]
    pub(crate) after: Option<OsString>,
    /// List at most N apps [default: 1000]
    #[arg(long, value_name = "N", requires = "mountpoint", value_parser = whole_number, allow_hyphen_values = true)]
    pub(crate) limit: Option<u64>,
    /// The mount, or with --history a store that is not mounted; none: all mounts and steered
    /// filesystems, one a line
    pub(crate) mountpoint: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct MetricsArguments {
    /// Write them to this file instead, which is there whole or not at all (for the textfile
    /// collector of Prometheus's node_exporter: a name in its directory that ends in .prom)
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) textfile: Option<PathBuf>,
    /// Serve them over HTTP until the end of this process, at /metrics: an address with a port
    /// (127.0.0.1:9464), or the path of a Unix socket
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Who may use the Unix socket, beside this user: the members of this group
    #[arg(long, value_name = "GROUP", requires = "listen")]
    pub(crate) group: Option<String>,
    /// The exposition's format [default: openmetrics; with --textfile prometheus, and with --listen
    /// what the client asks for]
    #[arg(long, value_name = "FORMAT", conflicts_with = "listen")]
    pub(crate) format: Option<MetricsFormat>,
    /// No more than this many apps of each mount, those with the most at risk
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole_number)]
    pub(crate) apps: u64,
    /// The mounts and steered filesystems; none: all
    #[arg(value_name = "MOUNT")]
    pub(crate) mounts: Vec<PathBuf>,
}

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricsFormat {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// Prometheus's text format 0.0.4.
    Prometheus,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArguments {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Bring a store whose journal is damaged to the last point in time up to which everything is
    /// certain; shows what is lost, and asks
    #[arg(long)]
    pub(crate) salvage: bool,
    /// Do not ask (for scripts)
    #[arg(long, requires = "salvage")]
    pub(crate) yes: bool,
    /// Say what is certain and what is lost as JSON, with all files
    #[arg(long, requires = "salvage")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgument,
    /// The store
    pub(crate) store: PathBuf,
}

/// For commands that lock a store as a mount does.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct WaitArgument {
    /// How long to wait for a daemon that still brings to the store what was changed through a
    /// mount which has ended
    #[arg(long = "wait", value_name = "SECONDS", default_value_t = WAIT_DEFAULT.as_secs(), value_parser = whole_number)]
    seconds: u64,
}

impl WaitArgument {
    pub(crate) const fn limit(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) wait: WaitArgument,
    /// The store
    pub(crate) store: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgument,
    /// The mount, or a store that is not mounted: it is brought to its last committed state first
    #[arg(value_name = "MOUNTPOINT|STORE")]
    pub(crate) place: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DrillArguments {
    #[command(subcommand)]
    pub(crate) drill: Drill,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Drill {
    /// End a mount exactly as a power cut would: from that instant nothing more is
    /// written to the store, and what is only in memory is lost
    PowerCut(PowerCutArguments),
}

#[derive(Debug, Args)]
pub(crate) struct PowerCutArguments {
    /// Yes, lose what is not committed
    #[arg(long)]
    pub(crate) yes: bool,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArguments {
    /// Another configuration file than the one given at mount
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

/// What a screen does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScreenState {
    /// It is on.
    On,
    /// It is dark.
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct TouchArguments {
    /// The screen was switched on or off (and the user did nothing else); while it is off,
    /// commits wait for their limits
    #[arg(long, value_name = "STATE")]
    pub(crate) screen: Option<ScreenState>,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Name under which the steering daemon accounts this command [default: that of the program,
    /// or of the unit]
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<String>,
    /// durable: calls for durability keep their meaning
    #[arg(long, value_name = "CLASS", default_value = "relaxed")]
    pub(crate) class: RunClass,
    /// On every filesystem, steered or not: after a crash what was written may be there in any
    /// order, or in parts
    #[arg(long = "unsafe")]
    pub(crate) is_unsafe: bool,
    /// What decides on calls: a library in the program, a supervisor beside it, or both
    #[arg(long, value_name = "MECHANISM", default_value = "both")]
    pub(crate) mechanism: RunMechanism,
    /// io_uring: refuse it, or allow it with its own durability [default: refuse; with --mechanism
    /// preload: allow, as the library cannot refuse it]
    #[arg(long, value_name = "WHAT")]
    pub(crate) io_uring: Option<RunRings>,
    /// Print what is done
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print what makes systemd run this unit's commands so (a drop-in)
    #[arg(long, value_name = "UNIT", conflicts_with = "command")]
    pub(crate) systemd: Option<String>,
    /// Install it
    #[arg(long, requires = "systemd")]
    pub(crate) install: bool,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "systemd"
    )]
    pub(crate) command: Vec<OsString>,
}

/// Whether calls for durability are heeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunClass {
    /// Not on steered filesystems.
    Relaxed,
    /// Everywhere.
    Durable,
}

/// What decides on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunMechanism {
    /// The library where it can be, the supervisor for the rest.
    Both,
    /// The library.
    Preload,
    /// The supervisor.
    Seccomp,
}

/// Whether io_uring can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunRings {
    /// It fails as if the kernel had none.
    Refuse,
    /// It can.
    Allow,
}

#[derive(Debug, Args)]
pub(crate) struct SetArguments {
    /// The app: its path relative to the mount (`.`: what lies in no app)
    #[arg(long, value_name = "NAME", value_parser = app_name())]
    pub(crate) app: OsString,
    #[command(flatten)]
    pub(crate) policy: PolicyArguments,
    /// The mount
    pub(crate) mountpoint: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Found by strangers: `sync` committed nothing, and said that all was well.
    #[test]
    fn an_app_without_a_name_is_refused() {
        on_the_stack_of_a_main_thread(|| {
            for words in [
                &["mobifs", "sync", "--app", "", "/mnt"][..],
                &["mobifs", "set", "--app=", "--class", "durable", "/mnt"],
            ] {
                let refused = Arguments::try_parse_from(words).unwrap_err();
                assert!(refused.to_string().contains("--app"), "{refused}");
            }
            Arguments::try_parse_from(["mobifs", "sync", "--app", ".", "/mnt"]).unwrap();
        });
    }

    /// Programs parse in the main thread, which has 8 MiB: without optimization the frames of clap and of
    /// what it derives are large.
    fn on_the_stack_of_a_main_thread(work: fn()) {
        let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(work);
        if let Err(panic) = thread.unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        on_the_stack_of_a_main_thread(|| Arguments::command().debug_assert());
    }

    /// Found by hand: keys were missing.
    #[test]
    fn the_help_of_mount_lists_every_key_of_the_configuration_and_no_other() {
        let keys = MOUNT_HELP
            .split("Keys of the configuration file")
            .nth(1)
            .unwrap();
        let (mount, app) = keys
            .split("In /etc/fstab")
            .next()
            .unwrap()
            .split_once("[defaults]")
            .unwrap();
        let (app, history) = app.split_once("[history]").unwrap();
        let known = mobifs_volume::config_keys();
        for (text, known) in [
            (mount, known.mount),
            (app, known.app),
            (history, known.history),
        ] {
            let named = |name: &str| {
                text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
                    .any(|word| word == name)
            };
            for key in &known {
                assert!(named(key), "{key} is not in the help");
            }
            let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
            for word in words.filter(|word| word.contains('_')) {
                assert!(known.contains(&word), "{word} is no key");
            }
        }
    }

    /// Found by hand: that `-1` is no option, and that it could be given after `--`.
    #[test]
    fn a_negative_number_is_refused_for_what_it_is() {
        on_the_stack_of_a_main_thread(refuses_numbers);
    }

    fn refuses_numbers() {
        for (option, value) in [
            ("--age-max-ms", "-1"),
            ("--quiet-ms", "5s"),
            ("--window-points", ""),
            ("--slope-min-micropercent", "steep"),
        ] {
            let words = ["mobifs", "set", "--app", "a", option, value, "MNT"];
            let said = Arguments::try_parse_from(words).unwrap_err().to_string();
            assert!(
                said.contains("whole number") && !said.contains("tip:"),
                "{said}"
            );
        }
        let words = "mobifs set --app a --staleness-bytes -5 MNT".split(' ');
        Arguments::try_parse_from(words).expect("a size is refused where sizes are read");
    }

    #[test]
    fn the_form_that_other_tools_rely_on_is_accepted() {
        on_the_stack_of_a_main_thread(accepts_what_others_rely_on);
    }

    fn accepts_what_others_rely_on() {
        for line in [
            "mobifs mount --foreground --config c -o ro,noatime -o nonempty STORE MNT",
            "mobifs mount STORE MNT",
            "mobifs mount --record FILE STORE MNT",
            "mobifs umount MNT",
            "mobifs adopt DIR",
            "mobifs adopt --dry-run --boot none --config c -o noatime DIR",
            "mobifs adopt --dry-run --json DIR",
            "mobifs adopt --at-boot DIR",
            "mobifs adopt --list --all-users --json",
            "mobifs unadopt --dry-run DIR",
            "mobifs steer MNT",
            "mobifs steer --foreground --config c MNT",
            "mobifs steer --stop MNT",
            "mobifs steer --check --config c DIR",
            "mobifs history --json MNT",
            "mobifs history --json --delete 2026-11-27T16:30:05.123456Z MNT",
            "mobifs history --older-than 7d MNT",
            "mobifs restore --at -10min --app a/b --to DIR MNT",
            "mobifs restore --at 2026-11-27T16:30:00Z --exact --app a --in-place MNT",
            "mobifs sync --app NAME MNT",
            "mobifs set --app A --policy tpl --slope-min-micropercent -5 --window-points 8 MNT",
            "mobifs touch MNT",
            "mobifs touch --screen off MNT",
            "mobifs status --json MNT",
            "mobifs status --watch MNT",
            "mobifs status",
            "mobifs status --json",
            "mobifs status --history MNT",
            "mobifs metrics",
            "mobifs metrics --textfile FILE A B",
            "mobifs metrics --listen 127.0.0.1:9464",
            "mobifs top MNT",
            "mobifs doctor",
            "mobifs doctor --json DIR",
            "mobifs recover --dry-run STORE",
            "mobifs recover --wait 0 STORE",
            "mobifs check STORE",
            "mobifs check --wait 600 STORE",
            "mobifs drill power-cut --yes MNT",
            "mobifs flash serve --preset emmc51 --loop IMAGE",
            "mobifs trace --help",
            "mobifs lab",
            "mobifs run make -j2",
            "mobifs run --app A --class durable --unsafe -v -- make --help",
            "mobifs run --systemd postgresql --install",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        assert!(Arguments::try_parse_from(["mobifs"]).is_err());
        assert!(Arguments::try_parse_from(["mobifs", "mount", "STORE"]).is_err());
        for line in [
            "mobifs status --app a",
            "mobifs metrics --listen A --textfile B",
            "mobifs history --delete NAME --older-than 7d MNT",
            "mobifs restore --at -10min MNT",
            "mobifs restore --at -10min --in-place MNT",
            "mobifs restore --at -10min --in-place --app a --to DIR MNT",
            "mobifs restore --to DIR MNT",
            "mobifs adopt",
            "mobifs adopt --json DIR",
            "mobifs adopt --list DIR",
            "mobifs adopt --all-users DIR",
            "mobifs unadopt",
        ] {
            assert!(
                Arguments::try_parse_from(line.split(' ')).is_err(),
                "{line}"
            );
        }
    }
}
