//! Each rule of the machine that turns on an exact number or an exact thing, on both sides of it.
//!
//! Invariant: two lines of a table differ in one thing only, and the tick ends differently.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use common::script::*;
use std::collections::BTreeMap;

use monky_deployd::effects::containers::{Container, ContainerState, Health};
use monky_deployd::effects::failure::Code;
use monky_deployd::effects::manifest::{Entry, Manifest};
use monky_deployd::effects::model::{Model, Service};
use monky_deployd::effects::state::{Attempts, Promotion};
use monky_deployd::effects::{Event, GrantFacts, LogTail, OnUnhealthy, Op, OpName, Sha, Stamp, TokenFacts, ValueUse};
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, faults};

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

#[test]
fn the_ends_of_the_logs_of_what_failed_share_half_of_the_room_for_a_detail() {
    let services = |n: usize| (0..n).map(|i| format!("s{i}")).collect::<Vec<String>>();
    for n in [1, 2, 3] {
        let goal: BTreeMap<String, Service> =
            services(n).into_iter().map(|s| (s, common::script::services()["web"].clone())).collect();
        let model = Model { services: goal, ..Model::default() };
        let sick = |service: String| Container {
            id: service.clone(),
            service,
            ..container("", ContainerState::Running, Some(Health::Unhealthy))
        };
        let log = |service: String| LogTail { service, text: said(&"x".repeat(faults::DETAIL)) };
        let script = Script::default()
            .next(Event::ModelRead(Ok(model)))
            .next(Event::Inspected(Ok(Vec::new())))
            .next(Event::Inspected(Ok(services(n).into_iter().map(sick).collect())))
            .next(Event::LogsRead(Ok(services(n).into_iter().map(log).collect())));
        let trace = run(running_a(), script);
        assert_eq!(end(&trace.done), ("failed", Some(Code::Unhealthy)));
        let wanted = format!("says: …{}", "x".repeat(faults::DETAIL / 2 / n));
        let (said, share) = (&trace.done.detail, wanted.chars().count());
        assert!(said.matches(&wanted).count() >= 1 && !said.contains(&format!("{wanted}x")), "{n}, {share}: {said}");
    }
}

#[test]
fn images_that_nobody_needs_are_removed_only_when_that_is_asked_for_and_all_is_well() {
    for (prune, pulled, removed) in [(false, true, 0), (true, true, 1), (true, false, 0)] {
        let boot = a_box(|boot| {
            boot.options.prune = prune;
            boot.state.images.insert("sha256:old".to_owned());
        });
        let script = Script::default();
        let script = if pulled { script } else { script.next(Event::Pulled(Err(refused_run("no")))) };
        let trace = run(boot, script);
        assert_eq!(trace.count(OpName::RemoveImages), removed, "prune {prune}, pulled {pulled}:\n{}", trace.text);
    }
}

#[test]
fn one_path_is_read_once_for_each_of_its_versions() {
    let entry = |name: &str, version: Option<u64>| Entry {
        usage: ValueUse::Env(name.to_owned()),
        path: "monky/env-qa-02/db".to_owned(),
        key: "value".to_owned(),
        version,
    };
    for (versions, reads) in [([None, None], 1), ([Some(3), Some(3)], 1), ([Some(3), Some(4)], 2), ([None, Some(4)], 2)]
    {
        let entries = vec![entry("DB_PASSWORD", versions[0]), entry("DB_USER", versions[1])];
        let script = Script::default().facts(|facts| {
            facts.manifest = Ok(Manifest { entries });
            facts.template = None;
        });
        let trace = run(running_a(), script);
        assert_eq!((end(&trace.done), trace.count(OpName::ReadSecret)), (("applied", None), reads), "{versions:?}");
    }
}

#[test]
fn what_was_applied_before_is_remembered_once_in_order_and_the_last_fifty_of_it() {
    let boot = |earlier: Vec<Sha>| {
        a_box(|boot| {
            boot.settings.keep_releases = 1;
            boot.state.earlier = earlier;
        })
    };
    let trace = run(boot(vec![sha("x"), sha("b"), sha("a")]), Script::default());
    assert_eq!(trace.state.earlier, [sha("x"), sha("a")]);
    let many: Vec<Sha> = (0..50).map(|n| sha(&format!("old {n}"))).collect();
    let trace = run(boot(many.clone()), Script::default());
    assert_eq!(trace.state.earlier, [&many[1..], &[sha("a")]].concat());
    let kept: Vec<Sha> = trace.state.good.into_iter().map(|good| good.sha).collect();
    assert_eq!(kept, [sha("b")]);
}

#[test]
fn a_promotion_is_remembered_while_it_is_one_of_the_last_ten_or_a_container_was_started_under_it() {
    let at = |n: i64| NOW.plus_s(n * 10 - 7200);
    let name = |n: i64| sha(&format!("promotion {n}"));
    let boot = a_box(|boot| boot.state.promotions = (0..12).map(|n| Promotion { sha: name(n), at: at(n) }).collect());
    let old = |started: Option<Stamp>| {
        let mut other = container("db", ContainerState::Running, Some(Health::Healthy));
        other.started = started;
        let web = container("web", ContainerState::Running, Some(Health::Healthy));
        let look = || Event::Inspected(Ok(vec![web.clone(), other.clone()]));
        let trace = run(boot.clone(), Script::default().next(look()).next(look()));
        let Some(Op::PruneReleases(prune)) = trace.ops.iter().find(|op| op.name() == OpName::PruneReleases) else {
            panic!("{}", trace.text)
        };
        let remembered: Vec<i64> =
            (0..12).filter(|n| trace.state.promotions.iter().any(|promotion| promotion.sha == name(*n))).collect();
        let folders: Vec<i64> = (0..12).filter(|n| prune.keep.contains(&name(*n))).collect();
        (remembered, folders)
    };
    let ten = |first: &[i64]| [first, &[3, 4, 5, 6, 7, 8, 9, 10, 11]].concat();
    assert_eq!(old(None), (ten(&[]), vec![]));
    assert_eq!(old(Some(at(1))), (ten(&[1]), vec![1]));
    assert_eq!(old(Some(at(1).plus_ms(-1))), (ten(&[0]), vec![0]));
    assert_eq!(old(Some(at(2).plus_ms(-1))), (ten(&[1]), vec![1]));
    assert_eq!(old(Some(at(0).plus_ms(-1))), (ten(&[0]), vec![0]), "older than all that is known: the oldest");
    assert_eq!(old(Some(at(7))), (ten(&[]), vec![7]));
}

#[test]
fn a_login_that_is_forbidden_is_survived_only_by_a_bootstrap_grant_beside_a_saved_token() {
    let (good, rejected) = (("applied", None), ("failed", Some(Code::GrantRejected)));
    let cases = [(true, true, good), (true, false, rejected), (false, true, rejected), (false, false, rejected)];
    for (bootstrap, saved, wanted) in cases {
        let boot = a_box(|boot| {
            boot.local.bootstrap = bootstrap;
            if !saved {
                boot.local.token = None;
                boot.state.token = None;
            }
        });
        let script = Script::default().next(Event::LoggedIn(Err(denied())));
        // A leased grant is used beside a saved token only if that is to be replaced.
        let dying = TokenFacts { renewable: false, ..token(100) };
        let script = if !bootstrap && saved { script.next(Event::TokenLookedUp(Ok(dying))) } else { script };
        let trace = run(boot, script);
        let told = (trace.count(OpName::Login), end(&trace.done));
        assert_eq!(told, (1, wanted), "bootstrap grant: {bootstrap}, saved token: {saved}: {}", trace.text);
    }
}

#[test]
fn only_a_release_whose_folder_is_there_is_brought_back() {
    let none = Event::Inspected(Ok(Vec::new()));
    let sick = Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Unhealthy))]));
    for (folders, back) in [(["a", "c"], "c"), (["a", "b"], "a")] {
        let boot = a_box(|boot| {
            boot.settings.on_unhealthy = OnUnhealthy::Rollback;
            boot.state.good.push(applied("c", Some(1)));
            boot.local.releases = folders.map(sha).into();
        });
        let trace = run(boot, Script::default().next(none.clone()).next(sick.clone()));
        let ups = trace.ops.iter().filter_map(|op| if let Op::Up(up) = op { Some(up.sha.clone()) } else { None });
        assert_eq!(ups.collect::<Vec<_>>(), [sha("b"), sha(back)], "{folders:?}: {}", trace.text);
    }
}
