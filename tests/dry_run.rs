//! The plan is what a tick does: in any box and any world whose reading half answers in any way.
//!
//! Invariant: both runs have the same boot and the same world. In one the dry run stands before it.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use common::driver::Scripted;
use common::script::*;
use monky_deployd::drivers::Driver;
use monky_deployd::drivers::dry_run::DryRun;
use monky_deployd::drivers::run_loop::{self, Ended, Watch};
use monky_deployd::effects::manifest::Manifest;
use monky_deployd::effects::state::{Attempts, Cause, Goal, TokenSource};
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Machine, Options};
use proptest::prelude::*;
use proptest::sample::select;

/// What a tick asks for, as far as a plan can know it.
#[derive(Default)]
struct Asked(Vec<String>);

impl Watch for Asked {
    fn asks(&mut self, machine: &Machine, effect: &Effect, _now: Stamp) {
        let what = match &effect.op {
            // How often a real tick has to look is not known before.
            Op::WaitUntil(_) => return,
            // Ids, versions, times and names come from answers that a plan does not have.
            Op::SaveState(_)
            | Op::SaveGrant(_)
            | Op::SaveReport(_)
            | Op::SendReport(_)
            | Op::DropReport(_)
            | Op::RemoveImages(_)
            | Op::Up(_) => String::new(),
            Op::WriteRelease(write) => format!("{:?} {:?} {}", write.sha, write.variables, write.registry.is_some()),
            other => format!("{other:?}"),
        };
        let line = format!("{} {} {what}", machine.stage(), effect.op.name().as_str());
        if self.0.last() != Some(&line) || effect.op.name() != OpName::Inspect {
            self.0.push(line);
        }
    }
}

fn tick(boot: Boot, driver: &dyn Driver) -> (Vec<String>, Done) {
    let mut asked = Asked::default();
    let Ended::Done(done) = run_loop::run(boot, driver, &mut asked) else { panic!("nobody asked it to end") };
    (asked.0, done)
}

fn goal(name: &str) -> Goal {
    Goal {
        sha: sha(name),
        generation: Some(2),
        attempt: 1,
        cause: Cause::NewSha,
        since: NOW.plus_s(-300),
        services: services(),
        secrets: std::collections::BTreeMap::new(),
        on_unhealthy: OnUnhealthy::Keep,
        healthy_timeout_s: 300,
        instead_of: None,
    }
}

prop_compose! {
    fn some_box()(
        used: bool,
        token in select(vec![None, Some(TokenSource::Lease), Some(TokenSource::Bootstrap)]),
        bootstrap: bool,
        grant_s in select(vec![None, Some(-60_i64), Some(600)]),
        options in (any::<bool>(), any::<bool>()),
        outbox in 0..3_usize,
        leases in select(vec![0_usize, 1, 5]),
        tried in select(vec![None, Some((1, -60, false)), Some((2, 600, false)), Some((1, 0, true))]),
        unfinished in select(vec![None, Some("a"), Some("b")]),
        laptop_mode: bool,
    ) -> Boot {
        let mut boot = if used { running_a() } else { fresh() };
        boot.settings.laptop_mode = laptop_mode;
        boot.options = Options { force: options.0, prune: options.1 };
        boot.local.token = token;
        if token.is_none() {
            boot.state.token = None;
        }
        boot.local.bootstrap = bootstrap;
        boot.local.grant = grant_s.map(|s| GrantFacts { expires_at: Some(NOW.plus_s(s)), role: None });
        boot.local.outbox = (0..outbox).map(|n| format!("r{n}")).collect();
        boot.state.leases = vec![NOW.plus_s(-100); leases];
        if let Some((count, next_s, quarantined)) = tried {
            let next_at = Some(NOW.plus_s(next_s));
            boot.state.attempts.insert(sha("b"), Attempts { count, next_at, quarantined });
        }
        boot.state.unfinished = unfinished.map(goal);
        boot.local.releases.extend(unfinished.map(sha));
        boot
    }
}

/// The ways in which what is read may answer; everything else goes well.
fn some_world() -> impl Strategy<Value = (Script, Event)> {
    let checkin = prop_oneof![
        4 => Just(Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("b")), hold: None }))),
        1 => Just(Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("a")), hold: None }))),
        1 => Just(Event::CheckedIn(Ok(Desired { desired_sha: None, hold: None }))),
        1 => Just(Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("b")), hold: Some("wait".to_owned()) }))),
        1 => Just(Event::CheckedIn(Err(unreachable()))),
    ];
    let bundle = (0..6_u8).prop_map(|which| {
        let mut facts = facts("b", 2);
        match which {
            0 => facts.meta.env_id = "another".to_owned(),
            1 => facts.manifest = Ok(Manifest { entries: Vec::new() }),
            2 => return Event::BundleFetched(Err(BundleFault::Call(status(404, "no such bundle")))),
            _ => {}
        }
        Event::BundleFetched(Ok(Box::new(facts)))
    });
    let probe = prop_oneof![
        5 => Just(Event::DockerProbed(Ok(versions()))),
        1 => Just(Event::DockerProbed(Err(RunFault::Unavailable { detail: said("no daemon") }))),
    ];
    let model = (0..6_u8).prop_map(|which| match which {
        0 => Event::ModelRead(Err(ComposeFault::Run(refused_run("services.web: invalid")))),
        _ => Event::ModelRead(Ok(model::Model { services: services(), ..Default::default() })),
    });
    let lookup = select(vec![
        Ok(token(3000)),
        Ok(token(100)),
        Ok(TokenFacts { renewable: false, ..token(100) }),
        Err(denied()),
        Err(sealed()),
    ]);
    let looks = select(vec![None, Some(Event::Inspected(Ok(Vec::new())))]);
    (checkin, bundle, probe, model, lookup, looks).prop_map(|(checkin, bundle, probe, model, lookup, looks)| {
        let script = Script::default().next(checkin).next(bundle).next(probe).next(model);
        let script = match looks {
            Some(looks) => script.next(looks),
            None => script,
        };
        (script, Event::TokenLookedUp(lookup))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_effects_of_a_plan_are_those_of_the_tick(boot in some_box(), (script, lookup) in some_world()) {
        // Of the saved token alone: a new one that does not work is not a world in which all goes well.
        let looks_up = boot.local.token.is_some() && !boot.local.bootstrap;
        let script = if looks_up { script.next(lookup) } else { script };
        let dry = DryRun::new(Scripted::new(boot.now, script.clone()), &boot.state);
        let (planned, would_be) = tick(boot.clone(), &dry);
        let (executed, done) = tick(boot.clone(), &Scripted::new(boot.now, script));
        prop_assert_eq!(planned, executed);
        prop_assert_eq!((would_be.word, would_be.exit, would_be.code), (done.word, done.exit, done.code));
    }
}

#[test]
fn a_plan_of_an_interrupted_apply_ends_at_once_and_well() {
    let mut boot = running_a();
    boot.state.unfinished = Some(goal("b"));
    boot.local.releases.push(sha("b"));
    let dry = DryRun::new(Scripted::new(boot.now, Script::default()), &boot.state);
    let (planned, would_be) = tick(boot, &dry);
    assert_eq!(would_be.word, "applied", "{planned:?}");
    assert!(planned.len() < 20, "{planned:?}");
}

#[test]
fn time_passes_in_a_plan_though_nobody_waits() {
    let boot = running_a();
    let dry = DryRun::new(Scripted::new(boot.now, Script::default()), &boot.state);
    let until = boot.now.plus_s(3600);
    let wait = Effect { id: EffectId(1), op: Op::WaitUntil(WaitUntil { until, reason: String::new() }) };
    dry.perform(&[wait]);
    assert_eq!(dry.now(), until);
}
