//! Random worlds from a tape of bytes: what a byte picks is the same on every run, and 0 is "all goes well".
//!
//! Invariant: every answer that the table of operations allows can be picked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use monky_deployd::effects::containers::{Container, ContainerState, Health, Probe, RestartPolicy};
use monky_deployd::effects::failure::{Code, Refusal};
use monky_deployd::effects::meta::Meta;
use monky_deployd::effects::model::{Model, Service};
use monky_deployd::effects::report::{Outcome, Report};
use monky_deployd::effects::state::*;
use monky_deployd::effects::*;
use monky_deployd::fsm::{Boot, Input, Options};

use crate::common::script::*;
use crate::disk::Disk;

/// Bytes that choose; when they are used up, all goes well.
pub struct Tape {
    bytes: Vec<u8>,
    at: usize,
}

impl Tape {
    pub fn new(bytes: Vec<u8>) -> Tape {
        Tape { bytes, at: 0 }
    }

    pub fn over(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number below `n`.
    pub fn pick(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Once in so many times, never when the tape is over.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.pick(all.len())].clone()
    }
}

const NAMES: [&str; 4] = ["b", "a", "c", "old"];

pub fn a_sha(tape: &mut Tape) -> Sha {
    sha(tape.of(&NAMES))
}

pub fn a_moment(tape: &mut Tape) -> Stamp {
    NOW.plus_s(tape.of(&[-60, 0, 60, -7200, 7200, -315_360_000, 315_360_000]))
}

fn words(tape: &mut Tape) -> Scrubbed {
    let gives_up = "dependency failed to start: container monky-env-qa-02-db-1 is unhealthy";
    said(tape.of(&[
        "no",
        gives_up,
        "",
        "line one\nline two",
        "ÄÖÜ — …",
        "a rather long sentence, and then some more of it",
    ]))
}

fn code(tape: &mut Tape) -> Code {
    tape.of(Code::ALL)
}

pub fn a_refusal(tape: &mut Tape) -> Refusal {
    let codes = [
        Code::BundleInvalid,
        Code::BundleShaMismatch,
        Code::EnvMismatch,
        Code::AgentTooOld,
        Code::ManifestInvalid,
        Code::ManifestPath,
        Code::EnvUnresolved,
        Code::ComposeRefused,
    ];
    Refusal::new(tape.of(&codes), "as the tape says")
}

pub fn a_call_fault(tape: &mut Tape) -> CallFault {
    let status = tape.of(&[429, 503, 404, 401, 403, 400, 409, 500, 502, 422]);
    match tape.pick(3) {
        0 => CallFault::Unreachable { detail: words(tape), never_sent: tape.of(&[false, true]) },
        1 => {
            CallFault::Status { status, detail: words(tape), retry_after_s: tape.of(&[None, Some(30), Some(u32::MAX)]) }
        }
        _ => CallFault::Nonsense { detail: words(tape) },
    }
}

pub fn a_bao_fault(tape: &mut Tape) -> BaoFault {
    let detail = words(tape);
    match tape.pick(5) {
        0 => BaoFault::Unavailable { detail },
        1 => BaoFault::Denied { detail },
        2 => BaoFault::Rejected { detail },
        3 => BaoFault::NotFound { detail },
        _ => BaoFault::PastMaxTtl,
    }
}

pub fn a_run_fault(tape: &mut Tape) -> RunFault {
    match tape.pick(3) {
        0 => RunFault::Unavailable { detail: words(tape) },
        1 => RunFault::TimedOut { after_s: 600, words: words(tape) },
        _ => RunFault::Failed { status: tape.of(&[None, Some(1)]), words: words(tape), disk_full: tape.one_in(2) },
    }
}

fn a_store_fault(tape: &mut Tape) -> StoreFault {
    StoreFault { disk_full: tape.one_in(2), detail: words(tape) }
}

fn ok_or<T, E>(tape: &mut Tape, ok: impl FnOnce(&mut Tape) -> T, err: impl FnOnce(&mut Tape) -> E) -> Result<T, E> {
    if tape.one_in(5) { Err(err(tape)) } else { Ok(ok(tape)) }
}

pub fn a_token(tape: &mut Tape) -> TokenFacts {
    TokenFacts {
        accessor: tape.of(&[Some("acc".to_owned()), None]),
        ttl_s: tape.of(&[Some(3000), None, Some(600), Some(601), Some(5), Some(0), Some(u64::MAX)]),
        renewable: !tape.one_in(3),
    }
}

pub fn a_container(tape: &mut Tape) -> Container {
    let service = tape.of(&["web", "db", ""]);
    let state = tape.of(&[
        ContainerState::Running,
        ContainerState::Exited,
        ContainerState::Created,
        ContainerState::Restarting,
        ContainerState::Paused,
        ContainerState::Dead,
        ContainerState::Removing,
    ]);
    let health = tape.of(&[Some(Health::Healthy), None, Some(Health::Starting), Some(Health::Unhealthy)]);
    let mut container = container(service, state, health);
    container.id = format!("{service}-{}", tape.pick(2));
    let probe = |streak, exit_code| Some(Probe { exit_code, said: said("no route to host"), streak, retries: 2 });
    container.probe = tape.of(&[None, probe(0, 0), probe(1, 1), probe(3, -1)]);
    container.exit_code = tape.of(&[0, 7, 137]);
    container.error = tape.of(&[said(""), said("no such file")]);
    container.restart_count = tape.of(&[0, 0, 0, 3]);
    container.restart_policy =
        tape.of(&[RestartPolicy::UnlessStopped, RestartPolicy::No, RestartPolicy::OnFailure, RestartPolicy::Always]);
    container.started_at = tape.of(&["t1", "t1", "t1", "t2"]).to_owned();
    container.started = tape.of(&[Some(NOW), None, Some(NOW.plus_s(-9000))]);
    container
}

pub fn some_facts(tape: &mut Tape, sha: &Sha) -> BundleFacts {
    let mut facts = facts("b", 2);
    facts.content_sha = if tape.one_in(12) { a_sha(tape) } else { sha.clone() };
    facts.header_sha = tape.of(&[None, Some("nonsense".to_owned())]);
    facts.meta.generation = tape.of(&[Some(2), None, Some(0), Some(3), Some(i64::MAX), Some(i64::MIN)]);
    facts.meta.agent.allow_rollback = tape.one_in(4);
    facts.meta.agent.on_unhealthy = tape.of(&[None, Some(OnUnhealthy::Rollback), Some(OnUnhealthy::Keep)]);
    facts.meta.agent.healthy_timeout_s = tape.of(&[None, Some(0), Some(7)]);
    facts.meta.agent.min_version = tape.of(&[None, None, None, Some("99.0".to_owned()), Some("x".to_owned())]);
    if tape.one_in(12) {
        facts.meta = Meta { env_id: "another".to_owned(), ..facts.meta };
    }
    if tape.one_in(8) {
        facts.manifest = if tape.one_in(2) { Err(a_refusal(tape)) } else { Ok(Default::default()) };
    }
    if tape.one_in(8) {
        facts.template = tape.of(&[None, Some(Ok(vec!["NOBODY".to_owned()]))]);
    }
    if tape.one_in(12) {
        facts.compose = Err(a_refusal(tape));
    }
    facts
}

/// Some answer to this operation.
pub fn some_event(tape: &mut Tape, op: &Op) -> Event {
    match op {
        Op::Checkin(_) => Event::CheckedIn(ok_or(
            tape,
            |tape| Desired {
                desired_sha: if tape.one_in(8) { None } else { Some(a_sha(tape)) },
                hold: if tape.one_in(8) { Some("hold".to_owned()) } else { None },
            },
            a_call_fault,
        )),
        Op::FetchBundle(fetch) => Event::BundleFetched(ok_or(
            tape,
            |tape| Box::new(some_facts(tape, &fetch.sha)),
            |tape| match tape.pick(2) {
                0 => BundleFault::Call(a_call_fault(tape)),
                _ => BundleFault::Refused(a_refusal(tape)),
            },
        )),
        Op::ProbeDocker(_) => Event::DockerProbed(ok_or(
            tape,
            |tape| DockerVersions {
                engine: "20.10".to_owned(),
                compose: tape.of(&["2.26.1", "2.26.1", "2.26.1", "2.20.9", "?"]).to_owned(),
            },
            a_run_fault,
        )),
        Op::StageBundle(_) => Event::BundleStaged(ok_or(tape, |_| (), a_store_fault)),
        Op::ReadModel(_) => Event::ModelRead(ok_or(
            tape,
            |tape| {
                let service = |scale| Service { mounts: Some("d".to_owned()), scale, ..Service::default() };
                let mut services = BTreeMap::from([("web".to_owned(), service(1))]);
                if tape.one_in(3) {
                    services.insert("db".to_owned(), service(tape.of(&[1, 0, 2])));
                }
                let demand = policy::Demand {
                    rule: tape.of(policy::Rule::ALL),
                    service: "web".to_owned(),
                    key: "services.web.x".to_owned(),
                    what: "is true".to_owned(),
                    path: tape.of(&[None, Some("/srv/x".to_owned())]),
                };
                let demands = if tape.one_in(3) { vec![demand] } else { Vec::new() };
                Model { services, warnings: tape.of(&[Vec::new(), vec!["w".to_owned()]]), demands, ..Model::default() }
            },
            |tape| match tape.pick(2) {
                0 => ComposeFault::Run(a_run_fault(tape)),
                _ => ComposeFault::Refused(a_refusal(tape)),
            },
        )),
        Op::LookupToken(_) => Event::TokenLookedUp(ok_or(tape, a_token, a_bao_fault)),
        Op::RenewToken(_) => Event::TokenRenewed(ok_or(tape, a_token, a_bao_fault)),
        Op::AskLease(_) => Event::LeaseAnswered(ok_or(
            tape,
            |tape| Lease {
                lease_id: "lease".to_owned(),
                role: tape.of(&[None, Some("role".to_owned())]),
                expires_at: tape.of(&[Some(NOW.plus_s(600)), None, Some(NOW.plus_s(-600))]),
            },
            |tape| match tape.pick(4) {
                0 => LeaseFault::Legacy("approle".to_owned()),
                _ => LeaseFault::Call(a_call_fault(tape)),
            },
        )),
        Op::SaveGrant(_) => Event::GrantSaved(ok_or(tape, |_| (), a_store_fault)),
        Op::DropGrant(_) => Event::GrantDropped(ok_or(tape, |_| (), a_store_fault)),
        Op::Login(_) => Event::LoggedIn(ok_or(tape, a_token, a_bao_fault)),
        Op::SaveToken(_) => Event::TokenSaved(ok_or(tape, |_| (), a_store_fault)),
        Op::RevokeToken(_) => Event::TokenRevoked(ok_or(tape, |_| (), a_bao_fault)),
        Op::ReadSecret(read) => Event::SecretRead(ok_or(
            tape,
            |tape| SecretFacts {
                version: if tape.one_in(20) { None } else { Some(read.version.unwrap_or(2)) },
                values: read
                    .wanted
                    .iter()
                    .map(|wanted| match (&wanted.usage, tape.pick(16)) {
                        (_, 13) => ValueFact::Absent,
                        (_, 14) => ValueFact::Unfit { why: "a number".to_owned() },
                        (_, 15) => ValueFact::NoCredential { why: "no colon".to_owned() },
                        (ValueUse::Env(_), _) => ValueFact::Text,
                        (ValueUse::RegistryAuth, _) => ValueFact::Credential {
                            registry: "registry.example".to_owned(),
                            username: "robot".to_owned(),
                        },
                    })
                    .collect(),
            },
            |tape| match tape.pick(4) {
                0 => SecretFault::Missing,
                1 => SecretFault::Deleted("deleted".to_owned()),
                2 => SecretFault::Bao(denied()),
                _ => SecretFault::Bao(a_bao_fault(tape)),
            },
        )),
        Op::WriteRelease(_) => Event::ReleaseWritten(ok_or(tape, |_| (), a_store_fault)),
        // What is refused is refused by the model, before a lease; the gate only fails.
        Op::CheckCompose(_) => Event::ComposeChecked(ok_or(tape, |_| (), |tape| ComposeFault::Run(a_run_fault(tape)))),
        Op::Pull(_) => Event::Pulled(ok_or(tape, |tape| RunDone { warnings: vec![words(tape)] }, a_run_fault)),
        Op::Promote(_) => Event::Promoted(ok_or(tape, |_| (), a_store_fault)),
        Op::Up(_) => Event::CameUp(ok_or(tape, |tape| RunDone { warnings: vec![words(tape)] }, a_run_fault)),
        Op::Inspect(_) => Event::Inspected(ok_or(
            tape,
            |tape| {
                if tape.one_in(2) {
                    let n = tape.pick(4);
                    return (0..n).map(|_| a_container(tape)).collect();
                }
                let fine = |service| container(service, ContainerState::Running, Some(Health::Healthy));
                vec![fine("web"), fine("db")]
            },
            a_run_fault,
        )),
        Op::ReadLogs(_) => Event::LogsRead(ok_or(
            tape,
            |tape| vec![LogTail { service: "web".to_owned(), text: words(tape) }],
            a_run_fault,
        )),
        Op::WaitUntil(_) => Event::Waited(()),
        Op::SaveState(_) => Event::StateSaved(ok_or(tape, |_| (), a_store_fault)),
        Op::SaveReport(_) => Event::ReportSaved(ok_or(tape, |_| (), a_store_fault)),
        Op::SendReport(_) => Event::ReportSent(ok_or(tape, |_| (), a_call_fault)),
        Op::DropReport(_) => Event::ReportDropped(ok_or(tape, |_| (), a_store_fault)),
        Op::PruneReleases(_) => Event::ReleasesPruned(ok_or(tape, |_| (), a_store_fault)),
        Op::RemoveImages(remove) => {
            Event::ImagesRemoved(ok_or(tape, |_| RemovedImages { gone: remove.ids.clone() }, a_run_fault))
        }
    }
}

/// Some operation, to have an answer that nobody asked for.
pub fn some_op(tape: &mut Tape) -> Op {
    let sha = a_sha(tape);
    match tape.pick(12) {
        0 => Op::ProbeDocker(ProbeDocker {}),
        1 => Op::FetchBundle(FetchBundle { sha }),
        2 => Op::LookupToken(LookupToken { token: TokenName::Saved }),
        3 => Op::AskLease(AskLease {}),
        4 => Op::Login(Login { grant: GrantName::Lease, role: "r".to_owned() }),
        5 => Op::ReadSecret(ReadSecret { path: "monky/x/y".to_owned(), version: None, wanted: Vec::new() }),
        6 => Op::Pull(Pull { sha, timeout_s: 1 }),
        7 => Op::Promote(Promote { sha }),
        8 => Op::Up(Up { sha, timeout_s: 1 }),
        9 => Op::Inspect(Inspect {}),
        10 => Op::SaveState(SaveState { state: Arc::default() }),
        _ => Op::SendReport(SendReport { report_id: "r".to_owned() }),
    }
}

fn an_error(tape: &mut Tape) -> LastError {
    LastError { code: code(tape), phase: "up".to_owned(), detail: "d".to_owned(), at: a_moment(tape) }
}

fn a_report(tape: &mut Tape) -> Report {
    Report {
        report_id: format!("{:032x}", tape.byte()),
        result: tape.of(&[Outcome::Applied, Outcome::Failed]),
        sha: a_sha(tape),
        code: None,
        detail: None,
        phase: "pull".to_owned(),
        attempt: 1,
        rolled_back: false,
        duration_ms: 5,
        at: a_moment(tape),
        agent_version: "0.2.0".to_owned(),
        containers: Vec::new(),
    }
}

fn a_goal(tape: &mut Tape) -> Goal {
    let instead_of = tape.one_in(2).then(|| {
        Box::new(FailedDeploy {
            sha: a_sha(tape),
            attempt: 1,
            cause: Cause::NewSha,
            since: a_moment(tape),
            error: an_error(tape),
        })
    });
    Goal {
        sha: a_sha(tape),
        generation: tape.of(&[None, Some(1)]),
        attempt: tape.of(&[1, 9, u32::MAX]),
        cause: Cause::NewSha,
        since: a_moment(tape),
        services: services(),
        secrets: BTreeMap::new(),
        on_unhealthy: tape.of(&[OnUnhealthy::Keep, OnUnhealthy::Rollback]),
        healthy_timeout_s: tape.of(&[300, 0, 3600]),
        instead_of,
    }
}

/// Some box, consistent or not.
pub fn some_disk(tape: &mut Tape) -> Disk {
    let mut disk = Disk::default();
    let Disk { state, token, grant, bootstrap, releases, current, outbox } = &mut disk;
    for name in ["old", "a"] {
        if !tape.one_in(2) {
            let generation = tape.of(&[Some(1), None, Some(3)]);
            let services = services();
            state.good.push(Applied { at: a_moment(tape), services, ..applied(name, generation) });
            state.promotions.push(Promotion { sha: sha(name), at: a_moment(tape) });
            releases.insert(sha(name), true);
            *current = Some(sha(name));
        }
    }
    *token = tape.of(&[Some(TokenSource::Lease), None, Some(TokenSource::Bootstrap)]);
    if tape.one_in(3) {
        *grant = Some(GrantFacts { expires_at: maybe_a_moment(tape), role: None });
    }
    *bootstrap = tape.one_in(4);
    if tape.one_in(4) {
        state.unfinished = Some(a_goal(tape));
        releases.insert(a_sha(tape), true);
        *current = Some(a_sha(tape));
    }
    if tape.one_in(3) {
        let source = token.unwrap_or(TokenSource::Lease);
        state.token = Some(TokenRecord {
            source,
            accessor: None,
            seen_at: a_moment(tape),
            ttl_s: tape.of(&[Some(700), None, Some(u64::MAX)]),
            renewable: !tape.one_in(2),
        });
    }
    for _ in 0..tape.pick(7) {
        state.leases.push(a_moment(tape));
    }
    if tape.one_in(4) {
        state.lease_not_before = Some(a_moment(tape));
    }
    for _ in 0..tape.pick(3) {
        let tried =
            Attempts { count: tape.of(&[1, 4, u32::MAX]), next_at: maybe_a_moment(tape), quarantined: tape.one_in(3) };
        state.attempts.insert(a_sha(tape), tried);
    }
    if tape.one_in(4) {
        state.outcome = Some(a_report(tape));
    }
    if tape.one_in(4) {
        state.trouble = Some(an_error(tape));
    }
    state.in_doubt = tape.one_in(4);
    state.images = tape.of(&[BTreeSet::new(), BTreeSet::from(["sha256:x".to_owned()])]);
    for _ in 0..tape.pick(3) {
        outbox.push(a_report(tape));
    }
    outbox.dedup_by(|a, b| a.report_id == b.report_id);
    disk
}

fn maybe_a_moment(tape: &mut Tape) -> Option<Stamp> {
    if tape.one_in(2) { Some(a_moment(tape)) } else { None }
}

/// A tick on this box.
pub fn boot_on(disk: &Disk, options: Options, on_unhealthy: OnUnhealthy, now: Stamp) -> Boot {
    let settings = Settings { on_unhealthy, ..settings() };
    Boot { settings, options, state: disk.state.clone(), local: disk.local(), seed: 7, now }
}

/// Some tick.
pub fn some_boot(tape: &mut Tape) -> Boot {
    let disk = some_disk(tape);
    let options = Options { force: tape.one_in(4), prune: tape.one_in(4) };
    let on_unhealthy = tape.of(&[OnUnhealthy::Keep, OnUnhealthy::Rollback]);
    let mut boot = boot_on(&disk, options, on_unhealthy, NOW);
    boot.settings.laptop_mode = tape.one_in(4);
    boot.settings.keep_releases = tape.of(&[3, 0, 1]);
    boot.settings.renew_below_s = tape.of(&[600, 0, u64::MAX]);
    boot.settings.stable_s = tape.of(&[5, 0, u64::MAX]);
    if tape.one_in(3) {
        let stance = tape.of(&[policy::Stance::Allow, policy::Stance::Warn, policy::Stance::Refuse]);
        boot.settings.policy.rules.insert(tape.of(policy::Rule::ALL), stance);
        boot.settings.policy.bind_roots = tape.of(&[Vec::new(), vec!["/srv".to_owned()]]);
    }
    boot
}

/// The answer to an effect, later by what it takes.
pub fn input(effect: &Effect, event: Event, now: &mut Stamp) -> Input {
    *now = match &effect.op {
        Op::WaitUntil(wait) => wait.until.max(*now),
        _ => now.plus_s(1),
    };
    Input { now: *now, answers: effect.id, event }
}
