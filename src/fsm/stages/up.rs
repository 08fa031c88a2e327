//! Up: awaits the promotion, then `up`.
//!
//! Invariants: what is about to be promoted is durable first, so that a crash from here on is finished and not
//! forgotten; nothing comes up without the proof that it was pulled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::healthy::checks;
use super::{Attempt, Healthy, PulledProof, Report, answer};
use crate::effects::containers::Container;
use crate::effects::failure::{Class, Code};
use crate::effects::model::Service;
use crate::effects::state::{Attempts, Goal, LastResult, Promotion};
use crate::effects::words::unhealthy_dependency;
use crate::effects::{self, Event, Inspect, OnUnhealthy, Promote, RunFault, SaveState, Stamp, StoreFault, WaitUntil};
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;
use crate::fsm::verdict::{self, Baseline, Finding, Found};
use crate::fsm::{StageName, retry};

const PHASE: StageName = StageName::Up;

/// Awaits that the promotion is noted, done, and followed by `up`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Up {
    goal: Box<Goal>,
    pulled: PulledProof,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    Noted(Option<Result<(), StoreFault>>),
    Promoted(Baseline),
    Up {
        baseline: Baseline,
        until: Stamp,
    },
    /// `up` ended at once, because a service waits for one that was unhealthy before.
    Look {
        unwell: Unwell,
    },
    NextLook {
        unwell: Unwell,
    },
}

/// What was unhealthy before `up` may just have been mended: it is waited for as it is when no other service waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Unwell {
    /// Compose's answer: what the attempt fails of, unless the container gets well.
    failure: Failure,
    /// The name of the container that Compose gave up for.
    name: String,
    /// The containers that are waited for, by id; none before the first look.
    waited_for: Vec<String>,
    baseline: Baseline,
    until: Stamp,
    looks: u32,
}

impl Unwell {
    /// What was unhealthy before and is to be waited for: what Compose named, or if its name was hidden as a secret all.
    fn choose(&self, services: &BTreeMap<String, Service>, seen: &[Container]) -> Vec<String> {
        let named: Vec<&Container> = seen.iter().filter(|c| c.name == self.name).collect();
        let candidates = if named.is_empty() { seen.iter().collect() } else { named };
        let was_unwell = |c: &&Container| self.baseline.get(&c.id).is_some_and(|seen| seen.unwell.is_some());
        let waited_for = candidates.into_iter().filter(|c| services.contains_key(&c.service)).filter(was_unwell);
        waited_for.map(|c| c.id.clone()).collect()
    }

    /// Compose's answer, and what followed it.
    fn followed_by(&self, told: Vec<String>) -> Failure {
        let Failure { code, phase, detail } = &self.failure;
        let all: Vec<String> = std::iter::once(code.bare(detail)).chain(told).collect();
        Failure::new(*code, *phase, all.join("; "))
    }
}

impl Up {
    /// Promotes a pulled release and brings it up.
    pub fn promote<S: Leads<Up>>(flow: Flow<S>, goal: Goal, pulled: PulledProof) -> Transition {
        let mut flow = flow.to(Up { goal: Box::new(goal.clone()), pulled, awaits: Awaits::Noted(None) });
        let core = flow.core_mut();
        // Resumed once a minute for as long as Docker is away, it is still one promotion.
        if core.state.promotions.last().is_none_or(|last| last.sha != goal.sha) {
            core.state.promotions.push(Promotion { sha: goal.sha.clone(), at: core.now });
        }
        core.state.unfinished = Some(goal);
        // What ran before counts: a restart from here on is a failure, one from last week is not.
        flow.ask_save();
        flow.ask(Inspect {});
        flow.into()
    }

    /// Brings the last good release back, if that is wanted and there is one; otherwise the failure stands.
    pub fn instead<S: Leads<Up> + Leads<Report>>(
        mut flow: Flow<S>,
        goal: &Goal,
        failure: Failure,
        seen: Vec<Container>,
    ) -> Transition {
        let attempt = Attempt::of(goal);
        let failure = told_of(goal, failure);
        let core = flow.core();
        let wanted = goal.on_unhealthy == OnUnhealthy::Rollback
            && goal.instead_of.is_none()
            && failure.code.class() == Class::Failed;
        let good =
            core.state.good.iter().rev().find(|good| good.sha != goal.sha && core.local.releases.contains(&good.sha));
        let Some(good) = good.filter(|_| wanted).cloned() else {
            return Report::fail_seen(flow, failure, attempt, seen);
        };
        let pulled = PulledProof::of_good(&good);
        let back = Goal {
            sha: good.sha,
            generation: good.generation,
            attempt: 1,
            cause: goal.cause,
            since: goal.since,
            services: good.services,
            secrets: good.secrets,
            on_unhealthy: OnUnhealthy::Keep,
            healthy_timeout_s: flow.core().settings.healthy_timeout_s,
            instead_of: Some(Box::new(attempt.failed(&failure, flow.core().now))),
        };
        flow.note(Note::error(format!("{}: {}", failure.code, failure.detail)));
        flow.note(Note::warn(format!("{} failed; bringing {} back up", goal.sha.short(), back.sha.short())));
        let core = flow.core_mut();
        // Durable with the promotion: a crash in the middle of the rollback must not deploy the bad release again.
        core.state
            .attempts
            .insert(attempt.sha.clone(), Attempts { count: attempt.number, next_at: None, quarantined: true });
        core.state.last_result = Some(LastResult::Failed);
        core.state.last_error = back.instead_of.as_ref().map(|failed| failed.error.clone());
        Up::promote(flow, back, pulled)
    }
}

/// What an attempt is told to have failed of: a failed rollback does not hide what it was made for.
fn told_of(goal: &Goal, failure: Failure) -> Failure {
    match &goal.instead_of {
        Some(first) if failure.code.class() == Class::Failed => {
            let code = first.error.code;
            let (was, is) = (code.bare(&first.error.detail), failure.code.bare(&failure.detail));
            // Both are told, however much there was to say of the first.
            let was = faults::clip(&was, faults::DETAIL / 3);
            Failure::new(code, failure.phase, format!("{was}; the rollback failed too: {is}"))
        }
        Some(_) | None => failure,
    }
}

impl Flow<Up> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        match self.stage.awaits.clone() {
            Awaits::Noted(None) => {
                let noted = answer!(self, event, SaveState);
                self.awaiting(Awaits::Noted(Some(noted))).into()
            }
            Awaits::Noted(Some(noted)) => {
                let before = answer!(self, event, Inspect);
                self.noted(noted, before)
            }
            Awaits::Promoted(baseline) => match answer!(self, event, Promote) {
                Ok(()) => self.promoted(baseline),
                Err(fault) => self.fail_untouched(faults::store(PHASE, &fault)),
            },
            Awaits::Up { baseline, until } => match answer!(self, event, effects::Up) {
                Ok(done) => {
                    let (mut flow, up) = self.leave();
                    for warning in done.warnings {
                        flow.note(Note::warn(format!("compose up: {warning}")));
                    }
                    Healthy::watch(flow, up.goal, baseline, until)
                }
                Err(fault) => self.not_up(fault, baseline, until),
            },
            Awaits::Look { unwell } => {
                let look = answer!(self, event, Inspect);
                self.look(unwell, look)
            }
            Awaits::NextLook { unwell } => {
                let () = answer!(self, event, WaitUntil);
                self.awaiting(Awaits::Look { unwell }).then(Inspect {})
            }
        }
    }

    fn awaiting(mut self, awaits: Awaits) -> Flow<Up> {
        self.stage.awaits = awaits;
        self
    }

    fn noted(mut self, noted: Result<(), StoreFault>, before: Result<Vec<Container>, RunFault>) -> Transition {
        if let Err(fault) = noted {
            return self.fail_untouched(faults::store(PHASE, &fault));
        }
        self.state_is_saved();
        let before = match before {
            Ok(before) => before,
            Err(fault) => {
                let code = Code::DockerUnavailable;
                return self.fail_untouched(faults::run(PHASE, "docker inspect", &fault, code, code));
            }
        };
        let sha = self.stage.pulled.sha().clone();
        self.awaiting(Awaits::Promoted(verdict::before_up(&before))).then(Promote { sha })
    }

    fn promoted(mut self, baseline: Baseline) -> Transition {
        let Up { goal, pulled: _, awaits: _ } = &self.stage;
        let (sha, timeout_s) = (goal.sha.clone(), goal.healthy_timeout_s);
        let note = format!("bringing {} up (at most {timeout_s} s, health included)", sha.short());
        let core = self.core_mut();
        core.local.current = Some(sha);
        core.state.in_doubt = true;
        let until = core.now.plus_s(i64::try_from(timeout_s).unwrap_or(i64::MAX));
        self.note(Note::info(note));
        self.up(baseline, until)
    }

    fn up(self, baseline: Baseline, until: Stamp) -> Transition {
        let left_s = until.since_ms(self.core().now).unsigned_abs().div_ceil(1000);
        let up = effects::Up { sha: self.stage.pulled.sha().clone(), timeout_s: left_s };
        self.awaiting(Awaits::Up { baseline, until }).then(up)
    }

    fn not_up(self, fault: RunFault, baseline: Baseline, until: Stamp) -> Transition {
        let unhealthy = match &fault {
            RunFault::Failed { words, .. } => unhealthy_dependency(words.as_str()).map(str::to_owned),
            _ => None,
        };
        // Asked for a second time it had less; it was the whole that took too long.
        let fault = match fault {
            RunFault::TimedOut { after_s: _, words } => {
                RunFault::TimedOut { after_s: self.stage.goal.healthy_timeout_s, words }
            }
            other => other,
        };
        let failure = faults::run(PHASE, "compose up", &fault, Code::UpFailed, Code::UpTimeout);
        match unhealthy {
            Some(name) if verdict::was_unwell(&baseline) => {
                let unwell = Unwell { failure, name, waited_for: Vec::new(), baseline, until, looks: 0 };
                self.awaiting(Awaits::Look { unwell }).then(Inspect {})
            }
            Some(_) | None => self.fail(failure, Vec::new()),
        }
    }

    fn look(mut self, mut unwell: Unwell, look: Result<Vec<Container>, RunFault>) -> Transition {
        let seen = match look {
            Ok(seen) => seen,
            // Docker going away is no failure of the bundle: the apply is finished later.
            Err(fault) => {
                let code = Code::DockerUnavailable;
                return self.fail(faults::run(PHASE, "docker inspect", &fault, code, code), Vec::new());
            }
        };
        let (now, stable_s) = (self.core().now, self.core().settings.stable_s);
        let Goal { services, healthy_timeout_s, .. } = &*self.stage.goal;
        if unwell.looks == 0 {
            unwell.waited_for = unwell.choose(services, &seen);
            if unwell.waited_for.is_empty() {
                // It fell ill under this release, or is made anew by it.
                let named: Vec<&str> = seen.iter().filter(|c| c.name == unwell.name).map(|c| c.id.as_str()).collect();
                let failure = unwell.followed_by(checks(&named, &seen));
                return self.fail(failure, seen);
            }
        }
        let Unwell { waited_for, baseline, .. } = &mut unwell;
        let failing = verdict::failing_between(services, &seen, baseline, now, stable_s, waited_for);
        if !failing.is_empty() {
            let failing: Vec<Finding> = failing.into_iter().map(Found::keep).collect();
            let mut told: Vec<String> =
                failing.iter().map(|one| format!("then {}: {}", one.service, one.why)).collect();
            let ids: Vec<&str> = failing.iter().filter_map(|one| one.id.as_deref()).collect();
            told.extend(checks(&ids, &seen));
            return self.fail(unwell.followed_by(told), seen);
        }
        // One that is gone is made anew by the next `up`.
        let is_well = |id: &String| seen.iter().find(|c| c.id == *id).is_none_or(verdict::is_well);
        let well = unwell.waited_for.iter().all(is_well);
        if now >= unwell.until {
            let what = if well { "well too late" } else { "not well" };
            let mut told = vec![format!("{what}: {healthy_timeout_s} s are over")];
            let ids: Vec<&str> = unwell.waited_for.iter().map(String::as_str).collect();
            told.extend(checks(&ids, &seen));
            return self.fail(unwell.followed_by(told), seen);
        }
        if well {
            // It begins anew: what `up` starts a second time, as a one-shot that has ended, is no restart.
            return self.up(verdict::before_up(&seen), unwell.until);
        }
        let next = now.plus_ms(retry::look_again_ms(unwell.looks)).min(unwell.until);
        if unwell.looks == 0 {
            let said = unwell.failure.code.bare(&unwell.failure.detail);
            self.note(Note::info(format!("{said}; it was unhealthy before: waiting for it")));
        }
        unwell.looks = unwell.looks.saturating_add(1);
        let reason = format!("{}, unhealthy from before: another service waits for it", unwell.name);
        self.awaiting(Awaits::NextLook { unwell }).then(WaitUntil { until: next, reason })
    }

    /// Nothing that runs was touched yet: there is nothing to roll back.
    fn fail_untouched(self, failure: Failure) -> Transition {
        let attempt = Attempt::of(&self.stage.goal);
        let failure = told_of(&self.stage.goal, failure);
        Report::fail(self, failure, attempt)
    }

    fn fail(self, failure: Failure, seen: Vec<Container>) -> Transition {
        let goal = self.stage.goal.clone();
        Up::instead(self, &goal, failure, seen)
    }
}
