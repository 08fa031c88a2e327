//! The plan that `--dry-run` prints: every effect in order, in the operator's words, and what it would change.
//!
//! Invariant: what is printed comes from the machine's own effects and from what was read; where something is not
//! known before it happens (a secret's latest version, a new lease), the plan says so.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::words::{moment, why};
use crate::drivers::run_loop::Watch;
use crate::effects::containers::{Container, ContainerState};
use crate::effects::manifest::Manifest;
use crate::effects::model::Service;
use crate::effects::state::{Applied, Goal, State, TokenSource};
use crate::effects::{
    BundleFacts, Effect, Event, GrantName, Kind, Op, OpName, Sha, Stamp, TokenFacts, TokenName, ValueUse, counted,
};
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Input, Level, Machine, Note, StageName, retry};

/// A plan.
#[derive(Debug, Default, Serialize)]
pub struct Plan {
    /// Every effect, in order.
    effects: Vec<Step>,
    /// What would become of the services, by name.
    services: BTreeMap<String, Fate>,
    /// What would become of the secrets, by name.
    secrets: BTreeMap<String, SecretChange>,
    /// The bundle files that differ from the applied release, if they could be compared.
    files: Vec<String>,
    /// The images to pull.
    images: BTreeSet<String>,
    /// What the machine said.
    notes: Vec<Note>,
    /// How the tick would end.
    outcome: Option<Done>,
    #[serde(skip)]
    known: Known,
}

#[derive(Debug, Default)]
struct Known {
    state: State,
    manifest: Manifest,
    /// Compose resolved the release: it is not one that an earlier tick left.
    read: bool,
    /// The release that comes up.
    goal: Option<Goal>,
    up: bool,
}

/// One effect.
#[derive(Debug, Serialize)]
struct Step {
    n: u32,
    stage: StageName,
    kind: Kind,
    op: OpName,
    /// In the operator's words.
    says: String,
    /// Carried out in this dry run, and not only planned.
    executed: bool,
}

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
    Started,
    /// Its containers go on running.
    Kept {
        /// Its variables whose secrets are not pinned: a newer version of one, which only a real tick reads, recreates it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unless_newer: Vec<String>,
    },
    /// What the agent remembers does not tell.
    NotKnown {
        /// Why not, and what decides.
        why: String,
    },
    /// It is not part of the bundle any more.
    Removed,
}

/// What would become of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum SecretChange {
    /// The applied release does not use it.
    Added {
        /// The pinned version; none: the latest, which only a real tick reads.
        version: Option<u64>,
    },
    /// Both use it.
    Kept {
        /// The version of the applied release.
        version: u64,
    },
    /// Another version is pinned.
    Changed {
        /// The version of the applied release.
        from: u64,
        /// The pinned one.
        to: u64,
    },
    /// Both use it, not pinned: a newer version would be seen only by reading it.
    Latest {
        /// The version of the applied release.
        applied: u64,
    },
    /// The bundle does not use it any more.
    Removed,
}

impl Watch for Plan {
    fn boots(&mut self, boot: &Boot) {
        self.known.state = boot.state.clone();
    }

    fn notes(&mut self, note: &Note) {
        self.notes.push(note.clone());
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        let name = effect.op.name();
        let kind = name.kind();
        if name == OpName::Up {
            self.known.up = true;
        }
        if let Op::SaveState(save) = &effect.op
            && machine.stage() == StageName::Up
        {
            self.known.goal.clone_from(&save.state.unfinished);
        }
        let pretended = match &effect.op {
            Op::ReadSecret(_) | Op::ReadLogs(_) => true,
            Op::LookupToken(lookup) => lookup.token == TokenName::Candidate || self.logs_in(),
            Op::Inspect(_) => self.known.up,
            _ => kind != Kind::Read,
        };
        let says = says(&effect.op, machine, now);
        self.effects.push(Step { n: effect.id.0, stage: machine.stage(), kind, op: name, says, executed: !pretended });
    }

    fn hears(&mut self, input: &Input) {
        match &input.event {
            Event::BundleFetched(Ok(facts)) => self.bundle(facts),
            Event::ModelRead(Ok(model)) => {
                self.images = model.services.values().filter_map(|service| service.image.clone()).collect();
                let applied = self.known.state.applied().cloned();
                self.known.read = true;
                self.services = fates(applied.as_ref(), &model.services);
                self.files = mounted_changes(applied.as_ref(), &model.services);
            }
            Event::TokenLookedUp(found) => {
                let says = match found {
                    Ok(facts) => life(facts),
                    Err(fault) => crate::fsm::faults::bao_words(fault),
                };
                let step = self.effects.iter_mut().find(|step| step.n == input.answers.0 && step.executed);
                if let Some(step) = step {
                    step.says = format!("{}: {says}", step.says);
                }
            }
            Event::Inspected(Ok(containers)) if !self.known.up => self.looked(containers),
            _ => {}
        }
    }
}

impl Plan {
    fn logs_in(&self) -> bool {
        self.effects.iter().any(|step| step.op == OpName::Login)
    }

    fn bundle(&mut self, facts: &BundleFacts) {
        if let Ok(manifest) = &facts.manifest {
            self.known.manifest = manifest.clone();
            self.secrets = secrets(self.known.state.applied(), manifest);
        }
    }

    /// The containers before `up`: what is there is kept, started or recreated, what is not is created.
    fn looked(&mut self, containers: &[Container]) {
        let Some(goal) = &self.known.goal else { return };
        let before = Before::of(&self.known, goal);
        let mut fates = fates(self.known.state.applied(), &goal.services);
        fates.retain(|_, fate| *fate != Fate::Removed);
        for (name, fate) in &mut fates {
            let Some(service) = goal.services.get(name) else { continue };
            if let Fate::Kept { unless_newer } = fate {
                let changed = self.secrets_of(service, |change| matches!(change, SecretChange::Changed { .. }));
                *unless_newer = self.secrets_of(service, |change| matches!(change, SecretChange::Latest { .. }));
                if !changed.is_empty() {
                    *fate = Fate::Recreated { why: vec![format!("another version of {}", changed.join(", "))] };
                }
            }
            let its: Vec<&Container> = containers.iter().filter(|c| c.service == *name).collect();
            *fate = before.fate(fate.clone(), &its);
        }
        for c in containers {
            fates.entry(c.service.clone()).or_insert(Fate::Removed);
        }
        self.services = fates;
    }

    /// The variables of a service whose secrets change so.
    fn secrets_of(&self, service: &Service, so: impl Fn(&SecretChange) -> bool) -> Vec<String> {
        service.variables.iter().filter(|name| self.secrets.get(*name).is_some_and(&so)).cloned().collect()
    }

    /// The plan is complete.
    pub fn finish(&mut self, done: Done) {
        self.outcome = Some(done);
    }

    /// For a person. `colour`: the terminal shows it.
    pub fn text(&self, colour: bool) -> String {
        let paint = |code: &str, text: &str| {
            if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
        };
        let mut lines = vec!["What a tick would do now. Nothing was changed.".to_owned(), String::new()];
        if let Some(Done { sha: Some(sha), cause: Some(cause), .. }) = &self.outcome {
            let applied =
                self.known.state.applied().map_or("nothing".to_owned(), |applied| applied.sha.short().to_owned());
            lines.push(format!("{} {}: {}; applied is {applied}", paint("1", "bundle"), sha.short(), why(*cause)));
        }
        if let (false, Some(goal)) = (self.known.read, &self.known.goal) {
            lines.push(match &goal.instead_of {
                Some(failed) => format!(
                    "a rollback to {}, since {} failed, was interrupted; it is finished",
                    goal.sha.short(),
                    failed.sha.short()
                ),
                None => format!("the apply of {} was interrupted; it is finished", goal.sha.short()),
            });
        }
        // What the machine says of things that went well did not happen here.
        for note in self.notes.iter().filter(|note| note.level != Level::Info) {
            lines.push(paint("2", &format!("# {}", note.text)));
        }
        lines.push(String::new());
        let mut stage = None;
        for step in &self.effects {
            if stage != Some(step.stage) {
                lines.push(paint("1", step.stage.as_str()));
                stage = Some(step.stage);
            }
            let mark = if step.executed { "done " } else { "would" };
            let kind = format!("{:?}", step.kind).to_lowercase();
            lines.push(format!("  {:>3}  {mark}  {kind:<6}  {}", step.n, step.says));
        }
        if !self.services.is_empty() {
            lines.push(format!("\n{}", paint("1", "services")));
            for (name, fate) in &self.services {
                lines.push(match fate {
                    Fate::Created => format!("  {}  {name}", paint("32", "create  ")),
                    Fate::Recreated { why } => format!("  {}  {name}: {}", paint("33", "recreate"), why.join("; ")),
                    Fate::Started => format!("  {}  {name}", paint("33", "start   ")),
                    Fate::Kept { unless_newer } if unless_newer.is_empty() => format!("  keep      {name}"),
                    Fate::Kept { unless_newer } => {
                        format!("  keep      {name}, unless there is a newer version of {}", unless_newer.join(" or "))
                    }
                    Fate::NotKnown { why } => format!("  ?         {name}: not known here: {why}"),
                    Fate::Removed => format!("  {}  {name}", paint("31", "remove  ")),
                });
            }
        }
        if !self.secrets.is_empty() {
            lines.push(format!("\n{}", paint("1", "secrets")));
            for (name, change) in &self.secrets {
                lines.push(match change {
                    SecretChange::Added { version: Some(version) } => format!("  added     {name}, version {version}"),
                    SecretChange::Added { version: None } => format!("  added     {name}, the latest version"),
                    SecretChange::Kept { version } => format!("  kept      {name}, version {version}"),
                    SecretChange::Changed { from, to } => format!("  changed   {name}, version {from} to {to}"),
                    SecretChange::Latest { applied } => {
                        format!("  latest    {name}, version {applied} is applied; a newer one shows when it is read")
                    }
                    SecretChange::Removed => format!("  removed   {name}"),
                });
            }
        }
        if !self.files.is_empty() {
            lines.push(format!("\n{}\n  {}", paint("1", "mounted content that changes"), self.files.join("\n  ")));
        }
        if !self.images.is_empty() {
            let images: Vec<&str> = self.images.iter().map(String::as_str).collect();
            lines.push(format!("\n{}\n  {}", paint("1", "images"), images.join("\n  ")));
        }
        if let Some(done) = &self.outcome {
            let sha = done.sha.as_ref().map(|sha| format!(" {}", sha.short())).unwrap_or_default();
            let code = done.code.map(|code| format!(" {code}")).unwrap_or_default();
            let detail = if done.detail.is_empty() { String::new() } else { format!("\n  {}", done.detail) };
            lines.push(format!("\n{} {}{sha}{code}{detail}", paint("1", "outcome"), done.word));
        }
        lines.push(String::new());
        lines.join("\n")
    }
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
            Fate::Kept { .. } if its.iter().any(|c| ended(c)) => Fate::Started,
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

/// What would become of each service, from what it is made of.
pub fn fates(applied: Option<&Applied>, new: &BTreeMap<String, Service>) -> BTreeMap<String, Fate> {
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
                if why.is_empty() { Fate::Kept { unless_newer: Vec::new() } } else { Fate::Recreated { why } }
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
fn mounted_changes(applied: Option<&Applied>, new: &BTreeMap<String, Service>) -> Vec<String> {
    let Some(applied) = applied else { return Vec::new() };
    let mut paths: Vec<String> = new
        .iter()
        .filter(|(name, service)| applied.services.get(*name).is_some_and(|was| was.mounts != service.mounts))
        .map(|(name, service)| format!("{name}: {}", service.mounted.join(", ")))
        .collect();
    paths.sort();
    paths
}

/// What would become of each secret.
pub fn secrets(applied: Option<&Applied>, manifest: &Manifest) -> BTreeMap<String, SecretChange> {
    let before = applied.map(|applied| applied.secrets.clone()).unwrap_or_default();
    let mut changes = BTreeMap::new();
    for entry in &manifest.entries {
        let name = match &entry.usage {
            ValueUse::Env(name) => name.clone(),
            ValueUse::RegistryAuth => "registry credential".to_owned(),
        };
        let change = match (before.get(&entry.path), entry.version) {
            (None, version) => SecretChange::Added { version },
            (Some(from), Some(to)) if *from != to => SecretChange::Changed { from: *from, to },
            (Some(version), Some(_)) => SecretChange::Kept { version: *version },
            (Some(applied), None) => SecretChange::Latest { applied: *applied },
        };
        changes.insert(name, change);
    }
    let used: BTreeSet<&String> = manifest.entries.iter().map(|entry| &entry.path).collect();
    for path in before.keys().filter(|path| !used.contains(path)) {
        changes.insert(path.clone(), SecretChange::Removed);
    }
    changes
}

fn life(facts: &TokenFacts) -> String {
    match facts.ttl_s {
        None => "alive, never expires".to_owned(),
        Some(s) => format!("alive, {} min left{}", s / 60, if facts.renewable { ", renewable" } else { "" }),
    }
}

fn short(sha: &Sha) -> &str {
    sha.short()
}

/// An effect in the operator's words.
fn says(op: &Op, machine: &Machine, now: Stamp) -> String {
    let core = machine.core();
    match op {
        Op::Checkin(checkin) => {
            let applied = checkin.applied_sha.as_ref().map_or("nothing applied", |sha| sha.short());
            format!("check in with tenancy ({applied})")
        }
        Op::FetchBundle(fetch) => format!("fetch bundle {}", short(&fetch.sha)),
        Op::ProbeDocker(_) => "ask Docker and Compose for their versions".to_owned(),
        Op::StageBundle(stage) => format!("unpack {} into releases/ (here: into a scratch folder)", short(&stage.sha)),
        Op::ReadModel(read) => format!("have Compose resolve {} without its variables", short(&read.sha)),
        Op::LookupToken(lookup) => match lookup.token {
            TokenName::Saved => "ask OpenBao about the saved token".to_owned(),
            TokenName::Candidate => "have the new token look itself up, as a proof".to_owned(),
        },
        Op::RenewToken(_) => "renew the saved token (no lease)".to_owned(),
        Op::AskLease(_) => {
            let used = core.state.leases.len();
            let left = retry::LEASES_AN_HOUR.saturating_sub(used);
            format!("spend a lease; {left} of {} would be left in this hour", retry::LEASES_AN_HOUR)
        }
        Op::SaveGrant(_) => "write grant.json".to_owned(),
        Op::DropGrant(drop) => match drop.grant {
            GrantName::Bootstrap => "remove bootstrap.jwt".to_owned(),
            GrantName::Lease => "remove grant.json".to_owned(),
        },
        Op::Login(login) => {
            let with = match login.grant {
                GrantName::Bootstrap => "the bootstrap grant",
                GrantName::Lease => "the leased grant",
            };
            format!("log in to OpenBao as {} with {with}", login.role)
        }
        Op::SaveToken(save) => match save.source {
            TokenSource::Bootstrap => "write token.json (from the bootstrap grant)".to_owned(),
            TokenSource::Lease => "write token.json (from a lease)".to_owned(),
        },
        Op::RevokeToken(_) => "revoke the replaced token".to_owned(),
        Op::ReadSecret(read) => {
            let version = read.version.map_or("the latest version".to_owned(), |version| format!("version {version}"));
            format!("read {} ({version})", read.path)
        }
        Op::WriteRelease(write) => {
            let registry = if write.registry.is_some() { ", with a registry credential" } else { "" };
            format!(
                ".env with {}, the override, docker/config.json{registry}",
                counted(write.variables.len(), "variable")
            )
        }
        Op::CheckCompose(_) => "have Compose check the complete release".to_owned(),
        Op::Pull(pull) => format!("pull the images of {} (at most {} s)", short(&pull.sha), pull.timeout_s),
        Op::Promote(promote) => format!("point `current` at {}", short(&promote.sha)),
        Op::Up(up) => format!("bring {} up (at most {} s, health included)", short(&up.sha), up.timeout_s),
        Op::Inspect(_) => "look at the project's containers".to_owned(),
        Op::ReadLogs(logs) => format!("read the end of {}", counted(logs.containers.len(), "log")),
        Op::WaitUntil(wait) => format!("wait {} ms: {}", wait.until.since_ms(now), wait.reason),
        Op::SaveState(save) => {
            let until = save.state.attempts.values().filter_map(|tried| tried.next_at).filter(|at| *at > now).max();
            let next = until.map(|at| format!("; next attempt not before {}", moment(at))).unwrap_or_default();
            format!("write state.json{next}")
        }
        Op::SaveReport(save) => {
            let code = save.report.code.map(|code| format!(" {code}")).unwrap_or_default();
            format!("put a report into the outbox: {:?}{code} {}", save.report.result, short(&save.report.sha))
        }
        Op::SendReport(send) => format!("send report {}", send.report_id),
        Op::DropReport(drop) => format!("take report {} out of the outbox", drop.report_id),
        Op::PruneReleases(prune) => {
            let keep: Vec<&str> = prune.keep.iter().map(short).collect();
            format!("remove release folders but {}", keep.join(", "))
        }
        Op::RemoveImages(remove) => {
            format!("remove {} of this agent that nothing needs", counted(remove.ids.len(), "image"))
        }
    }
}
