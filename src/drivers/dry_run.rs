//! The dry run: the same machine, in a world of which only the reading half is real.
//!
//! Invariant: nothing that anyone owns changes. Effects that read are carried out, in a scratch folder where a file is
//! needed; the others are answered as if they had gone well.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Driver;
use crate::effects::containers::{Container, ContainerState, Health, RestartPolicy};
use crate::effects::model::Service;
use crate::effects::state::State;
use crate::effects::{
    Effect, Event, Kind, Lease, Op, RemovedImages, RunDone, Scrubbed, SecretFacts, Stamp, TokenFacts, TokenName,
    ValueFact, ValueUse,
};

/// Carries out what reads, and answers the rest.
pub struct DryRun<W> {
    /// The real world, on a scratch state directory.
    world: W,
    pretended: Mutex<Pretended>,
}

/// What the world would be like by now.
#[derive(Default)]
struct Pretended {
    /// There would be another token than the real one.
    token: bool,
    /// These services would be up and healthy.
    up: bool,
    services: BTreeMap<String, Service>,
    /// Nobody waits in a plan, but for the machine the time that it waited for has passed.
    waited: Stamp,
}

impl Pretended {
    /// A release that is on its way up, whether in this tick or in one that was interrupted, would be up with these.
    fn promises(&mut self, state: &State) {
        if let Some(goal) = &state.unfinished {
            self.services = goal.services.clone();
        }
    }
}

impl<W: Driver> DryRun<W> {
    /// A dry run from this state, in a world whose state directory is a scratch folder.
    pub fn new(scratch: W, state: &State) -> DryRun<W> {
        let mut pretended = Pretended::default();
        pretended.promises(state);
        DryRun { world: scratch, pretended: Mutex::new(pretended) }
    }

    fn pretended(&self) -> MutexGuard<'_, Pretended> {
        self.pretended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an effect is carried out, and not only answered.
    fn is_real(pretended: &Pretended, op: &Op) -> bool {
        match op {
            // Unpacked where it hurts nobody, so that Compose can read it.
            Op::StageBundle(_) => true,
            Op::LookupToken(lookup) => lookup.token == TokenName::Saved && !pretended.token,
            Op::Inspect(_) => !pretended.up,
            // Logging in nowhere includes not using a token to read.
            Op::ReadSecret(_) | Op::ReadLogs(_) => false,
            other => other.name().kind() == Kind::Read,
        }
    }

    fn answer(&self, effect: &Effect) -> Event {
        let real = Self::is_real(&self.pretended(), &effect.op);
        let event = if real { self.one(effect) } else { self.pretend(&effect.op) };
        let mut pretended = self.pretended();
        match &effect.op {
            Op::SaveState(save) => pretended.promises(&save.state),
            Op::WaitUntil(wait) => pretended.waited = pretended.waited.max(wait.until),
            _ => {}
        }
        match &event {
            Event::ModelRead(Ok(model)) => pretended.services = model.services.clone(),
            Event::LoggedIn(Ok(_)) => pretended.token = true,
            Event::CameUp(Ok(_)) => pretended.up = true,
            _ => {}
        }
        event
    }

    fn one(&self, effect: &Effect) -> Event {
        self.world.perform(std::slice::from_ref(effect)).pop().unwrap_or_else(|| self.pretend(&effect.op))
    }

    fn pretend(&self, op: &Op) -> Event {
        let now = self.now();
        well(op, &self.pretended().services, now)
    }
}

/// The answer to an effect if all goes well. `services` are those that would be up.
///
/// Reading effects have no such answer that could be known; theirs are never asked for, but for those of
/// `DryRun::is_real` that depend on what was pretended before.
pub fn well(op: &Op, services: &BTreeMap<String, Service>, now: Stamp) -> Event {
    let token = || TokenFacts { accessor: None, ttl_s: None, renewable: false };
    let unknown = || crate::effects::CallFault::Nonsense { detail: Scrubbed::default() };
    let done = || RunDone { warnings: Vec::new() };
    match op {
        Op::Checkin(_) => Event::CheckedIn(Err(unknown())),
        Op::FetchBundle(_) => Event::BundleFetched(Err(crate::effects::BundleFault::Call(unknown()))),
        Op::ProbeDocker(_) => Event::DockerProbed(Err(no_run())),
        Op::StageBundle(_) => Event::BundleStaged(Ok(())),
        Op::ReadModel(_) => Event::ModelRead(Err(crate::effects::ComposeFault::Run(no_run()))),
        Op::LookupToken(_) => Event::TokenLookedUp(Ok(token())),
        Op::RenewToken(_) => Event::TokenRenewed(Ok(token())),
        Op::AskLease(_) => {
            Event::LeaseAnswered(Ok(Lease { lease_id: "not asked for".to_owned(), role: None, expires_at: None }))
        }
        Op::SaveGrant(_) => Event::GrantSaved(Ok(())),
        Op::DropGrant(_) => Event::GrantDropped(Ok(())),
        Op::Login(_) => Event::LoggedIn(Ok(token())),
        Op::SaveToken(_) => Event::TokenSaved(Ok(())),
        Op::RevokeToken(_) => Event::TokenRevoked(Ok(())),
        Op::ReadSecret(read) => {
            let fact = |usage: &ValueUse| match usage {
                ValueUse::Env(_) => ValueFact::Text,
                ValueUse::RegistryAuth => {
                    ValueFact::Credential { registry: "not read".to_owned(), username: "not read".to_owned() }
                }
            };
            let values = read.wanted.iter().map(|wanted| fact(&wanted.usage)).collect();
            Event::SecretRead(Ok(SecretFacts { version: Some(read.version.unwrap_or(0)), values }))
        }
        Op::WriteRelease(_) => Event::ReleaseWritten(Ok(())),
        Op::CheckCompose(_) => Event::ComposeChecked(Ok(())),
        Op::Pull(_) => Event::Pulled(Ok(done())),
        Op::Promote(_) => Event::Promoted(Ok(())),
        Op::Up(_) => Event::CameUp(Ok(done())),
        Op::Inspect(_) => Event::Inspected(Ok(services.iter().flat_map(|(name, s)| healthy(name, s, now)).collect())),
        Op::ReadLogs(_) => Event::LogsRead(Ok(Vec::new())),
        Op::WaitUntil(_) => Event::Waited(()),
        Op::SaveState(_) => Event::StateSaved(Ok(())),
        Op::SaveReport(_) => Event::ReportSaved(Ok(())),
        Op::SendReport(_) => Event::ReportSent(Ok(())),
        Op::DropReport(_) => Event::ReportDropped(Ok(())),
        Op::PruneReleases(_) => Event::ReleasesPruned(Ok(())),
        Op::RemoveImages(remove) => Event::ImagesRemoved(Ok(RemovedImages { gone: remove.ids.clone() })),
    }
}

fn no_run() -> crate::effects::RunFault {
    crate::effects::RunFault::Unavailable { detail: Scrubbed::default() }
}

fn healthy(name: &str, service: &Service, now: Stamp) -> Vec<Container> {
    let container = |n: u32| Container {
        id: format!("{name}-{n}"),
        name: format!("{name}-{n}"),
        service: name.to_owned(),
        image_id: String::new(),
        state: ContainerState::Running,
        health: Some(Health::Healthy),
        probe: None,
        exit_code: 0,
        error: Scrubbed::default(),
        restart_count: 0,
        restart_policy: RestartPolicy::No,
        started_at: String::new(),
        started: Some(now),
    };
    // A bundle can ask for any number of containers; nobody reads a plan with more than a few of each.
    (1..=service.scale.min(1000)).map(container).collect()
}

impl<W: Driver> Driver for DryRun<W> {
    fn perform(&self, effects: &[Effect]) -> Vec<Event> {
        effects.iter().map(|effect| self.answer(effect)).collect()
    }

    fn now(&self) -> Stamp {
        self.world.now().max(self.pretended().waited)
    }

    fn cancelled(&self) -> bool {
        self.world.cancelled()
    }
}
