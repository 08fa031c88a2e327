//! Bundle: awaits the bundle and everything that may refuse it.
//!
//! Invariant: whatever is refused is refused here, before a lease is asked for and before anything that runs is touched.

use serde::{Deserialize, Serialize};

use super::{Attempt, Deploy, Purpose, Report, Token, answer};
use crate::effects::failure::{Code, Refusal};
use crate::effects::meta::{Meta, version_at_least};
use crate::effects::model::Model;
use crate::effects::state::State;
use crate::effects::{
    BundleFacts, BundleFault, CallFault, ComposeFault, DockerVersions, Event, FetchBundle, ProbeDocker, ReadModel,
    RunFault, StageBundle,
};
use crate::fsm::StageName;
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;

/// The oldest Compose that prints what the agent reads (facts: `ps`, `config`, quiet progress).
pub const COMPOSE_MIN: &str = "2.21.0";

const PHASE: StageName = StageName::Bundle;

/// Awaits the bundle, then its staging, then Docker's word on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    attempt: Attempt,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    Bundle,
    Staging(Box<BundleFacts>),
    Docker { facts: Box<BundleFacts>, versions: Option<Result<DockerVersions, RunFault>> },
}

impl Bundle {
    /// Asks for the bundle.
    pub fn fetch<S: Leads<Bundle>>(flow: Flow<S>, attempt: Attempt) -> Transition {
        let mut flow = flow.to(Bundle { attempt, awaits: Awaits::Bundle });
        let attempt = &flow.stage.attempt;
        let request = FetchBundle { sha: attempt.sha.clone() };
        let why = format!("{} is desired ({}), attempt {}", attempt.sha.short(), attempt.cause, attempt.number);
        flow.note(Note::info(why));
        flow.then(request)
    }
}

impl Flow<Bundle> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        match &self.stage.awaits {
            Awaits::Bundle => match answer!(self, event, FetchBundle) {
                Ok(facts) => self.fetched(facts),
                Err(BundleFault::Refused(refusal)) => self.refuse(&refusal),
                Err(BundleFault::Call(CallFault::Status { status: 404, detail, .. })) => {
                    let what = format!("tenancy has no bundle {}: {detail}", self.stage.attempt.sha.short());
                    self.fail(Failure::new(Code::TenancyError, PHASE, what))
                }
                Err(BundleFault::Call(fault)) => self.fail(faults::tenancy(PHASE, "bundle", &fault)),
            },
            Awaits::Staging(_) => match answer!(self, event, StageBundle) {
                Ok(()) => self.staged(),
                Err(fault) => self.fail(faults::store(PHASE, &fault)),
            },
            Awaits::Docker { facts: _, versions: None } => {
                let probed = answer!(self, event, ProbeDocker);
                self.awaiting(|awaits| match awaits {
                    Awaits::Docker { facts, .. } => Awaits::Docker { facts, versions: Some(probed) },
                    other @ (Awaits::Bundle | Awaits::Staging(_)) => other,
                })
                .into()
            }
            Awaits::Docker { facts, versions: Some(versions) } => {
                let (facts, versions) = (facts.clone(), versions.clone());
                let model = answer!(self, event, ReadModel);
                self.judged(*facts, versions, model)
            }
        }
    }

    fn fetched(mut self, facts: Box<BundleFacts>) -> Transition {
        let sha = self.stage.attempt.sha.clone();
        if let Some(header) = facts.header_sha.as_ref().filter(|header| **header != facts.content_sha.as_str()) {
            let header = faults::clip(header, 80);
            self.note(Note::warn(format!(
                "the X-Bundle-Sha header says {header:?}, the content is {}",
                facts.content_sha
            )));
        }
        let core = self.core();
        let accepted = if facts.content_sha == sha {
            acceptable(&facts, &core.settings.env_id, &core.settings.agent_version, &core.state)
        } else {
            Err(Refusal::new(
                Code::BundleShaMismatch,
                format!("the content hashes to {}, not to {sha}", facts.content_sha),
            ))
        };
        match accepted {
            Err(refusal) => self.refuse(&refusal),
            Ok(()) => self.awaiting(|_| Awaits::Staging(facts)).then(StageBundle { sha }),
        }
    }

    fn awaiting(self, next: impl FnOnce(Awaits) -> Awaits) -> Flow<Bundle> {
        self.stay(|Bundle { attempt, awaits }| Bundle { attempt, awaits: next(awaits) })
    }

    fn staged(self) -> Transition {
        let sha = self.stage.attempt.sha.clone();
        let mut flow = self.awaiting(|awaits| match awaits {
            Awaits::Staging(facts) => Awaits::Docker { facts, versions: None },
            other @ (Awaits::Bundle | Awaits::Docker { .. }) => other,
        });
        flow.core_mut().local.releases.push(sha.clone());
        flow.ask(ProbeDocker {});
        flow.ask(ReadModel { sha });
        flow.into()
    }

    fn judged(
        mut self,
        facts: BundleFacts,
        versions: Result<DockerVersions, RunFault>,
        model: Result<Model, ComposeFault>,
    ) -> Transition {
        let versions = match versions {
            Ok(versions) => versions,
            Err(fault) => {
                return self.fail(faults::run(
                    PHASE,
                    "docker",
                    &fault,
                    Code::DockerUnavailable,
                    Code::DockerUnavailable,
                ));
            }
        };
        let compose = versions.compose.clone();
        self.core_mut().state.docker = Some(versions);
        if !version_at_least(&compose, COMPOSE_MIN).unwrap_or(false) {
            let what = format!("Compose {compose} is older than {COMPOSE_MIN}");
            return self.fail(Failure::new(Code::ComposeTooOld, PHASE, what));
        }
        let model = match model {
            Ok(model) => model,
            Err(fault) => return self.fail(faults::compose(PHASE, "compose config", &fault)),
        };
        for warning in &model.warnings {
            self.note(Note::warn(warning.clone()));
        }
        let judgement = self.core().settings.policy.judge(&model.demands);
        for warning in judgement.warnings {
            self.note(Note::warn(warning));
        }
        if let Some(refusal) = judgement.refusal {
            return self.refuse(&refusal);
        }
        let BundleFacts { meta, manifest, .. } = facts;
        let settings = &self.core().settings;
        let deploy = Deploy {
            attempt: self.stage.attempt.clone(),
            generation: meta.generation,
            manifest: manifest.unwrap_or_default(),
            services: model.services,
            closed: model.closed,
            decided: model.decided,
            on_unhealthy: meta.agent.on_unhealthy.unwrap_or(settings.on_unhealthy),
            healthy_timeout_s: meta.agent.healthy_timeout_s.unwrap_or(settings.healthy_timeout_s),
        };
        Token::begin(self, Purpose::Deploy(Box::new(deploy)))
    }

    fn refuse(self, refusal: &Refusal) -> Transition {
        self.fail(faults::refused(PHASE, refusal))
    }

    fn fail(self, failure: Failure) -> Transition {
        let attempt = self.stage.attempt.clone();
        Report::fail(self, failure, attempt)
    }
}

/// Every rule that a bundle's own content can break, in the order in which a person would mend them.
fn acceptable(facts: &BundleFacts, env_id: &str, agent_version: &str, state: &State) -> Result<(), Refusal> {
    let BundleFacts { content_sha: _, header_sha: _, meta, manifest, template, compose, size: _ } = facts;
    if meta.env_id != env_id {
        let what = format!("it was rendered for {:?}, this box is {env_id:?}", faults::clip(&meta.env_id, 100));
        return Err(Refusal::new(Code::EnvMismatch, what));
    }
    if let Some(min) = &meta.agent.min_version
        && !version_at_least(agent_version, min)?
    {
        return Err(Refusal::new(Code::AgentTooOld, format!("it asks for agent {min}, this is {agent_version}")));
    }
    no_rollback(facts, meta, state)?;
    let manifest = manifest.as_ref().map_err(Refusal::clone)?;
    if let Some(template) = template {
        let used = template.as_ref().map_err(Refusal::clone)?.iter();
        let gaps: Vec<&str> =
            used.map(String::as_str).filter(|used| !manifest.variables().any(|given| given == *used)).collect();
        if !gaps.is_empty() {
            return Err(Refusal::new(Code::EnvUnresolved, format!("no manifest entry provides {}", gaps.join(", "))));
        }
    }
    compose.clone()
}

/// A bundle may not replace a newer one, unless it says so itself.
fn no_rollback(facts: &BundleFacts, meta: &Meta, state: &State) -> Result<(), Refusal> {
    let Some(applied) = state.applied() else { return Ok(()) };
    if meta.agent.allow_rollback || applied.sha == facts.content_sha {
        return Ok(());
    }
    match (meta.generation, applied.generation) {
        (Some(new), Some(old)) if new < old => {
            let what = format!("its generation {new} is older than the applied {old} ({})", applied.sha.short());
            Err(Refusal::new(Code::RollbackRefused, what))
        }
        (Some(_), Some(_)) => Ok(()),
        (None, _) | (_, None) => {
            let before = state.good.iter().map(|good| &good.sha).chain(&state.earlier);
            if before.into_iter().any(|sha| *sha == facts.content_sha) {
                let what = "it was applied before, and generations are missing to tell that it is meant";
                return Err(Refusal::new(Code::RollbackRefused, what));
            }
            Ok(())
        }
    }
}
