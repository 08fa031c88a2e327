//! What lies in the state directory beside `state.json`, as the machine is told at the start of a tick.
//!
//! Invariant: facts only; what a file holds is in the vault.

use serde::{Deserialize, Serialize};

use super::Sha;

/// What was found on the box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalFacts {
    /// There is a token in `token.json`.
    pub has_token: bool,
    /// There is a leased grant in `grant.json`.
    pub has_grant: bool,
    /// There is a bootstrap grant in `bootstrap.jwt`.
    pub has_bootstrap: bool,
    /// The release folders, in order of their shas.
    pub releases: Vec<Sha>,
    /// The release that `current` points to, if its folder is there.
    pub current: Option<Sha>,
    /// The ids of the reports that wait, oldest first (by `at`, then id).
    pub outbox: Vec<String>,
    /// There is a `docker/config.json`.
    pub docker_config: bool,
}
