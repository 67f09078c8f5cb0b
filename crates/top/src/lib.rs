//! `mobifs top`: the apps of a mount in the terminal, those with the most at risk first, and keys to
//! act on them.
//!
//! [`mount`] asks the daemon, [`model`] keeps what is known and decides what a key does, and [`view`]
//! draws it; only this file touches the terminal. The program calls [`main`], and the generator of manual pages
//! (`dist/manuals`) reads [`command`].
#![forbid(unsafe_code)]

#[cfg(test)]
mod example;
mod model;
mod mount;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory as _, Parser};
use mobifs_daemon::{Code, Failure};
use mobifs_host::printable;
use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen};
use ratatui::layout::{Rect, Size};
use ratatui::{DefaultTerminal, Terminal, TerminalOptions, Viewport};

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
  Control-L   draw all of the screen anew
  q, Escape, Control-C, Control-D   end";

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

/// The command line: options and keys.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Does what the process's arguments say, and returns its exit code.
pub fn main() -> ExitCode {
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
    // A terminal without a second screen shows what was there before.
    execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
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

/// Draws what has changed; all of it where the terminal may show something else than what was drawn.
fn draw<B: Backend>(
    terminal: &mut Terminal<B>,
    model: &Model,
    is_anew: bool,
) -> Result<(), B::Error> {
    let area = drawn_on(terminal.size()?);
    if is_anew || terminal.get_frame().area() != area {
        // Clears it, too, without asking the terminal where its cursor is.
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
    let mut is_anew = false;
    loop {
        draw(terminal, model, is_anew)?;
        is_anew = false;
        let mut wait = interval.saturating_sub(asked.elapsed()).min(KEY_WAIT);
        // All that waits: drawn one by one, pasted text took seconds.
        for _ in 0..EVENTS_MAX {
            if !event::poll(wait)? {
                break;
            }
            wait = Duration::ZERO;
            let key = match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => key,
                // Back to the size that it had, the terminal may have lost what was drawn.
                Event::Resize(..) => {
                    is_anew = true;
                    continue;
                }
                _ => continue,
            };
            match model.key(key) {
                Some(Action::End) => return Ok(()),
                Some(Action::DrawAnew) => is_anew = true,
                Some(Action::Ask(request, what)) => {
                    model.say(format!("{what} …"));
                    draw(terminal, model, false)?;
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
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Cell;

    use super::*;

    /// Only what changed later was drawn, also where the terminal had been made smaller and larger again; what another
    /// program wrote stayed.
    #[test]
    fn what_the_terminal_has_lost_is_drawn_anew() {
        let model = Model::new(example::status(&[("a", 1)]), Instant::now());
        let viewport = Viewport::Fixed(Rect::new(0, 0, 80, 24));
        let options = TerminalOptions { viewport };
        let mut terminal = Terminal::with_options(TestBackend::new(80, 24), options).unwrap();
        draw(&mut terminal, &model, false).unwrap();
        let whole = terminal.backend().buffer().clone();
        let remains = Cell::new("X");
        let cells = || (0..24).flat_map(|y| (0..80).map(move |x| (x, y)));
        let written = cells().map(|(x, y)| (x, y, &remains));
        terminal.backend_mut().draw(written).unwrap();
        draw(&mut terminal, &model, false).unwrap();
        assert_ne!(terminal.backend().buffer(), &whole);
        draw(&mut terminal, &model, true).unwrap();
        assert_eq!(terminal.backend().buffer(), &whole);
        // Of another size, nothing of the old picture stays.
        for (width, height) in [(60, 10), (120, 30), (80, 24)] {
            terminal.backend_mut().resize(width, height);
            draw(&mut terminal, &model, false).unwrap();
            let mut other = Terminal::new(TestBackend::new(width, height)).unwrap();
            other.draw(|frame| view::draw(frame, &model)).unwrap();
            assert_eq!(terminal.backend().buffer(), other.backend().buffer());
        }
    }

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
