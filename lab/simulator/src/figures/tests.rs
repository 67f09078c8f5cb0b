//! Figures against numbers that were found by hand.

use mobifs_device_model::Preset;
use mobifs_engine::AppPolicy;

use super::per_app::{
    flushed_vs_ext4, one_version, program_users, ratio_to_ext4, spread, with_versions,
};
use super::unit::Of;
use super::*;
use crate::sim::{
    Action, AppNumber, InitialObject, NameNumber, ObjectFacts, ObjectNumber, Step, Stream,
};

const SECOND_NS: u64 = 1_000_000_000;
const PAGE: u64 = 4096;

/// What one app does to files that were there before.
struct Script {
    stream: Stream,
}

impl Script {
    fn new(seconds: u64, files: u32) -> Self {
        let app = AppNumber(0);
        let numbers = 0..files;
        let facts = ObjectFacts {
            app,
            is_directory: false,
        };
        Self {
            stream: Stream {
                apps: vec!["app".to_owned()],
                objects: vec![facts; files as usize],
                names: vec![app; files as usize],
                initial: numbers
                    .map(|n| InitialObject {
                        object: ObjectNumber(n),
                        name: NameNumber(n),
                        bytes: 0,
                    })
                    .collect(),
                duration_ns: seconds * SECOND_NS,
                ..Stream::default()
            },
        }
    }

    fn at(&mut self, ms: u64, action: Action) -> &mut Self {
        self.stream.steps.push(Step {
            time_ns: ms * 1_000_000,
            app: AppNumber(0),
            action,
        });
        self
    }

    /// Pages `pages` of file 0.
    fn write(&mut self, ms: u64, pages: std::ops::Range<u64>) -> &mut Self {
        let action = Action::Write {
            object: ObjectNumber(0),
            offset: pages.start * PAGE,
            length: (pages.end - pages.start) * PAGE,
        };
        self.at(ms, action)
    }

    fn create(&mut self, ms: u64) -> &mut Self {
        let app = AppNumber(0);
        let number = self.stream.objects.len() as u32;
        self.stream.objects.push(ObjectFacts {
            app,
            is_directory: false,
        });
        self.stream.names.push(app);
        let (object, name) = (ObjectNumber(number), NameNumber(number));
        self.at(ms, Action::Create { object, name })
    }

    fn named(&self, name: &str) -> NamedStream {
        NamedStream {
            name: name.to_owned(),
            stream: self.stream.clone(),
        }
    }
}

fn device() -> DeviceChoice {
    DeviceChoice {
        name: "emmc51".to_owned(),
        config: Preset::Emmc51.config().unwrap(),
        capacity_bytes: 1 << 30,
    }
}

fn with_units<T>(traces: &[NamedStream], look: impl FnOnce(&[Unit<'_>], &[String]) -> T) -> T {
    let contenders = contenders(AppPolicy::default());
    let runs = run_all(traces, &contenders, &device(), &|_, _| {}).unwrap();
    let (units, uncounted) = units(traces, &runs);
    look(&units, &uncounted)
}

#[test]
fn an_interval_ends_with_a_flush_and_not_with_the_trace() {
    let mut script = Script::new(50, 1);
    // 100 pages at 2 s, one of them again at 21 and at 47 s.
    script
        .write(2_000, 0..100)
        .write(21_000, 0..1)
        .write(47_000, 0..1);
    with_units(&[script.named("t")], |units, _| {
        let seconds = |of: Of| units[0].intervals(of).mean_seconds();
        // The first change is at 2 s. ext4 flushes at 5, 25 and 50 s.
        assert_eq!(seconds(|user| user.ext4), Some(48.0 / 3.0));
        // 20 s after the first change: at 22 s, with what came at 21 s. What comes at 47 s is
        // flushed when the trace ends.
        assert_eq!(seconds(|user| user.default), Some(20.0));
        // At 32 s, its limit of age.
        assert_eq!(seconds(|user| user.tpl), Some(30.0));
        // Nothing closes it before the trace ends: an interval longer than the trace, and none.
        assert_eq!(seconds(|user| user.published), None);
        assert_eq!(units[0].users[0].published.flushes(), 1);
        assert_eq!(
            ratio_to_ext4(units, |user| user.default),
            Some((20.0 / 16.0, 1))
        );
        assert_eq!(ratio_to_ext4(units, |user| user.published), None);
    });
}

#[test]
fn the_published_policy_waits_longer_than_any_limit_of_age() {
    let mut script = Script::new(120, 1);
    // The same 16 pages every 10 s, so e rises as long as they come, until at 100 s new pages make
    // it fall.
    for round in 0..10 {
        script.write(round * 10_000, 0..16);
    }
    script.write(100_000, 16..200);
    with_units(&[script.named("t")], |units, _| {
        let user = &units[0].users[0];
        assert_eq!(user.published.flushes_ns()[0], 100 * SECOND_NS);
        assert_eq!(
            user.tpl.flushes_ns()[..3],
            [30, 60, 90].map(|s| s * SECOND_NS)
        );
    });
}

#[test]
fn users_of_one_program_have_one_value_for_each_app_and_one_each() {
    let slow = {
        let mut script = Script::new(65, 1);
        script.write(0, 0..40).write(40_000, 0..40);
        script.named("desk-u1")
    };
    let quick = {
        let mut script = Script::new(65, 1);
        script
            .write(0, 0..40)
            .write(20_000, 0..40)
            .write(40_000, 0..40);
        script.named("desk-u2")
    };
    let other = {
        let mut script = Script::new(65, 1);
        script.write(0, 0..70);
        script.named("other")
    };
    with_units(&[slow, quick, other], |units, uncounted| {
        let names: Vec<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
        assert_eq!(names, ["desk", "other"]);
        assert!(uncounted.is_empty());
        // ext4: 40 + 40 and 40 + 40 + 40 pages; never: 40 each. Of `other` both flush 70.
        assert_eq!(units[0].flushed_pages(|user| user.ext4), 200);
        assert_eq!(units[0].flushed_pages(|user| user.ideal), 80);
        let share = flushed_vs_ext4(units, |user| user.ideal).unwrap();
        assert!((share - (0.4_f64).sqrt()).abs() < 1e-12, "{share}");
        // The default closes 20 s after a first change: 20 and 60 s; 20, 40 and 60 s.
        let users = program_users(units, |user| user.default);
        let means: Vec<f64> = users
            .iter()
            .map(|user| user.intervals.mean_seconds().unwrap())
            .collect();
        assert_eq!(users[0].trace, "desk-u1");
        assert_eq!(means, [30.0, 20.0]);
        assert_eq!(spread(&means), Some(1.5));
    });
}

#[test]
fn an_app_with_few_pages_is_in_no_mean_and_is_named() {
    let mut much = Script::new(10, 1);
    much.write(0, 0..PAGES_MIN);
    let mut little = Script::new(10, 1);
    little.write(0, 0..PAGES_MIN - 1);
    let traces = [much.named("much"), little.named("little")];
    with_units(&traces, |units, uncounted| {
        assert_eq!(units.len(), 1);
        assert_eq!(uncounted, ["little"]);
        // All flush these pages once; the other trace would only confirm it.
        assert_eq!(flushed_vs_ext4(units, |user| user.tpl), Some(1.0));
    });
    let all = figures(&traces, AppPolicy::default(), &device(), &|_, _| {}).unwrap();
    assert_eq!(all.frontier.apps, ["much"]);
    assert!(
        all.left_out.iter().any(|said| said.contains("little")),
        "{:?}",
        all.left_out
    );
    for figure in &all.figures {
        assert!(
            figure.rows.iter().all(|row| row[0] != "little"),
            "{}",
            figure.name
        );
    }
}

#[test]
fn versions_take_at_least_what_one_copy_takes() {
    let mut script = Script::new(100, 1);
    // Many changes of names and few of content: entries are kept like pages.
    script.write(0, 0..100);
    for second in 0..80 {
        script.create(second * 1_000);
    }
    with_units(&[script.named("t")], |units, _| {
        let (one, versions) = (one_version(&units[0]), with_versions(&units[0]));
        assert!(one > 0.0 && versions >= one, "{versions} < {one}");
    });
    let mut script = Script::new(100, 1);
    // 160 pages at 0 s; from 10 s on all of them again, every 10 s, without a new one: e rises, so
    // nothing is closed, and there is one version.
    for round in 0..10 {
        script.write(round * 10_000, 0..160);
    }
    with_units(&[script.named("t")], |units, _| {
        let (one, versions) = (one_version(&units[0]), with_versions(&units[0]));
        assert!((versions / one - 1.0).abs() < 1e-9, "{versions} {one}");
        // 160 pages from the start on: 2 × 655.36 KB ÷ 100 s, and little for attributes.
        assert!((13.1..13.2).contains(&one), "{one}");
    });
}

#[test]
fn e_counts_pages_of_content_whatever_flushes_them() {
    let mut script = Script::new(4, 1);
    script
        .create(0)
        .write(0, 0..100)
        .create(500)
        .write(1_000, 0..20);
    script.create(1_500).write(2_000, 90..110);
    // Nothing is flushed before the end: written 140 pages, of these 20 and 10 again.
    with_units(&[script.named("t")], |units, _| {
        let user = &units[0].users[0];
        for app in [
            user.ext4,
            user.published,
            user.tpl,
            user.default,
            user.ideal,
        ] {
            assert_eq!((app.written_pages, app.overwritten_pages), (140, 30));
            assert_eq!(app.flushed_pages, 110);
            let last = app.curve().last().unwrap();
            assert_eq!((last.written_pages, last.overwritten_pages), (140, 30));
        }
    });
}

/// Pictures were up to 8,800 pixels wide.
#[test]
fn pictures_fit_on_a_page_however_many_apps_there_are() {
    let traces: Vec<NamedStream> = (0..24)
        .map(|number| {
            let mut script = Script::new(10, 1);
            script.write(0, 0..PAGES_MIN + number);
            script.named(&format!("a program with a long name {number}"))
        })
        .collect();
    with_units(&traces, |units, _| {
        assert_eq!(units.len(), 24);
        for figure in per_app::figures(units).unwrap() {
            let number = |name: &str| -> u32 {
                let (_, rest) = figure.svg.split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().parse().unwrap()
            };
            assert!(
                number("width") <= 1_200,
                "{}: {}",
                figure.name,
                number("width")
            );
            assert!(
                number("height") <= 800,
                "{}: {}",
                figure.name,
                number("height")
            );
            assert!(figure.svg.contains("a program with a long name 23"));
        }
    });
}
