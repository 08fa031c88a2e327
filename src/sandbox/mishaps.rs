//! What goes wrong at a stand-in, and when.
//!
//! Invariant: a mishap of the line is spent once, before one that stays; without either a call goes well.

use std::collections::{BTreeMap, VecDeque};

/// The mishaps of each kind of call.
#[derive(Debug)]
pub struct Mishaps<Call, Fault> {
    next: BTreeMap<Call, VecDeque<Fault>>,
    always: BTreeMap<Call, Fault>,
}

impl<Call, Fault> Default for Mishaps<Call, Fault> {
    fn default() -> Self {
        Mishaps { next: BTreeMap::new(), always: BTreeMap::new() }
    }
}

impl<Call: Ord, Fault: Clone> Mishaps<Call, Fault> {
    /// The next call of this kind fails so; several wait in line.
    pub fn next(&mut self, call: Call, fault: Fault) {
        self.next.entry(call).or_default().push_back(fault);
    }

    /// Every call of this kind fails so, until `None`.
    pub fn always(&mut self, call: Call, fault: Option<Fault>) {
        match fault {
            Some(fault) => drop(self.always.insert(call, fault)),
            None => drop(self.always.remove(&call)),
        }
    }

    /// How the call that is here goes wrong, if it does.
    pub fn take(&mut self, call: &Call) -> Option<Fault> {
        let next = self.next.get_mut(call).and_then(VecDeque::pop_front);
        next.or_else(|| self.always.get(call).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_line_is_spent_once_and_before_what_stays() {
        let mut mishaps = Mishaps::default();
        mishaps.always("read", Some(1));
        mishaps.next("read", 2);
        mishaps.next("read", 3);
        let took: Vec<Option<i32>> = (0..4).map(|_| mishaps.take(&"read")).collect();
        assert_eq!(took, [Some(2), Some(3), Some(1), Some(1)]);
        assert_eq!(mishaps.take(&"login"), None);
        mishaps.always("read", None);
        assert_eq!(mishaps.take(&"read"), None);
    }
}
