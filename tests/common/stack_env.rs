//! Where the real stack is, as `tests/stack/up.sh` wrote it down.
//!
//! Invariant: a test that does not find what it needs fails; it is left out only by `STACK=off`, which is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Whether what this machine may not be able to is left out on purpose. Said, if so.
pub fn left_out(what: &str) -> bool {
    let off = std::env::var("STACK").is_ok_and(|stack| stack == "off");
    if off {
        eprintln!("STACK=off: {what} left out");
    }
    off
}

/// The stack's `env` file, or `None` when it is switched off on purpose.
pub fn stack() -> Option<BTreeMap<String, String>> {
    if left_out("a test on the real stack is") {
        return None;
    }
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/stack/env");
    let file = std::env::var_os("STACK_ENV").map_or(default, PathBuf::from);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{}: {error}; start the real stack with `make stack-up`, or leave it out with STACK=off", file.display())
    });
    let pair = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.to_owned(), value.trim_matches('\'').to_owned()))
    };
    Some(text.lines().filter_map(pair).collect())
}
