//! Report: awaits that the outcome is durable, told, and cleaned up after.
//!
//! Invariants: an outcome is durable before it is told, and forgotten only when tenancy took it; telling it never
//! changes it; `applied` moves only with an outcome that is healthy.

use serde::{Deserialize, Serialize};

use super::conclusion::{done, level, line};
use super::settle::{needed, settle, unneeded_images};
use super::{Attempt, Conclusion, Done, Exit, answer};
use crate::effects::containers::Container;
use crate::effects::failure::{Class, Code};
use crate::effects::report::Report as Told;
use crate::effects::{
    CallFault, DropReport, Event, PruneReleases, RemoveImages, SaveReport, SaveState, SendReport, StoreFault, counted,
};
use crate::fsm::StageName;
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;

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
                self.note(Note::info(format!("{} removed", counted(removed.gone.len(), "image"))));
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
                let kept = counted(waiting, "report");
                self.note(Note::warn(format!("{}; {kept} kept for the next tick", failure.detail)));
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
