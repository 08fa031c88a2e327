//! The world around the box, which keeps its state while the box crashes, and the driver that leads to it and to the
//! real store.
//!
//! Invariant: it answers as tenancy, OpenBao and Docker would; what it remembers of the box is what the box told it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use monky_deployd::drivers::Driver;
use monky_deployd::drivers::store::Store;
use monky_deployd::drivers::vault::{Secret, Slot, Vault};
use monky_deployd::effects::containers::{Container, ContainerState, Health};
use monky_deployd::effects::manifest::{Entry, Manifest};
use monky_deployd::effects::model::Model;
use monky_deployd::effects::report::Report;
use monky_deployd::effects::*;

use crate::common::script::{
    container, denied, facts, refused_run, said, services, sha, status, unreachable, versions,
};
use crate::disk::Power;

/// What nobody but the servers, the containers and the files that are made for it may hold.
pub const CANARY: &str = "canary-";

/// More effects than any tick here needs.
const EFFECTS: usize = 400;

/// Tenancy, OpenBao, Docker, and the time.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    pub now: Stamp,
    /// The operator was told that the grant is stored.
    pub bootstrapped: bool,
    pub desired: &'static str,
    /// Tenancy takes no report, so many times.
    pub deaf: u32,
    /// Each report that was taken.
    pub reports: Vec<Report>,
    /// When leases were granted.
    pub leases: Vec<Stamp>,
    /// Tokens that live.
    pub tokens: BTreeSet<String>,
    pub tokens_made: u32,
    /// How long the saved token lives still, in seconds.
    pub ttl_s: u64,
    /// A container is starting for so long.
    pub starts_s: i64,
    /// Grants that OpenBao takes.
    pub grants: BTreeSet<String>,
    pub pulled: BTreeSet<Sha>,
    /// What runs, since when, with which variables.
    pub running: Option<(Sha, Stamp, String)>,
    /// What may never happen, and did.
    pub broken: Vec<String>,
}

impl World {
    pub fn new(now: Stamp) -> World {
        World {
            now,
            bootstrapped: false,
            desired: "a",
            deaf: 0,
            reports: Vec::new(),
            leases: Vec::new(),
            tokens: BTreeSet::new(),
            tokens_made: 0,
            ttl_s: 3000,
            starts_s: 0,
            grants: BTreeSet::from([bootstrap_grant()]),
            pulled: BTreeSet::new(),
            running: None,
            broken: Vec::new(),
        }
    }
}

pub fn bootstrap_grant() -> String {
    format!("{CANARY}bootstrap")
}

/// The bundles: their names, generations, and whether they become healthy or can be pulled.
pub const BUNDLES: [(&str, i64); 5] = [("a", 1), ("b", 2), ("sick", 3), ("unpullable", 4), ("c", 5)];

pub fn bundle_of(sha_: &Sha) -> (&'static str, i64) {
    BUNDLES.into_iter().find(|(name, _)| sha(name) == *sha_).unwrap()
}

/// The files of a bundle.
pub fn files(name: &str) -> Vec<(String, Vec<u8>)> {
    let file = |path: &str, text: String| (path.to_owned(), text.into_bytes());
    vec![
        file("compose.yaml", format!("services: {{web: {{image: 'registry.example/web:{name}'}}}}\n")),
        file("conf/web.conf", format!("name {name}\n")),
        file("manifest.json", "{}\n".to_owned()),
        file("meta.json", "{}\n".to_owned()),
    ]
}

/// What the variables of a release are.
pub fn variables(name: &str) -> String {
    format!("DB_PASSWORD={CANARY}db-of-{name}\nDB_USER={CANARY}user-of-{name}\n")
}

/// The box's way to the world.
pub struct Driven {
    pub store: Store,
    pub vault: Arc<Vault>,
    pub world: Arc<Mutex<World>>,
    pub power: Arc<Power<World>>,
    /// A seeded bug: a report leaves the outbox when it is sent, not when it was taken.
    pub forgets_reports: bool,
    /// So many effects were carried out.
    pub effects: Mutex<usize>,
    /// The bundle that was fetched in this tick.
    pub fetched: Mutex<Option<Sha>>,
}

impl Driven {
    pub fn stuck(&self) -> bool {
        *self.effects.lock().unwrap() > EFFECTS
    }

    fn world<R>(&self, look: impl FnOnce(&mut World) -> R) -> R {
        look(&mut self.world.lock().unwrap())
    }

    fn lives(&self, slot: &Slot) -> bool {
        self.vault.with(slot, str::to_owned).is_some_and(|token| self.world(|world| world.tokens.contains(&token)))
    }

    fn name_of(&self, sha: &Sha) -> &'static str {
        bundle_of(sha).0
    }

    /// The promoted release is whole, whatever the disk went through.
    fn look_at_release(&self, dir: &Path, sha: &Sha, doing: &str) {
        let name = self.name_of(sha);
        let mut expected = files(name);
        expected.push((".env".to_owned(), variables(name).into_bytes()));
        for (path, content) in expected {
            let found = fs::read(dir.join(&path)).unwrap_or_default();
            if found != content {
                let words = format!("{doing} {name} with {path}: {:?}", String::from_utf8_lossy(&found));
                self.world(|world| world.broken.push(words));
            }
        }
    }

    fn answer(&self, op: &Op) -> Event {
        let (store, vault) = (&self.store, &self.vault);
        let token = |ttl_s: u64| TokenFacts { accessor: Some("acc".to_owned()), ttl_s: Some(ttl_s), renewable: true };
        let run = || RunDone { warnings: Vec::new() };
        match op {
            Op::Checkin(_) => {
                let desired_sha = Some(sha(self.world(|world| world.desired)));
                Event::CheckedIn(Ok(Desired { desired_sha, hold: None }))
            }
            Op::FetchBundle(fetch) => {
                *self.fetched.lock().unwrap() = Some(fetch.sha.clone());
                let (name, generation) = bundle_of(&fetch.sha);
                let mut facts = facts(name, generation);
                facts.template = None;
                let entry = |usage: ValueUse, path: &str, key: &str| Entry {
                    usage,
                    path: format!("monky/env-qa-02/{path}"),
                    key: key.to_owned(),
                    version: None,
                };
                let env = |name: &str| ValueUse::Env(name.to_owned());
                facts.manifest = Ok(Manifest {
                    entries: vec![
                        entry(env("DB_PASSWORD"), "db", "db"),
                        entry(env("DB_USER"), "db", "user"),
                        entry(ValueUse::RegistryAuth, "registry", "value"),
                    ],
                });
                Event::BundleFetched(Ok(Box::new(facts)))
            }
            Op::ProbeDocker(_) => Event::DockerProbed(Ok(versions())),
            Op::StageBundle(stage) => {
                let files = files(self.name_of(&stage.sha));
                let files = files.iter().map(|(path, content)| (path.as_str(), content.as_slice()));
                Event::BundleStaged(store.stage_bundle(&stage.sha, files))
            }
            Op::ReadModel(_) => Event::ModelRead(Ok(Model { services: services(), ..Model::default() })),
            Op::LookupToken(lookup) => {
                let (slot, ttl_s) = match lookup.token {
                    TokenName::Saved => (Slot::SavedToken, self.world(|world| world.ttl_s)),
                    TokenName::Candidate => (Slot::Candidate, 3600),
                };
                Event::TokenLookedUp(if self.lives(&slot) { Ok(token(ttl_s)) } else { Err(denied()) })
            }
            Op::RenewToken(_) => {
                if !self.lives(&Slot::SavedToken) {
                    return Event::TokenRenewed(Err(denied()));
                }
                self.world(|world| world.ttl_s = 3000);
                Event::TokenRenewed(Ok(token(3600)))
            }
            Op::AskLease(_) => Event::LeaseAnswered(self.lease()),
            Op::SaveGrant(save) => Event::GrantSaved(store.save_grant(&save.lease)),
            Op::DropGrant(drop) => Event::GrantDropped(store.drop_grant(drop.grant)),
            Op::Login(login) => {
                let slot = match login.grant {
                    GrantName::Bootstrap => Slot::BootstrapGrant,
                    GrantName::Lease => Slot::LeaseGrant,
                };
                let grant = vault.with(&slot, str::to_owned);
                if !grant.is_some_and(|grant| self.world(|world| world.grants.contains(&grant))) {
                    return Event::LoggedIn(Err(BaoFault::Rejected { detail: said("no such grant") }));
                }
                let new = self.world(|world| {
                    world.tokens_made += 1;
                    let new = format!("{CANARY}token-{}", world.tokens_made);
                    world.tokens.insert(new.clone());
                    new
                });
                vault.put(Slot::Candidate, Secret::new(new));
                Event::LoggedIn(Ok(token(3600)))
            }
            Op::SaveToken(save) => {
                Event::TokenSaved(store.save_token(save.source, Some("acc"), self.world(|world| world.now)))
            }
            Op::RevokeToken(_) => {
                if let Some(token) = vault.with(&Slot::Replaced, str::to_owned) {
                    self.world(|world| world.tokens.remove(&token));
                }
                Event::TokenRevoked(Ok(()))
            }
            Op::ReadSecret(read) => Event::SecretRead(self.read_secret(read)),
            Op::WriteRelease(write) => Event::ReleaseWritten(self.write_release(write)),
            Op::CheckCompose(check) => {
                self.look_at_release(&store.release_dir(&check.sha), &check.sha, "checked");
                Event::ComposeChecked(Ok(()))
            }
            Op::Pull(pull) => {
                if self.name_of(&pull.sha) == "unpullable" {
                    return Event::Pulled(Err(refused_run("manifest unknown")));
                }
                self.world(|world| world.pulled.insert(pull.sha.clone()));
                Event::Pulled(Ok(run()))
            }
            Op::Promote(promote) => Event::Promoted(store.promote(&promote.sha)),
            Op::Up(up) => {
                let dir = store.current_dir();
                self.look_at_release(&dir, &up.sha, "brought up");
                let env = fs::read_to_string(dir.join(".env")).unwrap_or_default();
                self.world(|world| {
                    if !world.pulled.contains(&up.sha) {
                        world.broken.push(format!("{} came up without a pull", self.name_of(&up.sha)));
                    }
                    let now = world.now;
                    let as_it_is = world.running.take().filter(|(sha, _, old)| *sha == up.sha && *old == env);
                    world.running = as_it_is.or(Some((up.sha.clone(), now, env)));
                });
                Event::CameUp(Ok(run()))
            }
            Op::Inspect(_) => Event::Inspected(Ok(self.world(|world| containers(world)))),
            Op::ReadLogs(logs) => Event::LogsRead(Ok(logs
                .containers
                .iter()
                .map(|(service, _)| LogTail { service: service.clone(), text: said("no database\n") })
                .collect())),
            Op::WaitUntil(_) => Event::Waited(()),
            Op::SaveState(save) => Event::StateSaved(store.save_state(&save.state)),
            Op::SaveReport(save) => Event::ReportSaved(store.save_report(&save.report)),
            Op::SendReport(send) => Event::ReportSent(self.send(&send.report_id)),
            Op::DropReport(drop) => Event::ReportDropped(store.drop_report(&drop.report_id)),
            Op::PruneReleases(prune) => Event::ReleasesPruned(store.prune_releases(&prune.keep)),
            Op::RemoveImages(remove) => {
                self.world(|world| {
                    let needed = containers(world).into_iter().find(|one| remove.ids.contains(&one.image_id));
                    world.broken.extend(needed.map(|one| format!("{} runs, and was to be removed", one.image_id)));
                });
                Event::ImagesRemoved(Ok(RemovedImages { gone: remove.ids.clone() }))
            }
        }
    }

    fn lease(&self) -> Result<Lease, LeaseFault> {
        let n = self.world(|world| {
            let recent = world.leases.iter().filter(|at| world.now.since_ms(**at) < 3_600_000).count();
            if recent >= 5 {
                world.broken.push("a sixth lease within the hour was asked for".to_owned());
                return None;
            }
            world.leases.push(world.now);
            world.grants.insert(format!("{CANARY}grant-{}", world.leases.len()));
            Some(world.leases.len())
        });
        let Some(n) = n else { return Err(LeaseFault::Call(status(429, "LEASE_RATE_LIMITED"))) };
        self.vault.put(Slot::LeaseGrant, Secret::new(format!("{CANARY}grant-{n}")));
        let expires_at = Some(self.world(|world| world.now).plus_s(600));
        Ok(Lease { lease_id: format!("lease-{n}"), role: None, expires_at })
    }

    fn read_secret(&self, read: &ReadSecret) -> Result<SecretFacts, SecretFault> {
        if !self.lives(&Slot::SavedToken) {
            return Err(SecretFault::Bao(denied()));
        }
        let name = self.name_of(self.fetched.lock().unwrap().as_ref().unwrap());
        let values = read.wanted.iter().map(|wanted| {
            let value = format!("{CANARY}{}-of-{name}", wanted.key);
            match &wanted.usage {
                ValueUse::Env(variable) => {
                    self.vault.put(Slot::Env(variable.clone()), Secret::new(value));
                    ValueFact::Text
                }
                ValueUse::RegistryAuth => {
                    self.vault.put(Slot::Registry, Secret::new(value));
                    let (registry, username) = ("registry.example".to_owned(), "robot".to_owned());
                    ValueFact::Credential { registry, username }
                }
            }
        });
        Ok(SecretFacts { version: Some(2), values: values.collect() })
    }

    fn write_release(&self, write: &WriteRelease) -> Result<(), StoreFault> {
        let mut env = String::new();
        for name in &write.variables {
            let value = self.vault.with(&Slot::Env(name.clone()), str::to_owned).unwrap();
            env.push_str(&format!("{name}={value}\n"));
        }
        self.store.write_release(&write.sha, &env, "services: {web: {labels: {monky-deployd.mounts: d1}}}\n")?;
        self.store.write_docker_config(&self.vault.with(&Slot::Registry, str::to_owned).unwrap())
    }

    fn send(&self, id: &str) -> Result<(), CallFault> {
        let Some(report) = self.store.load_report(id).unwrap() else { return Ok(()) };
        if self.forgets_reports {
            self.store.drop_report(id).unwrap();
            self.power.moment("SendReport");
        }
        self.world(|world| {
            if world.deaf > 0 {
                world.deaf -= 1;
                return Err(unreachable());
            }
            if world.reports.iter().all(|told| told.report_id != id) {
                world.reports.push(report);
            }
            Ok(())
        })
    }
}

fn containers(world: &World) -> Vec<Container> {
    let Some((sha, since, _)) = &world.running else { return Vec::new() };
    let name = bundle_of(sha).0;
    let health = match name {
        "sick" => Health::Unhealthy,
        _ if world.now.since_ms(*since) < world.starts_s * 1000 => Health::Starting,
        _ => Health::Healthy,
    };
    let mut web = container("web", ContainerState::Running, Some(health));
    web.id = format!("web-{}", since.0);
    web.image_id = format!("sha256:{name}");
    web.started = Some(*since);
    web.started_at = format!("t{}", since.0);
    vec![web]
}

impl Driver for Driven {
    fn perform(&self, effects: &[Effect]) -> Vec<Event> {
        let one = |effect: &Effect| {
            let name = effect.op.name().as_str();
            self.power.moment(name);
            *self.effects.lock().unwrap() += 1;
            self.world(|world| {
                world.now = match &effect.op {
                    Op::WaitUntil(wait) => wait.until.max(world.now),
                    _ => world.now.plus_s(1),
                };
            });
            let event = self.answer(&effect.op);
            // It was done, and nobody heard of it.
            self.power.moment(&format!("after {name}"));
            event
        };
        effects.iter().map(one).collect()
    }

    fn now(&self) -> Stamp {
        self.world(|world| world.now)
    }

    fn cancelled(&self) -> bool {
        self.stuck()
    }
}

/// (bundle, attempt, outcome, rolled back), and by how many reports it was told.
pub type Told = BTreeMap<(&'static str, u32, String, bool), usize>;

/// What was told.
pub fn told(world: &World) -> Told {
    let mut told = Told::new();
    for report in &world.reports {
        let key = (bundle_of(&report.sha).0, report.attempt, format!("{:?}", report.result), report.rolled_back);
        *told.entry(key).or_default() += 1;
    }
    told
}
