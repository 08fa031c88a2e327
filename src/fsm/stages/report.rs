//! Report: awaits that the outcome is durable, told, and cleaned up after.
//!
//! Invariants: an outcome is durable before it is told, and forgotten only when tenancy took it; telling it never
//! changes it; `applied` moves only with an outcome that is healthy.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Attempt, answer};
use crate::effects::containers::{Container, ContainerState};
use crate::effects::failure::{Class, Code};
use crate::effects::report::{Outcome, Report as Told, ReportedContainer};
use crate::effects::sha::Sha;
use crate::effects::state::{Applied, Attempts, Cause, Goal, LastError, LastResult, Promotion, State};
use crate::effects::{
    CallFault, DropReport, Event, PruneReleases, RemoveImages, SaveReport, SaveState, SendReport, Stamp, StoreFault,
    by_service,
};
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::{Core, Flow};
use crate::fsm::machine::Transition;
use crate::fsm::{StageName, retry};

/// Promotions that are remembered at least.
const PROMOTIONS: usize = 10;

/// How a tick ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", content = "with", rename_all = "snake_case")]
pub enum Conclusion {
    /// A release is healthy. If it came back instead of a failed one, the outcome is that failure.
    Applied {
        /// Which.
        goal: Box<Goal>,
        /// The containers at the look that decided.
        seen: Vec<Container>,
    },
    /// The deploy was refused or failed.
    Failed {
        /// How.
        failure: Failure,
        /// Which attempt.
        attempt: Attempt,
        /// The containers as last seen.
        seen: Vec<Container>,
    },
    /// Something else than the bundle stands in the way.
    Deferred {
        /// What.
        failure: Failure,
        /// Which attempt was under way.
        attempt: Option<Attempt>,
    },
    /// The box runs what is desired.
    Unchanged {
        /// Which.
        sha: Sha,
    },
    /// Nothing is desired.
    Idle,
    /// Tenancy wants nothing touched.
    Held {
        /// Why, in tenancy's words.
        reason: String,
    },
    /// Tenancy is out of reach, which is normal for this box.
    Offline,
    /// The backoff of a bundle that failed is not over.
    TooEarly {
        /// Which.
        sha: Sha,
        /// When it is over.
        until: Stamp,
    },
    /// The desired bundle was rolled back before.
    Quarantined {
        /// Which.
        sha: Sha,
    },
}

/// The exit status of a tick (contract §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// 0: applied, unchanged, held, or offline with `laptop_mode`.
    Ok,
    /// 1: the deploy failed or the bundle was refused.
    Failed,
    /// 75: temporary, the timer retries.
    Temporary,
}

impl Exit {
    /// The process's exit status.
    pub const fn status(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Temporary => 75,
        }
    }
}

/// The end of a tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The exit status.
    pub exit: Exit,
    /// In a word: `applied`, `unchanged`, `failed`, `rolled_back`, `deferred`, `held`, `idle`, `offline`, `too_early`, `quarantined`.
    pub word: String,
    /// The bundle it is about.
    pub sha: Option<Sha>,
    /// Why that bundle was deployed.
    pub cause: Option<Cause>,
    /// Why it failed or waits.
    pub code: Option<Code>,
    /// For a person.
    pub detail: String,
}

/// Awaits that the outcome is durable, told, and cleaned up after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    done: Done,
    seen: Vec<Container>,
    applied: bool,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    /// An outcome of an earlier tick that did not reach the outbox.
    Recovered(Option<Box<Told>>),
    Saved,
    Outboxed,
    Cleaned,
    Tidied,
    Sent(String),
    Dropped {
        id: String,
        go_on: bool,
    },
}

impl Report {
    /// Ends the tick with a failure of an attempt: for good or for now, as its code says.
    pub fn fail<S: Leads<Report>>(flow: Flow<S>, failure: Failure, attempt: Attempt) -> Transition {
        Report::fail_seen(flow, failure, attempt, Vec::new())
    }

    /// The same, with the containers as last seen.
    pub fn fail_seen<S: Leads<Report>>(
        flow: Flow<S>,
        failure: Failure,
        attempt: Attempt,
        seen: Vec<Container>,
    ) -> Transition {
        let conclusion = match failure.code.class() {
            Class::Refused | Class::Failed => Conclusion::Failed { failure, attempt, seen },
            Class::Temporary => Conclusion::Deferred { failure, attempt: Some(attempt) },
        };
        Report::conclude(flow, conclusion)
    }

    /// Ends the tick.
    pub fn conclude<S: Leads<Report>>(mut flow: Flow<S>, conclusion: Conclusion) -> Transition {
        let done = done(&conclusion);
        let core = flow.core_mut();
        let leftover = core.state.outcome.take().filter(|told| !core.local.outbox.contains(&told.report_id));
        let told = settle(core, &conclusion);
        flow.note(Note { level: level(done.exit), text: line(&done) });
        let applied = matches!(conclusion, Conclusion::Applied { .. });
        let seen = match conclusion {
            Conclusion::Applied { seen, .. } | Conclusion::Failed { seen, .. } => seen,
            Conclusion::Deferred { .. }
            | Conclusion::Unchanged { .. }
            | Conclusion::Idle
            | Conclusion::Held { .. }
            | Conclusion::Offline
            | Conclusion::TooEarly { .. }
            | Conclusion::Quarantined { .. } => Vec::new(),
        };
        let told = told.map(Box::new);
        match leftover {
            Some(leftover) => {
                let report = Report { done, seen, applied, awaits: Awaits::Recovered(told) };
                flow.core_mut().local.outbox.push(leftover.report_id.clone());
                flow.to(report).then(SaveReport { report: Box::new(leftover) })
            }
            None => flow.to(Report { done, seen, applied, awaits: Awaits::Saved }).save(told),
        }
    }
}

impl Flow<Report> {
    pub(in crate::fsm) fn on(mut self, event: Event) -> Transition {
        match self.stage.awaits.clone() {
            Awaits::Recovered(told) => match answer!(self, event, SaveReport) {
                Ok(()) => self.save(told),
                Err(fault) => self.unwritable(&fault),
            },
            Awaits::Saved => match answer!(self, event, SaveState) {
                Ok(()) => {
                    self.state_is_saved();
                    self.put_in_outbox()
                }
                Err(fault) => self.unwritable(&fault),
            },
            Awaits::Outboxed => match answer!(self, event, SaveReport) {
                Ok(()) => {
                    if let Some(told) = self.core_mut().state.outcome.take() {
                        self.core_mut().local.outbox.push(told.report_id);
                    }
                    self.clean()
                }
                Err(fault) => self.untold(&fault),
            },
            Awaits::Cleaned => self.cleaned(event),
            Awaits::Tidied => match answer!(self, event, SaveState) {
                Ok(()) => {
                    self.state_is_saved();
                    self.send()
                }
                Err(fault) => self.untold(&fault),
            },
            Awaits::Sent(id) => {
                let sent = answer!(self, event, SendReport);
                self.sent(id, sent)
            }
            Awaits::Dropped { id, go_on } => {
                if let Err(fault) = answer!(self, event, DropReport) {
                    self.note(Note::warn(format!("report {id} was told, and could not be removed: {}", fault.detail)));
                }
                self.core_mut().local.outbox.retain(|waiting| *waiting != id);
                if go_on { self.send() } else { self.done() }
            }
        }
    }

    fn awaiting(mut self, awaits: Awaits) -> Flow<Report> {
        self.stage.awaits = awaits;
        self
    }

    /// The outcome becomes durable, all at once.
    fn save(mut self, told: Option<Box<Told>>) -> Transition {
        let core = self.core_mut();
        core.state.outcome = told.map(|told| *told);
        if core.state == *core.saved {
            return self.put_in_outbox();
        }
        self.awaiting(Awaits::Saved).then_save()
    }

    fn put_in_outbox(self) -> Transition {
        match self.core().state.outcome.clone() {
            Some(told) => self.awaiting(Awaits::Outboxed).then(SaveReport { report: Box::new(told) }),
            None => self.clean(),
        }
    }

    fn clean(self) -> Transition {
        let core = self.core();
        let prune = PruneReleases { keep: needed(core, &self.stage.seen) };
        let ids = unneeded_images(&core.state, &self.stage.seen);
        let remove = core.options.prune && self.stage.done.exit == Exit::Ok && !ids.is_empty();
        let applied = self.stage.applied;
        let mut flow = self.awaiting(Awaits::Cleaned);
        if applied {
            flow.ask(prune);
        }
        if remove {
            flow.ask(RemoveImages { ids });
        }
        if flow.settled() { flow.tidy() } else { flow.into() }
    }

    fn cleaned(mut self, event: Event) -> Transition {
        match event {
            Event::ReleasesPruned(Ok(())) => {}
            Event::ReleasesPruned(Err(fault)) => {
                self.note(Note::warn(format!("old releases could not be removed: {}", fault.detail)));
            }
            Event::ImagesRemoved(Ok(removed)) => {
                self.note(Note::info(format!("{} images removed", removed.gone.len())));
                self.core_mut().state.images.retain(|id| !removed.gone.contains(id));
            }
            Event::ImagesRemoved(Err(fault)) => {
                let code = Code::DockerUnavailable;
                let failure = faults::run(StageName::Report, "docker image rm", &fault, code, code);
                self.note(Note::warn(failure.detail));
            }
            other => return self.unexpected(&other),
        }
        if self.settled() { self.tidy() } else { self.into() }
    }

    /// What changed since the outcome was saved: it is in the outbox now, and images are gone.
    fn tidy(self) -> Transition {
        let core = self.core();
        if core.state == *core.saved {
            return self.send();
        }
        self.awaiting(Awaits::Tidied).then_save()
    }

    fn send(self) -> Transition {
        match self.core().local.outbox.first().cloned() {
            Some(report_id) if self.core().tenancy_up => {
                self.awaiting(Awaits::Sent(report_id.clone())).then(SendReport { report_id })
            }
            Some(_) | None => self.done(),
        }
    }

    fn sent(mut self, id: String, sent: Result<(), CallFault>) -> Transition {
        let drop_it = match sent {
            Ok(()) => true,
            Err(CallFault::Status {
                status: status @ (400 | 409 | 410 | 413 | 415 | 422),
                detail,
                retry_after_s: _,
            }) => {
                self.note(Note::warn(format!(
                    "tenancy will never take report {id} (HTTP {status}: {detail}); dropped"
                )));
                true
            }
            Err(fault) => {
                let failure = faults::tenancy(StageName::Report, "report", &fault);
                let waiting = self.core().local.outbox.len();
                self.note(Note::warn(format!("{}; {waiting} reports wait for the next tick", failure.detail)));
                false
            }
        };
        if drop_it {
            let awaits = Awaits::Dropped { id: id.clone(), go_on: true };
            self.awaiting(awaits).then(DropReport { report_id: id })
        } else {
            self.done()
        }
    }

    /// The disk does not take the outcome: it is not told either, and the next tick finds out anew.
    fn unwritable(mut self, fault: &StoreFault) -> Transition {
        let failure = faults::store(StageName::Report, fault);
        self.note(Note::error(format!("{}: {}", failure.code, failure.detail)));
        let done = Done {
            exit: Exit::Failed,
            word: "failed".to_owned(),
            sha: self.stage.done.sha.clone(),
            cause: self.stage.done.cause,
            code: Some(failure.code),
            detail: failure.detail,
        };
        self.stay(|report| Report { done, ..report }).done()
    }

    /// The outcome is durable, and that is the verdict. Telling it waits for the next tick.
    fn untold(mut self, fault: &StoreFault) -> Transition {
        let failure = faults::store(StageName::Report, fault);
        let what = format!("{}: {}; the next tick reports", failure.code, failure.detail);
        self.note(Note::error(what));
        self.done()
    }

    fn done(self) -> Transition {
        let (flow, report) = self.leave();
        flow.to(report.done).into()
    }
}

fn level(exit: Exit) -> crate::fsm::event::Level {
    match exit {
        Exit::Ok => crate::fsm::event::Level::Info,
        Exit::Failed => crate::fsm::event::Level::Error,
        Exit::Temporary => crate::fsm::event::Level::Warn,
    }
}

fn line(done: &Done) -> String {
    let sha = done.sha.as_ref().map(|sha| format!(" {}", sha.short())).unwrap_or_default();
    let detail = match done.code {
        Some(code) => format!(" {}", code.before(&done.detail)),
        None if done.detail.is_empty() => String::new(),
        None => format!(": {}", done.detail),
    };
    format!("{}{sha}{detail}", done.word)
}

fn done(conclusion: &Conclusion) -> Done {
    let end = |exit: Exit, word: &str, detail: String| Done {
        exit,
        word: word.to_owned(),
        sha: None,
        cause: None,
        code: None,
        detail,
    };
    match conclusion {
        Conclusion::Applied { goal, seen: _ } => match &goal.instead_of {
            None => {
                let (sha, cause) = (Some(goal.sha.clone()), Some(goal.cause));
                Done { sha, cause, ..end(Exit::Ok, "applied", String::new()) }
            }
            Some(failed) => {
                let detail = format!("{}; {} is back up", failed.error.detail, goal.sha.short());
                let (sha, cause, code) = (Some(failed.sha.clone()), Some(failed.cause), Some(failed.error.code));
                Done { sha, cause, code, ..end(Exit::Failed, "rolled_back", detail) }
            }
        },
        Conclusion::Failed { failure, attempt, seen: _ } => {
            let (sha, cause, code) = (Some(attempt.sha.clone()), Some(attempt.cause), Some(failure.code));
            Done { sha, cause, code, ..end(Exit::Failed, "failed", failure.detail.clone()) }
        }
        Conclusion::Deferred { failure, attempt } => {
            let (sha, cause) = attempt.as_ref().map(|of| (of.sha.clone(), of.cause)).unzip();
            Done { sha, cause, code: Some(failure.code), ..end(Exit::Temporary, "deferred", failure.detail.clone()) }
        }
        Conclusion::Unchanged { sha } => Done { sha: Some(sha.clone()), ..end(Exit::Ok, "unchanged", String::new()) },
        Conclusion::Idle => end(Exit::Ok, "idle", "tenancy desires no bundle".to_owned()),
        Conclusion::Held { reason } => end(Exit::Ok, "held", faults::clip(reason, 300)),
        Conclusion::Offline => end(Exit::Ok, "offline", String::new()),
        Conclusion::TooEarly { sha, until: _ } => {
            let detail = "it failed; the backoff is not over (`status` tells until when, `tick --force` ignores it)";
            Done { sha: Some(sha.clone()), ..end(Exit::Temporary, "too_early", detail.to_owned()) }
        }
        Conclusion::Quarantined { sha } => {
            let detail = "it was rolled back; it is left alone until another bundle is desired or `tick --force`";
            Done { sha: Some(sha.clone()), ..end(Exit::Failed, "quarantined", detail.to_owned()) }
        }
    }
}

/// Writes the conclusion into the state. What tenancy is to be told comes back.
fn settle(core: &mut Core, conclusion: &Conclusion) -> Option<Told> {
    let now = core.now;
    match conclusion {
        Conclusion::Applied { goal, seen } => {
            let state = &mut core.state;
            state.unfinished = None;
            state.in_doubt = false;
            state.trouble = None;
            state.last_at = Some(now);
            let images: BTreeSet<String> = seen
                .iter()
                .filter(|c| goal.services.contains_key(&c.service))
                .map(|c| c.image_id.clone())
                .filter(|id| !id.is_empty())
                .collect();
            state.images.extend(images.iter().cloned());
            state.good.retain(|good| good.sha != goal.sha);
            state.good.push(Applied {
                sha: goal.sha.clone(),
                at: now,
                generation: goal.generation,
                secrets: goal.secrets.clone(),
                images,
                services: goal.services.clone(),
            });
            let keep = core.settings.keep_releases.max(1);
            let surplus = state.good.len().saturating_sub(keep);
            let dropped: Vec<Sha> = state.good.drain(..surplus).map(|good| good.sha).collect();
            state.earlier.retain(|sha| *sha != goal.sha && !dropped.contains(sha));
            state.earlier.extend(dropped);
            let surplus = state.earlier.len().saturating_sub(State::EARLIER);
            state.earlier.drain(..surplus);
            remember_promotions(state, seen);
            match &goal.instead_of {
                None => {
                    core.state.attempts.remove(&goal.sha);
                    core.state.last_result = Some(LastResult::Applied);
                    core.state.last_error = None;
                    Some(tell(core, &Attempt::of(goal), None, false, StageName::Healthy.as_str(), seen))
                }
                Some(failed) => {
                    core.state.last_result = Some(LastResult::RolledBack);
                    core.state.last_error = Some(failed.error.clone());
                    let phase = &failed.error.phase;
                    Some(tell(core, &Attempt::of(goal), Some(&failed.error), true, phase, seen))
                }
            }
        }
        Conclusion::Failed { failure, attempt, seen } => {
            let error = last_error(failure, now);
            let quarantined = core.state.attempts.get(&attempt.sha).is_some_and(|tried| tried.quarantined);
            let next_at = (!quarantined).then(|| now.plus_ms(retry::backoff_ms(attempt.number, core.seed)));
            let tried = Attempts { count: attempt.number, next_at, quarantined };
            core.state.attempts.insert(attempt.sha.clone(), tried);
            core.state.unfinished = None;
            core.state.trouble = None;
            core.state.last_at = Some(now);
            core.state.last_result = Some(LastResult::Failed);
            core.state.last_error = Some(error.clone());
            Some(tell(core, attempt, Some(&error), false, failure.phase.as_str(), seen))
        }
        Conclusion::Deferred { failure, attempt: _ } => {
            let same = |trouble: &LastError| trouble.code == failure.code && trouble.phase == failure.phase.as_str();
            // The same trouble as a minute ago is not written again: `at` tells since when.
            if !core.state.trouble.as_ref().is_some_and(same) {
                core.state.trouble = Some(last_error(failure, now));
            }
            None
        }
        Conclusion::Offline => None,
        Conclusion::Unchanged { .. }
        | Conclusion::Idle
        | Conclusion::Held { .. }
        | Conclusion::TooEarly { .. }
        | Conclusion::Quarantined { .. } => {
            core.state.trouble = None;
            None
        }
    }
}

fn last_error(failure: &Failure, at: Stamp) -> LastError {
    LastError { code: failure.code, phase: failure.phase.as_str().to_owned(), detail: failure.detail.clone(), at }
}

fn tell(
    core: &Core,
    attempt: &Attempt,
    error: Option<&LastError>,
    rolled_back: bool,
    phase: &str,
    seen: &[Container],
) -> Told {
    let result = if error.is_some() { Outcome::Failed } else { Outcome::Applied };
    let name = format!(
        "{}\n{}\n{}\n{result:?}\n{}\n{}\n{}",
        core.settings.env_id, attempt.sha, attempt.number, attempt.since.0, core.now.0, core.seed
    );
    let mut report_id = String::from(Sha::of(name.as_bytes()));
    report_id.truncate(32);
    Told {
        report_id,
        result,
        sha: attempt.sha.clone(),
        code: error.map(|error| error.code),
        detail: error.map(|error| faults::clip(&error.detail, faults::DETAIL)),
        phase: phase.to_owned(),
        attempt: attempt.number,
        rolled_back,
        duration_ms: core.now.since_ms(attempt.since).unsigned_abs(),
        at: core.now,
        agent_version: core.settings.agent_version.clone(),
        containers: by_service(seen).into_iter().map(reported).collect(),
    }
}

fn reported(c: &Container) -> ReportedContainer {
    let ended = match c.state {
        ContainerState::Exited | ContainerState::Dead | ContainerState::Restarting => true,
        ContainerState::Created | ContainerState::Running | ContainerState::Paused | ContainerState::Removing => false,
    };
    ReportedContainer {
        service: c.service.clone(),
        name: c.name.clone(),
        state: c.state,
        health: c.health,
        exit_code: ended.then_some(c.exit_code),
    }
}

/// The promotion that was current when a container was started.
fn promotion_of<'a>(promotions: &'a [Promotion], c: &Container) -> Option<&'a Promotion> {
    let started = c.started?;
    promotions.iter().rev().find(|promotion| promotion.at <= started).or(promotions.first())
}

fn remember_promotions(state: &mut State, seen: &[Container]) {
    let used: BTreeSet<Stamp> = seen.iter().filter_map(|c| promotion_of(&state.promotions, c)).map(|p| p.at).collect();
    let recent = state.promotions.len().saturating_sub(PROMOTIONS);
    let mut at = 0;
    state.promotions.retain(|promotion| {
        at += 1;
        at > recent || used.contains(&promotion.at)
    });
}

/// The releases that are the last good ones, current, or mounted by a container that was started from them.
fn needed(core: &Core, seen: &[Container]) -> Vec<Sha> {
    let state = &core.state;
    let good = state.good.iter().map(|good| &good.sha);
    let mounted = seen.iter().filter_map(|c| promotion_of(&state.promotions, c)).map(|promotion| &promotion.sha);
    let unfinished = state.unfinished.iter().map(|goal| &goal.sha);
    let all: BTreeSet<&Sha> = good.chain(mounted).chain(unfinished).chain(&core.local.current).collect();
    all.into_iter().cloned().collect()
}

fn unneeded_images(state: &State, seen: &[Container]) -> Vec<String> {
    let needed: BTreeSet<&String> =
        state.good.iter().flat_map(|good| &good.images).chain(seen.iter().map(|c| &c.image_id)).collect();
    state.images.iter().filter(|id| !needed.contains(id)).cloned().collect()
}
