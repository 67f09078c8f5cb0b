//! Journals and their crash states on small devices.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use mobifs_base::VirtualNs;
use tempfile::TempDir;

use super::*;

const DEVICE_BYTES: u64 = 16 << 10;

struct Fixture {
    directory: TempDir,
    made: std::cell::Cell<u32>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("base"),
            vec![0; DEVICE_BYTES as usize],
        )
        .unwrap();
        Self {
            directory,
            made: std::cell::Cell::new(0),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, records: &[(Kind, u64, u64, [u64; 2], u8)]) -> Journal {
        let path = self.path("journal");
        let mut writer = JournalWriter::create(&path, DEVICE_BYTES).unwrap();
        for &(kind, offset, bytes, [at, done_at], fill) in records {
            let record = Record {
                kind,
                offset,
                bytes,
                at: VirtualNs(at),
                done_at: VirtualNs(done_at),
            };
            let data = vec![fill; if kind.has_data() { bytes as usize } else { 0 }];
            writer.record(&record, &data).unwrap();
        }
        writer.flush().unwrap();
        Journal::open(&path).unwrap()
    }

    fn state(&self, journal: &Journal, state: &str) -> Vec<u8> {
        self.made.set(self.made.get() + 1);
        let output = self.path(&format!("out-{}", self.made.get()));
        let state = state.parse().unwrap();
        materialise(journal, &self.path("base"), state, &output).unwrap();
        fs::read(output).unwrap()
    }
}

fn sectors(image: &[u8], offset: usize, count: usize) -> Vec<u8> {
    (0..count)
        .map(|number| {
            let sector = &image[offset + number * 512..][..512];
            assert!(
                sector.iter().all(|&byte| byte == sector[0]),
                "inside a sector"
            );
            sector[0]
        })
        .collect()
}

#[test]
fn what_was_flushed_is_there_and_the_rest_may_be_torn_at_sectors() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 4096, [0, 10], 1),
        (Kind::Flush, 0, 0, [20, 30], 0),
        (Kind::Write, 0, 4096, [40, 50], 2),
        (Kind::Flush, 0, 0, [60, 70], 0),
        (Kind::Discard, 0, 4096, [80, 90], 0),
    ]);
    assert_eq!(journal.intervals().len(), 3);
    let uncertain: Vec<_> = journal.intervals().iter().map(|i| i.uncertain).collect();
    assert_eq!(uncertain, [1, 1, 0]);
    assert_eq!(sectors(&fixture.state(&journal, "0"), 0, 8), [0; 8]);
    assert_eq!(sectors(&fixture.state(&journal, "0:all"), 0, 8), [1; 8]);
    assert_eq!(sectors(&fixture.state(&journal, "1"), 0, 8), [1; 8]);
    assert_eq!(sectors(&fixture.state(&journal, "2:all"), 0, 8), [0; 8]);
    let states: HashSet<_> = (0..40)
        .map(|seed| sectors(&fixture.state(&journal, &format!("1:{seed}")), 0, 8))
        .collect();
    assert!(states.iter().flatten().all(|&byte| byte == 1 || byte == 2));
    assert!(states.contains(&vec![1; 8]) && states.contains(&vec![2; 8]));
    assert!(states.len() > 4, "some are torn: {states:?}");
    assert_eq!(
        fixture.state(&journal, "1:7"),
        fixture.state(&journal, "1:7")
    );
}

#[test]
fn a_flush_covers_only_what_was_done_before_it_began() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 512, [0, 25], 1),
        (Kind::Flush, 0, 0, [20, 30], 0),
    ]);
    assert_eq!(journal.intervals()[1].uncertain, 1);
    assert_eq!(sectors(&fixture.state(&journal, "1"), 0, 1), [0]);
    assert_eq!(sectors(&fixture.state(&journal, "1:all"), 0, 1), [1]);
}

#[test]
fn what_is_written_during_a_flush_may_survive_what_the_flush_is_about() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 512, [0, 10], 1),
        (Kind::Flush, 0, 0, [20, 90], 0),
        (Kind::Write, 512, 512, [30, 40], 2),
    ]);
    let states: HashSet<_> = (0..60)
        .map(|seed| sectors(&fixture.state(&journal, &format!("0:{seed}")), 0, 2))
        .collect();
    assert!(states.contains(&vec![0, 2]), "{states:?}");
    assert_eq!(sectors(&fixture.state(&journal, "1"), 0, 2), [1, 0]);
}

#[test]
fn a_durable_write_that_was_done_is_there_before_anything_later() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::DurableWrite, 0, 2048, [0, 10], 1),
        (Kind::Write, 4096, 512, [20, 30], 2),
    ]);
    let mut seen = HashSet::new();
    for seed in 0..60 {
        let image = fixture.state(&journal, &format!("0:{seed}"));
        let durable = sectors(&image, 0, 4);
        assert!(durable == [0; 4] || durable == [1; 4], "never torn");
        let later = sectors(&image, 4096, 1)[0];
        assert!(
            later == 0 || durable == [1; 4],
            "later, without what was durable before"
        );
        seen.insert((durable[0], later));
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn after_a_cut_holds_what_the_device_really_kept() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 1024, [0, 10], 1),
        (Kind::Cut, 0, 0, [15, 15], 0),
        (Kind::AfterCut, 0, 512, [15, 15], 0),
        (Kind::AfterCut, 512, 512, [15, 15], 1),
        (Kind::Write, 0, 512, [20, 30], 3),
    ]);
    assert_eq!(journal.intervals()[1].begins_with, BoundaryKind::Cut);
    assert_eq!(sectors(&fixture.state(&journal, "0:all"), 0, 2), [1, 1]);
    assert_eq!(sectors(&fixture.state(&journal, "1"), 0, 2), [0, 1]);
    assert_eq!(sectors(&fixture.state(&journal, "1:all"), 0, 2), [3, 1]);
}

#[test]
fn damage_is_found_and_a_killed_writer_is_no_damage() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 512, [0, 10], 1),
        (Kind::Write, 512, 512, [0, 10], 2),
    ]);
    assert!(!journal.is_cut_short());
    let path = fixture.path("journal");
    let whole = fs::read(&path).unwrap();
    for length in 24..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let journal = Journal::open(&path).unwrap();
        assert!(journal.records().len() < 2);
    }
    for position in 24..whole.len() {
        let mut damaged = whole.clone();
        damaged[position] ^= 0x10;
        fs::write(&path, damaged).unwrap();
        let error = Journal::open(&path).unwrap_err().to_string();
        assert!(error.contains("damaged at byte"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[]);
    let path = fixture.path("journal");
    let exists = JournalWriter::create(&path, DEVICE_BYTES).unwrap_err();
    assert!(exists.to_string().contains("exists already"));
    let output = fixture.path("out");
    let failure = |state: &str, base: &Path| {
        let state = state.parse().unwrap();
        materialise(&journal, base, state, &output)
            .unwrap_err()
            .to_string()
    };
    assert!(failure("1", &fixture.path("base")).contains("states 0 to 0"));
    assert!(failure("0", &path).contains("when the journal began"));
    assert!(failure("0", &fixture.path("absent")).contains("absent"));
    assert!(!output.exists());
    fs::write(&path, "no journal at all, but long enough").unwrap();
    assert!(
        Journal::open(&path)
            .unwrap_err()
            .to_string()
            .contains("not a journal")
    );
    for bad in ["", "x", "1:", "1:most", "-1"] {
        assert!(
            bad.parse::<CrashState>().unwrap_err().contains("N:SEED"),
            "{bad}"
        );
    }
}

#[test]
fn many_states_in_order_are_those_that_are_made_one_by_one() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 0, 1024, [0, 65], 1),
        // Certain before the older write that it overlaps.
        (Kind::Write, 512, 1024, [10, 20], 2),
        (Kind::Flush, 0, 0, [30, 40], 0),
        (Kind::Write, 2048, 1024, [50, 55], 3),
        (Kind::Flush, 0, 0, [60, 70], 0),
        (Kind::Write, 1024, 2048, [72, 75], 4),
        (Kind::Cut, 0, 0, [80, 80], 0),
        (Kind::AfterCut, 0, 2048, [80, 80], 5),
        (Kind::Write, 0, 1024, [90, 95], 6),
    ]);
    let base = fixture.path("rolling");
    fs::copy(fixture.path("base"), &base).unwrap();
    let mut states = CrashStates::new(&journal, &base).unwrap();
    let output = fixture.path("state");
    for interval in 0..journal.intervals().len() {
        for end in ["", ":all", ":1", ":2", ":3", ":4", ":5"] {
            let text = format!("{interval}{end}");
            states.make(text.parse().unwrap(), &output).unwrap();
            assert_eq!(
                fs::read(&output).unwrap(),
                fixture.state(&journal, &text),
                "{text}"
            );
            fs::remove_file(&output).unwrap();
        }
    }
    let earlier = states.make("0".parse().unwrap(), &output).unwrap_err();
    assert!(matches!(
        earlier,
        JournalError::NoSuchState { asked: 0, .. }
    ));
}

#[test]
fn a_journal_is_the_commands_that_the_device_got() {
    let fixture = Fixture::new();
    let journal = fixture.write(&[
        (Kind::Write, 4096, 1024, [1, 2], 7),
        (Kind::Flush, 0, 0, [3, 5], 0),
        (Kind::Cut, 0, 0, [6, 6], 0),
        (Kind::AfterCut, 4096, 512, [6, 6], 7),
        (Kind::Discard, 8192, 4096, [7, 8], 0),
        (Kind::DurableWrite, 0, 512, [8, 9], 3),
    ]);
    let commands: Vec<Command> = journal.commands().collect();
    let kinds: Vec<CommandKind> = commands.iter().map(|command| command.kind).collect();
    let expected = [
        CommandKind::Write,
        CommandKind::Flush,
        CommandKind::Discard,
        CommandKind::DurableWrite,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(
        (commands[1].at, commands[1].done_at),
        (VirtualNs(3), VirtualNs(5))
    );
    let mut found = [0; 512];
    journal.written(&commands[0], 512, &mut found).unwrap();
    assert_eq!(found, [7; 512]);
    journal.written(&commands[3], 0, &mut found).unwrap();
    assert_eq!(found, [3; 512]);
    // Beyond what it wrote, and of a command that wrote nothing.
    journal.written(&commands[3], 1, &mut found).unwrap_err();
    journal.written(&commands[2], 0, &mut found).unwrap_err();
}
