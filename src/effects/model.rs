//! The resolved compose file: what `docker compose config --format json --no-interpolate` says, as far as decisions need it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A resolved project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// The services that `up` would start, by name.
    pub services: BTreeMap<String, Service>,
    /// What is allowed but not wise, for the journal.
    pub warnings: Vec<String>,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its image, variables not filled in.
    pub image: Option<String>,
    /// Digest of the bundle content that it mounts; none if it mounts none.
    pub mounts: Option<String>,
    /// The bundle paths that it mounts, in order.
    pub mounted: Vec<String>,
    /// How many containers it should have.
    pub scale: u32,
}
