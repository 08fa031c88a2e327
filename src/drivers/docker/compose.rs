//! `docker compose`: the arguments that every call has in common, and `config` (the model, and the gate).
//!
//! Invariant: a call names project, folder, files and `.env` itself; nothing is left to what Compose would find.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::effects::words::unset_variables;
use crate::effects::{RunFault, Scrub, Scrubbed, Sha};

use super::cli::{Call, Docker, Keep};
use crate::drivers::vault::Wiped;

/// `config` reads files and calls no daemon.
const DEADLINE: Duration = Duration::from_secs(60);

/// More of a model than any bundle (16 MiB) can mean.
const MODEL_CAP: usize = 32 << 20;

/// The override that the agent generates, in each release folder.
pub const OVERRIDE: &str = ".monky-deployd.yaml";

/// Which release folder a call is about.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A release before its promotion, by the link `next`: as deep as `current`, so that a path that climbs leads to
    /// the same place from both.
    Staged(&'a Sha),
    /// The promoted release, by the path that stays the same from release to release.
    Current,
}

impl Docker {
    /// The folder as Compose is told of it: sources in the model are below it.
    ///
    /// # Errors
    /// When `next` is not the release that is meant.
    fn folder(&self, place: Place<'_>, scrub: &dyn Scrub) -> Result<PathBuf, RunFault> {
        let Place::Staged(sha) = place else { return Ok(self.state_dir().join("current")) };
        let next = self.state_dir().join("next");
        if fs::read_link(&next).is_ok_and(|target| target == Path::new("releases").join(sha.as_str())) {
            return Ok(next);
        }
        let words = format!("{} does not point to release {}, which was to be staged", next.display(), sha.short());
        Err(RunFault::Failed { status: None, words: Scrubbed::new(scrub, &words), disk_full: false })
    }

    /// `compose -p … --project-directory … -f … -f … --env-file …` and then `verb`.
    ///
    /// # Errors
    /// When `next` is not the release that is meant.
    pub(super) fn compose_args(
        &self,
        place: Place<'_>,
        verb: &[&str],
        scrub: &dyn Scrub,
    ) -> Result<Vec<OsString>, RunFault> {
        let folder = self.folder(place, scrub)?;
        let mut args: Vec<OsString> = vec!["compose".into(), "-p".into(), self.project().into()];
        args.extend(["--project-directory".into(), folder.clone().into_os_string()]);
        args.extend(["-f".into(), folder.join("compose.yaml").into_os_string()]);
        args.extend(["-f".into(), folder.join(OVERRIDE).into_os_string()]);
        args.extend(["--env-file".into(), folder.join(".env").into_os_string()]);
        args.extend(verb.iter().map(OsString::from));
        Ok(args)
    }

    /// What Compose makes of a staged file, variables not filled in, as JSON. The override must be there, if only as
    /// an empty file.
    ///
    /// # Errors
    /// When Compose refuses it, or its model is larger than 32 MiB.
    pub fn model(&self, sha: &Sha, scrub: &dyn Scrub) -> Result<Wiped, RunFault> {
        let args = self.compose_args(Place::Staged(sha), &["config", "--format", "json", "--no-interpolate"], scrub)?;
        let call = Call { stdout: Keep::First(MODEL_CAP), ..Call::new(args, DEADLINE) };
        let output = self.succeed(&call, scrub)?;
        if output.stdout.cut {
            let words = Scrubbed::new(scrub, "the resolved compose file is larger than 32 MiB");
            return Err(RunFault::Failed { status: Some(0), words, disk_full: false });
        }
        Ok(output.stdout.bytes)
    }

    /// What Compose makes of a complete release, every variable filled in, as JSON. It holds secrets: for a look at it,
    /// and then to be gone.
    ///
    /// # Errors
    /// When Compose refuses it, or it is larger than 32 MiB.
    pub fn resolved(&self, sha: &Sha, scrub: &dyn Scrub) -> Result<Wiped, RunFault> {
        let args = self.compose_args(Place::Staged(sha), &["config", "--format", "json"], scrub)?;
        let call = Call { stdout: Keep::First(MODEL_CAP), ..Call::new(args, DEADLINE) };
        let output = self.succeed(&call, scrub)?;
        if output.stdout.cut {
            let words = Scrubbed::new(scrub, "the compose file is larger than 32 MiB with its values");
            return Err(RunFault::Failed { status: Some(0), words, disk_full: false });
        }
        Ok(output.stdout.bytes)
    }

    /// Has Compose check the complete release. A variable that is not set is only a warning for Compose, and a
    /// failure here: it would deploy with an empty value.
    ///
    /// # Errors
    /// When Compose refuses it, or a variable is not set.
    pub fn check(&self, sha: &Sha, scrub: &dyn Scrub) -> Result<(), RunFault> {
        let args = self.compose_args(Place::Staged(sha), &["config", "-q"], scrub)?;
        let output = self.succeed(&Call::new(args, DEADLINE), scrub)?;
        let unset = unset_variables(output.stderr.text().as_bytes());
        if unset.is_empty() {
            return Ok(());
        }
        let words = format!(
            "compose.yaml uses variables that have no value: {}; name them in manifest.json or env.template, or give them a \
             default like ${{NAME:-}}",
            unset.join(", ")
        );
        Err(RunFault::Failed { status: Some(0), words: Scrubbed::new(scrub, &words), disk_full: false })
    }
}
