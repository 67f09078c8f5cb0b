//! Until when resources are busy: dies and channels, each serving one operation at a time in the
//! order of the requests. the order in which they are asked.

use mobifs_numerics::Random;

use super::geometry::Geometry;
use crate::config::Config;

/// Nanoseconds since the device was first switched on.
pub(crate) type Ns = u64;

/// From a parameter in µs.
pub(crate) fn ns_of_us(microseconds: f64) -> Ns {
    (microseconds * 1_000.0).round() as Ns
}

/// Picoseconds that a byte takes at a rate in MB/s.
fn ps_per_byte(mb_per_s: f64) -> u64 {
    (1e6 / mb_per_s).round() as u64
}

/// Nanoseconds for `bytes` at `ps_per_byte`.
fn transfer_ns(bytes: u64, ps_per_byte: u64) -> Ns {
    bytes * ps_per_byte / 1_000
}

/// How the cells of a block are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellMode {
    Slc,
    Multi,
}

/// When an operation of a die begins and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Ns,
    pub(crate) done: Ns,
}

#[derive(Clone, Debug)]
struct CellTimes {
    read_ns: Ns,
    program_ns: Ns,
}

#[derive(Clone, Debug)]
pub(crate) struct Resources {
    multi: CellTimes,
    slc: CellTimes,
    erase_ns: Ns,
    channel_ps_per_byte: u64,
    spread_percent: u64,
    random: Random,
    dies: Vec<Ns>,
    channels: Vec<Ns>,
    /// No operation starts earlier: set where later ones must not overtake.
    pub(crate) floor: Ns,
    /// When the last operation ends.
    pub(crate) busy_until: Ns,
    /// Sum of the times in which dies were reading, programming or erasing.
    pub(crate) die_busy_ns: u64,
}

impl Resources {
    pub(crate) fn new(config: &Config, geometry: &Geometry, seed: u64) -> Self {
        let multi = CellTimes {
            read_ns: ns_of_us(config.timing.read_us.value),
            program_ns: ns_of_us(config.timing.program_us.value),
        };
        let slc = config.slc.as_ref().map_or_else(
            || multi.clone(),
            |slc| CellTimes {
                read_ns: ns_of_us(slc.read_us.value),
                program_ns: ns_of_us(slc.program_us.value),
            },
        );
        Self {
            multi,
            slc,
            erase_ns: ns_of_us(config.timing.erase_us.value),
            channel_ps_per_byte: ps_per_byte(config.timing.channel_mb_per_s.value),
            spread_percent: u64::from(config.timing.spread_percent.value),
            random: Random::new(seed),
            dies: vec![0; geometry.dies as usize],
            channels: vec![0; geometry.channels as usize],
            floor: 0,
            busy_until: 0,
            die_busy_ns: 0,
        }
    }

    /// `duration` with the spread of real operations.
    fn vary(&mut self, duration: Ns) -> Ns {
        let spread = duration * self.spread_percent / 100;
        if spread == 0 {
            return duration;
        }
        duration - spread + self.random.below(2 * spread + 1)
    }

    pub(crate) fn die_free_at(&self, die: u32) -> Ns {
        self.dies[die as usize]
    }

    /// The state of the generator, which is part of what makes a run repeatable.
    pub(crate) fn random_state(&self) -> u64 {
        self.random.state()
    }

    /// Everything stops at `now`; the next operations find idle dies.
    pub(crate) fn reset(&mut self, now: Ns, random_state: u64) {
        self.dies.fill(now);
        self.channels.fill(now);
        self.floor = now;
        self.busy_until = now;
        self.random = Random::new(random_state);
    }

    /// Power is back: nothing is under way.
    pub(crate) fn power_up(&mut self, now: Ns) {
        let random_state = self.random_state();
        self.reset(now, random_state);
    }

    fn end(&mut self, die: u32, span: Span) -> Span {
        self.dies[die as usize] = span.done;
        self.busy_until = self.busy_until.max(span.done);
        self.die_busy_ns += span.done - span.start;
        span
    }

    /// A read from the cells and the transfer of `bytes` to the controller.
    pub(crate) fn read(
        &mut self,
        (die, channel): (u32, u32),
        mode: CellMode,
        bytes: u64,
        not_before: Ns,
    ) -> Span {
        let read_ns = match mode {
            CellMode::Slc => self.slc.read_ns,
            CellMode::Multi => self.multi.read_ns,
        };
        let start = self.dies[die as usize].max(not_before).max(self.floor);
        let sensed = start + self.vary(read_ns);
        let channel_free = &mut self.channels[channel as usize];
        let done = sensed.max(*channel_free) + transfer_ns(bytes, self.channel_ps_per_byte);
        *channel_free = done;
        self.end(die, Span { start, done })
    }

    /// The transfer of `bytes` to the die and one program of them.
    pub(crate) fn program(
        &mut self,
        (die, channel): (u32, u32),
        mode: CellMode,
        bytes: u64,
        not_before: Ns,
    ) -> Span {
        let program_ns = match mode {
            CellMode::Slc => self.slc.program_ns,
            CellMode::Multi => self.multi.program_ns,
        };
        let channel_free = self.channels[channel as usize];
        let start = self.dies[die as usize]
            .max(channel_free)
            .max(not_before)
            .max(self.floor);
        let loaded = start + transfer_ns(bytes, self.channel_ps_per_byte);
        self.channels[channel as usize] = loaded;
        let done = loaded + self.vary(program_ns);
        self.end(die, Span { start, done })
    }

    /// The erase of a block.
    pub(crate) fn erase(&mut self, die: u32, not_before: Ns) -> Span {
        let start = self.dies[die as usize].max(not_before).max(self.floor);
        let done = start + self.vary(self.erase_ns);
        self.end(die, Span { start, done })
    }
}

/// The bus to the host: one transfer at a time.
#[derive(Clone, Debug)]
pub(crate) struct Bus {
    ps_per_byte: u64,
    free_at: Ns,
}

impl Bus {
    pub(crate) fn new(mb_per_s: f64) -> Self {
        Self {
            ps_per_byte: ps_per_byte(mb_per_s),
            free_at: 0,
        }
    }

    /// Moves `bytes`, not before `ready`; says when the last has passed.
    pub(crate) fn transfer(&mut self, bytes: u64, ready: Ns) -> Ns {
        self.free_at = self.free_at.max(ready) + transfer_ns(bytes, self.ps_per_byte);
        self.free_at
    }

    pub(crate) fn reset(&mut self, now: Ns) {
        self.free_at = now;
    }
}
