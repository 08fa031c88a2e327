//! What becomes of each secret of a bundle.
//!
//! Invariant: only what the manifest and the applied release tell; no secret is read for a plan.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::effects::ValueUse;
use crate::effects::manifest::Manifest;
use crate::effects::state::Applied;

/// What would become of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum SecretChange {
    /// The applied release does not use it.
    Added {
        /// The pinned version; none: the latest, which only a real tick reads.
        version: Option<u64>,
    },
    /// Both use it.
    Kept {
        /// The version of the applied release.
        version: u64,
    },
    /// Another version is pinned.
    Changed {
        /// The version of the applied release.
        from: u64,
        /// The pinned one.
        to: u64,
    },
    /// Both use it, not pinned: a newer version would be seen only by reading it.
    Latest {
        /// The version of the applied release.
        applied: u64,
    },
    /// The bundle does not use it any more.
    Removed,
}

/// What would become of each secret.
pub(super) fn of(applied: Option<&Applied>, manifest: &Manifest) -> BTreeMap<String, SecretChange> {
    let before = applied.map(|applied| applied.secrets.clone()).unwrap_or_default();
    let mut changes = BTreeMap::new();
    for entry in &manifest.entries {
        let name = match &entry.usage {
            ValueUse::Env(name) => name.clone(),
            ValueUse::RegistryAuth => "registry credential".to_owned(),
        };
        let change = match (before.get(&entry.path), entry.version) {
            (None, version) => SecretChange::Added { version },
            (Some(from), Some(to)) if *from != to => SecretChange::Changed { from: *from, to },
            (Some(version), Some(_)) => SecretChange::Kept { version: *version },
            (Some(applied), None) => SecretChange::Latest { applied: *applied },
        };
        changes.insert(name, change);
    }
    let used: BTreeSet<&String> = manifest.entries.iter().map(|entry| &entry.path).collect();
    for path in before.keys().filter(|path| !used.contains(path)) {
        changes.insert(path.clone(), SecretChange::Removed);
    }
    changes
}
