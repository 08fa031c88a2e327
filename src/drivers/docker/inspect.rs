//! `docker ps`, `docker inspect` and `docker logs`: how the project's containers are.
//!
//! Invariant: containers are named by id, and judged by what `inspect` says, never by `ps` (whose exit codes are
//! wrong for containers that restart).

use std::time::Duration;

use crate::effects::containers::{Container, parse_inspect};
use crate::effects::words::plain;
use crate::effects::{LogTail, ReadLogs, RunFault, Scrub, Scrubbed};

use super::cli::{Call, Docker, Keep};
use super::fault::words_of;

const DEADLINE: Duration = Duration::from_secs(30);

/// Some 10 KB a container, and room for large environments.
const INSPECT_CAP: usize = 32 << 20;

/// A container's name and the folder that Compose was told of.
const ORIGIN: &str = "{{.Names}}\t{{.Label \"com.docker.compose.project.working_dir\"}}";

/// So much is read of one container's log, and an eighth of it handed on.
const LOG_CAP: usize = 128 << 10;

impl Docker {
    /// Every container of the project, one-off ones (`compose run`) aside.
    ///
    /// # Errors
    /// When Docker does not answer, twice: a listing that fails once, or a container that goes away between the
    /// listing and the look, is nothing.
    pub fn inspect(&self, scrub: &dyn Scrub) -> Result<Vec<Container>, RunFault> {
        match self.inspect_once(scrub) {
            // A daemon that hangs is not asked again: it would only double the wait.
            Err(RunFault::Failed { .. } | RunFault::Unavailable { .. }) => self.inspect_once(scrub),
            other => other,
        }
    }

    fn inspect_once(&self, scrub: &dyn Scrub) -> Result<Vec<Container>, RunFault> {
        let ours = format!("label=com.docker.compose.project={}", self.project());
        let ids =
            self.ids(&["--filter", &ours, "--filter", "label=com.docker.compose.oneoff=False"], DEADLINE, scrub)?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let args = ["inspect", "--type", "container"].into_iter().map(str::to_owned).chain(ids);
        let call = Call { stdout: Keep::First(INSPECT_CAP), ..Call::new(args, DEADLINE) };
        let output = self.succeed(&call, scrub)?;
        parse_inspect(&output.stdout.bytes, scrub).map_err(|why| {
            let words =
                Scrubbed::new(scrub, &format!("`docker inspect` said something that is no list of containers: {why}"));
            RunFault::Failed { status: Some(0), words, disk_full: false }
        })
    }

    /// Every container of the project, whoever made it: its name, and the folder that it was made from (empty: it has
    /// no such label).
    ///
    /// # Errors
    /// When Docker does not answer.
    pub fn origins(&self, deadline: Duration, scrub: &dyn Scrub) -> Result<Vec<(String, String)>, RunFault> {
        let ours = format!("label=com.docker.compose.project={}", self.project());
        let args = ["ps", "-a", "--no-trunc", "--filter", &ours, "--format", ORIGIN];
        let output = self.succeed(&Call::new(args, deadline), scrub)?;
        let text = output.stdout.text();
        let pair = |line: &str| line.split_once('\t').map(|(name, folder)| (name.to_owned(), folder.to_owned()));
        Ok(text.lines().filter_map(pair).collect())
    }

    /// The whole ids of the containers, running or not, that pass some filters.
    pub(super) fn ids(&self, filters: &[&str], deadline: Duration, scrub: &dyn Scrub) -> Result<Vec<String>, RunFault> {
        let args = ["ps", "-a", "-q", "--no-trunc"].iter().chain(filters).copied();
        let output = self.succeed(&Call::new(args, deadline), scrub)?;
        // Only what can be an id: these words become arguments.
        let is_id = |word: &&str| word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(output.stdout.text().split_whitespace().filter(is_id).map(str::to_owned).collect())
    }

    /// The last lines that some containers logged, stdout and stderr in the order of writing. A log that cannot be read
    /// says why in its text: the others are still worth having.
    ///
    /// # Errors
    /// When Docker itself does not answer and nothing was read yet.
    pub fn read_logs(&self, request: &ReadLogs, scrub: &dyn Scrub) -> Result<Vec<LogTail>, RunFault> {
        let mut tails = Vec::with_capacity(request.containers.len());
        for (service, id) in &request.containers {
            let text = match self.log(id, request.lines, scrub) {
                Ok(text) => text,
                Err(fault @ RunFault::Failed { .. }) => format!("(no log: {})", words_of(&fault)),
                Err(fault) if tails.is_empty() => return Err(fault),
                Err(_) => break,
            };
            tails.push(LogTail { service: service.clone(), text: Scrubbed::new(scrub, &text) });
        }
        Ok(tails)
    }

    fn log(&self, id: &str, lines: u32, scrub: &dyn Scrub) -> Result<String, RunFault> {
        let tail = lines.to_string();
        let call = Call {
            stdout: Keep::Last(LOG_CAP),
            stderr: None,
            ..Call::new(["logs", "--tail", &tail, "--timestamps=false", id], DEADLINE)
        };
        let output = self.succeed(&call, scrub)?;
        let text = plain(scrub.scrub(&output.stdout.text()).as_bytes());
        let text: Vec<&str> = text.split('\n').map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let text = text.join("\n");
        let start = text.len().saturating_sub(LOG_CAP / 8);
        let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        Ok(text.get(start..).unwrap_or_default().to_owned())
    }
}
