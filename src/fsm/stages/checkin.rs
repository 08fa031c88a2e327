//! Checkin: awaits what tenancy wants, and decides whether there is anything to do.
//!
//! Invariant: a box that already runs what is desired asks for nothing that changes anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Attempt, Bundle, Conclusion, PulledProof, Purpose, Report, Token, Up, answer};
use crate::effects::failure::Code;
use crate::effects::meta::LONGEST_S;
use crate::effects::state::{Cause, Hold, LastResult, State};
use crate::effects::{CallFault, CheckinRequest, Desired, Event, LocalFacts, Sha};
use crate::fsm::event::{Boot, Note};
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::{Core, Flow};
use crate::fsm::machine::Transition;
use crate::fsm::{StageName, retry};

/// Awaits the answer to the check-in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkin {}

/// Begins a tick: the first stage, and the check-in.
pub fn boot(boot: Boot) -> Transition {
    let Boot { settings, options, state, local, seed, now } = boot;
    let mut saved = state.clone();
    retry::forget_leases(&mut saved.leases, &mut saved.lease_not_before, now);
    let mut core = Core {
        settings,
        options,
        local,
        state,
        saved: Arc::new(saved),
        saving: None,
        seed,
        began: now,
        now,
        tenancy_up: false,
        relogged: false,
        leased: false,
    };
    let state = &mut core.state;
    retry::clamp_leases(&mut state.leases, &mut state.lease_not_before, now);
    for attempts in state.attempts.values_mut() {
        attempts.next_at = attempts.next_at.map(|next| retry::clamp_next(next, now));
    }
    if let Some(goal) = &mut core.state.unfinished {
        // Whoever edited the state by hand: no tick waits longer than a bundle may ask for.
        goal.healthy_timeout_s = goal.healthy_timeout_s.clamp(1, LONGEST_S);
    }
    let request = CheckinRequest {
        agent_version: core.settings.agent_version.clone(),
        site: core.settings.site.clone(),
        applied_sha: core.state.applied().map(|applied| applied.sha.clone()),
        last_result: core.state.last_result.map(|result| {
            match result {
                LastResult::Applied => "applied",
                LastResult::Failed => "failed",
                LastResult::RolledBack => "rolled_back",
            }
            .to_owned()
        }),
        // What could not be written down is told all the same: a full disk hides itself.
        last_error: if core.local.disk_full {
            let full = no_room();
            Some(full.code.before(&full.detail))
        } else {
            let newest = core.state.trouble.iter().chain(&core.state.last_error).max_by_key(|error| error.at);
            newest.map(|error| error.code.before(&error.detail))
        },
        token_source: core.local.token,
        docker_version: core.state.docker.as_ref().map(|docker| docker.engine.clone()),
        compose_version: core.state.docker.as_ref().map(|docker| docker.compose.clone()),
    };
    Flow::begin(core, Checkin {}).then(request)
}

fn no_room() -> Failure {
    Failure::new(Code::DiskFull, StageName::Checkin, "no space is left where the state is kept")
}

fn runs(state: &State, local: &LocalFacts, sha: &Sha) -> bool {
    state.applied().is_some_and(|applied| applied.sha == *sha)
        && local.current.as_ref() == Some(sha)
        && state.unfinished.is_none()
        && !state.in_doubt
}

/// Why this bundle is deployed, on a box that knows this when the tick begins.
pub fn cause(state: &State, local: &LocalFacts, sha: &Sha) -> Cause {
    let tried = state.attempts.get(sha).map_or(0, |tried| tried.count);
    if runs(state, local, sha) {
        Cause::Forced
    } else if tried > 0 {
        Cause::Retry(tried)
    } else if state.applied().is_some_and(|applied| applied.sha == *sha) {
        Cause::Drift
    } else {
        Cause::NewSha
    }
}

impl Flow<Checkin> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        let checked_in = answer!(self, event, CheckinRequest);
        match checked_in {
            Ok(desired) => self.answered(desired),
            Err(fault) => self.unanswered(&fault),
        }
    }

    fn unanswered(mut self, fault: &CallFault) -> Transition {
        let failure = faults::tenancy(StageName::Checkin, "check-in", fault);
        if self.can_resume() {
            self.note(Note::warn(format!(
                "{}: {}; finishing the interrupted apply all the same",
                failure.code, failure.detail
            )));
            return self.resume();
        }
        if self.core().settings.laptop_mode && failure.code == Code::TenancyUnreachable {
            return Report::conclude(self, Conclusion::Offline);
        }
        Report::conclude(self, Conclusion::Deferred { failure, attempt: None })
    }

    fn answered(mut self, desired: Desired) -> Transition {
        let core = self.core_mut();
        core.tenancy_up = true;
        let Desired { desired_sha, hold } = desired;
        let before = core.state.hold.take();
        core.state.hold = hold.as_ref().map(|reason| Hold {
            reason: faults::clip(reason, 300),
            since: before.map_or(core.now, |before| before.since),
        });
        if let Some(reason) = hold {
            return self.idle(Conclusion::Held { reason });
        }
        let Some(sha) = desired_sha else {
            return self.idle(Conclusion::Idle);
        };
        // A quarantine ends, and a backoff is forgotten, when another bundle is desired.
        core.state.attempts.retain(|tried, _| *tried == sha);
        if self.runs(&sha) && !self.core().options.force {
            return self.idle(Conclusion::Unchanged { sha });
        }
        let core = self.core();
        let tried = core.state.attempts.get(&sha).cloned().unwrap_or_default();
        if !core.options.force {
            let early = tried.next_at.filter(|next| *next > core.now);
            if self.can_resume() && (self.awaits_verdict_of(&sha) || self.rolls_back()) {
                return self.resume();
            }
            if tried.quarantined {
                return self.idle(Conclusion::Quarantined { sha });
            }
            if let Some(until) = early {
                return self.idle(Conclusion::TooEarly { sha, until });
            }
        }
        let cause = cause(&core.state, &core.local, &sha);
        let attempt = Attempt { sha, number: tried.count.saturating_add(1), cause, since: core.began };
        // How far an interrupted apply got is not known, and here it is given up for another attempt.
        self.core_mut().state.in_doubt |= self.core().state.unfinished.is_some();
        if self.core().local.disk_full {
            // A lease whose grant cannot be kept would be one of the hour's five for nothing.
            return Report::fail(self, no_room(), attempt);
        }
        Bundle::fetch(self, attempt)
    }

    /// The desired bundle is applied, and nothing was done to the box since.
    fn runs(&self, sha: &Sha) -> bool {
        let core = self.core();
        runs(&core.state, &core.local, sha)
    }

    /// An apply was interrupted after promotion, and its release is still there.
    fn can_resume(&self) -> bool {
        let core = self.core();
        core.state.unfinished.as_ref().is_some_and(|goal| core.local.releases.contains(&goal.sha))
    }

    /// The interrupted apply is of this bundle.
    fn awaits_verdict_of(&self, sha: &Sha) -> bool {
        self.core().state.unfinished.as_ref().is_some_and(|goal| goal.sha == *sha && goal.instead_of.is_none())
    }

    /// A rollback was interrupted. It is finished whatever is desired by now: it alone knows the outcome to be told.
    fn rolls_back(&self) -> bool {
        self.core().state.unfinished.as_ref().is_some_and(|goal| goal.instead_of.is_some())
    }

    fn resume(mut self) -> Transition {
        let Some(mut goal) = self.core().state.unfinished.clone() else {
            return Report::conclude(self, Conclusion::Idle);
        };
        let pulled = PulledProof::remembered(&goal);
        if goal.instead_of.is_none() {
            goal.cause = Cause::Interrupted;
        }
        self.note(Note::info(format!("finishing the apply of {} that was interrupted", goal.sha.short())));
        Up::promote(self, goal, pulled)
    }

    /// Nothing to deploy; the token may need care.
    fn idle(self, conclusion: Conclusion) -> Transition {
        if Token::needs_care(self.core()) {
            Token::begin(self, Purpose::Care(conclusion))
        } else {
            Report::conclude(self, conclusion)
        }
    }
}
