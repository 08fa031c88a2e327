//! From how a child ended to what the machine is told.
//!
//! Invariant: a child's words leave this file scrubbed, and before they are shortened, so that no secret is cut
//! in half and overlooked.

use crate::effects::{RunDone, RunFault, Scrub, Scrubbed};

use super::cli::{Call, Captured, Docker, Output, RunError};
use super::words;

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

/// What a child said, scrubbed.
#[derive(Debug)]
pub struct Said {
    /// Its words.
    pub text: String,
    /// Its warnings, each once.
    pub warnings: Vec<String>,
}

impl Said {
    /// Takes the secrets out, then the noise.
    pub fn new(captured: &Captured, scrub: &dyn Scrub) -> Said {
        let words = words::extract(withheld(&scrub.scrub(&captured.text())).as_bytes());
        Said { text: words.text, warnings: words.warnings }
    }

    /// The words, and the warnings about the client's configuration: an unreadable one makes every pull anonymous,
    /// so that warning is the cause of the error that follows.
    fn with_cause(&self) -> String {
        let mut all = vec![self.text.as_str()];
        all.extend(
            self.warnings
                .iter()
                .map(String::as_str)
                .filter(|line| line.to_lowercase().contains("config file") && !self.text.contains(line)),
        );
        all.retain(|part| !part.is_empty());
        all.join(" | ")
    }
}

/// Compose prints the rest of a line of `.env` that it cannot read, and half a value is no value that the vault
/// would recognise.
fn withheld(text: &str) -> String {
    const BEFORE: &str = "in variable name";
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| match line.find(BEFORE) {
            Some(at) => format!("{} (withheld)", line.get(..at + BEFORE.len()).unwrap_or_default()),
            None => line.to_owned(),
        })
        .collect();
    lines.join("\n")
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
        let said = Said::new(&output.stderr, scrub);
        Ok(RunDone { warnings: said.warnings.iter().map(|warning| Scrubbed::new(scrub, warning)).collect() })
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
    Err(failed(&output, &Said::new(captured, scrub), scrub))
}

/// What the machine is told of a child that did not come to its own end.
fn not_ended(error: &RunError, scrub: &dyn Scrub) -> RunFault {
    match error {
        RunError::NotStarted { .. } => RunFault::Unavailable { detail: Scrubbed::new(scrub, &error.to_string()) },
        RunError::TimedOut { after, said } => RunFault::TimedOut {
            after_s: after.as_secs(),
            words: Scrubbed::new(scrub, &Said::new(said, scrub).with_cause()),
        },
        RunError::Cancelled { .. } => {
            RunFault::Failed { status: None, words: Scrubbed::new(scrub, &error.to_string()), disk_full: false }
        }
    }
}

/// What the machine is told of a child that ended with an error.
fn failed(output: &Output, said: &Said, scrub: &dyn Scrub) -> RunFault {
    let text = said.with_cause();
    let lower = text.to_lowercase();
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| lower.contains(phrase));
    if says(NO_DAEMON) {
        return RunFault::Unavailable { detail: Scrubbed::new(scrub, &text) };
    }
    let words = if says(NO_COMPOSE) {
        format!(
            "this Docker has no Compose plugin: install Docker Compose 2.21 or newer (`docker compose` said: {text})"
        )
    } else if let Some(signal) = output.signal() {
        let after = if text.is_empty() { String::new() } else { format!(", after these words: {text}") };
        format!("docker was ended by signal {signal}{after}")
    } else if text.is_empty() {
        format!("docker ended with status {} and said nothing", output.status.code().unwrap_or_default())
    } else {
        text
    };
    RunFault::Failed {
        status: output.status.code(),
        disk_full: words::says_disk_full(&words),
        words: Scrubbed::new(scrub, &words),
    }
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
        Captured { bytes: text.as_bytes().to_vec(), cut: false }
    }

    #[test]
    fn a_secret_is_gone_before_the_words_are_cut() {
        let long = format!("{}hunter2{}", "x".repeat(10), "y".repeat(597));
        let said = Said::new(&captured(&long), &Hide("hunter2"));
        assert_eq!(said.text, format!("***{}", "y".repeat(597)));
    }

    #[test]
    fn half_a_line_at_the_front_of_a_cut_is_dropped() {
        let cut = Captured { bytes: b"half a secret\nError: x\n".to_vec(), cut: true };
        assert_eq!(Said::new(&cut, &Hide("none")).text, "Error: x");
    }

    #[test]
    fn the_rest_of_an_env_line_that_compose_prints_is_withheld() {
        let said = Said::new(
            &captured("failed to read .env: line 1: unexpected character \"!\" in variable name \"half a secret\"\n"),
            &Hide("none"),
        );
        assert_eq!(said.text, "failed to read .env: line 1: unexpected character \"!\" in variable name (withheld)");
    }

    #[test]
    fn the_warning_about_the_configuration_is_part_of_the_words_and_no_other_is() {
        let said = Said::new(
            &captured(
                "WARNING: Error parsing config file (/x/config.json): bad\nWARNING: other\nError: no basic auth credentials\n",
            ),
            &Hide("none"),
        );
        assert_eq!(
            said.with_cause(),
            "Error: no basic auth credentials | WARNING: Error parsing config file (/x/config.json): bad"
        );
    }
}
