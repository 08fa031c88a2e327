//! The world around the box, small: tenancy, OpenBao and Docker as far as their answers differ.
//!
//! Invariant: without a fault an answer is the truth; a fault is an answer that the real thing gives too.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use monky_deployd::effects::containers::{Container, ContainerState, Health, Probe};
use monky_deployd::effects::failure::{Code, Refusal};
use monky_deployd::effects::manifest::{Entry, Manifest};
use monky_deployd::effects::model::{Model, Service};
use monky_deployd::effects::state::TokenSource;
use monky_deployd::effects::*;

use crate::common::script::{container, denied, facts, lost, said, sealed, sha, status, unreachable, versions};
use crate::disk::Disk;

/// The bundles there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// Generation 1, fine.
    A,
    /// Generation 2, fine.
    B,
    /// No bundle at all.
    Bad,
    /// Generation 3; an image is not to be had.
    NoPull,
    /// Generation 3; never healthy.
    Sick,
    /// Generation 0, fine.
    Old,
}

const NAMES: [Name; 6] = [Name::A, Name::B, Name::Bad, Name::NoPull, Name::Sick, Name::Old];

static SHAS: LazyLock<Vec<(Name, Sha)>> =
    LazyLock::new(|| NAMES.iter().map(|name| (*name, sha(&format!("{name:?}")))).collect());

impl Name {
    pub fn sha(self) -> Sha {
        SHAS.iter().find(|(name, _)| *name == self).unwrap().1.clone()
    }

    pub fn of(sha: &Sha) -> Name {
        SHAS.iter().find(|(_, known)| known == sha).unwrap().0
    }

    pub fn generation(self) -> i64 {
        match self {
            Name::Old => 0,
            Name::A => 1,
            Name::B => 2,
            Name::Bad | Name::NoPull | Name::Sick => 3,
        }
    }
}

/// How a token is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    #[default]
    Dead,
    /// Below `renew_below_s`.
    Short,
    Long,
}

/// What an answer is when it is not the truth, or not the whole of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It never got there.
    Unreachable,
    /// It was done, and the answer was lost.
    Lost,
    Status(u16),
    /// OpenBao is sealed for a moment.
    Sealed,
    Denied,
    Rejected,
    PastMaxTtl,
    /// The saved token dies just now.
    Dies,
    Missing,
    /// No space: not written.
    Full,
    /// Written, and told not to be.
    FullButThere,
    /// Docker's daemon is gone for a moment.
    Daemon,
    Fails,
    /// What Compose resolved is not allowed.
    Refuses,
    /// Compose gives up on a service that waits for one that is unhealthy.
    GivesUp,
    TimedOut,
    /// A container is sick for a moment.
    Unwell,
    /// A container has not made up its mind yet.
    Starting,
}

/// What may go wrong with an operation.
pub fn faults(op: OpName) -> &'static [Fault] {
    use Fault::*;
    match op {
        OpName::Checkin => &[Unreachable, Status(503)],
        OpName::FetchBundle => &[Unreachable, Status(404)],
        OpName::ProbeDocker => &[Daemon],
        OpName::ReadModel => &[Fails, Refuses],
        OpName::CheckCompose => &[Fails],
        OpName::StageBundle | OpName::WriteRelease | OpName::SaveGrant | OpName::DropGrant | OpName::SaveToken => {
            &[Full]
        }
        OpName::Promote | OpName::SaveState | OpName::SaveReport => &[Full, FullButThere],
        OpName::DropReport | OpName::PruneReleases => &[Full],
        OpName::LookupToken => &[Sealed, Dies],
        OpName::RenewToken => &[Sealed, PastMaxTtl],
        OpName::AskLease => &[Unreachable, Lost, Status(429), Status(403)],
        OpName::Login => &[Sealed, Rejected, Denied],
        OpName::RevokeToken => &[Sealed],
        OpName::ReadSecret => &[Sealed, Dies, Denied, Missing],
        OpName::Pull => &[Fails, Daemon],
        OpName::Up => &[Fails, GivesUp, Daemon, TimedOut],
        OpName::Inspect => &[Daemon, Unwell, Starting],
        OpName::ReadLogs => &[Daemon],
        OpName::SendReport => &[Unreachable, Lost, Status(422)],
        OpName::WaitUntil | OpName::RemoveImages => &[],
    }
}

/// The world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub desired: Option<Name>,
    pub hold: bool,
    pub tenancy_up: bool,
    /// Leases granted within the hour.
    pub granted: u8,
    pub bao_up: bool,
    /// The token in `token.json`.
    pub saved: Life,
    pub candidate: Life,
    pub grant_accepted: bool,
    pub docker_up: bool,
    pub pulled: Vec<Name>,
    pub running: Option<Name>,
    pub started: i64,
}

impl World {
    /// Whatever was broken is mended; what is wrong with a bundle stays wrong.
    pub fn mend(&mut self) {
        (self.hold, self.tenancy_up, self.bao_up, self.grant_accepted, self.docker_up) =
            (false, true, true, true, true);
        self.granted = 0;
    }

    fn containers(&self, health: Health, now: Stamp) -> Vec<Container> {
        let Some(_) = self.running else { return Vec::new() };
        let mut web = container("web", ContainerState::Running, Some(health));
        web.started = Some(Stamp(self.started));
        // Another release is another container.
        web.id = format!("web-{}", self.started);
        web.started_at = self.started.to_string();
        if health == Health::Unhealthy {
            // Its check fails every second.
            let streak = 2 + now.since_ms(Stamp(self.started)).unsigned_abs() / 1000;
            web.probe = Some(Probe { exit_code: 1, said: said("no"), streak, retries: 2 });
        }
        vec![web]
    }
}

fn gone() -> RunFault {
    RunFault::Unavailable { detail: said("no daemon") }
}

fn failed() -> RunFault {
    RunFault::Failed { status: Some(1), words: said("no"), disk_full: false }
}

fn gives_up() -> RunFault {
    let words = said("dependency failed to start: container monky-env-qa-02-web-1 is unhealthy");
    RunFault::Failed { status: Some(1), words, disk_full: false }
}

fn bundle(name: Name) -> Result<Box<BundleFacts>, BundleFault> {
    if name == Name::Bad {
        return Err(BundleFault::Refused(Refusal::new(Code::BundleInvalid, "no compose.yaml")));
    }
    Ok(fine_bundle(name))
}

/// The facts of a bundle that is not refused.
pub fn fine_bundle(name: Name) -> Box<BundleFacts> {
    let mut facts = facts("b", name.generation());
    facts.content_sha = name.sha();
    facts.header_sha = None;
    facts.template = None;
    let usage = ValueUse::Env("DB".to_owned());
    let entry = Entry { usage, path: "monky/env-qa-02/db".to_owned(), key: "value".to_owned(), version: None };
    facts.manifest = Ok(Manifest { entries: vec![entry] });
    Box::new(facts)
}

fn written(fault: Option<Fault>) -> Result<(), StoreFault> {
    match fault {
        Some(Fault::Full | Fault::FullButThere) => Err(StoreFault { disk_full: true, detail: said("full") }),
        _ => Ok(()),
    }
}

/// Carries an operation out, or not, and answers.
pub fn perform(world: &mut World, disk: &mut Arc<Disk>, op: &Op, fault: Option<Fault>, now: Stamp) -> Event {
    let event = answer(world, disk, op, fault, now);
    let there = match &event {
        Event::BundleStaged(done)
        | Event::GrantSaved(done)
        | Event::GrantDropped(done)
        | Event::TokenSaved(done)
        | Event::ReleaseWritten(done)
        | Event::Promoted(done)
        | Event::StateSaved(done)
        | Event::ReportSaved(done)
        | Event::ReportDropped(done)
        | Event::ReleasesPruned(done) => done.is_ok() || fault == Some(Fault::FullButThere),
        _ => false,
    };
    if there {
        Arc::make_mut(disk).done(op);
    }
    event
}

fn answer(world: &mut World, disk: &Disk, op: &Op, fault: Option<Fault>, now: Stamp) -> Event {
    let call_fault = match fault {
        Some(Fault::Unreachable) => Some(unreachable()),
        Some(Fault::Lost) => Some(lost()),
        Some(Fault::Status(code)) => Some(status(code, "no")),
        _ if !world.tenancy_up => Some(unreachable()),
        _ => None,
    };
    let run_fault = match fault {
        Some(Fault::Daemon) => Some(gone()),
        Some(Fault::Fails) => Some(failed()),
        Some(Fault::GivesUp) => Some(gives_up()),
        Some(Fault::TimedOut) => Some(RunFault::TimedOut { after_s: 300, words: said("") }),
        _ if !world.docker_up => Some(gone()),
        _ => None,
    };
    if fault == Some(Fault::Dies) {
        world.saved = Life::Dead;
    }
    let bao_fault = match fault {
        Some(Fault::Sealed) => Some(sealed()),
        Some(Fault::Denied) => Some(denied()),
        Some(Fault::Rejected) => Some(BaoFault::Rejected { detail: said("no") }),
        Some(Fault::PastMaxTtl) => Some(BaoFault::PastMaxTtl),
        _ if !world.bao_up => Some(sealed()),
        _ => None,
    };
    let token = |life: Life| match life {
        Life::Dead => Err(denied()),
        Life::Short => Ok(TokenFacts { accessor: None, ttl_s: Some(300), renewable: true }),
        Life::Long => Ok(TokenFacts { accessor: None, ttl_s: Some(3000), renewable: true }),
    };
    let run = |fault: Option<RunFault>| fault.map_or(Ok(RunDone { warnings: Vec::new() }), Err);
    match op {
        Op::Checkin(_) => {
            let hold = world.hold.then(|| "hold".to_owned());
            let desired = Desired { desired_sha: world.desired.map(Name::sha), hold };
            Event::CheckedIn(call_fault.map_or(Ok(desired), Err))
        }
        Op::FetchBundle(fetch) => Event::BundleFetched(match call_fault {
            Some(fault) => Err(BundleFault::Call(fault)),
            None => bundle(Name::of(&fetch.sha)),
        }),
        Op::ProbeDocker(_) => Event::DockerProbed(run_fault.map_or(Ok(versions()), Err)),
        Op::ReadModel(_) => {
            let web = Service { scale: 1, ..Service::default() };
            let model = Model { services: BTreeMap::from([("web".to_owned(), web)]), ..Model::default() };
            let refusal = || Refusal::new(Code::PolicyRefused, "services.web: privileged");
            Event::ModelRead(match run_fault {
                Some(fault) => Err(ComposeFault::Run(fault)),
                None if fault == Some(Fault::Refuses) => Err(ComposeFault::Refused(refusal())),
                None => Ok(model),
            })
        }
        Op::LookupToken(lookup) => {
            let life = match lookup.token {
                TokenName::Saved => world.saved,
                TokenName::Candidate => world.candidate,
            };
            Event::TokenLookedUp(bao_fault.map_or(token(life), Err))
        }
        Op::RenewToken(_) => {
            let renewed = bao_fault.map_or(token(world.saved), Err);
            if renewed.is_ok() {
                world.saved = Life::Long;
            }
            Event::TokenRenewed(renewed.and(token(world.saved)))
        }
        Op::AskLease(_) => {
            let lease = Lease { lease_id: "lease".to_owned(), role: None, expires_at: Some(now.plus_s(600)) };
            let full = world.granted >= 5;
            if !full && (call_fault.is_none() || fault == Some(Fault::Lost)) {
                world.granted += 1;
            }
            let limited = full.then(|| status(429, "LEASE_RATE_LIMITED"));
            Event::LeaseAnswered(call_fault.or(limited).map_or(Ok(lease), |fault| Err(LeaseFault::Call(fault))))
        }
        Op::Login(login) => {
            let accepted = login.grant == GrantName::Bootstrap || world.grant_accepted;
            let rejected = (!accepted).then(|| BaoFault::Rejected { detail: said("no") });
            let logged_in = bao_fault.or(rejected).map_or(token(Life::Long), Err);
            if logged_in.is_ok() {
                world.candidate = Life::Long;
            }
            Event::LoggedIn(logged_in)
        }
        Op::SaveToken(_) => {
            let saved = written(fault);
            if saved.is_ok() {
                world.saved = world.candidate;
            }
            Event::TokenSaved(saved)
        }
        Op::RevokeToken(_) => Event::TokenRevoked(bao_fault.map_or(Ok(()), Err)),
        Op::ReadSecret(_) => Event::SecretRead(match (fault, bao_fault) {
            (Some(Fault::Missing), _) => Err(SecretFault::Missing),
            (_, Some(fault)) => Err(SecretFault::Bao(fault)),
            (_, None) if world.saved == Life::Dead || disk.token.is_none() => Err(SecretFault::Bao(denied())),
            (_, None) => Ok(SecretFacts { version: Some(1), values: vec![ValueFact::Text] }),
        }),
        Op::CheckCompose(_) => Event::ComposeChecked(run_fault.map_or(Ok(()), |fault| Err(ComposeFault::Run(fault)))),
        Op::Pull(pull) => {
            let name = Name::of(&pull.sha);
            let pulled = run(run_fault.or((name == Name::NoPull).then(failed)));
            if pulled.is_ok() && !world.pulled.contains(&name) {
                world.pulled.push(name);
                world.pulled.sort();
            }
            Event::Pulled(pulled)
        }
        Op::Up(up) => {
            // Whatever goes wrong, something was touched by then; without a daemon, nothing was.
            if world.docker_up && fault != Some(Fault::Daemon) && world.running != Some(Name::of(&up.sha)) {
                world.running = Some(Name::of(&up.sha));
                world.started = now.0;
            }
            Event::CameUp(run(run_fault))
        }
        Op::Inspect(_) => Event::Inspected(match (run_fault, fault) {
            (Some(fault), _) => Err(fault),
            (None, Some(Fault::Unwell)) => Ok(world.containers(Health::Unhealthy, now)),
            (None, Some(Fault::Starting)) => Ok(world.containers(Health::Starting, now)),
            (None, _) if world.running == Some(Name::Sick) => Ok(world.containers(Health::Unhealthy, now)),
            (None, _) => Ok(world.containers(Health::Healthy, now)),
        }),
        Op::ReadLogs(_) => Event::LogsRead(run_fault.map_or(Ok(Vec::new()), Err)),
        Op::SendReport(_) => Event::ReportSent(call_fault.map_or(Ok(()), Err)),
        Op::WaitUntil(_) => Event::Waited(()),
        Op::RemoveImages(remove) => Event::ImagesRemoved(Ok(RemovedImages { gone: remove.ids.clone() })),
        Op::StageBundle(_) => Event::BundleStaged(written(fault)),
        Op::SaveGrant(_) => Event::GrantSaved(written(fault)),
        Op::DropGrant(_) => Event::GrantDropped(written(fault)),
        Op::WriteRelease(_) => Event::ReleaseWritten(written(fault)),
        Op::Promote(_) => Event::Promoted(written(fault)),
        Op::SaveState(_) => Event::StateSaved(written(fault)),
        Op::SaveReport(_) => Event::ReportSaved(written(fault)),
        Op::DropReport(_) => Event::ReportDropped(written(fault)),
        Op::PruneReleases(_) => Event::ReleasesPruned(written(fault)),
    }
}

/// Whether OpenBao would say of the saved token that it lives long enough, and it was leased.
pub fn valid_lease_token(world: &World, disk: &Disk) -> bool {
    world.saved == Life::Long && disk.token == Some(TokenSource::Lease)
}
