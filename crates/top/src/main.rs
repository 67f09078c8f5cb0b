//! `mobifs top`: the apps of a mount in the terminal, those with the most at risk first, and keys to
//! act on them.
//!
//! [`mount`] asks the daemon, [`model`] keeps what is known and decides what a key does, and [`view`]
//! draws it; only this file touches the terminal.
#![forbid(unsafe_code)]

mod model;
mod mount;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use mobifs_daemon::{Code, Failure};
use mobifs_host::printable;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::layout::{Rect, Size};
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};

use model::{Action, Model};
use mount::Mount;

/// How long a key that was pressed waits at most while nothing happens.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Keys that are taken between two pictures, at most.
const EVENTS_MAX: usize = 10_000;
/// More of a terminal is not drawn on: each of its cells is kept in memory twice, and a terminal may say that it has
/// four thousand million of them.
const COLUMNS_MAX: u16 = 1000;
const LINES_MAX: u16 = 400;

const KEYS: &str = "\
Keys:
  up, down, j, k, Home, End   choose an app
  s   commit the app, and bring it to its place    S   all apps
  c   make the app durable, or relaxed again, until the unmount or a reload
  p   pause the display
  q, Escape   end";

/// Watch the apps of a mount, and act on them.
#[derive(Debug, Parser)]
#[command(name = "mobifs top", version, after_help = KEYS)]
struct Arguments {
    /// Ask the daemon so often, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
    /// The mount, or a steered filesystem; none: the only one there is
    mountpoint: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("mobifs: {}", printable(&failure.message));
            ExitCode::from(failure.code.number())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mount = Mount::find(arguments.mountpoint.as_deref())?;
    // What is wrong with the mount is said before the screen changes.
    let first = mount.status()?;
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let message = "`mobifs top` needs a terminal; `mobifs status --watch` does not";
        return Err(Failure::new(Code::Usage, message));
    }
    let failed = |error: io::Error| {
        Failure::new(
            Code::Failed,
            format!("the terminal cannot be used: {error}"),
        )
    };
    let mut model = Model::new(first, Instant::now());
    // A panic restores the terminal, too.
    let mut terminal = begin().map_err(failed)?;
    let interval = Duration::from_millis(arguments.interval_ms);
    let shown = show(&mut terminal, &mut model, &mount, interval);
    ratatui::try_restore().map_err(failed)?;
    shown.map_err(failed)
}

fn begin() -> io::Result<DefaultTerminal> {
    let area = drawn_on(terminal::size()?.into());
    let viewport = Viewport::Fixed(area);
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Ok(terminal)
}

/// The part of a terminal of this size that is drawn on.
fn drawn_on(size: Size) -> Rect {
    Rect::new(
        0,
        0,
        size.width.min(COLUMNS_MAX),
        size.height.min(LINES_MAX),
    )
}

fn draw(terminal: &mut DefaultTerminal, model: &Model) -> io::Result<()> {
    let area = drawn_on(terminal.size()?);
    if terminal.get_frame().area() != area {
        terminal.resize(area)?;
    }
    terminal.draw(|frame| view::draw(frame, model))?;
    Ok(())
}

fn show(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    mount: &Mount,
    interval: Duration,
) -> io::Result<()> {
    let mut asked = Instant::now();
    loop {
        draw(terminal, model)?;
        let mut wait = interval.saturating_sub(asked.elapsed()).min(KEY_WAIT);
        // All that waits: drawn one by one, pasted text took seconds.
        for _ in 0..EVENTS_MAX {
            if !event::poll(wait)? {
                break;
            }
            wait = Duration::ZERO;
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            match model.key(key) {
                Some(Action::End) => return Ok(()),
                Some(Action::Ask(request, what)) => {
                    model.say(format!("{what} …"));
                    draw(terminal, model)?;
                    model.say(mount.carry_out(&request, &what));
                }
                None => {}
            }
        }
        if asked.elapsed() >= interval {
            asked = Instant::now();
            if !model.is_paused() {
                model.update(mount.status(), Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It took gigabytes, or ended with a panic.
    #[test]
    fn of_a_terminal_without_bounds_a_part_is_drawn_on() {
        let size = Size::new(u16::MAX, u16::MAX);
        assert!(drawn_on(size).area() <= 400_000);
        let size = Size::new(640, 216);
        assert_eq!(
            drawn_on(size),
            Rect::new(0, 0, 640, 216),
            "as large as it is"
        );
    }
}
