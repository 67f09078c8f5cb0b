//! How large the transaction of one app may become while other apps wait for the device.

use mobifs_base::MonotonicNs;

/// A transaction that has taken so much memory closes while some app is durable: a durable `fsync`
/// may have to wait for its commit.
const BYTES_BESIDE_DURABLE_MAX: u64 = 4 << 20;
/// The size while durable `fsync`s come. Each of them may meet the commit of another app, so this
/// is what their slowest wait for.
const BYTES_BESIDE_SYNCS_MAX: u64 = 1 << 20;
/// How long after the last durable `fsync` another one is expected.
const SYNCS_EXPECTED_MS: u64 = 10_000;

/// When programs waited for durable commits last.
#[derive(Debug, Default)]
pub(super) struct DurableSyncs {
    /// One came since the time was known last.
    is_new: bool,
    last_at: Option<MonotonicNs>,
}

impl DurableSyncs {
    /// A program waits for a commit.
    pub(super) const fn record(&mut self) {
        self.is_new = true;
    }

    /// Memory that a transaction may take at this moment before it closes.
    pub(super) fn transaction_bytes_max(&mut self, now: MonotonicNs) -> u64 {
        if core::mem::take(&mut self.is_new) {
            self.last_at = Some(now);
        }
        let is_expected = |last: MonotonicNs| now.ms_since(last) < SYNCS_EXPECTED_MS;
        if self.last_at.is_some_and(is_expected) {
            BYTES_BESIDE_SYNCS_MAX
        } else {
            BYTES_BESIDE_DURABLE_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_small_only_while_durable_syncs_come() {
        let at_ms = |ms: u64| MonotonicNs(ms * 1_000_000);
        let mut syncs = DurableSyncs::default();
        assert_eq!(
            syncs.transaction_bytes_max(at_ms(1)),
            BYTES_BESIDE_DURABLE_MAX
        );
        syncs.record();
        assert_eq!(
            syncs.transaction_bytes_max(at_ms(2)),
            BYTES_BESIDE_SYNCS_MAX
        );
        let last_ms = 2 + SYNCS_EXPECTED_MS;
        assert_eq!(
            syncs.transaction_bytes_max(at_ms(last_ms - 1)),
            BYTES_BESIDE_SYNCS_MAX
        );
        assert_eq!(
            syncs.transaction_bytes_max(at_ms(last_ms)),
            BYTES_BESIDE_DURABLE_MAX
        );
    }
}
