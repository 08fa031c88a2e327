//! The built binary against the real stack: real engine, both Compose versions, real registry, real OpenBao.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

#[path = "stack/bundles.rs"]
mod bundles;
#[path = "stack/canary.rs"]
mod canary;
#[path = "stack/check.rs"]
mod check;
#[path = "stack/crash.rs"]
mod crash;
#[path = "stack/deploy.rs"]
mod deploy;
#[path = "stack/health.rs"]
mod health;
#[path = "stack/mounts.rs"]
mod mounts;
#[path = "stack/pull.rs"]
mod pull;
#[path = "stack/refusals.rs"]
mod refusals;
#[path = "stack/ticks.rs"]
mod ticks;
#[path = "stack/token.rs"]
mod token;
