//! The agent is killed with -9, and so is the engine, wherever it hurts; the next ticks put everything right.
//!
//! Invariant: a point counts only if the kill found its victim alive and at the moment that the point names, and each
//! suite asserts how many of them it made. What is `ignored` here takes minutes: `make soak` runs it, with the binary
//! that is shipped and on an engine of its own, and fails without either.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

#[path = "kill/agent.rs"]
mod agent;
#[path = "kill/engine.rs"]
mod engine;
#[path = "kill/gate.rs"]
mod gate;
#[path = "kill/site.rs"]
mod site;
#[path = "kill/watch.rs"]
mod watch;
