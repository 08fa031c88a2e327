//! A box on the stand-ins whose ways to tenancy and OpenBao lead through proxies, driven by the built binary.
//!
//! Invariant: before each fault the box runs a release that is healthy, and another one is desired.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use monky_deployd::sandbox::docker::{Behaviour, Pace};
use serde_json::{Value, json};

use super::common::stand::{Secrets, Stand};
use super::proxy::{Call, Does, Plan, Proxy};

pub const EXE: &str = env!("CARGO_BIN_EXE_monky-deployd");
const ENV: &str = "env-lab-01";
/// Longer than anything that a box remembers of leases, tokens and failures.
const LONG_S: i64 = 4000;

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// A box.
pub struct Box {
    pub stand: Stand,
    pub tenancy: Proxy,
    pub bao: Proxy,
    pub config: PathBuf,
    generation: u64,
}

impl Box {
    /// A new box with a healthy release. `timeout_s` is for a call to either server.
    pub fn new(timeout_s: u64) -> Box {
        let secrets = Secrets { db_password: "db-canary-0451".into(), pull_password: "pull-canary-0451".into() };
        let stand = Stand::new(Path::new(EXE), ENV, secrets, "");
        for image in ["shop/web:1.0", "shop/db:16"] {
            stand.image(image, Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 }), &[]);
        }
        stand.bao.token_ttl(ENV, 3600, 1_000_000_000);
        stand.tenancy.grant_ttl(1_000_000_000);
        stand.tenancy.lease_budget(None);
        let tenancy = Proxy::start(format!("127.0.0.1:{}", stand.tenancy.port()).parse().unwrap());
        let bao = Proxy::start(format!("127.0.0.1:{}", stand.bao.port()).parse().unwrap());
        let config = stand.dir().join("wire.yaml");
        let yaml = fs::read_to_string(stand.config_file()).unwrap();
        let through = yaml
            .replace(
                &format!("  host: 127.0.0.1\n  port: {}\n", stand.tenancy.port()),
                &format!("  host: {}\n  port: {}\n  timeout_s: {timeout_s}\n", tenancy.at.ip(), tenancy.at.port()),
            )
            .replace(
                &format!("  addr: {}\n", stand.bao.addr()),
                &format!("  addr: http://{}\n  timeout_s: {timeout_s}\n", bao.at),
            );
        assert_eq!(through.matches("timeout_s: ").count(), 3, "{through}");
        fs::write(&config, through).unwrap();
        let mut new = Box { stand, tenancy, bao, config, generation: 0 };
        new.desire_another();
        let ran = new.tick();
        assert_eq!((ran.status, ran.stdout.split(' ').next()), (Some(0), Some("applied")), "{ran:?}");
        new
    }

    pub fn state_dir(&self) -> &Path {
        &self.stand.config.state_dir
    }

    fn desire_another(&mut self) {
        self.generation += 1;
        self.stand.desire(self.generation, "web:1.0", &[]);
    }

    /// Desires another release and sees to it that the next tick makes this call.
    pub fn will_call(&mut self, call: Call) {
        self.desire_another();
        let remove = |name: &str| fs::remove_file(self.state_dir().join(name)).unwrap();
        match call {
            Call::Checkin | Call::Bundle | Call::Report | Call::Lookup | Call::Read => {}
            Call::Lease => {
                self.stand.age(LONG_S);
                remove("token.json");
                remove("grant.json");
            }
            Call::Login => remove("token.json"),
            Call::Renew => self.stand.age(3100),
            Call::Revoke => drop(self.stand.bootstrap()),
        }
    }

    /// The proxy on the way of a call.
    pub fn way(&self, call: Call) -> &Proxy {
        if call.is_tenancys() { &self.tenancy } else { &self.bao }
    }

    /// Lets a call go wrong so many times.
    pub fn goes_wrong(&self, call: Call, does: Does, times: usize) {
        let before = match call {
            Call::Checkin | Call::Login | Call::Lookup => 0,
            Call::Bundle | Call::Renew | Call::Read => 1,
            Call::Lease | Call::Report | Call::Revoke => 2,
        };
        self.tenancy.disarm();
        self.bao.disarm();
        self.way(call).arm(Plan { call, does, before, times });
    }

    /// Nothing goes wrong any more, and whatever had to be waited for is over.
    pub fn is_left_alone(&self, for_long: bool) {
        self.tenancy.disarm();
        self.bao.disarm();
        if for_long {
            self.stand.age(LONG_S);
        }
    }

    /// The binary with this box's configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EXE);
        command.env_clear().arg("--config").arg(&self.config).args(args).stdin(Stdio::null());
        command
    }

    /// A tick.
    pub fn tick(&self) -> Ran {
        Ran::of(&mut self.command(&["tick"]))
    }

    /// The containers: which, and since when they run.
    pub fn containers(&self) -> BTreeMap<String, String> {
        let world = self.stand.docker.world().unwrap();
        world
            .containers
            .iter()
            .map(|one| (one.id.clone(), format!("{:?}", one.inspect(0)["State"]["StartedAt"])))
            .collect()
    }

    /// How many calls of Docker touched something.
    pub fn touches(&self) -> usize {
        let calls = self.stand.docker.calls().unwrap();
        calls.iter().filter(|call| call.args.iter().any(|arg| matches!(arg.as_str(), "up" | "pull" | "rm"))).count()
    }

    /// The reports that wait.
    pub fn outbox(&self) -> Vec<String> {
        let names = fs::read_dir(self.state_dir().join("outbox")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Every file of the agent's own is whole, and none was set aside or left behind.
    pub fn state_is_whole(&self) {
        for name in ["state.json", "token.json", "grant.json"] {
            if let Ok(text) = fs::read(self.state_dir().join(name)) {
                serde_json::from_slice::<Value>(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        for entry in fs::read_dir(self.state_dir()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.contains("corrupt") && !name.contains("tmp"), "{name} is in the state directory");
        }
    }

    /// How many leases the box remembers to have spent from this moment on (milliseconds since 1970).
    pub fn leases_since(&self, began: i64) -> usize {
        let text = fs::read(self.state_dir().join("state.json")).unwrap();
        let state: Value = serde_json::from_slice(&text).unwrap();
        state["leases"].as_array().unwrap().iter().filter(|at| at.as_i64().unwrap() >= began).count()
    }

    /// The secrets that a text may not hold.
    pub fn secrets(&self) -> Vec<String> {
        let mut all = vec!["db-canary-0451".to_owned(), "pull-canary-0451".to_owned()];
        for (name, field) in [("token.json", "client_token"), ("grant.json", "grant")] {
            if let Ok(text) = fs::read(self.state_dir().join(name)) {
                let content: Value = serde_json::from_slice(&text).unwrap();
                all.push(content[field].as_str().unwrap().to_owned());
            }
        }
        all
    }

    /// The box runs what is desired, and tenancy was told.
    pub fn converged(&self) {
        let state: Value = serde_json::from_slice(&fs::read(self.state_dir().join("state.json")).unwrap()).unwrap();
        let applied = state["good"].as_array().and_then(|good| good.last()).unwrap()["sha"].as_str().unwrap();
        let current = fs::read_link(self.state_dir().join("current")).unwrap();
        assert!(current.ends_with(applied), "{applied}: {current:?}");
        let reported = self.stand.tenancy.reports().last().cloned().unwrap_or_default();
        assert_eq!((&reported["sha"], &reported["result"]), (&json!(applied), &json!("applied")), "{state}");
        assert_eq!(self.outbox(), [""; 0]);
        let running = self.stand.docker.world().unwrap().containers.len();
        assert_eq!(running, 2, "containers");
    }
}

impl Ran {
    /// Runs it to its end.
    pub fn of(command: &mut Command) -> Ran {
        let started = Instant::now();
        let output = command.output().unwrap();
        Ran {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: started.elapsed(),
        }
    }

    /// The end of one that was started with pipes.
    pub fn ended(child: Child, started: Instant) -> Ran {
        let output = child.wait_with_output().unwrap();
        Ran {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: started.elapsed(),
        }
    }
}
