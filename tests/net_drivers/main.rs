//! The HTTP drivers against servers that misbehave in every way that was seen in the field.

mod http;
mod openbao;
mod real_openbao;
#[path = "../common/stack_env.rs"]
mod stack_env;
mod support;
mod tenancy;
mod tls;
