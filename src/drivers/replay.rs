//! Replay: a recording, run through today's machine and compared effect by effect.
//!
//! Invariant: nothing is carried out; the only input is the recording.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _};

use serde::Serialize;
use serde_json::Value;

use super::record::{FORMAT, Line};
use crate::effects::{Effect, counted};
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Input, Machine, Note, StageName, Transition};

/// The longest line that is read (bytes): many times what any line of a recording has.
const LONGEST_LINE: u64 = 64 * 1024 * 1024;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line}: {what}")]
    Malformed {
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// It was written by a newer agent.
    #[error("it has format {found}, this agent reads up to {FORMAT}: replay it with a newer monky-deployd")]
    Newer {
        /// Its format.
        found: u64,
    },
}

/// A recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The agent that recorded.
    pub agent: String,
    /// What the tick began with.
    pub boot: Boot,
    /// The lines after the header, each with its number in the file, from 1.
    pub lines: Vec<(usize, Line)>,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// If it cannot be read, a line is malformed, or its format is newer than [`FORMAT`].
    pub fn read(mut from: impl BufRead) -> Result<Recording, ReplayError> {
        let malformed = |line: usize, what: String| ReplayError::Malformed { line, what };
        let first = line(&mut from, 1)?.ok_or_else(|| malformed(1, "it is empty".to_owned()))?;
        // The format first: what comes after it is only known for formats that are known.
        let header: Value = serde_json::from_str(&first).map_err(|error| malformed(1, error.to_string()))?;
        match header.get("format").and_then(Value::as_u64) {
            Some(0) => return Err(malformed(1, "there is no format 0".to_owned())),
            Some(found) if found > u64::from(FORMAT) => return Err(ReplayError::Newer { found }),
            Some(_) => {}
            None => {
                return Err(malformed(1, "it has no format; the first line of a recording is its header".to_owned()));
            }
        }
        let Line::Header { format: _, agent, boot } =
            Line::read(&first).map_err(|error| malformed(1, error.to_string()))?
        else {
            return Err(malformed(1, "it is no header".to_owned()));
        };
        let mut recording = Recording { agent, boot: *boot, lines: Vec::new() };
        let mut at = 1;
        loop {
            at += 1;
            let Some(text) = line(&mut from, at)? else { return Ok(recording) };
            if text.trim().is_empty() {
                continue;
            }
            match Line::read(&text).map_err(|error| malformed(at, error.to_string()))? {
                Line::Header { .. } => return Err(malformed(at, "a second header".to_owned())),
                line => recording.lines.push((at, line)),
            }
        }
    }

    /// How the recorded tick ended; none: it was interrupted, or the file is not whole.
    pub fn done(&self) -> Option<&Done> {
        self.lines.iter().rev().find_map(|(_, line)| match line {
            Line::Outcome { done, .. } => Some(done),
            Line::Header { .. } | Line::Effect { .. } | Line::Event { .. } | Line::Cut { .. } => None,
        })
    }

    /// Why it is not complete, as it says itself.
    pub fn cut(&self) -> Option<&str> {
        self.lines.iter().find_map(|(_, line)| match line {
            Line::Cut { why, .. } => Some(why.as_str()),
            Line::Header { .. } | Line::Effect { .. } | Line::Event { .. } | Line::Outcome { .. } => None,
        })
    }
}

/// The next line, without its end.
fn line(from: &mut impl BufRead, at: usize) -> Result<Option<String>, ReplayError> {
    let malformed = |what: &str| ReplayError::Malformed { line: at, what: what.to_owned() };
    let mut bytes = Vec::new();
    from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop_if(|byte| *byte == b'\n').is_none() && bytes.len() as u64 == LONGEST_LINE {
        return Err(malformed("it is longer than any line of a recording"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| malformed("it is not UTF-8"))
}

/// What the machine says to the journal when it is given what was recorded, as far as that goes.
pub fn notes(recording: &Recording) -> Vec<Note> {
    let Transition { next: mut machine, effects: _, mut notes, taken: _ } = Machine::boot(recording.boot.clone());
    for (_, line) in &recording.lines {
        if let Line::Event { input, .. } = line {
            let step = machine.step(input.clone());
            machine = step.next;
            notes.extend(step.notes);
        }
    }
    notes
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Effects that are the same.
    pub same: usize,
    /// Events that were replayed.
    pub events: usize,
    /// The recording was not complete: only its beginning could be compared.
    pub cut: bool,
    /// Where it differs first.
    pub divergence: Option<Divergence>,
}

/// The first difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// The line of the file, from 1.
    pub line: usize,
    /// The stage in which the machine is now.
    pub stage: StageName,
    /// The event that led there.
    pub after: Option<Input>,
    /// What was recorded.
    pub recorded: Option<Value>,
    /// What the machine does now.
    pub now: Option<Value>,
}

/// Runs a recording through the machine.
pub fn replay(recording: &Recording) -> Verdict {
    let mut verdict = Verdict { same: 0, events: 0, cut: false, divergence: None };
    let Transition { next, effects, notes: _, taken: _ } = Machine::boot(recording.boot.clone());
    let mut machine = next;
    let mut emitted: VecDeque<Effect> = effects.into();
    let mut after: Option<&Input> = None;
    // Effects that are emitted together are recorded together, and then their answers.
    let mut asking = true;
    for (at, line) in &recording.lines {
        let stage = machine.stage();
        let differs = |recorded: Option<Value>, now: Option<Value>| {
            Some(Divergence { line: *at, stage, after: after.cloned(), recorded, now })
        };
        match line {
            Line::Header { .. } => {}
            Line::Effect { n: _, ms: _, stage: _, effect } => {
                asking = true;
                match emitted.pop_front() {
                    Some(now) if now == *effect => verdict.same += 1,
                    now => {
                        verdict.divergence = differs(Some(value(effect)), now.as_ref().map(value));
                        return verdict;
                    }
                }
            }
            Line::Event { n: _, ms: _, input } => {
                if asking && let Some(more) = emitted.front() {
                    verdict.divergence = differs(None, Some(value(more)));
                    return verdict;
                }
                asking = false;
                let step = machine.step(input.clone());
                emitted.extend(step.effects);
                machine = step.next;
                verdict.events += 1;
                after = Some(input);
            }
            Line::Outcome { n: _, ms: _, done } => {
                if let Some(more) = emitted.front() {
                    verdict.divergence = differs(Some(value(done)), Some(value(more)));
                } else if machine.done() != Some(done) {
                    verdict.divergence = differs(Some(value(done)), machine.done().map(value));
                }
                return verdict;
            }
            Line::Cut { .. } => {
                verdict.cut = true;
                return verdict;
            }
        }
    }
    verdict.cut = true;
    verdict
}

fn value(what: &impl Serialize) -> Value {
    serde_json::to_value(what).unwrap_or(Value::Null)
}

impl Verdict {
    /// For a person.
    pub fn text(&self) -> String {
        let Some(divergence) = &self.divergence else {
            let cut = if self.cut { " (the recording is not complete; its beginning was compared)" } else { "" };
            return format!("identical: {}, {}{cut}", counted(self.same, "effect"), counted(self.events, "event"));
        };
        let Divergence { line, stage, after, recorded, now } = divergence;
        let mut text = format!("differs at line {line}, in stage {stage}, after {} identical effects\n", self.same);
        match after {
            Some(input) => {
                let event = serde_json::to_string(&input.event).unwrap_or_default();
                let _ = writeln!(text, "  after     event to effect {}: {}", input.answers.0, short(&event));
            }
            None => text.push_str("  after     the boot\n"),
        }
        match (recorded, now) {
            (Some(recorded), Some(now)) => {
                for (path, was, is) in differences(recorded, now) {
                    let _ = writeln!(text, "  {path}\n    recorded  {was}\n    now       {is}");
                }
            }
            (recorded, now) => {
                let say =
                    |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), |v| short(&v.to_string()));
                let _ = writeln!(text, "    recorded  {}\n    now       {}", say(recorded), say(now));
            }
        }
        text
    }
}

fn short(text: &str) -> String {
    crate::fsm::faults::clip(text, 300)
}

/// The places where two values differ.
fn differences(was: &Value, is: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    compare("", was, is, &mut found);
    found
}

/// Two operations of different names have nothing that could be compared.
fn named(value: &serde_json::Map<String, Value>) -> Option<&str> {
    value.get("op").and_then(Value::as_str)
}

fn compare(path: &str, was: &Value, is: &Value, found: &mut Vec<(String, String, String)>) {
    match (was, is) {
        (Value::Object(old), Value::Object(new)) if named(old) == named(new) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let (old, new) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
                compare(&format!("{path}.{key}"), old, new, found);
            }
        }
        (was, is) if was == is => {}
        (was, is) => {
            let path = if path.is_empty() { "." } else { path };
            found.push((path.to_owned(), short(&was.to_string()), short(&is.to_string())));
        }
    }
}
