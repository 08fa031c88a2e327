//! The set of the demo: the stand-ins, the boxes in front of them, and what is seen of a tick.
//!
//! Invariant: what a [`Seen`] holds was read from the stand-ins' own logs and from the box's disk. The agent's word is
//! taken only for what it passed, did and said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::journal::Journal;
use crate::config::{Config, ConfigError};
use crate::drivers::clock::{Cancel, Clock};
use crate::drivers::run_loop::{self, Ended, Watch};
use crate::drivers::store::{Store, StoreError};
use crate::drivers::vault::Vault;
use crate::drivers::world::World;
use crate::effects::state::TokenSource;
use crate::effects::{Effect, Op, Sha, Stamp, StoreFault};
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Input, Machine, Note, Options, StageName};
use crate::sandbox::docker::{Behaviour, DockerStandIn, Image, Pace};
use crate::sandbox::openbao::{self, Auth, OpenBao};
use crate::sandbox::tenancy::{self, Tenancy, files};

/// The registry that the images come from.
pub const REGISTRY: &str = "registry.example";
/// Its pull account.
const PULL_USER: &str = "puller";
/// Its password: a secret that must not be seen anywhere.
const PULL_PASSWORD: &str = "pull-7f3a91c2-of-the-demo";
/// The database's password: a secret that only containers get.
const DB_PASSWORD: &str = "db-c05b66e8-of-the-demo";
/// What a failing `web` logs, the cause last.
pub const WEB_LOGS: [&str; 2] = ["starting shop-web 1.2", "cannot migrate: column orders.total is missing"];

/// The demo could not go on. It says nothing about the agent's rules.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The system said no.
    #[error("{doing}: {source}")]
    Io {
        /// To what.
        doing: String,
        /// Its words.
        source: io::Error,
    },
    /// The configuration that the demo wrote is none.
    #[error("the demo's own configuration is refused:\n{0}")]
    Config(#[from] ConfigError),
    /// A state directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It does not take a grant.
    #[error("the bootstrap grant was not stored: {}", .0.detail)]
    Grant(StoreFault),
    /// There is no such box.
    #[error("the demo has no box {0}")]
    NoBox(String),
    /// Someone asked the demo to end.
    #[error("asked to end")]
    Interrupted,
}

/// Names what was being done when the system said no.
pub fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Trouble {
    let doing = what.into();
    move |source| Trouble::Io { doing, source }
}

/// A machine with an agent and a Docker.
struct Site {
    yaml: String,
    config: Config,
    docker: DockerStandIn,
    desired: Option<Sha>,
}

/// The stand-ins and the boxes, in a temporary directory.
pub struct Set {
    /// The control plane.
    pub tenancy: Tenancy,
    /// OpenBao.
    pub bao: OpenBao,
    boxes: BTreeMap<&'static str, Site>,
    cancel: Cancel,
    ticks: u64,
    exe: PathBuf,
    // Last, so that it goes after what lies in it.
    dir: TempDir,
}

impl Set {
    /// Starts the servers. `exe` is the executable that is Docker under the name `docker`.
    ///
    /// # Errors
    /// If there is no port, no randomness or no temporary directory to be had.
    pub fn build(exe: &Path, cancel: Cancel) -> Result<Set, Trouble> {
        let dir = tempfile::Builder::new().prefix("monky-deployd-demo-").tempdir().map_err(doing("temporary files"))?;
        let tenancy = Tenancy::start().map_err(doing("starting tenancy"))?;
        let auth = Auth { issuer: tenancy.issuer(), public_key_pem: tenancy.public_key_pem() };
        let bao = OpenBao::start(&auth).map_err(doing("starting OpenBao"))?;
        Ok(Set { tenancy, bao, boxes: BTreeMap::new(), cancel, ticks: 0, exe: exe.to_owned(), dir })
    }

    /// Ends the servers and removes every file.
    ///
    /// # Errors
    /// If something is left.
    pub fn strike(self) -> Result<(), Trouble> {
        let Set { dir, tenancy, bao, .. } = self;
        drop((tenancy, bao));
        let what = format!("removing {}", dir.path().display());
        dir.close().map_err(doing(what))
    }

    /// Where everything is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sets up a box: its configuration, its Docker, its secrets, and a registry that has the shop's images.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn add_box(&mut self, env_id: &'static str) -> Result<(), Trouble> {
        let home = self.dir.path().join(env_id);
        let docker = DockerStandIn::install(&home.join("bin"), &self.exe).map_err(doing("installing docker"))?;
        let yaml = self.yaml(env_id, &home.join("state"), &docker.bin());
        let config = Config::parse("config.yaml", &yaml)?;
        let healthy = Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 });
        let sick = Behaviour::GetsUnhealthy(Pace { looks: 1, ms: 0 });
        docker
            .edit(|world| {
                for (name, behaviour, logs) in [
                    ("shop/web:1.0", healthy.clone(), &[][..]),
                    ("shop/web:1.1", healthy, &[]),
                    ("shop/web:1.2", sick, &WEB_LOGS),
                    ("shop/db:16", Behaviour::Runs, &[]),
                ] {
                    let mut image = Image::new(name, behaviour);
                    image.logs = logs.iter().map(|line| (*line).to_owned()).collect();
                    world.publish(&format!("{REGISTRY}/{name}"), image);
                }
                for registry in world.registries.values_mut() {
                    registry.login = Some((PULL_USER.to_owned(), PULL_PASSWORD.to_owned()));
                }
            })
            .map_err(doing("filling the registry"))?;
        let credential = json!({"username": PULL_USER, "password": PULL_PASSWORD}).to_string();
        self.bao.put_secret(&format!("monky/{env_id}/db"), json!({"value": DB_PASSWORD}));
        self.bao.put_secret(&format!("monky/{env_id}/registry"), json!({"value": credential}));
        self.boxes.insert(env_id, Site { yaml, config, docker, desired: None });
        Ok(())
    }

    fn yaml(&self, env_id: &str, state_dir: &Path, docker_bin: &Path) -> String {
        // JSON's way to quote is also YAML's, whatever is in the path.
        let quoted = |path: &Path| Value::String(path.display().to_string()).to_string();
        format!(
            "env_id: {env_id}
site: demo
tenancy:
  scheme: http
  host: 127.0.0.1
  port: {}
bao:
  addr: {}
state_dir: {}
docker_bin: {}
registry_host: {REGISTRY}
healthy_timeout_s: 30
stable_s: 1
on_unhealthy: rollback
",
            self.tenancy.port(),
            self.bao.addr(),
            quoted(state_dir),
            quoted(docker_bin),
        )
    }

    /// The configuration of a box, as its operator wrote it.
    pub fn configuration(&self, env_id: &str) -> &str {
        self.boxes.get(env_id).map(|it| it.yaml.as_str()).unwrap_or_default()
    }

    /// Has tenancy mint a bootstrap grant and stores it on the box, as `monky-deployd bootstrap` does.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn bootstrap(&mut self, env_id: &str) -> Result<(), Trouble> {
        let grant = self.tenancy.mint_bootstrap_grant(env_id, 3600);
        let state_dir = &self.found(env_id)?.config.state_dir;
        let store = Store::open(state_dir, Arc::new(Vault::default()))?;
        store.save_bootstrap(&grant).map_err(Trouble::Grant)
    }

    /// Publishes a bundle of the shop and has tenancy want it on the box.
    ///
    /// # Errors
    /// If there is no such box.
    pub fn desire(&mut self, env_id: &'static str, generation: u64, web: &str) -> Result<(), Trouble> {
        let meta = json!({"env_id": env_id, "generation": generation}).to_string();
        let entry = |name: &str| format!("monky/{env_id}/{name}");
        let manifest = json!({"entries": [
            {"var": "DB_PASSWORD", "path": entry("db")},
            {"use": "registry-auth", "path": entry("registry")},
        ]});
        let compose = format!(
            "services:
  web:
    image: {REGISTRY}/shop/{web}
    environment:
      DB_PASSWORD: ${{DB_PASSWORD}}
    volumes: [\"./web.conf:/etc/web.conf:ro\"]
    healthcheck:
      test: [CMD, wget, -q, \"http://127.0.0.1/\"]
    restart: unless-stopped
  db:
    image: {REGISTRY}/shop/db:16
    environment:
      POSTGRES_PASSWORD: ${{DB_PASSWORD}}
    volumes: [\"data:/var/lib/postgresql/data\"]
    restart: unless-stopped
volumes:
  data:
"
        );
        let sha = self.tenancy.publish(
            env_id,
            &files([
                ("compose.yaml", &compose),
                ("manifest.json", &manifest.to_string()),
                ("meta.json", &meta),
                ("web.conf", "listen 80\n"),
            ]),
        );
        self.tenancy.desire(env_id, Some(&sha));
        let one = self.boxes.get_mut(env_id).ok_or_else(|| Trouble::NoBox(env_id.to_owned()))?;
        one.desired = Sha::try_from(sha).ok();
        Ok(())
    }

    fn found(&self, env_id: &str) -> Result<&Site, Trouble> {
        self.boxes.get(env_id).ok_or_else(|| Trouble::NoBox(env_id.to_owned()))
    }

    /// Does something, and tells what was seen meanwhile.
    ///
    /// # Errors
    /// Those of what is done; or if the logs cannot be read.
    pub fn watch(
        &mut self,
        env_id: &str,
        act: impl FnOnce(&mut Set) -> Result<Option<Ticked>, Trouble>,
    ) -> Result<Seen, Trouble> {
        let before = self.facts(env_id)?;
        let had = (self.tenancy.requests().len(), self.bao.requests().len());
        let calls = self.calls(env_id)?.len();
        let tick = act(self)?;
        let after = self.facts(env_id)?;
        let mut seen = Seen {
            desired: self.found(env_id)?.desired.clone(),
            before,
            after,
            tenancy: self.tenancy.requests().split_off(had.0),
            bao: self.bao.requests().split_off(had.1),
            docker: self.calls(env_id)?.split_off(calls),
            leaks: BTreeSet::new(),
            tick,
        };
        seen.leaks = leaks(&seen);
        Ok(seen)
    }

    /// One tick of a box, as the timer starts it.
    ///
    /// # Errors
    /// If the state directory cannot be used, or someone asked to end.
    pub fn tick(&mut self, env_id: &str) -> Result<Ticked, Trouble> {
        self.ticks += 1;
        let seed = self.ticks;
        let config = self.found(env_id)?.config.clone();
        let (started, clock, vault) = (Instant::now(), Clock::start(), Arc::new(Vault::default()));
        let store = Store::open(&config.state_dir, Arc::clone(&vault))?;
        let loaded = store.load_state(clock.now())?;
        let boot = Boot {
            settings: config.settings.clone(),
            options: Options::default(),
            state: loaded.state,
            local: loaded.local,
            seed,
            now: clock.now(),
        };
        let world = World::new(config, store, vault, clock, self.cancel.clone(), seed);
        let mut notebook = Notebook::default();
        let done = match run_loop::run(boot, &world, &mut notebook) {
            Ended::Done(done) => done,
            Ended::Interrupted => return Err(Trouble::Interrupted),
        };
        let Notebook { passed, effects, notes } = notebook;
        Ok(Ticked { passed, effects, notes, done, took: started.elapsed() })
    }

    fn calls(&self, env_id: &str) -> Result<Vec<Vec<String>>, Trouble> {
        let calls = self.found(env_id)?.docker.calls().map_err(doing("reading docker's log"))?;
        Ok(calls.into_iter().map(|call| call.args).collect())
    }

    fn facts(&self, env_id: &str) -> Result<Facts, Trouble> {
        let one = self.found(env_id)?;
        let dir = &one.config.state_dir;
        let loaded = Store::open_read_only(dir, Arc::new(Vault::default())).load_state(Clock::start().now())?;
        let (state, local) = (loaded.state, loaded.local);
        let world = one.docker.world().map_err(doing("looking at docker"))?;
        let containers = world.containers.iter().map(|it| {
            let now_ms = crate::sandbox::docker::now_ms();
            let health = it.health(now_ms).map(|health| format!(", {health}")).unwrap_or_default();
            let running = Running {
                id: it.id.clone(),
                image: it.image.id.clone(),
                state: format!("{}{health}", it.state(now_ms).0),
                has_secret: it.environment.values().any(|value| value == DB_PASSWORD),
            };
            (it.service().to_owned(), running)
        });
        let mut on_disk = BTreeMap::new();
        list(dir, dir, &mut on_disk).map_err(doing("listing the state directory"))?;
        Ok(Facts {
            applied: state.applied().map(|applied| (applied.sha.clone(), applied.generation)),
            current: local.current,
            token: local.token,
            bootstrap_waits: local.bootstrap,
            leases: self.tenancy.leases_granted(env_id),
            leases_remembered: state.leases.len(),
            quarantined: state.attempts.into_iter().filter(|(_, it)| it.quarantined).map(|(sha, _)| sha).collect(),
            reports_waiting: local.outbox.len() + usize::from(state.outcome.is_some()),
            containers: containers.collect(),
            tokens: self.bao.live_tokens().into_iter().collect(),
            registries: registries(&dir.join("docker/config.json"))
                .into_iter()
                .filter(|host| world.registries.get(host).is_some_and(|it| it.login.is_some()))
                .collect(),
            releases: local.releases.into_iter().collect(),
            state_json: fs::read_to_string(dir.join("state.json")).unwrap_or_default(),
            files: on_disk,
        })
    }
}

/// The registries that a Docker configuration has a credential for.
fn registries(file: &Path) -> BTreeSet<String> {
    let text = fs::read(file).unwrap_or_default();
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    let auths = config.get("auths").and_then(Value::as_object);
    auths.into_iter().flatten().map(|(registry, _)| registry.clone()).collect()
}

/// Every file below a directory, with what tells that it was written: inode, time and mode. The lock is not among them.
fn list(root: &Path, dir: &Path, into: &mut BTreeMap<String, OnDisk>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if meta.is_dir() {
            list(root, &path, into)?;
        } else if name != "lock" {
            let written = (meta.ino(), meta.mtime(), meta.mtime_nsec());
            into.insert(name, OnDisk { written, mode: meta.mode() & 0o7777 });
        }
    }
    Ok(())
}

/// Where a secret's value was seen that must not be there.
fn leaks(seen: &Seen) -> BTreeSet<&'static str> {
    let mut places = vec![
        ("docker's arguments", format!("{:?}", seen.docker)),
        ("a request to tenancy", format!("{:?}", seen.tenancy)),
        ("an address at OpenBao", format!("{:?}", seen.bao)),
        ("state.json", seen.after.state_json.clone()),
    ];
    if let Some(tick) = &seen.tick {
        places.push(("the journal", format!("{:?}", tick.notes)));
        places.push(("the machine's effects", format!("{:?}", tick.effects)));
    }
    let secrets = [DB_PASSWORD, PULL_PASSWORD];
    places.retain(|(_, text)| secrets.iter().any(|secret| text.contains(secret)));
    places.into_iter().map(|(place, _)| place).collect()
}

/// A file on a box's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// Inode and time: another pair means that it was written.
    pub written: (u64, i64, i64),
    /// Its permissions.
    pub mode: u32,
}

/// A container, in Docker's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Another id means that it was made anew.
    pub id: String,
    /// The id of its image.
    pub image: String,
    /// State and health.
    pub state: String,
    /// The database's password is in its environment.
    pub has_secret: bool,
}

/// How a box is at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The applied bundle and its generation.
    pub applied: Option<(Sha, Option<i64>)>,
    /// Where the link `current` points.
    pub current: Option<Sha>,
    /// Where the saved token comes from.
    pub token: Option<TokenSource>,
    /// A bootstrap grant waits to be used.
    pub bootstrap_waits: bool,
    /// The leases that tenancy ever granted it.
    pub leases: usize,
    /// The leases that it remembers of the last hour.
    pub leases_remembered: usize,
    /// The bundles that it leaves alone.
    pub quarantined: BTreeSet<Sha>,
    /// The reports that wait to be sent.
    pub reports_waiting: usize,
    /// The containers, by service.
    pub containers: BTreeMap<String, Running>,
    /// The accessors of every token that lives, of any box.
    pub tokens: BTreeSet<String>,
    /// The registries that ask for a login and that Docker has a credential for.
    pub registries: BTreeSet<String>,
    /// The releases on disk.
    pub releases: BTreeSet<Sha>,
    /// The whole of `state.json`.
    pub state_json: String,
    /// Every file below the state directory, but for the lock.
    pub files: BTreeMap<String, OnDisk>,
}

/// One tick, as the loop's watcher saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ticked {
    /// The stages in order.
    pub passed: Vec<StageName>,
    /// Every effect, with the stage that asked for it.
    pub effects: Vec<(StageName, Op)>,
    /// What it said to the journal.
    pub notes: Vec<Note>,
    /// How it ended.
    pub done: Done,
    /// How long it took.
    pub took: Duration,
}

/// Everything that was seen while something was done to one box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// What tenancy wants on it.
    pub desired: Option<Sha>,
    /// How the box was.
    pub before: Facts,
    /// How it is.
    pub after: Facts,
    /// The requests that reached tenancy.
    pub tenancy: Vec<tenancy::Logged>,
    /// The requests that reached OpenBao.
    pub bao: Vec<openbao::Logged>,
    /// The arguments of every call of docker.
    pub docker: Vec<Vec<String>>,
    /// Where secret values were seen that must not be there.
    pub leaks: BTreeSet<&'static str>,
    /// The tick, if there was one.
    pub tick: Option<Ticked>,
}

/// Looks on while a tick runs, and writes the journal like any tick.
#[derive(Default)]
struct Notebook {
    passed: Vec<StageName>,
    effects: Vec<(StageName, Op)>,
    notes: Vec<Note>,
}

impl Watch for Notebook {
    fn passes(&mut self, from: StageName, to: StageName) {
        if self.passed.is_empty() {
            self.passed.push(from);
        }
        self.passed.push(to);
    }

    fn notes(&mut self, note: &Note) {
        Journal.notes(note);
        self.notes.push(note.clone());
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        Journal.asks(machine, effect, now);
        self.effects.push((machine.stage(), effect.op.clone()));
    }

    fn hears(&mut self, input: &Input) {
        Journal.hears(input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_an_argument_a_request_or_the_state_is_seen() {
        assert_eq!(leaks(&Seen::default()), BTreeSet::new());
        let argument = Seen { docker: vec![vec![format!("-e={DB_PASSWORD}")]], ..Seen::default() };
        assert_eq!(leaks(&argument), BTreeSet::from(["docker's arguments"]));
        let mut state = Seen::default();
        state.after.state_json = format!("{{\"x\": \"{PULL_PASSWORD}\"}}");
        assert_eq!(leaks(&state), BTreeSet::from(["state.json"]));
        let body = Value::String(DB_PASSWORD.to_owned());
        let logged =
            tenancy::Logged { method: String::new(), path: String::new(), body, status: None, answer: Value::Null };
        let request = Seen { tenancy: vec![logged], ..Seen::default() };
        assert_eq!(leaks(&request), BTreeSet::from(["a request to tenancy"]));
    }
}
