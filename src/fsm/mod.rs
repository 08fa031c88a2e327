//! The machine that decides. Pure: it gets events, and answers with effects.
//!
//! ```text
//!          Boot          Input {now, answers, event}
//!            │                  │
//!            ▼                  ▼
//!   ┌─────────────────────────────────────────────────────────────────────────┐
//!   │ Checkin → Bundle → Token ⇄ Secrets → Pull → Up ⇄ Healthy → Report → Done │   Machine::step: total, pure
//!   └─────────────────────────────────────────────────────────────────────────┘
//!            │                  │
//!            ▼                  ▼
//!      effects to do      notes for the journal
//! ```
//!
//! Every stage may also end in `Report` (see [`edges`], THE table). A driver carries out the effects and gives each
//! answer back as an event. The same boot and the same inputs give the same effects, byte for byte, on any machine.
//!
//! Invariant: no clock, no randomness, no files, no network, no environment, no secret value.
//!
//! A stage that leads where the table does not let it does not compile:
//!
//! ```compile_fail
//! use monky_deployd::fsm::{edges::Leads, stages::{Healthy, Pull}};
//! fn leads<S: Leads<T>, T: monky_deployd::fsm::edges::Stage>() {}
//! leads::<Pull, Healthy>(); // no edge Pull -> Healthy
//! ```
//!
//! and one that leads where the table lets it does:
//!
//! ```
//! use monky_deployd::fsm::{edges::Leads, stages::{Pull, Up}};
//! fn leads<S: Leads<T>, T: monky_deployd::fsm::edges::Stage>() {}
//! leads::<Pull, Up>();
//! ```

#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

pub mod edges;
pub mod event;
pub mod faults;
pub mod flow;
pub mod machine;
pub mod retry;
pub mod stages;
pub mod verdict;

pub use edges::{EDGES, Edge, StageName};
pub use event::{Boot, Input, Level, Note, Options};
pub use machine::{Machine, Transition};
