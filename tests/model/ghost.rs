//! What an onlooker remembers of everything that was done, to judge the next thing by.
//!
//! Invariant: it never looks into the machine; it sees operations, answers, the disk and the world, and how a tick
//! is about to end when telling it fails.

use std::collections::{BTreeMap, BTreeSet};

use monky_deployd::effects::report::Outcome;
use monky_deployd::effects::*;

use crate::disk::Disk;
use crate::world::{Fault, Name, World, valid_lease_token};

/// The invariants, numbered as in RELIABILITY.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    RefusedLeadsToNothing,
    NothingUnpulledComesUp,
    AValidTokenNeverLeases,
    AppliedOnlyAfterHealthy,
    DurableBeforeTold,
    RecordedOnce,
    AReportChangesNoVerdict,
    TheFloorNeverFalls,
    QuarantineHolds,
    PromotedIsDurableFirst,
    NeverStuck,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    // In this tick:
    pub force: bool,
    desired: Option<Name>,
    refused: bool,
    denied_read: bool,
    deaths: u8,
    asks: u8,
    came_up: Option<Name>,
    healthy: Option<Name>,
    /// What the tick was about to end with when telling it failed.
    pub verdict: Option<String>,
    // In all ticks:
    /// What the box was told to be taken, by id,
    accepted: BTreeSet<String>,
    /// and what tenancy took, whatever the box was told: the same again is no news to it.
    taken: BTreeSet<String>,
    /// The report of each attempt, by bundle and begin.
    recorded: BTreeMap<(Name, i64), String>,
    quarantined: Option<Name>,
    /// What tenancy was told since it was heard to change its mind: the bundle that failed, and whether the box went back.
    pub told_failed: Option<(Name, bool)>,
    /// What tenancy was ever told to have failed.
    pub told_ever: BTreeSet<Name>,
    /// When what tenancy was told to be applied was found healthy.
    pub told_applied: Option<(Name, i64)>,
    pub broken: BTreeSet<Rule>,
}

impl Ghost {
    /// Another tick begins.
    pub fn begin(&mut self, force: bool) {
        *self = Ghost {
            force,
            accepted: std::mem::take(&mut self.accepted),
            taken: std::mem::take(&mut self.taken),
            recorded: std::mem::take(&mut self.recorded),
            quarantined: self.quarantined,
            told_failed: self.told_failed,
            told_ever: std::mem::take(&mut self.told_ever),
            told_applied: self.told_applied,
            broken: std::mem::take(&mut self.broken),
            ..Ghost::default()
        };
    }

    fn must(&mut self, rule: Rule, so: bool) {
        if !so {
            self.broken.insert(rule);
        }
    }

    /// Nobody can know by then what had been rolled back.
    pub fn state_is_lost(&mut self) {
        self.quarantined = None;
    }

    /// Whether the bundle is left alone.
    fn quarantines(&self, name: Name) -> bool {
        self.quarantined == Some(name)
    }

    /// Judges an operation that is about to be carried out.
    pub fn before(&mut self, op: &Op, disk: &Disk, world: &World, now: Stamp) {
        if self.refused {
            let fine = matches!(op, Op::SaveState(_) | Op::SaveReport(_) | Op::SendReport(_) | Op::DropReport(_));
            self.must(Rule::RefusedLeadsToNothing, fine);
        }
        match op {
            Op::AskLease(_) => {
                self.asks += 1;
                self.must(Rule::AValidTokenNeverLeases, !valid_lease_token(world, disk));
                self.must(Rule::AValidTokenNeverLeases, self.asks <= 1 + self.deaths.min(1));
                self.must(Rule::AValidTokenNeverLeases, world.granted < 5);
                let noted = disk.state.leases.contains(&now);
                self.must(Rule::AValidTokenNeverLeases, noted);
            }
            Op::Pull(pull) => {
                let left_alone = self.quarantines(Name::of(&pull.sha)) && !self.force;
                self.must(Rule::QuarantineHolds, !left_alone);
            }
            Op::Promote(promote) => {
                let noted = disk.state.unfinished.as_ref().is_some_and(|goal| goal.sha == promote.sha);
                self.must(Rule::PromotedIsDurableFirst, noted);
            }
            Op::Up(up) => {
                let complete = disk.releases.get(&up.sha) == Some(&true) && disk.current.as_ref() == Some(&up.sha);
                self.must(Rule::NothingUnpulledComesUp, complete && world.pulled.contains(&Name::of(&up.sha)));
            }
            Op::SaveState(save) => self.before_save(&save.state, disk, now),
            Op::SaveReport(save) => {
                let durable = disk.state.outcome.as_ref() == Some(&*save.report);
                self.must(Rule::DurableBeforeTold, durable);
            }
            Op::SendReport(send) => {
                let there = disk.outbox.iter().any(|report| report.report_id == send.report_id);
                self.must(Rule::DurableBeforeTold, there);
            }
            Op::DropReport(drop) => {
                let accepted = self.accepted.contains(&drop.report_id);
                self.must(Rule::DurableBeforeTold, accepted);
            }
            _ => {}
        }
    }

    fn before_save(&mut self, new: &state::State, disk: &Disk, now: Stamp) {
        let old = &disk.state;
        let (was, is) = (old.applied(), new.applied());
        if was.map(|applied| (&applied.sha, applied.at)) != is.map(|applied| (&applied.sha, applied.at)) {
            let seen = is.is_some_and(|is| self.healthy == Some(Name::of(&is.sha)) && is.at == now);
            self.must(Rule::AppliedOnlyAfterHealthy, seen);
        }
        let back = old.unfinished.as_ref().is_some_and(|goal| goal.instead_of.is_some());
        let floor = |applied: Option<&state::Applied>| applied.and_then(|applied| applied.generation);
        self.must(Rule::TheFloorNeverFalls, back || floor(is) >= floor(was));
        if new.last_at != old.last_at {
            let whole = new.outcome.as_ref().is_some_and(|told| Some(told.at) == new.last_at);
            self.must(Rule::DurableBeforeTold, whole);
        }
        if let Some(told) = &old.outcome
            && new.outcome.as_ref() != Some(told)
        {
            let kept = disk.outbox.contains(told) || self.accepted.contains(&told.report_id);
            self.must(Rule::DurableBeforeTold, kept);
        }
    }

    fn record(&mut self, report: &report::Report) {
        let began = report.at.0 - i64::try_from(report.duration_ms).unwrap();
        let id = self.recorded.entry((Name::of(&report.sha), began)).or_insert_with(|| report.report_id.clone());
        let same = *id == report.report_id;
        self.must(Rule::RecordedOnce, same);
    }

    /// Remembers an answer.
    pub fn after(&mut self, op: &Op, event: &Event, fault: Option<Fault>, disk: &Disk) {
        match (op, event) {
            (Op::SaveState(save), _) if disk.state == *save.state => {
                if let Some(told) = &save.state.outcome {
                    self.record(told);
                }
                if let Some(failed) = save.state.unfinished.as_ref().and_then(|goal| goal.instead_of.as_ref()) {
                    let failed = Name::of(&failed.sha);
                    // Unless it was desired no more by then: it may be desired anew.
                    if self.desired.is_none_or(|desired| desired == failed) {
                        self.quarantined = Some(failed);
                    }
                }
            }
            (Op::SaveReport(save), _) if disk.outbox.contains(&save.report) => self.record(&save.report),
            (_, Event::CheckedIn(Ok(desired))) => {
                let desired = desired.desired_sha.as_ref().map(Name::of);
                self.desired = desired;
                if desired.is_some() && desired != self.quarantined {
                    self.quarantined = None;
                }
                if desired.is_some() {
                    self.told_failed = self.told_failed.filter(|(name, _)| desired == Some(*name));
                }
            }
            (
                _,
                Event::BundleFetched(Err(BundleFault::Refused(_))) | Event::ModelRead(Err(ComposeFault::Refused(_))),
            ) => {
                self.refused = true;
            }
            (_, Event::BundleFetched(Ok(facts))) => {
                let older = |applied: &state::Applied| {
                    applied.sha != facts.content_sha && facts.meta.generation < applied.generation
                };
                self.refused = disk.state.applied().is_some_and(older);
            }
            (_, Event::SecretRead(Err(SecretFault::Bao(BaoFault::Denied { .. })))) => self.denied_read = true,
            (_, Event::TokenLookedUp(Err(BaoFault::Denied { .. }))) if self.denied_read => self.deaths += 1,
            (Op::Up(up), Event::CameUp(Ok(_))) => self.came_up = Some(Name::of(&up.sha)),
            (_, Event::Inspected(Ok(containers))) => {
                let fine = |c: &containers::Container| c.health == Some(containers::Health::Healthy);
                let all = !containers.is_empty() && containers.iter().all(fine);
                self.healthy = self.came_up.filter(|_| all);
            }
            (Op::SendReport(send), Event::ReportSent(sent)) => {
                let taken = matches!(fault, None | Some(Fault::Lost | Fault::Status(422)));
                if taken && (sent.is_ok() || fault.is_some()) {
                    if fault != Some(Fault::Lost) {
                        self.accepted.insert(send.report_id.clone());
                    }
                    let news = self.taken.insert(send.report_id.clone());
                    let report = disk.outbox.iter().find(|report| report.report_id == send.report_id);
                    if let Some(report) = report.filter(|_| news) {
                        match report.result {
                            Outcome::Applied => self.told_applied = Some((Name::of(&report.sha), report.at.0)),
                            Outcome::Failed => {
                                self.told_failed = Some((Name::of(&report.sha), report.rolled_back));
                                self.told_ever.insert(Name::of(&report.sha));
                                // It tells what is applied now, too.
                                let good = disk.state.applied().filter(|_| report.rolled_back);
                                self.told_applied =
                                    good.map(|good| (Name::of(&good.sha), report.at.0)).or(self.told_applied);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }
}
