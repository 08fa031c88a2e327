//! A scripted world: answers every effect as if all went well, unless a scenario says otherwise.
//!
//! Invariant: it holds no time of its own but a counter, so that a trace is the same on any machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use monky_deployd::effects::containers::{Container, ContainerState, Health, RestartPolicy};
use monky_deployd::effects::failure::{Code, Refusal};
use monky_deployd::effects::manifest::{Entry, Manifest};
use monky_deployd::effects::meta::Meta;
use monky_deployd::effects::model::{Model, Service};
use monky_deployd::effects::state::{Applied, Promotion, State, TokenRecord, TokenSource};
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Input, Level, Machine, Options, StageName, Transition};

pub const NOW: Stamp = Stamp(1_790_000_000_000);

struct AsIs;

impl Scrub for AsIs {
    fn scrub(&self, text: &str) -> String {
        text.to_owned()
    }
}

pub fn said(text: &str) -> Scrubbed {
    Scrubbed::new(&AsIs, text)
}

/// The sha of a name, so that scenarios can speak of bundle "a" and bundle "b".
pub fn sha(name: &str) -> Sha {
    Sha::of(name.as_bytes())
}

pub fn settings() -> Settings {
    Settings {
        agent_version: "0.2.0".to_owned(),
        env_id: "env-qa-02".to_owned(),
        site: "cbs".to_owned(),
        role: "env-env-qa-02".to_owned(),
        kv_mount: "monky".to_owned(),
        renew_below_s: 600,
        project: "monky-env-qa-02".to_owned(),
        healthy_timeout_s: 300,
        pull_timeout_s: 600,
        stable_s: 5,
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        laptop_mode: false,
        policy: policy::Policy::default(),
    }
}

/// A box that was never used.
pub fn fresh() -> Boot {
    Boot {
        settings: settings(),
        options: Options::default(),
        state: State::default(),
        local: LocalFacts::default(),
        seed: 7,
        now: NOW,
    }
}

/// A box that runs bundle "a" with a leased token.
pub fn running_a() -> Boot {
    let mut boot = fresh();
    boot.state.good.push(applied("a", Some(1)));
    boot.state.promotions.push(Promotion { sha: sha("a"), at: NOW.plus_s(-7200) });
    boot.state.token = Some(TokenRecord {
        source: TokenSource::Lease,
        accessor: Some("acc-1".to_owned()),
        seen_at: NOW.plus_s(-60),
        ttl_s: Some(3000),
        renewable: true,
    });
    boot.state.docker = Some(versions());
    boot.local.token = Some(TokenSource::Lease);
    boot.local.releases = vec![sha("a")];
    boot.local.current = Some(sha("a"));
    boot
}

pub fn applied(name: &str, generation: Option<i64>) -> Applied {
    Applied {
        sha: sha(name),
        at: NOW.plus_s(-7000),
        generation,
        secrets: BTreeMap::from([("monky/env-qa-02/db".to_owned(), 1)]),
        images: BTreeSet::from(["sha256:a".to_owned()]),
        services: services(),
    }
}

/// One service that mounts a file of the bundle.
pub fn services() -> BTreeMap<String, Service> {
    let web = Service {
        image: Some("registry.example/web:1".to_owned()),
        mounts: Some("d1".to_owned()),
        mounted: vec!["conf/web.conf".to_owned()],
        scale: 1,
        definition: "def1".to_owned(),
        depends: Default::default(),
        shares: Default::default(),
        variables: vec!["DB_PASSWORD".to_owned()],
        mounted_variables: Vec::new(),
    };
    BTreeMap::from([("web".to_owned(), web)])
}

pub fn versions() -> DockerVersions {
    DockerVersions { engine: "20.10.24+dfsg1".to_owned(), compose: "2.26.1-4".to_owned() }
}

pub fn manifest() -> Manifest {
    let entry = |usage: ValueUse, path: &str, key: &str, version: Option<u64>| Entry {
        usage,
        path: path.to_owned(),
        key: key.to_owned(),
        version,
    };
    Manifest {
        entries: vec![
            entry(ValueUse::Env("DB_PASSWORD".to_owned()), "monky/env-qa-02/db", "value", None),
            entry(ValueUse::Env("DB_USER".to_owned()), "monky/env-qa-02/db", "user", None),
            entry(ValueUse::RegistryAuth, "monky/env-qa-02/registry", "value", Some(4)),
        ],
    }
}

pub fn facts(name: &str, generation: i64) -> BundleFacts {
    BundleFacts {
        content_sha: sha(name),
        header_sha: Some(sha(name).to_string()),
        meta: Meta { env_id: "env-qa-02".to_owned(), generation: Some(generation), ..Meta::default() },
        manifest: Ok(manifest()),
        template: Some(Ok(vec!["DB_PASSWORD".to_owned()])),
        compose: Ok(()),
        size: (4, 900),
    }
}

pub fn token(ttl_s: u64) -> TokenFacts {
    TokenFacts { accessor: Some("acc-2".to_owned()), ttl_s: Some(ttl_s), renewable: true }
}

pub fn container(service: &str, state: ContainerState, health: Option<Health>) -> Container {
    Container {
        id: format!("{service}-1-id"),
        name: format!("monky-env-qa-02-{service}-1"),
        service: service.to_owned(),
        image_id: "sha256:b".to_owned(),
        state,
        health,
        probe: None,
        exit_code: 0,
        error: Scrubbed::default(),
        restart_count: 0,
        restart_policy: RestartPolicy::UnlessStopped,
        started_at: "2026-09-21T13:33:20.000000001Z".to_owned(),
        started: Some(NOW.plus_s(100)),
    }
}

pub fn denied() -> BaoFault {
    BaoFault::Denied { detail: said("permission denied") }
}

pub fn sealed() -> BaoFault {
    BaoFault::Unavailable { detail: said("HTTP 503: Vault is sealed") }
}

pub fn status(status: u16, detail: &str) -> CallFault {
    CallFault::Status { status, detail: said(detail), retry_after_s: None }
}

/// Nobody was there, and nothing was sent.
pub fn unreachable() -> CallFault {
    CallFault::Unreachable { detail: said("127.0.0.1:1: connection refused"), never_sent: true }
}

/// The request went out, and no answer came back.
pub fn lost() -> CallFault {
    CallFault::Unreachable { detail: said("127.0.0.1:1: no complete answer within 15 s"), never_sent: false }
}

pub fn refused_run(words: &str) -> RunFault {
    RunFault::Failed { status: Some(18), words: said(words), disk_full: false }
}

pub fn disk_full() -> StoreFault {
    StoreFault { disk_full: true, detail: said("state.json: No space left on device") }
}

/// The answers of a world in which everything goes well and bundle "b", generation 2, is desired.
#[derive(Clone, Debug)]
pub struct Script {
    desired: Desired,
    facts: BundleFacts,
    overrides: BTreeMap<OpName, VecDeque<Event>>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            desired: Desired { desired_sha: Some(sha("b")), hold: None },
            facts: facts("b", 2),
            overrides: BTreeMap::new(),
        }
    }
}

impl Script {
    pub fn desired(mut self, name: &str, generation: i64) -> Script {
        self.desired.desired_sha = Some(sha(name));
        self.facts = facts(name, generation);
        self
    }

    pub fn facts(mut self, change: impl FnOnce(&mut BundleFacts)) -> Script {
        change(&mut self.facts);
        self
    }

    /// The next time that this operation is asked for, it is answered like this.
    pub fn next(mut self, event: Event) -> Script {
        self.overrides.entry(event.answers()).or_default().push_back(event);
        self
    }

    /// So many times.
    pub fn times(mut self, n: usize, event: &Event) -> Script {
        for _ in 0..n {
            self = self.next(event.clone());
        }
        self
    }

    pub fn answer(&mut self, op: &Op) -> Event {
        if let Some(event) = self.overrides.get_mut(&op.name()).and_then(VecDeque::pop_front) {
            return event;
        }
        match op {
            Op::Checkin(_) => Event::CheckedIn(Ok(self.desired.clone())),
            Op::FetchBundle(_) => Event::BundleFetched(Ok(Box::new(self.facts.clone()))),
            Op::ProbeDocker(_) => Event::DockerProbed(Ok(versions())),
            Op::StageBundle(_) => Event::BundleStaged(Ok(())),
            Op::ReadModel(_) => Event::ModelRead(Ok(Model { services: services(), ..Default::default() })),
            Op::LookupToken(_) => Event::TokenLookedUp(Ok(token(3000))),
            Op::RenewToken(_) => Event::TokenRenewed(Ok(token(3600))),
            Op::AskLease(_) => Event::LeaseAnswered(Ok(Lease {
                lease_id: "lease-1".to_owned(),
                role: None,
                expires_at: Some(NOW.plus_s(600)),
            })),
            Op::SaveGrant(_) => Event::GrantSaved(Ok(())),
            Op::DropGrant(_) => Event::GrantDropped(Ok(())),
            Op::Login(_) => Event::LoggedIn(Ok(token(3600))),
            Op::SaveToken(_) => Event::TokenSaved(Ok(())),
            Op::RevokeToken(_) => Event::TokenRevoked(Ok(())),
            Op::ReadSecret(read) => Event::SecretRead(Ok(SecretFacts {
                version: Some(read.version.unwrap_or(2)),
                values: read
                    .wanted
                    .iter()
                    .map(|wanted| match wanted.usage {
                        ValueUse::Env(_) => ValueFact::Text,
                        ValueUse::RegistryAuth => ValueFact::Credential {
                            registry: "registry.example".to_owned(),
                            username: "robot".to_owned(),
                        },
                    })
                    .collect(),
            })),
            Op::WriteRelease(_) => Event::ReleaseWritten(Ok(())),
            Op::CheckCompose(_) => Event::ComposeChecked(Ok(())),
            Op::Pull(_) => Event::Pulled(Ok(RunDone { warnings: Vec::new() })),
            Op::Promote(_) => Event::Promoted(Ok(())),
            Op::Up(_) => Event::CameUp(Ok(RunDone { warnings: Vec::new() })),
            Op::Inspect(_) => {
                Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Healthy))]))
            }
            Op::ReadLogs(logs) => Event::LogsRead(Ok(logs
                .containers
                .iter()
                .map(|(service, _)| LogTail { service: service.clone(), text: said("boot\ncannot open database\n") })
                .collect())),
            Op::WaitUntil(_) => Event::Waited(()),
            Op::SaveState(_) => Event::StateSaved(Ok(())),
            Op::SaveReport(_) => Event::ReportSaved(Ok(())),
            Op::SendReport(_) => Event::ReportSent(Ok(())),
            Op::DropReport(_) => Event::ReportDropped(Ok(())),
            Op::PruneReleases(_) => Event::ReleasesPruned(Ok(())),
            Op::RemoveImages(remove) => Event::ImagesRemoved(Ok(RemovedImages { gone: remove.ids.clone() })),
        }
    }
}

/// What happened in a tick.
pub struct Trace {
    pub text: String,
    pub ops: Vec<Op>,
    pub edges: Vec<(StageName, StageName)>,
    pub notes: Vec<(Level, String)>,
    pub done: Done,
    pub state: State,
}

impl Trace {
    /// How often an operation was asked for.
    pub fn count(&self, name: OpName) -> usize {
        self.ops.iter().filter(|op| op.name() == name).count()
    }

    /// The names of the operations, in order.
    pub fn names(&self) -> Vec<OpName> {
        self.ops.iter().map(Op::name).collect()
    }

    /// The report that was put into the outbox.
    pub fn report(&self) -> Option<&monky_deployd::effects::report::Report> {
        self.ops.iter().find_map(|op| match op {
            Op::SaveReport(save) => Some(&*save.report),
            _ => None,
        })
    }
}

fn compact(op: &Op, before: &State) -> String {
    match op {
        Op::SaveState(save) => {
            // Only what differs from what was saved before: that is what a reviewer has to judge.
            let (old, new) = (serde_json::to_value(before).unwrap(), serde_json::to_value(&*save.state).unwrap());
            let changed: Vec<String> = new
                .as_object()
                .unwrap()
                .iter()
                .filter(|(key, value)| old.get(*key) != Some(value))
                .map(|(key, value)| format!("{key} = {value}"))
                .collect();
            format!("SaveState {{ {} }}", changed.join(", "))
        }
        other => {
            let json = serde_json::to_value(other).unwrap();
            format!("{} {}", other.name().as_str(), json.get("with").cloned().unwrap_or_default())
        }
    }
}

/// Runs a tick of the machine in a scripted world. Each effect takes a second, a wait as long as it asks for.
pub fn run(boot: Boot, mut script: Script) -> Trace {
    let mut now = boot.now;
    let mut trace = Trace {
        text: String::new(),
        ops: Vec::new(),
        edges: Vec::new(),
        notes: Vec::new(),
        done: Done {
            exit: monky_deployd::fsm::stages::Exit::Failed,
            word: "never done".to_owned(),
            sha: None,
            cause: None,
            code: Some(Code::StageFailed),
            detail: String::new(),
        },
        state: boot.state.clone(),
    };
    let mut saved = boot.state.clone();
    let mut transition = Machine::boot(boot);
    for _ in 0..10_000 {
        let Transition { next: machine, effects, notes, taken } = transition;
        trace.edges.extend(taken);
        let to = machine.stage();
        writeln!(trace.text, "{to}").unwrap();
        for note in notes {
            writeln!(trace.text, "  {:?}: {}", note.level, note.text).unwrap();
            trace.notes.push((note.level, note.text));
        }
        for effect in &effects {
            writeln!(trace.text, "  -> {} {}", effect.id.0, compact(&effect.op, &saved)).unwrap();
            if let Op::SaveState(save) = &effect.op {
                saved = (*save.state).clone();
            }
        }
        trace.state = machine.core().state.clone();
        if let Some(done) = machine.done() {
            let sha = done.sha.as_ref().map_or("-".to_owned(), |sha| sha.short().to_string());
            let (word, cause, code) = (&done.word, done.cause, done.code);
            writeln!(trace.text, "  = exit {}: {word} {sha} {cause:?} {code:?}", done.exit.status()).unwrap();
            trace.done = done.clone();
            return trace;
        }
        assert!(!effects.is_empty() || !machine.waiting().is_empty(), "stuck in {to}:\n{}", trace.text);
        let mut inputs = Vec::new();
        for effect in effects {
            now = match &effect.op {
                Op::WaitUntil(wait) => wait.until.max(now),
                _ => now.plus_s(1),
            };
            let event = script.answer(&effect.op);
            inputs.push(Input { now, answers: effect.id, event });
            trace.ops.push(effect.op);
        }
        transition = machine.steps(inputs);
    }
    panic!("no end after 10,000 steps:\n{}", trace.text);
}

pub fn refusal(code: Code) -> Refusal {
    Refusal::new(code, "as the scenario says")
}
