//! `docker compose up`: brings the promoted release up.
//!
//! Invariant: it is never asked to build, to pull or to answer a question (stdin is null, never `-y`: that would
//! wipe a volume whose definition changed).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::effects::{RunDone, RunFault, Scrub, Scrubbed, Up};

use super::cli::{Call, Docker};
use super::compose::Place;
use super::fault::words_of;

/// The names that Compose gives what is to replace another, until that one is gone.
const NOT_YET_NAMED: &str = "name=^/?[0-9a-f]{12}_";

impl Docker {
    /// Brings `current` up.
    ///
    /// # Errors
    /// With Compose's own words. Within the deadline it is tried again for a container name that is still in use, and for
    /// each container that the engine lost in a crash of its own, once that is made anew.
    pub fn up(&self, request: &Up, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let until = Instant::now() + Duration::from_secs(request.timeout_s);
        let mut made_anew: BTreeMap<String, String> = BTreeMap::new();
        let mut ended = self.up_once(until, scrub);
        if ended.as_ref().is_err_and(is_name_conflict) {
            ended = self.up_once(until, scrub);
        }
        while let Some(id) = ended.as_ref().err().and_then(lost_by_engine).filter(|id| !made_anew.contains_key(id)) {
            let Some(lost) = self.inspect(scrub)?.into_iter().find(|c| c.id == id) else { break };
            ended = self.make_anew(&lost.service, until, scrub).and_then(|_| self.up_once(until, scrub));
            made_anew.insert(id, lost.service);
        }
        match ended {
            Ok(mut done) => {
                done.warnings.extend(made_anew.values().map(|service| {
                    let what = format!("{service} was made anew: the engine had lost its container in a crash");
                    Scrubbed::new(scrub, &what)
                }));
                Ok(done)
            }
            // Whichever of the calls was the one too many, it was the whole that took too long.
            Err(RunFault::TimedOut { words, .. }) => Err(RunFault::TimedOut { after_s: request.timeout_s, words }),
            Err(fault) => Err(fault),
        }
    }

    /// Another container in place of a service's: it has another id, and the old one's anonymous volumes.
    fn make_anew(&self, service: &str, until: Instant, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let verb =
            ["--progress", "quiet", "up", "-d", "--force-recreate", "--no-deps", "--no-build", "--pull", "never"];
        let mut args = self.compose_args(Place::Current, &verb, scrub)?;
        args.push(service.into());
        self.done(&Call::new(args, until.saturating_duration_since(Instant::now())), scrub)
    }

    fn up_once(&self, until: Instant, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let left = || until.saturating_duration_since(Instant::now());
        self.settle_leftovers(left(), scrub)?;
        let verb = ["--progress", "quiet", "up", "-d", "--remove-orphans", "--no-build", "--pull", "never"];
        self.done(&Call::new(self.compose_args(Place::Current, &verb, scrub)?, left()), scrub)
    }

    /// Settles what an interrupted `up` left: `<12 hex>_project-service-1`, made to replace another and never started.
    /// Left there, the next `up` would go on with it, name and all. Where what it replaces is gone already it alone holds
    /// that one's anonymous volumes, and gets the name; otherwise it is removed.
    fn settle_leftovers(&self, deadline: Duration, scrub: &dyn Scrub) -> Result<(), RunFault> {
        let ours = format!("label=com.docker.compose.project={}", self.project());
        let replacing = "label=com.docker.compose.replace";
        let filters =
            ["--filter", &ours, "--filter", "status=created", "--filter", replacing, "--filter", NOT_YET_NAMED];
        let args = ["ps", "-a", "--no-trunc"].into_iter().chain(filters).chain(["--format", "{{.Names}}"]);
        let names = self.succeed(&Call::new(args, deadline), scrub)?.stdout.text();
        for name in names.lines() {
            let Some((_, proper)) = name.split_once('_') else { continue };
            match self.succeed(&Call::new(["rename", name, proper], deadline), scrub) {
                Ok(_) => {}
                // The name is taken.
                Err(RunFault::Failed { .. }) => {
                    self.succeed(&Call::new(["rm", "-f", name], deadline), scrub)?;
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }
}

/// `Conflict. The container name "/x" is already in use by container …`: seen while the engine still removes the
/// one before it.
fn is_name_conflict(fault: &RunFault) -> bool {
    let words = words_of(fault);
    matches!(fault, RunFault::Failed { .. })
        && words.contains("The container name")
        && words.contains("is already in use")
}

/// The container that can never be started, because an engine that crashed in the middle of a start left its task or its
/// runtime's folder behind: `task 650a…: already exists`, `container with id exists: 521c…`.
fn lost_by_engine(fault: &RunFault) -> Option<String> {
    let words = words_of(fault);
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let says_so = words.contains(": already exists") || words.contains("container with id exists");
    words.split(|c: char| !c.is_ascii_alphanumeric()).find(is_id).filter(|_| says_so).map(str::to_owned)
}
