#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (mobifs_fuzzing::JOURNAL_COPIED_MOUNT.run)(input);
});
