//! `releases/<sha>`, `current` and `next`.
//!
//! Invariant: a folder named by a sha was complete and on disk before it got that name, and `current` and `next` point to
//! such a folder at every moment. No name from a bundle leads out of its folder, and nothing of a release's is waited for,
//! followed or read without end, whatever a container put in its place.
//!
//! The state directory is closed to others (0700), but what is *in* a release is 0755 and 0644: services mount these
//! files, and a container's user is not ours. `.env` and the override, which nothing mounts, are 0600.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Store;
use super::disk::{self, Disk};
use super::files::{self, Doing, Fail, TEMP, refuse};
use crate::drivers::vault::Slot;
use crate::effects::bundle::COMPOSE;
use crate::effects::env_template::EnvTemplate;
use crate::effects::{Sha, StoreFault};

/// The variables of a release.
pub const ENV: &str = ".env";
/// The generated override of a release.
pub const OVERRIDE: &str = ".monky-deployd.yaml";
/// What stands in the override until it is generated.
const EMPTY_OVERRIDE: &str = "# staged; not complete yet\nservices: {}\n";
/// More than a bundle's file may have.
const MAX_FILE: u64 = 16 * 1024 * 1024;

impl Store {
    /// Where a release is, or would be.
    pub fn release_dir(&self, sha: &Sha) -> PathBuf {
        self.releases().join(sha.as_str())
    }

    /// The stable path of the promoted release.
    pub fn current_dir(&self) -> PathBuf {
        self.dir.join("current")
    }

    /// The path by which Compose is told of a release before its promotion: as deep as `current`, so that what climbs out
    /// of one leads where it leads out of the other.
    pub fn next_dir(&self) -> PathBuf {
        self.dir.join("next")
    }

    pub(super) fn releases(&self) -> PathBuf {
        self.dir.join("releases")
    }

    /// The release folders that are there.
    pub(super) fn staged(&self) -> Result<Vec<Sha>, Fail> {
        let shas = files::names(&self.releases())?.into_iter().filter_map(|name| Sha::try_from(name).ok());
        Ok(shas.filter(|sha| is_real_dir(&self.release_dir(sha))).collect())
    }

    /// The releases that could be brought up as they are: staged, and completed with their secrets.
    pub(super) fn complete(&self) -> Result<Vec<Sha>, Fail> {
        let complete = |sha: &Sha| {
            let dir = self.release_dir(sha);
            let text = files::read(&dir.join(OVERRIDE), MAX_FILE).ok().flatten();
            text.is_some_and(|text| text != EMPTY_OVERRIDE.as_bytes())
                && [ENV, COMPOSE].iter().all(|name| is_file(&dir.join(name)))
        };
        Ok(self.staged()?.into_iter().filter(complete).collect())
    }

    /// The release that `current` points to, if it is one of ours and there.
    pub(super) fn current(&self) -> Option<Sha> {
        self.pointed_to(&self.current_dir())
    }

    fn pointed_to(&self, link: &Path) -> Option<Sha> {
        let target = fs::read_link(link).ok()?;
        let sha = Sha::try_from(target.strip_prefix("releases").ok()?.to_str()?.to_owned()).ok()?;
        is_real_dir(&self.release_dir(&sha)).then_some(sha)
    }

    /// Unpacks a bundle into `releases/<sha>`, with an empty `.env` and an override that changes nothing. A folder that
    /// holds just these files already is kept as it is; one that differs is replaced in one step, and keeps its `.env` and
    /// override (it may be the current one). `next` points to it then.
    pub fn stage_bundle<'a>(
        &self,
        sha: &Sha,
        bundle: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<(), StoreFault> {
        let bundle: Vec<_> = bundle.into_iter().collect();
        self.writing(|| {
            let target = self.release_dir(sha);
            for (path, _) in &bundle {
                safe_parts(path)?;
            }
            if is_real_dir(&target) && holds(&target, &bundle) {
                return self.point(&self.next_dir(), sha);
            }
            let disk = self.disk();
            let temp = files::free_name(disk, &self.releases().join(format!("{TEMP}{}", sha.short())))?;
            let done = build(disk, &temp, &bundle, &target).and_then(|()| put_in_place(disk, &temp, &target));
            // After an exchange the old folder has the temporary name. If it can't be removed now, the next tick sweeps.
            let _ = files::remove_any(disk, &temp);
            done?;
            files::sync_dir(disk, &self.releases())?;
            self.point(&self.next_dir(), sha)
        })
    }

    /// Completes a staged release.
    pub fn write_release(&self, sha: &Sha, env: &str, override_yaml: &str) -> Result<(), StoreFault> {
        let dir = self.release_dir(sha);
        self.writing(|| {
            files::write(self.disk(), &dir, ENV, env.as_bytes())?;
            files::write(self.disk(), &dir, OVERRIDE, override_yaml.as_bytes())
        })
    }

    /// The values that the releases on disk were completed with, by variable: whatever runs here may still say them.
    pub fn values_of_releases(&self) -> Vec<(String, Zeroizing<String>)> {
        let read = |sha: &Sha, name: &str| {
            let bytes = files::read(&self.release_dir(sha).join(name), MAX_FILE).ok().flatten()?;
            String::from_utf8(bytes).ok().map(Zeroizing::new)
        };
        let mut values = Vec::new();
        for sha in self.staged().unwrap_or_default() {
            let Some(env) = read(&sha, ENV) else { continue };
            let template = match read(&sha, "env.template") {
                Some(text) => EnvTemplate::parse(text.as_bytes()).ok(),
                None => Some(EnvTemplate::of_variables(env.lines().filter_map(|line| Some(line.split_once('=')?.0)))),
            };
            values.extend(template.map(|template| template.values_in(&env)).unwrap_or_default());
        }
        values
    }

    /// Has the vault know these values, so that they are taken out of whatever is quoted.
    pub fn know_values_of_releases(&self) {
        for (name, value) in self.values_of_releases() {
            self.vault.know(&Slot::Env(name), &value);
        }
    }

    /// Points `current` at a release, in one step.
    pub fn promote(&self, sha: &Sha) -> Result<(), StoreFault> {
        let dir = self.release_dir(sha);
        self.writing(|| {
            if !is_real_dir(&dir) {
                return refuse("promote", &dir, "no such release; it must be staged first");
            }
            self.switch(&self.current_dir(), sha)
        })
    }

    /// Points a link at a release, if it does not yet.
    fn point(&self, link: &Path, sha: &Sha) -> Result<(), Fail> {
        if self.pointed_to(link).as_ref() == Some(sha) { Ok(()) } else { self.switch(link, sha) }
    }

    fn switch(&self, link: &Path, sha: &Sha) -> Result<(), Fail> {
        if is_real_dir(link) {
            return refuse("replace", link, "it must be a link, but is a directory: move it away");
        }
        let name = link.file_name().unwrap_or_default().display();
        let temp = self.dir.join(format!("{TEMP}{name}-{}", sha.short()));
        let disk = self.disk();
        files::remove_any(disk, &temp)?;
        disk::link(disk, &temp, &Path::new("releases").join(sha.as_str())).doing("link", &temp)?;
        disk::rename(disk, &temp, link).doing("switch", link)?;
        files::sync_dir(disk, &self.dir)
    }

    /// Removes every release but those to keep and the current one, and what dead ticks left unfinished.
    pub fn prune_releases(&self, keep: &[Sha]) -> Result<(), StoreFault> {
        self.writing(|| {
            let keep: BTreeSet<&Sha> = keep.iter().collect();
            // If `current` can't be made sense of, nothing is known to be unneeded.
            let current = self.current();
            if current.is_none() && fs::symlink_metadata(self.current_dir()).is_ok() {
                return refuse("read", &self.current_dir(), "it is no link to a release; nothing was removed");
            }
            let going = |sha: &Sha| !keep.contains(sha) && Some(sha) != current.as_ref();
            if self.pointed_to(&self.next_dir()).is_none_or(|sha| going(&sha)) {
                files::remove(self.disk(), &self.dir, "next")?;
            }
            for sha in self.staged()?.iter().filter(|sha| going(sha)) {
                // A folder that is half removed must not look like a release.
                let going = files::free_name(self.disk(), &self.releases().join(format!("{TEMP}old-{sha}")))?;
                let dir = self.release_dir(sha);
                disk::rename(self.disk(), &dir, &going).doing("remove", &dir)?;
            }
            self.sweep().into_iter().next().map_or(Ok(()), Err)
        })
    }
}

/// Whether this is a directory itself, not a link to one.
fn is_real_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether this is a file itself, not a link to one.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// The parts of a bundle's path. Bundles are checked when they are read; this is the second lock on the same door.
fn safe_parts(path: &str) -> Result<Vec<&str>, Fail> {
    let parts: Vec<&str> = path.split('/').collect();
    let bad = |part: &&str| matches!(*part, "" | "." | "..") || part.chars().any(|c| c.is_control() || c == '\\');
    let ours = parts.first().is_some_and(|first| {
        let name = first.strip_prefix(TEMP).unwrap_or(first);
        [ENV, OVERRIDE].iter().any(|ours| name.eq_ignore_ascii_case(ours))
    });
    if parts.iter().any(bad) || ours {
        return refuse("write", Path::new(path), "a bundle may not hold a file of this name");
    }
    Ok(parts)
}

/// Writes a whole release into a new folder, and to the disk.
fn build(disk: &dyn Disk, dir: &Path, bundle: &[(&str, &[u8])], old: &Path) -> Result<(), Fail> {
    disk::make_dir(disk, dir).doing("make the folder", dir)?;
    // Deepest last: a folder's names are synced after all of them are there.
    let mut folders = BTreeSet::from([dir.to_owned()]);
    for (path, content) in bundle {
        let mut at = dir.to_owned();
        let parts = safe_parts(path)?;
        let (name, above) = parts.split_last().map_or(("", [].as_slice()), |(name, above)| (*name, above));
        for part in above {
            at.push(part);
            if !folders.contains(&at) {
                disk::make_dir(disk, &at).doing("make the folder", &at)?;
                folders.insert(at.clone());
            }
        }
        files::write_new(disk, &at.join(name), content, 0o644)?;
    }
    for (name, fallback) in [(ENV, ""), (OVERRIDE, EMPTY_OVERRIDE)] {
        let kept = files::read(&old.join(name), MAX_FILE).ok().flatten();
        let kept = kept.map(zeroize::Zeroizing::new);
        files::write_new(disk, &dir.join(name), kept.as_deref().map_or(fallback.as_bytes(), Vec::as_slice), 0o600)?;
    }
    for folder in folders.iter().rev() {
        disk::set_mode(disk, folder, 0o755).doing("open", folder)?;
        files::sync_dir(disk, folder)?;
    }
    Ok(())
}

/// Gives a complete folder its name. If the name is taken the two are exchanged.
fn put_in_place(disk: &dyn Disk, built: &Path, target: &Path) -> Result<(), Fail> {
    match fs::symlink_metadata(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return disk::rename(disk, built, target).doing("name", target);
        }
        found => found.doing("look at", target)?,
    };
    match disk::exchange(disk, built, target) {
        Err(e) if files::unsupported(&e) => {
            // Without an exchange the name is free for a moment. A crash just then costs a new staging, not the old
            // content: containers hold what they mounted.
            let away =
                target.with_file_name(format!("{TEMP}torn-{}", target.file_name().unwrap_or_default().display()));
            files::remove_any(disk, &away)?;
            disk::rename(disk, target, &away).doing("replace", target)?;
            disk::rename(disk, built, target).doing("name", target)?;
            files::remove_any(disk, &away)
        }
        exchanged => exchanged.doing("exchange", target),
    }
}

/// Whether a folder holds exactly these files, readable by containers, beside `.env` and the override.
fn holds(dir: &Path, bundle: &[(&str, &[u8])]) -> bool {
    let mut there = BTreeSet::new();
    if list(dir, "", &mut there).is_err() {
        return false;
    }
    // Compose reads these two next, and waits for a pipe.
    let ours = [ENV, OVERRIDE].iter().all(|name| there.remove(*name) && is_file(&dir.join(name)));
    let same = |(path, content): &(&str, &[u8])| {
        let found = files::read(&dir.join(path), MAX_FILE);
        there.remove(*path) && matches!(found, Ok(Some(found)) if found == *content)
    };
    ours && bundle.iter().all(same) && there.is_empty()
}

/// Every path in a folder that is no folder itself.
fn list(dir: &Path, prefix: &str, out: &mut BTreeSet<String>) -> Result<(), Fail> {
    for name in files::names(dir)? {
        let path = dir.join(&name);
        if is_real_dir(&path) {
            list(&path, &format!("{prefix}{name}/"), out)?;
        } else {
            out.insert(format!("{prefix}{name}"));
        }
    }
    Ok(())
}
