//! What the suites share. Each suite uses a part of it.

pub mod driver;
pub mod forms;
pub mod openapi;
#[cfg(feature = "sandbox")]
pub mod rig;
pub mod script;
#[cfg(feature = "sandbox")]
pub mod stand;
