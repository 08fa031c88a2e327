//! Drivers carry out effects and tell what happened; they decide nothing.

pub mod clock;
pub mod docker;
pub mod http;
pub mod openbao;
pub mod run_loop;
pub mod store;
pub mod tenancy;
pub mod transport;
pub mod vault;
