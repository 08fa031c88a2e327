//! What becomes of each service: what Compose will do with the containers that are there.
//!
//! Invariant: what Compose alone decides (by its version, by what it remembers) is never told as if it were known.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Known;
use super::secrets::SecretChange;
use crate::effects::containers::{Container, ContainerState};
use crate::effects::model::{ENV_FILE, Service};
use crate::effects::state::{Applied, Goal};
use crate::effects::{Sha, Stamp};

/// What would become of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It has no container yet.
    Created,
    /// Its containers are replaced.
    Recreated {
        /// Why.
        why: Vec<String>,
    },
    /// Its containers stay as they are, and one that does not run is started.
    Started {
        /// As of what is kept.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unless_newer: Vec<String>,
    },
    /// Its containers go on running.
    Kept {
        /// Its variables whose secrets are not pinned: a newer version of one, which only a real tick reads, recreates it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unless_newer: Vec<String>,
    },
    /// Its containers go on running; some are added or taken away.
    Scaled {
        /// How many there are.
        from: u32,
        /// How many it should have.
        to: u32,
        /// As of what is kept.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unless_newer: Vec<String>,
    },
    /// What the agent knows does not tell.
    NotKnown {
        /// Why not, and what decides.
        why: String,
    },
    /// It is not part of the bundle any more.
    Removed,
}

/// What is known of the containers that are there before `up`.
struct Before<'a> {
    /// The release that comes up.
    sha: &'a Sha,
    /// The images that it had when it was healthy; none: not known, or another may have been pulled since.
    images: BTreeSet<&'a String>,
    /// What was started from here on may be of another release than the applied one: the first that was promoted then.
    doubt: Option<(Stamp, &'a Sha)>,
}

impl<'a> Before<'a> {
    fn of(known: &'a Known, goal: &'a Goal) -> Before<'a> {
        let state = &known.state;
        let applied = state.applied();
        let since = applied.map_or(Stamp(i64::MIN), |applied| applied.at);
        let other = state.promotions.iter().find(|promotion| promotion.at > since);
        // Brought up again just as it was, it does not matter which of the two tries a container is of.
        let same = |applied: &Applied| applied.sha == goal.sha && applied.secrets == goal.secrets && !known.read;
        let doubtful = state.in_doubt || state.unfinished.is_some();
        let doubtful = doubtful && (other.is_some() || !applied.is_some_and(same));
        let good = state.good.iter().filter(|good| !known.read && good.sha == goal.sha);
        Before {
            sha: &goal.sha,
            images: good.flat_map(|good| &good.images).collect(),
            doubt: doubtful.then(|| other.map_or((since, &goal.sha), |other| (other.at, &other.sha))),
        }
    }

    /// What becomes of a service with these containers. `fate`: if they are the applied release's.
    fn fate(&self, fate: Fate, its: &[&Container]) -> Fate {
        if its.is_empty() {
            return Fate::Created;
        }
        let late = |c: &&&Container| match &self.doubt {
            Some((since, _)) => c.started.is_none_or(|started| started >= *since),
            None => false,
        };
        if let (Some(_), Some((_, other))) = (its.iter().find(late), &self.doubt) {
            let foreign = |c: &&Container| !self.images.is_empty() && !self.images.contains(&c.image_id);
            if its.iter().any(foreign) {
                let why = format!("its image is none of those that {} had when it was healthy", self.sha.short());
                return Fate::Recreated { why: vec![why] };
            }
            let of = if *other == self.sha {
                format!("an earlier try at {} may have started it", self.sha.short())
            } else {
                format!("it may be of {} by now", other.short())
            };
            return Fate::NotKnown { why: format!("{of}; Compose keeps what is as {} says", self.sha.short()) };
        }
        match fate {
            Fate::Created => {
                Fate::NotKnown { why: "it has a container that the applied release does not know".to_owned() }
            }
            Fate::Kept { unless_newer } if its.iter().any(|c| ended(c)) => Fate::Started { unless_newer },
            fate => fate,
        }
    }
}

/// A container that `up` starts.
fn ended(c: &Container) -> bool {
    match c.state {
        ContainerState::Created | ContainerState::Exited | ContainerState::Dead => true,
        ContainerState::Running | ContainerState::Paused | ContainerState::Restarting | ContainerState::Removing => {
            false
        }
    }
}

/// What would become of each service of the release that comes up, now that its containers were seen.
pub(super) fn of_containers(
    known: &Known,
    goal: &Goal,
    secrets: &BTreeMap<String, SecretChange>,
    containers: &[Container],
) -> BTreeMap<String, Fate> {
    let before = Before::of(known, goal);
    let applied = known.state.applied();
    let mut fates = of_definitions(applied, &goal.services);
    fates.retain(|_, fate| *fate != Fate::Removed);
    for (name, fate) in &mut fates {
        let Some(service) = goal.services.get(name) else { continue };
        if matches!(fate, Fate::Kept { .. }) {
            *fate = if known.read { of_secrets(known, service, secrets) } else { of_versions(applied, goal, service) };
        }
        let its: Vec<&Container> = containers.iter().filter(|c| c.service == *name).collect();
        *fate = before.fate(fate.clone(), &its);
        let was = applied.and_then(|applied| applied.services.get(name)).map_or(service.scale, |was| was.scale);
        let there = u32::try_from(its.len()).unwrap_or(u32::MAX);
        // One container is what a variable counts as, so fewer than there are is meant only where it was more.
        if let Fate::Kept { unless_newer } = fate
            && (there < service.scale || (there > service.scale && was > service.scale))
        {
            let unless_newer = std::mem::take(unless_newer);
            *fate = Fate::Scaled { from: there, to: service.scale, unless_newer };
        }
    }
    while let Some((name, fate)) = goal.services.iter().find_map(|(name, service)| drawn_along(name, service, &fates)) {
        fates.insert(name.clone(), fate);
    }
    for c in containers {
        fates.entry(c.service.clone()).or_insert(Fate::Removed);
    }
    fates
}

/// What becomes of a service by its secrets alone. What it is filled in with is a secret, or is made of them by a real
/// tick (`env.template`, `env_file`) and so not known before.
fn of_secrets(known: &Known, service: &Service, secrets: &BTreeMap<String, SecretChange>) -> Fate {
    let all = service.variables.iter().chain(&service.mounted_variables);
    let (mut changed, mut unless_newer, mut made) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for name in all {
        match secrets.get(name) {
            Some(SecretChange::Changed { .. }) => changed.insert(name.as_str()),
            Some(SecretChange::Latest { .. }) => unless_newer.insert(name.clone()),
            Some(SecretChange::Added { .. }) => made.insert(name.as_str()),
            None if known.template || name == ENV_FILE => made.insert(name.as_str()),
            Some(SecretChange::Kept { .. } | SecretChange::Removed) | None => false,
        };
    }
    if changed.is_empty() && !made.is_empty() {
        let made: Vec<&str> = made.into_iter().collect();
        return Fate::NotKnown { why: format!("only a real tick knows what it gets by {}", made.join(", ")) };
    }
    if changed.is_empty() {
        return Fate::Kept { unless_newer: unless_newer.into_iter().collect() };
    }
    let changed: Vec<&str> = changed.into_iter().collect();
    Fate::Recreated { why: vec![format!("another version of {}", changed.join(", "))] }
}

/// The same of a release that an earlier tick left: by now only the versions of its secrets are known, not what is made
/// of them.
fn of_versions(applied: Option<&Applied>, goal: &Goal, service: &Service) -> Fate {
    let all: BTreeSet<&str> = service.variables.iter().chain(&service.mounted_variables).map(String::as_str).collect();
    let same = applied.is_some_and(|applied| applied.sha == goal.sha && applied.secrets == goal.secrets);
    if all.is_empty() || same {
        return Fate::Kept { unless_newer: Vec::new() };
    }
    let all: Vec<&str> = all.into_iter().collect();
    Fate::NotKnown { why: format!("what it gets by {} may be another than in the applied release", all.join(", ")) }
}

/// A service whose containers would stay, and what becomes of it since another one's do not (tried with Compose 2.26
/// and 2.40: what shares a network, processes or volumes goes along in both; what depends in another way is recreated
/// by 2.26, also over several steps, and restarted or kept by 2.40).
fn drawn_along<'a>(name: &'a String, service: &Service, fates: &BTreeMap<String, Fate>) -> Option<(&'a String, Fate)> {
    if !matches!(fates.get(name), Some(Fate::Kept { .. } | Fate::Scaled { .. } | Fate::Started { .. })) {
        return None;
    }
    let fate = |other: &String| fates.get(other);
    let new = |other: &&String| matches!(fate(other), Some(Fate::Created | Fate::Recreated { .. }));
    if let Some(other) = service.shares.iter().find(new) {
        return Some((
            name,
            Fate::Recreated { why: vec![format!("it shares what {other} has, which is another then")] },
        ));
    }
    let moves = |other: &&String| matches!(fate(other), Some(Fate::Recreated { .. } | Fate::NotKnown { .. }));
    let other = service.depends.keys().find(moves)?;
    let why = format!("it depends on {other}, and Compose decides by its version whether it goes along");
    Some((name, Fate::NotKnown { why }))
}

/// What would become of each service, from what it is made of.
pub(super) fn of_definitions(applied: Option<&Applied>, new: &BTreeMap<String, Service>) -> BTreeMap<String, Fate> {
    let none = BTreeMap::new();
    let old = applied.map_or(&none, |applied| &applied.services);
    let mut fates = BTreeMap::new();
    for (name, service) in new {
        let fate = match old.get(name) {
            None => Fate::Created,
            Some(was) => {
                let mut why = Vec::new();
                if was.image != service.image {
                    let image = |image: &Option<String>| image.clone().unwrap_or_else(|| "none".to_owned());
                    why.push(format!("image {} to {}", image(&was.image), image(&service.image)));
                } else if was.definition != service.definition {
                    why.push("its definition in compose.yaml".to_owned());
                }
                if was.mounts != service.mounts {
                    why.push("the bundle content that it mounts".to_owned());
                }
                if !why.is_empty() {
                    Fate::Recreated { why }
                } else if was.depends != service.depends {
                    let why = "only its depends_on changed: Compose 2.26 recreates it for that, 2.40 does not";
                    Fate::NotKnown { why: why.to_owned() }
                } else {
                    Fate::Kept { unless_newer: Vec::new() }
                }
            }
        };
        fates.insert(name.clone(), fate);
    }
    for name in old.keys() {
        fates.entry(name.clone()).or_insert(Fate::Removed);
    }
    fates
}

/// The paths whose mounted content would change, as far as the releases tell.
pub(super) fn mounted_changes(applied: Option<&Applied>, new: &BTreeMap<String, Service>) -> Vec<String> {
    let Some(applied) = applied else { return Vec::new() };
    let mut paths: Vec<String> = new
        .iter()
        .filter(|(name, service)| applied.services.get(*name).is_some_and(|was| was.mounts != service.mounts))
        .map(|(name, service)| format!("{name}: {}", service.mounted.join(", ")))
        .collect();
    paths.sort();
    paths
}
