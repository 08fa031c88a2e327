//! Faults on the wire: whole ticks of the built binary, with a proxy on the way to each server.
//!
//! Invariant: what is judged is what a person sees of a tick: exit status, code, journal, state directory and containers,
//! and what the servers got to hear.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

#[path = "wire/boxes.rs"]
mod boxes;
#[path = "wire/elsewhere.rs"]
mod elsewhere;
#[path = "wire/faults.rs"]
mod faults;
#[path = "wire/memory.rs"]
mod memory;
#[path = "wire/names.rs"]
mod names;
#[path = "wire/proxy.rs"]
mod proxy;
#[path = "wire/retries.rs"]
mod retries;
#[path = "wire/sigterm.rs"]
mod sigterm;
#[path = "wire/table.rs"]
mod table;
