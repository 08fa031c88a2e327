//! Each rule of the machine that turns on an exact number or an exact thing, on both sides of it.
//!
//! Invariant: two lines of a table differ in one thing only, and the tick ends differently.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use common::script::*;
use monky_deployd::effects::failure::Code;
use monky_deployd::effects::state::Attempts;
use monky_deployd::effects::{Event, GrantFacts, OpName, Stamp};
use monky_deployd::fsm::Boot;
use monky_deployd::fsm::stages::Done;

/// A box that runs "a", changed.
fn a_box(change: impl FnOnce(&mut Boot)) -> Boot {
    let mut boot = running_a();
    change(&mut boot);
    boot
}

fn end(done: &Done) -> (&str, Option<Code>) {
    (done.word.as_str(), done.code)
}

#[test]
fn a_backoff_is_over_at_its_very_moment() {
    // The answer to the check-in comes a second after the tick began.
    for (ends_ms, word) in [(1000, "applied"), (1001, "too_early")] {
        let boot = a_box(|boot| {
            let next_at = Some(NOW.plus_ms(ends_ms));
            boot.state.attempts.insert(sha("b"), Attempts { count: 1, next_at, quarantined: false });
        });
        assert_eq!(run(boot, Script::default()).done.word, word, "{ends_ms} ms");
    }
}

#[test]
fn only_a_generation_below_the_applied_one_is_a_rollback() {
    let (good, refused) = (("applied", None), ("failed", Some(Code::RollbackRefused)));
    for (generation, wanted) in [(4, refused), (5, good), (6, good)] {
        let boot = a_box(|boot| boot.state.good[0].generation = Some(5));
        let trace = run(boot, Script::default().facts(|facts| facts.meta.generation = Some(generation)));
        assert_eq!(end(&trace.done), wanted, "generation {generation}");
    }
}

#[test]
fn without_generations_only_a_bundle_that_was_applied_before_is_a_rollback() {
    let (good, refused) = (("applied", None), ("failed", Some(Code::RollbackRefused)));
    for (before, wanted) in [("b", refused), ("c", good)] {
        let boot = a_box(|boot| {
            boot.state.good[0].generation = None;
            boot.state.earlier = vec![sha(before)];
        });
        let trace = run(boot, Script::default().facts(|facts| facts.meta.generation = None));
        assert_eq!(end(&trace.done), wanted, "{before} was applied before");
    }
}

#[test]
fn a_token_is_renewed_before_a_deploy_when_no_more_than_its_limit_is_left() {
    for (ttl_s, renewals) in [(600, 1), (601, 0)] {
        let looked_up = Event::TokenLookedUp(Ok(token(ttl_s)));
        let trace = run(running_a(), Script::default().next(looked_up));
        assert_eq!(
            (end(&trace.done), trace.count(OpName::RenewToken)),
            (("applied", None), renewals),
            "{ttl_s} s left"
        );
    }
}

#[test]
fn a_tick_without_a_deploy_asks_after_a_token_a_little_before_its_limit_or_when_the_clock_went_back() {
    // The answer to the check-in comes a second after the tick began; then 600 s and 120 s ahead are what counts.
    let seen = |since_ms: i64, ttl_s: u64| {
        a_box(|boot| {
            let token = boot.state.token.as_mut().unwrap();
            (token.seen_at, token.ttl_s) = (NOW.plus_ms(1000 - since_ms), Some(ttl_s));
        })
    };
    for (since_ms, ttl_s, lookups) in
        [(0, 720, 1), (0, 721, 0), (2_280_000, 3000, 1), (2_279_000, 3000, 0), (0, 3000, 0), (-1, 3000, 1)]
    {
        let trace = run(seen(since_ms, ttl_s), Script::default().desired("a", 1));
        let asked = (end(&trace.done), trace.count(OpName::LookupToken));
        assert_eq!(asked, (("unchanged", None), lookups), "seen {since_ms} ms ago with {ttl_s} s");
    }
}

#[test]
fn a_tick_without_a_deploy_renews_a_little_before_the_limit() {
    for (ttl_s, renewals) in [(720, 1), (721, 0)] {
        let boot = a_box(|boot| boot.state.token.as_mut().unwrap().ttl_s = Some(100));
        let looked_up = Event::TokenLookedUp(Ok(token(ttl_s)));
        let trace = run(boot, Script::default().desired("a", 1).next(looked_up));
        assert_eq!(
            (end(&trace.done), trace.count(OpName::RenewToken)),
            (("unchanged", None), renewals),
            "{ttl_s} s left"
        );
    }
}

#[test]
fn a_grant_that_ends_at_this_very_moment_is_over() {
    let with_grant = |expires_at: Option<Stamp>| {
        let boot = a_box(|boot| {
            (boot.state.token, boot.local.token) = (None, None);
            boot.local.grant = Some(GrantFacts { expires_at, role: None });
        });
        run(boot, Script::default())
    };
    // Each effect takes a second: so many before the login that needs no lease.
    let without_end = with_grant(None);
    let before = without_end.names().iter().position(|name| *name == OpName::Login).unwrap();
    let moment = NOW.plus_s(i64::try_from(before).unwrap());
    for (ends, leases) in [(moment, 1), (moment.plus_ms(1), 0)] {
        let trace = with_grant(Some(ends));
        assert_eq!((end(&trace.done), trace.count(OpName::AskLease)), (("applied", None), leases), "{ends:?}");
    }
}
