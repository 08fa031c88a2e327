//! The HTTP drivers against servers that misbehave in every way that was seen in the field.

mod http;
mod openbao;
mod real_openbao;
mod support;
mod tenancy;
mod tls;
