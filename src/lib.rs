//! `monky-deployd`: the deploy agent of one box that runs Docker Compose.
//!
//! A pure core ([`effects`] and the state machine) decides; [`drivers`] carry out and tell what happened.

pub mod cli;
pub mod config;
pub mod drivers;
pub mod effects;
pub mod fsm;
#[cfg(feature = "sandbox")]
pub mod sandbox;
