#![no_main]
//! See `registry_auth` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::registry_auth(bytes));
