//! A scripted world as the loop knows it.
//!
//! Invariant: an effect takes a second and a wait as long as it asks for, so that a recording is the same on any machine.

use std::cell::{Cell, RefCell};

use monky_deployd::drivers::Driver;
use monky_deployd::effects::{Effect, Event, Op, Stamp};

use super::script::Script;

/// A scripted world as the loop knows it. Each effect takes a second, a wait as long as it asks for.
pub struct Scripted {
    script: RefCell<Script>,
    now: Cell<Stamp>,
    /// Someone asks the process to end after so many effects.
    pub ends_after: Cell<usize>,
}

impl Scripted {
    pub fn new(now: Stamp, script: Script) -> Scripted {
        Scripted { script: RefCell::new(script), now: Cell::new(now), ends_after: Cell::new(usize::MAX) }
    }
}

impl Driver for Scripted {
    fn perform(&self, effects: &[Effect]) -> Vec<Event> {
        let one = |effect: &Effect| {
            self.now.set(match &effect.op {
                Op::WaitUntil(wait) => wait.until.max(self.now.get()),
                _ => self.now.get().plus_s(1),
            });
            self.ends_after.set(self.ends_after.get().saturating_sub(1));
            self.script.borrow_mut().answer(&effect.op)
        };
        effects.iter().map(one).collect()
    }

    fn now(&self) -> Stamp {
        self.now.get()
    }

    fn cancelled(&self) -> bool {
        self.ends_after.get() == 0
    }
}
