//! What a served device has counted, out of the document that it answers with.

use serde::Serialize;
use serde_json::Value;

/// Commands and bytes until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceCounts {
    /// Commands that read.
    pub reads: u64,
    /// Commands that write.
    pub writes: u64,
    /// Flushes of the write cache.
    pub flushes: u64,
    /// Bytes that hosts have read.
    pub bytes_read: u64,
    /// Bytes that hosts have written.
    pub bytes_written: u64,
    /// Bytes that were programmed into flash, with mapping, log, garbage collection and padding.
    pub programmed_bytes: u64,
    /// Sum of the latencies of all commands, in ms; the time that was waited for, if one was under way at a
    /// time.
    pub busy_ms: f64,
    /// Time in which commands or work in the background were under way.
    pub active_ns: u64,
}

impl DeviceCounts {
    /// Out of the answer to [`super::Request::Stats`]; none if it has another form.
    #[must_use]
    pub fn of(stats: &Value) -> Option<Self> {
        const SECTOR_BYTES: u64 = 512;
        let device = stats.get("device")?;
        let mut counts = Self {
            bytes_read: device.get("host_sectors_read")?.as_u64()? * SECTOR_BYTES,
            bytes_written: device.get("host_sectors_written")?.as_u64()? * SECTOR_BYTES,
            programmed_bytes: device.get("programmed_bytes")?.as_u64()?,
            active_ns: device.get("active_ns")?.as_u64()?,
            ..Self::default()
        };
        for entry in device.get("commands")?.as_array()? {
            let commands = entry.get("commands")?.as_u64()?;
            match entry.get("kind")?.as_str()? {
                "read" => counts.reads += commands,
                "write" | "reliable_write" => counts.writes += commands,
                "flush" => counts.flushes += commands,
                _ => {}
            }
            counts.busy_ms +=
                commands as f64 * entry.get("latency")?.get("mean_ns")?.as_f64()? / 1e6;
        }
        Some(counts)
    }

    /// What came since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            bytes_read: self.bytes_read - before.bytes_read,
            bytes_written: self.bytes_written - before.bytes_written,
            programmed_bytes: self.programmed_bytes - before.programmed_bytes,
            busy_ms: self.busy_ms - before.busy_ms,
            active_ns: self.active_ns - before.active_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_counts_of_a_device_are_read_from_its_document() {
        let kind = |kind: &str, commands: u64, mean_ns: f64| json!({ "kind": kind, "commands": commands, "latency": { "mean_ns": mean_ns } });
        let stats = json!({ "device": {
            "active_ns": 5, "programmed_bytes": 65536, "host_sectors_read": 8, "host_sectors_written": 16,
            "commands": [kind("read", 2, 1e6), kind("write", 3, 2e6), kind("flush", 1, 5e5)],
        } });
        let counts = DeviceCounts::of(&stats).unwrap();
        assert_eq!((counts.reads, counts.writes, counts.flushes), (2, 3, 1));
        assert_eq!((counts.bytes_read, counts.bytes_written), (4096, 8192));
        assert_eq!(counts.programmed_bytes, 65536);
        assert!((counts.busy_ms - 8.5).abs() < 1e-9);
        let later = DeviceCounts {
            reads: 5,
            busy_ms: 9.5,
            ..counts
        };
        assert_eq!(later.since(&counts).reads, 3);
        assert_eq!(DeviceCounts::of(&json!({ "device": {} })), None);
    }
}
