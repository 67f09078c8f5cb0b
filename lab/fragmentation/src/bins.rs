//! How full a filesystem is along its addresses, whatever their range: a fixed number of bins, whose
//! width doubles when an address is beyond them.

/// Enough for a strip as wide as a screen.
const BINS: usize = 1024;
const WIDTH_LEAST: u64 = 4096;

#[derive(Clone, Debug)]
pub(crate) struct Bins {
    bytes: Vec<u64>,
    width: u64,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            bytes: vec![0; BINS],
            width: WIDTH_LEAST,
        }
    }
}

impl Bins {
    /// Bytes from `start` to `end` are taken.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if end <= start {
            return;
        }
        while (end - 1) / self.width >= BINS as u64 {
            self.double();
        }
        let mut at = start;
        while at < end {
            let bin = at / self.width;
            let bin_end = (bin + 1).saturating_mul(self.width).min(end);
            if let Some(bytes) = self.bytes.get_mut(bin as usize) {
                *bytes = bytes.saturating_add(bin_end - at);
            }
            at = bin_end;
        }
    }

    fn double(&mut self) {
        let halved = self.bytes.chunks(2).map(|pair| pair.iter().sum());
        let mut halved: Vec<u64> = halved.collect();
        halved.resize(BINS, 0);
        self.bytes = halved;
        self.width *= 2;
    }

    /// The share of each of `count` equal parts of `end` bytes that is taken.
    pub(crate) fn shares(&self, count: usize, end: u64) -> Vec<f64> {
        let part = end as f64 / count as f64;
        let mut taken = vec![0.0; count];
        for (bin, &bytes) in self
            .bytes
            .iter()
            .enumerate()
            .filter(|&(_, &bytes)| bytes > 0)
        {
            let from = bin as f64 * self.width as f64;
            let to = from + self.width as f64;
            let first = (from / part) as usize;
            let last = ((to / part).ceil() as usize).min(count);
            for (place, taken) in taken.iter_mut().enumerate().take(last).skip(first) {
                let low = from.max(place as f64 * part);
                let high = to.min((place + 1) as f64 * part);
                *taken += bytes as f64 * ((high - low) / self.width as f64).max(0.0);
            }
        }
        let shares = taken.into_iter().map(|bytes| (bytes / part).min(1.0));
        shares.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_widen_and_keep_all_bytes() {
        let mut bins = Bins::default();
        bins.add(0, 4096);
        bins.add(1 << 20, (1 << 20) + 100);
        bins.add(1 << 40, (1 << 40) + 5000);
        bins.add(7, 7);
        assert_eq!(bins.bytes.iter().sum::<u64>(), 4096 + 100 + 5000);
        assert_eq!(bins.bytes.len(), BINS);
        bins.add(u64::MAX - 1, u64::MAX);
        assert_eq!(bins.bytes.iter().sum::<u64>(), 9197);
    }

    #[test]
    fn shares_are_those_of_equal_parts() {
        let mut bins = Bins::default();
        bins.add(0, 8192);
        bins.add(12288, 16384);
        assert_eq!(bins.shares(4, 16384), [1.0, 1.0, 0.0, 1.0]);
        assert_eq!(bins.shares(2, 16384), [1.0, 0.5]);
        // Parts that are narrower than a bin share what it has.
        assert_eq!(bins.shares(8, 16384)[4..], [0.0, 0.0, 1.0, 1.0]);
    }
}
