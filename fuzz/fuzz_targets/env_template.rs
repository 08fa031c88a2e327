#![no_main]
//! See `env_template` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::env_template(bytes));
