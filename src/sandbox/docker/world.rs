//! What the stand-in's Docker knows: registries, images, containers, and what is to go wrong.
//!
//! Invariant: a container's state is computed from its course, the time and the number of looks; it is not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::effects::Sha;

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One call that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Its arguments, without the program.
    pub args: Vec<String>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct World {
    /// The engine's version.
    pub engine: String,
    /// The Compose plugin's version; none: there is no plugin.
    pub compose: Option<String>,
    /// How the daemon is.
    pub daemon: Daemon,
    /// Registries by host (`host[:port]`).
    pub registries: BTreeMap<String, Registry>,
    /// Pulled images by reference.
    pub images: BTreeMap<String, Image>,
    /// What containers of a service do, whatever their image says.
    pub behaviours: BTreeMap<String, Behaviour>,
    /// Containers, oldest first.
    pub containers: Vec<Container>,
    /// What is to go wrong.
    pub mishaps: Vec<Mishap>,
    /// A pull finds no space.
    pub disk_full: bool,
    /// Ports that something else has.
    pub busy_ports: BTreeSet<u16>,
    /// Containers made so far.
    pub made: u64,
}

impl Default for World {
    fn default() -> World {
        World {
            engine: "28.2.2".to_owned(),
            compose: Some("2.40.3".to_owned()),
            daemon: Daemon::Up,
            registries: BTreeMap::new(),
            images: BTreeMap::new(),
            behaviours: BTreeMap::new(),
            containers: Vec::new(),
            mishaps: Vec::new(),
            disk_full: false,
            busy_ports: BTreeSet::new(),
            made: 0,
        }
    }
}

/// How the daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Daemon {
    /// Answers.
    Up,
    /// Not there.
    Down,
    /// Accepts, and never answers.
    Hangs,
}

/// What a registry has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Registry {
    /// The user and password it asks for.
    pub login: Option<(String, String)>,
    /// Its images by `repository:tag`.
    pub images: BTreeMap<String, Image>,
}

/// An image, and what a container of it will do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `sha256:` and 64 hex digits.
    pub id: String,
    /// What a container of it does.
    pub behaviour: Behaviour,
    /// What a container of it logs.
    #[serde(default)]
    pub logs: Vec<String>,
}

impl Image {
    /// An image whose id is the digest of some text.
    pub fn new(content: &str, behaviour: Behaviour) -> Image {
        Image { id: format!("sha256:{}", Sha::of(content.as_bytes()).as_str()), behaviour, logs: Vec::new() }
    }
}

/// When something comes true: not before so many looks (`inspect`) and not before so many milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// Looks that come before.
    pub looks: u32,
    /// Milliseconds since the start.
    pub ms: u64,
}

/// What a container does. One that exits is started again if its service's `restart` says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "does", rename_all = "snake_case")]
pub enum Behaviour {
    /// Runs, without a healthcheck of the image's own.
    Runs,
    /// Its healthcheck passes, in the end.
    GetsHealthy(Pace),
    /// Its healthcheck fails, in the end.
    GetsUnhealthy(Pace),
    /// Ends.
    Exits {
        /// With this.
        code: u8,
        /// When.
        #[serde(flatten)]
        after: Pace,
    },
    /// Cannot be started.
    NotStartable {
        /// What the engine says.
        error: String,
    },
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// 64 hex digits.
    pub id: String,
    /// Without the leading slash.
    pub name: String,
    /// The image it was made of.
    pub image: Image,
    /// All of them, Compose's too.
    pub labels: BTreeMap<String, String>,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// Its service has a healthcheck.
    pub healthcheck: bool,
    /// `no`, `on-failure`, `always`, `unless-stopped`.
    pub restart: String,
    /// When it was made, in milliseconds.
    pub created_ms: u64,
    /// When it was started; none: never.
    pub started_ms: Option<u64>,
    /// Why it could not be started.
    #[serde(default)]
    pub error: String,
    /// How often it was inspected since its start.
    #[serde(default)]
    pub looks: u32,
}

impl Container {
    /// One of its labels.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Its project.
    pub fn project(&self) -> &str {
        self.label("com.docker.compose.project")
    }

    /// Its service.
    pub fn service(&self) -> &str {
        self.label("com.docker.compose.service")
    }

    fn is_due(&self, pace: Pace, now: u64) -> bool {
        let since = self.started_ms.map_or(0, |started| now.saturating_sub(started));
        self.looks > pace.looks && since >= pace.ms
    }

    /// Docker's word for what it does, and its exit code.
    pub fn state(&self, now: u64) -> (&'static str, i64) {
        if self.started_ms.is_none() {
            return ("created", if self.error.is_empty() { 0 } else { 127 });
        }
        match &self.image.behaviour {
            Behaviour::Exits { code, after } if self.is_due(*after, now) => {
                let again = match self.restart.as_str() {
                    "always" | "unless-stopped" => true,
                    "on-failure" => *code != 0,
                    _ => false,
                };
                (if again { "restarting" } else { "exited" }, i64::from(*code))
            }
            _ => ("running", 0),
        }
    }

    /// Docker's word for its healthcheck's verdict.
    pub fn health(&self, now: u64) -> Option<&'static str> {
        match &self.image.behaviour {
            Behaviour::GetsHealthy(pace) => Some(if self.is_due(*pace, now) { "healthy" } else { "starting" }),
            Behaviour::GetsUnhealthy(pace) => Some(if self.is_due(*pace, now) { "unhealthy" } else { "starting" }),
            Behaviour::Runs if self.healthcheck => Some("healthy"),
            _ => None,
        }
    }

    /// What `docker inspect` says.
    pub fn inspect(&self, now: u64) -> Value {
        let (status, exit_code) = self.state(now);
        let restarts = if status == "restarting" { u64::from(self.looks) } else { 0 };
        let never = "0001-01-01T00:00:00Z".to_owned();
        let started = self.started_ms.map_or_else(|| never.clone(), |at| words(at + 1000 * restarts));
        let ended = matches!(status, "restarting" | "exited");
        let mut state = json!({
            "Status": status,
            "Running": matches!(status, "running" | "restarting"),
            "Paused": false,
            "Restarting": status == "restarting",
            "OOMKilled": false,
            "Dead": false,
            "Pid": if status == "running" { 4711 } else { 0 },
            "ExitCode": exit_code,
            "Error": self.error,
            "StartedAt": started,
            "FinishedAt": if ended { started.clone() } else { never },
        });
        if let (Some(health), Some(state)) = (self.health(now), state.as_object_mut()) {
            let streak = u8::from(health == "unhealthy") * 3;
            state.insert("Health".to_owned(), json!({"Status": health, "FailingStreak": streak, "Log": []}));
        }
        let environment: Vec<String> = self.environment.iter().map(|(key, value)| format!("{key}={value}")).collect();
        json!({
            "Id": self.id,
            "Created": words(self.created_ms),
            "Name": format!("/{}", self.name),
            "Image": self.image.id,
            "RestartCount": restarts,
            "State": state,
            "Config": {"Labels": self.labels, "Env": environment},
            "HostConfig": {"RestartPolicy": {"Name": self.restart, "MaximumRetryCount": 0}},
        })
    }
}

/// A moment as Docker writes it.
fn words(ms: u64) -> String {
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}

/// Something that is to go wrong with a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mishap {
    /// `version`, `compose version`, `config`, `pull`, `up`, `ps`, `rm`, `inspect`, `logs` or `image rm`.
    pub verb: String,
    /// How often; none: always.
    pub times: Option<u32>,
    /// What.
    pub fault: Fault,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It never ends by itself.
    Hang,
    /// It takes so many milliseconds, then does what it should.
    Slow(u64),
    /// It does nothing, says this on stderr, and ends with this status.
    Fail(u8, String),
}

impl World {
    /// Puts an image into a registry; `reference` is `host/repository:tag`.
    pub fn publish(&mut self, reference: &str, image: Image) {
        let (host, name) = split_reference(reference);
        self.registries.entry(host).or_default().images.insert(name, image);
    }

    /// Has the containers of a service do something else than their image says (from their making on).
    pub fn behaves(&mut self, service: &str, behaviour: Behaviour) {
        self.behaviours.insert(service.to_owned(), behaviour);
    }

    /// Has a verb go wrong so many times.
    pub fn go_wrong(&mut self, verb: &str, times: Option<u32>, fault: Fault) {
        self.mishaps.push(Mishap { verb: verb.to_owned(), times, fault });
    }

    /// What goes wrong with a verb this time.
    pub(super) fn mishap(&mut self, verb: &str) -> Option<Fault> {
        let found = self.mishaps.iter_mut().find(|mishap| mishap.verb == verb && mishap.times != Some(0))?;
        found.times = found.times.map(|times| times.saturating_sub(1));
        Some(found.fault.clone())
    }

    /// An id that no container had yet.
    pub(super) fn new_id(&mut self) -> String {
        self.made += 1;
        Sha::of(format!("container {}", self.made).as_bytes()).as_str().to_owned()
    }

    pub(super) fn load(dir: &Path) -> io::Result<World> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(super::WORLD))?)?)
    }

    pub(super) fn save(&self, dir: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.persist(dir.join(super::WORLD))?;
        Ok(())
    }
}

/// A reference as registry host and `repository:tag` (or `repository@digest`).
pub(super) fn split_reference(reference: &str) -> (String, String) {
    let (host, name) = match reference.split_once('/') {
        Some((host, name)) if host.contains(['.', ':']) || host == "localhost" => (host.to_owned(), name.to_owned()),
        Some(_) => ("registry-1.docker.io".to_owned(), reference.to_owned()),
        None => ("registry-1.docker.io".to_owned(), format!("library/{reference}")),
    };
    if name.contains([':', '@']) { (host, name) } else { (host, format!("{name}:latest")) }
}
