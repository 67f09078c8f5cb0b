//! `mobifs frag age`

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use mobifs_ageing::fill::{Ageing, Procedure, Progress, Utilisation};
use mobifs_ageing::run::{self, Event};
use mobifs_ageing::{
    AgeError, Filesystem, Location, OpenedLocation, Settings, Source, Space, State, Through, Where,
    mobifs, table,
};
use mobifs_host::{mount_around, mounts};
use mobifs_volume::parse_size;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::{Code, Failure, put};

pub(super) const HELP: &str = "\
Eleven apps of a phone are installed, updated and used, as S4 did: files and databases of SQLite by app
profiles (docs/AGEING.md). With --fill, large and small files instead. The same seed makes the same
names, sizes and contents; the report has a checksum for each day.

  mobifs frag age --image phone.img --capacity 32GiB --filesystem ext4
  mobifs frag age --image small.img --capacity 1GiB --scale 0.02 --days 3 --minutes-per-day 30
  mobifs frag age --image phone.img --resume
  mobifs frag age --fill high --seed 7 /mnt/empty

An image is mounted by a loop device (root only), and unmounted at the end. A directory has to be empty; what
ages is in DIR/aged. SIGINT ends a run so that --resume can continue it; a second one ends it at once.

S4: C. Ji et al., File Fragmentation in Mobile Devices, IEEE Transactions on Mobile Computing, 2018.";

#[derive(Debug, Args)]
pub(super) struct AgeArguments {
    /// An empty directory, on any filesystem, also a mount of MobiFS
    #[arg(
        value_name = "DIR",
        required_unless_present = "image",
        conflicts_with = "image"
    )]
    directory: Option<PathBuf>,
    /// Make a sparse image, and a filesystem in it
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Size of the image
    #[arg(long, value_name = "SIZE", default_value = "32GiB", requires = "image")]
    capacity: String,
    /// Filesystem of the image
    #[arg(long, value_enum, default_value = "ext4", requires = "image")]
    filesystem: FilesystemArgument,
    /// What stands between the apps and the filesystem
    #[arg(long, value_enum, default_value = "plain")]
    through: ThroughArgument,
    /// Everything follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Continue a run that was ended, with its own settings
    #[arg(
        long,
        conflicts_with_all = ["seed", "days", "minutes_per_day", "scale", "start_full", "full", "clean",
            "update_days", "profiles", "fill", "capacity", "filesystem", "through"]
    )]
    resume: bool,
    /// Days after that of the installation [default: 30]
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// How long the phone is used on a day [default: 222]
    #[arg(long, value_name = "MINUTES")]
    minutes_per_day: Option<f64>,
    /// Sizes of files and large databases by this factor [default: 1]
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// How full one large file makes the filesystem first [default: 70]
    #[arg(long, value_name = "PERCENT")]
    start_full: Option<f64>,
    /// From where on it counts as full [default: 98, XFS 96, btrfs 90]
    #[arg(long, value_name = "PERCENT")]
    full: Option<f64>,
    /// Bytes of pictures that are deleted then [default: 300MB by the scale]
    #[arg(long, value_name = "SIZE")]
    clean: Option<String>,
    /// Days between updates of all apps [default: 10]
    #[arg(long, value_name = "N")]
    update_days: Option<u32>,
    /// An app profile; one with the name of a built-in app takes its place
    #[arg(long = "profile", value_name = "FILE")]
    profiles: Vec<PathBuf>,
    /// Fill by large and small files instead, up to this utilisation
    #[arg(
        long,
        value_enum,
        conflicts_with_all = ["days", "minutes_per_day", "scale", "start_full", "full", "clean", "update_days",
            "profiles"]
    )]
    fill: Option<FillArgument>,
    /// With --fill high: small files of 64 KB (moderate) or 8 KB (severe), of which --delete go, or none
    #[arg(long, value_enum, requires = "fill")]
    holes: Option<HolesArgument>,
    /// Bytes of small files that --holes deletes
    #[arg(long, value_name = "SIZE", default_value = "500MB", requires = "holes")]
    delete: String,
    /// Write large files rather than allocate their room
    #[arg(long, requires = "fill")]
    write_large: bool,
    /// Fill the filesystem of DIR although others use it
    #[arg(long, conflicts_with = "image")]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image is mounted by the process that started this one
    #[arg(long, hide = true, requires = "resume")]
    inside: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FilesystemArgument {
    Ext4,
    Btrfs,
    Xfs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ThroughArgument {
    /// Nothing
    Plain,
    /// A mount of MobiFS, whose store lies in the image
    Mount,
    /// Native mode of MobiFS: `mobifs steer`, and the apps under `mobifs run`
    Native,
    /// The SQLite VFS of MobiFS, for databases
    Vfs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FillArgument {
    /// As it was made
    Low,
    /// 75 % used
    Moderate,
    /// 90 % used
    High,
    /// 98.5 % used
    Full,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HolesArgument {
    None,
    Moderate,
    Severe,
}

pub(super) fn run(arguments: &AgeArguments) -> Result<(), Failure> {
    if arguments.inside {
        // Who mounted the image is to be resumed, and not beside this process.
        let killed = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        killed.map_err(|error| {
            Failure::new(
                Code::Failed,
                format!("cannot follow the parent process: {error}"),
            )
        })?;
    }
    let stop = watch_signals(arguments.inside)?;
    let (place, mut state) = if arguments.resume {
        resume(arguments)?
    } else {
        begin(arguments)?
    };
    if state.location.through == Through::Native && !arguments.inside {
        return run_inside(arguments, place, &stop);
    }
    let progress = Progression::new();
    let done = run::go_on(&place, &mut state, &stop, &mut |event| progress.show(event));
    progress.clear();
    let closed = place.close();
    done.map_err(|error| ended(error, arguments))?;
    // What took hours is reported also where something keeps the image mounted.
    if arguments.json {
        let text = serde_json::to_string_pretty(&state);
        let text = text.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        put(&(text + "\n"))?;
    } else {
        put(&table(&state))?;
    }
    closed.map_err(|error| failure(error, arguments))
}

/// The first signal ends the run at its next step, the second at once. Under another process, which gets the
/// signals, too, and hands the first one on, the number does not count.
fn watch_signals(is_inside: bool) -> Result<Arc<AtomicBool>, Failure> {
    const BY_SIGNAL: i32 = 130;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order counts: the second signal finds what the first one has set.
        let second = if is_inside {
            Ok(())
        } else {
            let stop = Arc::clone(&stop);
            signal_hook::flag::register_conditional_shutdown(signal, BY_SIGNAL, stop).map(drop)
        };
        second
            .and_then(|()| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| {
                Failure::new(Code::Failed, format!("cannot watch for signals: {error}"))
            })?;
    }
    Ok(stop)
}

fn begin(arguments: &AgeArguments) -> Result<(OpenedLocation, State), Failure> {
    let location = location(arguments)?;
    check_consent(arguments, &location)?;
    let failed = |error| failure(error, arguments);
    if let Some(fill) = arguments.fill {
        let deleted_bytes = parse_size(&arguments.delete).map_err(usage)?;
        let choose = |space: Space| procedure(arguments, fill, deleted_bytes, space);
        return run::large_and_small(&location, choose).map_err(failed);
    }
    let settings = settings(arguments, &location)?;
    let mut sources = Source::built_in();
    for path in &arguments.profiles {
        sources.push(Source::file(path).map_err(failed)?);
    }
    run::scenarios(&location, &settings, &sources).map_err(failed)
}

/// A directory within a filesystem shares that with others, who will find it full.
fn check_consent(arguments: &AgeArguments, location: &Location) -> Result<(), Failure> {
    let Where::Directory(directory) = &location.place else {
        return Ok(());
    };
    let stays_as_it_is = matches!(arguments.fill, Some(FillArgument::Low));
    if arguments.yes || stays_as_it_is || !directory.is_dir() {
        return Ok(());
    }
    let table = mounts().unwrap_or_default();
    let mount = mount_around(directory, &table);
    if mount.is_some_and(|mount| mount.mountpoint == *directory && !mount.shows_a_part()) {
        return Ok(());
    }
    let filesystem = mount.map_or_else(
        || "its filesystem".to_owned(),
        |mount| format!("the filesystem at {}", mount.mountpoint.display()),
    );
    Err(usage(format!(
        "ageing {} fills {filesystem}, which others use; age an image (--image FILE) or the directory where a \
         filesystem of its own is mounted, or add --yes",
        directory.display()
    )))
}

fn usage(message: impl ToString) -> Failure {
    Failure::new(Code::Usage, message.to_string())
}

fn location(arguments: &AgeArguments) -> Result<Location, Failure> {
    let place = match (&arguments.image, &arguments.directory) {
        (Some(image), _) => Where::Image {
            path: absolute(image)?,
            filesystem: match arguments.filesystem {
                FilesystemArgument::Ext4 => Filesystem::Ext4,
                FilesystemArgument::Btrfs => Filesystem::Btrfs,
                FilesystemArgument::Xfs => Filesystem::Xfs,
            },
            capacity_bytes: parse_size(&arguments.capacity).map_err(usage)?,
        },
        (None, Some(directory)) => Where::Directory(absolute(directory)?),
        (None, None) => return Err(usage("give a directory, or --image FILE")),
    };
    let through = match arguments.through {
        ThroughArgument::Plain => Through::Plain,
        ThroughArgument::Mount => Through::Mount,
        ThroughArgument::Native => Through::Native,
        ThroughArgument::Vfs => Through::Vfs,
    };
    Ok(Location { place, through })
}

/// An absolute path, without symbolic links and `..` where it is there: the table of mounts has no others.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let found = path.canonicalize().or_else(|_| std::path::absolute(path));
    found.map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn settings(arguments: &AgeArguments, location: &Location) -> Result<Settings, Failure> {
    let usual = Settings::default();
    let filesystem = location
        .filesystem()
        .map_err(|error| failure(error, arguments))?;
    let full = match arguments.full {
        Some(percent) => permille("--full", percent)?,
        None => run::full_permille(&filesystem),
    };
    let start_full = match arguments.start_full {
        Some(percent) => permille("--start-full", percent)?,
        None => usual.start_full_permille,
    };
    let scale = arguments.scale.unwrap_or(usual.scale);
    let clean_bytes = match &arguments.clean {
        Some(size) => parse_size(size).map_err(usage)?,
        None => (usual.clean_bytes as f64 * scale) as u64,
    };
    Ok(Settings {
        seed: arguments.seed,
        days: arguments.days.unwrap_or(usual.days),
        minutes_per_day: arguments.minutes_per_day.unwrap_or(usual.minutes_per_day),
        scale,
        start_full_permille: start_full,
        full_permille: full,
        clean_bytes,
        update_days: arguments.update_days.unwrap_or(usual.update_days),
    })
}

fn permille(name: &str, percent: f64) -> Result<u32, Failure> {
    if (0.0..=100.0).contains(&percent) {
        return Ok((percent * 10.0).round() as u32);
    }
    Err(usage(format!(
        "{name} is {percent}, and must be 0 to 100 %"
    )))
}

fn procedure(
    arguments: &AgeArguments,
    fill: FillArgument,
    deleted_bytes: u64,
    space: Space,
) -> Procedure {
    let utilisation = match fill {
        FillArgument::Low => Utilisation::Low,
        FillArgument::Moderate => Utilisation::Moderate,
        FillArgument::High => Utilisation::High,
        FillArgument::Full => Utilisation::Full,
    };
    let holes = arguments.holes.map(|holes| match holes {
        HolesArgument::None => Ageing::None,
        HolesArgument::Moderate => Ageing::Moderate,
        HolesArgument::Severe => Ageing::Severe,
    });
    let procedure = match holes {
        Some(ageing) => Procedure::aged(arguments.seed, ageing, space.total_bytes(), deleted_bytes),
        None => Procedure::new(arguments.seed, utilisation).fitting(space),
    };
    Procedure {
        large_is_written: arguments.write_large,
        ..procedure
    }
}

fn resume(arguments: &AgeArguments) -> Result<(OpenedLocation, State), Failure> {
    let failed = |error| failure(error, arguments);
    let given = arguments.image.as_ref().or(arguments.directory.as_ref());
    let given = given.ok_or_else(|| usage("give the directory, or --image FILE"))?;
    let given = absolute(given)?;
    let mut state = State::load(&Location::state_of(&given)).map_err(failed)?;
    // It may have been moved since.
    match &mut state.location.place {
        Where::Directory(path) | Where::Image { path, .. } => *path = given,
    }
    let place = if arguments.inside {
        OpenedLocation::inside(&state.location)
    } else {
        OpenedLocation::open(&state.location)
    };
    Ok((place.map_err(failed)?, state))
}

/// Has another process do the work under `mobifs run`, which skips its calls for durability.
fn run_inside(
    arguments: &AgeArguments,
    place: OpenedLocation,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let failed = |error| failure(error, arguments);
    let own = std::env::current_exe().map_err(|error| {
        Failure::new(Code::Failed, format!("cannot find this program: {error}"))
    })?;
    let mobifs = mobifs().map_err(failed)?;
    let mut command = Command::new(&mobifs);
    command.args(["run", "--"]).arg(own);
    command.args(["frag", "age", "--resume", "--inside", "--image"]);
    command.args(arguments.image.as_deref());
    if arguments.json {
        command.arg("--json");
    }
    let status = command.spawn().and_then(|child| to_its_end(child, stop));
    place.close().map_err(failed)?;
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) if stop.load(Ordering::Relaxed) => Err(failed(AgeError::Cancelled)),
        // It has said why.
        Ok(status) => Err(Failure::new(
            Code::Failed,
            format!(
                "the run under {} run ended early ({status})",
                mobifs.display()
            ),
        )),
        Err(error) => {
            let message = format!("cannot run {}: {error}", mobifs.display());
            Err(Failure::new(Code::Failed, message))
        }
    }
}

/// Waits for the worker, which becomes the program by `exec` and so keeps its number. It gets the signal that this
/// process has got.
fn to_its_end(mut child: Child, stop: &AtomicBool) -> io::Result<ExitStatus> {
    const PAUSE: Duration = Duration::from_millis(50);
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !is_told {
            rustix::process::kill_process(Pid::from_child(&child), Signal::TERM)?;
            is_told = true;
        }
        std::thread::sleep(PAUSE);
    }
}

fn failure(error: AgeError, arguments: &AgeArguments) -> Failure {
    let code = match &error {
        AgeError::InUse(_) => Code::InUse,
        AgeError::Damaged { .. } => Code::Damaged,
        AgeError::OutOfRange { .. }
        | AgeError::Profile { .. }
        | AgeError::NotEmpty { .. }
        | AgeError::NoDirectory(_)
        | AgeError::State { .. } => Code::Usage,
        _ => Code::Failed,
    };
    if !matches!(error, AgeError::Cancelled) {
        return Failure::new(code, error.to_string());
    }
    if arguments.inside {
        // How to go on is said by the process that has mounted the image.
        return Failure::new(code, "the work under `mobifs run` has stopped");
    }
    let message = format!("stopped; continue with: {}", resumption(arguments));
    Failure::new(code, message)
}

/// The failure of a run that had begun, and has its state.
fn ended(error: AgeError, arguments: &AgeArguments) -> Failure {
    let is_outside = matches!(
        error,
        AgeError::Io { .. } | AgeError::Sqlite { .. } | AgeError::HostFull { .. }
    );
    let mut failure = failure(error, arguments);
    if is_outside {
        let again = resumption(arguments);
        failure.message += &format!("; when that is mended, go on with: {again}");
    }
    failure
}

fn resumption(arguments: &AgeArguments) -> String {
    let place = match (&arguments.image, &arguments.directory) {
        (Some(image), _) => format!("--image {}", image.display()),
        (None, Some(directory)) => directory.display().to_string(),
        (None, None) => String::new(),
    };
    format!("mobifs frag age --resume {place}")
}

/// How far it is: days as they end, and on a terminal what is being done.
struct Progression {
    is_terminal: bool,
}

impl Progression {
    fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&self, event: Event<'_>) {
        match event {
            Event::Day(day) => {
                self.clear();
                let percent = f64::from(day.space.used_permille()) / 10.0;
                let (day, seconds, checksum) = (day.day, day.seconds, &day.checksum);
                eprintln!(
                    "day {day} is over: {percent:.1} % used, checksum {checksum}, {seconds:.0} s"
                );
            }
            Event::Session {
                day: (day, days),
                number: (number, sessions),
                title,
            } if self.is_terminal => {
                eprint!("\r\x1b[Kday {day} of {days}, {number} of {sessions}: {title}");
            }
            Event::Fill(progress) if self.is_terminal => {
                let (what, bytes, of_bytes) = match progress {
                    Progress::Filling { bytes, of_bytes } => ("filling", bytes, of_bytes),
                    Progress::Deleting { bytes, of_bytes } => ("deleting", bytes, of_bytes),
                };
                let percent = bytes.saturating_mul(100) / of_bytes.max(1);
                eprint!("\r\x1b[K{what}: {percent} %");
            }
            _ => {}
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percent() {
        assert_eq!(permille("--full", 99.5).unwrap(), 995);
        for percent in [-0.1, 100.1, f64::NAN] {
            assert_eq!(permille("--full", percent).unwrap_err().code, Code::Usage);
        }
    }
}
