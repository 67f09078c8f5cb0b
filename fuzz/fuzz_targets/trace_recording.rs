#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    (mobifs_fuzzing::TRACE_RECORDING.run)(input);
});
