//! An outcome as tenancy is told: body of `POST /v1/envs/{env_id}/reports`.
//!
//! Invariant: a report is complete when it is made; delivering it later changes nothing in it, and
//! `report_id` makes every delivery after the first a repetition.

use serde::{Deserialize, Serialize};

use super::Sha;
use super::Stamp;
use super::containers::ContainerState;
use super::failure::Code;

/// How a deploy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The release runs and is healthy.
    Applied,
    /// It was refused or failed.
    Failed,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Idempotency key, 32 hex digits.
    pub report_id: String,
    /// How it ended.
    pub result: Outcome,
    /// Which bundle.
    pub sha: Sha,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What a person should know, at most 900 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The stage that it ended in, e.g. `pull`.
    pub phase: String,
    /// The how-manieth attempt at this bundle, from 1.
    pub attempt: u32,
    /// The last good release was brought back and is healthy.
    pub rolled_back: bool,
    /// From check-in to outcome.
    pub duration_ms: u64,
    /// When it ended. On the wire an RFC 3339 time in UTC.
    pub at: Stamp,
    /// This agent's version.
    pub agent_version: String,
    /// The project's containers as last seen.
    pub containers: Vec<ReportedContainer>,
}

/// One container in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedContainer {
    /// Its service.
    pub service: String,
    /// Its name.
    pub name: String,
    /// Its state, in Docker's words.
    pub state: ContainerState,
    /// Its health, in Docker's words; none without a healthcheck.
    pub health: Option<super::containers::Health>,
    /// Its exit code; none while it runs.
    pub exit_code: Option<i64>,
}
