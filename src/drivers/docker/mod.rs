//! Docker through its CLI: one file for each external verb.

pub mod cli;
pub mod compose;
mod fault;
pub mod images;
pub mod inspect;
mod orphans;
pub mod probe;
pub mod pull;
pub mod up;
