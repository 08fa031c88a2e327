//! The project's containers, read from `docker inspect`.

use serde::{Deserialize, Serialize};

use super::{Scrubbed, Stamp};

/// Docker's word for what a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerState {
    /// Made, never started.
    Created,
    /// Its process runs.
    Running,
    /// Frozen.
    Paused,
    /// Between a crash and the next start.
    Restarting,
    /// Being removed.
    Removing,
    /// Its process ended.
    Exited,
    /// Half removed.
    Dead,
}

/// Docker's word for a healthcheck's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No verdict yet.
    Starting,
    /// The check passes.
    Healthy,
    /// It failed too often.
    Unhealthy,
}

/// When Docker starts a container again by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// After an exit that is not 0.
    OnFailure,
    /// After any exit.
    Always,
    /// After any exit, unless a person stopped it.
    UnlessStopped,
}

/// One container of the project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Docker's id, whole.
    pub id: String,
    /// Its name, without the leading slash.
    pub name: String,
    /// Its service.
    pub service: String,
    /// The id of its image.
    pub image_id: String,
    /// What it does.
    pub state: ContainerState,
    /// Its healthcheck's verdict; none without a healthcheck.
    pub health: Option<Health>,
    /// Its exit code, as inspect tells it (0 while it runs).
    pub exit_code: i64,
    /// Why it could not be started; empty if nothing was said.
    pub error: Scrubbed,
    /// How often Docker started it again.
    pub restart_count: u64,
    /// When Docker starts it again by itself.
    pub restart_policy: RestartPolicy,
    /// When it was started, in Docker's own words: to be compared, not computed with.
    pub started_at: String,
    /// The same, to the millisecond; none if never.
    pub started: Option<Stamp>,
}
