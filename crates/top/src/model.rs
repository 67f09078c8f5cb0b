//! What is known of a mount over time, and what keys do.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use mobifs_daemon::Failure;
use mobifs_daemon::control::Request;
use mobifs_host::printable;
use mobifs_volume::{AppName, AppReport, PolicyReport, PolicySettings, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// How many values of e make a sparkline.
pub(crate) const HISTORY: usize = 20;

/// What a key asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// The end.
    End,
    /// All of the screen is drawn.
    DrawAnew,
    /// Something that the daemon does, and its name.
    Ask(Request, String),
}

/// One app over time.
#[derive(Clone, Debug, Default)]
struct Past {
    written: u64,
    rate: f64,
    e_percent: VecDeque<u64>,
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) app: &'a AppReport,
    /// The name as a terminal may get it.
    pub(crate) name: String,
    /// Bytes written a second.
    pub(crate) rate: f64,
    /// The last values of e, in percent.
    pub(crate) e_percent: Vec<u64>,
    /// Seconds until it is committed at the latest; none: nothing is at risk.
    pub(crate) commit_seconds: Option<f64>,
}

/// What is shown.
#[derive(Debug)]
pub(crate) struct Model {
    status: Status,
    past: BTreeMap<AppName, Past>,
    updated: Instant,
    selected: Option<AppName>,
    is_paused: bool,
    message: String,
    /// The message is about a look that failed.
    has_failed: bool,
}

impl Model {
    pub(crate) fn new(status: Status, now: Instant) -> Self {
        let mut model = Self {
            status,
            past: BTreeMap::new(),
            updated: now,
            selected: None,
            is_paused: false,
            message: String::new(),
            has_failed: false,
        };
        model.remember(0.0);
        model
    }

    pub(crate) const fn status(&self) -> &Status {
        &self.status
    }

    pub(crate) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Shows a sentence, which may have names of others in it.
    pub(crate) fn say(&mut self, sentence: String) {
        self.message = printable(&sentence).into_owned();
        self.has_failed = false;
    }

    /// Takes what the daemon has said now.
    pub(crate) fn update(&mut self, status: Result<Status, Failure>, now: Instant) {
        match status {
            Ok(status) => {
                let seconds = now.duration_since(self.updated).as_secs_f64();
                self.status = status;
                self.updated = now;
                self.remember(seconds);
                if self.has_failed {
                    self.say(String::new());
                }
            }
            Err(failure) => {
                self.say(failure.message);
                self.has_failed = true;
            }
        }
    }

    fn remember(&mut self, seconds: f64) {
        let mut past = std::mem::take(&mut self.past);
        for app in &self.status.apps {
            let mut known = past.remove(&app.full_name()).unwrap_or_else(|| Past {
                written: app.bytes_written_by_app,
                ..Past::default()
            });
            let change = app.bytes_written_by_app.saturating_sub(known.written);
            known.rate = if seconds > 0.0 {
                change as f64 / seconds
            } else {
                0.0
            };
            known.written = app.bytes_written_by_app;
            known.e_percent.push_back((app.e * 100.0).round() as u64);
            if known.e_percent.len() > HISTORY {
                known.e_percent.pop_front();
            }
            self.past.insert(app.full_name(), known);
        }
    }

    /// The apps, those with the most at risk first.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut apps: Vec<&AppReport> = self.status.apps.iter().collect();
        apps.sort_by(|a, b| {
            let by_risk = b.bytes_at_risk.cmp(&a.bytes_at_risk);
            by_risk.then_with(|| a.full_name().cmp(&b.full_name()))
        });
        apps.into_iter().map(|app| self.row(app)).collect()
    }

    fn row<'a>(&self, app: &'a AppReport) -> Row<'a> {
        let past = self.past.get(&app.full_name());
        let name = match app.name_hex {
            Some(_) => app.full_name().to_string(),
            None => app.name.clone(),
        };
        Row {
            app,
            name: printable(&name).into_owned(),
            rate: past.map_or(0.0, |past| past.rate),
            e_percent: past.map_or_else(Vec::new, |past| past.e_percent.iter().copied().collect()),
            commit_seconds: commit_seconds(app),
        }
    }

    /// The line of the app that keys are about.
    pub(crate) fn selected(&self) -> usize {
        let rows = self.rows();
        let find = |name: &AppName| rows.iter().position(|row| row.app.full_name() == *name);
        self.selected.as_ref().and_then(find).unwrap_or(0)
    }

    fn select(&mut self, line: usize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        self.selected = rows.get(line.min(last)).map(|row| row.app.full_name());
    }

    /// What a key does.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        let line = self.selected();
        match key.code {
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(Action::End);
            }
            KeyCode::Char('l') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(Action::DrawAnew);
            }
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::End),
            KeyCode::Up | KeyCode::Char('k') => self.select(line.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(line + 1),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('S') => {
                let request = Request::Sync {
                    app: None,
                    apply: true,
                };
                return Some(Action::Ask(request, "sync of all apps".to_owned()));
            }
            KeyCode::Char('s') => return self.sync(line),
            KeyCode::Char('c') => return self.change_class(line),
            _ => {}
        }
        None
    }

    fn sync(&mut self, line: usize) -> Option<Action> {
        let rows = self.rows();
        let row = rows.get(line)?;
        let app = row.app.full_name();
        let what = format!("sync of {}", row.name);
        self.selected = Some(app.clone());
        let request = Request::Sync {
            app: Some(app),
            apply: true,
        };
        Some(Action::Ask(request, what))
    }

    fn change_class(&mut self, line: usize) -> Option<Action> {
        let rows = self.rows();
        let row = rows.get(line)?;
        let app = row.app.full_name();
        let class = match row.app.class.as_str() {
            "durable" => "relaxed",
            _ => "durable",
        };
        let what = format!("{} becomes {class}", row.name);
        self.selected = Some(app.clone());
        let settings = PolicySettings {
            class: Some(class.to_owned()),
            ..PolicySettings::default()
        };
        let request = Request::Set {
            app,
            settings: Box::new(settings),
        };
        Some(Action::Ask(request, what))
    }
}

/// When what an app has changed is committed at the latest: by its age. It may be earlier, by its
/// pattern, by its amount, or because memory is short.
fn commit_seconds(app: &AppReport) -> Option<f64> {
    if app.transactions.open + app.transactions.closed == 0 {
        return None;
    }
    let age_ms = match app.policy {
        PolicyReport::Interval { interval_ms } => interval_ms,
        PolicyReport::Fsync { flush_interval_ms } => flush_interval_ms,
        _ => app.age_max_ms,
    };
    let due_ms = age_ms.min(app.age_max_ms) as f64;
    Some((due_ms / 1e3 - app.seconds_at_risk).max(0.0))
}
