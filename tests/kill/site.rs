//! A box whose every step is traced, with a gate before its registry and its OpenBao, and what must hold of it once
//! the dust has settled.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use monky_deployd::sandbox::tenancy::BundleFiles;
use serde_json::{Value, json};

use crate::common::forms::forms_of;
use crate::common::rig::{self, Rig, compose_versions, executable, wait_until};
use crate::common::stack_env::stack;
use crate::gate::Gate;
use crate::watch::Process;

/// Ticks after which everything has to be settled.
const TICKS: usize = 3;

/// The box.
pub struct Site {
    // Dropped in this order: containers, then their images, then the way to the servers.
    pub rig: Rig,
    _images: Images,
    pub registry: Gate,
    pub bao: Gate,
    /// The newest generation that was published.
    pub generation: Cell<i64>,
    secrets: std::cell::RefCell<Vec<String>>,
}

/// The images that were pulled through a gate, by names that no other box has.
struct Images {
    host: String,
    registry: String,
}

impl Drop for Images {
    fn drop(&mut self) {
        for image in ["web:1", "web:2", "tool:1"] {
            let name = format!("{}/monky/{image}", self.registry);
            let _ = Command::new("docker").env("DOCKER_HOST", &self.host).args(["rmi", &name]).output();
        }
    }
}

/// What a settled box is to look like.
pub struct Settled<'a> {
    /// What runs: the release of this sha and generation.
    pub runs: (&'a str, i64),
    /// What a tick then says.
    pub says: String,
    /// And its exit status.
    pub exit: i32,
}

impl Site {
    /// A new box on the newest Compose version; none if the real stack is switched off.
    pub fn new() -> Option<Site> {
        let stack = stack()?;
        let version = compose_versions(&stack).last().unwrap().clone();
        let (registry, bao) = (Gate::before(&stack["STACK_REGISTRY"]), Gate::before(host(&stack["STACK_BAO_ADDR"])));
        let mut rig = Rig::new(&stack, &version);
        rig.stack.insert("STACK_REGISTRY".to_owned(), registry.address());
        rig.set("registry_host", &registry.address());
        rig.set("bao.addr", &format!("http://{}", bao.address()));
        let docker = rig.dir.path().join("docker");
        let trace = rig.dir.path().join("trace");
        executable(
            &docker,
            &format!("echo \"$*\" >>'{}'\nexec '{}' \"$@\"", trace.display(), rig.setting("docker_bin")),
        );
        rig.set("docker_bin", docker.to_str().unwrap());
        // A machine that does much else is no failure.
        rig.set("healthy_timeout_s", "300");
        rig.tenancy.lease_budget(None);
        rig.registry_secret();
        let images = Images { host: stack["STACK_DOCKER_HOST"].clone(), registry: registry.address() };
        let secrets = vec![stack["STACK_REGISTRY_PASSWORD"].clone()].into();
        Some(Site { rig, _images: images, registry, bao, generation: Cell::new(0), secrets })
    }

    /// The children that were started, each by its arguments.
    pub fn trace(&self) -> Vec<String> {
        let text = fs::read_to_string(self.rig.dir.path().join("trace")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The outbox; empty before there is one.
    pub fn outbox(&self) -> Vec<String> {
        if self.rig.has("outbox") { self.rig.outbox() } else { Vec::new() }
    }

    /// The next bundle: `db` stays as it is, `early` and `web` change, and `web` waits until `early` is healthy.
    pub fn bundle(&self) -> BundleFiles {
        let generation = self.generation.get() + 1;
        self.generation.set(generation);
        let value = format!("c4n4ry-{generation}-{}", self.rig.env_id);
        self.rig.secret("db", json!({ "value": value }));
        self.secrets.borrow_mut().push(value);
        let web = 1 + generation % 2;
        let changes = format!(
            "environment: {{P: '${{P}}'}}, labels: {{rig.generation: '{generation}'}}, restart: unless-stopped"
        );
        let compose = format!(
            "services:
  db: {{image: '@tool:1', command: [sleep, '100000'], restart: unless-stopped}}
  early: {{image: '@tool:1', command: [sleep, '100000'], {changes}, healthcheck: {{test: [CMD, 'true'], interval: 700ms}}}}
  web: {{image: '@web:{web}', {changes}, depends_on: {{early: {{condition: service_healthy}}}}}}
"
        );
        self.rig.bundle(generation, &compose, &[self.rig.entry("P", "db"), self.rig.registry_entry()], &[])
    }

    /// Lets each deploy lease and log in anew.
    pub fn forget_token(&self) {
        for file in ["token.json", "grant.json"] {
            let _ = fs::remove_file(self.rig.state_dir().join(file));
        }
        self.rig.change_state(|state| state["leases"] = json!([]));
    }

    /// What of the state directory holds secrets by contract: those are learnt.
    fn learn(&self) {
        for name in ["token.json", "grant.json", "bootstrap.jwt"] {
            if self.rig.has(name) {
                let text = String::from_utf8(self.rig.file(name)).unwrap();
                let parsed: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
                let secret =
                    ["client_token", "grant"].iter().find_map(|key| parsed[key].as_str()).unwrap_or(text.trim());
                self.secrets.borrow_mut().push(secret.to_owned());
            }
        }
    }

    /// Ticks until nothing is left to do; gives how many it took. `what` says which point it is.
    pub fn settles(&self, what: &str, settled: &Settled<'_>) -> usize {
        let mut said = Vec::new();
        for ticks in 1..=TICKS {
            self.time_passes();
            let ran = self.rig.tick();
            self.learn();
            said.push(format!("{} {}\n{}", ran.status, ran.stdout.trim(), ran.stderr));
            if self.is_settled(settled) {
                return ticks;
            }
        }
        panic!("{what}: not settled after {TICKS} ticks: {}", said.join("\n--\n"));
    }

    /// The minute between two ticks, in which a backoff may end.
    fn time_passes(&self) {
        if self.rig.has("state.json") && self.rig.state()["attempts"].is_object() {
            self.rig.backoff_is_over();
        }
    }

    fn is_settled(&self, settled: &Settled<'_>) -> bool {
        let status = self.rig.status();
        status["applied"]["sha"] == json!(settled.runs.0) && status["unfinished"].is_null() && self.outbox().is_empty()
    }

    /// Everything that must hold of a box on which nothing is under way. `orphans` may take a minute to end by
    /// themselves, and must not spoil it.
    pub fn is_whole(&self, what: &str, settled: &Settled<'_>, orphans: &[Process]) {
        wait_until(&format!("{what}: the orphans ended"), || orphans.iter().all(|orphan| !orphan.lives()));
        let (sha, generation) = settled.runs;
        // Nothing runs that the release does not name, and nothing is left over.
        let mut services = BTreeMap::new();
        for id in self.rig.all_ids() {
            let seen: Value = serde_json::from_str(&self.rig.docker_says(&["inspect", &id])).unwrap();
            let (container, labels) = (&seen[0], &seen[0]["Config"]["Labels"]);
            let service = labels["com.docker.compose.service"].as_str().unwrap().to_owned();
            assert_eq!(container["State"]["Status"], "running", "{what}: {service}");
            let name = format!("/{}-{service}-1", self.rig.project);
            assert_eq!(container["Name"], json!(name), "{what}: a leftover");
            let of = labels["rig.generation"].as_str().map(str::to_owned);
            assert_eq!(services.insert(service.clone(), of), None, "{what}: {service} runs twice");
        }
        let of = Some(generation.to_string());
        let expected = [("db", None), ("early", of.clone()), ("web", of)].map(|(name, of)| (name.to_owned(), of));
        assert_eq!(services, BTreeMap::from(expected), "{what}");
        assert_eq!(
            String::from_utf8_lossy(&self.rig.environment("web")["P"]),
            format!("c4n4ry-{generation}-{}", self.rig.env_id),
            "{what}"
        );
        let link = fs::read_link(self.rig.state_dir().join("current")).unwrap();
        assert!(link.ends_with(sha), "{what}: current is {link:?}");
        self.nothing_was_left(what);
        let children = self.trace().len();
        let ran = self.rig.tick_ends(settled.exit);
        assert_eq!(ran.stdout.trim(), settled.says, "{what}: {ran:?}");
        assert_eq!(self.trace().len(), children, "{what}: the tick after it starts nothing");
    }

    /// No unfinished file, no file set aside, and no secret where none belongs, in the state directory and in TMPDIR.
    fn nothing_was_left(&self, what: &str) {
        self.learn();
        for (path, (.., content)) in self.rig.everything() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let known = !name.starts_with('.') || [".env", ".monky-deployd.yaml"].contains(&name);
            assert!(known && !name.contains("corrupt"), "{what}: {} was left", path.display());
            if rig::seen::may_hold_secrets(&path) {
                continue;
            }
            let text = String::from_utf8_lossy(&content);
            for secret in self.secrets.borrow().iter() {
                for form in forms_of(secret) {
                    assert!(!text.contains(&form), "{what}: {} holds {form:?}", path.display());
                }
            }
        }
        let temporary: Vec<PathBuf> =
            fs::read_dir(self.rig.tmp()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(temporary.is_empty(), "{what}: {temporary:?} was left");
    }

    /// The outcomes that tenancy was told of a bundle: each once, whatever was sent how often.
    pub fn told(&self, what: &str, sha: &str) -> Vec<Value> {
        let told: Vec<Value> = self.rig.reports().into_iter().filter(|report| report["sha"] == json!(sha)).collect();
        let mut outcomes: Vec<(String, String)> =
            told.iter().map(|report| (report["attempt"].to_string(), report["result"].to_string())).collect();
        outcomes.sort();
        let before = outcomes.len();
        outcomes.dedup();
        assert_eq!(outcomes.len(), before, "{what}: one outcome under two ids: {told:?}");
        told
    }
}

/// The `host:port` of an address.
fn host(address: &str) -> &str {
    address.rsplit_once('/').map_or(address, |(_, host)| host)
}

/// Milliseconds below `most`, the same in every run: the `n`-th of a fixed sequence.
pub fn delay(n: u64, most: u64) -> Duration {
    let mut z = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Duration::from_millis((z ^ (z >> 31)) % most.max(1))
}
