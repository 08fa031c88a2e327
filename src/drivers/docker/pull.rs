//! `docker compose --progress quiet pull`: quiet, because then stderr holds exactly the registry's own message.

use crate::effects::{Pull, RunDone, RunFault, Scrub};

use super::cli::{Call, Docker};
use super::compose::Place;

use std::time::Duration;

impl Docker {
    /// Pulls a staged release's images.
    ///
    /// # Errors
    /// With the registry's own words.
    pub fn pull(&self, request: &Pull, scrub: &dyn Scrub) -> Result<RunDone, RunFault> {
        let args = self.compose_args(Place::Staged(&request.sha), &["--progress", "quiet", "pull"], scrub)?;
        self.done(&Call::new(args, Duration::from_secs(request.timeout_s)), scrub)
    }
}
