//! What the suites share. Each suite uses a part of it.
#![expect(dead_code, reason = "each suite uses a part of what is shared")]

pub mod script;
