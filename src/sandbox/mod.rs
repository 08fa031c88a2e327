//! Stand-ins for the world (tenancy, OpenBao, Docker), for `demo` and for tests. Not in packages.

pub mod demo;
pub mod docker;
pub mod grants;
pub mod http;
pub mod mishaps;
pub mod openbao;
pub mod tenancy;
