//! Whether any CPU is idle.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The average forgets by this part a sample.
const SMOOTHING: f64 = 1.0 / 8.0;

/// How many threads want a CPU, on an average of some samples.
pub(crate) struct CpuLoad {
    /// `/proc/loadavg`; none if there is no such file.
    file: Option<File>,
    /// The average from which on no CPU is idle.
    saturated_from: f64,
    average: f64,
}

impl CpuLoad {
    /// For so many CPUs.
    pub(crate) fn new(cpus: usize) -> Self {
        let file = File::open("/proc/loadavg");
        if let Err(error) = &file {
            tracing::debug!(%error, "cannot determine whether CPUs are idle");
        }
        // Two threads that want a CPU are the one that samples, and the leader or its
        // sender. With one more for each CPU but theirs, none is idle.
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        Self {
            file: file.ok(),
            saturated_from: f64::from(cpus) + 1.0,
            average: 0.0,
        }
    }

    /// Takes a sample; true if no CPU has been idle lately. False if it is not known.
    pub(crate) fn is_saturated(&mut self) -> bool {
        let mut line = [0; 128];
        let Some(runnable) = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut line, 0).ok())
            .and_then(|length| runnable_threads(line.get(..length)?))
        else {
            return false;
        };
        self.add_sample(runnable)
    }

    fn add_sample(&mut self, runnable: u32) -> bool {
        self.average += (f64::from(runnable) - self.average) * SMOOTHING;
        self.average >= self.saturated_from
    }
}

/// The threads that run or would run if they had a CPU: the fourth field, before the
/// slash (proc_loadavg(5)).
fn runnable_threads(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let (runnable, _) = line.split_ascii_whitespace().nth(3)?.split_once('/')?;
    runnable.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_understood() {
        assert_eq!(
            runnable_threads(b"6.53 5.76 4.89 9/148 5315\n"),
            Some(9),
            "runnable, not all threads"
        );
        for wrong in [&b""[..], b"1.0 1.0 1.0\n", b"1 1 1 x/2 3\n", b"\xff"] {
            assert_eq!(runnable_threads(wrong), None);
        }
        let mut line = [0; 128];
        let length = File::open("/proc/loadavg")
            .unwrap()
            .read_at(&mut line, 0)
            .unwrap();
        assert!(runnable_threads(&line[..length]).unwrap() >= 1);
    }

    #[test]
    fn it_is_saturated_only_after_some_samples() {
        let mut load = CpuLoad::new(2);
        for _ in 0..100 {
            assert!(!load.add_sample(2), "the watchdog and the leader");
        }
        let samples = (0..100).take_while(|_| !load.add_sample(6)).count();
        assert!((1..10).contains(&samples), "{samples}");
        load.file = None;
        assert!(!load.is_saturated());
    }
}
