//! What the flash device keeps in files: its configuration, the file beside an image, the
//! saved state of the model, the journal.

use std::io::Write as _;
use std::sync::OnceLock;

use arbitrary::{Arbitrary, Unstructured};
use mobifs_device_model::{Command, Config, Model, Preset, Sector, VirtualNs, WriteKind};
use mobifs_device_server::fuzzing::{ForgedRecord, forge_journal, forge_sidecar, rewrite_sidecar};
use mobifs_device_server::{CrashState, Journal, Survival, materialise};

use crate::noise::noises;
use crate::{Target, Verdict};

/// The configuration of a device: a whole one, and changes of a preset.
pub const FLASH_CONFIG: Target = Target {
    name: "flash_config",
    run: config,
    seeds: || {
        let changes = "[geometry]\nchannels = { value = 2, assumed = \"more\" }\n";
        vec![
            Config::to_toml(&small_device()).into_bytes(),
            changes.as_bytes().to_vec(),
            b"name = \"x\"\n[slc]\ncache_bytes = { value = 4096, source = \"y\" }\n".to_vec(),
        ]
    },
};

/// The file beside an image.
pub const FLASH_SIDECAR: Target = Target {
    name: "flash_sidecar",
    run: sidecar,
    seeds: || {
        let about = br#"{"size_bytes":4096,"config":"name = \"x\"\n","config_digest":7,
            "seed":5,"power_cycles":3,"is_clean":true}"#;
        vec![
            about.to_vec(),
            forge_sidecar(about, b"state"),
            forge_sidecar(b"{}", b""),
        ]
    },
};

/// The saved state of a model.
pub const FLASH_SAVED_MODEL: Target = Target {
    name: "flash_saved_model",
    run: saved_model,
    seeds: || {
        let mut seeds = noises();
        seeds.push(vec![0; 8]);
        seeds
    },
};

/// A journal of everything that reached a device.
pub const FLASH_JOURNAL: Target = Target {
    name: "flash_journal",
    run: journal,
    seeds: noises,
};

const CAPACITY_BYTES: u64 = 1 << 20;
const PAGE_SECTORS: u64 = 8;

fn config(input: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else {
        return Verdict::Refused;
    };
    let whole = Config::from_toml(text);
    let changed = Config::from_preset_with(Preset::Emmc51, text);
    for config in [&whole, &changed].into_iter().flatten() {
        let again = Config::from_toml(&config.to_toml());
        assert_eq!(again.as_ref(), Ok(config), "what is written is read");
        assert_eq!(again.map(|again| again.digest()), Ok(config.digest()));
    }
    Verdict::from(&whole.or(changed))
}

fn sidecar(input: &[u8]) -> Verdict {
    // As it is, and with a valid checksum.
    let (about, state) = input.split_at(input.len() - input.len() / 8);
    let read = [
        rewrite_sidecar(input),
        rewrite_sidecar(&forge_sidecar(about, state)),
        rewrite_sidecar(&forge_sidecar(input, &[])),
    ];
    let mut verdict = Verdict::Refused;
    for written in read.into_iter().flatten() {
        let again = rewrite_sidecar(&written);
        assert_eq!(again.ok(), Some(written), "what is written is read");
        verdict = Verdict::Taken;
    }
    verdict
}

/// A card with few resources, so that damage matters.
fn small_device() -> Config {
    const CHANGES: &str = "
        [geometry]
        page_bytes = { value = 4096, assumed = \"small\" }
        pages_per_block = { value = 8, assumed = \"small\" }
        over_provisioning_percent = { value = 100.0, assumed = \"small\" }
        [remap]
        table_entries = { value = 16, assumed = \"small\" }
        log_entries_per_page = { value = 16, assumed = \"small\" }
        log_pages = { value = 8, assumed = \"small\" }
        command_pages_max = { value = 16, assumed = \"small\" }
    ";
    let config = Config::from_preset_with(Preset::MicroSd, CHANGES);
    config.unwrap_or_else(|error| panic!("{error}"))
}

/// Works on the device: writes, overwrites, discards and remaps.
fn use_device(model: &mut Model, rounds: u64) {
    let mut now = model.idle_at();
    for round in 0..rounds {
        let start = Sector(round * 7 % 200 * PAGE_SECTORS);
        let commands = [
            Command::Write {
                start,
                sectors: 20,
                kind: WriteKind::Plain,
            },
            Command::Read { start, sectors: 8 },
            Command::Discard {
                start: Sector(round * 3 % 240 * PAGE_SECTORS),
                sectors: 16,
            },
            Command::Remap {
                from: start,
                to: Sector(220 * PAGE_SECTORS),
                sectors: 16,
            },
            Command::Flush,
        ];
        for command in commands {
            // A remap whose ranges meet is refused.
            if let Ok(done) = model.submit(now, &command) {
                now = VirtualNs(now.0.max(done.done_at.0));
            }
        }
    }
    model.advance(VirtualNs(now.0 + 1_000_000_000));
}

/// The state of a device that was used, without its checksum.
fn used_state() -> &'static [u8] {
    static STATE: OnceLock<Vec<u8>> = OnceLock::new();
    STATE.get_or_init(|| {
        let model = Model::new(&small_device(), CAPACITY_BYTES, 1);
        let mut model = model.unwrap_or_else(|error| panic!("{error}"));
        use_device(&mut model, 60);
        let mut saved = model.save().unwrap_or_else(|error| panic!("{error}"));
        saved.truncate(saved.len() - 4);
        saved
    })
}

/// A change of saved bytes. Positions are taken modulo their number.
#[derive(Arbitrary, Debug)]
enum Change {
    Byte { at: u32, with: u8 },
    Number { at: u32, value: u32 },
    Cut { at: u32 },
}

impl Change {
    fn happen(&self, bytes: &mut Vec<u8>) {
        let position = |at: u32| at as usize % bytes.len().max(1);
        match *self {
            Self::Byte { at, with } => {
                let at = position(at);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= with);
            }
            Self::Number { at, value } => {
                let at = position(at);
                if let Some(number) = bytes.get_mut(at..at + 4) {
                    number.copy_from_slice(&value.to_le_bytes());
                }
            }
            Self::Cut { at } => bytes.truncate(position(at)),
        }
    }
}

fn saved_model(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let mut saved = used_state().to_vec();
    while !u.is_empty() {
        let Ok(change) = u.arbitrary::<Change>() else {
            break;
        };
        change.happen(&mut saved);
    }
    let checksum = crc32c::crc32c(&saved);
    saved.extend(checksum.to_le_bytes());
    let Ok(mut model) = Model::load(&small_device(), CAPACITY_BYTES, &saved) else {
        return Verdict::Refused;
    };
    use_device(&mut model, 12);
    assert_eq!(model.check(), Ok(()), "the model stays consistent");
    Verdict::Taken
}

/// One record, in sectors mostly.
#[derive(Arbitrary, Debug)]
struct Event {
    kind: u8,
    sector: u8,
    sectors: u8,
    at: u16,
    takes: u8,
    odd: Option<(u64, u64)>,
}

fn journal(input: &[u8]) -> Verdict {
    const DEVICE_SECTORS: u64 = 128;
    let mut u = Unstructured::new(input);
    let (Ok(events), Ok(interval), Ok(survival)) = (
        u.arbitrary::<Vec<Event>>(),
        u.arbitrary::<u8>(),
        u.arbitrary::<Option<u64>>(),
    ) else {
        return Verdict::Refused;
    };
    let records: Vec<ForgedRecord> = events
        .iter()
        .map(|event| {
            let sectors = u64::from(event.sectors) % 9;
            let regular = (
                u64::from(event.sector) % DEVICE_SECTORS * 512,
                sectors * 512,
            );
            let (offset, bytes) = event.odd.unwrap_or(regular);
            let has_data = [0, 1, 5].contains(&(event.kind % 6));
            ForgedRecord {
                kind: event.kind,
                offset,
                bytes,
                at_ns: event.at.into(),
                done_at_ns: u64::from(event.at) + u64::from(event.takes),
                data: vec![event.kind; if has_data { regular.1 as usize } else { 0 }],
            }
        })
        .collect();
    let mut content = forge_journal(DEVICE_SECTORS * 512, &records);
    content.extend(u.take_rest());
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str, bytes: &[u8]| {
        let mut file = std::fs::File::create(path(name))?;
        file.write_all(bytes)
    };
    let base = vec![0xee; (DEVICE_SECTORS * 512) as usize];
    write("journal", &content).unwrap_or_else(|error| panic!("{error}"));
    write("base", &base).unwrap_or_else(|error| panic!("{error}"));
    let Ok(journal) = Journal::open(&path("journal")) else {
        return Verdict::Refused;
    };
    assert_eq!(journal.device_bytes(), DEVICE_SECTORS * 512);
    assert!(!journal.intervals().is_empty(), "there is a first interval");
    let state = CrashState {
        interval: usize::from(interval) % journal.intervals().len(),
        survival: survival.map_or(Survival::None, |seed| Survival::Random { seed }),
    };
    let made = [path("first"), path("second")].map(|output| {
        let made = materialise(&journal, &path("base"), state, &output);
        made.unwrap_or_else(|error| panic!("{error}"));
        std::fs::read(output).unwrap_or_else(|error| panic!("{error}"))
    });
    assert_eq!(made[0].len(), base.len(), "an image of the device's size");
    assert_eq!(made[0], made[1], "the same state is the same image");
    Verdict::Taken
}
