//! What the suites share. Each suite uses a part of it; what only looks at the core has nothing else.

#[cfg(feature = "sandbox")]
pub mod driver;
#[cfg(feature = "sandbox")]
pub mod forms;
#[cfg(feature = "sandbox")]
pub mod openapi;
#[cfg(feature = "sandbox")]
pub mod rig;
pub mod root;
pub mod script;
pub mod stack_env;
#[cfg(feature = "sandbox")]
pub mod stand;
