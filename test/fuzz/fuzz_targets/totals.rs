#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (mobifs_fuzz_targets::TOTALS.run)(input);
});
