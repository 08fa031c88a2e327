//! What goes into the machine besides events: the boot, the inputs, and what it says to the journal.

use serde::{Deserialize, Serialize};

use crate::effects::state::State;
use crate::effects::{EffectId, Event, LocalFacts, Settings, Stamp};

/// What an operator asked for on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Ignore backoff and quarantine, and apply even what is applied.
    pub force: bool,
    /// Remove the agent's own images that no kept release needs.
    pub prune: bool,
}

/// Everything a tick begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The configuration.
    pub settings: Settings,
    /// What the operator asked for.
    pub options: Options,
    /// What is remembered.
    pub state: State,
    /// What lies on the disk.
    pub local: LocalFacts,
    /// Jitter and report ids come from it.
    pub seed: u64,
    /// The time.
    pub now: Stamp,
}

/// One answer of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// The time.
    pub now: Stamp,
    /// Which effect is answered.
    pub answers: EffectId,
    /// The answer.
    pub event: Event,
}

/// How much a note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// How things go.
    Info,
    /// Somebody should look some day.
    Warn,
    /// Somebody should look now.
    Error,
}

/// A line for the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How much it matters.
    pub level: Level,
    /// The line.
    pub text: String,
}

impl Note {
    /// How things go.
    pub fn info(text: impl Into<String>) -> Note {
        Note { level: Level::Info, text: text.into() }
    }

    /// Somebody should look some day.
    pub fn warn(text: impl Into<String>) -> Note {
        Note { level: Level::Warn, text: text.into() }
    }

    /// Somebody should look now.
    pub fn error(text: impl Into<String>) -> Note {
        Note { level: Level::Error, text: text.into() }
    }
}
