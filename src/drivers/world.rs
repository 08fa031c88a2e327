//! The real world: every operation, carried out.
//!
//! Invariant: the match on [`Op`] has no wildcard, so an operation without a driver does not compile; secret values go
//! from server to vault to file and never through an event; nobody who asks the process to end waits for the network.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::Driver;
use super::clock::{Cancel, Clock};
use super::docker::cli::{Docker, Environment};
use super::http::{Http, Server};
use super::openbao::{Fields, OpenBao, unavailable};
use super::store::Store;
use super::tenancy::Tenancy;
use super::transport::Transport;
use super::vault::{Secret, Slot, Vault};
use crate::config::{self, Config};
use crate::effects::bundle::{Bundle, ReadError};
use crate::effects::env_template::EnvTemplate;
use crate::effects::manifest::Scope;
use crate::effects::model::{Closed, Model, check_resolved};
use crate::effects::registry_auth::{RegistryAuth, empty_docker_config};
use crate::effects::{
    BaoFault, BundleFacts, BundleFault, CallFault, CheckCompose, ComposeFault, Effect, Event, FetchBundle, GrantName,
    Lease, LeaseFault, Login, Op, ReadModel, ReadSecret, RunFault, SaveToken, Scrubbed, SecretFacts, SecretFault, Sha,
    StageBundle, Stamp, StoreFault, TokenFacts, TokenName, ValueFact, ValueUse, Wanted, WriteRelease,
};

/// So many effects are carried out at the same time.
const AT_ONCE: usize = 8;

/// A call that is waited for looks this often whether the process was asked to end.
const GLANCE: Duration = Duration::from_millis(100);

/// The real world.
pub struct World {
    config: Config,
    store: Store,
    vault: Arc<Vault>,
    clock: Clock,
    cancel: Cancel,
    remote: Arc<Remote>,
    docker: Docker,
    bundle: Mutex<Option<(Sha, Bundle)>>,
    accessor: Mutex<Option<String>>,
    /// Whether the vault knows the values that the releases on disk were completed with.
    releases_known: Once,
    /// The state directory that a dry run's stands for.
    stands_for: Option<PathBuf>,
}

/// The servers. A call may outlive the tick that gave it up, so nothing that a tick must let go of (the lock) is here.
struct Remote {
    tenancy: Tenancy,
    openbao: OpenBao,
    vault: Arc<Vault>,
}

/// Tenancy and OpenBao as a configuration reaches them. No call takes longer than `longest`, whatever the configuration
/// allows. Nothing is dialled yet.
pub fn servers(config: &Config, seed: u64, longest: Duration) -> (Tenancy, OpenBao) {
    let (to_tenancy, to_bao) = match &config.transport {
        config::Transport::System => (Transport::System, Transport::System),
        config::Transport::Proxy { tenancy, bao } => {
            let through = |listener: &config::HostPort| Transport::Proxy { listener: listener.to_string() };
            (through(tenancy), bao.as_ref().map_or(Transport::System, through))
        }
        // The mesh leads to tenancy only; OpenBao is dialled directly unless a listener is named.
        config::Transport::Sdk { .. } => (Transport::Sdk, Transport::System),
    };
    let server = |name, base, transport, ca_file: &Option<PathBuf>, timeout_s| {
        let timeout = Duration::from_secs(timeout_s).min(longest);
        Http::new(Server { name, base, transport, ca_file: ca_file.clone(), timeout, seed })
    };
    let (tenancy, bao) = (&config.tenancy, &config.bao);
    (
        Tenancy::new(
            server("tenancy", tenancy.addr(), to_tenancy, &tenancy.ca_file, tenancy.timeout_s),
            &config.settings.env_id,
        ),
        OpenBao::new(
            server("OpenBao", bao.addr(), to_bao, &bao.ca_file, bao.timeout_s),
            &config.settings.kv_mount,
            bao.namespace.clone(),
        ),
    )
}

/// Docker as a configuration names it, with the environment that every child gets.
pub fn docker(config: &Config, cancel: &Cancel) -> Docker {
    let environment = Environment::from_own(&config.state_dir, &|name| std::env::var_os(name));
    Docker::new(&config.docker_bin, &config.state_dir, &config.settings.project, environment, cancel.flag())
}

impl World {
    /// Everything that a tick with this configuration may touch; nothing is touched yet.
    pub fn new(config: Config, store: Store, vault: Arc<Vault>, clock: Clock, cancel: Cancel, seed: u64) -> World {
        let (tenancy, openbao) = servers(&config, seed, Duration::MAX);
        // The store holds the lock, so nobody else's child runs.
        let docker = docker(&config, &cancel).ending_orphans();
        World {
            remote: Arc::new(Remote { tenancy, openbao, vault: Arc::clone(&vault) }),
            docker,
            config,
            store,
            vault,
            clock,
            cancel,
            bundle: Mutex::new(None),
            accessor: Mutex::new(None),
            releases_known: Once::new(),
            stands_for: None,
        }
    }

    /// The same world, which tells of its own state directory as if it were this one: what is refused in a dry run, and
    /// with which words, must not depend on where its scratch folder is.
    pub fn in_place_of(self, state_dir: PathBuf) -> World {
        World { stands_for: Some(state_dir), ..self }
    }

    /// The state directory.
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn execute(&self, op: &Op) -> Event {
        let vault: &Vault = &self.vault;
        match op {
            Op::Checkin(request) => {
                let request = request.clone();
                Event::CheckedIn(self.call(move |to| to.tenancy.checkin(&*to.vault, &request)).flatten())
            }
            Op::FetchBundle(request) => Event::BundleFetched(self.fetch(request).map(Box::new)),
            Op::ProbeDocker(_) => Event::DockerProbed(self.docker.probe(vault)),
            Op::StageBundle(request) => Event::BundleStaged(self.stage(request)),
            Op::ReadModel(request) => Event::ModelRead(self.model(request)),
            Op::LookupToken(request) => {
                let slot = match request.token {
                    TokenName::Saved => Slot::SavedToken,
                    TokenName::Candidate => Slot::Candidate,
                };
                Event::TokenLookedUp(self.with_token(&slot, |to, token| to.openbao.lookup(&*to.vault, token)))
            }
            Op::RenewToken(_) => {
                Event::TokenRenewed(self.with_token(&Slot::SavedToken, |to, token| to.openbao.renew(&*to.vault, token)))
            }
            Op::AskLease(_) => Event::LeaseAnswered(self.lease()),
            Op::SaveGrant(request) => Event::GrantSaved(self.store.save_grant(&request.lease)),
            Op::DropGrant(request) => Event::GrantDropped(self.store.drop_grant(request.grant)),
            Op::Login(request) => Event::LoggedIn(self.login(request)),
            Op::SaveToken(request) => Event::TokenSaved(self.save_token(request)),
            Op::RevokeToken(_) => {
                Event::TokenRevoked(self.with_token(&Slot::Replaced, |to, token| to.openbao.revoke(&*to.vault, token)))
            }
            Op::ReadSecret(request) => Event::SecretRead(self.read_secret(request)),
            Op::WriteRelease(request) => {
                // It may take the place of values that a container still tells.
                self.may_be_quoted();
                Event::ReleaseWritten(self.write_release(request))
            }
            Op::CheckCompose(request) => Event::ComposeChecked(self.check(request)),
            Op::Pull(request) => Event::Pulled(self.docker.pull(request, vault)),
            Op::Promote(request) => {
                self.store.know_values_of_releases();
                Event::Promoted(self.store.promote(&request.sha))
            }
            Op::Up(request) => Event::CameUp(self.docker.up(request, vault)),
            Op::Inspect(_) => {
                self.may_be_quoted();
                Event::Inspected(self.docker.inspect(vault))
            }
            Op::ReadLogs(request) => {
                self.may_be_quoted();
                Event::LogsRead(self.docker.read_logs(request, vault))
            }
            Op::WaitUntil(request) => {
                self.clock.sleep_until(request.until, &self.cancel);
                Event::Waited(())
            }
            Op::SaveState(request) => Event::StateSaved(self.store.save_state(&request.state)),
            Op::SaveReport(request) => Event::ReportSaved(self.store.save_report(&request.report)),
            Op::SendReport(request) => Event::ReportSent(self.send_report(&request.report_id)),
            Op::DropReport(request) => Event::ReportDropped(self.store.drop_report(&request.report_id)),
            Op::PruneReleases(request) => Event::ReleasesPruned(self.store.prune_releases(&request.keep)),
            Op::RemoveImages(request) => Event::ImagesRemoved(self.docker.remove_images(request, vault)),
        }
    }

    /// Before containers are quoted, also those of an earlier release: this tick may have read no secret of theirs.
    fn may_be_quoted(&self) {
        self.releases_known.call_once(|| self.store.know_values_of_releases());
    }

    /// Makes a call in a thread of its own, so that whoever asks the process to end need not wait until a server
    /// answers, a name is resolved or a deadline is over: the call is left to itself then. It ends with the process.
    fn call<T: Send + 'static>(&self, call: impl FnOnce(&Remote) -> T + Send + 'static) -> Result<T, CallFault> {
        let (done, answer) = mpsc::sync_channel(1);
        let remote = Arc::clone(&self.remote);
        // An answer that nobody waits for any more is dropped.
        let calling = move || drop(done.send(call(&remote)));
        let without = |why: &str, never_sent: bool| {
            Err(CallFault::Unreachable { detail: Scrubbed::new(&*self.vault, why), never_sent })
        };
        if let Err(error) = thread::Builder::new().name("call".to_owned()).spawn(calling) {
            return without(&format!("the system gives no thread for the call: {error}"), true);
        }
        loop {
            match answer.recv_timeout(GLANCE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => {
                    return without("given up: the process was asked to end", false);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return without("the call ended without an answer, a bug", false);
                }
            }
        }
    }

    fn fetch(&self, request: &FetchBundle) -> Result<BundleFacts, BundleFault> {
        let sha = request.sha.clone();
        let read = |body: &mut dyn Read| Bundle::read(body);
        let fetched = self.call(move |to| to.tenancy.bundle(&*to.vault, &sha, read)).flatten();
        let (read, header_sha) = fetched.map_err(BundleFault::Call)?;
        let bundle = match read {
            Ok(bundle) => bundle,
            Err(ReadError::Refused(refusal)) => return Err(BundleFault::Refused(refusal)),
            Err(ReadError::Io(error)) => {
                let detail = Scrubbed::new(&*self.vault, &format!("the bundle broke off: {error}"));
                return Err(BundleFault::Call(CallFault::Unreachable { detail, never_sent: false }));
            }
        };
        let settings = &self.config.settings;
        let scope = Scope { kv_mount: &settings.kv_mount, env_id: &settings.env_id };
        let facts = bundle.facts(header_sha, &scope).map_err(BundleFault::Refused)?;
        *self.bundle.lock().unwrap_or_else(PoisonError::into_inner) = Some((request.sha.clone(), bundle));
        Ok(facts)
    }

    /// Lends the bundle that was fetched in this tick.
    fn with_bundle<R>(&self, sha: &Sha, lend: impl FnOnce(&Bundle) -> R) -> Result<R, StoreFault> {
        match &*self.bundle.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((fetched, bundle)) if fetched == sha => Ok(lend(bundle)),
            Some(_) | None => Err(self.store_fault(&format!("bundle {} was not fetched in this tick", sha.short()))),
        }
    }

    fn store_fault(&self, what: &str) -> StoreFault {
        StoreFault { disk_full: false, detail: Scrubbed::new(&*self.vault, what) }
    }

    fn stage(&self, request: &StageBundle) -> Result<(), StoreFault> {
        self.with_bundle(&request.sha, |bundle| {
            self.store.stage_bundle(&request.sha, bundle.iter().map(|(path, content)| (path.as_str(), content)))
        })?
    }

    fn model(&self, request: &ReadModel) -> Result<Model, ComposeFault> {
        let json = self.docker.model(&request.sha, &*self.vault).map_err(ComposeFault::Run)?;
        let folder = self.store.next_dir();
        let (mut folder, mut state_dir) = (folder.to_string_lossy(), self.store.dir().to_string_lossy());
        let mut json = String::from_utf8_lossy(&json);
        if let Some(told) = self.stands_for.as_deref().map(Path::to_string_lossy) {
            // In JSON a path may be written with escapes.
            let escaped = |text: &str| Value::from(text).to_string().trim_matches('"').to_owned();
            json = json.replace(&escaped(&state_dir), &escaped(&told)).into();
            folder = folder.replace(&*state_dir, &told).into();
            state_dir = told;
        }
        let engine = self.docker.engine().unwrap_or_default();
        let parsed =
            self.with_bundle(&request.sha, |bundle| Model::parse(json.as_bytes(), bundle, &folder, &state_dir, engine));
        match parsed {
            Ok(Ok(model)) => Ok(model),
            Ok(Err(refusal)) => Err(ComposeFault::Refused(refusal)),
            Err(fault) => Err(not_run(fault)),
        }
    }

    fn check(&self, request: &CheckCompose) -> Result<(), ComposeFault> {
        let CheckCompose { sha, look } = request;
        if *look {
            let json = self.docker.resolved(sha, &*self.vault).map_err(ComposeFault::Run)?;
            let (folder, state_dir) = (self.store.next_dir(), self.store.dir());
            let look = |bundle: &Bundle| {
                check_resolved(&json, bundle, &folder.to_string_lossy(), &state_dir.to_string_lossy())
            };
            match self.with_bundle(sha, look) {
                Ok(seen) => seen.map_err(ComposeFault::Refused)?,
                Err(fault) => return Err(not_run(fault)),
            }
        }
        self.docker.check(sha, &*self.vault).map_err(ComposeFault::Run)
    }

    /// Lends a token to a call of OpenBao.
    fn with_token<R: Send + 'static>(
        &self,
        slot: &Slot,
        call: impl FnOnce(&Remote, &str) -> Result<R, BaoFault> + Send + 'static,
    ) -> Result<R, BaoFault> {
        // Copied out, so that the vault can be written to while the call is under way.
        let token = self.vault.with(slot, |token| Secret::new(token.to_owned()));
        match token {
            Some(token) => self
                .call(move |to| call(to, token.expose()))
                .unwrap_or_else(|fault| Err(unavailable(&*self.vault, fault))),
            // A file that went away meanwhile is like a token that OpenBao does not know.
            None => Err(BaoFault::Denied { detail: Scrubbed::new(&*self.vault, "there is no token") }),
        }
    }

    fn lease(&self) -> Result<Lease, LeaseFault> {
        let (lease, grant) =
            self.call(|to| to.tenancy.lease(&*to.vault)).unwrap_or_else(|fault| Err(LeaseFault::Call(fault)))?;
        self.vault.put(Slot::LeaseGrant, grant);
        Ok(lease)
    }

    fn login(&self, request: &Login) -> Result<TokenFacts, BaoFault> {
        let slot = match request.grant {
            GrantName::Bootstrap => Slot::BootstrapGrant,
            GrantName::Lease => Slot::LeaseGrant,
        };
        let (mount, role) = (self.config.bao.auth_mount.clone(), request.role.clone());
        let (facts, token) =
            self.with_token(&slot, move |to, grant| to.openbao.login(&*to.vault, &mount, &role, grant))?;
        self.vault.put(Slot::Candidate, token);
        *self.accessor.lock().unwrap_or_else(PoisonError::into_inner) = facts.accessor.clone();
        Ok(facts)
    }

    fn save_token(&self, request: &SaveToken) -> Result<(), StoreFault> {
        let accessor = self.accessor.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.store.save_token(request.source, accessor.as_deref(), self.clock.now())
    }

    fn read_secret(&self, request: &ReadSecret) -> Result<SecretFacts, SecretFault> {
        let asked = request.clone();
        let read = move |to: &Remote, token: &str| match to.openbao.read_secret(&*to.vault, token, &asked) {
            Ok(read) => Ok(Ok(read)),
            Err(SecretFault::Bao(fault)) => Err(fault),
            Err(fault @ (SecretFault::Missing | SecretFault::Deleted(_))) => Ok(Err(fault)),
        };
        let (version, data) = self.with_token(&Slot::SavedToken, read).map_err(SecretFault::Bao)??;
        let values = request.wanted.iter().map(|wanted| self.take(&data, wanted)).collect();
        Ok(SecretFacts { version, values })
    }

    /// Puts one value into the vault, and tells what it is.
    fn take(&self, data: &Fields, wanted: &Wanted) -> ValueFact {
        let unfit = |why: &str| ValueFact::Unfit { why: why.to_owned() };
        let value = match data.get(&wanted.key) {
            None => return ValueFact::Absent,
            Some(Value::String(value)) if value.contains('\0') => return unfit("a string with a NUL"),
            Some(Value::String(value)) => value,
            Some(Value::Null) => return unfit("null"),
            Some(Value::Bool(_)) => return unfit("a boolean"),
            Some(Value::Number(_)) => return unfit("a number"),
            Some(Value::Array(_)) => return unfit("a list"),
            Some(Value::Object(_)) => return unfit("an object"),
        };
        match &wanted.usage {
            ValueUse::Env(name) => {
                self.vault.put(Slot::Env(name.clone()), Secret::new(value.clone()));
                ValueFact::Text
            }
            ValueUse::RegistryAuth => {
                self.vault.put(Slot::Registry, Secret::new(value.clone()));
                match RegistryAuth::parse(value, &self.config.registry_host) {
                    Ok(auth) => {
                        self.vault.know(&Slot::Registry, auth.password());
                        let (registry, username) = (auth.registry().to_owned(), auth.username().to_owned());
                        ValueFact::Credential { registry, username }
                    }
                    Err(unusable) => ValueFact::NoCredential { why: unusable.to_string() },
                }
            }
        }
    }

    fn write_release(&self, request: &WriteRelease) -> Result<(), StoreFault> {
        let template = self.with_bundle(&request.sha, Bundle::template)?;
        let template = match template {
            Some(Ok(template)) => template,
            Some(Err(refusal)) => return Err(self.store_fault(&refusal.detail)),
            None => EnvTemplate::of_variables(request.variables.iter().map(String::as_str)),
        };
        let value_of =
            |name: &str| self.vault.with(&Slot::Env(name.to_owned()), |value| Zeroizing::new(value.to_owned()));
        let env = template.render(value_of).map_err(|error| self.store_fault(&format!(".env: {error}")))?;
        self.store.write_release(&request.sha, &env, &override_yaml(&request.mounts, &request.closed))?;
        let config = match &request.registry {
            None => None,
            Some(_) => self.vault.with(&Slot::Registry, |value| {
                RegistryAuth::parse(value, &self.config.registry_host).ok().map(|auth| auth.docker_config())
            }),
        };
        match config.flatten() {
            Some(config) => self.store.write_docker_config(&config),
            None => self.store.write_docker_config(empty_docker_config()),
        }
    }

    fn send_report(&self, report_id: &str) -> Result<(), CallFault> {
        match self.store.load_report(report_id) {
            Ok(Some(report)) => self.call(move |to| to.tenancy.report(&*to.vault, &report)).flatten(),
            // It is gone, so there is nothing left to tell.
            Ok(None) => Ok(()),
            Err(fault) => Err(CallFault::Unreachable { detail: fault.detail, never_sent: true }),
        }
    }
}

fn not_run(fault: StoreFault) -> ComposeFault {
    ComposeFault::Run(RunFault::Failed { status: None, words: fault.detail, disk_full: fault.disk_full })
}

/// The override of contract §7: each service is labelled with the digest of the bundle content that it mounts, and what
/// it mounts of what Compose reads is read-only. A mount with the same target takes the place of the file's own whole
/// (tried on 2.26.1 and 2.40.3), so its other options come along.
fn override_yaml(mounts: &[(String, String)], closed: &BTreeMap<String, Vec<Closed>>) -> String {
    if mounts.is_empty() && closed.is_empty() {
        return "services: {}\n".to_owned();
    }
    let mut services: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (service, digest) in mounts {
        let labels = json!({ "monky-deployd.mounts": digest });
        services.entry(service).or_default().insert("labels".to_owned(), labels);
    }
    for (service, closed) in closed {
        let read_only = |Closed { target, path, bind }: &Closed| {
            let source = format!("./{}", path.replace('$', "$$"));
            let mut mount = json!({ "type": "bind", "source": source, "target": target, "read_only": true });
            if let (Some(bind), Some(mount)) = (bind, mount.as_object_mut()) {
                mount.insert("bind".to_owned(), bind.clone());
            }
            mount
        };
        let volumes = closed.iter().map(read_only).collect();
        services.entry(service).or_default().insert("volumes".to_owned(), volumes);
    }
    // JSON is YAML, and needs no quoting rules of our own.
    format!("{}\n", json!({ "services": services }))
}

impl Driver for World {
    fn perform(&self, effects: &[Effect]) -> Vec<Event> {
        match effects {
            [only] => vec![self.execute(&only.op)],
            many => many.chunks(AT_ONCE).flat_map(|chunk| self.at_once(chunk)).collect(),
        }
    }

    fn now(&self) -> Stamp {
        self.clock.now()
    }

    fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl World {
    fn at_once(&self, effects: &[Effect]) -> Vec<Event> {
        thread::scope(|scope| {
            let started: Vec<_> = effects.iter().map(|effect| scope.spawn(move || self.execute(&effect.op))).collect();
            started
                .into_iter()
                .zip(effects)
                // A thread that panicked is a bug; carrying the effect out again says what it is.
                .map(|(thread, effect)| thread.join().unwrap_or_else(|_| self.execute(&effect.op)))
                .collect()
        })
    }
}
