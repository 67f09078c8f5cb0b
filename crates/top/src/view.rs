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

fn draw_table(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let titles = [
        "APP",
        "CLASS",
        "POLICY",
        "AT RISK",
        "COMMIT IN",
        "WRITES/S",
        "E",
        "E OVER TIME",
        "SAVED",
    ];
    let widths = [
        Constraint::Min(10),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(4),
        Constraint::Length(HISTORY as u16),
        Constraint::Length(9),
    ];
    let rows = model.rows();
    let lines = rows.iter().map(table_row);
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

fn table_row(row: &Row<'_>) -> TableRow<'static> {
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
    TableRow::new([
        Cell::from(row.name.clone()),
        Cell::from(app.class.clone()),
        Cell::from(app.policy.name()),
        Cell::from(size(app.bytes_at_risk)),
        Cell::from(due),
        Cell::from(format!("{}/s", size(row.rate as u64))),
        Cell::from(format!("{:.0}%", app.e * 100.0)),
        Cell::from(sparkline(&row.e_percent)),
        Cell::from(size(app.bytes_saved)),
    ])
    .style(style)
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
    use mobifs_volume::{AppReport, Status};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::model::Action;

    /// The status of docs/STATUS.md with these apps: names and bytes at risk.
    fn status(apps: &[(&str, u64)]) -> Status {
        let document = include_str!("../../../docs/STATUS.md");
        let example = document.split("```json\n").nth(1).unwrap();
        let mut status: Status =
            serde_json::from_str(example.split("```").next().unwrap()).unwrap();
        let app = status.apps.remove(0);
        let apps = apps.iter().map(|&(name, bytes_at_risk)| AppReport {
            name: name.to_owned(),
            bytes_at_risk,
            ..app.clone()
        });
        status.apps = apps.collect();
        status
    }

    fn screen(model: &Model) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(110, 12)).unwrap();
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
