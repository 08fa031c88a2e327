//! How a tick ends, and what it comes to: an exit status, a word, a line for the journal.
//!
//! Invariant: every end has its one exit status here, and nowhere else.

use serde::{Deserialize, Serialize};

use super::Attempt;
use crate::effects::containers::Container;
use crate::effects::failure::Code;
use crate::effects::state::{Cause, Goal};
use crate::effects::{Sha, Stamp};
use crate::fsm::event::Level;
use crate::fsm::faults::{self, Failure};

/// How a tick ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", content = "with", rename_all = "snake_case")]
pub enum Conclusion {
    /// A release is healthy. If it came back instead of a failed one, the outcome is that failure.
    Applied {
        /// Which.
        goal: Box<Goal>,
        /// The containers at the look that decided.
        seen: Vec<Container>,
    },
    /// The deploy was refused or failed.
    Failed {
        /// How.
        failure: Failure,
        /// Which attempt.
        attempt: Attempt,
        /// The containers as last seen.
        seen: Vec<Container>,
    },
    /// Something else than the bundle stands in the way.
    Deferred {
        /// What.
        failure: Failure,
        /// Which attempt was under way.
        attempt: Option<Attempt>,
    },
    /// The box runs what is desired.
    Unchanged {
        /// Which.
        sha: Sha,
    },
    /// Nothing is desired.
    Idle,
    /// Tenancy wants nothing touched.
    Held {
        /// Why, in tenancy's words.
        reason: String,
    },
    /// Tenancy is out of reach, which is normal for this box.
    Offline,
    /// The backoff of a bundle that failed is not over.
    TooEarly {
        /// Which.
        sha: Sha,
        /// When it is over.
        until: Stamp,
    },
    /// The desired bundle was rolled back before.
    Quarantined {
        /// Which.
        sha: Sha,
    },
}

/// The exit status of a tick (contract §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// 0: applied, unchanged, held, or offline with `laptop_mode`.
    Ok,
    /// 1: the deploy failed or the bundle was refused.
    Failed,
    /// 75: temporary, the timer retries.
    Temporary,
}

impl Exit {
    /// The process's exit status.
    pub const fn status(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Temporary => 75,
        }
    }
}

/// The end of a tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The exit status.
    pub exit: Exit,
    /// In a word: `applied`, `unchanged`, `failed`, `rolled_back`, `deferred`, `held`, `idle`, `offline`, `too_early`, `quarantined`.
    pub word: String,
    /// The bundle it is about.
    pub sha: Option<Sha>,
    /// Why that bundle was deployed.
    pub cause: Option<Cause>,
    /// Why it failed or waits.
    pub code: Option<Code>,
    /// For a person.
    pub detail: String,
}

pub(super) fn level(exit: Exit) -> Level {
    match exit {
        Exit::Ok => Level::Info,
        Exit::Failed => Level::Error,
        Exit::Temporary => Level::Warn,
    }
}

pub(super) fn line(done: &Done) -> String {
    let sha = done.sha.as_ref().map(|sha| format!(" {}", sha.short())).unwrap_or_default();
    let detail = match done.code {
        Some(code) => format!(" {}", code.before(&done.detail)),
        None if done.detail.is_empty() => String::new(),
        None => format!(": {}", done.detail),
    };
    format!("{}{sha}{detail}", done.word)
}

pub(super) fn done(conclusion: &Conclusion) -> Done {
    let end = |exit: Exit, word: &str, detail: String| Done {
        exit,
        word: word.to_owned(),
        sha: None,
        cause: None,
        code: None,
        detail,
    };
    match conclusion {
        Conclusion::Applied { goal, seen: _ } => match &goal.instead_of {
            None => {
                let (sha, cause) = (Some(goal.sha.clone()), Some(goal.cause));
                Done { sha, cause, ..end(Exit::Ok, "applied", String::new()) }
            }
            Some(failed) => {
                let detail = format!("{}; {} is back up", failed.error.detail, goal.sha.short());
                let (sha, cause, code) = (Some(failed.sha.clone()), Some(failed.cause), Some(failed.error.code));
                Done { sha, cause, code, ..end(Exit::Failed, "rolled_back", detail) }
            }
        },
        Conclusion::Failed { failure, attempt, seen: _ } => {
            let (sha, cause, code) = (Some(attempt.sha.clone()), Some(attempt.cause), Some(failure.code));
            Done { sha, cause, code, ..end(Exit::Failed, "failed", failure.detail.clone()) }
        }
        Conclusion::Deferred { failure, attempt } => {
            let (sha, cause) = attempt.as_ref().map(|of| (of.sha.clone(), of.cause)).unzip();
            Done { sha, cause, code: Some(failure.code), ..end(Exit::Temporary, "deferred", failure.detail.clone()) }
        }
        Conclusion::Unchanged { sha } => Done { sha: Some(sha.clone()), ..end(Exit::Ok, "unchanged", String::new()) },
        Conclusion::Idle => end(Exit::Ok, "idle", "tenancy desires no bundle".to_owned()),
        Conclusion::Held { reason } => end(Exit::Ok, "held", faults::clip(reason, 300)),
        Conclusion::Offline => end(Exit::Ok, "offline", String::new()),
        Conclusion::TooEarly { sha, until: _ } => {
            let detail = "it failed; the backoff is not over (`status` tells until when, `tick --force` ignores it)";
            Done { sha: Some(sha.clone()), ..end(Exit::Temporary, "too_early", detail.to_owned()) }
        }
        Conclusion::Quarantined { sha } => {
            let detail = "it was rolled back; it is left alone until another bundle is desired or `tick --force`";
            Done { sha: Some(sha.clone()), ..end(Exit::Failed, "quarantined", detail.to_owned()) }
        }
    }
}
