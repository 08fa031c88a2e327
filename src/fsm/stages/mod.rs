//! The stages, one file each: what is true in it, what it awaits, and where it leads.

mod bundle;
mod checkin;
mod conclusion;
mod healthy;
mod pull;
mod report;
mod secrets;
mod settle;
mod token;
mod up;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use bundle::{Bundle, COMPOSE_MIN};
pub use checkin::{Checkin, boot, cause};
pub use conclusion::{Conclusion, Done, Exit};
pub use healthy::Healthy;
pub use pull::{Pull, PulledProof};
pub use report::Report;
pub use secrets::Secrets;
pub use token::{Purpose, Token};
pub use up::Up;

use crate::effects::manifest::{Entry, Manifest};
use crate::effects::model::{Closed, Service};
use crate::effects::state::{Cause, FailedDeploy, Goal, LastError};
use crate::effects::{OnUnhealthy, Sha, Stamp, ValueUse};

use super::faults::Failure;

/// A deploy that was decided on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Of this bundle.
    pub sha: Sha,
    /// The how-manieth, from 1.
    pub number: u32,
    /// Why.
    pub cause: Cause,
    /// When its tick began.
    pub since: Stamp,
}

impl Attempt {
    fn failed(&self, failure: &Failure, now: Stamp) -> FailedDeploy {
        FailedDeploy {
            sha: self.sha.clone(),
            attempt: self.number,
            cause: self.cause,
            since: self.since,
            error: LastError {
                code: failure.code,
                phase: failure.phase.as_str().to_owned(),
                detail: failure.detail.clone(),
                at: now,
            },
        }
    }

    /// The attempt that a goal is about: the failed one, while it is rolled back.
    fn of(goal: &Goal) -> Attempt {
        match &goal.instead_of {
            Some(failed) => {
                Attempt { sha: failed.sha.clone(), number: failed.attempt, cause: failed.cause, since: failed.since }
            }
            None => Attempt { sha: goal.sha.clone(), number: goal.attempt, cause: goal.cause, since: goal.since },
        }
    }
}

/// An accepted bundle on its way to a complete release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deploy {
    /// The attempt.
    pub attempt: Attempt,
    /// Its generation.
    pub generation: Option<i64>,
    /// The secrets it names.
    pub manifest: Manifest,
    /// The services it is made of.
    pub services: BTreeMap<String, Service>,
    /// The mounts of what Compose reads of the release: they become read-only.
    #[serde(default)]
    pub closed: BTreeMap<String, Vec<Closed>>,
    /// A variable decides where something is mounted from.
    #[serde(default)]
    pub decided: bool,
    /// What to do if it does not become healthy.
    pub on_unhealthy: OnUnhealthy,
    /// How long `up` and the wait for health may take together (seconds).
    pub healthy_timeout_s: u64,
}

impl Deploy {
    /// Each service's label: the digest of the content that it mounts. A value in a mounted file counts by its secret's
    /// version, since Compose would not see it change.
    fn labels(&self, versions: &BTreeMap<String, u64>) -> Vec<(String, String)> {
        let version_of = |name: &String| {
            let given = |entry: &&Entry| matches!(&entry.usage, ValueUse::Env(var) if var == name);
            let entry = self.manifest.entries.iter().find(given)?;
            Some(format!("{name} {}\n", versions.get(&entry.path)?))
        };
        let label = |service: &Service| {
            let values = service.mounted_variables.iter().filter_map(version_of);
            let values: String = values.collect();
            let mounts = service.mounts.clone()?;
            Some(if values.is_empty() { mounts } else { Sha::of(format!("{mounts}\n{values}").as_bytes()).into() })
        };
        self.services.iter().filter_map(|(name, service)| Some((name.clone(), label(service)?))).collect()
    }

    fn goal(self, secrets: BTreeMap<String, u64>) -> Goal {
        Goal {
            sha: self.attempt.sha,
            generation: self.generation,
            attempt: self.attempt.number,
            cause: self.attempt.cause,
            since: self.attempt.since,
            services: self.services,
            secrets,
            on_unhealthy: self.on_unhealthy,
            healthy_timeout_s: self.healthy_timeout_s,
            instead_of: None,
        }
    }
}

/// Takes the answer that this step awaits out of an event, or refuses the event.
macro_rules! answer {
    ($flow:ident, $event:ident, $ask:ty) => {
        match <$ask as crate::effects::Ask>::answer($event) {
            Ok(answer) => answer,
            Err(other) => return $flow.unexpected(&other),
        }
    };
}
pub(super) use answer;
