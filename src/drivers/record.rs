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

impl Line {
    /// Reads a line. What serde derives for a tag among the fields reads everything into a tree first: twice the time, and
    /// twice the code, since each type is then read from trees and from text. Here the tag is looked at first.
    ///
    /// # Errors
    /// If it is no line of a recording.
    pub fn read(text: &str) -> serde_json::Result<Line> {
        let tag = match text.strip_prefix(r#"{"line":""#).and_then(|rest| rest.split_once('"')) {
            // As it is written here.
            Some(("effect", _)) => Tag::Effect,
            Some(("event", _)) => Tag::Event,
            Some(_) | None => serde_json::from_str::<Tagged>(text)?.line,
        };
        Ok(match tag {
            Tag::Header => {
                let OfHeader { format, agent, boot } = serde_json::from_str(text)?;
                Line::Header { format, agent, boot }
            }
            Tag::Effect => {
                let OfEffect { n, ms, stage, effect } = serde_json::from_str(text)?;
                Line::Effect { n, ms, stage, effect }
            }
            Tag::Event => {
                let OfEvent { n, ms, input } = serde_json::from_str(text)?;
                Line::Event { n, ms, input }
            }
            Tag::Outcome => {
                let OfOutcome { n, ms, done } = serde_json::from_str(text)?;
                Line::Outcome { n, ms, done }
            }
            Tag::Cut => {
                let OfCut { n, why } = serde_json::from_str(text)?;
                Line::Cut { n, why }
            }
        })
    }
}

#[derive(Deserialize)]
struct Tagged {
    line: Tag,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tag {
    Header,
    Effect,
    Event,
    Outcome,
    Cut,
}

#[derive(Deserialize)]
struct OfHeader {
    format: u32,
    agent: String,
    boot: Box<Boot>,
}

#[derive(Deserialize)]
struct OfEffect {
    n: u32,
    ms: i64,
    stage: StageName,
    effect: Effect,
}

#[derive(Deserialize)]
struct OfEvent {
    n: u32,
    ms: i64,
    input: Input,
}

#[derive(Deserialize)]
struct OfOutcome {
    n: u32,
    ms: i64,
    done: Done,
}

#[derive(Deserialize)]
struct OfCut {
    n: u32,
    why: String,
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
    /// What troubled the box before the tick, and what is in its way as last written down.
    troubles: (Vec<LastError>, Option<LastError>),
    /// A hold before the tick, and as last written down.
    hold: (bool, bool),
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
            troubles: (Vec::new(), None),
            hold: (false, false),
        }
    }

    /// Whether a tick that ended like this (none: it was interrupted) is kept without being asked for.
    ///
    /// There is room for twenty, and a tick every minute. So a tick that only looked, told or renewed is not kept, and a
    /// trouble or a hold that goes on is kept once: when it began.
    pub fn is_worth_keeping(&self, done: Option<&Done>) -> bool {
        let (before, now) = &self.troubles;
        match done.map(|done| done.exit) {
            None | Some(Exit::Ok | Exit::Failed) => self.acted || self.hold == (false, true),
            Some(Exit::Temporary) => {
                self.new_credential || now.as_ref().is_some_and(|trouble| !before.contains(trouble))
            }
        }
    }

    /// Something other than looking was asked for.
    pub fn acted(&self) -> bool {
        self.acted
    }

    /// The recording of a tick that has not come to its end.
    pub fn so_far(&self) -> &str {
        &self.text
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
            // Part of many ticks that otherwise only look, or send what waits.
            (OpName::SaveState | OpName::RenewToken | OpName::DropReport, _) => false,
            (_, Kind::Write | Kind::Lease | Kind::Run) => true,
            (_, Kind::Read | Kind::Report | Kind::Wait) => false,
        };
        self.new_credential |= matches!(op.name(), OpName::SaveGrant | OpName::SaveToken);
        if let Op::SaveState(save) = op {
            self.troubles.1.clone_from(&save.state.trouble);
            self.hold.1 = save.state.hold.is_some();
        }
    }
}

impl Watch for Recorder {
    fn boots(&mut self, boot: &Boot) {
        self.began = boot.now;
        let state = &boot.state;
        self.troubles = (state.troubles().cloned().collect(), state.trouble.clone());
        self.hold = (state.hold.is_some(), state.hold.is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_serde_would_wherever_its_tag_stands() {
        let lines = [
            r#"{"line":"effect","n":1,"ms":2,"stage":"pull","effect":{"id":7,"op":{"op":"probe_docker","with":{}}}}"#,
            r#"{"n":1,"ms":2,"stage":"pull","effect":{"id":7,"op":{"op":"inspect","with":{}}},"line":"effect"}"#,
            r#"{"line":"event","n":1,"ms":2,"input":{"now":5,"answers":7,"event":{"event":"waited","data":null}}}"#,
            r#"{"line": "cut", "n": 3, "why": "\"event\""}"#,
        ];
        for text in lines {
            let read = Line::read(text).map_err(|error| error.to_string());
            assert_eq!(read, Ok(serde_json::from_str(text).unwrap()), "{text}");
        }
        for text in [r#"{"line":"event","n":1}"#, r#"{"line":"else"}"#, r#"{"n":1}"#, r#"{"line":"event"#, ""] {
            assert!(Line::read(text).is_err(), "{text}");
        }
    }
}
