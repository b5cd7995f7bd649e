#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_redis::fuzzing::reply(data));
