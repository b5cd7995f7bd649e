#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_daemon::fuzzing::run("proxy_protocol", data));
