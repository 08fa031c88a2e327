#![no_main]
//! See `compose_model` in targets.rs.
#[path = "../targets.rs"]
mod targets;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::compose_model(bytes));
