//! `docker image rm`: removes images of the agent's own, one by one, by id.
//!
//! Invariant: never a global prune, never by force. What a container uses, or what someone else gave a name of their
//! own, stays.

use std::time::Duration;

use crate::effects::{RemoveImages, RemovedImages, RunFault, Scrub};

use super::cli::{Call, Docker};
use super::fault::words_of;

const DEADLINE: Duration = Duration::from_secs(60);

impl Docker {
    /// Removes images; tells which are gone. The others are in use, or named by someone else too.
    ///
    /// # Errors
    /// When Docker does not answer; what was removed until then is found gone the next time.
    pub fn remove_images(&self, request: &RemoveImages, scrub: &dyn Scrub) -> Result<RemovedImages, RunFault> {
        let mut gone = Vec::new();
        for id in &request.ids {
            match self.succeed(&Call::new(["image", "rm", id], DEADLINE), scrub) {
                Ok(_) => gone.push(id.clone()),
                Err(fault @ RunFault::Failed { .. }) if words_of(&fault).to_lowercase().contains("no such image") => {
                    gone.push(id.clone());
                }
                Err(RunFault::Failed { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(RemovedImages { gone })
    }
}
