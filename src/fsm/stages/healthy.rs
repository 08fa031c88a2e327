//! Healthy: awaits the verdict on the containers.
//!
//! Invariant: only a look at which everything is fine makes a release applied; one deadline covers `up` and the wait.

use serde::{Deserialize, Serialize};

use super::{Conclusion, Report, Up, answer};
use crate::effects::containers::{Container, ContainerState, Probe};
use crate::effects::failure::Code;
use crate::effects::state::Goal;
use crate::effects::words::{ending, one_line};
use crate::effects::{Event, Inspect, LogTail, ReadLogs, RunFault, Stamp, WaitUntil};
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;
use crate::fsm::verdict::{self, Baseline, Finding, Found, Verdict};
use crate::fsm::{StageName, retry};

const PHASE: StageName = StageName::Healthy;
/// Of so many failing containers the logs are read.
const LOGS_OF: usize = 4;
/// So many lines of each.
const LOG_LINES: u32 = 20;

/// Awaits a look at the containers, the next look, or the logs of what failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Healthy {
    goal: Box<Goal>,
    baseline: Baseline,
    until: Stamp,
    looks: u32,
    /// What was waited for at the last look.
    told: String,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    Look,
    NextLook,
    Logs { failing: Vec<Finding>, seen: Vec<Container> },
}

impl Healthy {
    /// Watches the containers until there is a verdict.
    pub fn watch<S: Leads<Healthy>>(flow: Flow<S>, goal: Box<Goal>, baseline: Baseline, until: Stamp) -> Transition {
        flow.to(Healthy { goal, baseline, until, looks: 0, told: String::new(), awaits: Awaits::Look }).then(Inspect {})
    }
}

impl Flow<Healthy> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        match self.stage.awaits.clone() {
            Awaits::Look => {
                let look = answer!(self, event, Inspect);
                self.look(look)
            }
            Awaits::NextLook => {
                let () = answer!(self, event, WaitUntil);
                self.awaiting(Awaits::Look).then(Inspect {})
            }
            Awaits::Logs { failing, seen } => {
                let logs = answer!(self, event, ReadLogs);
                self.unhealthy(&failing, seen, logs)
            }
        }
    }

    fn awaiting(mut self, awaits: Awaits) -> Flow<Healthy> {
        self.stage.awaits = awaits;
        self
    }

    fn look(mut self, look: Result<Vec<Container>, RunFault>) -> Transition {
        let seen = match look {
            Ok(seen) => seen,
            Err(fault) => {
                let failure =
                    faults::run(PHASE, "docker inspect", &fault, Code::DockerUnavailable, Code::DockerUnavailable);
                let goal = self.stage.goal.clone();
                return Up::instead(self, &goal, failure, Vec::new());
            }
        };
        let now = self.core().now;
        let stable_s = self.core().settings.stable_s;
        let Healthy { goal, baseline, until, looks, told, awaits: _ } = &mut self.stage;
        match verdict::judge(&goal.services, &seen, baseline, now, stable_s) {
            Verdict::Healthy => {
                let (flow, healthy) = self.leave();
                Report::conclude(flow, Conclusion::Applied { goal: healthy.goal, seen })
            }
            Verdict::Failing(failing) => {
                let failing = failing.into_iter().map(Found::keep).collect();
                self.read_logs(failing, seen)
            }
            Verdict::Waiting(what) if now >= *until => {
                let late = format!("not healthy within {} s", goal.healthy_timeout_s);
                let kept = what.into_iter().map(Found::keep);
                let failing = kept.map(|found| Finding { why: format!("{late}: {}", found.why), ..found }).collect();
                self.read_logs(failing, seen)
            }
            Verdict::Waiting(what) => {
                let next = now.plus_ms(retry::look_again_ms(*looks)).min(*until);
                *looks = looks.saturating_add(1);
                let reason = in_words(&what);
                // Looked at about once a second: only what is new is said.
                if *told != reason {
                    told.clone_from(&reason);
                    self.note(Note::info(format!("waiting: {reason}")));
                }
                self.awaiting(Awaits::NextLook).then(WaitUntil { until: next, reason })
            }
        }
    }

    fn read_logs(self, failing: Vec<Finding>, seen: Vec<Container>) -> Transition {
        let of = |found: &Finding| Some((found.service.clone(), found.id.clone()?));
        let containers: Vec<(String, String)> = failing.iter().filter_map(of).take(LOGS_OF).collect();
        let flow = self.awaiting(Awaits::Logs { failing, seen });
        flow.then(ReadLogs { containers, lines: LOG_LINES })
    }

    fn unhealthy(self, failing: &[Finding], seen: Vec<Container>, logs: Result<Vec<LogTail>, RunFault>) -> Transition {
        // Who fails is told before why, of which there may be more than room.
        let mut what: Vec<String> =
            failing.iter().map(|failed| format!("{}: {}", failed.service, failed.why)).collect();
        let ids: Vec<&str> = failing.iter().filter_map(|failed| failed.id.as_deref()).collect();
        what.extend(checks(&ids, &seen));
        match logs {
            Ok(tails) => {
                // The end of a log is what tells; each gets its share of the room.
                let share = faults::DETAIL / 2 / tails.len().max(1);
                for tail in tails {
                    let text = ending(&one_line(tail.text.as_str()), share);
                    let nothing = text.is_empty();
                    what.push(if nothing {
                        format!("{} logged nothing", tail.service)
                    } else {
                        format!("{} says: {text}", tail.service)
                    });
                }
            }
            Err(_) => what.push("the logs could not be read".to_owned()),
        }
        let failure = Failure::new(Code::Unhealthy, PHASE, what.join("; "));
        let goal = self.stage.goal.clone();
        Up::instead(self, &goal, failure, seen)
    }
}

/// Why the healthchecks of what failed did: of these containers, by id.
pub(super) fn checks(failing: &[&str], seen: &[Container]) -> Vec<String> {
    let container = |id: &&str| seen.iter().find(|c| c.id == *id);
    let told = |id: &&str| {
        let c = container(id).filter(|c| c.state == ContainerState::Running)?;
        let probe = c.probe.as_ref().filter(|probe| probe.exit_code != 0)?;
        Some((&c.service, probe))
    };
    let told: Vec<_> = failing.iter().filter_map(told).take(LOGS_OF).collect();
    let share = faults::DETAIL / 4 / told.len().max(1);
    let in_words = |(service, probe): (&String, &Probe)| {
        let said = ending(probe.said.as_str(), share);
        let colon = if said.is_empty() { "" } else { ": " };
        format!("{service}'s check exited with {}{colon}{said}", probe.exit_code)
    };
    told.into_iter().map(in_words).collect()
}

/// What is waited for. A wait may have many looks, so this is put together in one piece.
fn in_words(what: &[Found<'_>]) -> String {
    let mut words = String::with_capacity(what.len() * 40);
    for found in what {
        let gap = if words.is_empty() { "" } else { "; " };
        words.extend([gap, found.service, ": ", &found.why]);
    }
    words
}
