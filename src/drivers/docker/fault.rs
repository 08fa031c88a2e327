//! From how a child ended to what the machine is told.
//!
//! Invariant: a child's words leave this file scrubbed, and before they are shortened, so that no secret is cut
//! in half and overlooked.

use crate::effects::words::{Words, says_disk_full};
use crate::effects::{RunDone, RunFault, Scrub, Scrubbed};

use super::cli::{Call, Captured, Docker, Output, RunError};

/// The client says so when nothing answers behind the socket.
const NO_DAEMON: &[&str] = &[
    "cannot connect to the docker daemon",
    "is the docker daemon running",
    "permission denied while trying to connect to the docker",
    "failed to connect to the docker api",
    "error during connect",
    "dial unix ",
];

/// The client says so, in the course of its versions, when it has no Compose plugin.
const NO_COMPOSE: &[&str] = &[
    "'compose' is not a docker command",
    "unknown command: docker compose",
    "unknown flag: --short",
    "unknown shorthand flag: 'p' in -p",
];

/// What a child said.
fn said(captured: &Captured, scrub: &dyn Scrub) -> Words {
    Words::of(withheld(&captured.text()).as_bytes(), scrub)
}

/// Compose quotes what it cannot read in `.env`, and part of a value is no value that the vault would recognise.
fn withheld(text: &str) -> String {
    const BEFORE: &[&str] = &["in variable name", "unterminated quoted value"];
    let line = |line: &str| {
        let end = BEFORE.iter().filter_map(|phrase| Some(line.find(phrase)? + phrase.len())).min();
        end.map_or_else(|| line.to_owned(), |end| format!("{} (withheld)", line.get(..end).unwrap_or_default()))
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

impl Docker {
    /// Runs a call that has to end with 0.
    ///
    /// # Errors
    /// If it does not, what the machine is told about it.
    pub(super) fn succeed(&self, call: &Call, scrub: &dyn Scrub) -> Result<Output, RunFault> {
        succeeded(self.run(call), scrub)
    }

    /// The same, for calls of which only the warnings matter.
    ///
    /// # Errors
    /// As [`Docker::succeed`].
    pub(super) fn done(&self, call: &Call, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let output = self.succeed(call, scrub)?;
        Ok(RunDone { warnings: said(&output.stderr, scrub).warnings })
    }
}

/// The output of a child that ended with 0.
///
/// # Errors
/// If it did not, what the machine is told about it.
pub(super) fn succeeded(ended: Result<Output, RunError>, scrub: &dyn Scrub) -> Result<Output, RunFault> {
    let output = ended.map_err(|error| not_ended(&error, scrub))?;
    if output.status.success() {
        return Ok(output);
    }
    // Where both streams were one, there is nothing else to quote.
    let captured = if output.stderr.bytes.is_empty() { &output.stdout } else { &output.stderr };
    Err(failed(&output, said(captured, scrub), scrub))
}

/// What the machine is told of a child that did not come to its own end.
fn not_ended(error: &RunError, scrub: &dyn Scrub) -> RunFault {
    match error {
        RunError::NotStarted { .. } => RunFault::Unavailable { detail: Scrubbed::new(scrub, &error.to_string()) },
        RunError::TimedOut { after, said: captured } => {
            RunFault::TimedOut { after_s: after.as_secs(), words: said(captured, scrub).text }
        }
        RunError::Cancelled { .. } => {
            RunFault::Failed { status: None, words: Scrubbed::new(scrub, &error.to_string()), disk_full: false }
        }
    }
}

/// What the machine is told of a child that ended with an error.
fn failed(output: &Output, said: Words, scrub: &dyn Scrub) -> RunFault {
    let text = said.text.as_str();
    if nobody_answers(text) {
        return RunFault::Unavailable { detail: said.text };
    }
    let lower = text.to_lowercase();
    let words = if NO_COMPOSE.iter().any(|phrase| lower.contains(phrase)) {
        format!(
            "this Docker has no Compose plugin: install Docker Compose 2.21 or newer (`docker compose` said: {text})"
        )
    } else if let Some(signal) = output.signal() {
        let after = if text.is_empty() { String::new() } else { format!(", after these words: {text}") };
        format!("docker was ended by signal {signal}{after}")
    } else if text.is_empty() {
        format!("docker ended with status {} and said nothing", output.status.code().unwrap_or_default())
    } else {
        text.to_owned()
    };
    RunFault::Failed {
        status: output.status.code(),
        disk_full: says_disk_full(&words),
        words: Scrubbed::new(scrub, &words),
    }
}

/// The client found no daemon. What a daemon answered may hold the same phrases, about something else.
fn nobody_answers(text: &str) -> bool {
    let lower = text.to_lowercase();
    let own = lower.split(" | ").filter(|line| !line.starts_with("error response from daemon"));
    own.into_iter().any(|line| NO_DAEMON.iter().any(|phrase| line.contains(phrase)))
}

/// The words of a fault that may be looked into.
pub(super) fn words_of(fault: &RunFault) -> &str {
    match fault {
        RunFault::Unavailable { detail } => detail.as_str(),
        RunFault::TimedOut { words, .. } | RunFault::Failed { words, .. } => words.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Hide(&'static str);
    impl Scrub for Hide {
        fn scrub(&self, text: &str) -> String {
            text.replace(self.0, "***")
        }
    }

    fn captured(text: &str) -> Captured {
        Captured { bytes: text.as_bytes().into(), cut: false }
    }

    #[test]
    fn half_a_line_at_the_front_of_a_cut_is_dropped() {
        let cut = Captured { bytes: b"half a secret\nError: x\n"[..].into(), cut: true };
        assert_eq!(said(&cut, &Hide("none")).text.as_str(), "Error: x");
    }

    #[test]
    fn what_compose_quotes_of_an_env_file_is_withheld() {
        for (text, expected) in [
            (
                "failed to read .env: line 1: unexpected character \"!\" in variable name \"half a secret\"\nmore",
                "failed to read .env: line 1: unexpected character \"!\" in variable name (withheld) | more",
            ),
            ("line 2: unterminated quoted value 'half a secret", "line 2: unterminated quoted value (withheld)"),
        ] {
            assert_eq!(said(&captured(text), &Hide("none")).text.as_str(), expected);
        }
    }

    #[test]
    fn only_the_clients_own_words_say_that_nobody_answers() {
        assert!(nobody_answers("unable to get image 'x': Cannot connect to the Docker daemon at unix:///x."));
        assert!(!nobody_answers(
            "Error response from daemon: failed to initialize logging driver: dial unix /dev/log: …"
        ));
    }
}
