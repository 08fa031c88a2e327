//! What holds of the machine in any world, however it answers: properties over random boxes, answers, and clocks.
//!
//! Invariant: what a property says is asserted of the shipped machine alone, with answers that the table of operations
//! allows.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;
#[path = "model/disk.rs"]
mod disk;
#[path = "properties/tape.rs"]
mod tape;

use std::collections::BTreeMap;

use common::script::*;
use disk::Disk;
use monky_deployd::effects::containers::{Container, ContainerState, Health, RestartPolicy};
use monky_deployd::effects::failure::Class;
use monky_deployd::effects::model::Service;
use monky_deployd::effects::state::{Attempts, State, TokenSource};
use monky_deployd::effects::words::unhealthy_dependency;
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::verdict::{self, Verdict};
use monky_deployd::fsm::{Boot, Input, Machine, Options, StageName, Transition};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tape::*;

/// More steps than any tick needs: an hour of looking every second.
const STEPS: usize = 20_000;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..600)
}

/// What a tick asked for, and what it heard.
#[derive(Default)]
struct Tick {
    effects: Vec<Effect>,
    /// The answer to each effect, in the same order.
    inputs: Vec<Input>,
    /// In which turn each effect was asked for: what is heard in a turn is known from the next one on.
    turns: Vec<usize>,
    edges: Vec<(StageName, StageName)>,
    done: Option<Done>,
}

impl Tick {
    fn count(&self, name: OpName) -> usize {
        self.effects.iter().filter(|effect| effect.op.name() == name).count()
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.effects.iter().map(|effect| effect.op.name().kind())
    }
}

/// Runs a tick to its end. `meet` sees every machine on the way, and may replace it.
fn tick(boot: Boot, answer: impl FnMut(&Op) -> Event, meet: impl FnMut(Machine) -> Machine) -> Tick {
    tick_by(|now| now, boot, answer, meet)
}

/// The same by another clock, which is looked at before every event.
fn tick_by(
    mut clock: impl FnMut(Stamp) -> Stamp,
    boot: Boot,
    mut answer: impl FnMut(&Op) -> Event,
    mut meet: impl FnMut(Machine) -> Machine,
) -> Tick {
    let mut tick = Tick::default();
    let mut now = boot.now;
    let mut transition = Machine::boot(boot);
    for turn in 0..STEPS {
        let Transition { next, effects, notes: _, taken } = transition;
        tick.edges.extend(taken);
        if let Some(done) = next.done() {
            tick.done = Some(done.clone());
            return tick;
        }
        let heard = |effect: &Effect| {
            now = clock(now);
            input(effect, answer(&effect.op), &mut now)
        };
        let inputs: Vec<Input> = effects.iter().map(heard).collect();
        tick.turns.extend(effects.iter().map(|_| turn));
        tick.effects.extend(effects);
        tick.inputs.extend(inputs.clone());
        transition = meet(next).steps(inputs);
    }
    panic!("no end: {:?}", tick.effects.iter().rev().take(20).collect::<Vec<_>>());
}

/// Runs a tick that leaves its traces on a disk.
fn tick_on(disk: &mut Disk, boot: Boot, mut answer: impl FnMut(&Op) -> Event) -> Tick {
    tick(
        boot,
        |op| {
            let event = answer(op);
            if went_well(&event) {
                disk.done(op);
            }
            event
        },
        |machine| machine,
    )
}

/// An answer is `{"event": …, "data": …}`, and the data of a failure is `{"Err": …}`.
fn went_well(event: &Event) -> bool {
    serde_json::to_value(event).unwrap()["data"].get("Err").is_none()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// A world in which everything goes well and bundle "z" is desired, a newer one than any other.
fn good_world() -> impl FnMut(&Op) -> Event {
    let mut script = Script::default().desired("z", 1_000_000).facts(|facts| facts.meta.agent.allow_rollback = true);
    move |op| match op {
        Op::LookupToken(_) => Event::TokenLookedUp(Ok(TokenFacts { accessor: None, ttl_s: None, renewable: false })),
        // Whatever is looked for is there and well, for a release that is finished may be another one.
        Op::Inspect(_) => {
            let fine = |service: &str, n: u32| {
                let mut fine = container(service, ContainerState::Running, Some(Health::Healthy));
                fine.id = format!("{service}-{n}");
                fine
            };
            Event::Inspected(Ok(vec![fine("web", 1), fine("db", 1), fine("db", 2)]))
        }
        op => script.answer(op),
    }
}

/// A tick of some box. In every other one most answers are good until `up`, for otherwise few would come as far.
fn some_tick(bytes: Vec<u8>) -> (Boot, Tick) {
    let mut tape = Tape::new(bytes);
    let boot = some_boot(&mut tape);
    let mostly_well = tape.one_in(2);
    let mut good = good_world();
    let answer = |op: &Op| {
        let one_bad_in = if matches!(op, Op::Up(_) | Op::Inspect(_)) { 2 } else { 12 };
        if mostly_well && !tape.one_in(one_bad_in) { good(op) } else { some_event(&mut tape, op) }
    };
    let tick = tick(boot.clone(), answer, |machine| machine);
    (boot, tick)
}

/// How many cases of each: `make soak` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_inputs_makes_it_panic_or_wait_for_nothing(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let boot = some_boot(&mut tape);
        let mut now = boot.now;
        let Transition { next: mut machine, effects, .. } = Machine::boot(boot);
        let mut asked: BTreeMap<EffectId, Effect> = effects.into_iter().map(|effect| (effect.id, effect)).collect();
        let mut good = good_world();
        for _ in 0..STEPS {
            prop_assert!(machine.done().is_some() || !machine.waiting().is_empty(), "stuck in {}", machine.stage());
            for (id, name) in machine.waiting() {
                prop_assert_eq!(asked[id].op.name(), *name);
            }
            let heard = if tape.over() {
                let Some((id, _)) = machine.waiting().first() else { break };
                input(&asked[id], good(&asked[id].op), &mut now)
            } else if tape.one_in(3) {
                // Anything, to anyone.
                let op = some_op(&mut tape);
                let answers = EffectId(u32::from(tape.byte()) % (asked.len() as u32 + 3));
                let at = a_moment(&mut tape);
                Input { now: at, answers, event: some_event(&mut tape, &op) }
            } else {
                let waiting = machine.waiting().to_vec();
                if waiting.is_empty() { break };
                let (id, _) = waiting[tape.pick(waiting.len())];
                input(&asked[&id], some_event(&mut tape, &asked[&id].op), &mut now)
            };
            let stage = machine.stage();
            let transition = machine.step(heard);
            prop_assert!(stage != StageName::Done || transition.effects.is_empty(), "who is done asks for nothing");
            asked.extend(transition.effects.into_iter().map(|effect| (effect.id, effect)));
            machine = transition.next;
        }
        prop_assert!(machine.done().is_some(), "it does not end in a good world: {}", machine.stage());
    }

    #[test]
    fn the_same_boot_and_inputs_give_the_same_effects_byte_for_byte(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let boot = some_boot(&mut tape);
        let first = tick(boot.clone(), |op| some_event(&mut tape, op), |machine| machine);
        let recorded: Vec<Input> = serde_json::from_str(&json(&first.inputs)).unwrap();
        let boot: Boot = serde_json::from_str(&json(&boot)).unwrap();
        let mut again = recorded.into_iter();
        let second = tick(boot, |_| again.next().unwrap().event, |machine| machine);
        prop_assert_eq!(json(&first.effects), json(&second.effects));
        prop_assert_eq!(first.done, second.done);
    }

    #[test]
    fn a_machine_that_was_written_down_and_read_again_goes_on_as_if_nothing_had_been(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let boot = some_boot(&mut tape);
        let first = tick(boot.clone(), |op| some_event(&mut tape, op), |machine| machine);
        let mut again = first.inputs.iter().cloned();
        let second = tick(boot, |_| again.next().unwrap().event, |machine| {
            let read: Machine = serde_json::from_str(&json(&machine)).unwrap();
            assert_eq!(read, machine);
            read
        });
        prop_assert_eq!(json(&first.effects), json(&second.effects));
    }

    #[test]
    fn a_refused_bundle_leases_and_runs_nothing(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let tick = tick(some_boot(&mut tape), |op| some_event(&mut tape, op), |machine| machine);
        // What may not be deployed by the look of it, or was refused in the end for what it would replace.
        let bad = |heard: &Input| match &heard.event {
            Event::BundleFetched(Err(BundleFault::Refused(_))) | Event::ModelRead(Err(ComposeFault::Refused(_))) => true,
            Event::BundleFetched(Ok(facts)) => {
                facts.meta.env_id != "env-qa-02" || facts.manifest.is_err() || facts.compose.is_err()
            }
            _ => false,
        };
        let code = tick.done.as_ref().and_then(|done| done.code);
        // An interrupted rollback ends with the code of what it is made for: only ticks that fetched count.
        let refused = tick.count(OpName::FetchBundle) == 1 && code.is_some_and(|code| code.class() == Class::Refused);
        if refused || tick.inputs.iter().any(bad) {
            prop_assert!(!tick.kinds().any(|kind| matches!(kind, Kind::Lease | Kind::Run)), "{:?}", tick.effects);
            // The answers that can refuse, in one of which it was refused: the last, if none says so itself.
            let judges = |effect: &Effect| {
                matches!(effect.op, Op::FetchBundle(_) | Op::StageBundle(_) | Op::ProbeDocker(_) | Op::ReadModel(_))
            };
            let at = tick.inputs.iter().position(bad).or_else(|| tick.effects.iter().rposition(judges));
            let (before, after) = tick.effects.split_at(at.unwrap() + 1);
            prop_assert!(before.iter().all(|effect| judges(effect) || matches!(effect.op, Op::Checkin(_))), "{:?}", before);
            // Nothing but the outcome: written down, told, and whatever waited to be told with it.
            let tells = |effect: &Effect| {
                matches!(effect.op, Op::SaveState(_) | Op::SaveReport(_) | Op::SendReport(_) | Op::DropReport(_))
            };
            prop_assert!(after.iter().all(tells), "{:?}", after);
        }
    }

    #[test]
    fn nothing_comes_up_that_was_not_pulled(bytes in bytes()) {
        let (boot, tick) = some_tick(bytes);
        if let Err(wrong) = all_that_came_up(&boot.state, &tick) {
            prop_assert!(false, "{}: {:?}", wrong, tick.effects);
        }
    }

    #[test]
    fn a_token_that_lives_long_enough_never_leases(bytes in bytes(), ttl_s in 601_u64..100_000) {
        let mut tape = Tape::new(bytes);
        let mut boot = some_boot(&mut tape);
        boot.settings.renew_below_s = 600;
        boot.local.bootstrap = false;
        boot.local.token = Some(TokenSource::Lease);
        let tick = tick(
            boot,
            |op| match op {
                Op::LookupToken(_) => Event::TokenLookedUp(Ok(token(ttl_s))),
                op => some_event(&mut tape, op),
            },
            |machine| machine,
        );
        prop_assert_eq!((tick.count(OpName::AskLease), tick.count(OpName::Login)), (0, 0));
    }

    #[test]
    fn a_tick_asks_for_one_lease_and_for_a_second_only_after_one_re_login(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let mut boot = some_boot(&mut tape);
        let before = boot.state.leases.clone();
        boot.now = NOW;
        let mut good = good_world();
        // A world in which tokens die, and little else goes wrong: otherwise no tick gets to the second death.
        let answer = |op: &Op| match op {
            Op::ReadSecret(_) if tape.one_in(2) => Event::SecretRead(Err(SecretFault::Bao(denied()))),
            Op::LookupToken(lookup) if lookup.token == TokenName::Saved && tape.one_in(2) => {
                Event::TokenLookedUp(Err(denied()))
            }
            op if tape.one_in(16) => some_event(&mut tape, op),
            op => good(op),
        };
        let tick = tick(boot, answer, |machine| machine);
        let relogins = tick.edges.iter().filter(|edge| **edge == (StageName::Secrets, StageName::Token)).count();
        prop_assert!(relogins <= 1);
        prop_assert!(tick.count(OpName::AskLease) <= 1 + relogins);
        let recent = before.iter().filter(|at| NOW.since_ms(**at) < 3_600_000).count();
        // What never left the box costs nothing.
        let sent = |input: &&Input| {
            use LeaseFault::Call;
            let Event::LeaseAnswered(answer) = &input.event else { return false };
            !matches!(answer, Err(Call(CallFault::Unreachable { never_sent: true, .. })))
        };
        let spent = tick.inputs.iter().filter(sent).count();
        prop_assert!(spent <= 5_usize.saturating_sub(recent), "more than the hour's budget");
    }

    #[test]
    fn whatever_the_clock_does_a_box_converges_and_then_asks_for_nothing_but_the_check_in(
        bytes in bytes(),
        years in proptest::collection::vec(-10_i64..=10, 4),
        rollback: bool,
    ) {
        let mut tape = Tape::new(bytes);
        let mut disk = some_disk(&mut tape);
        let on_unhealthy = if rollback { OnUnhealthy::Rollback } else { OnUnhealthy::Keep };
        let mut now = NOW;
        // Anything may happen, at any time.
        for years in &years[..3] {
            let boot = boot_on(&disk, Options { force: tape.one_in(4), prune: false }, on_unhealthy, now);
            tick_on(&mut disk, boot, |op| some_event(&mut tape, op));
            now = now.plus_s(60 + years * 365 * 86_400);
        }
        // What is desired from now on failed before, at some time.
        let tried = Attempts { count: 1, next_at: Some(a_moment(&mut tape)), quarantined: false };
        disk.state.attempts.insert(sha("z"), tried);
        // Then all is well, but for one more step of the clock. The longest wait is the lease's: an hour and a tenth.
        let mut good = good_world();
        let ticks = 70;
        let mut needed = None;
        for n in 0..ticks {
            let boot = boot_on(&disk, Options::default(), on_unhealthy, now);
            tick_on(&mut disk, boot, &mut good);
            now = now.plus_s(if n == 1 { 60 + years[3] * 365 * 86_400 } else { 60 });
            if n > 1 && disk.state.applied().is_some_and(|applied| applied.sha == sha("z")) {
                needed = Some(n);
                break;
            }
        }
        prop_assert!(needed.is_some(), "not converged after {ticks} ticks: {:?}", disk);
        prop_assert_eq!(disk.current.clone(), Some(sha("z")));
        prop_assert_eq!((&disk.state.unfinished, &disk.state.outcome, disk.outbox.len()), (&None, &None, 0));
        for wait_s in [60, 60, 3700, 86_400] {
            let before = disk.clone();
            let boot = boot_on(&disk, Options::default(), on_unhealthy, now);
            let tick = tick_on(&mut disk, boot, &mut good);
            let done = tick.done.unwrap();
            prop_assert_eq!(done.word.as_str(), "unchanged");
            // The first may still ask after a token that was not needed for a long time.
            if wait_s != 60 {
                let names: Vec<OpName> = tick.effects.iter().map(|effect| effect.op.name()).collect();
                prop_assert_eq!(names, [OpName::Checkin]);
                prop_assert_eq!(&before, &disk);
            }
            now = now.plus_s(wait_s);
        }
    }

    #[test]
    fn a_clock_that_jumps_at_any_event_of_a_tick_stops_no_tick_spends_no_lease_and_delays_no_attempt(
        bytes in bytes(),
        jumps in proptest::collection::btree_map(0_usize..50, -10_i64..=10, 1..12),
        rollback: bool,
    ) {
        let mut tape = Tape::new(bytes);
        let mut disk = some_disk(&mut tape);
        let on_unhealthy = if rollback { OnUnhealthy::Rollback } else { OnUnhealthy::Keep };
        let (mut good, mut now, mut events, mut converged) = (good_world(), NOW, 0, false);
        // Three ticks in which anything may happen, then all is well. The clock goes mad throughout the first four.
        for n in 0..75 {
            let boot = boot_on(&disk, Options::default(), on_unhealthy, now);
            let asks = std::cell::RefCell::new(Vec::new());
            let mut leases = 0;
            let tick = tick_by(
                |before| {
                    events += 1;
                    let years = if n < 4 { jumps.get(&events).copied().unwrap_or(0) } else { 0 };
                    now = before.plus_s(years * 365 * 86_400);
                    now
                },
                boot,
                |op| {
                    let event = if n < 3 { some_event(&mut tape, op) } else { good(op) };
                    match op {
                        Op::SaveState(save) => {
                            let noted = &save.state.leases;
                            let latest = noted.iter().max().copied().unwrap_or_default();
                            leases = noted.iter().filter(|at| latest.since_ms(**at) < 3_600_000).count();
                        }
                        Op::AskLease(_) => asks.borrow_mut().push(leases),
                        _ => {}
                    }
                    if went_well(&event) {
                        disk.done(op);
                    }
                    event
                },
                |machine| {
                    let core = machine.core();
                    let late = |tried: &Attempts| tried.next_at.is_some_and(|at| at.since_ms(core.now) > 900_000);
                    assert!(!core.state.attempts.values().any(late), "an attempt more than 15 minutes away");
                    machine
                },
            );
            prop_assert!(tick.done.is_some());
            // Each is noted before it is asked for: five an hour, by whatever the clock says.
            prop_assert!(asks.borrow().iter().all(|noted| (1..=5).contains(noted)), "{:?}", asks);
            prop_assert!(asks.borrow().len() <= 2);
            now = now.plus_s(60);
            converged = n > 3 && disk.state.applied().is_some_and(|applied| applied.sha == sha("z"));
            if converged {
                break;
            }
        }
        prop_assert!(converged, "not converged: {:?}", disk);
    }

    #[test]
    fn a_box_that_runs_what_is_desired_only_reads_and_reports(bytes in bytes()) {
        let mut tape = Tape::new(bytes);
        let mut boot = running_a();
        boot.state.token.as_mut().unwrap().ttl_s = None;
        boot.local.outbox = vec!["r1".to_owned(); tape.pick(2)];
        let tick = tick(
            boot,
            |op| match op {
                Op::Checkin(_) => Event::CheckedIn(Ok(Desired { desired_sha: Some(sha("a")), hold: None })),
                op => some_event(&mut tape, op),
            },
            |machine| machine,
        );
        for effect in &tick.effects {
            let fine = matches!(effect.op.name().kind(), Kind::Read | Kind::Report)
                // A report that was told leaves the outbox.
                || matches!(effect.op, Op::DropReport(_));
            prop_assert!(fine, "{:?}", effect);
        }
    }

    #[test]
    fn nothing_is_called_healthy_that_another_reading_of_the_rule_does_not_call_so(
        bytes in bytes(),
        looks in 1_usize..5,
        stable_s in prop_oneof![Just(0_u64), Just(5), Just(60)],
    ) {
        let mut tape = Tape::new(bytes);
        let of_scale = |scale| Service { scale, ..Service::default() };
        let services: BTreeMap<String, Service> =
            ["web", "db"].into_iter().map(|name| (name.to_owned(), of_scale(tape.of(&[1, 0, 2])))).collect();
        let some = |tape: &mut Tape| -> Vec<Container> {
            let n = tape.pick(5);
            let mut all: Vec<Container> = (0..n).map(|_| a_container(tape)).collect();
            // Mostly fine, for otherwise nothing would ever be healthy.
            for c in &mut all {
                if tape.one_in(3) {
                    continue;
                }
                let fine = container("", ContainerState::Running, tape.of(&[Some(Health::Healthy), None]));
                (c.state, c.health, c.restart_count) = (fine.state, fine.health, 0);
            }
            all.sort_by(|a, b| a.id.cmp(&b.id));
            all.dedup_by(|a, b| a.id == b.id);
            all
        };
        let before = some(&mut tape);
        let mut baseline = verdict::before_up(&before);
        let mut history: Vec<(Stamp, Vec<Container>)> = Vec::new();
        for n in 0..looks {
            // Mostly what was there a moment ago, for otherwise nothing would ever be stable.
            let seen = match history.last() {
                Some((_, last)) if !tape.one_in(3) => last.clone(),
                _ => some(&mut tape),
            };
            let now = NOW.plus_s(5 * n as i64);
            history.push((now, seen.clone()));
            let verdict = verdict::judge(&services, &seen, &mut baseline, now, stable_s);
            let wrong = not_fine(&services, &before, &history, stable_s);
            prop_assert_eq!(verdict == Verdict::Healthy, wrong.is_empty(), "{:?} but {:?}", verdict, wrong);
            if let Verdict::Failing(_) = verdict {
                break; // The machine does not look again.
            }
        }
    }
}

/// The same rule as a query over everything that was seen: what keeps the last look from being healthy.
fn not_fine(
    services: &BTreeMap<String, Service>,
    before: &[Container],
    history: &[(Stamp, Vec<Container>)],
    stable_s: u64,
) -> Vec<String> {
    let (now, last) = history.last().unwrap();
    let mut wrong = Vec::new();
    for (service, Service { scale, .. }) in services {
        if (last.iter().filter(|c| c.service == *service).count() as u64) < u64::from(*scale) {
            wrong.push(format!("too few of {service}"));
        }
    }
    for c in last.iter().filter(|c| services.contains_key(&c.service)) {
        let earlier =
            || history.iter().flat_map(|(at, all)| all.iter().map(move |e| (*at, e))).filter(|(_, e)| e.id == c.id);
        let restarts_before = before.iter().find(|e| e.id == c.id).map_or(0, |e| e.restart_count);
        let first_run =
            earlier().find(|(_, e)| e.state == ContainerState::Running && e.restart_count <= restarts_before);
        let restarted = c.restart_count > restarts_before;
        let started_again = first_run.is_some_and(|(_, e)| e.started_at != c.started_at);
        let kept_up = matches!(c.restart_policy, RestartPolicy::Always | RestartPolicy::UnlessStopped);
        let stable = first_run.is_some_and(|(since, _)| now.since_ms(since) as u64 >= stable_s * 1000);
        let fine = match (c.state, c.health) {
            (ContainerState::Running, Some(health)) => health == Health::Healthy,
            (ContainerState::Running, None) => stable,
            (ContainerState::Exited, _) => c.exit_code == 0 && !kept_up,
            _ => false,
        };
        if restarted || started_again || !fine {
            wrong.push(format!("{} restarted {restarted}, started again {started_again}, fine {fine}", c.id));
        }
    }
    wrong
}

/// Why a release may come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pulled {
    /// It was pulled in this tick.
    Now,
    /// An earlier tick pulled and promoted it, and was interrupted.
    Earlier,
    /// It was good once, and the one that came up before it in this tick was not.
    AsGoodOne,
    /// Compose gave up on it for a container that is well by now.
    AskedAgain,
}

/// Of a second `up`: whether what Compose gave up on the first for is unhealthy no more at the last look, or gone. That is
/// what it named; if nothing of that name was there (a secret may hide it), something that was unhealthy before.
fn got_well(tick: &Tick, turn: usize) -> bool {
    let before: Vec<&Event> =
        tick.inputs.iter().zip(&tick.turns).filter(|(_, at)| **at < turn).map(|(input, _)| &input.event).collect();
    let Some(gave_up) = before.iter().rposition(|event| matches!(event, Event::CameUp(_))) else { return false };
    let Event::CameUp(Err(RunFault::Failed { words, .. })) = before[gave_up] else { return false };
    let Some(name) = unhealthy_dependency(words.as_str()) else { return false };
    let looks = |events: &[&Event]| -> Vec<Vec<Container>> {
        let look = |event: &&Event| if let Event::Inspected(Ok(seen)) = event { Some(seen.clone()) } else { None };
        events.iter().filter_map(look).collect()
    };
    let (earlier, since) = (looks(&before[..gave_up]), looks(&before[gave_up..]));
    let (Some(baseline), Some(first), Some(last)) = (earlier.last(), since.first(), since.last()) else { return false };
    let was_unhealthy = |c: &&Container| {
        baseline.iter().any(|then| then.id == c.id && then.health == Some(Health::Unhealthy) && then.probe.is_some())
    };
    let well = |c: &Container| {
        let now = last.iter().find(|now| now.id == c.id);
        now.is_none_or(|now| now.state == ContainerState::Running && now.health != Some(Health::Unhealthy))
    };
    let named: Vec<&Container> = first.iter().filter(|c| c.name == name).collect();
    if named.is_empty() {
        first.iter().filter(was_unhealthy).any(well)
    } else {
        let mut waited_for = named.into_iter().filter(was_unhealthy).peekable();
        waited_for.peek().is_some() && waited_for.all(well)
    }
}

/// Why each release of a tick came up, or which one had no reason to.
fn all_that_came_up(state: &State, tick: &Tick) -> Result<Vec<Pulled>, String> {
    // What was asked for before this turn, with its answer.
    let heard_before = |turn: usize| {
        let all = tick.effects.iter().zip(&tick.inputs).zip(&tick.turns);
        all.filter(move |(_, at)| **at < turn).map(|((effect, input), _)| (&effect.op, went_well(&input.event)))
    };
    let mut came_up: Vec<(&Sha, Pulled)> = Vec::new();
    for (effect, turn) in tick.effects.iter().zip(&tick.turns) {
        let Op::Up(Up { sha, timeout_s: _ }) = &effect.op else { continue };
        let fetched = heard_before(*turn).any(|(op, _)| matches!(op, Op::FetchBundle(_)));
        let pulls = |well: bool| {
            heard_before(*turn).any(|(op, went)| matches!(op, Op::Pull(pull) if pull.sha == *sha) && went == well)
        };
        if came_up.last().is_some_and(|(last, _)| *last == sha) {
            if !got_well(tick, *turn) {
                return Err(format!("no reason for {sha} to be asked for again"));
            }
            came_up.push((sha, Pulled::AskedAgain));
            continue;
        }
        let why = match came_up.as_slice() {
            [] if fetched => pulls(true).then_some(Pulled::Now),
            [] => state.unfinished.as_ref().is_some_and(|goal| goal.sha == *sha).then_some(Pulled::Earlier),
            [(first, _), again @ ..] if again.iter().all(|(_, why)| *why == Pulled::AskedAgain) => {
                (*first != sha && state.good.iter().any(|good| good.sha == *sha)).then_some(Pulled::AsGoodOne)
            }
            // A rollback is not rolled back.
            _ => None,
        };
        let why = why.ok_or_else(|| format!("no reason for {sha} to come up"))?;
        if pulls(false) {
            return Err(format!("{sha} came up after its pull had failed"));
        }
        came_up.push((sha, why));
    }
    Ok(came_up.into_iter().map(|(_, why)| why).collect())
}

#[test]
fn up_is_asked_again_only_once_what_compose_gave_up_for_is_well_or_gone() {
    let mut seeds = TestRunner::deterministic();
    let mut seen: BTreeMap<Vec<Pulled>, usize> = BTreeMap::new();
    for _ in 0..4000 {
        let mut tape = Tape::new(bytes().new_tree(&mut seeds).unwrap().current());
        let mut good = good_world();
        let boot =
            Boot { local: LocalFacts { token: Some(TokenSource::Lease), ..some_boot(&mut tape).local }, ..running_a() };
        // Compose gives up now and then, sometimes under a name that nobody has; `web` is sick now and then, or another.
        let answer = |op: &Op| match op {
            Op::Up(_) if !tape.one_in(3) => {
                let name = tape.of(&["monky-env-qa-02-web-1", "[secret:DB USER]-web-1"]);
                let words = said(&format!("dependency failed to start: container {name} is unhealthy"));
                Event::CameUp(Err(RunFault::Failed { status: Some(1), words, disk_full: false }))
            }
            Op::Inspect(_) => {
                let mut web = container("web", ContainerState::Running, Some(Health::Healthy));
                if tape.one_in(2) {
                    let streak = tape.of(&[4, 5, 6]);
                    web.health = Some(Health::Unhealthy);
                    web.probe = Some(containers::Probe { exit_code: 1, said: said("no"), streak, retries: 3 });
                }
                web.id = tape.of(&["1", "1", "1", "2"]).to_owned();
                Event::Inspected(Ok(vec![web]))
            }
            op => good(op),
        };
        let tick = tick(boot.clone(), answer, |machine| machine);
        *seen.entry(all_that_came_up(&boot.state, &tick).unwrap()).or_default() += 1;
    }
    let again = |count: &usize| seen.iter().filter(|(all, _)| all.len() > *count).map(|(_, n)| n).sum::<usize>();
    assert!(again(&1) >= 100, "{seen:?}");
}

#[test]
fn random_ticks_bring_up_what_they_pulled_and_resume_and_roll_back_and_fail_to_pull() {
    let mut seeds = TestRunner::deterministic();
    let mut seen: BTreeMap<Vec<Pulled>, usize> = BTreeMap::new();
    let mut failed_pulls = 0;
    for _ in 0..4000 {
        let (boot, tick) = some_tick(bytes().new_tree(&mut seeds).unwrap().current());
        *seen.entry(all_that_came_up(&boot.state, &tick).unwrap()).or_default() += 1;
        failed_pulls += tick.inputs.iter().filter(|input| matches!(input.event, Event::Pulled(Err(_)))).count();
    }
    let floors = [(&[Pulled::Now][..], 300), (&[Pulled::Earlier], 40), (&[Pulled::Now, Pulled::AsGoodOne], 10)];
    for (came_up, floor) in floors {
        assert!(seen.get(came_up).is_some_and(|count| *count >= floor), "{came_up:?}: {seen:?}");
    }
    assert!(failed_pulls >= 15, "{failed_pulls} failed pulls");
}
