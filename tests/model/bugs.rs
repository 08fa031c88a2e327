//! Bugs to be found: each changes what passes between the real machine and the world, as if the machine were wrong.
//!
//! Invariant: without a bug nothing is changed.

use std::sync::Arc;

use monky_deployd::effects::state::TokenSource;
use monky_deployd::effects::*;
use monky_deployd::fsm::{Boot, Machine};

use crate::disk::Disk;
use crate::ghost::Rule;
use crate::world::{Name, fine_bundle};

/// One bug of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    DeploysWhatIsRefused,
    ComesUpWithoutPull,
    TakesALiveTokenForDead,
    CallsItAppliedBeforeItIsHealthy,
    SkipsTheOutbox,
    ClearsTheOutcomeBeforeItIsInTheOutbox,
    DropsAReportThatWasNotTaken,
    TellsAgainUnderAnotherId,
    LetsAFailedReportFailTheDeploy,
    ForgetsTheGeneration,
    ForgetsTheQuarantine,
    PromotesBeforeItIsDurable,
    IgnoresWhatIsUnfinished,
    LosesAnEffect,
}

impl Bug {
    pub const ALL: [(Bug, &'static str); 14] = [
        (Bug::DeploysWhatIsRefused, crate::name(Some(Rule::RefusedLeadsToNothing))),
        (Bug::ComesUpWithoutPull, crate::name(Some(Rule::NothingUnpulledComesUp))),
        (Bug::TakesALiveTokenForDead, crate::name(Some(Rule::AValidTokenNeverLeases))),
        (Bug::CallsItAppliedBeforeItIsHealthy, crate::name(Some(Rule::AppliedOnlyAfterHealthy))),
        (Bug::SkipsTheOutbox, crate::name(Some(Rule::DurableBeforeTold))),
        (Bug::ClearsTheOutcomeBeforeItIsInTheOutbox, crate::name(Some(Rule::DurableBeforeTold))),
        (Bug::DropsAReportThatWasNotTaken, crate::name(Some(Rule::DurableBeforeTold))),
        (Bug::TellsAgainUnderAnotherId, crate::name(Some(Rule::RecordedOnce))),
        (Bug::LetsAFailedReportFailTheDeploy, crate::name(Some(Rule::AReportChangesNoVerdict))),
        (Bug::ForgetsTheGeneration, crate::name(Some(Rule::TheFloorNeverFalls))),
        (Bug::ForgetsTheQuarantine, crate::name(Some(Rule::QuarantineHolds))),
        (Bug::PromotesBeforeItIsDurable, crate::name(Some(Rule::PromotedIsDurableFirst))),
        (Bug::IgnoresWhatIsUnfinished, crate::name(None)),
        (Bug::LosesAnEffect, crate::name(Some(Rule::NeverStuck))),
    ];

    /// What the machine is told when it starts.
    pub fn boots(self, boot: &mut Boot) {
        match self {
            Bug::IgnoresWhatIsUnfinished => boot.state.unfinished = None,
            Bug::ForgetsTheGeneration => boot.state.good.iter_mut().for_each(|good| good.generation = None),
            _ => {}
        }
    }

    /// Whether the machine forgets to ask for something.
    pub fn loses(self, op: &Op) -> bool {
        self == Bug::LosesAnEffect && matches!(op, Op::Promote(_))
    }

    /// What the machine asks for. False: it only seems to be carried out.
    pub fn asks(self, op: &mut Op, now: Stamp) -> bool {
        match (self, op) {
            (Bug::CallsItAppliedBeforeItIsHealthy, Op::SaveState(save)) => {
                if let Some(goal) = save.state.unfinished.clone()
                    && save.state.applied().is_none_or(|applied| applied.sha != goal.sha)
                {
                    Arc::make_mut(&mut save.state).good.push(state::Applied {
                        sha: goal.sha,
                        at: goal.since,
                        generation: goal.generation,
                        secrets: goal.secrets,
                        images: Default::default(),
                        services: goal.services,
                    });
                }
                true
            }
            (Bug::ClearsTheOutcomeBeforeItIsInTheOutbox, Op::SaveState(save)) => {
                Arc::make_mut(&mut save.state).outcome = None;
                true
            }
            (Bug::ForgetsTheQuarantine, Op::SaveState(save)) => {
                Arc::make_mut(&mut save.state).attempts.values_mut().for_each(|tried| tried.quarantined = false);
                true
            }
            // What did not reach the outbox is written anew, not found again.
            (Bug::TellsAgainUnderAnotherId, Op::SaveReport(save)) => {
                if save.report.at < now {
                    save.report.report_id = save.report.report_id.chars().rev().collect();
                }
                true
            }
            (Bug::SkipsTheOutbox, Op::SaveReport(_)) | (Bug::ComesUpWithoutPull, Op::Pull(_)) => false,
            (Bug::PromotesBeforeItIsDurable, Op::SaveState(save)) => save.state.unfinished.is_none(),
            _ => true,
        }
    }

    /// What the machine hears.
    pub fn hears(self, op: &Op, event: &mut Event, disk: &Disk) {
        match (self, op, &event) {
            (Bug::DeploysWhatIsRefused, Op::FetchBundle(fetch), Event::BundleFetched(Err(BundleFault::Refused(_)))) => {
                *event = Event::BundleFetched(Ok(fine_bundle(Name::of(&fetch.sha))));
            }
            (Bug::TakesALiveTokenForDead, Op::LookupToken(lookup), Event::TokenLookedUp(Ok(_)))
                if lookup.token == TokenName::Saved && disk.token == Some(TokenSource::Lease) =>
            {
                *event = Event::TokenLookedUp(Err(crate::common::script::denied()));
            }
            (Bug::DropsAReportThatWasNotTaken, _, Event::ReportSent(Err(_))) => *event = Event::ReportSent(Ok(())),
            _ => {}
        }
    }

    /// What the machine is after it heard an event.
    pub fn becomes(self, machine: Machine, event: &Event) -> Machine {
        if self != Bug::LetsAFailedReportFailTheDeploy || !matches!(event, Event::ReportSent(Err(_))) {
            return machine;
        }
        let mut json = serde_json::to_value(&machine).unwrap();
        if let Some(exit) = json.pointer_mut("/data/stage/exit") {
            *exit = "failed".into();
        }
        serde_json::from_value(json).unwrap()
    }
}
