//! Pull: awaits the images.
//!
//! Invariant: only a successful pull makes the proof that `up` needs ([`PulledProof`] has no other way in but
//! what an earlier pull left in the state).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Deploy, Report, Up, answer};
use crate::effects::failure::Code;
use crate::effects::state::{Applied, Goal};
use crate::effects::{self, Event, Sha};
use crate::fsm::StageName;
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults;
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;

const PHASE: StageName = StageName::Pull;

/// Awaits the end of the pull.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pull {
    deploy: Box<Deploy>,
    versions: BTreeMap<String, u64>,
}

/// Proof that a release's images were pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledProof(Sha);

impl PulledProof {
    /// An apply goes past promotion only after its pull: what was promoted was pulled.
    pub fn remembered(goal: &Goal) -> PulledProof {
        PulledProof(goal.sha.clone())
    }

    /// A release becomes good only after its pull.
    pub fn of_good(applied: &Applied) -> PulledProof {
        PulledProof(applied.sha.clone())
    }

    /// Whose images.
    pub fn sha(&self) -> &Sha {
        &self.0
    }
}

impl Pull {
    /// Pulls the images of a complete release.
    pub fn images<S: Leads<Pull>>(flow: Flow<S>, deploy: Box<Deploy>, versions: BTreeMap<String, u64>) -> Transition {
        let sha = deploy.attempt.sha.clone();
        let timeout_s = flow.core().settings.pull_timeout_s;
        let mut flow = flow.to(Pull { deploy, versions });
        flow.note(Note::info(format!("pulling the images of {} (at most {timeout_s} s)", sha.short())));
        flow.then(effects::Pull { sha, timeout_s })
    }
}

impl Flow<Pull> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        match answer!(self, event, effects::Pull) {
            Ok(done) => {
                let (mut flow, Pull { deploy, versions }) = self.leave();
                for warning in done.warnings {
                    flow.note(Note::warn(format!("compose pull: {warning}")));
                }
                let pulled = PulledProof(deploy.attempt.sha.clone());
                Up::promote(flow, deploy.goal(versions), pulled)
            }
            Err(fault) => {
                let attempt = self.stage.deploy.attempt.clone();
                let failure = faults::run(PHASE, "compose pull", &fault, Code::PullFailed, Code::PullTimeout);
                Report::fail(self, failure, attempt)
            }
        }
    }
}
