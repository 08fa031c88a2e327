//! `meta.json`: what a bundle says of itself.

use serde::{Deserialize, Serialize};

use super::OnUnhealthy;

/// What a bundle says of itself; unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The environment it was rendered for.
    pub env_id: String,
    /// Counts up with every rendering.
    #[serde(default)]
    pub generation: Option<i64>,
    /// When it was rendered, for people.
    #[serde(default)]
    pub rendered_at: Option<String>,
    /// What it asks of the agent.
    #[serde(default)]
    pub agent: AgentAsks,
}

/// What a bundle asks of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAsks {
    /// It may replace a newer one.
    #[serde(default)]
    pub allow_rollback: bool,
    /// The oldest agent that may deploy it, e.g. `0.1.7`.
    #[serde(default)]
    pub min_version: Option<String>,
    /// Overrides the configuration.
    #[serde(default)]
    pub on_unhealthy: Option<OnUnhealthy>,
    /// Overrides the configuration (seconds, ≥ 1).
    #[serde(default)]
    pub healthy_timeout_s: Option<u64>,
}
/// tmp
pub fn version_at_least(have: &str, min: &str) -> Result<bool, super::failure::Refusal> {
    Ok(have >= min)
}
