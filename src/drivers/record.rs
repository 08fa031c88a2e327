//! Recordings: everything that went into the machine in one tick, and everything that came out, as JSON Lines.
//!
//! Invariant: a recording holds no secret, because what it is made of (boot, effects, events) cannot hold one; and a
//! recording that was cut says so.

use serde::{Deserialize, Serialize};

use super::run_loop::Watch;
use crate::effects::{Effect, Kind, Stamp};
use crate::fsm::stages::Done;
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
    /// The recording is not complete from here on.
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
    did_something: bool,
}

impl Recorder {
    /// A recorder that stops at so many bytes.
    pub fn new(largest: usize) -> Recorder {
        Recorder { text: String::new(), n: 0, began: Stamp(0), largest, cut: false, did_something: false }
    }

    /// The tick changed, told or spent something: it is worth keeping.
    pub fn did_something(&self) -> bool {
        self.did_something
    }

    /// The recording of a tick that ended like this; none: it was interrupted.
    pub fn finish(mut self, done: Option<&Done>, now: Stamp) -> String {
        let (n, ms) = (self.n + 1, now.since_ms(self.began));
        match done {
            _ if self.cut => {}
            Some(done) => self.push(&Line::Outcome { n, ms, done: done.clone() }),
            None => self.push(&Line::Cut { n, why: "the process was asked to end".to_owned() }),
        }
        self.text
    }

    fn push(&mut self, line: &Line) {
        if self.cut {
            return;
        }
        let json = match serde_json::to_string(line) {
            Ok(json) if self.text.len() + json.len() < self.largest => json,
            Ok(_) => {
                self.cut = true;
                let why = format!("larger than {} bytes", self.largest);
                serde_json::to_string(&Line::Cut { n: self.n + 1, why }).unwrap_or_default()
            }
            Err(error) => {
                self.cut = true;
                serde_json::to_string(&Line::Cut { n: self.n + 1, why: error.to_string() }).unwrap_or_default()
            }
        };
        self.text.push_str(&json);
        self.text.push('\n');
        self.n += 1;
    }
}

impl Watch for Recorder {
    fn boots(&mut self, boot: &Boot) {
        self.began = boot.now;
        self.push(&Line::Header {
            format: FORMAT,
            agent: boot.settings.agent_version.clone(),
            boot: Box::new(boot.clone()),
        });
        self.n = 0;
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        self.did_something |= !matches!(effect.op.name().kind(), Kind::Read | Kind::Wait);
        let (n, ms) = (self.n + 1, now.since_ms(self.began));
        self.push(&Line::Effect { n, ms, stage: machine.stage(), effect: effect.clone() });
    }

    fn hears(&mut self, input: &Input) {
        let (n, ms) = (self.n + 1, input.now.since_ms(self.began));
        self.push(&Line::Event { n, ms, input: input.clone() });
    }
}
