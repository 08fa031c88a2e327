#![no_main]
//! See `config` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::config(bytes));
