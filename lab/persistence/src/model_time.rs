//! The commands of a device once more, in the model's own time: how long a device works for them, whatever else the
//! machine did when they came.

use mobifs_base::VirtualNs;
use mobifs_device_model::{Command, Config, Model, SECTOR_BYTES, Sector, WriteKind};
use mobifs_device_server::{Command as Logged, CommandKind};

use crate::error::PersistError;

/// A device that rests so long has nothing to do in the background when a window begins.
const REST_NS: u64 = 2_000_000_000;

/// A command of the log, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    kind: CommandKind,
    start: Sector,
    sectors: u32,
    /// It ends a commit, so that the kernel writes it durably where the device can.
    is_commit: bool,
    /// Which window it belongs to, if any.
    window: Option<usize>,
}

impl Step {
    pub(crate) fn new(command: &Logged, is_commit: bool, window: Option<usize>) -> Self {
        let sector_bytes = SECTOR_BYTES as u64;
        Self {
            kind: command.kind,
            start: Sector(command.offset / sector_bytes),
            sectors: u32::try_from(command.bytes / sector_bytes).unwrap_or(u32::MAX),
            is_commit,
            window,
        }
    }
}

/// The time of each of `windows` windows, in ns. Writes between two flushes are sent at once, a flush when they have
/// ended, and the next command when the flush has: nothing of it depends on the machine.
///
/// With `has_durable_writes` the device is one with FUA: a write that ends a commit and the flush right after it,
/// which is how the kernel makes a durable write for a device without, are one reliable write.
pub(crate) fn times(
    config: &Config,
    capacity_bytes: u64,
    steps: &[Step],
    windows: usize,
    has_durable_writes: bool,
) -> Result<Vec<u64>, PersistError> {
    let mut model = Model::new(config, capacity_bytes, 1)?;
    let mut times = vec![0; windows];
    // When the next write is sent, and when everything that was sent has ended.
    let (mut at, mut done) = (0, 0);
    let mut begun: Option<(usize, u64)> = None;
    let mut steps = steps.iter().peekable();
    while let Some(step) = steps.next() {
        if begun.map(|(window, _)| window) != step.window {
            end(&mut times, begun, done);
            at = done + REST_NS;
            done = at;
            begun = step.window.map(|window| (window, at));
        }
        let is_flushed = |next: &&Step| next.kind == CommandKind::Flush;
        let is_durable = step.kind == CommandKind::DurableWrite
            || has_durable_writes && step.is_commit && steps.next_if(is_flushed).is_some();
        let (start, sectors) = (step.start, step.sectors);
        let command = match step.kind {
            CommandKind::Flush => Command::Flush,
            CommandKind::Discard => Command::Discard { start, sectors },
            CommandKind::Write | CommandKind::DurableWrite => Command::Write {
                start,
                sectors,
                kind: match is_durable {
                    true => WriteKind::Reliable,
                    false => WriteKind::Plain,
                },
            },
        };
        let waits = is_durable || command == Command::Flush;
        if waits {
            at = done;
        }
        let completion = model
            .submit(VirtualNs(at), &command)
            .map_err(|error| PersistError::Unexpected(error.to_string()))?;
        done = done.max(completion.done_at.0);
        if waits {
            at = done;
        }
    }
    end(&mut times, begun, done);
    Ok(times)
}

fn end(times: &mut [u64], begun: Option<(usize, u64)>, done: u64) {
    if let Some((window, at)) = begun
        && let Some(time) = times.get_mut(window)
    {
        *time += done - at;
    }
}

#[cfg(test)]
mod tests {
    use mobifs_device_model::Preset;

    use super::*;

    const CAPACITY: u64 = 64 << 20;

    fn step(kind: CommandKind, page: u64, is_commit: bool) -> Step {
        Step {
            kind,
            start: Sector(page * 8),
            sectors: 8,
            is_commit,
            window: Some(0),
        }
    }

    fn time(steps: &[Step], has_durable_writes: bool) -> u64 {
        let config = Preset::Emmc51.config().unwrap();
        times(&config, CAPACITY, steps, 1, has_durable_writes).unwrap()[0]
    }

    #[test]
    fn a_commit_and_its_flush_are_one_command_where_the_device_has_durable_writes() {
        let commit = [
            step(CommandKind::Write, 1, true),
            step(CommandKind::Flush, 0, false),
        ];
        assert!(time(&commit, true) < time(&commit, false));
        let other = [
            step(CommandKind::Write, 1, false),
            step(CommandKind::Flush, 0, false),
        ];
        assert_eq!(time(&other, true), time(&other, false));
        assert_eq!(time(&other, false), time(&commit, false));
    }

    #[test]
    fn windows_have_their_own_times_and_what_is_outside_counts_for_none() {
        let config = Preset::Emmc51.config().unwrap();
        let commit = |window| {
            let write = step(CommandKind::Write, 1, true);
            let flush = step(CommandKind::Flush, 0, false);
            [write, flush].map(|step| Step { window, ..step })
        };
        let steps = [commit(None), commit(Some(0)), commit(None), commit(Some(1))].concat();
        let times = times(&config, CAPACITY, &steps, 2, false).unwrap();
        assert!(
            times
                .iter()
                .all(|&time| time > 100_000 && time < REST_NS / 100),
            "{times:?}"
        );
    }
}
