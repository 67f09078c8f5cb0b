//! The host of a model: issues commands when it has room for them and keeps the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mobifs_base::VirtualNs;

use crate::config::{Config, ConfigError};
use crate::model::{Command, CommandError, Completion, Model, WriteKind};

/// Issues each command as soon as fewer than a fixed number are under way.
pub struct Host {
    model: Model,
    now: VirtualNs,
    depth: usize,
    under_way: BinaryHeap<Reverse<VirtualNs>>,
}

impl Host {
    /// Pages of a large sequential command: 512 KiB, what Linux asks of eMMC at most.
    pub const LARGE_COMMAND_PAGES: u64 = 128;

    /// A host of a new device.
    ///
    /// # Errors
    /// The configuration or the capacity is refused.
    pub fn new(config: &Config, capacity_bytes: u64, seed: u64) -> Result<Self, ConfigError> {
        Model::new(config, capacity_bytes, seed).map(Self::of)
    }

    /// A host that issues one command at a time to `model`, from its latest time on.
    pub fn of(model: Model) -> Self {
        Self {
            now: model.now(),
            model,
            depth: 1,
            under_way: BinaryHeap::new(),
        }
    }

    /// From now on up to `depth` commands, at least one, are under way at a time.
    pub fn set_depth(&mut self, depth: usize) {
        self.depth = depth.max(1);
    }

    /// The device.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The device, to change its statistics or state.
    pub const fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// When the next command can be issued at the earliest.
    pub const fn now(&self) -> VirtualNs {
        self.now
    }

    /// Issues a command when there is room for it.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn issue(&mut self, command: &Command<'_>) -> Result<Completion, CommandError> {
        while self.under_way.len() >= self.depth {
            self.wait_one();
        }
        self.issue_now(command)
    }

    /// Issues a command at the present time, whatever is under way.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn issue_now(&mut self, command: &Command<'_>) -> Result<Completion, CommandError> {
        while let Some(&Reverse(done_at)) = self.under_way.peek()
            && done_at <= self.now
        {
            self.under_way.pop();
        }
        let completion = self.model.submit(self.now, command)?;
        self.under_way.push(Reverse(completion.done_at));
        Ok(completion)
    }

    fn wait_one(&mut self) {
        if let Some(Reverse(done_at)) = self.under_way.pop() {
            self.now = self.now.max(done_at);
        }
    }

    /// Waits until every command has ended.
    pub fn wait_all(&mut self) {
        while !self.under_way.is_empty() {
            self.wait_one();
        }
    }

    /// Lets time pass until `time`, or not at all if it has passed already.
    pub fn wait_until(&mut self, time: VirtualNs) {
        self.now = self.now.max(time);
    }

    /// Waits for everything, the device's own work of the moment included, and then stays
    /// quiet.
    pub fn rest(&mut self, quiet_ns: u64) {
        self.wait_all();
        self.wait_until(self.model.idle_at());
        self.now = self.now.plus_ns(quiet_ns);
        self.model.advance(self.now);
    }

    /// Writes pages in ascending order with commands of up to 512 KiB, then flushes.
    ///
    /// # Errors
    /// The pages are not in the device.
    pub fn fill(&mut self, first_page: u64, pages: u64) -> Result<(), CommandError> {
        let mut page = first_page;
        let end = first_page + pages;
        while page < end {
            let count = Self::LARGE_COMMAND_PAGES.min(end - page);
            self.issue(&Command::write_pages(page, count, WriteKind::Plain))?;
            page += count;
        }
        self.wait_all();
        self.issue(&Command::Flush)?;
        self.wait_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Preset;

    use super::*;

    fn host() -> Host {
        Host::new(&Preset::Emmc51.config().unwrap(), 64 << 20, 1).unwrap()
    }

    #[test]
    fn one_command_at_a_time_starts_when_the_last_has_ended() {
        let mut host = host();
        let first = host
            .issue(&Command::write_pages(0, 1, WriteKind::Reliable))
            .unwrap();
        host.issue(&Command::write_pages(1, 1, WriteKind::Reliable))
            .unwrap();
        assert_eq!(host.now(), first.done_at);
    }

    #[test]
    fn a_deep_queue_issues_without_waiting() {
        let mut host = host();
        host.set_depth(4);
        for page in 0..4 {
            host.issue(&Command::write_pages(page, 1, WriteKind::Reliable))
                .unwrap();
        }
        assert_eq!(host.now(), VirtualNs::ZERO);
        host.issue(&Command::write_pages(4, 1, WriteKind::Reliable))
            .unwrap();
        assert!(host.now() > VirtualNs::ZERO);
    }

    #[test]
    fn filling_writes_every_page_once() {
        let mut host = host();
        host.fill(3, 300).unwrap();
        assert_eq!(host.model().stats().host_sectors_written, 300 * 8);
        assert_eq!(host.model().dirty_pages(), 0);
    }
}
