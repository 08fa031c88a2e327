//! The verdict on a release: healthy, failing, or not known yet.
//!
//! Invariant: healthy is said only when every container of every service that the release is made of is fine at
//! the same look; whatever has failed once in this tick stays failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::effects::Stamp;
use crate::effects::containers::{Container, ContainerState, Health, RestartPolicy};
use crate::effects::model::Service;

/// How a container was at an earlier look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its `StartedAt`, in Docker's words.
    pub started_at: String,
    /// Its `RestartCount`.
    pub restart_count: u64,
    /// When this agent first saw it run with that `StartedAt`; none before `up`.
    pub since: Option<Stamp>,
}

/// The earlier looks, by container id.
pub type Baseline = BTreeMap<String, Seen>;

/// What keeps a service from being fine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The service.
    pub service: String,
    /// Its container, if there is one: the id.
    pub id: Option<String>,
    /// What is wrong, or waited for.
    pub why: String,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Healthy,
    /// Too early to say: what is waited for.
    Waiting(Vec<Finding>),
    /// It failed.
    Failing(Vec<Finding>),
}

/// What was there before `up`: restarts from then on count, and a start that `up` makes does not.
pub fn before_up(containers: &[Container]) -> Baseline {
    let seen = |c: &Container| Seen { started_at: c.started_at.clone(), restart_count: c.restart_count, since: None };
    containers.iter().map(|c| (c.id.clone(), seen(c))).collect()
}

enum Fine {
    Yes,
    NotYet(String),
    No(String),
}

fn restarts_after(policy: RestartPolicy, exit_code: i64) -> bool {
    match policy {
        RestartPolicy::No => false,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Always | RestartPolicy::UnlessStopped => true,
    }
}

fn judge_one(c: &Container, seen: &Seen, now: Stamp, stable_s: u64) -> Fine {
    let error = if c.error.as_str().is_empty() { String::new() } else { format!(": {}", c.error) };
    match c.state {
        ContainerState::Dead => Fine::No(format!("dead{error}")),
        ContainerState::Restarting => Fine::No(format!("restarting after exit {}{error}", c.exit_code)),
        ContainerState::Created if error.is_empty() => Fine::NotYet("created, not started".to_owned()),
        ContainerState::Created => Fine::No(format!("could not be started{error}")),
        ContainerState::Exited if c.exit_code != 0 => Fine::No(format!("exited with {}{error}", c.exit_code)),
        ContainerState::Exited if restarts_after(c.restart_policy, c.exit_code) => {
            Fine::No("exited with 0, though it is to be kept running".to_owned())
        }
        ContainerState::Exited => Fine::Yes,
        ContainerState::Paused => Fine::NotYet("paused".to_owned()),
        ContainerState::Removing => Fine::NotYet("being removed".to_owned()),
        ContainerState::Running => match c.health {
            Some(Health::Unhealthy) => Fine::No("unhealthy".to_owned()),
            Some(Health::Starting) => Fine::NotYet("health: starting".to_owned()),
            Some(Health::Healthy) => Fine::Yes,
            None => {
                let ran_ms = seen.since.map_or(0, |since| now.since_ms(since));
                let stable_ms = i64::try_from(stable_s).unwrap_or(i64::MAX / 1000).saturating_mul(1000);
                if ran_ms >= stable_ms {
                    Fine::Yes
                } else {
                    Fine::NotYet(format!("running, for {stable_s} s yet to be seen"))
                }
            }
        },
    }
}

/// Judges one look at the containers, and remembers it in `baseline`.
///
/// `services` are the services the release is made of.
pub fn judge(
    services: &BTreeMap<String, Service>,
    containers: &[Container],
    baseline: &mut Baseline,
    now: Stamp,
    stable_s: u64,
) -> Verdict {
    let mut failing = Vec::new();
    let mut waiting = Vec::new();
    for (service, Service { scale, .. }) in services {
        let mut mine: Vec<&Container> = containers.iter().filter(|c| c.service == *service).collect();
        mine.sort_by(|a, b| a.name.cmp(&b.name));
        if mine.len() < usize::try_from(*scale).unwrap_or(usize::MAX) {
            let why = format!("{} of {scale} containers", mine.len());
            waiting.push(Finding { service: service.clone(), id: None, why });
        }
        for c in mine {
            let finding = |why: String| Finding { service: service.clone(), id: Some(c.id.clone()), why };
            let fresh = Seen { started_at: c.started_at.clone(), restart_count: 0, since: None };
            let seen = baseline.entry(c.id.clone()).or_insert(fresh);
            let fine = if c.restart_count > seen.restart_count {
                Fine::No(format!("restarted by itself, last exit {}", c.exit_code))
            } else if seen.since.is_some() && c.started_at != seen.started_at {
                Fine::No("was started again while it was watched".to_owned())
            } else {
                if seen.since.is_none() && c.state == ContainerState::Running {
                    seen.started_at = c.started_at.clone();
                    seen.since = Some(now);
                }
                judge_one(c, seen, now, stable_s)
            };
            match fine {
                Fine::Yes => {}
                Fine::NotYet(why) => waiting.push(finding(why)),
                Fine::No(why) => failing.push(finding(why)),
            }
        }
    }
    if !failing.is_empty() {
        Verdict::Failing(failing)
    } else if waiting.is_empty() {
        Verdict::Healthy
    } else {
        Verdict::Waiting(waiting)
    }
}
