//! Secrets: awaits the values that the manifest names, then the complete release.
//!
//! Invariants: only facts about values get here; a 403 is settled by one lookup-self; a token is replaced at most
//! once a tick, and only when OpenBao says that it is dead.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Deploy, Pull, Report, Token, answer};
use crate::effects::failure::Code;
use crate::effects::{
    BaoFault, CheckCompose, EffectId, Event, LookupToken, ReadSecret, SecretFacts, SecretFault, TokenFacts, TokenName,
    ValueFact, ValueUse, Wanted, WriteRelease, counted,
};
use crate::fsm::StageName;
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::Flow;
use crate::fsm::machine::Transition;

const PHASE: StageName = StageName::Secrets;

type Answer = Result<SecretFacts, SecretFault>;

/// Awaits the secrets, then the complete release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Secrets {
    deploy: Box<Deploy>,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    Reads(Vec<Read>),
    /// Whether the token is dead or may not read these.
    Settling(Vec<String>),
    Writing(BTreeMap<String, u64>),
    Checking(BTreeMap<String, u64>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Read {
    id: EffectId,
    request: ReadSecret,
    answer: Option<Answer>,
}

impl Secrets {
    /// Reads every secret of the manifest, each once, all at the same time.
    pub fn read<S: Leads<Secrets>>(flow: Flow<S>, deploy: Box<Deploy>) -> Transition {
        let mut requests: Vec<ReadSecret> = Vec::new();
        for entry in &deploy.manifest.entries {
            let wanted = Wanted { key: entry.key.clone(), usage: entry.usage.clone() };
            match requests.iter_mut().find(|r| r.path == entry.path && r.version == entry.version) {
                Some(request) => request.wanted.push(wanted),
                None => {
                    requests.push(ReadSecret { path: entry.path.clone(), version: entry.version, wanted: vec![wanted] })
                }
            }
        }
        let mut flow = flow.to(Secrets { deploy, awaits: Awaits::Reads(Vec::new()) });
        let reads: Vec<Read> =
            requests.into_iter().map(|request| Read { id: flow.ask(request.clone()), request, answer: None }).collect();
        if reads.is_empty() { flow.complete(&reads) } else { flow.awaiting(Awaits::Reads(reads)).into() }
    }
}

impl Flow<Secrets> {
    pub(in crate::fsm) fn on(mut self, id: EffectId, event: Event) -> Transition {
        let last = self.settled();
        match &mut self.stage.awaits {
            Awaits::Reads(reads) => {
                let answered = answer!(self, event, ReadSecret);
                if let Some(read) = reads.iter_mut().find(|read| read.id == id) {
                    read.answer = Some(answered);
                }
                if !last {
                    return self.into();
                }
                // The last answer leads away from here, and the reads go along.
                let reads = std::mem::take(reads);
                self.judge(reads)
            }
            Awaits::Settling(denied) => {
                let denied = denied.clone();
                let looked_up = answer!(self, event, LookupToken);
                self.settle(&denied, looked_up)
            }
            Awaits::Writing(versions) => {
                let versions = versions.clone();
                match answer!(self, event, WriteRelease) {
                    Ok(()) => {
                        let Deploy { attempt, closed, decided, .. } = &*self.stage.deploy;
                        let check = CheckCompose { sha: attempt.sha.clone(), look: *decided || !closed.is_empty() };
                        self.awaiting(Awaits::Checking(versions)).then(check)
                    }
                    Err(fault) => self.fail(faults::store(PHASE, &fault)),
                }
            }
            Awaits::Checking(versions) => match answer!(self, event, CheckCompose) {
                Ok(()) => {
                    let versions = std::mem::take(versions);
                    let (flow, secrets) = self.leave();
                    Pull::images(flow, secrets.deploy, versions)
                }
                Err(fault) => self.fail(faults::compose(PHASE, "compose config", &fault)),
            },
        }
    }

    fn awaiting(mut self, awaits: Awaits) -> Flow<Secrets> {
        self.stage.awaits = awaits;
        self
    }

    /// All answers are here. What says nothing about the secrets comes first, then what the token may do, then the secrets.
    fn judge(self, reads: Vec<Read>) -> Transition {
        let mut denied = Vec::new();
        let mut wrong: Vec<(Code, String)> = Vec::new();
        for read in &reads {
            let path = &read.request.path;
            match &read.answer {
                None => {}
                Some(Ok(facts)) => wrong.extend(misfits(&read.request, facts)),
                Some(Err(SecretFault::Missing)) => wrong.push((Code::SecretMissing, format!("{path}: there is none"))),
                Some(Err(SecretFault::Deleted(how))) => wrong.push((Code::SecretDeleted, format!("{path}: {how}"))),
                Some(Err(SecretFault::Bao(BaoFault::Denied { detail: _ }))) => denied.push(path.clone()),
                Some(Err(SecretFault::Bao(fault))) => return self.fail(faults::bao(PHASE, path, fault)),
            }
        }
        if !denied.is_empty() {
            return self.awaiting(Awaits::Settling(denied)).then(LookupToken { token: TokenName::Saved });
        }
        match wrong.first() {
            None => self.complete(&reads),
            Some((code, _)) => {
                let all: Vec<String> = wrong.iter().map(|(_, what)| what.clone()).collect();
                self.fail(Failure::new(*code, PHASE, all.join("; ")))
            }
        }
    }

    fn settle(self, denied: &[String], looked_up: Result<TokenFacts, BaoFault>) -> Transition {
        match looked_up {
            Ok(_) => self.fail(Failure::new(
                Code::SecretDenied,
                PHASE,
                format!("the token lives, and OpenBao does not let it read {}", denied.join(", ")),
            )),
            Err(BaoFault::Denied { detail: _ }) if !self.core().relogged => {
                let deploy = self.stage.deploy.clone();
                Token::relogin(self, deploy)
            }
            Err(BaoFault::Denied { detail: _ }) => self.fail(Failure::new(
                Code::SecretDenied,
                PHASE,
                format!("the token died again right after a new login; could not read {}", denied.join(", ")),
            )),
            Err(fault) => self.fail(faults::bao(PHASE, "lookup-self", &fault)),
        }
    }

    fn complete(mut self, reads: &[Read]) -> Transition {
        let mut versions = BTreeMap::new();
        let mut registry = None;
        let mut names = Vec::new();
        for read in reads {
            let Some(Ok(facts)) = &read.answer else { continue };
            if let Some(version) = facts.version {
                versions.insert(read.request.path.clone(), version);
            }
            for (wanted, fact) in read.request.wanted.iter().zip(&facts.values) {
                match (&wanted.usage, fact) {
                    (ValueUse::Env(name), _) => names.push(name.clone()),
                    (ValueUse::RegistryAuth, ValueFact::Credential { registry: host, username }) => {
                        registry = Some((host.clone(), username.clone()));
                    }
                    (ValueUse::RegistryAuth, other) => {
                        let why = unusable(other);
                        self.note(Note::warn(format!(
                            "the registry credential at {} is not usable ({why}): private images will not pull",
                            read.request.path
                        )));
                    }
                }
            }
        }
        let and = if registry.is_some() { " + registry credential" } else { "" };
        let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        self.note(Note::info(format!("{} read{named}{and}", counted(names.len(), "secret"))));
        let deploy = &self.stage.deploy;
        let release = WriteRelease {
            sha: deploy.attempt.sha.clone(),
            variables: deploy.manifest.variables().map(str::to_owned).collect(),
            mounts: deploy.labels(&versions),
            registry,
            closed: deploy.closed.clone(),
        };
        self.awaiting(Awaits::Writing(versions)).then(release)
    }

    fn fail(self, failure: Failure) -> Transition {
        let attempt = self.stage.deploy.attempt.clone();
        Report::fail(self, failure, attempt)
    }
}

fn unusable(fact: &ValueFact) -> String {
    match fact {
        ValueFact::NoCredential { why } | ValueFact::Unfit { why } => why.clone(),
        ValueFact::Absent => "the secret has no such field".to_owned(),
        ValueFact::Text | ValueFact::Credential { .. } => "it was not read as a credential".to_owned(),
    }
}

/// What is wrong with a secret that was read.
fn misfits(request: &ReadSecret, facts: &SecretFacts) -> Vec<(Code, String)> {
    let path = &request.path;
    let Some(version) = facts.version else {
        return vec![(Code::SecretInvalid, format!("{path}: no version came with it; the engine is not KV v2"))];
    };
    if request.version.is_some_and(|pinned| pinned != version) {
        let what = format!("{path}: version {version} came, {} is pinned", request.version.unwrap_or_default());
        return vec![(Code::SecretInvalid, what)];
    }
    if facts.values.len() != request.wanted.len() {
        return vec![(Code::SecretInvalid, format!("{path}: {} values were told of", facts.values.len()))];
    }
    let mut wrong = Vec::new();
    for (wanted, fact) in request.wanted.iter().zip(&facts.values) {
        let ValueUse::Env(name) = &wanted.usage else { continue };
        match fact {
            ValueFact::Text => {}
            ValueFact::Absent => {
                wrong.push((Code::SecretMissing, format!("{path}: no field {:?}, for {name}", wanted.key)));
            }
            ValueFact::Unfit { why } => {
                wrong.push((Code::SecretInvalid, format!("{path}: field {:?}, for {name}: {why}", wanted.key)));
            }
            ValueFact::Credential { .. } | ValueFact::NoCredential { .. } => {
                wrong.push((Code::SecretInvalid, format!("{path}: {name} was read as a registry credential")));
            }
        }
    }
    wrong
}
