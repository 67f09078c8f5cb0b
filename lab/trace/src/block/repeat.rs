//! Recognises requests that a trace names twice.
//!
//! A phone switches the clocks of an idle UFS host controller off. The next request finds
//! them off: the driver puts it back, wakes the controller, and a kernel worker issues the
//! same request again about a millisecond later. The tracepoint fires both times, but the
//! device gets the request once. In the Pixel traces 15 % of the lines are such repeats:
//! same operation, sector and size, by `kworker/u…`, after a quiet time of 27 ms in the
//! median where other lines follow each other after 0.3 ms.

use std::collections::VecDeque;

use super::{Access, BlockRequest};

/// A repeat comes within this time; in the Pixel traces 99 % of them within 2.8 ms.
const WITHIN_NS: u64 = 5_000_000;
/// Recent requests that are looked at: more are not issued while the controller wakes.
const RECENT_MAX: usize = 64;

#[derive(Debug)]
struct Recent {
    at_ns: u64,
    access: Access,
    start: u64,
    sectors: u32,
    process: Vec<u8>,
}

/// Looks at requests in the order of the trace.
#[derive(Debug, Default)]
pub struct RepeatFilter {
    recent: VecDeque<Recent>,
}

impl RepeatFilter {
    /// Whether the request is a repeat of one that was seen before: issued again by a
    /// kernel worker that is not the first issuer, within 5 ms. Each request has one
    /// repeat at most.
    pub fn is_repeat(&mut self, request: &BlockRequest) -> bool {
        while self
            .recent
            .front()
            .is_some_and(|first| request.at_ns.saturating_sub(first.at_ns) > WITHIN_NS)
        {
            self.recent.pop_front();
        }
        let repeated = self.recent.iter().position(|recent| {
            recent.access == request.access
                && recent.start == request.start
                && recent.sectors == request.sectors
                && recent.process != request.process
        });
        if let Some(position) = repeated
            && is_worker(&request.process)
        {
            self.recent.remove(position);
            return true;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent {
            at_ns: request.at_ns,
            access: request.access,
            start: request.start,
            sectors: request.sectors,
            process: request.process.clone(),
        });
        false
    }
}

/// A worker that is bound to no CPU, as the driver's own are; the recorder writes `<...>`
/// for a process whose name it has not learnt yet.
fn is_worker(process: &[u8]) -> bool {
    process.starts_with(b"kworker/u") || process.starts_with(b"<...>")
}

#[cfg(test)]
mod tests {
    use super::super::parse_line;
    use super::*;

    fn kept(lines: &[&str]) -> Vec<bool> {
        let mut filter = RepeatFilter::default();
        let requests = lines
            .iter()
            .map(|line| parse_line(line.as_bytes()).unwrap());
        requests
            .map(|request| !filter.is_repeat(&request))
            .collect()
    }

    #[test]
    fn a_request_that_a_worker_issues_again_is_one() {
        let lines = [
            "SettingsProvide-1787,8388608,W,21557936,16,653408.082164",
            "kworker/u17:0-21515,8388608,W,21557936,16,653408.083012",
            "loop40-2757,8388608,R,206567552,8,653409.907265",
            "<...>-21515,8388608,R,206567552,8,653409.908974",
        ];
        assert_eq!(kept(&lines), [true, false, true, false]);
    }

    #[test]
    fn a_page_that_is_written_again_and_again_stays() {
        let lines = [
            "writeFileQueue-3766,8388608,W,23034784,8,653460.460513",
            "writeFileQueue-3766,8388608,W,23034784,8,653460.461000",
            "kworker/1:1H-229,8388608,W,23034784,8,653460.462000",
            "kworker/u17:1-21615,8388608,W,23034784,8,653460.480000",
        ];
        assert_eq!(kept(&lines), [true; 4]);
    }

    #[test]
    fn each_request_has_one_repeat() {
        let lines = [
            "a-1,8,W,0,8,1.000",
            "kworker/u17:1-2,8,W,0,8,1.001",
            "kworker/u17:1-2,8,W,0,8,1.002",
        ];
        assert_eq!(kept(&lines), [true, false, true]);
    }
}
