//! `monky-deployd`: the deploy agent of one box that runs Docker Compose.
//!
//! A pure core ([`fsm`]) decides and asks for [`effects`]; [`drivers`] carry them out and tell what happened.

pub mod effects;
