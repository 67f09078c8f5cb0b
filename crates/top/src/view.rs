//! Drawing. Widths are those of the terminal's cells: a Chinese character takes two.

use mobifs_host::printable;
use mobifs_volume::Status;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use crate::model::{HISTORY, Model, Row};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const KEYS: &str = "s sync  S all  c class  p pause  q quit";

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let [head, table, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(2),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(model.status())), head);
    draw_table(frame, table, model);
    frame.render_widget(Paragraph::new(foot_lines(model)), foot);
}

fn head_lines(status: &Status) -> Vec<Line<'static>> {
    let text = |text: &Option<String>| printable(text.as_deref().unwrap_or("-")).into_owned();
    let totals = &status.totals;
    let mut state = Vec::new();
    if status.read_only {
        state.push("read-only");
    }
    if status.battery_low {
        state.push("battery low: every app is durable");
    }
    if status.screen_off {
        state.push("screen off");
    }
    if status.store.not_applied.is_some() {
        state.push("NOT APPLIED");
    }
    if let Some(native) = &status.native
        && native.promise_withdrawn.is_some()
    {
        state.push(match native.can_promise() {
            true => "PROMISE WITHDRAWN",
            false => "no promise",
        });
    }
    vec![
        Line::from(vec![
            Span::raw(text(&status.mountpoint)).bold(),
            Span::raw(format!(
                "  of {}, up {}",
                text(&status.store.path),
                duration(status.uptime_ms as f64 / 1e3)
            )),
        ]),
        Line::from(format!(
            "memory {} of {}   journal {} of {}   {} commits",
            size(status.memory.used_bytes),
            size(status.memory.budget_bytes),
            size(status.store.journal_used_bytes),
            size(status.store.journal_total_bytes),
            status.store.commits
        )),
        Line::from(vec![
            Span::raw(format!(
                "{} {}, {} at risk   wrote {}, saved {}   ",
                totals.apps,
                if totals.apps == 1 { "app" } else { "apps" },
                totals.at_risk,
                size(totals.bytes_written_by_apps),
                size(totals.bytes_saved)
            )),
            Span::raw(state.join(", ")).fg(Color::Red),
        ]),
    ]
}

/// The table's columns with their widths, beside the first one, which has the names.
const COLUMNS: [(&str, u16); 8] = [
    ("CLASS", 7),
    ("POLICY", 9),
    ("AT RISK", 10),
    ("COMMIT IN", 9),
    ("WRITES/S", 12),
    ("E", 4),
    ("E OVER TIME", HISTORY as u16),
    ("SAVED", 10),
];
/// Names get so much at least.
const NAME_CELLS_MIN: u16 = 10;
/// Columns that are left out where there is no room for all of them, the first one first.
const LESS_NEEDED: [&str; 5] = ["E OVER TIME", "SAVED", "POLICY", "E", "CLASS"];

/// Which columns have room in this width: as a whole, so that no figure is cut.
fn columns(width: u16) -> [bool; COLUMNS.len()] {
    let mut is_shown = [true; COLUMNS.len()];
    for name in LESS_NEEDED {
        let shown = COLUMNS.iter().zip(is_shown).filter(|(_, shown)| *shown);
        // One cell before each of them.
        let needed: u16 = shown.map(|((_, width), _)| width + 1).sum();
        if needed + NAME_CELLS_MIN <= width {
            break;
        }
        for (column, is_shown) in COLUMNS.iter().zip(&mut is_shown) {
            *is_shown &= column.0 != name;
        }
    }
    is_shown
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let is_shown = columns(area.width);
    let shown = || COLUMNS.iter().zip(is_shown).filter(|(_, shown)| *shown);
    let titles = std::iter::once("APP").chain(shown().map(|((title, _), _)| *title));
    let widths = std::iter::once(Constraint::Min(NAME_CELLS_MIN))
        .chain(shown().map(|((_, width), _)| Constraint::Length(*width)));
    let rows = model.rows();
    let lines = rows.iter().map(|row| table_row(row, is_shown));
    let header = TableRow::new(titles).style(Style::new().add_modifier(Modifier::REVERSED));
    let table = Table::new(lines, widths)
        .header(header)
        .row_highlight_style(
            Style::new()
                .bg(Color::DarkGray)
                .add_modifier(Modifier::BOLD),
        );
    let mut state = TableState::new().with_selected(Some(model.selected()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn table_row(row: &Row<'_>, is_shown: [bool; COLUMNS.len()]) -> TableRow<'static> {
    let app = row.app;
    let due = row.commit_seconds.map_or_else(
        || "-".to_owned(),
        |seconds| format!("≤ {}", duration(seconds)),
    );
    let style = if app.read_only.is_some() {
        Style::new().fg(Color::Red)
    } else if app.class == "durable" {
        Style::new().fg(Color::Green)
    } else {
        Style::new()
    };
    let figures = [
        Cell::from(app.class.clone()),
        Cell::from(app.policy.name()),
        Cell::from(size(app.bytes_at_risk)),
        Cell::from(due),
        Cell::from(format!("{}/s", size(row.rate as u64))),
        Cell::from(format!("{:.0}%", app.e * 100.0)),
        Cell::from(sparkline(&row.e_percent)),
        Cell::from(size(app.bytes_saved)),
    ];
    let shown = figures
        .into_iter()
        .zip(is_shown)
        .filter(|(_, shown)| *shown);
    let cells = std::iter::once(Cell::from(row.name.clone())).chain(shown.map(|(cell, _)| cell));
    TableRow::new(cells).style(style)
}

fn foot_lines(model: &Model) -> Vec<Line<'static>> {
    let paused = if model.is_paused() { "  PAUSED" } else { "" };
    vec![
        Line::from(model.message().to_owned()),
        Line::from(vec![
            Span::raw(KEYS).dim(),
            Span::raw(paused).fg(Color::Yellow),
        ]),
    ]
}

/// A bar for each value of 0 to 100.
fn sparkline(percents: &[u64]) -> String {
    let bar = |&percent: &u64| {
        let last = BARS.len() - 1;
        let step = (percent.min(100) as usize * last).div_ceil(100);
        BARS.get(step).copied().unwrap_or(' ')
    };
    percents.iter().map(bar).collect()
}

/// `12.3 MiB`
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        unit => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// `1.2 s`, `3 min`, `5 h`
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3_600.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mobifs_daemon::control::Request;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::example::status;
    use crate::model::Action;

    fn screen(model: &Model) -> Vec<String> {
        screen_of(model, 110, 12)
    }

    fn screen_of(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let width = usize::from(buffer.area.width);
        let cells: Vec<_> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width).map(|line| line.concat()).collect()
    }

    fn press(model: &mut Model, code: KeyCode) -> Option<Action> {
        model.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn apps_are_sorted_by_what_is_at_risk() {
        let model = Model::new(
            status(&[("a", 1), ("b", 3 << 20), ("c", 2)]),
            Instant::now(),
        );
        let lines = screen(&model);
        assert!(lines[3].starts_with("APP"), "{lines:#?}");
        let order: Vec<_> = lines[4..7].iter().map(|line| &line[..1]).collect();
        assert_eq!(order, ["b", "c", "a"]);
        assert!(lines[4].contains("3.0 MiB"), "{lines:#?}");
        assert!(
            lines[4].contains("≤ 19.8 s"),
            "of 20 s, 0.239 s ago: {lines:#?}"
        );
        assert!(lines[0].starts_with("/home/me/data  of /home/me/store"));
    }

    /// Columns were cut where there was no room for all of them.
    #[test]
    fn on_a_usual_terminal_no_figure_is_cut() {
        let mut status = status(&[("an app", 1000 << 20), ("b", 2)]);
        status.apps[0].bytes_saved = 1000 << 20;
        let mut model = Model::new(status.clone(), Instant::now());
        for _ in 0..2 * HISTORY {
            model.update(Ok(status.clone()), Instant::now());
        }
        let figures = [
            ("CLASS", "relaxed"),
            ("AT RISK", "1000.0 MiB"),
            ("COMMIT IN", "≤ 19.8 s"),
            ("SAVED", "1000.0 MiB"),
        ];
        for width in 44..200 {
            let lines = screen_of(&model, width, 24);
            let shown = figures
                .into_iter()
                .filter(|(title, _)| lines[3].contains(title));
            let mut rest = lines[4].strip_prefix("an app ").unwrap();
            for (title, figure) in shown {
                let found = rest.find(figure);
                rest = &rest[found.unwrap_or_else(|| panic!("{width}, {title}: {lines:#?}"))..];
            }
            assert_eq!(lines[3].contains("SAVED"), width >= 78, "{lines:#?}");
            assert_eq!(lines[3].contains("E OVER TIME"), width >= 99, "{lines:#?}");
        }
    }

    /// It stayed there when the daemon answered again.
    #[test]
    fn a_failure_that_is_over_is_not_shown() {
        let mut model = Model::new(status(&[("a", 1)]), Instant::now());
        let gone = mobifs_daemon::Failure::new(mobifs_daemon::Code::NotMounted, "gone");
        model.update(Err(gone), Instant::now());
        assert_eq!(model.message(), "gone");
        model.update(Ok(status(&[("a", 1)])), Instant::now());
        assert_eq!(model.message(), "");
        model.say("sync of a: done".to_owned());
        model.update(Ok(status(&[("a", 1)])), Instant::now());
        assert_eq!(model.message(), "sync of a: done");
    }

    #[test]
    fn wide_and_hostile_names_stay_in_their_column() {
        let names = [
            ("音楽プレーヤー", 3),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", 2),
            ("plain", 1),
        ];
        let model = Model::new(status(&names), Instant::now());
        let mut terminal = Terminal::new(TestBackend::new(110, 12)).unwrap();
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let column = |y: u16| {
            let found = (0..110).find(|&x| {
                let word: String = (x..x + 7)
                    .map(|x| buffer[(x.min(109), y)].symbol())
                    .collect();
                word == "relaxed"
            });
            found.unwrap()
        };
        assert_eq!([column(4), column(5), column(6)], [column(4); 3]);
        let all = screen(&model).concat();
        assert!(all.contains("\\u001b[2J"), "{all}");
        assert!(!all.contains(char::is_control), "{all:?}");
    }

    #[test]
    fn rates_and_e_are_of_the_time_between_two_looks() {
        let start = Instant::now();
        let mut first = status(&[("a", 1)]);
        first.apps[0].e = 0.0;
        let mut model = Model::new(first.clone(), start);
        first.apps[0].bytes_written_by_app += 4 << 20;
        first.apps[0].e = 1.0;
        model.update(Ok(first), start + Duration::from_secs(2));
        let lines = screen(&model);
        assert!(lines[4].contains("2.0 MiB/s"), "{lines:#?}");
        assert!(lines[4].contains("▁█"), "{lines:#?}");
        assert_eq!(sparkline(&[0, 1, 50, 99, 100, 300]), "▁▂▅███");
    }

    #[test]
    fn keys_are_about_the_app_that_is_chosen_wherever_it_moves() {
        let start = Instant::now();
        let mut model = Model::new(status(&[("a", 9), ("b", 5), ("c", 1)]), start);
        press(&mut model, KeyCode::Down);
        assert_eq!(model.selected(), 1);
        // It moves to the top, and stays chosen.
        model.update(Ok(status(&[("a", 9), ("b", 50), ("c", 1)])), start);
        assert_eq!(model.selected(), 0);
        let Some(Action::Ask(Request::Sync { app, apply: true }, what)) =
            press(&mut model, KeyCode::Char('s'))
        else {
            panic!("no sync");
        };
        assert_eq!((app, what.as_str()), (Some("b".into()), "sync of b"));
        let Some(Action::Ask(Request::Set { app, settings }, _)) =
            press(&mut model, KeyCode::Char('c'))
        else {
            panic!("no change");
        };
        assert_eq!(
            (app, settings.class.as_deref()),
            ("b".into(), Some("durable"))
        );
        press(&mut model, KeyCode::End);
        assert_eq!(model.selected(), 2);
        press(&mut model, KeyCode::Down);
        assert_eq!(model.selected(), 2);
        press(&mut model, KeyCode::Home);
        assert_eq!(model.selected(), 0);
        assert!(matches!(
            press(&mut model, KeyCode::Char('S')),
            Some(Action::Ask(Request::Sync { app: None, .. }, _))
        ));
        press(&mut model, KeyCode::Char('p'));
        assert!(model.is_paused() && screen(&model)[11].contains("PAUSED"));
        assert_eq!(press(&mut model, KeyCode::Char('q')), Some(Action::End));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.key(control_c), Some(Action::End));
    }

    #[test]
    fn a_daemon_that_is_gone_is_said_in_one_line() {
        let mut model = Model::new(status(&[]), Instant::now());
        let gone = mobifs_daemon::Failure::new(mobifs_daemon::Code::NotMounted, "it is\ngone");
        model.update(Err(gone), Instant::now());
        assert!(screen(&model)[10].starts_with("it is\\ngone"));
        assert_eq!(
            press(&mut model, KeyCode::Char('s')),
            None,
            "there is no app"
        );
        press(&mut model, KeyCode::Down);
    }

    #[test]
    fn a_small_terminal_is_no_panic() {
        let model = Model::new(status(&[("a", 1)]), Instant::now());
        for (width, height) in [(1, 1), (3, 2), (20, 4), (300, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &model)).unwrap();
        }
    }
}
