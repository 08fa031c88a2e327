//! The loop: effects to the driver, answers to the machine, notes to the journal, until the tick is done.
//!
//! Invariant: every effect is answered exactly once, and the answers of one step's effects are delivered in the
//! order of emission, however the driver carried them out.

use super::Driver;
use crate::effects::{Effect, Event, Stamp};
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Input, Machine, Note, StageName, Transition};

/// Sees everything that goes in and comes out: the journal, a recording, a plan.
pub trait Watch {
    /// A tick begins.
    fn boots(&mut self, _boot: &Boot) {}
    /// The machine goes on to another stage.
    fn passes(&mut self, _from: StageName, _to: StageName) {}
    /// The machine says something.
    fn notes(&mut self, _note: &Note) {}
    /// The machine wants something done.
    fn asks(&mut self, _machine: &Machine, _effect: &Effect, _now: Stamp) {}
    /// The world answered.
    fn hears(&mut self, _input: &Input) {}
}

/// Two that see the same.
impl<A: Watch, B: Watch> Watch for (A, B) {
    fn boots(&mut self, boot: &Boot) {
        self.0.boots(boot);
        self.1.boots(boot);
    }

    fn passes(&mut self, from: StageName, to: StageName) {
        self.0.passes(from, to);
        self.1.passes(from, to);
    }

    fn notes(&mut self, note: &Note) {
        self.0.notes(note);
        self.1.notes(note);
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        self.0.asks(machine, effect, now);
        self.1.asks(machine, effect, now);
    }

    fn hears(&mut self, input: &Input) {
        self.0.hears(input);
        self.1.hears(input);
    }
}

/// One that may not be there.
impl<W: Watch> Watch for Option<W> {
    fn boots(&mut self, boot: &Boot) {
        self.iter_mut().for_each(|watch| watch.boots(boot));
    }

    fn passes(&mut self, from: StageName, to: StageName) {
        self.iter_mut().for_each(|watch| watch.passes(from, to));
    }

    fn notes(&mut self, note: &Note) {
        self.iter_mut().for_each(|watch| watch.notes(note));
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        self.iter_mut().for_each(|watch| watch.asks(machine, effect, now));
    }

    fn hears(&mut self, input: &Input) {
        self.iter_mut().for_each(|watch| watch.hears(input));
    }
}

/// How a tick ended.
#[derive(Debug)]
pub enum Ended {
    /// The machine is done.
    Done(Done),
    /// Someone asked the process to end (SIGTERM, SIGINT).
    Interrupted,
}

/// Runs a tick to its end.
pub fn run(boot: Boot, driver: &dyn Driver, watch: &mut dyn Watch) -> Ended {
    watch.boots(&boot);
    let mut transition = Machine::boot(boot);
    loop {
        let Transition { next: machine, effects, notes, taken } = transition;
        for (from, to) in taken {
            watch.passes(from, to);
        }
        for note in &notes {
            watch.notes(note);
        }
        if let Some(done) = machine.done() {
            return Ended::Done(done.clone());
        }
        let now = driver.now();
        for effect in &effects {
            watch.asks(&machine, effect, now);
        }
        let events: Vec<Event> = driver.perform(&effects);
        if driver.cancelled() {
            return Ended::Interrupted;
        }
        let inputs: Vec<Input> = effects
            .iter()
            .zip(events)
            .map(|(effect, event)| Input { now: driver.now(), answers: effect.id, event })
            .collect();
        for input in &inputs {
            watch.hears(input);
        }
        transition = machine.steps(inputs);
    }
}
