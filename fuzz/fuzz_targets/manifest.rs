#![no_main]
//! See `manifest` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::manifest(bytes));
