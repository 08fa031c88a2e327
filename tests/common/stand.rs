//! One box on the stand-ins: the real machine, drivers, HTTP, child processes and files; tenancy, OpenBao and Docker
//! are embedded.
//!
//! Invariant: a recording comes from the loop and the recorder that a tick uses, and nothing is changed in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monky_deployd::config::Config;
use monky_deployd::drivers::clock::{Cancel, Clock};
use monky_deployd::drivers::record::{LARGEST, Recorder};
use monky_deployd::drivers::run_loop::{self, Ended};
use monky_deployd::drivers::store::Store;
use monky_deployd::drivers::vault::Vault;
use monky_deployd::drivers::world::World;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Options};
use monky_deployd::sandbox::docker::{Behaviour, DockerStandIn, Image};
use monky_deployd::sandbox::openbao::{Auth, OpenBao};
use monky_deployd::sandbox::tenancy::{Tenancy, files};
use serde_json::{Value, json};

/// The registry that the images come from; it lets in only whoever has the credential.
pub const REGISTRY: &str = "registry.example";

/// The values that only containers and servers may have.
#[derive(Clone, Debug)]
pub struct Secrets {
    pub db_password: String,
    pub pull_password: String,
}

/// A box.
pub struct Stand {
    pub tenancy: Tenancy,
    pub bao: OpenBao,
    pub docker: DockerStandIn,
    pub env_id: String,
    pub config: Config,
    secrets: Secrets,
    ticks: u64,
    // Last, so that it goes after what lies in it.
    dir: tempfile::TempDir,
}

/// A tick and its recording.
pub struct Ticked {
    pub done: Done,
    pub recording: String,
}

impl Stand {
    /// A new box. `exe` is an executable that is Docker under the name `docker`; `more` goes into the configuration.
    pub fn new(exe: &Path, env_id: &str, secrets: Secrets, more: &str) -> Stand {
        let dir = tempfile::Builder::new().prefix("monky-stand-").tempdir().unwrap();
        let tenancy = Tenancy::start().unwrap();
        let auth = Auth { issuer: tenancy.issuer(), public_key_pem: tenancy.public_key_pem() };
        let bao = OpenBao::start(&auth).unwrap();
        let docker = DockerStandIn::install(&dir.path().join("bin"), exe).unwrap();
        let yaml = format!(
            "env_id: {env_id}\nsite: lab\ntenancy:\n  scheme: http\n  host: 127.0.0.1\n  port: {}\nbao:\n  addr: {}\n\
             state_dir: {}\ndocker_bin: {}\nregistry_host: {REGISTRY}\nhealthy_timeout_s: 30\nstable_s: 1\n{more}",
            tenancy.port(),
            bao.addr(),
            dir.path().join("state").display(),
            docker.bin().display(),
        );
        fs::write(dir.path().join("config.yaml"), &yaml).unwrap();
        let config = Config::parse("config.yaml", &yaml).unwrap();
        let env_id = env_id.to_owned();
        let stand = Stand { tenancy, bao, docker, env_id, config, secrets, ticks: 0, dir };
        stand.tenancy.add_env(&stand.env_id);
        stand.secret("db", json!({"value": stand.secrets.db_password}));
        let credential = json!({"username": "puller", "password": stand.secrets.pull_password}).to_string();
        stand.secret("registry", json!({"value": credential}));
        stand.image("shop/db:16", Behaviour::Runs, &[]);
        stand
    }

    /// Where its configuration is.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    /// Where everything of it is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a secret of this environment.
    pub fn secret(&self, name: &str, data: Value) {
        self.bao.put_secret(&format!("monky/{}/{name}", self.env_id), data);
    }

    /// Puts an image into the registry.
    pub fn image(&self, name: &str, behaviour: Behaviour, logs: &[String]) {
        let mut image = Image::new(name, behaviour);
        image.logs = logs.to_vec();
        let login = Some(("puller".to_owned(), self.secrets.pull_password.clone()));
        self.docker
            .edit(|world| {
                world.publish(&format!("{REGISTRY}/{name}"), image);
                world.registries.get_mut(REGISTRY).unwrap().login = login;
            })
            .unwrap();
    }

    /// Desires a bundle of a web server and a database. `more` are the names of further secrets.
    pub fn desire(&self, generation: u64, web: &str, more: &[String]) {
        let entry = |name: &str| format!("monky/{}/{name}", self.env_id);
        let mut entries = vec![
            json!({"var": "DB_PASSWORD", "path": entry("db")}),
            json!({"use": "registry-auth", "path": entry("registry")}),
        ];
        entries.extend(more.iter().map(|name| json!({"var": name.to_uppercase(), "path": entry(name)})));
        self.desire_with(generation, web, &entries);
    }

    /// The same with the entries of the manifest.
    pub fn desire_with(&self, generation: u64, web: &str, entries: &[Value]) {
        let compose = format!(
            "services:\n  web:\n    image: {REGISTRY}/shop/{web}\n    environment:\n      DB_PASSWORD: \
             ${{DB_PASSWORD:-}}\n    volumes: [\"./web.conf:/etc/web.conf:ro\"]\n    restart: unless-stopped\n  db:\n    \
             image: {REGISTRY}/shop/db:16\n    environment:\n      POSTGRES_PASSWORD: ${{DB_PASSWORD:-}}\n    restart: \
             unless-stopped\n"
        );
        let meta = json!({"env_id": self.env_id, "generation": generation}).to_string();
        let manifest = json!({ "entries": entries }).to_string();
        let bundle = files([
            ("compose.yaml", compose.as_str()),
            ("manifest.json", &manifest),
            ("meta.json", &meta),
            ("web.conf", "listen 80\n"),
        ]);
        let sha = self.tenancy.publish(&self.env_id, &bundle);
        self.tenancy.desire(&self.env_id, Some(&sha));
    }

    /// Stores a bootstrap grant, and gives it.
    pub fn bootstrap(&self) -> String {
        let grant = self.tenancy.mint_bootstrap_grant(&self.env_id, 3600);
        self.store().save_bootstrap(&grant).unwrap();
        grant
    }

    fn store(&self) -> Store {
        Store::open(&self.config.state_dir, Arc::new(Vault::default())).unwrap()
    }

    /// Lets time pass: the servers' clocks go on, and what the box remembers gets older.
    pub fn age(&self, seconds: i64) {
        self.tenancy.advance(seconds);
        self.bao.advance(seconds);
        for name in ["state.json", "token.json", "grant.json"] {
            let file = self.config.state_dir.join(name);
            let Ok(text) = fs::read(&file) else { continue };
            let mut content: Value = serde_json::from_slice(&text).unwrap();
            older(&mut content, seconds * 1000);
            fs::write(&file, content.to_string()).unwrap();
        }
    }

    /// A tick.
    pub fn tick(&mut self) -> Ticked {
        self.ticks += 1;
        Stand::tick_of(&self.config, self.ticks)
    }

    /// A tick of the box with this configuration.
    pub fn tick_of(config: &Config, seed: u64) -> Ticked {
        let (clock, vault) = (Clock::start(), Arc::new(Vault::default()));
        let store = Store::open(&config.state_dir, Arc::clone(&vault)).unwrap();
        let loaded = store.load_state(clock.now()).unwrap();
        let boot = Boot {
            settings: config.settings.clone(),
            options: Options::default(),
            state: loaded.state,
            local: loaded.local,
            seed,
            now: clock.now(),
        };
        let world = World::new(config.clone(), store, vault, clock.clone(), Cancel::default(), seed);
        let mut recorder = Recorder::new(LARGEST);
        let Ended::Done(done) = run_loop::run(boot, &world, &mut recorder) else { panic!("nobody asked it to end") };
        let recording = recorder.finish(Some(&done), clock.now());
        Ticked { done, recording }
    }
}

/// Makes every moment in it earlier. A moment is a number of milliseconds since 1970, and no other number is as large.
fn older(value: &mut Value, ms: i64) {
    match value {
        Value::Number(number) => {
            if let Some(at) = number.as_i64().filter(|at| *at > 1_000_000_000_000) {
                *value = (at - ms).into();
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| older(value, ms)),
        Value::Object(all) => all.values_mut().for_each(|value| older(value, ms)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
