//! One box on the real stack: real Docker, Compose, registry and OpenBao, the reference tenancy, and the built binary.
//!
//! Invariant: everything a rig makes carries its own name (environment, Compose project, OpenBao mounts), and goes with it.

#[path = "rig/openbao.rs"]
mod openbao;
#[path = "rig/seen.rs"]
pub mod seen;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use monky_deployd::sandbox::tenancy::{BundleFiles, Tenancy};
use serde_json::{Value, json};

use super::stack_env::stack;

/// The Compose versions of the stack, oldest first.
pub fn compose_versions(stack: &BTreeMap<String, String>) -> Vec<String> {
    stack["STACK_COMPOSE_VERSIONS"].split_whitespace().map(str::to_owned).collect()
}

/// Runs a test on every Compose version, all at the same time.
pub fn on_each(test: impl Fn(&mut Rig) + Sync) {
    let Some(stack) = stack() else { return };
    let run = |version: &str| {
        eprintln!("-- Compose {version}");
        let mut rig = Rig::new(&stack, version);
        test(&mut rig);
        rig.the_protocol_was_kept();
    };
    let failed: Vec<String> = thread::scope(|scope| {
        let runs: Vec<_> = compose_versions(&stack)
            .into_iter()
            .map(|version| {
                // Named by the version, so that a panic says on which one.
                let builder = thread::Builder::new().name(format!("Compose {version}"));
                let of_thread = version.clone();
                (version, builder.spawn_scoped(scope, move || run(&of_thread)).unwrap())
            })
            .collect();
        runs.into_iter().filter_map(|(version, thread)| thread.join().is_err().then_some(version)).collect()
    });
    assert!(failed.is_empty(), "failed on Compose {}; its words are above", failed.join(" and "));
}

/// Runs a test on the newest Compose version: for rules in which Compose has no part.
pub fn on_one(test: impl Fn(&mut Rig)) {
    let Some(stack) = stack() else { return };
    let mut rig = Rig::new(&stack, compose_versions(&stack).last().unwrap());
    test(&mut rig);
    rig.the_protocol_was_kept();
}

/// Looks again and again until it is so; after a minute the test has failed.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writes a shell script that can be executed at once.
pub fn executable(path: &Path, lines: &str) {
    // Written by a child: a descriptor that is open for writing here would be in whatever child another test starts at
    // that moment, and a file that someone may write cannot be executed.
    let mut child = Command::new("/bin/sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{lines}\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// A running agent, which does not outlive its test.
pub struct Running(pub Child);

impl Running {
    /// Sends a signal to the agent alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Reads its journal until it says this, and gives what was read; `ended` gives the rest.
    pub fn says(&mut self, words: &str) -> String {
        let mut said = Vec::new();
        // Byte for byte, so that nothing is read that belongs to `ended`.
        for byte in std::io::Read::bytes(self.0.stderr.as_mut().unwrap()) {
            said.push(byte.unwrap());
            if said.ends_with(words.as_bytes()) {
                return String::from_utf8_lossy(&said).into_owned();
            }
        }
        panic!("it ended without {words:?}: {}", String::from_utf8_lossy(&said));
    }

    /// How it ended.
    pub fn ended(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        // Little enough is said for a pipe to hold it.
        let status = self.0.wait().unwrap();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut out).unwrap();
        std::io::Read::read_to_string(self.0.stderr.as_mut().unwrap(), &mut err).unwrap();
        Ran { status: status.code().unwrap_or(-1), stdout: out, stderr: err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A box.
pub struct Rig {
    pub stack: BTreeMap<String, String>,
    pub tenancy: Tenancy,
    pub env_id: String,
    pub project: String,
    pub kv: String,
    pub jwt: String,
    pub dir: tempfile::TempDir,
    settings: BTreeMap<String, String>,
}

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Rig {
    /// A box with its own environment, on the given Compose version.
    pub fn new(stack: &BTreeMap<String, String>, compose: &str) -> Rig {
        Rig::with(stack, compose, BTreeMap::new())
    }

    /// A box whose OpenBao speaks TLS.
    pub fn with_tls(stack: &BTreeMap<String, String>, compose: &str) -> Rig {
        let mut stack = stack.clone();
        for (plain, tls) in [("STACK_BAO_ADDR", "STACK_BAO_TLS_ADDR"), ("STACK_BAO_TOKEN", "STACK_BAO_TLS_TOKEN")] {
            let value = stack[tls].clone();
            stack.insert(plain.to_owned(), value);
        }
        let ca_file = ("bao.ca_file".to_owned(), stack["STACK_BAO_TLS_CA"].clone());
        Rig::with(&stack, compose, BTreeMap::from([ca_file]))
    }

    fn with(stack: &BTreeMap<String, String>, compose: &str, more: BTreeMap<String, String>) -> Rig {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let env_id = format!("env-t{}-{n}", std::process::id());
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env(&env_id);
        let dir = tempfile::Builder::new().prefix("monky-rig-").tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        let mut rig = Rig {
            project: format!("monky-{env_id}"),
            kv: format!("kv-{env_id}"),
            jwt: format!("jwt-{env_id}"),
            stack: stack.clone(),
            tenancy,
            dir,
            settings: BTreeMap::new(),
            env_id,
        };
        let set = |name: &str, value: String| (name.to_owned(), value);
        rig.settings = BTreeMap::from([
            set("env_id", rig.env_id.clone()),
            set("state_dir", rig.state_dir().display().to_string()),
            set("tenancy.scheme", "http".to_owned()),
            set("tenancy.host", "127.0.0.1".to_owned()),
            set("tenancy.port", rig.tenancy.port().to_string()),
            set("tenancy.timeout_s", "10".to_owned()),
            set("bao.addr", stack["STACK_BAO_ADDR"].clone()),
            set("bao.auth_mount", rig.jwt.clone()),
            set("bao.kv_mount", rig.kv.clone()),
            set("docker_bin", format!("{}/bin/docker-{compose}", stack["STACK_DIR"])),
            set("healthy_timeout_s", "60".to_owned()),
            set("stable_s", "1".to_owned()),
            set("registry_host", stack["STACK_REGISTRY"].clone()),
        ]);
        rig.settings.extend(more);
        rig.set_up_openbao();
        rig.write_config();
        rig
    }

    /// An image of the stack's registry.
    pub fn image(&self, name: &str) -> String {
        format!("{}/monky/{name}", self.stack["STACK_REGISTRY"])
    }

    /// A bundle: `compose.yaml`, in which `@web:1` is that image of the stack's registry, the manifest's entries, and more
    /// files (which go before the generated ones).
    pub fn bundle(&self, generation: i64, compose: &str, entries: &[Value], files: &[(&str, &str)]) -> BundleFiles {
        let mut bundle = BundleFiles::new();
        let mut put = |path: &str, text: &str| bundle.insert(path.to_owned(), text.as_bytes().to_vec());
        let image = |name: &str| self.image(name);
        put("compose.yaml", &compose.replace("@web:", &image("web:")).replace("@tool:", &image("tool:")));
        put("meta.json", &json!({"env_id": self.env_id, "generation": generation}).to_string());
        put("manifest.json", &json!({ "entries": entries }).to_string());
        for (path, text) in files {
            put(path, text);
        }
        bundle
    }

    /// A bundle whose one secret is the registry credential, which is written too.
    pub fn simple(&self, generation: i64, compose: &str, files: &[(&str, &str)]) -> BundleFiles {
        self.registry_secret();
        self.bundle(generation, compose, &[self.registry_entry()], files)
    }

    /// Desires a bundle, which a tick applies; gives its sha.
    pub fn deploy(&self, bundle: &BundleFiles) -> String {
        let sha = self.desire(bundle);
        let ran = self.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        sha
    }

    /// A tick that must fail (exit 1) with this code; gives what it said.
    pub fn tick_fails(&self, code: &str) -> Ran {
        let ran = self.tick_ends(1);
        assert!(ran.stdout.trim().ends_with(code), "{code} expected: {ran:?}");
        assert_eq!(self.status()["last_error"]["code"], json!(code));
        let report = self.report();
        assert_eq!((&report["result"], &report["code"]), (&json!("failed"), &json!(code)));
        ran
    }

    /// A tick that must wait (exit 75) with this code; gives what it said.
    pub fn tick_waits(&self, code: &str) -> Ran {
        let ran = self.tick_ends(75);
        assert!(ran.stdout.trim().ends_with(code), "{code} expected: {ran:?}");
        assert_eq!(self.status()["trouble"]["code"], json!(code));
        ran
    }

    /// Publishes a bundle, desires it, and gives its sha.
    pub fn desire(&self, bundle: &BundleFiles) -> String {
        let sha = self.tenancy.publish(&self.env_id, bundle);
        self.tenancy.desire(&self.env_id, Some(&sha));
        sha
    }

    /// A setting as it is now.
    pub fn setting(&self, key: &str) -> String {
        self.settings[key].clone()
    }

    /// Changes a setting, e.g. `bao.addr`.
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.insert(key.to_owned(), value.to_owned());
        self.write_config();
    }

    /// Takes a setting out.
    pub fn unset(&mut self, key: &str) {
        self.settings.remove(key);
        self.write_config();
    }

    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The agent's `TMPDIR`.
    pub fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    fn write_config(&self) {
        let mut text = String::new();
        let mut sections: BTreeMap<&str, String> = BTreeMap::new();
        for (key, value) in &self.settings {
            match key.split_once('.') {
                None => text.push_str(&format!("{key}: {value}\n")),
                Some((section, key)) => {
                    sections.entry(section).or_default().push_str(&format!("  {key}: {value}\n"));
                }
            }
        }
        for (section, lines) in sections {
            text.push_str(&format!("{section}:\n{lines}"));
        }
        fs::write(self.config_file(), text).unwrap();
    }

    /// The binary with this box's configuration and a nearly empty environment.
    pub fn command(&self, args: &[&str]) -> Command {
        // The benches bring their own; examples have none, and run none.
        let built = std::env::var_os("MONKY_DEPLOYD_BIN")
            .or_else(|| option_env!("CARGO_BIN_EXE_monky-deployd").map(Into::into))
            .expect("cargo names the binary to tests and benches");
        let mut command = Command::new(built);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DOCKER_HOST", &self.stack["STACK_DOCKER_HOST"])
            .env("TMPDIR", self.tmp())
            .arg("--config")
            .arg(self.config_file())
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs the binary.
    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    /// Starts the binary.
    pub fn start(&self, args: &[&str]) -> Running {
        Running(self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// A tick, as the timer runs it.
    pub fn tick(&self) -> Ran {
        self.run(&["tick"])
    }

    /// A tick that must end like this.
    pub fn tick_ends(&self, status: i32) -> Ran {
        let ran = self.tick();
        assert_eq!(ran.status, status, "{ran:?}");
        ran
    }

    /// Hands the box a bootstrap grant, and gives it.
    pub fn bootstrap(&self) -> String {
        let grant = self.tenancy.mint_bootstrap_grant(&self.env_id, 600);
        let mut command = self.command(&["bootstrap", "--grant-file", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(grant.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        grant
    }
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let label = format!("label=com.docker.compose.project={}", self.project);
        let all = |list: &[&str]| -> Vec<String> {
            let output = self.docker(&[list, &["--filter", &label]].concat());
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        };
        let remove = |verb: &[&str], ids: Vec<String>| {
            if !ids.is_empty() {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                self.docker(&[verb, &ids].concat());
            }
        };
        remove(&["rm", "-f", "-v"], all(&["ps", "-aq"]));
        remove(&["network", "rm"], all(&["network", "ls", "-q"]));
        remove(&["volume", "rm", "-f"], all(&["volume", "ls", "-q"]));
        for path in [
            format!("sys/mounts/{}", self.kv),
            format!("sys/auth/{}", self.jwt),
            format!("sys/policies/acl/{}-read", self.env_id),
        ] {
            // A second panic would hide the first.
            let _ = self.ask_bao("DELETE", &path, &Value::Null);
        }
    }
}
