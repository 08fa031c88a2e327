//! The plan is what a tick does: in any box and any world whose reading half answers in any way.
//!
//! Invariant: both runs have the same boot and the same world. In one the dry run stands before it.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use common::driver::Scripted;
use common::script::*;
use monky_deployd::cli::plan::Plan;
use monky_deployd::drivers::Driver;
use monky_deployd::drivers::dry_run::DryRun;
use monky_deployd::drivers::run_loop::{self, Ended, Watch};
use monky_deployd::effects::manifest::Manifest;
use monky_deployd::effects::state::{Attempts, Cause, FailedDeploy, Goal, LastError, Promotion, TokenSource};
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Machine, Options};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

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

/// What a plan says becomes of the services of a box with these containers, in text and by name.
fn fates(boot: Boot, containers: Vec<containers::Container>) -> (String, Value) {
    let script = Script::default().next(Event::Inspected(Ok(containers)));
    let again = boot.state.unfinished.as_ref().is_some_and(|goal| goal.sha == sha("a") && goal.instead_of.is_none());
    let script = if boot.options.force || again { script.desired("a", 1) } else { script };
    let dry = DryRun::new(Scripted::new(boot.now, script), &boot.state);
    let mut plan = Plan::default();
    let Ended::Done(done) = run_loop::run(boot, &dry, &mut plan) else { panic!("nobody asked it to end") };
    plan.finish(done);
    (plan.text(false), serde_json::to_value(&plan).unwrap()["services"].clone())
}

/// A container of a service with this image that runs since so many seconds.
fn runs_since(service: &str, image: &str, s: i64) -> containers::Container {
    let running = containers::ContainerState::Running;
    containers::Container {
        image_id: image.to_owned(),
        started: Some(NOW.plus_s(-s)),
        ..container(service, running, None)
    }
}

/// A box that ran "a" with `web` and `db`, whose tick was killed in the `up` of "b", which has another `web`.
fn killed_in_up() -> Boot {
    let mut boot = running_a();
    let web = services().remove("web").unwrap();
    let db = model::Service { variables: Vec::new(), mounts: None, ..web.clone() };
    let newer = model::Service { image: Some("registry.example/web:2".to_owned()), ..web.clone() };
    let of = |web: model::Service| [("web".to_owned(), web), ("db".to_owned(), db.clone())].into_iter().collect();
    boot.state.good[0].services = of(web);
    let mut b = goal("b");
    b.services = of(newer);
    boot.state.promotions.push(Promotion { sha: sha("b"), at: NOW.plus_s(-200) });
    boot.state.unfinished = Some(b);
    boot.local.releases.push(sha("b"));
    boot
}

/// The same box, killed while "a" was brought back because "b" had failed.
fn killed_in_a_rollback() -> Boot {
    let mut boot = killed_in_up();
    let b = boot.state.unfinished.take().unwrap();
    let code = failure::Code::Unhealthy;
    let error = LastError { code, phase: "healthy".to_owned(), detail: "web".to_owned(), at: NOW.plus_s(-100) };
    let failed = FailedDeploy { sha: b.sha, attempt: 1, cause: Cause::NewSha, since: b.since, error };
    let good = &boot.state.good[0];
    let a = Goal { services: good.services.clone(), secrets: good.secrets.clone(), ..goal("a") };
    boot.state.promotions.push(Promotion { sha: sha("a"), at: NOW.plus_s(-100) });
    boot.state.unfinished = Some(Goal { instead_of: Some(Box::new(failed)), ..a });
    boot
}

#[test]
fn a_plan_of_an_interrupted_up_says_what_becomes_of_each_service_and_removes_none_that_the_release_has() {
    // Nothing was replaced yet.
    let (text, fates_of) = fates(killed_in_up(), vec![runs_since("web", "a", 7000), runs_since("db", "a", 7000)]);
    assert_eq!([&fates_of["web"]["fate"], &fates_of["db"]["fate"]], ["recreated", "kept"], "{text}");
    assert!(text.contains(&format!("the apply of {} was interrupted; it is finished", sha("b").short())), "{text}");
    // `web` was taken away and not made anew; `db` was started since, by whomever; `old` is not of the release.
    let (text, fates_of) = fates(killed_in_up(), vec![runs_since("db", "a", 150), runs_since("old", "a", 7000)]);
    let all: Vec<&Value> = ["web", "db", "old"].iter().map(|name| &fates_of[name]["fate"]).collect();
    assert_eq!(all, ["created", "not_known", "removed"], "{text}");
    assert!(text.contains("?         db: not known here: an earlier try at "), "{text}");
}

#[test]
fn what_an_interrupted_apply_was_given_of_secrets_is_compared_by_release_and_version() {
    let fate = |name: &str, version: u64| {
        let mut boot = killed_in_up();
        let path = boot.state.good[0].secrets.keys().next().unwrap().clone();
        let web = boot.state.good[0].services["web"].clone();
        let goal = boot.state.unfinished.as_mut().unwrap();
        goal.sha = sha(name);
        goal.services.insert("web".to_owned(), web);
        goal.secrets.insert(path, version);
        let (text, fates_of) = fates(boot, vec![runs_since("web", "a", 7000), runs_since("db", "a", 7000)]);
        assert_eq!(fates_of["db"]["fate"], "kept", "nothing fills it in: {text}");
        fates_of["web"]["fate"].clone()
    };
    // Another release may name the same secret's other key, or make something else of it.
    assert_eq!(
        [fate("a", 1), fate("a", 2), fate("b", 1), fate("b", 2)],
        ["kept", "not_known", "not_known", "not_known"]
    );
}

#[test]
fn a_plan_of_an_interrupted_rollback_says_what_becomes_of_each_service_and_removes_none_that_the_release_has() {
    let seen = vec![runs_since("web", "sha256:b", 150), runs_since("db", "sha256:a", 7000)];
    let (text, fates_of) = fates(killed_in_a_rollback(), seen);
    assert_eq!([&fates_of["web"]["fate"], &fates_of["db"]["fate"]], ["recreated", "kept"], "{text}");
    let (a, b) = (sha("a"), sha("b"));
    let told = format!("a rollback to {}, since {} failed, was interrupted; it is finished", a.short(), b.short());
    assert!(text.contains(&told), "{text}");
    // With an image that both have, only Compose can tell.
    let (text, fates_of) = fates(killed_in_a_rollback(), vec![runs_since("web", "sha256:a", 150)]);
    assert_eq!([&fates_of["web"]["fate"], &fates_of["db"]["fate"]], ["not_known", "created"], "{text}");
    assert!(text.contains(&format!("it may be of {} by now", b.short())), "{text}");
}

#[test]
fn a_plan_of_a_forced_tick_starts_what_was_stopped() {
    let mut boot = running_a();
    boot.options.force = true;
    let stopped = |state| vec![containers::Container { state, ..runs_since("web", "sha256:a", 7000) }];
    let (text, fates_of) = fates(boot.clone(), stopped(containers::ContainerState::Exited));
    assert_eq!(fates_of["web"]["fate"], "started", "{text}");
    assert!(text.contains("  start     web, unless there is a newer version of DB_PASSWORD\n"), "{text}");
    let (text, fates_of) = fates(boot, stopped(containers::ContainerState::Running));
    let kept = serde_json::json!({"fate": "kept", "unless_newer": ["DB_PASSWORD"]});
    assert_eq!(fates_of["web"], kept, "its secret is not pinned: {text}");
    assert!(text.contains("  keep      web, unless there is a newer version of DB_PASSWORD\n"), "{text}");
}

#[test]
fn a_plan_that_only_prunes_removes_no_service() {
    let mut boot = running_a();
    boot.options.prune = true;
    let script =
        Script::default().desired("a", 1).next(Event::Inspected(Ok(vec![runs_since("web", "sha256:a", 7000)])));
    let dry = DryRun::new(Scripted::new(boot.now, script), &boot.state);
    let mut plan = Plan::default();
    run_loop::run(boot, &dry, &mut plan);
    assert_eq!(serde_json::to_value(&plan).unwrap()["services"], serde_json::json!({}));
}

#[test]
fn what_only_a_real_tick_fills_in_is_not_known_to_a_plan() {
    let fate = |variable: &str, template: bool| {
        let mut services = services();
        services.get_mut("web").unwrap().variables = vec![variable.to_owned()];
        let mut boot = running_a();
        boot.options.force = true;
        boot.state.good[0].services = services.clone();
        let model = model::Model { services, ..model::Model::default() };
        let script = Script::default()
            .desired("a", 1)
            .facts(move |facts| facts.template = template.then(|| Ok(vec!["DB_PASSWORD".to_owned()])))
            .next(Event::ModelRead(Ok(model)))
            .next(Event::Inspected(Ok(vec![runs_since("web", "sha256:a", 7000)])));
        let dry = DryRun::new(Scripted::new(boot.now, script), &boot.state);
        let mut plan = Plan::default();
        run_loop::run(boot, &dry, &mut plan);
        serde_json::to_value(&plan).unwrap()["services"]["web"]["fate"].clone()
    };
    // What the template makes of secrets, and files that may have some.
    assert_eq!([fate("DATABASE_URL", true), fate("env_file", false)], ["not_known", "not_known"]);
    // A secret by itself, and a variable that nothing sets.
    assert_eq!([fate("DB_PASSWORD", true), fate("TAG", false)], ["kept", "kept"]);
}
