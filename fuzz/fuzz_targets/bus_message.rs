#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (mobifs_fuzzing::BUS_MESSAGE.run)(input);
});
