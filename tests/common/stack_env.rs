//! Where the real stack is, as `tests/stack/up.sh` wrote it down.
//!
//! Invariant: a suite that needs the stack and does not find it fails; it is left out only by `STACK=off`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The stack's `env` file, or `None` when it is switched off on purpose.
pub fn stack() -> Option<BTreeMap<String, String>> {
    if std::env::var("STACK").is_ok_and(|stack| stack == "off") {
        eprintln!("STACK=off: the real stack's tests are left out");
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
