//! Steps a second of the machine by itself, on one core.
//!
//! Invariant: inputs are made while the clock stands still, a few at a time, as a driver makes them; what a step leaves
//! behind is dropped while the clock runs.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use monky_deployd::effects::containers::{Container, ContainerState, Health};
use monky_deployd::effects::{Event, OpName, Stamp};
use monky_deployd::fsm::{Boot, Input, Machine, Transition};

use crate::common::script::{Script, container, running_a, services};
use crate::sample::{self, Goals, Sample};

const ROUNDS: usize = 9;
const BATCH: usize = 64;
const GOAL: f64 = 2.0;

/// A box with five services; so many looks at them until they are healthy.
pub fn waiting(looks: usize) -> (Boot, Vec<Input>) {
    let names = ["api", "cache", "db", "web", "worker"];
    let [service] = services().into_values().collect::<Vec<_>>().try_into().unwrap();
    let all = |health: Health| -> Vec<Container> {
        names.iter().map(|name| container(name, ContainerState::Running, Some(health))).collect()
    };
    let mut boot = running_a();
    boot.settings.healthy_timeout_s = 10_000_000;
    let model = monky_deployd::effects::model::Model {
        services: names.iter().map(|name| ((*name).to_owned(), service.clone())).collect::<BTreeMap<_, _>>(),
        ..Default::default()
    };
    let starting = Event::Inspected(Ok(all(Health::Starting)));
    let script = Script::default().next(Event::ModelRead(Ok(model)));
    // The first look is the one before `up`.
    let script = script.next(Event::Inspected(Ok(Vec::new()))).times(looks, &starting);
    let script = script.next(Event::Inspected(Ok(all(Health::Healthy))));
    let inputs = inputs(boot.clone(), script);
    (boot, inputs)
}

/// Everything that goes into the machine in one tick in a scripted world.
fn inputs(boot: Boot, mut script: Script) -> Vec<Input> {
    let mut now: Stamp = boot.now;
    let mut fed = Vec::new();
    let mut transition = Machine::boot(boot);
    while transition.next.done().is_none() {
        let Transition { next, effects, .. } = transition;
        assert!(!effects.is_empty(), "stuck in {}", next.stage());
        let answers: Vec<Input> = effects
            .iter()
            .map(|effect| {
                now = now.plus_ms(if effect.op.name() == OpName::WaitUntil { 1000 } else { 5 });
                Input { now, answers: effect.id, event: script.answer(&effect.op) }
            })
            .collect();
        fed.extend(answers.iter().cloned());
        transition = next.steps(answers);
    }
    fed
}

/// Millions of steps a second, in one tick after the other.
fn millions_a_second(boot: &Boot, inputs: &[Input]) -> f64 {
    let ticks = (200_000 / inputs.len()).max(1);
    let mut spent = Duration::ZERO;
    for _ in 0..ticks {
        let mut machine = Machine::boot(boot.clone()).next;
        for batch in inputs.chunks(BATCH) {
            let batch = batch.to_vec();
            let start = sample::on_cpu();
            for input in batch {
                let transition = machine.step(input);
                black_box(&transition);
                machine = transition.next;
            }
            spent += sample::on_cpu() - start;
        }
        assert!(machine.done().is_some());
    }
    (ticks * inputs.len()) as f64 / spent.as_secs_f64() / 1e6
}

pub fn run(goals: &mut Goals) {
    let deploy = (running_a(), inputs(running_a(), Script::default()));
    let wait = waiting(20_000);
    let measured = |(boot, inputs): &(Boot, Vec<Input>)| millions_a_second(boot, inputs);
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (measured(&deploy), measured(&wait))).collect();
    let (deploys, waits): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
    let (deploys, waits) = (Sample::new(deploys), Sample::new(waits));
    println!("\nthe machine by itself (million steps in a second of one core)");
    println!("  a deploy, {:>3} steps   {deploys}", deploy.1.len());
    println!("  a wait, 5 services    {waits}");
    for (what, sample) in [("a deploy", &deploys), ("a long wait for 5 services", &waits)] {
        let median = sample.median();
        goals.note(
            median >= GOAL,
            format!("the machine makes {median:.2} million steps a second in {what} (goal {GOAL})"),
        );
    }
}
