//! The HTTP drivers against servers that misbehave in every way that was seen in the field.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so at once")]

mod http;
mod openbao;
mod real_openbao;
mod support;
mod tenancy;
mod tls;
