//! Recordings: everything that went into the machine in one tick, and everything that came out, as JSON Lines.
//!
//! Invariant: a recording holds no secret, because what it is made of (boot, effects, events) cannot hold one; none is
//! larger than it may be; and one that was cut says so.

use serde::{Deserialize, Serialize};

use super::run_loop::Watch;
use crate::effects::state::LastError;
use crate::effects::{Effect, Kind, Op, OpName, Stamp};
use crate::fsm::stages::{Done, Exit};
use crate::fsm::{Boot, Input, Machine, StageName};

/// The format that is written.
///
/// - 1: header with the boot; effects with their stage; events; outcome or cut.
///
/// An older format stays readable; a newer one is refused by its number.
pub const FORMAT: u32 = 1;

/// The largest recording of a tick that was not asked for by name (bytes).
pub const LARGEST: usize = 1024 * 1024;

/// How many recordings are kept.
pub const KEPT: usize = 20;

/// Room for the lines that end a recording which has grown too large: that it was cut, and the outcome (bytes).
const ENDING: usize = 8 * 1024;

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Header {
        /// See [`FORMAT`].
        format: u32,
        /// The version of the agent that recorded.
        agent: String,
        /// Configuration without secrets, state, what lay on the disk, start time, seed.
        boot: Box<Boot>,
    },
    /// The machine asked for something.
    Effect {
        /// Counts the lines after the header, from 1.
        n: u32,
        /// Milliseconds since the tick began.
        ms: i64,
        /// In which stage.
        stage: StageName,
        /// What.
        effect: Effect,
    },
    /// The world answered.
    Event {
        /// Counts the lines after the header, from 1.
        n: u32,
        /// Milliseconds since the tick began.
        ms: i64,
        /// What.
        input: Input,
    },
    /// The tick ended.
    Outcome {
        /// Counts the lines after the header, from 1.
        n: u32,
        /// Milliseconds since the tick began.
        ms: i64,
        /// How.
        done: Done,
    },
    /// The recording is not complete from here on; only the outcome may follow.
    Cut {
        /// Counts the lines after the header, from 1.
        n: u32,
        /// Why.
        why: String,
    },
}

/// Records a tick.
#[derive(Debug)]
pub struct Recorder {
    text: String,
    n: u32,
    began: Stamp,
    largest: usize,
    cut: bool,
    acted: bool,
    new_credential: bool,
    /// What troubled the box before the tick, and as last written down.
    trouble: (Option<LastError>, Option<LastError>),
}

impl Recorder {
    /// A recorder whose recording is never larger than so many bytes.
    pub fn new(largest: usize) -> Recorder {
        Recorder {
            text: String::new(),
            n: 0,
            began: Stamp(0),
            largest,
            cut: false,
            acted: false,
            new_credential: false,
            trouble: (None, None),
        }
    }

    /// Whether a tick that ended like this (none: it was interrupted) is kept without being asked for.
    ///
    /// There is room for twenty, and a tick every minute. So a tick that only looked, told or renewed is not kept, and a
    /// trouble that goes on is kept once: when it began.
    pub fn is_worth_keeping(&self, done: Option<&Done>) -> bool {
        let (before, now) = &self.trouble;
        match done.map(|done| done.exit) {
            None | Some(Exit::Ok | Exit::Failed) => self.acted,
            Some(Exit::Temporary) => self.new_credential || (now.is_some() && before != now),
        }
    }

    /// The recording of a tick that ended like this; none: it was interrupted.
    pub fn finish(mut self, done: Option<&Done>, now: Stamp) -> String {
        let (n, ms) = (self.n + 1, now.since_ms(self.began));
        match done {
            Some(done) => self.end_with(&Line::Outcome { n, ms, done: done.clone() }),
            None if self.cut => {}
            None => self.end_with(&Line::Cut { n, why: "the process was asked to end".to_owned() }),
        }
        self.text
    }

    fn push(&mut self, line: &Line) {
        if self.cut {
            return;
        }
        let why = match serde_json::to_string(line) {
            Ok(json) if self.text.len() + json.len() < self.largest.saturating_sub(ENDING) => {
                self.append(&json);
                return;
            }
            Ok(_) => format!("it would be larger than {} bytes", self.largest),
            Err(error) => error.to_string(),
        };
        self.cut = true;
        self.end_with(&Line::Cut { n: self.n + 1, why });
    }

    /// A line for which room was left.
    fn end_with(&mut self, line: &Line) {
        match serde_json::to_string(line) {
            Ok(json) if self.text.len() + json.len() < self.largest => self.append(&json),
            Ok(_) | Err(_) => {}
        }
    }

    fn append(&mut self, json: &str) {
        self.text.push_str(json);
        self.text.push('\n');
        self.n += 1;
    }

    fn judge(&mut self, op: &Op) {
        self.acted |= match (op.name(), op.name().kind()) {
            // Part of many ticks that otherwise only look.
            (OpName::SaveState | OpName::RenewToken, _) => false,
            (_, Kind::Write | Kind::Lease | Kind::Run) => true,
            // A report that is taken leaves the outbox, which is a write; one that is not may be sent every minute.
            (_, Kind::Read | Kind::Report | Kind::Wait) => false,
        };
        self.new_credential |= matches!(op.name(), OpName::SaveGrant | OpName::SaveToken);
        if let Op::SaveState(save) = op {
            self.trouble.1.clone_from(&save.state.trouble);
        }
    }
}

impl Watch for Recorder {
    fn boots(&mut self, boot: &Boot) {
        self.began = boot.now;
        self.trouble = (boot.state.trouble.clone(), boot.state.trouble.clone());
        self.push(&Line::Header {
            format: FORMAT,
            agent: boot.settings.agent_version.clone(),
            boot: Box::new(boot.clone()),
        });
        self.n = 0;
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        self.judge(&effect.op);
        let (n, ms) = (self.n + 1, now.since_ms(self.began));
        self.push(&Line::Effect { n, ms, stage: machine.stage(), effect: effect.clone() });
    }

    fn hears(&mut self, input: &Input) {
        let (n, ms) = (self.n + 1, input.now.since_ms(self.began));
        self.push(&Line::Event { n, ms, input: input.clone() });
    }
}
