//! What lies on the box's disk when a tick begins, without a secret in it.

use serde::{Deserialize, Serialize};

use super::state::TokenSource;
use super::{Sha, Stamp};

/// What the state directory holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalFacts {
    /// There is a `token.json`, from this source.
    pub token: Option<TokenSource>,
    /// There is a `grant.json`.
    pub grant: Option<GrantFacts>,
    /// There is a `bootstrap.jwt`.
    pub bootstrap: bool,
    /// The releases on disk that are complete: with their secrets.
    pub releases: Vec<Sha>,
    /// Where `current` points.
    pub current: Option<Sha>,
    /// The reports that wait, oldest first.
    pub outbox: Vec<String>,
    /// No space is left where the state is kept.
    pub disk_full: bool,
}

/// What is known of a saved grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantFacts {
    /// When it ends, as it says itself.
    pub expires_at: Option<Stamp>,
    /// The role it is for, when tenancy named one.
    pub role: Option<String>,
}
