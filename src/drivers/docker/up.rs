//! `docker compose up`: brings the promoted release up.
//!
//! Invariant: it is never asked to build, to pull or to answer a question (stdin is null, never `-y`: that would
//! wipe a volume whose definition changed).

use std::collections::{BTreeMap, BTreeSet};
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
        // By id, of which service.
        let mut made_anew: BTreeMap<String, String> = BTreeMap::new();
        let mut ended = self.up_once(until, scrub);
        if ended.as_ref().is_err_and(is_name_conflict) {
            ended = self.up_once(until, scrub);
        }
        while ended.as_ref().is_err_and(says_lost) {
            let mut lost = self.lost_by_engine(scrub)?;
            lost.retain(|id, _| !made_anew.contains_key(id));
            if lost.is_empty() {
                break;
            }
            let services: BTreeSet<&String> = lost.values().collect();
            ended = self.make_anew(services, until, scrub).and_then(|_| self.up_once(until, scrub));
            made_anew.extend(lost);
        }
        match ended {
            Ok(mut done) => {
                let services: BTreeSet<&String> = made_anew.values().collect();
                done.warnings.extend(services.into_iter().map(|service| {
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

    /// Other containers in place of those of some services: they have other ids, and the old ones' anonymous volumes.
    fn make_anew(&self, services: BTreeSet<&String>, until: Instant, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let verb =
            ["--progress", "quiet", "up", "-d", "--force-recreate", "--no-deps", "--no-build", "--pull", "never"];
        let mut args = self.compose_args(Place::Current, &verb, scrub)?;
        args.extend(services.into_iter().map(Into::into));
        self.done(&Call::new(args, left_of(until)), scrub)
    }

    /// Which containers the engine lost, by id, and of which service each is.
    fn lost_by_engine(&self, scrub: &dyn Scrub) -> Result<BTreeMap<String, String>, RunFault> {
        let lost = self.inspect(scrub)?.into_iter().filter(|c| is_lost(c.error.as_str()));
        Ok(lost.map(|c| (c.id, c.service)).collect())
    }

    fn up_once(&self, until: Instant, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        self.settle_leftovers(left_of(until), scrub)?;
        let verb = ["--progress", "quiet", "up", "-d", "--remove-orphans", "--no-build", "--pull", "never"];
        self.done(&Call::new(self.compose_args(Place::Current, &verb, scrub)?, left_of(until)), scrub)
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

fn left_of(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn says_lost(fault: &RunFault) -> bool {
    matches!(fault, RunFault::Failed { .. }) && is_lost(words_of(fault))
}

/// What the engine says of a container that can never be started, because a crash in the middle of a start left its
/// task, its runtime's folder or its shim's behind: `task 650a…: already exists`, `runc create failed: container with given
/// ID already exists`, `failed to start shim: mkdir …/io.containerd.runtime.v2.task/moby/5ea2…: file exists`.
fn is_lost(words: &str) -> bool {
    const OF_RUNC: [&str; 2] = ["container with given ID already exists", "container with id exists"];
    words.contains(": already exists")
        || OF_RUNC.iter().any(|said| words.contains(said))
        || (words.contains("failed to start shim") && words.contains(": file exists"))
}
