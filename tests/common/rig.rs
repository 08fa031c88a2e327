//! One box on the real stack: real Docker, Compose, registry and OpenBao, the reference tenancy, and the built binary.
//!
//! Invariant: everything a rig makes carries its own name (environment, Compose project, OpenBao mounts), and goes with it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monky_deployd::sandbox::tenancy::{BundleFiles, Tenancy};
use serde_json::{Value, json};

/// The stack's `env` file, or `None` when it is switched off on purpose.
///
/// Without the stack and without `STACK=off` this panics: a suite that quietly does nothing would look green.
pub fn stack() -> Option<BTreeMap<String, String>> {
    if std::env::var("STACK").is_ok_and(|stack| stack == "off") {
        eprintln!("STACK=off: the real stack's tests are left out");
        return None;
    }
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/stack/env");
    let file = std::env::var_os("STACK_ENV").map_or(default, PathBuf::from);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{}: {error}; start the real stack with `make stack-up`, or leave it out with STACK=off", file.display())
    });
    let pair = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.to_owned(), value.trim_matches('\'').to_owned()))
    };
    Some(text.lines().filter_map(pair).collect())
}

/// The Compose versions of the stack, oldest first.
pub fn compose_versions(stack: &BTreeMap<String, String>) -> Vec<String> {
    stack["STACK_COMPOSE_VERSIONS"].split_whitespace().map(str::to_owned).collect()
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
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let env_id = format!("env-t{}-{n}", std::process::id());
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env(&env_id);
        let dir = tempfile::Builder::new().prefix("monky-rig-").tempdir().unwrap();
        let rig = Rig {
            project: format!("monky-{env_id}"),
            kv: format!("kv-{env_id}"),
            jwt: format!("jwt-{env_id}"),
            stack: stack.clone(),
            tenancy,
            dir,
            settings: BTreeMap::from([
                ("docker_bin".to_owned(), format!("{}/bin/docker-{compose}", stack["STACK_DIR"])),
                ("healthy_timeout_s".to_owned(), "60".to_owned()),
                ("stable_s".to_owned(), "2".to_owned()),
                ("registry_host".to_owned(), stack["STACK_REGISTRY"].clone()),
            ]),
            env_id,
        };
        rig.set_up_openbao();
        rig.write_config();
        rig
    }

    fn set_up_openbao(&self) {
        let (env, kv, jwt) = (&self.env_id, &self.kv, &self.jwt);
        self.bao("POST", &format!("sys/mounts/{kv}"), &json!({"type": "kv", "options": {"version": "2"}}));
        self.bao("POST", &format!("sys/auth/{jwt}"), &json!({"type": "jwt"}));
        self.bao(
            "POST",
            &format!("auth/{jwt}/config"),
            &json!({
                "jwt_validation_pubkeys": [self.tenancy.public_key_pem()],
                "jwt_supported_algs": ["EdDSA"],
                "bound_issuer": self.tenancy.issuer(),
            }),
        );
        let policy = format!(
            "path \"{kv}/data/{env}/*\" {{ capabilities = [\"read\"] }}\n\
             path \"auth/token/lookup-self\" {{ capabilities = [\"read\"] }}\n\
             path \"auth/token/renew-self\" {{ capabilities = [\"update\"] }}\n\
             path \"auth/token/revoke-self\" {{ capabilities = [\"update\"] }}\n"
        );
        self.bao("PUT", &format!("sys/policies/acl/{env}-read"), &json!({ "policy": policy }));
        self.role(json!({}));
    }

    /// (Re)writes the role, with changes.
    pub fn role(&self, changes: Value) {
        let mut role = json!({
            "role_type": "jwt", "user_claim": "sub", "bound_audiences": ["openbao"],
            "bound_claims": {"env_id": self.env_id}, "claim_mappings": {"env_id": "env_id"},
            "token_type": "service", "token_ttl": "1h", "token_max_ttl": "4h", "token_no_default_policy": true,
            "token_policies": [format!("{}-read", self.env_id)],
            "clock_skew_leeway": 60, "expiration_leeway": -1, "not_before_leeway": -1,
        });
        for (key, value) in changes.as_object().unwrap() {
            role[key] = value.clone();
        }
        self.bao("POST", &format!("auth/{}/role/env-{}", self.jwt, self.env_id), &role);
    }

    /// A call to OpenBao as root; a failure is the test's.
    pub fn bao(&self, method: &str, path: &str, body: &Value) -> Value {
        let url = format!("{}/v1/{path}", self.stack["STACK_BAO_ADDR"]);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("X-Vault-Token", &self.stack["STACK_BAO_TOKEN"])
            .body(body.to_string())
            .unwrap();
        let config = ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true).build();
        let mut response = ureq::Agent::new_with_config(config).run(request).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        assert!(response.status().is_success(), "{method} {path}: {} {text}", response.status());
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Writes a secret of this environment and gives its version.
    pub fn secret(&self, name: &str, data: Value) -> u64 {
        let answer = self.bao("POST", &format!("{}/data/{}/{name}", self.kv, self.env_id), &json!({ "data": data }));
        answer["data"]["version"].as_u64().unwrap()
    }

    /// Writes the registry's pull credential.
    pub fn registry_secret(&self) {
        self.secret(
            "registry",
            json!({"value": format!("{}:{}", self.stack["STACK_REGISTRY_USER"], self.stack["STACK_REGISTRY_PASSWORD"])}),
        );
    }

    /// A manifest entry.
    pub fn entry(&self, var: &str, name: &str) -> Value {
        json!({"var": var, "path": format!("{}/{}/{name}", self.kv, self.env_id)})
    }

    /// The manifest entry of the registry credential.
    pub fn registry_entry(&self) -> Value {
        json!({"use": "registry-auth", "path": format!("{}/{}/registry", self.kv, self.env_id)})
    }

    /// An image of the stack's registry.
    pub fn image(&self, name: &str) -> String {
        format!("{}/monky/{name}", self.stack["STACK_REGISTRY"])
    }

    /// A bundle: `compose.yaml`, the manifest's entries, and more files.
    pub fn bundle(&self, generation: i64, compose: &str, entries: &[Value], files: &[(&str, &str)]) -> BundleFiles {
        let mut bundle = BundleFiles::new();
        let mut put = |path: &str, text: &str| bundle.insert(path.to_owned(), text.as_bytes().to_vec());
        put("compose.yaml", compose);
        put("meta.json", &json!({"env_id": self.env_id, "generation": generation}).to_string());
        put("manifest.json", &json!({ "entries": entries }).to_string());
        for (path, text) in files {
            put(path, text);
        }
        bundle
    }

    /// Publishes a bundle, desires it, and gives its sha.
    pub fn desire(&self, bundle: &BundleFiles) -> String {
        let sha = self.tenancy.publish(&self.env_id, bundle);
        self.tenancy.desire(&self.env_id, Some(&sha));
        sha
    }

    /// Changes a line of the configuration.
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.insert(key.to_owned(), value.to_owned());
        self.write_config();
    }

    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn write_config(&self) {
        let mut text = format!(
            "env_id: {}\nstate_dir: {}\ntenancy:\n  scheme: http\n  host: 127.0.0.1\n  port: {}\n  timeout_s: 10\n\
             bao:\n  addr: {}\n  auth_mount: {}\n  kv_mount: {}\n",
            self.env_id,
            self.state_dir().display(),
            self.tenancy.port(),
            self.stack["STACK_BAO_ADDR"],
            self.jwt,
            self.kv,
        );
        for (key, value) in &self.settings {
            text.push_str(&format!("{key}: {value}\n"));
        }
        fs::write(self.config_file(), text).unwrap();
    }

    /// The binary with this box's configuration and a nearly empty environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_monky-deployd"));
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DOCKER_HOST", &self.stack["STACK_DOCKER_HOST"])
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

    /// Hands the box a bootstrap grant.
    pub fn bootstrap(&self) {
        let grant = self.tenancy.mint_bootstrap_grant(&self.env_id, 600);
        let mut child = self.command(&["bootstrap", "--grant-file", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(grant.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// `state.json`.
    pub fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.state_dir().join("state.json")).unwrap()).unwrap()
    }

    /// Rewrites `state.json`: time that passed, seen from the agent.
    pub fn change_state(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        change(&mut state);
        fs::write(self.state_dir().join("state.json"), state.to_string()).unwrap();
    }

    /// Lets the backoff of every bundle be over.
    pub fn backoff_is_over(&self) {
        self.change_state(|state| {
            for attempts in state["attempts"].as_object_mut().unwrap().values_mut() {
                attempts["next_at"] = Value::Null;
            }
        });
    }

    /// `status --format json`.
    pub fn status(&self) -> Value {
        let ran = self.run(&["status", "--format", "json"]);
        assert_eq!(ran.status, 0, "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// The reports of this box, oldest first.
    pub fn reports(&self) -> Vec<Value> {
        self.tenancy.reports()
    }

    /// The real `docker`.
    pub fn docker(&self, args: &[&str]) -> Output {
        Command::new("docker").env("DOCKER_HOST", &self.stack["STACK_DOCKER_HOST"]).args(args).output().unwrap()
    }

    /// What the real `docker` prints.
    pub fn docker_says(&self, args: &[&str]) -> String {
        let output = self.docker(args);
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The ids of a service's containers, also of those that do not run.
    pub fn ids(&self, service: &str) -> Vec<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        let ids = self.docker_says(&["ps", "-aq", "--no-trunc", "--filter", &project, "--filter", &service]);
        ids.lines().map(str::to_owned).collect()
    }

    /// The one container of a service.
    pub fn id(&self, service: &str) -> String {
        let ids = self.ids(service);
        assert_eq!(ids.len(), 1, "containers of {service}");
        ids[0].clone()
    }

    /// Runs a shell line in a service's container and gives what it prints, byte for byte.
    pub fn shell(&self, service: &str, line: &str) -> Vec<u8> {
        let output = self.docker(&["exec", &self.id(service), "/bin/sh", "-c", line]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// How many calls tenancy got, by method and the end of the path.
    pub fn calls(&self, method: &str, path_ends: &str) -> usize {
        let requests = self.tenancy.requests();
        requests.iter().filter(|request| request.method == method && request.path.ends_with(path_ends)).count()
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
        if !std::thread::panicking() {
            self.bao("DELETE", &format!("sys/mounts/{}", self.kv), &Value::Null);
            self.bao("DELETE", &format!("sys/auth/{}", self.jwt), &Value::Null);
            self.bao("DELETE", &format!("sys/policies/acl/{}-read", self.env_id), &Value::Null);
        }
    }
}

/// Every form in which a secret could be found in a text.
pub fn forms_of(secret: &str) -> Vec<String> {
    vec![secret.to_owned(), STANDARD.encode(secret), serde_json::to_string(secret).unwrap()]
}
