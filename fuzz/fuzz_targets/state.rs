#![no_main]
//! See `state` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::state(bytes));
