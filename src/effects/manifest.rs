//! `manifest.json`: the secrets that a bundle names.
//!
//! Invariant: an [`Entry`] obeys every rule of the format; there is no other way to make a [`Manifest`] than to parse one.

use serde::{Deserialize, Serialize};

use super::ValueUse;

/// A checked manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its entries, in order.
    pub entries: Vec<Entry>,
}

/// One secret value that the bundle needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What for.
    pub usage: ValueUse,
    /// `<kv_mount>/<env_id>/…`.
    pub path: String,
    /// The field of the secret.
    pub key: String,
    /// The pinned version.
    pub version: Option<u64>,
}
