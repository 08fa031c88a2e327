//! The plan that `--dry-run` prints: every effect in order, in the operator's words, and what it would change.
//!
//! Invariant: what is printed comes from the machine's own effects and from what was read; where something is not
//! known before it happens (a secret's latest version, a new lease), the plan says so.

mod fates;
mod says;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use self::fates::Fate;
use self::says::says;
use self::secrets::SecretChange;
use crate::drivers::run_loop::Watch;
use crate::effects::manifest::Manifest;
use crate::effects::state::{Goal, State};
use crate::effects::{BundleFacts, Effect, Event, Kind, Op, OpName, Stamp, TokenFacts, TokenName};
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Input, Level, Machine, Note, StageName};

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
    /// The bundle says by `env.template` what `.env` is made of.
    template: bool,
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
                self.services = fates::of_definitions(applied.as_ref(), &model.services);
                self.files = fates::mounted_changes(applied.as_ref(), &model.services);
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
            Event::Inspected(Ok(containers)) if !self.known.up => {
                if let Some(goal) = &self.known.goal {
                    self.services = fates::of_containers(&self.known, goal, &self.secrets, containers);
                }
            }
            _ => {}
        }
    }
}

impl Plan {
    fn logs_in(&self) -> bool {
        self.effects.iter().any(|step| step.op == OpName::Login)
    }

    fn bundle(&mut self, facts: &BundleFacts) {
        self.known.template = facts.template.is_some();
        if let Ok(manifest) = &facts.manifest {
            self.known.manifest = manifest.clone();
            self.secrets = secrets::of(self.known.state.applied(), manifest);
        }
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
            lines.push(format!("{} {}: {}; applied is {applied}", paint("1", "bundle"), sha.short(), cause));
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
                    Fate::Started { unless_newer } => {
                        format!("  {}  {name}{}", paint("33", "start   "), unless(unless_newer))
                    }
                    Fate::Kept { unless_newer } => format!("  keep      {name}{}", unless(unless_newer)),
                    Fate::Scaled { from, to, unless_newer } => {
                        format!("  {}  {name}: {from} of {to} there{}", paint("33", "scale   "), unless(unless_newer))
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

fn life(facts: &TokenFacts) -> String {
    match facts.ttl_s {
        None => "alive, never expires".to_owned(),
        Some(s) => format!("alive, {} min left{}", s / 60, if facts.renewable { ", renewable" } else { "" }),
    }
}

/// What would have a service recreated all the same.
fn unless(newer: &[String]) -> String {
    if newer.is_empty() {
        String::new()
    } else {
        format!(", unless there is a newer version of {}", newer.join(" or "))
    }
}
