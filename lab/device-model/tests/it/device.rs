//! Presets, configuration errors, refused commands, saved state, and what the seeds observe.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use crate::support::small_config;
use mobifs_device_model::{
    Command, CommandError, Config, ConfigError, Device, DeviceError, Keep, LoadError, Lpn,
    MemoryMedium, Model, Preset, SaveError, Sector, Stats, VirtualNs, WriteKind,
};

const PLAIN: WriteKind = WriteKind::Plain;

#[test]
fn presets_carry_content() {
    for preset in Preset::ALL {
        let model = Model::new(&preset.config().unwrap(), 64 << 20, 1).unwrap();
        let mut device = Device::new(model, MemoryMedium::new());
        let mut at = VirtualNs::ZERO;
        for round in 0..8_u64 {
            for step in 0..200_u64 {
                let start = Sector((step * 7919 + round * 13) % 16000 * 8);
                let content = [(step + round) as u8; 8192];
                at = device.write(at, start, &content, PLAIN).unwrap().done_at;
                let mut back = [0; 8192];
                at = device.read(at, start, &mut back).unwrap().done_at;
                assert_eq!(content, back);
            }
            at = device.flush(at).unwrap().done_at;
            let mut before = vec![0; 64 << 18];
            at = device.read(at, Sector(0), &mut before).unwrap().done_at;
            device.cut(at, Keep::None).unwrap();
            at = device.power_on(at);
            device.model().check().unwrap();
            let mut after = vec![0; 64 << 18];
            at = device.read(at, Sector(0), &mut after).unwrap().done_at;
            assert!(before == after);
        }
        at = device.discard(at, Sector(0), 64 << 11).unwrap().done_at;
        device.advance(at).unwrap();
        device.model().check().unwrap();
        assert_eq!(*device.medium(), MemoryMedium::new());
    }
}

#[test]
fn a_wrong_configuration_is_refused_by_name() {
    let change = |text: &str| {
        let error = Config::from_preset_with(Preset::Emmc51, text).unwrap_err();
        error.to_string()
    };
    let unknown = change("[mapping]\ncache_size = { value = 1, assumed = \"x\" }");
    assert!(unknown.contains("unknown field `cache_size`"), "{unknown}");
    let unknown = change("[maping]\n");
    assert!(unknown.contains("unknown field `maping`"), "{unknown}");
    let bare = change("[mapping]\ncache_bytes = { value = 65536 }");
    assert!(bare.contains("`source` or `assumed`"), "{bare}");
    let small = change("[mapping]\ncache_bytes = { value = 512, assumed = \"x\" }");
    assert!(small.contains("mapping.cache_bytes = 512"), "{small}");
    let negative = change("[timing]\nread_us = { value = -1.0, assumed = \"x\" }");
    assert!(negative.contains("timing.read_us = -1"), "{negative}");
    assert!(matches!(
        "nvme".parse::<Preset>(),
        Err(ConfigError::UnknownPreset(_))
    ));
    let config = Preset::Emmc51.config().unwrap();
    for capacity in [0, 1000, 1 << 50] {
        assert!(Model::new(&config, capacity, 0).is_err());
    }
    // Regression: what is possible was not said.
    let said = Model::new(&config, 3 << 40, 0).err().unwrap().to_string();
    let most = said.split_once("at most ").map(|(_, rest)| rest);
    let most = most.and_then(|rest| rest.split_once(" bytes")).unwrap().0;
    Model::new(&config, most.parse().unwrap(), 0).unwrap();
    let written = Config::from_toml(&config.to_toml()).unwrap();
    assert_eq!(written, config);
    assert_ne!(config.digest(), Preset::Ufs31.config().unwrap().digest());
}

#[test]
fn a_malformed_command_changes_nothing() {
    let mut model = Model::new(&small_config(""), 1 << 20, 0).unwrap();
    let at = VirtualNs::ZERO;
    let mut refused = |command: Command<'_>| model.submit(at, &command).unwrap_err();
    let sector = Sector;
    assert!(matches!(
        refused(Command::Read {
            start: Sector(2047),
            sectors: 2
        }),
        CommandError::OutOfRange {
            end: 2049,
            device_sectors: 2048,
            ..
        }
    ));
    assert_eq!(
        refused(Command::Read {
            start: sector(u64::MAX),
            sectors: 0
        }),
        CommandError::Empty
    );
    assert!(matches!(
        refused(Command::Read {
            start: sector(u64::MAX),
            sectors: 9
        }),
        CommandError::OutOfRange { .. }
    ));
    assert_eq!(refused(Command::PackedWrite(&[])), CommandError::Empty);
    let remap = |from, to, sectors| Command::Remap {
        from: Sector(from),
        to: Sector(to),
        sectors,
    };
    assert_eq!(refused(remap(1, 16, 8)), CommandError::NotWholePages);
    assert_eq!(refused(remap(0, 16, 12)), CommandError::NotWholePages);
    assert_eq!(refused(remap(0, 8, 16)), CommandError::RemapOverlaps);
    assert_eq!(
        refused(remap(0, 512, 400)),
        CommandError::RemapTooLarge { pages_max: 24 }
    );
    let mut device = Device::new(model, MemoryMedium::new());
    let error = device.write(at, Sector(0), &[0; 100], PLAIN).unwrap_err();
    assert!(matches!(error, DeviceError::Length { bytes: 100 }));
    device.cut(at, Keep::None).unwrap();
    let error = device.flush(at).unwrap_err();
    assert!(matches!(error, DeviceError::Command(CommandError::NoPower)));
}

/// Random writes of a page, with flushes between.
fn churn(model: &mut Model, count: u64) -> VirtualNs {
    let mut at = model.now();
    for number in 0..count {
        let start = Sector(number * 2_654_435_761 % (model.sectors() / 8) * 8);
        let write = Command::Write {
            start,
            sectors: 8,
            kind: PLAIN,
        };
        at = model.submit(at, &write).unwrap().done_at;
        if number % 50 == 49 {
            at = model.submit(at, &Command::Flush).unwrap().done_at;
        }
    }
    at
}

#[test]
fn the_same_commands_give_the_same_device() {
    let run = |seed| {
        let mut model = Model::new(&small_config(""), 1 << 20, seed).unwrap();
        let at = churn(&mut model, 3000);
        (at, model.stats(), model.save().unwrap())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn a_saved_device_comes_back_and_a_damaged_one_does_not() {
    let config = small_config("");
    let mut model = Model::new(&config, 1 << 20, 1).unwrap();
    churn(&mut model, 3000);
    let remap = Command::Remap {
        from: Sector(0),
        to: Sector(800),
        sectors: 64,
    };
    model.submit(model.now(), &remap).unwrap();
    let saved = model.save().unwrap();
    let mut loaded = Model::load(&config, 1 << 20, &saved).unwrap();
    assert_eq!(
        loaded.stats().wear.max_erases,
        model.stats().wear.max_erases
    );
    for page in 0..256 {
        let page = mobifs_device_model::Lpn(page);
        assert_eq!(loaded.is_mapped(page), model.is_mapped(page));
    }
    churn(&mut loaded, 2000);
    loaded.check().unwrap();

    let write = Command::Write {
        start: Sector(0),
        sectors: 8,
        kind: PLAIN,
    };
    model.submit(model.now(), &write).unwrap();
    assert_eq!(model.save().unwrap_err(), SaveError::NotFlushed);
    let load = |config: &Config, capacity, bytes: &[u8]| match Model::load(config, capacity, bytes)
    {
        Err(SaveError::Load(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was loaded"),
    };
    let other = small_config("[timing]\nread_us = { value = 61.0, assumed = \"test\" }");
    assert_eq!(load(&other, 1 << 20, &saved), LoadError::OtherConfig);
    assert!(matches!(
        load(&config, 2 << 20, &saved),
        LoadError::OtherCapacity { .. }
    ));
    for at in (0..saved.len()).step_by(97) {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x10;
        load(&config, 1 << 20, &damaged);
        load(&config, 1 << 20, &saved[..at]);
    }
}

/// Found by the fuzzer: numbers out of range were indices, and a mapping that contradicted
/// itself was worked on before it was checked.
#[test]
fn a_forged_state_with_a_right_checksum_is_refused_or_works() {
    // A prime, so that every field of every record is changed once.
    const STEP: usize = 41;
    let config = small_config("");
    let mut model = Model::new(&config, 1 << 20, 1).unwrap();
    churn(&mut model, 3000);
    let at = model.now();
    let (from, to) = (Sector(0), Sector(800));
    for command in [
        Command::Remap {
            from,
            to,
            sectors: 64,
        },
        Command::Discard {
            start: to,
            sectors: 16,
        },
        Command::Flush,
    ] {
        model.submit(at, &command).unwrap();
    }
    let saved = model.save().unwrap();
    let body = saved.len() - 4;
    let mut taken = 0;
    for at in (0..body).step_by(STEP) {
        for change in [0, 1, 0x80, 0xff] {
            let mut forged = saved.clone();
            forged[at] ^= change;
            let checksum = crc32c::crc32c(&forged[..body]);
            forged[body..].copy_from_slice(&checksum.to_le_bytes());
            if let Ok(model) = Model::load(&config, 1 << 20, &forged) {
                model.check().unwrap();
                taken += 1;
            }
        }
    }
    assert!(taken >= body.div_ceil(STEP), "what did not change is taken");
}

/// Total time of 10,000 accesses of 4 KiB in a region, as S4 Fig. 13 measures it.
fn dispersed(cache_bytes: u64, region_bytes: u64, write: bool) -> u64 {
    let changes =
        format!("[mapping]\ncache_bytes = {{ value = {cache_bytes}, assumed = \"test\" }}");
    let config = Config::from_preset_with(Preset::Emmc51, &changes).unwrap();
    let mut model = Model::new(&config, 2 << 30, 1).unwrap();
    let mut at = VirtualNs::ZERO;
    for start in (0..model.sectors()).step_by(1024) {
        let write = Command::Write {
            start: Sector(start),
            sectors: 1024,
            kind: PLAIN,
        };
        at = model.submit(at, &write).unwrap().done_at;
    }
    let begun = model.submit(at, &Command::Flush).unwrap().done_at;
    at = begun;
    for number in 0..10_000_u64 {
        let start = Sector(number * 2_654_435_761 % (region_bytes / 4096) * 8);
        let kind = WriteKind::Reliable;
        let command = if write {
            Command::Write {
                start,
                sectors: 8,
                kind,
            }
        } else {
            Command::Read { start, sectors: 8 }
        };
        at = model.submit(at, &command).unwrap().done_at;
    }
    at.ns_since(begun)
}

#[test]
fn dispersed_accesses_are_slower_and_a_larger_mapping_cache_postpones_it() {
    for write in [false, true] {
        let [small, large] = [16 << 10, 128 << 10].map(|cache_bytes| {
            [1 << 20, 100 << 20, 2 << 30].map(|region| dispersed(cache_bytes, region, write))
        });
        // Within a megabyte both hold all of the mapping; at 100 MB only the larger does
        // to a good part; at 2 GB neither does.
        assert!(small[0].abs_diff(large[0]) * 50 < small[0]);
        assert!(small[1] > small[0] * 13 / 10 && small[2] > small[0] * 14 / 10);
        assert!(large[1] < small[1] && large[2] > large[0] * 14 / 10);
    }
}

#[test]
fn a_remap_programs_a_fraction_of_what_a_copy_does() {
    let mut model = Model::new(&Preset::Emmc51.config().unwrap(), 256 << 20, 1).unwrap();
    let mut at = VirtualNs::ZERO;
    let write = |start, kind| Command::Write {
        start: Sector(start),
        sectors: 8192,
        kind,
    };
    at = model.submit(at, &write(0, PLAIN)).unwrap().done_at;
    at = model.submit(at, &Command::Flush).unwrap().done_at;
    model.reset_stats();
    let remap = Command::Remap {
        from: Sector(0),
        to: Sector(100_000),
        sectors: 8192,
    };
    at = model.submit(at, &remap).unwrap().done_at;
    let remapped = model.stats().flash.total().slots_programmed;
    model.reset_stats();
    model
        .submit(at, &write(200_000, WriteKind::Reliable))
        .unwrap();
    let copied = model.stats().flash.total().slots_programmed;
    // S4 Fig. 17b: 98 percent fewer flash writes.
    assert!(remapped * 50 < copied, "{remapped} against {copied}");
}

#[test]
fn sharing_pieces_programs_a_fraction_of_what_writing_them_does() {
    let model = Model::new(&Preset::Emmc51.config().unwrap(), 256 << 20, 1).unwrap();
    let mut device = Device::new(model, MemoryMedium::new());
    let piece = |number: u64| vec![number as u8 + 1; 16384];
    let mut at = VirtualNs::ZERO;
    for number in 0..200 {
        let start = Sector(number * 64);
        at = device
            .write(at, start, &piece(number), PLAIN)
            .unwrap()
            .done_at;
    }
    at = device.flush(at).unwrap().done_at;
    device.model_mut().reset_stats();
    for number in 0..200 {
        let (from, to) = (Sector(number * 64), Sector(100_000 + number * 32));
        let shared = device.share(at, from, to, &piece(number)).unwrap();
        at = shared.unwrap().done_at;
    }
    assert_eq!(device.model().shares_waiting(), 800);
    at = device.flush(at).unwrap().done_at;
    assert_eq!(device.model().shares_waiting(), 0);
    let shared = device.model().stats().flash.total().slots_programmed;
    device.model_mut().reset_stats();
    for number in 0..200 {
        let start = Sector(200_000 + number * 32);
        at = device
            .write(at, start, &piece(number), PLAIN)
            .unwrap()
            .done_at;
    }
    device.flush(at).unwrap();
    let written = device.model().stats().flash.total().slots_programmed;
    assert!(shared * 50 < written, "{shared} against {written}");
}

/// Sharing ends with the source: what shares it keeps the content.
#[test]
fn what_shares_content_keeps_it_when_the_source_is_written_or_discarded() {
    let model = Model::new(&small_config(""), 1 << 20, 1).unwrap();
    let mut device = Device::new(model, MemoryMedium::new());
    let page = |byte| [byte; 4096];
    let mut at = VirtualNs::ZERO;
    for (number, byte) in [(0, 1), (1, 2)] {
        at = device
            .write(at, Sector(number * 8), &page(byte), PLAIN)
            .unwrap()
            .done_at;
    }
    assert_eq!(
        device.share(at, Sector(0), Sector(800), &page(1)).unwrap(),
        None,
        "it is not in the cells yet"
    );
    at = device.flush(at).unwrap().done_at;
    for (number, byte) in [(0, 1), (1, 2)] {
        let (from, to) = (Sector(number * 8), Sector(800 + number * 8));
        let shared = device.share(at, from, to, &page(byte)).unwrap();
        at = shared.unwrap().done_at;
    }
    let lost = device.cut(at, Keep::None).unwrap();
    assert_eq!((lost.lost_pages, lost.kept_pages), (2, 0));
    at = device.power_on(lost.at);
    for (number, byte) in [(0, 1), (1, 2)] {
        let (from, to) = (Sector(number * 8), Sector(800 + number * 8));
        let shared = device.share(at, from, to, &page(byte)).unwrap();
        at = shared.unwrap().done_at;
    }
    at = device
        .write(at, Sector(0), &page(9), PLAIN)
        .unwrap()
        .done_at;
    at = device.discard(at, Sector(8), 8).unwrap().done_at;
    at = device.flush(at).unwrap().done_at;
    let cut = device.cut(at, Keep::None).unwrap();
    at = device.power_on(cut.at);
    device.model().check().unwrap();
    for (page, byte) in [(0, 9), (1, 0), (100, 1), (101, 2)] {
        let mut found = [0; 4096];
        at = device
            .read(at, Sector(page * 8), &mut found)
            .unwrap()
            .done_at;
        assert_eq!(found, [byte; 4096], "page {page}");
        let is_mapped = device.model().is_mapped(Lpn(page as u32));
        assert_eq!(is_mapped, byte != 0, "page {page}");
    }
}

/// Found by the speed measurement: data had taken the blocks that mapping pages needed,
/// and garbage collection could not write the mapping of what it moved.
#[test]
fn random_writes_over_a_full_device_leave_blocks_for_the_mapping() {
    for preset in Preset::ALL {
        let mut model = Model::new(&preset.config().unwrap(), 2 << 30, 1).unwrap();
        for start in (0..model.sectors()).step_by(1024) {
            let write = Command::Write {
                start: Sector(start),
                sectors: 1024,
                kind: PLAIN,
            };
            model.submit(VirtualNs::ZERO, &write).unwrap();
        }
        churn(&mut model, 150_000);
        model.check().unwrap();
    }
}

/// A full eMMC that levels wear early, after `writes` commands of `sectors` sectors, the
/// number of each put to its place by `place`.
fn worn(spread_max_erases: u32, writes: u64, sectors: u32, place: impl Fn(u64) -> u64) -> Stats {
    let changes = format!(
        "[wear]\nspread_max_erases = {{ value = {spread_max_erases}, assumed = \"test\" }}\n\
         [mapping]\ncache_bytes = {{ value = 16384, assumed = \"test\" }}"
    );
    let config = Config::from_preset_with(Preset::Emmc51, &changes).unwrap();
    let mut model = Model::new(&config, 256 << 20, 1).unwrap();
    let mut at = VirtualNs::ZERO;
    let kind = PLAIN;
    let write = |start, sectors| Command::Write {
        start: Sector(start),
        sectors,
        kind,
    };
    for start in (0..model.sectors()).step_by(1024) {
        at = model.submit(at, &write(start, 1024)).unwrap().done_at;
    }
    for number in 0..writes {
        at = model
            .submit(at, &write(place(number), sectors))
            .unwrap()
            .done_at;
    }
    model.check().unwrap();
    model.stats()
}

#[test]
fn levelling_wears_blocks_whose_content_never_changes() {
    let hot = |number| number % 8 * 1024;
    let (without, with) = (worn(0, 80_000, 1024, hot), worn(5, 80_000, 1024, hot));
    assert_eq!(without.flash.levelling.erases, 0);
    // The SLC cache has no part in this: its blocks are never erased.
    let (without, with) = (without.wear, with.wear);
    assert!(
        with.max_erases * 3 < without.max_erases * 2,
        "{with:?} against {without:?}"
    );
}

/// Found by the seeds of the validation: levelling a block wrote so many mapping pages that
/// their erases called for the next levelling, and the device did little else.
#[test]
fn levelling_does_not_call_for_itself() {
    let pages = (256 << 20) / 4096;
    let random = |number: u64| number * 2_654_435_761 % pages * 8;
    let stats = worn(1, 2 * pages, 8, random);
    let (levelling, total) = (stats.flash.levelling.erases, stats.flash.total().erases);
    assert!(levelling > 0);
    assert!(levelling * 16 <= total, "{levelling} of {total} erases");
}

/// What `docs/FLASH-DEVICE.md` says of the superblock of ext4, which is two sectors of a page.
#[test]
fn two_sectors_of_a_page_tear_in_a_plain_write_and_not_in_a_reliable_one() {
    let after_a_cut = |kind: WriteKind, seed: u64| {
        let model = Model::new(&Preset::Emmc51.config().unwrap(), 256 << 20, 1).unwrap();
        let mut device = Device::new(model, MemoryMedium::new());
        let written = device.write(VirtualNs::ZERO, Sector(0), &[1; 4096], PLAIN);
        let at = device.flush(written.unwrap().done_at).unwrap().done_at;
        device.write(at, Sector(0), &[2; 4096], kind).unwrap();
        // Before a reliable write has ended.
        device.cut(at, Keep::Random { seed }).unwrap();
        let at = device.power_on(at);
        let mut two = [0; 1024];
        device.read(at, Sector(2), &mut two).unwrap();
        two[0] != two[512]
    };
    let torn = |kind| (0..60).filter(|&seed| after_a_cut(kind, seed)).count();
    assert!(torn(PLAIN) > 0);
    assert_eq!(torn(WriteKind::Reliable), 0);
}
