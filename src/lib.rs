//! `monky-deployd`: the deploy agent of one box that runs Docker Compose.
//!
//! A pure core ([`effects`] and the state machine) decides; [`drivers`] carry out and tell what happened.

// What may not panic; tests may.
#![cfg_attr(
    not(test),
    warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::string_slice, clippy::unwrap_used)
)]

pub mod cli;
pub mod config;
pub mod drivers;
pub mod effects;
pub mod fsm;
pub mod plain;
#[cfg(feature = "sandbox")]
pub mod sandbox;
