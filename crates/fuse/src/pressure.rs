//! Whether any CPU is idle.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The average forgets by this part a sample.
const SMOOTHING: f64 = 1.0 / 8.0;

/// How many threads want a CPU, on an average of some samples.
pub(crate) struct Pressure {
    /// `/proc/loadavg`; none if there is no such file.
    file: Option<File>,
    /// The average from which on no CPU is idle.
    crowded_from: f64,
    average: f64,
}

impl Pressure {
    /// For so many CPUs.
    pub(crate) fn new(cpus: usize) -> Self {
        let file = File::open("/proc/loadavg");
        if let Err(error) = &file {
            tracing::debug!(%error, "cannot tell whether CPUs are idle");
        }
        // Two threads that want a CPU are the one that samples, and the leader or its
        // sender. With one more for each CPU but theirs, none is idle.
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        Self {
            file: file.ok(),
            crowded_from: f64::from(cpus) + 1.0,
            average: 0.0,
        }
    }

    /// Takes a sample; true if no CPU has been idle lately. False if nobody knows.
    pub(crate) fn is_crowded(&mut self) -> bool {
        let mut line = [0; 128];
        let Some(wanting) = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut line, 0).ok())
            .and_then(|length| threads_wanting(line.get(..length)?))
        else {
            return false;
        };
        self.note(wanting)
    }

    fn note(&mut self, wanting: u32) -> bool {
        self.average += (f64::from(wanting) - self.average) * SMOOTHING;
        self.average >= self.crowded_from
    }
}

/// The threads that run or would run if they had a CPU: the fourth field, before the
/// slash (proc_loadavg(5)).
fn threads_wanting(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let (wanting, _) = line.split_ascii_whitespace().nth(3)?.split_once('/')?;
    wanting.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_understood() {
        assert_eq!(
            threads_wanting(b"6.53 5.76 4.89 9/148 5315\n"),
            Some(9),
            "runnable, not all threads"
        );
        for wrong in [&b""[..], b"1.0 1.0 1.0\n", b"1 1 1 x/2 3\n", b"\xff"] {
            assert_eq!(threads_wanting(wrong), None);
        }
        let mut line = [0; 128];
        let length = File::open("/proc/loadavg")
            .unwrap()
            .read_at(&mut line, 0)
            .unwrap();
        assert!(threads_wanting(&line[..length]).unwrap() >= 1);
    }

    #[test]
    fn it_is_crowded_only_after_some_samples() {
        let mut pressure = Pressure::new(2);
        for _ in 0..100 {
            assert!(!pressure.note(2), "the guard and the leader");
        }
        let samples = (0..100).take_while(|_| !pressure.note(6)).count();
        assert!((1..10).contains(&samples), "{samples}");
        pressure.file = None;
        assert!(!pressure.is_crowded());
    }
}
