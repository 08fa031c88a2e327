//! The pure core: the machine and the effects, from their own files.

#[path = "../../src/effects/mod.rs"]
pub mod effects;
#[path = "../../src/fsm/mod.rs"]
pub mod fsm;
