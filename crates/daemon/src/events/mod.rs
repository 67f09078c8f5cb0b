//! What happens around a mount: the user at the input devices, memory that runs short,
//! a battery that runs low, screens that are switched off.
//!
//! One thread waits for all of it. What a machine does not have, or the process may not read, is
//! skipped without a warning.

mod around;
mod battery;
mod input;
mod observer;
mod pressure;
mod screen;
mod target;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mobifs_volume::{BatterySource, EventSources};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

pub use around::AroundWatcher;
use battery::{Batteries, BatteryWatch};
use input::InputDevices;
pub(crate) use observer::{EventObserver, UserInput};
use pressure::Pressure;
use screen::{ScreenWatch, Screens};
pub use target::EventTarget;

/// Batteries are looked at this often.
const BATTERY_INTERVAL: Duration = Duration::from_secs(30);
/// Screens are polled this often: the kernel signals no change of them.
const SCREEN_INTERVAL: Duration = Duration::from_secs(5);
/// After an event of the user, input devices are not read for so long: a drag
/// sends hundreds of events a second, and all of them mean the same.
const INPUT_PAUSE: Duration = Duration::from_millis(50);
/// Memory pressure is answered at most this often.
const PRESSURE_PAUSE: Duration = Duration::from_secs(10);

/// Passes the events around a mount on to what decides about commits, until it is dropped.
#[derive(Debug)]
pub(crate) struct EventWatcher {
    /// Closed to end the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl EventWatcher {
    /// Starts to listen. Does nothing if there is nothing to listen to. An `observer` gets them,
    /// too.
    ///
    /// # Errors
    /// If a thread or a pipe cannot be made.
    pub(crate) fn start(
        target: Arc<dyn EventTarget>,
        sources: &EventSources,
        observer: Option<Arc<dyn EventObserver>>,
    ) -> io::Result<Self> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let batteries = Batteries::new(&sources.power_supplies);
        let low_percent = sources.battery_low_percent;
        let has_battery = low_percent > 0 && batteries.charge().is_some();
        let connectors = sources.connectors.as_deref();
        let screens = connectors.map(|connectors| Screens::new(connectors, &sources.backlights));
        let screens = screens.filter(|screens| screens.is_one_on().is_some());
        let watch = Watch {
            stopped,
            target,
            observer,
            input: sources
                .input
                .as_deref()
                .and_then(|directory| InputDevices::open(directory, &sources.input_classes)),
            input_at: Instant::now(),
            pressure: sources.memory_pressure.as_deref().and_then(Pressure::open),
            pressure_flush_at: None,
            battery: has_battery.then(|| BatteryWatch::new(batteries, low_percent)),
            battery_at: Instant::now(),
            screen: screens.map(ScreenWatch::new),
            screen_at: Instant::now(),
        };
        if watch.has_nothing() {
            return Ok(Self {
                stop: None,
                thread: None,
            });
        }
        let thread = std::thread::Builder::new()
            .name("events".into())
            .spawn(move || watch.run())?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for EventWatcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that watches for events has panicked");
        }
    }
}

/// What the thread has.
struct Watch {
    /// Hangs up when the thread is to end.
    stopped: OwnedFd,
    target: Arc<dyn EventTarget>,
    observer: Option<Arc<dyn EventObserver>>,
    input: Option<InputDevices>,
    /// Input devices are looked at from then on.
    input_at: Instant,
    pressure: Option<Pressure>,
    pressure_flush_at: Option<Instant>,
    battery: Option<BatteryWatch>,
    /// Batteries are looked at then.
    battery_at: Instant,
    screen: Option<ScreenWatch>,
    /// Screens are looked at then.
    screen_at: Instant,
}

/// What was found to have happened.
#[derive(Default)]
struct Happened {
    stop: bool,
    pressure: bool,
    input: bool,
}

impl Watch {
    const fn has_nothing(&self) -> bool {
        self.input.is_none()
            && self.pressure.is_none()
            && self.battery.is_none()
            && self.screen.is_none()
    }

    fn run(mut self) {
        loop {
            self.look_at_battery();
            self.look_at_screen();
            let happened = match self.wait() {
                Ok(happened) => happened,
                Err(error) => {
                    tracing::warn!(%error, "no longer watching for events");
                    return;
                }
            };
            if happened.stop {
                return;
            }
            if happened.pressure {
                self.flush_under_pressure();
            }
            if happened.input
                && let Some(what) = self.input.as_mut().and_then(InputDevices::take)
            {
                self.target.user_event();
                if let Some(observer) = &self.observer {
                    observer.user_acted(what);
                }
                self.input_at = Instant::now() + INPUT_PAUSE;
            }
        }
    }

    /// Waits for an event, or the next poll.
    fn wait(&self) -> io::Result<Happened> {
        let now = Instant::now();
        let looks_at_input = self.input_at <= now;
        let input_at = (!looks_at_input).then_some(self.input_at);
        let battery_at = self.battery.as_ref().map(|_| self.battery_at);
        let screen_at = self.screen.as_ref().map(|_| self.screen_at);
        let moments = [input_at, battery_at, screen_at];
        let next = moments.into_iter().flatten().min();
        let timeout = next.map(|at| at.saturating_duration_since(now));
        let mut descriptors = vec![PollFd::new(&self.stopped, PollFlags::empty())];
        if let Some(pressure) = &self.pressure {
            descriptors.push(PollFd::new(pressure, PollFlags::PRI));
        }
        let inputs_from = descriptors.len();
        if let Some(input) = self.input.as_ref().filter(|_| looks_at_input) {
            let all = input.descriptors();
            descriptors.extend(all.map(|device| PollFd::from_borrowed_fd(device, PollFlags::IN)));
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        Ok(Happened {
            stop: ready(&descriptors[0]),
            pressure: descriptors[1..inputs_from].iter().any(ready),
            input: descriptors[inputs_from..].iter().any(ready),
        })
    }

    fn flush_under_pressure(&mut self) {
        let now = Instant::now();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < PRESSURE_PAUSE;
        if !self.pressure_flush_at.is_some_and(is_recent) {
            self.pressure_flush_at = Some(now);
            tracing::debug!("the kernel reports memory pressure");
            self.target.flush_under_pressure();
        }
    }

    fn look_at_battery(&mut self) {
        let Some(battery) = &mut self.battery else {
            return;
        };
        let now = Instant::now();
        if now < self.battery_at {
            return;
        }
        self.battery_at = now + BATTERY_INTERVAL;
        if let Some(is_low) = battery.look() {
            self.target.set_battery_low(BatterySource::Kernel, is_low);
            if let Some(observer) = &self.observer {
                observer.battery_changed(is_low);
            }
        }
    }

    fn look_at_screen(&mut self) {
        let Some(screen) = &mut self.screen else {
            return;
        };
        let now = Instant::now();
        if now < self.screen_at {
            return;
        }
        self.screen_at = now + SCREEN_INTERVAL;
        if let Some(is_on) = screen.look() {
            if let Some(observer) = &self.observer {
                observer.screen_changed(is_on);
            }
            self.target.set_screen(is_on);
        }
    }
}
