//! What can be seen of a box from outside: its state directory, its containers, and what tenancy got to hear.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::Rig;
use crate::common::openapi::{validate_answer, validate_request};

/// By contract these files of the state directory hold secrets, and no other.
pub fn may_hold_secrets(path: &Path) -> bool {
    path.ends_with(".env")
        || path.ends_with("docker/config.json")
        || ["token.json", "grant.json", "bootstrap.jwt"].iter().any(|name| path.ends_with(name))
}

impl Rig {
    /// A file of the state directory.
    pub fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.state_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Whether the state directory holds it.
    pub fn has(&self, name: &str) -> bool {
        self.state_dir().join(name).exists()
    }

    /// The saved token.
    pub fn token(&self) -> String {
        let file: Value = serde_json::from_slice(&self.file("token.json")).unwrap();
        file["client_token"].as_str().unwrap().to_owned()
    }

    /// The saved leased grant.
    pub fn grant(&self) -> String {
        let file: Value = serde_json::from_slice(&self.file("grant.json")).unwrap();
        file["grant"].as_str().unwrap().to_owned()
    }

    /// The reports that wait.
    pub fn outbox(&self) -> Vec<String> {
        let names = fs::read_dir(self.state_dir().join("outbox")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Every file and folder of the state directory but the lock, with mode, time of change, inode and content.
    pub fn everything(&self) -> BTreeMap<PathBuf, (u32, i64, i64, u64, Vec<u8>)> {
        use std::os::unix::fs::MetadataExt as _;
        let mut found = BTreeMap::new();
        let mut folders = vec![self.state_dir()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                if meta.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path, (meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.ino(), content));
            }
        }
        found.remove(&self.state_dir().join("lock"));
        found
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

    /// The newest report.
    pub fn report(&self) -> Value {
        self.reports().last().cloned().unwrap_or_else(|| panic!("tenancy got no report"))
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

    /// What Docker knows of a service's one container.
    pub fn inspect(&self, service: &str) -> Value {
        let all: Value = serde_json::from_str(&self.docker_says(&["inspect", &self.id(service)])).unwrap();
        all[0].clone()
    }

    /// Which container a service has, and since when it runs: what changes whenever somebody touches it.
    pub fn life(&self, service: &str) -> (String, String) {
        let container = self.inspect(service);
        assert_eq!(container["State"]["Running"], json!(true), "{service}");
        (self.id(service), container["State"]["StartedAt"].as_str().unwrap().to_owned())
    }

    /// The environment of a service's first process, byte for byte.
    pub fn environment(&self, service: &str) -> BTreeMap<String, Vec<u8>> {
        let bytes = self.shell(service, "cat /proc/1/environ");
        let pair = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            Some((String::from_utf8(line[..at].to_vec()).unwrap(), line[at + 1..].to_vec()))
        };
        bytes.split(|byte| *byte == 0).filter_map(pair).collect()
    }

    /// Every container of the box.
    pub fn all_ids(&self) -> Vec<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        self.docker_says(&["ps", "-aq", "--no-trunc", "--filter", &project]).lines().map(str::to_owned).collect()
    }

    /// Runs a shell line in a service's container and gives what it prints, byte for byte.
    pub fn shell(&self, service: &str, line: &str) -> Vec<u8> {
        let output = self.docker(&["exec", &self.id(service), "/bin/sh", "-c", line]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Every request that reached tenancy, and every answer, is as the document says.
    pub fn the_protocol_was_kept(&self) {
        for request in self.tenancy.requests() {
            validate_request(&request.method, &request.path, &request.body).unwrap();
            if let Some(status) = request.status {
                validate_answer(&request.method, &request.path, status, &request.answer).unwrap();
            }
        }
    }

    /// How many calls tenancy got, by method and the end of the path.
    pub fn calls(&self, method: &str, path_ends: &str) -> usize {
        let requests = self.tenancy.requests();
        requests.iter().filter(|request| request.method == method && request.path.ends_with(path_ends)).count()
    }
}
