//! How long `monky-deployd replay` takes for a recording of 100,000 events.

use std::fs;
use std::process::{Command, Stdio};

use monky_deployd::drivers::record::Recorder;
use monky_deployd::drivers::run_loop::Watch as _;
use monky_deployd::fsm::{Machine, Transition};

use crate::machine::waiting;
use crate::sample::{Goals, Sample, agent, ms};

const ROUNDS: usize = 9;
const EVENTS: usize = 100_000;
const GOAL_MS: f64 = 1000.0;

pub fn run(goals: &mut Goals) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.jsonl");
    let (text, events) = recording();
    fs::write(&file, &text).unwrap();
    let mut replay = Command::new(agent());
    replay.arg("replay").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    let times = Sample::new((0..ROUNDS).map(|_| ms(|| assert!(replay.status().unwrap().success()))));
    println!("\na recording of {events} events, {:.0} MB, replayed (ms, wall)", text.len() as f64 / 1e6);
    println!("  replay               {times}");
    let median = times.median();
    goals.note(median < GOAL_MS, format!("{events} events are replayed in {median:.0} ms (goal {GOAL_MS})"));
}

/// A deploy whose five services take very long to become healthy, as the agent records it.
fn recording() -> (String, usize) {
    // Each look is an event, and so is each wait for the next one.
    let (boot, inputs) = waiting(EVENTS / 2);
    let mut recorder = Recorder::new(usize::MAX);
    recorder.boots(&boot);
    let mut now = boot.now;
    let mut inputs = inputs.into_iter();
    let mut events = 0;
    let mut transition = Machine::boot(boot);
    loop {
        let Transition { next, effects, .. } = transition;
        if let Some(done) = next.done() {
            return (recorder.finish(Some(done), now), events);
        }
        for effect in &effects {
            recorder.asks(&next, effect, now);
        }
        let answers: Vec<_> = inputs.by_ref().take(effects.len()).collect();
        for input in &answers {
            now = input.now;
            events += 1;
            recorder.hears(input);
        }
        transition = next.steps(answers);
    }
}
