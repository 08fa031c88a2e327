//! `docker version` and `docker compose version`: what there is to work with.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::effects::{DockerVersions, RunFault, Scrub, Scrubbed};

use super::cli::{Call, Docker, Output};
use super::fault::succeeded;

/// A daemon that accepts and never answers hangs `version`.
const DEADLINE: Duration = Duration::from_secs(15);

impl Docker {
    /// Asks engine and Compose for their versions, both at once.
    ///
    /// # Errors
    /// `Unavailable` without the program or the daemon, `Failed` without a Compose plugin.
    pub fn probe(&self, scrub: &dyn Scrub) -> Result<DockerVersions, RunFault> {
        let (engine, compose) = self.versions(DEADLINE, scrub);
        // Without an engine nothing else matters, and it may be back in a minute.
        Ok(DockerVersions { engine: engine?, compose: compose? })
    }

    /// The versions of engine and Compose, each by itself.
    pub fn versions(
        &self,
        deadline: Duration,
        scrub: &dyn Scrub,
    ) -> (Result<String, RunFault>, Result<String, RunFault>) {
        const ENGINE: &[&str] = &["version", "--format", "{{.Server.Version}}"];
        const COMPOSE: &[&str] = &["compose", "version", "--short"];
        let ask = |args: &[&str]| self.run(&Call::new(args, deadline));
        let (engine, compose) = thread::scope(|scope| {
            let compose = scope.spawn(|| ask(COMPOSE));
            let engine = ask(ENGINE);
            // A thread that panicked is a bug; asking again says what it is.
            (engine, compose.join().unwrap_or_else(|_| ask(COMPOSE)))
        });
        let told = |args: &[&str], ended| version(args, &succeeded(ended, scrub)?, scrub);
        (told(ENGINE, engine), told(COMPOSE, compose))
    }

    /// Where the engine keeps images and volumes, on its own machine.
    ///
    /// # Errors
    /// When Docker does not answer.
    pub fn data_root(&self, deadline: Duration, scrub: &dyn Scrub) -> Result<PathBuf, RunFault> {
        let output = self.succeed(&Call::new(["info", "--format", "{{.DockerRootDir}}"], deadline), scrub)?;
        Ok(output.stdout.text().trim().into())
    }
}

/// The one word that a version is.
fn version(args: &[&str], output: &Output, scrub: &dyn Scrub) -> Result<String, RunFault> {
    let text = output.stdout.text();
    let version = text.trim().trim_start_matches('v');
    if version.is_empty() || version.len() > 100 || version.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let words = format!("`docker {}` said no version", args.join(" "));
        return Err(RunFault::Failed { status: Some(0), words: Scrubbed::new(scrub, &words), disk_full: false });
    }
    Ok(version.to_owned())
}
