//! Drivers carry out effects and tell what happened; they decide nothing.
//!
//! Invariant: every effect has a deadline, and whatever text comes back went through the vault.

pub mod clock;
pub mod docker;
pub mod dry_run;
pub mod http;
pub mod openbao;
pub mod record;
pub mod replay;
pub mod run_loop;
pub mod store;
pub mod tenancy;
pub mod transport;
pub mod vault;
pub mod world;

use crate::effects::{Effect, Event, Stamp};

/// Carries out effects.
pub trait Driver {
    /// Carries out effects that are independent of each other, maybe at the same time. One answer each, in their order.
    fn perform(&self, effects: &[Effect]) -> Vec<Event>;
    /// The time.
    fn now(&self) -> Stamp;
    /// Someone asked the process to end.
    fn cancelled(&self) -> bool;
}
