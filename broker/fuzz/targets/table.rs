#![no_main]
libfuzzer_sys::fuzz_target!(|octets: &[u8]| understudy_fuzz::table(octets));
