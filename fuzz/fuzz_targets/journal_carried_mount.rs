#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (mobifs_fuzzing::JOURNAL_CARRIED_MOUNT.run)(input);
});
