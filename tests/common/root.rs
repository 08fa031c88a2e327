//! Root, which some tests need to mount, to give files away, or to be somebody else.
//!
//! Invariant: as in `stack_env`: without root such a test fails, unless it is left out on purpose.

use super::stack_env::left_out;

/// Whether this test runs as root; `false` only when what takes root is left out on purpose.
pub fn root() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(left_out("what takes root is"), "this takes root: run it as root, or leave it out with STACK=off");
    false
}
