//! The configuration as the machine sees it: checked, complete, and free of secrets (there are none in it).

use serde::{Deserialize, Serialize};

use super::policy::Policy;

/// What to do with a release that does not become healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnhealthy {
    /// Leave it as it is, for someone to look at.
    #[default]
    Keep,
    /// Bring the last good release back up.
    Rollback,
}

/// What decisions depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// This agent's version.
    pub agent_version: String,
    /// The environment of this box.
    pub env_id: String,
    /// Where the box is, for people; may be empty.
    pub site: String,
    /// The role to log in as.
    pub role: String,
    /// The KV v2 mount that secrets must be below.
    pub kv_mount: String,
    /// A token with less life than this (seconds) is renewed or replaced.
    pub renew_below_s: u64,
    /// The Compose project.
    pub project: String,
    /// How long `up` and the wait for health may take together (seconds).
    pub healthy_timeout_s: u64,
    /// How long a pull may take (seconds).
    pub pull_timeout_s: u64,
    /// How long a service without a healthcheck must keep running (seconds).
    pub stable_s: u64,
    /// What to do with a release that does not become healthy.
    pub on_unhealthy: OnUnhealthy,
    /// How many releases stay on disk.
    pub keep_releases: usize,
    /// Being offline is normal for this box.
    pub laptop_mode: bool,
    /// What compose files may ask of the box. A recording that is older has none.
    #[serde(default)]
    pub policy: Policy,
}
