//! Every way through the machine, as the exact effects that each step asks for.
//!
//! Invariant: a scenario asserts what matters in words *and* keeps the whole trace as a snapshot; together the
//! scenarios take every edge of the table and no other.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::script::*;
use monky_deployd::effects::containers::{ContainerState, Health};
use monky_deployd::effects::failure::Code;
use monky_deployd::effects::policy::{Demand, Rule, Stance};
use monky_deployd::effects::report::Outcome;
use monky_deployd::effects::state::{Attempts, Cause, Goal, Hold, LastError, LastResult, Promotion, TokenSource};
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Exit;
use monky_deployd::fsm::{Boot, EDGES, Input, Level, Machine, StageName};

/// A scenario: a box, a world, and what must be so at the end.
struct Scenario {
    name: &'static str,
    boot: Boot,
    script: Script,
    check: fn(&Trace),
}

fn scenario(name: &'static str, boot: Boot, script: Script, check: fn(&Trace)) -> Scenario {
    Scenario { name, boot, script, check }
}

fn change(mut boot: Boot, change: impl FnOnce(&mut Boot)) -> Boot {
    change(&mut boot);
    boot
}

/// A box that was bootstrapped and never deployed.
fn bootstrapped() -> Boot {
    change(fresh(), |boot| boot.local.bootstrap = true)
}

/// A box with a working bootstrap token, whose swap was put off.
fn on_bootstrap_token() -> Boot {
    change(running_a(), |boot| boot.local.token = Some(TokenSource::Bootstrap))
}

/// A box whose agent was interrupted while it brought up "b".
fn interrupted_b() -> Boot {
    change(running_a(), |boot| {
        boot.local.releases.push(sha("b"));
        boot.local.current = Some(sha("b"));
        boot.state.promotions.push(Promotion { sha: sha("b"), at: NOW.plus_s(-50) });
        boot.state.unfinished = Some(Goal {
            sha: sha("b"),
            generation: Some(2),
            attempt: 1,
            cause: Cause::NewSha,
            since: NOW.plus_s(-60),
            services: services(),
            secrets: BTreeMap::new(),
            on_unhealthy: OnUnhealthy::Keep,
            healthy_timeout_s: 300,
            instead_of: None,
        });
    })
}

fn rolls_back(boot: Boot) -> Boot {
    change(boot, |boot| boot.settings.on_unhealthy = OnUnhealthy::Rollback)
}

/// A box whose agent was interrupted while it brought "a" back because "b" had failed.
fn in_rollback() -> Boot {
    let none = Event::Inspected(Ok(Vec::new()));
    let gone = Event::Inspected(Err(RunFault::Unavailable { detail: said("Cannot connect") }));
    let script = Script::default().next(none).next(sick()).next(well()).next(gone);
    let half = run(rolls_back(running_a()), script);
    change(running_a(), |boot| {
        boot.now = NOW.plus_s(60);
        boot.state = half.state;
        boot.local.releases.push(sha("b"));
    })
}

/// A model that asks for some of what a policy speaks of.
fn asks() -> Event {
    let demand = |rule, service: &str, key: &str, what: &str, path: Option<&str>| Demand {
        rule,
        service: service.to_owned(),
        key: format!("services.{service}.{key}"),
        what: what.to_owned(),
        path: path.map(str::to_owned),
    };
    let demands = vec![
        demand(Rule::Privileged, "web", "privileged", "is \"true\"", None),
        demand(Rule::Capabilities, "web", "cap_add[0]", "is \"NET_ADMIN\"", None),
        demand(Rule::Privileged, "db", "privileged", "is \"true\"", None),
        demand(Rule::Binds, "db", "volumes[0]", "mounts \"/etc\" of the box", Some("/etc")),
        demand(Rule::Binds, "db", "volumes[1]", "mounts \"/srv/data\" of the box", Some("/srv/data")),
    ];
    Event::ModelRead(Ok(model::Model { services: services(), demands, ..Default::default() }))
}

/// A mount of the whole release.
fn closed() -> BTreeMap<String, Vec<model::Closed>> {
    let whole = model::Closed { target: "/m".to_owned(), path: String::new(), bind: None };
    BTreeMap::from([("db".to_owned(), vec![whole])])
}

/// A box whose owner has said something.
fn owned(boot: Boot, rules: &[(Rule, Stance)]) -> Boot {
    change(boot, |boot| {
        boot.settings.policy.rules.extend(rules.iter().copied());
        boot.settings.policy.bind_roots = vec!["/srv".to_owned()];
    })
}

fn sick() -> Event {
    Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Unhealthy))]))
}

fn well() -> Event {
    Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Healthy))]))
}

fn starting() -> Event {
    Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Starting))]))
}

fn never_touched(t: &Trace) {
    for op in &t.ops {
        let kind = op.name().kind();
        assert!(!matches!(kind, Kind::Lease | Kind::Run), "{op:?} in\n{}", t.text);
    }
}

fn failed_with(t: &Trace, code: Code) {
    assert_eq!(t.done.code, Some(code), "{}", t.text);
    assert_eq!(t.done.exit, Exit::Failed, "{}", t.text);
    let report = t.report().expect("a failure is reported");
    assert_eq!((report.result, report.code), (Outcome::Failed, Some(code)));
}

fn refused_with(t: &Trace, code: Code) {
    failed_with(t, code);
    never_touched(t);
    let detail = t.report().and_then(|report| report.detail.clone()).unwrap_or_default();
    assert!(detail.starts_with(code.as_str()), "{detail}");
}

fn deferred_with(t: &Trace, code: Code) {
    assert_eq!((t.done.exit, t.done.code), (Exit::Temporary, Some(code)), "{}", t.text);
    assert!(t.report().is_none(), "what is temporary is told with the next check-in: {}", t.text);
    assert_eq!(t.state.trouble.as_ref().map(|trouble| trouble.code), Some(code));
}

fn applied_b(t: &Trace) {
    assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Ok, "applied"), "{}", t.text);
    assert_eq!(t.state.applied().map(|applied| applied.sha.clone()), Some(sha("b")));
    assert_eq!(t.state.unfinished, None);
    assert_eq!(t.report().map(|report| report.result), Some(Outcome::Applied));
}

fn scenarios() -> Vec<Scenario> {
    let mut all = checkin();
    all.extend(bundle());
    all.extend(token_rule());
    all.extend(secrets());
    all.extend(pull_and_up());
    all.extend(health_and_rollback());
    all.extend(reports());
    all
}

fn held_for_an_hour() -> Boot {
    change(running_a(), |boot| {
        boot.state.hold = Some(Hold { reason: "freeze".to_owned(), since: NOW.plus_s(-3600) });
    })
}

/// A box that knows of such troubles for an hour, the newest first.
fn troubled(boot: Boot, troubles: &[(Code, StageName)]) -> Boot {
    change(boot, |boot| {
        let trouble = |(code, phase): &(Code, StageName)| LastError {
            code: *code,
            phase: phase.as_str().to_owned(),
            detail: "since an hour".to_owned(),
            at: NOW.plus_s(-3600),
        };
        let mut all = troubles.iter().map(trouble);
        boot.state.trouble = all.next();
        boot.state.unsolved = all.collect();
    })
}

/// A box without a token that has spent its leases.
fn locked_out() -> Boot {
    change(running_a(), |boot| {
        boot.local.token = None;
        boot.state.token = None;
        boot.state.leases = (1..=5).map(|m| NOW.plus_s(-600 * m)).rev().collect();
    })
}

#[test]
fn a_trouble_stays_until_what_it_is_about_is_over() {
    use Code::*;
    use StageName::{Bundle, Checkin, Pull, Secrets, Token};
    let unchanged = || Script::default().desired("a", 1);
    let nothing = || Script::default().next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: None })));
    let held = || {
        let desired = Desired { desired_sha: Some(sha("b")), hold: Some("freeze".to_owned()) };
        Script::default().next(Event::CheckedIn(Ok(desired)))
    };
    let away = || Script::default().next(Event::CheckedIn(Err(unreachable())));
    let grant = |seconds: Option<i64>| {
        change(locked_out(), |boot| {
            let expires_at = seconds.map(|s| NOW.plus_s(s));
            boot.local.grant = Some(GrantFacts { expires_at, role: None });
        })
    };
    let no_token = || change(locked_out(), |boot| boot.state.leases.clear());
    let refused = || Script::default().next(Event::BundleFetched(Err(BundleFault::Refused(refusal(BundleInvalid)))));
    let pull_fails = || Script::default().next(Event::Pulled(Err(refused_run("no"))));
    let no_pull = || Script::default().next(Event::Pulled(Err(RunFault::Unavailable { detail: said("no daemon") })));
    let sealed_now = || Script::default().next(Event::TokenLookedUp(Err(sealed())));
    /// Why; the box; its troubles before; what happens; their codes after.
    type Case = (&'static str, Boot, &'static [(Code, StageName)], Script, &'static [Code]);
    let mut table: Vec<Case> = vec![
        ("it answered", running_a(), &[(TenancyUnreachable, Checkin)], unchanged(), &[]),
        ("it answered, with nothing", running_a(), &[(TenancyError, Checkin)], nothing(), &[]),
        ("it is away now", running_a(), &[(TenancyError, Checkin)], away(), &[TenancyUnreachable]),
        ("no bundle is wanted", running_a(), &[(TenancyError, Bundle)], unchanged(), &[]),
        ("nor here", running_a(), &[(DockerUnavailable, Bundle)], nothing(), &[]),
        ("it is wanted later", running_a(), &[(DockerUnavailable, Pull)], held(), &[DockerUnavailable]),
        (
            "nobody could look",
            running_a(),
            &[(DockerUnavailable, Pull)],
            away(),
            &[TenancyUnreachable, DockerUnavailable],
        ),
        ("it came past that", running_a(), &[(DockerUnavailable, Bundle)], pull_fails(), &[]),
        ("it came just there", running_a(), &[(DockerUnavailable, Pull)], pull_fails(), &[]),
        ("it did not come there", running_a(), &[(DockerUnavailable, Pull)], refused(), &[DockerUnavailable]),
        ("applied", running_a(), &[(DockerUnavailable, Pull), (BaoUnavailable, Token)], Script::default(), &[]),
        ("the same again", running_a(), &[(DockerUnavailable, Pull)], no_pull(), &[DockerUnavailable]),
        ("the same elsewhere", running_a(), &[(DockerUnavailable, StageName::Up)], no_pull(), &[DockerUnavailable]),
        ("one passed, one new", running_a(), &[(BaoUnavailable, Secrets)], no_pull(), &[DockerUnavailable]),
        (
            "one before the other",
            running_a(),
            &[(DockerUnavailable, Pull)],
            sealed_now(),
            &[BaoUnavailable, DockerUnavailable],
        ),
        ("no lease yet", locked_out(), &[(LeaseRateLimited, Token)], unchanged(), &[LeaseRateLimited]),
        ("nor with nothing to do", locked_out(), &[(LeaseRateLimited, Token)], nothing(), &[LeaseRateLimited]),
        ("nor under a hold", locked_out(), &[(LeaseRateLimited, Token)], held(), &[LeaseRateLimited]),
        ("nor after a refusal", locked_out(), &[(LeaseRateLimited, Token)], refused(), &[LeaseRateLimited]),
        (
            "nor when tenancy is away",
            locked_out(),
            &[(LeaseRateLimited, Token)],
            away(),
            &[TenancyUnreachable, LeaseRateLimited],
        ),
        (
            "it is back, the leases are not",
            locked_out(),
            &[(TenancyUnreachable, Checkin), (LeaseRateLimited, Token)],
            unchanged(),
            &[LeaseRateLimited],
        ),
        ("leases are free", no_token(), &[(LeaseRateLimited, Token)], unchanged(), &[]),
        ("a grant lives", grant(Some(60)), &[(LeaseRateLimited, Token)], unchanged(), &[]),
        ("a grant without an end", grant(None), &[(LeaseRateLimited, Token)], unchanged(), &[]),
        ("a grant is over", grant(Some(-60)), &[(LeaseRateLimited, Token)], unchanged(), &[LeaseRateLimited]),
        ("a grant ends now", grant(Some(1)), &[(LeaseRateLimited, Token)], unchanged(), &[LeaseRateLimited]),
        ("no grant was taken", no_token(), &[(GrantRejected, Token)], unchanged(), &[GrantRejected]),
        ("a token is there", running_a(), &[(GrantRejected, Token)], unchanged(), &[]),
        ("openbao speaks", running_a(), &[(BaoUnavailable, Secrets)], unchanged(), &[]),
        (
            "openbao is silent",
            running_a(),
            &[(BaoUnavailable, Token)],
            unchanged().next(Event::TokenLookedUp(Err(sealed()))),
            &[BaoUnavailable],
        ),
        ("openbao cannot be asked, and need not", no_token(), &[(BaoUnavailable, Token)], unchanged(), &[]),
        ("openbao will be asked", no_token(), &[(BaoUnavailable, Token)], held(), &[BaoUnavailable]),
        (
            "a token that is known to be dead is no way in",
            change(locked_out(), |boot| boot.local.token = Some(TokenSource::Lease)),
            &[(LeaseRateLimited, Token)],
            unchanged(),
            &[LeaseRateLimited],
        ),
        (
            "a rejection is an answer",
            change(locked_out(), |boot| boot.local.bootstrap = true),
            &[(BaoUnavailable, Token)],
            unchanged().next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("no") }))),
            &[GrantRejected],
        ),
        (
            "openbao speaks, and more is wrong",
            running_a(),
            &[(TenancyUnreachable, Checkin), (BaoUnavailable, Token)],
            unchanged(),
            &[],
        ),
    ];
    table.push((
        "a new grant waits",
        change(locked_out(), |boot| boot.local.bootstrap = true),
        &[(LeaseRateLimited, Token)],
        away(),
        &[TenancyUnreachable],
    ));
    table.push((
        "finished without tenancy",
        interrupted_b(),
        &[(TenancyUnreachable, Checkin)],
        away(),
        &[TenancyUnreachable],
    ));
    for (why, boot, before, script, after) in table {
        let t = run(troubled(boot, before), script);
        let found: Vec<Code> = t.state.troubles().map(|trouble| trouble.code).collect();
        assert_eq!(found, after, "{why}:\n{}", t.text);
        for trouble in t.state.troubles() {
            let (code, phase) = (trouble.code, trouble.phase.as_str());
            let known = before.iter().any(|(known, at)| *known == code && at.as_str() == phase);
            assert_eq!(trouble.at == NOW.plus_s(-3600), known, "{why}: since when\n{}", t.text);
        }
    }
}

#[test]
fn a_tick_that_knows_nothing_new_keeps_every_trouble() {
    let troubles = [(Code::TenancyUnreachable, StageName::Checkin), (Code::DockerUnavailable, StageName::Pull)];
    let boot = change(troubled(running_a(), &troubles), |boot| boot.settings.laptop_mode = true);
    let t = run(boot.clone(), Script::default().next(Event::CheckedIn(Err(unreachable()))));
    assert_eq!((t.done.word.as_str(), t.state), ("offline", boot.state));
}

#[test]
fn whether_openbao_is_back_is_asked_and_changes_no_end_but_a_token_that_needs_care_does() {
    let sealed = || Script::default().desired("a", 1).next(Event::TokenLookedUp(Err(sealed())));
    let boot = troubled(running_a(), &[(Code::BaoUnavailable, StageName::Token)]);
    let t = run(boot.clone(), sealed());
    assert_eq!((t.names(), t.done.exit), (vec![OpName::Checkin, OpName::LookupToken], Exit::Ok), "{}", t.text);
    let due = change(boot, |boot| boot.state.token.as_mut().unwrap().ttl_s = Some(100));
    assert_eq!(run(due, sealed()).done.exit, Exit::Temporary);
}

#[test]
fn tenancy_is_told_the_newer_of_a_trouble_and_a_failure() {
    let failed_at = |s: i64| {
        change(troubled(running_a(), &[(Code::DockerUnavailable, StageName::Pull)]), |boot| {
            let error = LastError {
                code: Code::ComposeRefused,
                phase: "bundle".to_owned(),
                detail: "build".to_owned(),
                at: NOW.plus_s(s),
            };
            boot.state.last_error = Some(error);
        })
    };
    // The trouble is an hour old.
    for (s, code) in [(-3601, "DOCKER_UNAVAILABLE"), (-3599, "COMPOSE_REFUSED")] {
        let t = run(failed_at(s), Script::default().desired("a", 1));
        let Op::Checkin(asked) = &t.ops[0] else { panic!("{}", t.text) };
        assert!(asked.last_error.as_ref().unwrap().starts_with(code), "{s}: {asked:?}");
    }
}

#[test]
fn a_trouble_of_a_stage_that_nobody_knows_is_over() {
    let boot = change(troubled(locked_out(), &[(Code::LeaseRateLimited, StageName::Token)]), |boot| {
        boot.state.trouble.as_mut().unwrap().phase = "of another version".to_owned();
    });
    assert_eq!(run(boot, Script::default().desired("a", 1)).state.trouble, None);
}

fn checkin() -> Vec<Scenario> {
    let attempts = |quarantined: bool, next_s: i64| {
        change(running_a(), |boot| {
            let next_at = Some(NOW.plus_s(next_s));
            boot.state.attempts.insert(sha("b"), Attempts { count: 2, next_at, quarantined });
        })
    };
    vec![
        scenario(
            "an_unchanged_tick_asks_for_nothing_but_the_check_in",
            running_a(),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin]);
                assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Ok, "unchanged"));
            },
        ),
        scenario(
            "nothing_desired_leaves_the_box_as_it_is",
            running_a(),
            Script::default().next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: None }))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin]);
                assert_eq!(t.done.exit, Exit::Ok);
            },
        ),
        scenario(
            "a_hold_stops_a_deploy_and_ends_0",
            running_a(),
            Script::default()
                .next(Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("b")), hold: Some("freeze".to_owned()) }))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::SaveState]);
                assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Ok, "held"));
                assert_eq!(t.state.hold, Some(Hold { reason: "freeze".to_owned(), since: NOW.plus_s(1) }));
            },
        ),
        scenario(
            "a_hold_that_goes_on_is_remembered_from_its_begin_with_its_newest_reason",
            held_for_an_hour(),
            Script::default()
                .next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: Some("another freeze".to_owned()) }))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::SaveState]);
                assert_eq!(t.state.hold, Some(Hold { reason: "another freeze".to_owned(), since: NOW.plus_s(-3600) }));
            },
        ),
        scenario(
            "the_same_hold_is_not_written_twice",
            held_for_an_hour(),
            Script::default()
                .next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: Some("freeze".to_owned()) }))),
            |t| assert_eq!(t.names(), [OpName::Checkin]),
        ),
        scenario(
            "a_hold_that_is_taken_back_is_forgotten",
            held_for_an_hour(),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!((t.names(), t.done.word.as_str()), (vec![OpName::Checkin, OpName::SaveState], "unchanged"));
                assert_eq!(t.state.hold, None);
            },
        ),
        scenario(
            "a_hold_is_remembered_while_tenancy_is_out_of_reach",
            held_for_an_hour(),
            Script::default().next(Event::CheckedIn(Err(unreachable()))),
            |t| assert!(t.state.hold.is_some()),
        ),
        scenario(
            "a_forced_apply_that_failed_is_over_when_the_box_runs_what_is_desired",
            change(running_a(), |boot| {
                boot.options.force = true;
                let failed =
                    run(boot.clone(), Script::default().desired("a", 1).next(Event::Pulled(Err(refused_run("no")))));
                failed_with(&failed, Code::PullFailed);
                assert!(failed.state.attempts.contains_key(&sha("a")) && failed.state.last_error.is_some());
                (boot.state, boot.options.force, boot.now) = (failed.state, false, NOW.plus_s(60));
            }),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!((t.names(), t.done.word.as_str()), (vec![OpName::Checkin, OpName::SaveState], "unchanged"));
                assert!(t.state.attempts.is_empty() && t.state.last_error.is_none(), "{:?}", t.state);
            },
        ),
        scenario(
            "a_full_disk_is_told_with_the_check_in_though_nothing_can_be_written",
            change(running_a(), |boot| boot.local.disk_full = true),
            Script::default().desired("a", 1),
            |t| assert!(t.text.contains("\"last_error\":\"DISK_FULL: no space is left"), "{}", t.text),
        ),
        scenario(
            "without_room_for_what_it_has_to_keep_nothing_is_begun",
            change(running_a(), |boot| (boot.local.disk_full, boot.local.token) = (true, None)),
            Script::default(),
            |t| {
                failed_with(t, Code::DiskFull);
                assert_eq!((t.count(OpName::FetchBundle), t.count(OpName::AskLease)), (0, 0));
            },
        ),
        scenario(
            "tenancy_out_of_reach_ends_75",
            running_a(),
            Script::default().next(Event::CheckedIn(Err(unreachable()))),
            |t| {
                deferred_with(t, Code::TenancyUnreachable);
                assert_eq!(t.names(), [OpName::Checkin, OpName::SaveState]);
            },
        ),
        scenario(
            "tenancy_with_a_5xx_ends_75",
            running_a(),
            Script::default().next(Event::CheckedIn(Err(status(503, "down")))),
            |t| {
                deferred_with(t, Code::TenancyError);
            },
        ),
        scenario(
            "the_same_trouble_is_not_written_twice",
            change(running_a(), |boot| {
                let first = run(running_a(), Script::default().next(Event::CheckedIn(Err(unreachable()))));
                boot.state = first.state;
            }),
            Script::default().next(Event::CheckedIn(Err(unreachable()))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin]);
                assert_eq!(t.done.exit, Exit::Temporary);
            },
        ),
        scenario(
            "offline_with_laptop_mode_ends_quietly_with_0",
            change(running_a(), |boot| boot.settings.laptop_mode = true),
            Script::default().next(Event::CheckedIn(Err(unreachable()))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin]);
                assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Ok, "offline"));
            },
        ),
        scenario(
            "an_answer_of_tenancy_is_not_offline_even_with_laptop_mode",
            change(running_a(), |boot| boot.settings.laptop_mode = true),
            Script::default().next(Event::CheckedIn(Err(status(500, "bug")))),
            |t| {
                deferred_with(t, Code::TenancyError);
            },
        ),
        scenario("a_bundle_that_failed_waits_for_its_backoff", attempts(false, 40), Script::default(), |t| {
            assert_eq!(t.names(), [OpName::Checkin]);
            assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Temporary, "too_early"));
        }),
        scenario(
            "after_its_backoff_it_is_tried_again_and_counted",
            attempts(false, -1),
            Script::default().next(Event::Pulled(Err(refused_run("denied")))),
            |t| {
                failed_with(t, Code::PullFailed);
                assert_eq!(t.report().map(|report| report.attempt), Some(3));
                assert_eq!(t.state.attempts[&sha("b")].count, 3);
            },
        ),
        scenario(
            "force_ignores_the_backoff",
            change(attempts(false, 40), |boot| boot.options.force = true),
            Script::default(),
            applied_b,
        ),
        scenario("a_quarantined_bundle_is_left_alone", attempts(true, 0), Script::default(), |t| {
            assert_eq!(t.names(), [OpName::Checkin]);
            assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Failed, "quarantined"));
        }),
        scenario(
            "force_ignores_the_quarantine",
            change(attempts(true, 0), |boot| boot.options.force = true),
            Script::default(),
            applied_b,
        ),
        scenario(
            "a_quarantine_ends_when_another_bundle_is_desired",
            attempts(true, 0),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::SaveState]);
                assert!(t.state.attempts.is_empty());
            },
        ),
        scenario(
            "force_applies_again_what_is_applied",
            change(running_a(), |boot| boot.options.force = true),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.done.word, "applied");
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_box_that_does_not_run_what_is_applied_is_put_right",
            change(running_a(), |boot| boot.local.current = Some(sha("x"))),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.done.word, "applied");
            },
        ),
        scenario(
            "an_interrupted_apply_is_finished_without_fetching_or_logging_in",
            interrupted_b(),
            Script::default(),
            |t| {
                applied_b(t);
                assert!(!t.names().contains(&OpName::FetchBundle) && !t.names().contains(&OpName::ReadSecret));
            },
        ),
        scenario(
            "an_interrupted_apply_waits_no_longer_than_a_bundle_may_ask_for_whatever_stands_in_the_state",
            change(interrupted_b(), |boot| boot.state.unfinished.as_mut().unwrap().healthy_timeout_s = u64::MAX),
            Script::default(),
            |t| {
                let waits = t.ops.iter().find_map(|op| if let Op::Up(up) = op { Some(up.timeout_s) } else { None });
                assert_eq!(waits, Some(86_400));
            },
        ),
        scenario(
            "an_interrupted_apply_with_no_time_at_all_is_given_a_second",
            change(interrupted_b(), |boot| boot.state.unfinished.as_mut().unwrap().healthy_timeout_s = 0),
            Script::default(),
            |t| {
                let waits = t.ops.iter().find_map(|op| if let Op::Up(up) = op { Some(up.timeout_s) } else { None });
                assert_eq!(waits, Some(1));
            },
        ),
        scenario(
            "an_interrupted_apply_is_finished_when_tenancy_is_out_of_reach",
            interrupted_b(),
            Script::default().next(Event::CheckedIn(Err(unreachable()))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::SendReport), 0, "it waits in the outbox");
                assert_eq!(t.count(OpName::SaveReport), 1);
            },
        ),
        scenario(
            "a_hold_also_holds_an_interrupted_apply",
            interrupted_b(),
            Script::default()
                .next(Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("b")), hold: Some("freeze".to_owned()) }))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::SaveState]);
                assert!(t.state.unfinished.is_some());
            },
        ),
        scenario(
            "an_interrupted_apply_that_is_resumed_again_and_again_is_one_promotion",
            interrupted_b(),
            Script::default().next(Event::Inspected(Err(RunFault::Unavailable { detail: said("Cannot connect") }))),
            |t| {
                deferred_with(t, Code::DockerUnavailable);
                assert_eq!(t.state.promotions.len(), 2);
            },
        ),
        scenario(
            "an_interrupted_apply_whose_folder_is_gone_starts_over",
            change(interrupted_b(), |boot| boot.local.releases.clear()),
            Script::default(),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::FetchBundle), 1);
            },
        ),
        scenario(
            "after_an_interrupted_apply_the_target_went_back",
            interrupted_b(),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.done.word, "applied");
                assert_eq!(t.state.applied().map(|applied| applied.sha.clone()), Some(sha("a")));
            },
        ),
        scenario(
            "the_applied_release_that_failed_when_it_was_brought_up_again_is_tried_again",
            {
                let failed = run(
                    change(running_a(), |boot| boot.options.force = true),
                    Script::default().desired("a", 1).next(well()).next(sick()),
                );
                assert_eq!(failed.done.exit, Exit::Failed, "{}", failed.text);
                change(running_a(), |boot| {
                    boot.now = NOW.plus_s(120);
                    boot.state = failed.state;
                })
            },
            Script::default().desired("a", 1),
            |t| {
                assert_eq!((t.done.word.as_str(), t.count(OpName::Up)), ("applied", 1));
                assert!(!t.state.in_doubt);
            },
        ),
        scenario(
            "an_unchanged_tick_renews_a_token_about_to_fall_below_the_limit",
            change(running_a(), |boot| boot.state.token.as_mut().unwrap().ttl_s = Some(700)),
            Script::default().desired("a", 1).next(Event::TokenLookedUp(Ok(token(640)))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::LookupToken, OpName::RenewToken, OpName::SaveState]);
                assert_eq!(t.done.exit, Exit::Ok);
            },
        ),
        scenario(
            "an_unchanged_tick_asks_after_a_token_once_when_the_clock_went_back",
            change(running_a(), |boot| boot.state.token.as_mut().unwrap().seen_at = NOW.plus_s(86_400)),
            Script::default().desired("a", 1),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::LookupToken, OpName::SaveState]);
                assert!(t.state.token.as_ref().is_some_and(|token| token.seen_at < NOW.plus_s(60)));
            },
        ),
        scenario(
            "an_unchanged_tick_asks_after_a_token_once_when_it_should_be_dead",
            change(running_a(), |boot| boot.state.token.as_mut().unwrap().seen_at = NOW.plus_s(-315_360_000)),
            Script::default().desired("a", 1),
            |t| assert_eq!(t.names(), [OpName::Checkin, OpName::LookupToken, OpName::SaveState]),
        ),
        scenario(
            "an_unchanged_tick_never_leases_even_with_a_dead_token",
            change(running_a(), |boot| boot.state.token.as_mut().unwrap().ttl_s = Some(700)),
            Script::default().desired("a", 1).next(Event::TokenLookedUp(Err(denied()))),
            |t| {
                assert_eq!(t.names(), [OpName::Checkin, OpName::LookupToken, OpName::SaveState]);
                assert_eq!(t.state.token, None);
            },
        ),
        scenario(
            "an_unchanged_tick_with_openbao_sealed_keeps_the_token_and_ends_75",
            change(running_a(), |boot| boot.state.token.as_mut().unwrap().ttl_s = Some(700)),
            Script::default().desired("a", 1).next(Event::TokenLookedUp(Err(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert!(t.state.token.is_some());
            },
        ),
        scenario(
            "a_bootstrap_grant_is_used_by_the_next_tick_even_without_a_bundle",
            bootstrapped(),
            Script::default().next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: None }))),
            |t| {
                assert_eq!(
                    t.names(),
                    [
                        OpName::Checkin,
                        OpName::Login,
                        OpName::LookupToken,
                        OpName::SaveToken,
                        OpName::DropGrant,
                        OpName::SaveState
                    ]
                );
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
    ]
}

fn bundle() -> Vec<Scenario> {
    let of = |name, script, check| scenario(name, running_a(), script, check);
    vec![
        of(
            "a_malformed_bundle_is_refused",
            Script::default().next(Event::BundleFetched(Err(BundleFault::Refused(refusal(Code::BundleInvalid))))),
            |t| refused_with(t, Code::BundleInvalid),
        ),
        of(
            "content_that_hashes_to_another_sha_is_refused",
            Script::default().facts(|facts| facts.content_sha = sha("x")),
            |t| refused_with(t, Code::BundleShaMismatch),
        ),
        of(
            "a_bundle_of_another_environment_is_refused",
            Script::default().facts(|facts| facts.meta.env_id = "env-prod".to_owned()),
            |t| refused_with(t, Code::EnvMismatch),
        ),
        of(
            "a_bundle_that_asks_for_a_newer_agent_is_refused",
            Script::default().facts(|facts| facts.meta.agent.min_version = Some("0.3.0".to_owned())),
            |t| refused_with(t, Code::AgentTooOld),
        ),
        of(
            "a_min_version_of_the_python_line_is_met",
            Script::default().facts(|facts| facts.meta.agent.min_version = Some("0.1.7".to_owned())),
            applied_b,
        ),
        of("an_older_generation_is_refused", Script::default().facts(|facts| facts.meta.generation = Some(0)), |t| {
            refused_with(t, Code::RollbackRefused)
        }),
        of(
            "an_older_generation_that_says_it_is_meant_is_deployed",
            Script::default().facts(|facts| {
                facts.meta.generation = Some(0);
                facts.meta.agent.allow_rollback = true;
            }),
            applied_b,
        ),
        scenario(
            "without_generations_a_sha_applied_before_is_refused",
            change(running_a(), |boot| {
                boot.state.earlier.push(sha("b"));
                boot.state.good[0].generation = None;
            }),
            Script::default().facts(|facts| facts.meta.generation = None),
            |t| refused_with(t, Code::RollbackRefused),
        ),
        of(
            "a_malformed_manifest_is_refused",
            Script::default().facts(|facts| facts.manifest = Err(refusal(Code::ManifestInvalid))),
            |t| refused_with(t, Code::ManifestInvalid),
        ),
        of(
            "a_secret_of_another_environment_is_refused",
            Script::default().facts(|facts| facts.manifest = Err(refusal(Code::ManifestPath))),
            |t| refused_with(t, Code::ManifestPath),
        ),
        of(
            "variables_that_no_entry_provides_are_refused_and_all_named",
            Script::default().facts(|facts| {
                facts.template = Some(Ok(vec!["A".to_owned(), "DB_PASSWORD".to_owned(), "B".to_owned()]))
            }),
            |t| {
                refused_with(t, Code::EnvUnresolved);
                assert!(t.done.detail.contains("A, B"), "{}", t.done.detail);
            },
        ),
        of(
            "a_remote_include_is_refused_before_compose_is_called",
            Script::default().facts(|facts| facts.compose = Err(refusal(Code::ComposeRefused))),
            |t| {
                refused_with(t, Code::ComposeRefused);
                assert_eq!(t.count(OpName::ReadModel), 0);
            },
        ),
        of(
            "what_the_resolved_model_refuses_is_refused_before_a_lease",
            Script::default().next(Event::ModelRead(Err(ComposeFault::Refused(refusal(Code::ComposeRefused))))),
            |t| refused_with(t, Code::ComposeRefused),
        ),
        scenario(
            "what_the_owner_refuses_is_refused_before_a_lease_and_all_of_it_is_named",
            owned(running_a(), &[(Rule::Privileged, Stance::Refuse), (Rule::Binds, Stance::Refuse)]),
            Script::default().next(asks()),
            |t| {
                refused_with(t, Code::PolicyRefused);
                for key in ["services.web.privileged", "services.db.privileged", "services.db.volumes[0]"] {
                    assert!(t.done.detail.contains(key), "{key}: {}", t.done.detail);
                }
                assert!(
                    !t.done.detail.contains("/srv/data") && !t.done.detail.contains("cap_add"),
                    "{}",
                    t.done.detail
                );
                assert_eq!(t.count(OpName::LookupToken), 0);
            },
        ),
        scenario("what_the_owner_warns_of_is_deployed", running_a(), Script::default().next(asks()), |t| {
            applied_b(t);
            let warned = |key: &str| t.notes.contains(&(Level::Warn, key.to_owned()));
            assert!(warned("services.web.privileged is \"true\" (policy.privileged)"), "{}", t.text);
            assert!(!t.text.contains("volumes[0]"), "binds are allowed by default: {}", t.text);
        }),
        scenario(
            "what_the_owner_allows_is_not_spoken_of",
            owned(running_a(), &[(Rule::Privileged, Stance::Allow), (Rule::Capabilities, Stance::Allow)]),
            Script::default().next(asks()),
            |t| {
                applied_b(t);
                assert!(!t.notes.iter().any(|(_, text)| text.contains("policy.")), "{}", t.text);
            },
        ),
        of(
            "a_file_that_compose_does_not_take_fails",
            Script::default()
                .next(Event::ModelRead(Err(ComposeFault::Run(refused_run("services.web must be a mapping"))))),
            |t| {
                failed_with(t, Code::ComposeInvalid);
                never_touched(t);
            },
        ),
        of(
            "a_header_that_disagrees_only_warns",
            Script::default().facts(|facts| facts.header_sha = Some("beef".to_owned())),
            |t| {
                applied_b(t);
                assert!(t.notes.iter().any(|(_, note)| note.contains("X-Bundle-Sha")));
            },
        ),
        scenario(
            "docker_out_of_reach_ends_75_before_a_lease",
            bootstrapped(),
            Script::default().next(Event::DockerProbed(Err(RunFault::Unavailable {
                detail: said("Cannot connect to the Docker daemon"),
            }))),
            |t| {
                deferred_with(t, Code::DockerUnavailable);
                never_touched(t);
            },
        ),
        scenario(
            "docker_that_hangs_ends_75_before_a_lease",
            bootstrapped(),
            Script::default().next(Event::DockerProbed(Err(RunFault::TimedOut { after_s: 15, words: said("") }))),
            |t| {
                deferred_with(t, Code::DockerUnavailable);
                never_touched(t);
            },
        ),
        of(
            "an_old_compose_fails_before_a_lease",
            Script::default().next(Event::DockerProbed(Ok(DockerVersions {
                engine: "20.10.24".to_owned(),
                compose: "2.20.3".to_owned(),
            }))),
            |t| {
                failed_with(t, Code::ComposeTooOld);
                never_touched(t);
            },
        ),
        of(
            "a_bundle_that_tenancy_does_not_have_ends_75",
            Script::default().next(Event::BundleFetched(Err(BundleFault::Call(status(404, "no such bundle"))))),
            |t| deferred_with(t, Code::TenancyError),
        ),
        of(
            "a_bundle_that_does_not_arrive_ends_75",
            Script::default().next(Event::BundleFetched(Err(BundleFault::Call(unreachable())))),
            |t| deferred_with(t, Code::TenancyUnreachable),
        ),
        of("a_full_disk_while_staging_is_told", Script::default().next(Event::BundleStaged(Err(disk_full()))), |t| {
            failed_with(t, Code::DiskFull);
            never_touched(t);
        }),
        of(
            "a_state_directory_that_cannot_be_written_is_told",
            Script::default()
                .next(Event::BundleStaged(Err(StoreFault { disk_full: false, detail: said("read-only") }))),
            |t| failed_with(t, Code::StageFailed),
        ),
    ]
}

fn token_rule() -> Vec<Scenario> {
    let rate_limited = || {
        Event::LeaseAnswered(Err(LeaseFault::Call(CallFault::Status {
            status: 429,
            detail: said("LEASE_RATE_LIMITED"),
            retry_after_s: Some(1200),
        })))
    };
    let no_token = || {
        change(running_a(), |boot| {
            boot.local.token = None;
            boot.state.token = None;
        })
    };
    let spent =
        |boot: Boot| change(boot, |boot| boot.state.leases = (1..=5).map(|m| NOW.plus_s(-600 * m)).rev().collect());
    vec![
        scenario("first_deploy_from_a_bootstrap_grant_swaps_the_token_once", bootstrapped(), Script::default(), |t| {
            applied_b(t);
            assert_eq!((t.count(OpName::AskLease), t.count(OpName::Login), t.count(OpName::RevokeToken)), (1, 2, 1));
            assert_eq!(t.state.token.as_ref().map(|token| token.source), Some(TokenSource::Lease));
        }),
        scenario("a_token_that_lives_is_reused_without_a_lease", running_a(), Script::default(), |t| {
            applied_b(t);
            assert_eq!((t.count(OpName::AskLease), t.count(OpName::RenewToken)), (0, 0));
        }),
        scenario(
            "a_token_that_never_expires_is_reused",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(TokenFacts {
                accessor: None,
                ttl_s: None,
                renewable: false,
            }))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_token_below_the_limit_is_renewed_not_replaced",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(token(599)))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::RenewToken), t.count(OpName::AskLease)), (1, 0));
            },
        ),
        scenario(
            "a_token_at_exactly_the_limit_is_renewed",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(token(600)))),
            |t| {
                assert_eq!((t.count(OpName::RenewToken), t.count(OpName::AskLease)), (1, 0));
            },
        ),
        scenario(
            "a_renewal_that_leaves_it_below_leases",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(token(300)))).next(Event::TokenRenewed(Ok(token(400)))),
            |t| {
                applied_b(t);
                assert_eq!(
                    (t.count(OpName::RenewToken), t.count(OpName::AskLease), t.count(OpName::RevokeToken)),
                    (1, 1, 1)
                );
            },
        ),
        scenario(
            "a_token_past_its_max_ttl_is_replaced",
            running_a(),
            Script::default()
                .next(Event::TokenLookedUp(Ok(token(300))))
                .next(Event::TokenRenewed(Err(BaoFault::PastMaxTtl))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 1);
            },
        ),
        scenario(
            "a_renewal_that_openbao_cannot_answer_keeps_the_token_and_ends_75",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(token(300)))).next(Event::TokenRenewed(Err(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_token_that_cannot_be_renewed_and_is_below_is_replaced",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Ok(TokenFacts { renewable: false, ..token(300) }))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::RenewToken), t.count(OpName::AskLease)), (0, 1));
            },
        ),
        scenario(
            "a_dead_token_is_replaced_by_one_lease",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Err(denied()))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::AskLease), t.count(OpName::RevokeToken)), (1, 0));
            },
        ),
        scenario(
            "openbao_sealed_says_nothing_about_the_token",
            running_a(),
            Script::default().next(Event::TokenLookedUp(Err(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert_eq!(t.count(OpName::AskLease), 0);
                assert!(t.state.token.is_some());
            },
        ),
        scenario(
            "a_bootstrap_token_is_swapped_and_the_old_one_revoked_last",
            on_bootstrap_token(),
            Script::default(),
            |t| {
                applied_b(t);
                let order: Vec<OpName> = t
                    .names()
                    .into_iter()
                    .filter(|name| {
                        matches!(
                            name,
                            OpName::AskLease
                                | OpName::SaveGrant
                                | OpName::Login
                                | OpName::LookupToken
                                | OpName::SaveToken
                                | OpName::RevokeToken
                        )
                    })
                    .collect();
                assert_eq!(
                    order,
                    [
                        OpName::LookupToken,
                        OpName::AskLease,
                        OpName::SaveGrant,
                        OpName::Login,
                        OpName::LookupToken,
                        OpName::SaveToken,
                        OpName::RevokeToken
                    ]
                );
            },
        ),
        scenario(
            "a_failed_revoke_is_a_warning",
            on_bootstrap_token(),
            Script::default().next(Event::TokenRevoked(Err(sealed()))),
            |t| {
                applied_b(t);
                assert!(t.notes.iter().any(|(_, note)| note.contains("could not be revoked")));
            },
        ),
        scenario(
            "a_rate_limited_lease_defers_the_swap_and_the_apply_goes_on",
            on_bootstrap_token(),
            Script::default().next(rate_limited()),
            |t| {
                applied_b(t);
                assert_eq!(t.state.token.as_ref().map(|token| token.source), Some(TokenSource::Bootstrap));
                assert!(t.state.lease_not_before.is_some_and(|limit| limit >= NOW.plus_s(1200)));
            },
        ),
        scenario(
            "a_lease_that_fails_for_now_defers_the_swap_too",
            on_bootstrap_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Call(status(502, "bad gateway"))))),
            applied_b,
        ),
        scenario(
            "a_lease_that_tenancy_itself_did_not_grant_costs_no_budget_and_its_wait_is_kept",
            no_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Call(CallFault::Status {
                status: 503,
                detail: said("down"),
                retry_after_s: Some(120),
            })))),
            |t| {
                deferred_with(t, Code::TenancyError);
                assert_eq!(t.state.leases, []);
                assert!(t.state.lease_not_before.is_some_and(|limit| limit >= NOW.plus_s(120)));
            },
        ),
        scenario(
            "a_lease_whose_answer_is_lost_is_counted",
            no_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Call(lost())))),
            |t| {
                deferred_with(t, Code::TenancyUnreachable);
                assert_eq!(t.state.leases.len(), 1);
            },
        ),
        scenario(
            "a_lease_that_never_left_the_box_costs_no_budget",
            no_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Call(unreachable())))),
            |t| {
                deferred_with(t, Code::TenancyUnreachable);
                assert_eq!((t.count(OpName::AskLease), t.state.leases.len()), (1, 0));
            },
        ),
        scenario(
            "a_rate_limited_lease_without_a_working_token_ends_75",
            no_token(),
            Script::default().next(rate_limited()),
            |t| {
                deferred_with(t, Code::LeaseRateLimited);
                assert_eq!(t.count(OpName::Up), 0);
            },
        ),
        scenario("nobody_asks_while_the_answer_is_known_to_be_no", spent(no_token()), Script::default(), |t| {
            deferred_with(t, Code::LeaseRateLimited);
            assert_eq!(t.count(OpName::AskLease), 0);
        }),
        scenario(
            "nobody_asks_before_tenancys_retry_after",
            change(no_token(), |boot| boot.state.lease_not_before = Some(NOW.plus_s(100))),
            Script::default(),
            |t| {
                deferred_with(t, Code::LeaseRateLimited);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_spent_budget_defers_the_swap_without_asking",
            spent(on_bootstrap_token()),
            Script::default(),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario("a_lease_is_written_down_before_it_is_asked_for", no_token(), Script::default(), |t| {
            let ask = t.names().iter().position(|name| *name == OpName::AskLease).unwrap();
            let Op::SaveState(saved) = &t.ops[ask - 1] else { panic!("{}", t.text) };
            assert_eq!(saved.state.leases.len(), 1);
        }),
        scenario(
            "a_lease_that_cannot_be_written_down_is_not_asked_for",
            no_token(),
            Script::default().next(Event::StateSaved(Err(disk_full()))),
            |t| {
                assert_eq!(t.count(OpName::AskLease), 0);
                assert_eq!(t.done.code, Some(Code::DiskFull));
            },
        ),
        scenario(
            "a_legacy_lease_is_refused_loudly",
            no_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Legacy("approle".to_owned())))),
            |t| {
                failed_with(t, Code::LegacyLease);
                assert_eq!(t.count(OpName::Up), 0);
            },
        ),
        scenario(
            "a_legacy_lease_is_refused_even_with_a_working_token",
            on_bootstrap_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Legacy("approle".to_owned())))),
            |t| failed_with(t, Code::LegacyLease),
        ),
        scenario(
            "a_denied_lease_fails",
            no_token(),
            Script::default().next(Event::LeaseAnswered(Err(LeaseFault::Call(status(403, "not your environment"))))),
            |t| failed_with(t, Code::LeaseDenied),
        ),
        scenario(
            "a_saved_grant_that_lives_is_used_before_a_lease",
            change(no_token(), |boot| {
                boot.local.grant =
                    Some(GrantFacts { expires_at: Some(NOW.plus_s(60)), role: Some("special".to_owned()) })
            }),
            Script::default(),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::AskLease), t.count(OpName::Login)), (0, 1));
                assert!(t.text.contains("\"role\":\"special\""));
            },
        ),
        scenario(
            "a_saved_grant_that_ended_is_not_used",
            change(no_token(), |boot| {
                boot.local.grant = Some(GrantFacts { expires_at: Some(NOW.plus_s(-1)), role: None })
            }),
            Script::default(),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 1);
            },
        ),
        scenario(
            "a_saved_grant_that_is_rejected_is_dropped_and_replaced_by_one_lease",
            change(no_token(), |boot| boot.local.grant = Some(GrantFacts::default())),
            Script::default().next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("token is expired") }))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::DropGrant), t.count(OpName::AskLease)), (1, 1));
            },
        ),
        scenario(
            "a_fresh_grant_that_is_rejected_fails_after_one_lease",
            no_token(),
            Script::default().next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("invalid audience") }))),
            |t| {
                failed_with(t, Code::GrantRejected);
                assert_eq!((t.count(OpName::DropGrant), t.count(OpName::AskLease)), (1, 1));
            },
        ),
        scenario(
            "a_login_that_is_forbidden_keeps_the_grant_and_fails",
            no_token(),
            Script::default().next(Event::LoggedIn(Err(denied()))),
            |t| {
                failed_with(t, Code::GrantRejected);
                assert_eq!((t.count(OpName::DropGrant), t.count(OpName::AskLease)), (0, 1));
            },
        ),
        scenario(
            "a_login_that_openbao_cannot_answer_keeps_the_grant_and_ends_75",
            no_token(),
            Script::default().next(Event::LoggedIn(Err(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert_eq!(t.count(OpName::DropGrant), 0);
            },
        ),
        scenario(
            "a_new_token_that_cannot_be_proven_is_not_saved",
            no_token(),
            Script::default().next(Event::TokenLookedUp(Err(denied()))),
            |t| {
                failed_with(t, Code::GrantRejected);
                assert_eq!(t.count(OpName::SaveToken), 0);
            },
        ),
        scenario(
            "a_proof_that_openbao_cannot_answer_ends_75",
            no_token(),
            Script::default().next(Event::TokenLookedUp(Err(sealed()))),
            |t| deferred_with(t, Code::BaoUnavailable),
        ),
        scenario(
            "a_rejected_bootstrap_grant_is_dropped_and_a_lease_asked_for",
            bootstrapped(),
            Script::default().next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("token is expired") }))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 1);
            },
        ),
        scenario(
            "a_rejected_bootstrap_grant_falls_back_on_the_token_that_works",
            change(running_a(), |boot| boot.local.bootstrap = true),
            Script::default().next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("token is expired") }))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_bootstrap_login_that_is_forbidden_falls_back_on_the_token_that_works",
            change(running_a(), |boot| boot.local.bootstrap = true),
            Script::default().next(Event::LoggedIn(Err(denied()))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::AskLease), t.count(OpName::DropGrant)), (0, 0));
            },
        ),
        scenario(
            "a_rejected_bootstrap_grant_without_a_bundle_ends_with_its_code",
            bootstrapped(),
            Script::default()
                .next(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: None })))
                .next(Event::LoggedIn(Err(BaoFault::Rejected { detail: said("token is expired") }))),
            |t| {
                assert_eq!(t.done.code, Some(Code::GrantRejected));
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        scenario(
            "a_grant_that_cannot_be_saved_is_not_used",
            no_token(),
            Script::default().next(Event::GrantSaved(Err(disk_full()))),
            |t| {
                failed_with(t, Code::DiskFull);
                assert_eq!(t.count(OpName::Login), 0);
            },
        ),
        scenario(
            "a_token_that_cannot_be_saved_does_not_cost_the_old_one",
            on_bootstrap_token(),
            Script::default().next(Event::TokenSaved(Err(disk_full()))),
            |t| {
                failed_with(t, Code::DiskFull);
                assert_eq!(t.count(OpName::RevokeToken), 0);
            },
        ),
        scenario(
            "a_bundle_without_secrets_needs_no_token",
            fresh(),
            Script::default().facts(|facts| {
                facts.manifest = Ok(manifest::Manifest::default());
                facts.template = None;
            }),
            |t| {
                applied_b(t);
                assert!(t.names().iter().all(|name| name.kind() != Kind::Lease));
            },
        ),
    ]
}

fn secrets() -> Vec<Scenario> {
    let of = |name, script, check| scenario(name, running_a(), script, check);
    let read = |fault: SecretFault| Event::SecretRead(Err(fault));
    vec![
        of("secrets_are_read_at_the_same_time_each_once", Script::default(), |t| {
            assert_eq!(t.count(OpName::ReadSecret), 2, "one for each path, not for each variable");
            let first = t.names().iter().position(|name| *name == OpName::ReadSecret).unwrap();
            assert_eq!(t.names()[first + 1], OpName::ReadSecret);
        }),
        of("the_journal_tells_names_and_never_values", Script::default(), |t| {
            assert!(
                t.notes.iter().any(|(_, note)| note == "2 secrets read: DB_PASSWORD, DB_USER + registry credential"),
                "{}",
                t.text
            );
        }),
        of(
            "an_unusable_registry_credential_warns_and_the_apply_goes_on",
            Script::default()
                .next(Event::SecretRead(Ok(SecretFacts {
                    version: Some(2),
                    values: vec![ValueFact::Text, ValueFact::Text],
                })))
                .next(Event::SecretRead(Ok(SecretFacts {
                    version: Some(4),
                    values: vec![ValueFact::NoCredential { why: "no colon".to_owned() }],
                }))),
            |t| {
                applied_b(t);
                assert!(t.notes.iter().any(|(_, note)| note.contains("not usable (no colon)")));
                assert!(t.ops.iter().any(|op| matches!(op, Op::WriteRelease(write) if write.registry.is_none())));
            },
        ),
        of("a_secret_that_is_not_there_fails", Script::default().next(read(SecretFault::Missing)), |t| {
            failed_with(t, Code::SecretMissing)
        }),
        of(
            "a_secret_that_was_deleted_fails",
            Script::default().next(read(SecretFault::Deleted("version 3 was deleted".to_owned()))),
            |t| failed_with(t, Code::SecretDeleted),
        ),
        of(
            "a_field_that_is_not_there_fails_with_its_variable",
            Script::default().next(Event::SecretRead(Ok(SecretFacts {
                version: Some(2),
                values: vec![ValueFact::Text, ValueFact::Absent],
            }))),
            |t| {
                failed_with(t, Code::SecretMissing);
                assert!(t.done.detail.contains("DB_USER"));
            },
        ),
        of(
            "a_value_that_is_no_string_fails",
            Script::default().next(Event::SecretRead(Ok(SecretFacts {
                version: Some(2),
                values: vec![ValueFact::Unfit { why: "a number".to_owned() }, ValueFact::Text],
            }))),
            |t| failed_with(t, Code::SecretInvalid),
        ),
        of(
            "another_version_than_the_pinned_one_fails",
            Script::default()
                .next(Event::SecretRead(Ok(SecretFacts { version: Some(2), values: vec![ValueFact::Text; 2] })))
                .next(Event::SecretRead(Ok(SecretFacts { version: Some(5), values: vec![ValueFact::Text] }))),
            |t| failed_with(t, Code::SecretInvalid),
        ),
        of(
            "a_kv_v1_engine_fails",
            Script::default()
                .next(Event::SecretRead(Ok(SecretFacts { version: None, values: vec![ValueFact::Text; 2] }))),
            |t| failed_with(t, Code::SecretInvalid),
        ),
        of(
            "openbao_sealed_in_the_middle_of_the_reads_ends_75",
            Script::default()
                .next(Event::SecretRead(Ok(SecretFacts { version: Some(2), values: vec![ValueFact::Text; 2] })))
                .next(read(SecretFault::Bao(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert_eq!((t.count(OpName::LookupToken), t.count(OpName::AskLease)), (1, 0));
            },
        ),
        of(
            "a_403_with_a_living_token_is_denied_without_a_lease",
            Script::default().next(read(SecretFault::Bao(denied()))),
            |t| {
                failed_with(t, Code::SecretDenied);
                assert_eq!((t.count(OpName::LookupToken), t.count(OpName::AskLease)), (2, 0));
            },
        ),
        of(
            "a_token_that_died_is_healed_by_one_re_login",
            Script::default()
                .times(2, &read(SecretFault::Bao(denied())))
                .next(Event::TokenLookedUp(Ok(token(3000))))
                .next(Event::TokenLookedUp(Err(denied()))),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::AskLease), t.count(OpName::Login), t.count(OpName::ReadSecret)), (1, 1, 4));
                assert_eq!(t.count(OpName::RevokeToken), 0, "it is dead already");
            },
        ),
        of(
            "a_token_that_dies_twice_is_not_replaced_twice",
            Script::default()
                .times(4, &read(SecretFault::Bao(denied())))
                .next(Event::TokenLookedUp(Ok(token(3000))))
                .next(Event::TokenLookedUp(Err(denied())))
                .next(Event::TokenLookedUp(Ok(token(3000))))
                .next(Event::TokenLookedUp(Err(denied()))),
            |t| {
                failed_with(t, Code::SecretDenied);
                assert_eq!(t.count(OpName::AskLease), 1);
            },
        ),
        of(
            "a_403_that_openbao_cannot_settle_ends_75",
            Script::default()
                .next(read(SecretFault::Bao(denied())))
                .next(Event::TokenLookedUp(Ok(token(3000))))
                .next(Event::TokenLookedUp(Err(sealed()))),
            |t| {
                deferred_with(t, Code::BaoUnavailable);
                assert_eq!(t.count(OpName::AskLease), 0);
            },
        ),
        of(
            "a_release_that_cannot_be_written_fails",
            Script::default().next(Event::ReleaseWritten(Err(StoreFault {
                disk_full: false,
                detail: said(".env: permission denied"),
            }))),
            |t| {
                failed_with(t, Code::StageFailed);
                assert_eq!(t.count(OpName::Pull), 0);
            },
        ),
        of(
            "a_release_that_compose_does_not_take_is_not_pulled",
            Script::default()
                .next(Event::ComposeChecked(Err(ComposeFault::Run(refused_run("variable PORT is not set"))))),
            |t| {
                failed_with(t, Code::ComposeInvalid);
                assert_eq!(t.count(OpName::Pull), 0);
            },
        ),
    ]
}

fn pull_and_up() -> Vec<Scenario> {
    let of = |name, script, check| scenario(name, running_a(), script, check);
    vec![
        of(
            "a_failed_pull_tells_the_registrys_own_words_and_nothing_comes_up",
            Script::default().next(Event::Pulled(Err(refused_run(
                "Head \"http://r/v2/web/manifests/1\": no basic auth credentials",
            )))),
            |t| {
                failed_with(t, Code::PullFailed);
                assert_eq!((t.count(OpName::Promote), t.count(OpName::Up)), (0, 0));
                let detail = t.report().and_then(|report| report.detail.clone()).unwrap();
                assert!(
                    detail.starts_with("compose pull: Head \"http://r/v2/web/manifests/1\": no basic auth credentials"),
                    "{detail}"
                );
            },
        ),
        of(
            "a_pull_that_takes_too_long_fails",
            Script::default().next(Event::Pulled(Err(RunFault::TimedOut { after_s: 600, words: said("") }))),
            |t| failed_with(t, Code::PullTimeout),
        ),
        of(
            "a_pull_onto_a_full_disk_says_so",
            Script::default().next(Event::Pulled(Err(RunFault::Failed {
                status: Some(1),
                words: said("no space left on device"),
                disk_full: true,
            }))),
            |t| failed_with(t, Code::DiskFull),
        ),
        of(
            "a_pull_while_docker_goes_away_ends_75",
            Script::default().next(Event::Pulled(Err(RunFault::Unavailable { detail: said("Cannot connect") }))),
            |t| deferred_with(t, Code::DockerUnavailable),
        ),
        of(
            "warnings_of_a_pull_reach_the_journal",
            Script::default().next(Event::Pulled(Ok(RunDone { warnings: vec![said("Error parsing config file")] }))),
            |t| {
                applied_b(t);
                assert!(t.notes.iter().any(|(_, note)| note.contains("Error parsing config file")));
            },
        ),
        of("nothing_is_promoted_before_it_is_durable", Script::default(), |t| {
            let promote = t.names().iter().position(|name| *name == OpName::Promote).unwrap();
            let noted = t.ops[..promote]
                .iter()
                .rev()
                .find_map(|op| match op {
                    Op::SaveState(save) => Some(save),
                    _ => None,
                })
                .unwrap();
            assert_eq!(noted.state.unfinished.as_ref().map(|goal| goal.sha.clone()), Some(sha("b")));
            assert!(t.names()[..promote].contains(&OpName::Pull) && !t.names()[..promote].contains(&OpName::Up));
        }),
        of(
            "a_promotion_that_cannot_be_noted_touches_nothing",
            Script::default().next(Event::StateSaved(Err(disk_full()))),
            |t| {
                assert_eq!(t.done.code, Some(Code::DiskFull));
                assert_eq!((t.count(OpName::Promote), t.count(OpName::Up)), (0, 0));
            },
        ),
        of(
            "a_promotion_that_fails_touches_nothing",
            Script::default()
                .next(Event::Promoted(Err(StoreFault { disk_full: false, detail: said("current: read-only") }))),
            |t| {
                failed_with(t, Code::StageFailed);
                assert_eq!(t.count(OpName::Up), 0);
            },
        ),
        of(
            "a_failed_up_tells_composes_own_words",
            Script::default().next(Event::CameUp(Err(refused_run("port is already allocated")))),
            |t| {
                failed_with(t, Code::UpFailed);
                assert!(t.done.detail.contains("port is already allocated"));
                assert_eq!(t.state.applied().map(|applied| applied.sha.clone()), Some(sha("a")));
            },
        ),
        of(
            "an_up_that_does_not_return_fails",
            Script::default().next(Event::CameUp(Err(RunFault::TimedOut { after_s: 300, words: said("") }))),
            |t| failed_with(t, Code::UpTimeout),
        ),
        of(
            "docker_that_goes_away_during_up_leaves_the_apply_to_be_finished",
            Script::default().next(Event::CameUp(Err(RunFault::Unavailable { detail: said("Cannot connect") }))),
            |t| {
                deferred_with(t, Code::DockerUnavailable);
                assert!(t.state.unfinished.is_some());
            },
        ),
        scenario(
            "a_failed_up_is_rolled_back",
            rolls_back(running_a()),
            Script::default().next(Event::CameUp(Err(refused_run("port is already allocated")))),
            |t| {
                assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Failed, "rolled_back"));
                assert!(t.report().is_some_and(|report| report.rolled_back && report.code == Some(Code::UpFailed)));
                assert!(t.state.attempts[&sha("b")].quarantined);
            },
        ),
        scenario(
            "docker_gone_before_the_promotion_is_no_failure",
            running_a(),
            Script::default().next(Event::Inspected(Err(RunFault::Unavailable { detail: said("Cannot connect") }))),
            |t| {
                deferred_with(t, Code::DockerUnavailable);
                assert_eq!(t.count(OpName::Promote), 0);
            },
        ),
    ]
}

fn health_and_rollback() -> Vec<Scenario> {
    let no_check = |since: &str, restarts: u64| {
        let mut c = container("web", ContainerState::Running, None);
        c.started_at = since.to_owned();
        c.restart_count = restarts;
        Event::Inspected(Ok(vec![c]))
    };
    let exited = |code: i64| {
        let mut job = container("web", ContainerState::Exited, None);
        job.exit_code = code;
        job.restart_policy = containers::RestartPolicy::No;
        Event::Inspected(Ok(vec![job]))
    };
    let probed = |streak: u64, health| {
        let mut c = container("web", ContainerState::Running, Some(health));
        let words = said("no route to the database");
        c.probe = Some(containers::Probe { exit_code: i64::from(streak > 0), said: words, streak, retries: 2 });
        Event::Inspected(Ok(vec![c]))
    };
    let fails = |streak| probed(streak, Health::Unhealthy);
    // Compose's words when a service waits for a container that is unhealthy.
    let gives_up =
        || Event::CameUp(Err(refused_run("dependency failed to start: container monky-env-qa-02-web-1 is unhealthy")));
    let named = |name: &str, state, health, streak: u64| {
        let mut c = container(name, state, Some(health));
        c.exit_code = i64::from(state == ContainerState::Exited);
        let words = said("no disk");
        c.probe = Some(containers::Probe { exit_code: i64::from(streak > 0), said: words, streak, retries: 2 });
        c
    };
    let sick_db = |streak| named("db", ContainerState::Running, Health::Unhealthy, streak);
    let fine = |name: &str| named(name, ContainerState::Running, Health::Healthy, 0);
    let look = |all: &[containers::Container]| Event::Inspected(Ok(all.to_vec()));
    let web_and_db = || {
        let web = services().into_values().next().unwrap();
        let services = ["web", "db"].map(|name| (name.to_owned(), web.clone())).into();
        Event::ModelRead(Ok(model::Model { services, ..Default::default() }))
    };
    let gives_up_for_db =
        || Event::CameUp(Err(refused_run("dependency failed to start: container monky-env-qa-02-db-1 is unhealthy")));
    let came_up = || Event::CameUp(Ok(RunDone { warnings: Vec::new() }));
    let none = || Event::Inspected(Ok(Vec::new()));
    let many = || {
        let web = services().into_values().next().unwrap();
        ["a", "b", "c", "d", "e", "f"]
            .map(|name| (name.to_owned(), web.clone()))
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    };
    let many_sick = || {
        let sick = |name: &String| {
            let mut c = container(name, ContainerState::Running, Some(Health::Unhealthy));
            c.probe = Some(containers::Probe { exit_code: 1, said: said(&"x".repeat(160)), streak: 2, retries: 2 });
            c
        };
        Event::Inspected(Ok(many().keys().map(sick).collect()))
    };
    vec![
        scenario(
            "a_service_that_starts_is_waited_for",
            running_a(),
            Script::default().next(none()).next(starting()).next(starting()),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::WaitUntil), 2);
            },
        ),
        scenario(
            "a_service_without_a_healthcheck_must_keep_running",
            running_a(),
            Script::default().next(none()).times(8, &no_check("t1", 0)),
            |t| {
                applied_b(t);
                let waits: Vec<&WaitUntil> = t
                    .ops
                    .iter()
                    .filter_map(|op| match op {
                        Op::WaitUntil(wait) => Some(wait),
                        _ => None,
                    })
                    .collect();
                assert!(waits.len() >= 2 && waits[0].reason.contains("running"), "{}", t.text);
            },
        ),
        scenario(
            "a_crash_loop_that_looks_running_for_a_moment_fails",
            running_a(),
            Script::default().next(none()).next(no_check("t1", 0)).next(no_check("t2", 1)),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(t.done.detail.contains("restarted by itself"), "{}", t.done.detail);
            },
        ),
        scenario(
            "a_changed_start_time_fails",
            running_a(),
            Script::default().next(none()).next(no_check("t1", 0)).next(no_check("t2", 0)),
            |t| failed_with(t, Code::Unhealthy),
        ),
        scenario(
            "restarts_of_last_week_do_not_count",
            running_a(),
            Script::default().next(no_check("t0", 3)).times(8, &no_check("t0", 3)),
            applied_b,
        ),
        scenario(
            "a_container_that_up_starts_anew_is_not_a_restart",
            running_a(),
            Script::default().next(no_check("t0", 0)).times(8, &no_check("t1", 0)),
            applied_b,
        ),
        scenario(
            "a_one_shot_that_exited_0_is_fine",
            running_a(),
            Script::default().next(none()).next(exited(0)),
            applied_b,
        ),
        scenario("a_one_shot_that_exited_7_fails", running_a(), Script::default().next(none()).next(exited(7)), |t| {
            failed_with(t, Code::Unhealthy);
            assert!(t.done.detail.contains("exited with 7"));
            assert_eq!(t.report().map(|report| report.containers[0].exit_code), Some(Some(7)));
        }),
        scenario(
            "an_unhealthy_release_is_kept_and_told_with_its_logs",
            running_a(),
            Script::default().next(none()).next(sick()),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(
                    t.done.detail.contains("web: unhealthy") && t.done.detail.contains("cannot open database"),
                    "{}",
                    t.done.detail
                );
                assert_eq!(t.count(OpName::Up), 1);
                assert_eq!(t.state.applied().map(|applied| applied.sha.clone()), Some(sha("a")));
            },
        ),
        scenario(
            "what_a_healthcheck_found_before_up_is_waited_out",
            running_a(),
            Script::default().next(fails(5)).next(fails(7)).next(fails(8)).next(probed(0, Health::Healthy)),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::WaitUntil), 2);
            },
        ),
        scenario(
            "a_healthcheck_that_goes_on_failing_after_up_fails_with_its_words",
            running_a(),
            Script::default().next(fails(5)).next(fails(7)).next(fails(8)).next(fails(9)),
            |t| {
                failed_with(t, Code::Unhealthy);
                let words = "web: unhealthy; web's check exited with 1: no route to the database";
                assert!(t.done.detail.contains(words), "{}", t.done.detail);
            },
        ),
        scenario(
            "up_is_asked_again_once_what_was_unhealthy_before_and_is_waited_for_is_well",
            running_a(),
            Script::default()
                .next(fails(5))
                .next(gives_up())
                .next(fails(5))
                .next(fails(6))
                .next(probed(0, Health::Healthy))
                .next(came_up())
                .next(probed(0, Health::Healthy)),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (2, 2));
                // One deadline covers it all.
                let left = t.ops.iter().filter_map(|op| if let Op::Up(up) = op { Some(up.timeout_s) } else { None });
                assert_eq!(left.collect::<Vec<_>>(), [300, 296]);
            },
        ),
        scenario(
            "what_up_starts_anew_when_it_is_asked_again_is_no_restart",
            running_a(),
            Script::default()
                .next(fails(5))
                .next(gives_up())
                .next(fails(5))
                .next(probed(0, Health::Healthy))
                .next(came_up())
                .next(no_check("t9", 0))
                .times(12, &no_check("t9", 0)),
            applied_b,
        ),
        scenario(
            "up_fails_with_its_own_words_once_what_was_unhealthy_before_has_failed_as_often_again",
            rolls_back(running_a()),
            Script::default().next(fails(5)).next(gives_up()).next(fails(5)).next(fails(6)).next(fails(7)),
            |t| {
                assert_eq!(t.done.word, "rolled_back");
                let report = t.report().unwrap();
                assert_eq!(report.code, Some(Code::UpFailed));
                let words = "compose up: dependency failed to start: container monky-env-qa-02-web-1 is unhealthy; \
                             then web: unhealthy; web's check exited with 1: no route to the database -> ";
                assert!(report.detail.as_deref().is_some_and(|detail| detail.starts_with(words)), "{report:?}");
            },
        ),
        scenario(
            "what_was_unhealthy_before_and_is_waited_for_has_until_the_deadline",
            change(running_a(), |boot| boot.settings.healthy_timeout_s = 2),
            Script::default().next(fails(5)).next(gives_up()).times(20, &fails(5)),
            |t| {
                failed_with(t, Code::UpFailed);
                assert!(
                    t.done.detail.contains("is unhealthy; not well: 2 s are over; web's check exited"),
                    "{}",
                    t.done.detail
                );
                assert_eq!(t.count(OpName::Up), 1);
            },
        ),
        scenario(
            "what_had_ended_before_up_and_was_not_started_yet_is_not_what_the_wait_fails_of",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5), named("web", ContainerState::Exited, Health::Unhealthy, 0)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5), named("web", ContainerState::Exited, Health::Unhealthy, 0)]))
                .next(look(&[fine("db"), named("web", ContainerState::Exited, Health::Unhealthy, 0)]))
                .next(came_up())
                .next(look(&[fine("db"), fine("web")])),
            applied_b,
        ),
        scenario(
            "what_the_first_up_started_and_ended_badly_in_the_wait_fails_though_a_second_up_would_start_it_again",
            rolls_back(running_a()),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5), fine("web")]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5), containers::Container { started_at: "t1".to_owned(), ..fine("web") }]))
                .next(look(&[
                    fine("db"),
                    containers::Container {
                        started_at: "t1".to_owned(),
                        ..named("web", ContainerState::Exited, Health::Unhealthy, 0)
                    },
                ]))
                .next(came_up()),
            |t| {
                assert_eq!(t.done.word, "rolled_back");
                let detail = t.report().and_then(|report| report.detail.clone()).unwrap();
                assert!(detail.contains("db-1 is unhealthy; then web: exited with 1 -> "), "{detail}");
                let up = |op: &Op| if let Op::Up(up) = op { Some(up.sha.clone()) } else { None };
                assert_eq!(t.ops.iter().filter_map(up).collect::<Vec<_>>(), [sha("b"), sha("a")]);
            },
        ),
        scenario(
            "a_job_that_failed_in_the_wait_is_not_run_a_second_time",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5), named("web", ContainerState::Exited, Health::Unhealthy, 0)])),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (1, 0));
                assert!(t.done.detail.contains("then web: exited with 1"), "{}", t.done.detail);
            },
        ),
        scenario(
            "what_ends_in_the_wait_for_it_is_told_as_ended",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5)]))
                .next(look(&[named("db", ContainerState::Exited, Health::Unhealthy, 5)])),
            |t| {
                failed_with(t, Code::UpFailed);
                assert!(t.done.detail.contains("db-1 is unhealthy; then db: exited with 1 -> "), "{}", t.done.detail);
            },
        ),
        scenario(
            "what_is_paused_in_the_wait_is_waited_for",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5)]))
                .next(look(&[named("db", ContainerState::Paused, Health::Unhealthy, 5)]))
                .next(look(&[fine("db")]))
                .next(came_up())
                .next(look(&[fine("db"), fine("web")])),
            applied_b,
        ),
        scenario(
            "a_name_that_hides_a_secret_stands_for_all_that_was_unhealthy_before",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5)]))
                .next(Event::CameUp(Err(refused_run(
                    "dependency failed to start: container [secret:DB USER]-env-qa-02-db-1 is unhealthy",
                ))))
                .next(look(&[sick_db(5)]))
                .next(look(&[fine("db")]))
                .next(came_up())
                .next(look(&[fine("db"), fine("web")])),
            |t| {
                applied_b(t);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (2, 1));
            },
        ),
        scenario(
            "only_the_container_that_compose_names_is_waited_for",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5), named("web", ContainerState::Running, Health::Unhealthy, 5)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5), named("web", ContainerState::Running, Health::Unhealthy, 6)]))
                .next(look(&[fine("db"), named("web", ContainerState::Running, Health::Unhealthy, 9)]))
                .next(came_up())
                .next(look(&[fine("db"), fine("web")])),
            applied_b,
        ),
        scenario(
            "what_is_unhealthy_beside_what_compose_names_is_no_reason_to_ask_again",
            running_a(),
            Script::default()
                .next(look(&[sick_db(5), fine("web")]))
                .next(gives_up())
                .next(look(&[sick_db(5), named("web", ContainerState::Running, Health::Unhealthy, 2)]))
                .times(20, &gives_up()),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (1, 0));
                assert!(t.done.detail.contains("web's check exited with 1: no disk"), "{}", t.done.detail);
            },
        ),
        scenario(
            "what_was_unhealthy_before_and_is_none_of_the_releases_is_not_waited_for",
            running_a(),
            Script::default().next(look(&[sick_db(5)])).next(gives_up()).next(look(&[sick_db(5)])),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (1, 0));
            },
        ),
        scenario(
            "what_up_made_anew_has_no_past",
            running_a(),
            Script::default()
                .next(look(&[sick_db(5)]))
                .next(gives_up_for_db())
                .next(look(&[containers::Container { id: "another".to_owned(), ..sick_db(2) }])),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (1, 0));
                assert!(!t.text.contains("it was unhealthy before"), "{}", t.text);
            },
        ),
        scenario(
            "what_got_well_is_not_waited_for_a_second_time",
            running_a(),
            Script::default()
                .next(fails(5))
                .next(gives_up())
                .next(fails(5))
                .next(probed(0, Health::Healthy))
                .next(gives_up())
                .next(fails(2))
                .times(20, &gives_up()),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (2, 1));
            },
        ),
        scenario(
            "a_second_up_that_takes_too_long_is_told_with_the_time_that_all_of_it_had",
            running_a(),
            Script::default()
                .next(fails(5))
                .next(gives_up())
                .next(fails(5))
                .next(probed(0, Health::Healthy))
                .next(Event::CameUp(Err(RunFault::TimedOut { after_s: 298, words: said("") }))),
            |t| {
                failed_with(t, Code::UpTimeout);
                assert!(t.done.detail.contains("300 s") && !t.done.detail.contains("298"), "{}", t.done.detail);
            },
        ),
        scenario(
            "a_second_up_that_fails_otherwise_is_told_with_its_own_words",
            running_a(),
            Script::default()
                .next(fails(5))
                .next(gives_up())
                .next(probed(0, Health::Healthy))
                .next(Event::CameUp(Err(refused_run("port is already allocated")))),
            |t| {
                failed_with(t, Code::UpFailed);
                assert!(t.done.detail.contains("port is already allocated"), "{}", t.done.detail);
                assert!(!t.done.detail.contains("is unhealthy"), "{}", t.done.detail);
                assert_eq!((t.count(OpName::Up), t.count(OpName::WaitUntil)), (2, 0));
            },
        ),
        scenario(
            "what_the_first_up_started_and_docker_restarted_in_the_wait_fails",
            running_a(),
            Script::default()
                .next(web_and_db())
                .next(look(&[sick_db(5)]))
                .next(gives_up_for_db())
                .next(look(&[sick_db(5), fine("web")]))
                .next(look(&[fine("db"), fine("web")]))
                .next(came_up())
                .next(look(&[fine("db"), containers::Container { restart_count: 1, ..fine("web") }])),
            |t| failed_with(t, Code::Unhealthy),
        ),
        scenario(
            "a_rollback_waits_for_it_too",
            rolls_back(running_a()),
            Script::default()
                .next(none())
                .next(came_up())
                .next(sick())
                .next(fails(5))
                .next(gives_up())
                .next(fails(6))
                .next(probed(0, Health::Healthy))
                .next(came_up())
                .next(probed(0, Health::Healthy)),
            |t| {
                assert_eq!(t.done.word, "rolled_back");
                let up = |op: &Op| if let Op::Up(up) = op { Some(up.sha.clone()) } else { None };
                assert_eq!(t.ops.iter().filter_map(up).collect::<Vec<_>>(), [sha("b"), sha("a"), sha("a")]);
            },
        ),
        scenario(
            "up_is_not_asked_again_if_what_is_waited_for_was_well_before",
            running_a(),
            Script::default().next(probed(0, Health::Healthy)).next(gives_up()),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::Inspect)), (1, 1));
            },
        ),
        scenario(
            "up_is_not_asked_again_if_something_else_fails_while_something_was_unhealthy_before",
            running_a(),
            Script::default().next(fails(5)).next(Event::CameUp(Err(refused_run("port is already allocated")))),
            |t| {
                failed_with(t, Code::UpFailed);
                assert_eq!((t.count(OpName::Up), t.count(OpName::Inspect)), (1, 1));
            },
        ),
        scenario(
            "docker_going_away_while_what_is_waited_for_may_get_well_is_no_failure_of_the_bundle",
            rolls_back(running_a()),
            Script::default().next(fails(5)).next(gives_up()).next(Event::Inspected(Err(refused_run("no")))),
            |t| {
                assert_eq!((t.done.exit, t.done.code), (Exit::Temporary, Some(Code::DockerUnavailable)));
                assert!(
                    t.state.unfinished.as_ref().is_some_and(|goal| goal.sha == sha("b") && goal.instead_of.is_none())
                );
            },
        ),
        scenario(
            "a_release_that_never_gets_healthy_fails_at_the_deadline",
            change(running_a(), |boot| boot.settings.healthy_timeout_s = 4),
            Script::default().next(none()).times(20, &starting()),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(t.done.detail.contains("not healthy within 4 s"), "{}", t.done.detail);
            },
        ),
        scenario(
            "a_bundle_sets_its_own_health_deadline",
            running_a(),
            Script::default()
                .facts(|facts| facts.meta.agent.healthy_timeout_s = Some(4))
                .next(none())
                .times(20, &starting()),
            |t| assert!(t.done.detail.contains("not healthy within 4 s"), "{}", t.done.detail),
        ),
        scenario(
            "an_unhealthy_release_is_rolled_back",
            rolls_back(running_a()),
            Script::default().next(none()).next(sick()),
            |t| {
                assert_eq!((t.done.exit, t.done.word.as_str()), (Exit::Failed, "rolled_back"));
                let ups: Vec<&Sha> = t
                    .ops
                    .iter()
                    .filter_map(|op| match op {
                        Op::Up(up) => Some(&up.sha),
                        _ => None,
                    })
                    .collect();
                assert_eq!(ups, [&sha("b"), &sha("a")]);
                assert!(t.report().is_some_and(|report| report.rolled_back
                    && report.sha == sha("b")
                    && report.code == Some(Code::Unhealthy)));
                assert_eq!(t.state.last_result, Some(LastResult::RolledBack));
                assert!(t.state.attempts[&sha("b")].quarantined);
                assert_eq!(t.state.applied().map(|applied| applied.sha.clone()), Some(sha("a")));
                assert_eq!((t.count(OpName::AskLease), t.count(OpName::Pull)), (0, 1));
            },
        ),
        scenario(
            "a_bundle_may_ask_for_its_own_rollback",
            running_a(),
            Script::default()
                .facts(|facts| facts.meta.agent.on_unhealthy = Some(OnUnhealthy::Rollback))
                .next(none())
                .next(sick()),
            |t| assert_eq!(t.done.word, "rolled_back"),
        ),
        scenario(
            "a_bundle_may_ask_to_be_kept",
            rolls_back(running_a()),
            Script::default()
                .facts(|facts| facts.meta.agent.on_unhealthy = Some(OnUnhealthy::Keep))
                .next(none())
                .next(sick()),
            |t| assert_eq!(t.done.word, "failed"),
        ),
        scenario(
            "however_much_their_checks_print_all_that_fail_are_named",
            running_a(),
            Script::default()
                .next(Event::ModelRead(Ok(model::Model { services: many(), ..Default::default() })))
                .next(none())
                .next(many_sick()),
            |t| {
                failed_with(t, Code::Unhealthy);
                let names = "a: unhealthy; b: unhealthy; c: unhealthy; d: unhealthy; e: unhealthy; f: unhealthy; ";
                assert!(t.done.detail.contains(names), "{}", t.done.detail);
                for words in ["a's check exited with 1: …xxx", "d's check", "d says: boot"] {
                    assert!(t.done.detail.contains(words), "{words}: {}", t.done.detail);
                }
            },
        ),
        scenario(
            "a_rollback_that_fails_too_is_told_as_both_however_long_the_first_was",
            rolls_back(running_a()),
            Script::default()
                .next(Event::ModelRead(Ok(model::Model { services: many(), ..Default::default() })))
                .next(none())
                .next(many_sick())
                .next(none())
                .next(sick()),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(t.done.detail.contains("the rollback failed too: web: unhealthy"), "{}", t.done.detail);
            },
        ),
        scenario(
            "a_rollback_that_fails_too_is_told_as_both",
            rolls_back(running_a()),
            Script::default().next(none()).next(sick()).next(sick()).next(sick()),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(t.report().is_some_and(|report| !report.rolled_back));
                assert!(t.done.detail.contains("the rollback failed too"), "{}", t.done.detail);
            },
        ),
        scenario(
            "an_interrupted_apply_whose_release_is_not_there_as_it_was_begins_anew",
            change(interrupted_b(), |boot| boot.local.releases.clear()),
            Script::default(),
            |t| {
                assert_eq!(t.done.word, "applied");
                assert_eq!(
                    (t.count(OpName::FetchBundle), t.count(OpName::StageBundle), t.count(OpName::Up)),
                    (1, 1, 1)
                );
            },
        ),
        scenario(
            "what_compose_reads_is_mounted_read_only_and_looked_at_before_the_gate",
            running_a(),
            Script::default().next(Event::ModelRead(Ok(model::Model {
                services: services(),
                closed: closed(),
                ..Default::default()
            }))),
            |t| {
                assert!(t.ops.iter().any(|op| matches!(op, Op::WriteRelease(write) if write.closed == closed())));
                assert!(t.ops.iter().any(|op| matches!(op, Op::CheckCompose(check) if check.look)));
            },
        ),
        scenario(
            "what_a_variable_decides_is_looked_at_before_the_gate",
            running_a(),
            Script::default().next(Event::ModelRead(Ok(model::Model {
                services: services(),
                decided: true,
                ..Default::default()
            }))),
            |t| {
                assert!(t.ops.iter().any(|op| matches!(op, Op::WriteRelease(write) if write.closed.is_empty())));
                assert!(t.ops.iter().any(|op| matches!(op, Op::CheckCompose(check) if check.look)));
            },
        ),
        scenario(
            "without_a_good_release_there_is_nothing_to_roll_back_to",
            rolls_back(bootstrapped()),
            Script::default().next(none()).next(sick()),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(!t.state.attempts[&sha("b")].quarantined);
            },
        ),
        scenario(
            "a_rollback_is_durable_before_it_begins",
            rolls_back(running_a()),
            Script::default().next(none()).next(sick()),
            |t| {
                let second = t.ops.iter().enumerate().filter(|(_, op)| op.name() == OpName::Promote).nth(1).unwrap().0;
                let noted = t.ops[..second]
                    .iter()
                    .rev()
                    .find_map(|op| match op {
                        Op::SaveState(save) => Some(save),
                        _ => None,
                    })
                    .unwrap();
                assert!(noted.state.attempts[&sha("b")].quarantined);
                assert!(
                    noted
                        .state
                        .unfinished
                        .as_ref()
                        .is_some_and(|goal| goal.sha == sha("a") && goal.instead_of.is_some())
                );
            },
        ),
        scenario("an_interrupted_rollback_is_finished_and_told", in_rollback(), Script::default(), |t| {
            assert_eq!(t.done.word, "rolled_back");
            assert!(t.report().is_some_and(|report| report.rolled_back && report.sha == sha("b")));
        }),
        scenario(
            "an_interrupted_rollback_is_finished_and_told_though_another_bundle_is_desired_by_now",
            in_rollback(),
            Script::default().desired("c", 3),
            |t| {
                assert_eq!(t.done.word, "rolled_back");
                assert!(t.report().is_some_and(|report| report.rolled_back && report.sha == sha("b")));
            },
        ),
        scenario(
            "a_rollback_that_cannot_be_promoted_is_told_as_what_it_was_made_for",
            rolls_back(running_a()),
            Script::default()
                .next(Event::Inspected(Ok(Vec::new())))
                .next(sick())
                .next(Event::Promoted(Ok(())))
                .next(Event::Promoted(Err(disk_full()))),
            |t| {
                failed_with(t, Code::Unhealthy);
                assert!(t.done.detail.contains("the rollback failed too"), "{}", t.done.detail);
            },
        ),
        scenario(
            "logs_that_cannot_be_read_do_not_hide_the_failure",
            running_a(),
            Script::default().next(none()).next(sick()).next(Event::LogsRead(Err(refused_run("no such container")))),
            |t| failed_with(t, Code::Unhealthy),
        ),
    ]
}

fn reports() -> Vec<Scenario> {
    let waiting = || change(running_a(), |boot| boot.local.outbox = vec!["r1".to_owned(), "r2".to_owned()]);
    vec![
        scenario(
            "reports_that_waited_go_out_with_an_unchanged_tick_oldest_first",
            waiting(),
            Script::default().desired("a", 1),
            |t| {
                let sent: Vec<&str> = t
                    .ops
                    .iter()
                    .filter_map(|op| match op {
                        Op::SendReport(send) => Some(send.report_id.as_str()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(sent, ["r1", "r2"]);
                assert_eq!(t.count(OpName::DropReport), 2);
            },
        ),
        scenario(
            "a_report_that_cannot_be_delivered_stays_and_changes_nothing",
            running_a(),
            Script::default().next(Event::ReportSent(Err(unreachable()))),
            |t| {
                applied_b(t);
                assert_eq!(t.count(OpName::DropReport), 0);
            },
        ),
        scenario(
            "one_that_cannot_be_delivered_holds_back_the_later_ones",
            waiting(),
            Script::default().desired("a", 1).next(Event::ReportSent(Err(status(503, "down")))),
            |t| assert_eq!(t.count(OpName::SendReport), 1),
        ),
        scenario(
            "a_report_that_tenancy_will_never_take_is_dropped",
            waiting(),
            Script::default().desired("a", 1).next(Event::ReportSent(Err(status(422, "unknown sha")))),
            |t| {
                assert_eq!((t.count(OpName::SendReport), t.count(OpName::DropReport)), (2, 2));
            },
        ),
        scenario("the_outcome_is_durable_before_it_is_told", running_a(), Script::default(), |t| {
            let names = t.names();
            let at = |name: OpName| names.iter().position(|n| *n == name).unwrap();
            let durable =
                t.ops.iter().position(|op| matches!(op, Op::SaveState(save) if save.state.outcome.is_some())).unwrap();
            assert!(durable < at(OpName::SaveReport) && at(OpName::SaveReport) < at(OpName::SendReport));
        }),
        scenario(
            "an_outcome_that_did_not_reach_the_outbox_is_told_by_the_next_tick",
            {
                let lost = run(running_a(), Script::default().next(Event::ReportSaved(Err(disk_full()))));
                change(running_a(), |boot| {
                    boot.now = NOW.plus_s(60);
                    boot.state = lost.state;
                    boot.local.current = Some(sha("b"));
                })
            },
            Script::default(),
            |t| {
                assert_eq!(
                    t.names(),
                    [OpName::Checkin, OpName::SaveReport, OpName::SaveState, OpName::SendReport, OpName::DropReport]
                );
            },
        ),
        scenario(
            "an_outcome_that_cannot_be_saved_is_not_told",
            running_a(),
            Script::default().next(Event::StateSaved(Ok(()))).next(Event::StateSaved(Err(disk_full()))),
            |t| {
                assert_eq!((t.count(OpName::SaveReport), t.count(OpName::SendReport)), (0, 0));
                assert_eq!((t.done.exit, t.done.code), (Exit::Failed, Some(Code::DiskFull)));
            },
        ),
        scenario(
            "an_outcome_that_does_not_reach_the_outbox_is_the_verdict_all_the_same",
            running_a(),
            Script::default().next(Event::ReportSaved(Err(disk_full()))),
            |t| {
                assert_eq!((t.done.exit, t.done.word.as_str(), t.count(OpName::SendReport)), (Exit::Ok, "applied", 0));
                assert_eq!(t.state.outcome.as_ref().map(|told| told.result), Some(Outcome::Applied));
            },
        ),
        scenario(
            "an_outcome_that_is_not_known_to_be_in_the_outbox_is_the_verdict_all_the_same",
            running_a(),
            Script::default()
                .next(Event::StateSaved(Ok(())))
                .next(Event::StateSaved(Ok(())))
                .next(Event::StateSaved(Err(disk_full()))),
            |t| assert_eq!((t.done.exit, t.done.word.as_str(), t.count(OpName::SendReport)), (Exit::Ok, "applied", 0)),
        ),
        scenario(
            "a_report_that_cannot_be_dropped_is_a_warning",
            running_a(),
            Script::default().next(Event::ReportDropped(Err(disk_full()))),
            applied_b,
        ),
        scenario(
            "releases_beyond_the_last_ones_are_removed_after_success",
            change(running_a(), |boot| {
                boot.settings.keep_releases = 1;
                boot.local.releases.push(sha("old"));
            }),
            // `up` made every container anew.
            Script::default().next(well()).next({
                let mut web = container("web", ContainerState::Running, Some(Health::Healthy));
                web.started = Some(NOW.plus_s(60));
                Event::Inspected(Ok(vec![web]))
            }),
            |t| {
                applied_b(t);
                assert!(
                    t.ops.iter().any(|op| matches!(op, Op::PruneReleases(prune) if prune.keep == [sha("b")])),
                    "{}",
                    t.text
                );
                assert_eq!(t.state.earlier, [sha("a")]);
            },
        ),
        scenario(
            "a_release_that_a_running_container_was_started_from_is_kept",
            change(running_a(), |boot| boot.settings.keep_releases = 1),
            Script::default().next(well()).next({
                let mut db = container("db", ContainerState::Running, Some(Health::Healthy));
                db.started = Some(NOW.plus_s(-7100));
                Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Healthy)), db]))
            }),
            |t| {
                applied_b(t);
                let kept = t
                    .ops
                    .iter()
                    .find_map(|op| match op {
                        Op::PruneReleases(prune) => Some(prune.keep.clone()),
                        _ => None,
                    })
                    .unwrap();
                assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([sha("a"), sha("b")]));
            },
        ),
        scenario(
            "releases_that_cannot_be_removed_are_a_warning",
            running_a(),
            Script::default().next(Event::ReleasesPruned(Err(StoreFault { disk_full: false, detail: said("busy") }))),
            applied_b,
        ),
        scenario(
            "prune_removes_only_own_images_that_no_kept_release_needs",
            change(running_a(), |boot| {
                boot.options.prune = true;
                boot.settings.keep_releases = 1;
                boot.state.images = BTreeSet::from(["sha256:a".to_owned(), "sha256:older".to_owned()]);
            }),
            Script::default(),
            |t| {
                applied_b(t);
                assert!(
                    t.ops
                        .iter()
                        .any(|op| matches!(op, Op::RemoveImages(remove) if remove.ids == ["sha256:a", "sha256:older"])),
                    "{}",
                    t.text
                );
                assert_eq!(t.state.images, BTreeSet::from(["sha256:b".to_owned()]));
            },
        ),
        scenario(
            "images_that_cannot_be_removed_are_a_warning",
            change(running_a(), |boot| {
                boot.options.prune = true;
                boot.state.images = BTreeSet::from(["sha256:older".to_owned()]);
            }),
            Script::default()
                .desired("a", 1)
                .next(Event::ImagesRemoved(Err(RunFault::Unavailable { detail: said("Cannot connect") }))),
            |t| {
                assert_eq!(t.done.exit, Exit::Ok);
            },
        ),
    ]
}

#[test]
fn every_scenario_ends_as_it_must_and_asks_for_exactly_these_effects() {
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for Scenario { name, boot, script, check } in scenarios() {
        assert!(names.insert(name), "two scenarios are called {name}");
        let trace = run(boot, script);
        if std::panic::catch_unwind(|| check(&trace)).is_err() {
            wrong.push(format!("== {name}\n{}", trace.text));
        }
        insta::assert_snapshot!(name, trace.text);
    }
    assert!(wrong.is_empty(), "{} scenarios end otherwise:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_edge_of_the_table_is_taken_by_some_scenario_and_no_other_is() {
    let taken: BTreeSet<(StageName, StageName)> =
        scenarios().into_iter().flat_map(|scenario| run(scenario.boot, scenario.script).edges).collect();
    let table: BTreeSet<(StageName, StageName)> = EDGES.iter().map(|edge| (edge.from, edge.to)).collect();
    assert_eq!(table.len(), EDGES.len(), "an edge stands in the table twice");
    assert_eq!(taken, table);
}

/// The inputs that answer these effects as if all went well, a second each.
fn answers(script: &mut Script, effects: &[Effect], now: &mut Stamp) -> Vec<Input> {
    let answer = |effect: &Effect| {
        *now = now.plus_s(1);
        Input { now: *now, answers: effect.id, event: script.answer(&effect.op) }
    };
    effects.iter().map(answer).collect()
}

#[test]
fn an_answer_out_of_turn_is_refused_and_the_machine_still_waits_for_it() {
    let (mut script, mut now) = (Script::default(), NOW);
    let mut transition = Machine::boot(running_a());
    while transition.effects.len() < 2 {
        transition = transition.next.steps(answers(&mut script, &transition.effects, &mut now));
    }
    let inputs = answers(&mut script, &transition.effects, &mut now);
    let [probed, model] = inputs.try_into().unwrap();
    let waits = transition.next.waiting().to_vec();
    let early = transition.next.step(model.clone());
    assert_eq!(early.next.waiting(), waits, "nothing was taken");
    assert!(early.notes.iter().any(|note| note.text.contains("before the one to effect")), "{:?}", early.notes);
    let both = early.next.steps([probed, model]);
    assert_eq!(both.next.stage(), StageName::Token);
}
