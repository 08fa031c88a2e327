//! `docker compose up`: brings the promoted release up.
//!
//! Invariant: it is never asked to build, to pull or to answer a question (stdin is null, never `-y`: that would
//! wipe a volume whose definition changed).

use std::time::{Duration, Instant};

use crate::effects::{RunDone, RunFault, Scrub, Up};

use super::cli::{Call, Docker};
use super::compose::Place;
use super::fault::words_of;

/// The names that Compose gives what is to replace another, until that one is gone.
const NOT_YET_NAMED: &str = "name=^/?[0-9a-f]{12}_";

impl Docker {
    /// Brings `current` up.
    ///
    /// # Errors
    /// With Compose's own words. A container name that is still in use is tried a second time within the deadline.
    pub fn up(&self, request: &Up, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let until = Instant::now() + Duration::from_secs(request.timeout_s);
        match self.up_once(until, scrub) {
            Err(fault) if is_name_conflict(&fault) => self.up_once(until, scrub),
            other => other,
        }
        // Whichever of the calls was the one too many, it was the whole that took too long.
        .map_err(|fault| match fault {
            RunFault::TimedOut { words, .. } => RunFault::TimedOut { after_s: request.timeout_s, words },
            other => other,
        })
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
