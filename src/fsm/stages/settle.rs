//! What an end changes in the state, what tenancy is told of it, and what is not needed any more.
//!
//! Invariant: `good` grows only by a release that is healthy; plain functions of what is known, no effect is asked for.

use std::collections::BTreeSet;

use super::{Attempt, Conclusion};
use crate::effects::by_service;
use crate::effects::containers::{Container, ContainerState};
use crate::effects::failure::Code;
use crate::effects::report::{Outcome, Report as Told, ReportedContainer};
use crate::effects::state::{Applied, Attempts, LastError, LastResult, Promotion, State};
use crate::effects::{Sha, Stamp};
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Core;
use crate::fsm::{StageName, retry};

/// Promotions that are remembered at least.
const PROMOTIONS: usize = 10;

/// Writes the conclusion into the state. What tenancy is to be told comes back.
pub(super) fn settle(core: &mut Core, conclusion: &Conclusion) -> Option<Told> {
    let now = core.now;
    remember_trouble(core, conclusion);
    match conclusion {
        Conclusion::Applied { goal, seen } => {
            let state = &mut core.state;
            state.unfinished = None;
            state.in_doubt = false;
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
            core.state.last_at = Some(now);
            core.state.last_result = Some(LastResult::Failed);
            core.state.last_error = Some(error.clone());
            Some(tell(core, attempt, Some(&error), false, failure.phase.as_str(), seen))
        }
        Conclusion::Unchanged { .. } => {
            // A forced apply of it may have failed. It runs and is healthy: that is over, and will not be tried again.
            core.state.attempts.clear();
            core.state.last_error = None;
            None
        }
        Conclusion::Deferred { .. }
        | Conclusion::Offline
        | Conclusion::Idle
        | Conclusion::Held { .. }
        | Conclusion::TooEarly { .. }
        | Conclusion::Quarantined { .. } => None,
    }
}

/// What is in the way now, and what was before and is not known to be over.
fn remember_trouble(core: &mut Core, conclusion: &Conclusion) {
    let (reached, new) = match conclusion {
        // It knows nothing new.
        Conclusion::Offline => return,
        Conclusion::Applied { .. } => (StageName::Done, None),
        Conclusion::Failed { failure, .. } => (failure.phase, None),
        Conclusion::Deferred { failure, attempt: Some(_) } => (failure.phase, Some(failure)),
        Conclusion::Deferred { failure, attempt: None } => (StageName::Checkin, Some(failure)),
        Conclusion::Unchanged { .. }
        | Conclusion::Idle
        | Conclusion::Held { .. }
        | Conclusion::TooEarly { .. }
        | Conclusion::Quarantined { .. } => (StageName::Checkin, None),
    };
    let wanted = !matches!(conclusion, Conclusion::Unchanged { .. } | Conclusion::Idle);
    let mut before: Vec<LastError> = core.state.trouble.take().into_iter().collect();
    before.append(&mut core.state.unsolved);
    let new = new.map(|failure| {
        // The same trouble as a minute ago is not written again: `at` tells since when.
        let same = |trouble: &&LastError| trouble.code == failure.code && trouble.phase == failure.phase.as_str();
        before.iter().find(same).cloned().unwrap_or_else(|| last_error(failure, core.now))
    });
    before.retain(|old| new.as_ref().is_none_or(|new| new.code != old.code) && goes_on(core, reached, wanted, old));
    let mut all = new.into_iter().chain(before);
    core.state.trouble = all.next();
    core.state.unsolved = all.collect();
}

/// Whether an earlier trouble is not known to be over after a tick that came as far as this stage, and after which a
/// deploy is still wanted, or not.
fn goes_on(core: &Core, reached: StageName, wanted: bool, trouble: &LastError) -> bool {
    let stage = StageName::ALL.iter().find(|stage| stage.as_str() == trouble.phase);
    if stage == Some(&StageName::Checkin) {
        // Only tenancy's own word ends it; one way of not answering takes the place of another.
        return !core.tenancy_up && reached > StageName::Checkin;
    }
    if stage.is_none_or(|stage| *stage <= reached) {
        return false;
    }
    let local = &core.local;
    let grant = local.grant.as_ref().is_some_and(|grant| grant.expires_at.is_none_or(|end| end > core.now));
    // One that OpenBao called dead may still lie there; then nothing is remembered of it.
    let way_in = core.state.token.is_some() || local.bootstrap || grant;
    // What is about the box's way to secrets is in the way of the next deploy, whenever that comes.
    if trouble.code == Code::LeaseRateLimited {
        let state = &core.state;
        !way_in && retry::lease_free_at(&state.leases, state.lease_not_before, core.now).is_some()
    } else if trouble.code == Code::GrantRejected {
        !way_in
    } else {
        // Without something to ask about nobody would hear that it is back.
        wanted || (trouble.code == Code::BaoUnavailable && (local.token.is_some() || local.bootstrap))
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
pub(super) fn needed(core: &Core, seen: &[Container]) -> Vec<Sha> {
    let state = &core.state;
    let good = state.good.iter().map(|good| &good.sha);
    let mounted = seen.iter().filter_map(|c| promotion_of(&state.promotions, c)).map(|promotion| &promotion.sha);
    let unfinished = state.unfinished.iter().map(|goal| &goal.sha);
    let all: BTreeSet<&Sha> = good.chain(mounted).chain(unfinished).chain(&core.local.current).collect();
    all.into_iter().cloned().collect()
}

pub(super) fn unneeded_images(state: &State, seen: &[Container]) -> Vec<String> {
    let needed: BTreeSet<&String> =
        state.good.iter().flat_map(|good| &good.images).chain(seen.iter().map(|c| &c.image_id)).collect();
    state.images.iter().filter(|id| !needed.contains(id)).cloned().collect()
}
