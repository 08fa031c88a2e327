//! The machine: one enum over the flow in each stage, and one total function that takes it a step further.
//!
//! Invariant: [`Machine::step`] never panics and never errs. What does not belong is refused: the state is kept,
//! and a note says what was expected and what came.

use serde::{Deserialize, Serialize};

use super::edges::StageName;
use super::event::{Boot, Input, Note};
use super::flow::{Core, Flow};
use super::stages::{self, Bundle, Checkin, Done, Healthy, Pull, Report, Secrets, Token, Up};
use crate::effects::{Effect, EffectId, OpName};

/// What a step leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The machine from now on.
    pub next: Machine,
    /// What it wants done. Effects of one step are independent of each other.
    pub effects: Vec<Effect>,
    /// What it says to the journal.
    pub notes: Vec<Note>,
    /// The edges it took.
    pub taken: Vec<(StageName, StageName)>,
}

impl Transition {
    /// A machine that stays as it is.
    pub fn none(next: Machine) -> Transition {
        Transition { next, effects: Vec::new(), notes: Vec::new(), taken: Vec::new() }
    }
}

macro_rules! machine {
    ($($stage:ident)*) => {
        /// The machine, in one of its stages.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "at", content = "data", rename_all = "snake_case")]
        pub enum Machine { $( #[doc = concat!("In stage ", stringify!($stage), ".")] $stage(Box<Flow<$stage>>), )* }

        $( impl From<Flow<$stage>> for Machine {
            fn from(flow: Flow<$stage>) -> Machine { Machine::$stage(Box::new(flow)) }
        } )*

        impl Machine {
            /// The stage it is in.
            pub const fn stage(&self) -> StageName {
                match self { $( Machine::$stage(_) => StageName::$stage, )* }
            }

            /// What every stage knows.
            pub fn core(&self) -> &Core {
                match self { $( Machine::$stage(flow) => flow.core(), )* }
            }

            /// The effects whose answers are awaited.
            pub fn waiting(&self) -> &[(EffectId, OpName)] {
                match self { $( Machine::$stage(flow) => flow.waiting(), )* }
            }

            fn accept(&mut self, input: &Input) -> Result<(), Note> {
                match self { $( Machine::$stage(flow) => flow.accept(input.now, input.answers, &input.event), )* }
            }
        }
    };
}

machine! { Checkin Bundle Token Secrets Pull Up Healthy Report Done }

impl Machine {
    /// Begins a tick.
    pub fn boot(boot: Boot) -> Transition {
        stages::boot(boot)
    }

    /// Takes the answers to one step's effects, in the order of emission, and adds up what follows.
    pub fn steps(self, inputs: impl IntoIterator<Item = Input>) -> Transition {
        let mut sum = Transition::none(self);
        for input in inputs {
            let Transition { next, effects, notes, taken } = sum.next.step(input);
            sum.next = next;
            sum.effects.extend(effects);
            sum.notes.extend(notes);
            sum.taken.extend(taken);
        }
        sum
    }

    /// Takes one answer of the world.
    pub fn step(mut self, input: Input) -> Transition {
        if let Err(note) = self.accept(&input) {
            return Transition { notes: vec![note], ..Transition::none(self) };
        }
        let Input { now: _, answers, event } = input;
        match self {
            Machine::Checkin(flow) => flow.on(event),
            Machine::Bundle(flow) => flow.on(event),
            Machine::Token(flow) => flow.on(event),
            Machine::Secrets(flow) => flow.on(answers, event),
            Machine::Pull(flow) => flow.on(event),
            Machine::Up(flow) => flow.on(event),
            Machine::Healthy(flow) => flow.on(event),
            Machine::Report(flow) => flow.on(event),
            Machine::Done(flow) => flow.unexpected(&event),
        }
    }

    /// How the tick ended, once it did.
    pub fn done(&self) -> Option<&Done> {
        match self {
            Machine::Done(flow) => Some(&flow.stage),
            Machine::Checkin(_)
            | Machine::Bundle(_)
            | Machine::Token(_)
            | Machine::Secrets(_)
            | Machine::Pull(_)
            | Machine::Up(_)
            | Machine::Healthy(_)
            | Machine::Report(_) => None,
        }
    }
}
