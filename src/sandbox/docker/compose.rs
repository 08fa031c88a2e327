//! The stand-in's reading of a compose file: interpolation, the long forms of `config`, and what services come to.
//!
//! Invariant: it knows the part of the format that bundles use. A service's key that Compose does not know is
//! refused in Compose's words; the finer points of the format are Compose's own affair.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::effects::Sha;

/// The arguments that every call of Compose has in common.
#[derive(Debug, Default)]
pub struct Common {
    pub project: String,
    pub folder: PathBuf,
    pub files: Vec<PathBuf>,
    pub env_file: PathBuf,
}

/// A file that Compose would not take: its exit status (of 2.26; newer ones always say 1), and its words.
#[derive(Debug)]
pub struct Refused(pub u8, pub String);

/// A project that was read.
#[derive(Debug)]
pub struct Project {
    /// As `config --format json` prints it.
    pub model: Value,
    /// The variables that are used and not set, in order, each once.
    pub unset: Vec<String>,
}

const SERVICE_KEYS: &[&str] = &[
    "annotations",
    "attach",
    "blkio_config",
    "build",
    "cap_add",
    "cap_drop",
    "cgroup",
    "cgroup_parent",
    "command",
    "configs",
    "container_name",
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "cpus",
    "cpuset",
    "credential_spec",
    "depends_on",
    "deploy",
    "develop",
    "device_cgroup_rules",
    "devices",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "entrypoint",
    "env_file",
    "environment",
    "expose",
    "extends",
    "external_links",
    "extra_hosts",
    "gpus",
    "group_add",
    "healthcheck",
    "hostname",
    "image",
    "init",
    "ipc",
    "isolation",
    "label_file",
    "labels",
    "links",
    "logging",
    "mac_address",
    "mem_limit",
    "mem_reservation",
    "mem_swappiness",
    "memswap_limit",
    "network_mode",
    "networks",
    "oom_kill_disable",
    "oom_score_adj",
    "pid",
    "pids_limit",
    "platform",
    "ports",
    "post_start",
    "pre_stop",
    "privileged",
    "profiles",
    "provider",
    "pull_policy",
    "read_only",
    "restart",
    "runtime",
    "scale",
    "secrets",
    "security_opt",
    "shm_size",
    "stdin_open",
    "stop_grace_period",
    "stop_signal",
    "storage_opt",
    "sysctls",
    "tmpfs",
    "tty",
    "ulimits",
    "use_api_socket",
    "user",
    "userns_mode",
    "uts",
    "volumes",
    "volumes_from",
    "working_dir",
];

/// Reads the files of a project, merged.
pub fn read(common: &Common, interpolate: bool) -> Result<Project, Refused> {
    let mut names = Variables { values: env_file(&common.env_file)?, unset: Vec::new() };
    let mut merged = json!({});
    for path in &common.files {
        let mut document = parse(path)?;
        if interpolate {
            names.fill(&mut document, "")?;
        }
        merge(&mut merged, document);
    }
    let mut model = normal(merged, common, interpolate)?;
    if interpolate && let Some(services) = model.get_mut("services").and_then(Value::as_object_mut) {
        services.retain(|_, service| list(service, "profiles").is_empty());
        for service in services.values_mut() {
            resolve_env_file(service)?;
        }
    }
    check(&model)?;
    Ok(Project { model, unset: names.unset })
}

impl Project {
    /// The services that take part, by name.
    pub fn services(&self) -> BTreeMap<String, &Map<String, Value>> {
        let services = self.model.get("services").and_then(Value::as_object);
        services.into_iter().flatten().filter_map(|(name, it)| Some((name.clone(), it.as_object()?))).collect()
    }
}

/// What decides whether a service's containers are made anew.
pub fn config_hash(service: &Map<String, Value>) -> String {
    let mut service = service.clone();
    for key in ["depends_on", "profiles", "scale", "pull_policy", "build"] {
        service.remove(key);
    }
    if let Some(deploy) = service.get_mut("deploy").and_then(Value::as_object_mut) {
        deploy.remove("replicas");
    }
    Sha::of(Value::Object(service).to_string().as_bytes()).as_str().to_owned()
}

/// How many containers a service has.
pub fn scale(service: &Map<String, Value>) -> u64 {
    let replicas = service.get("deploy").and_then(|deploy| deploy.get("replicas"));
    service.get("scale").or(replicas).and_then(Value::as_u64).unwrap_or(1)
}

fn parse(path: &Path) -> Result<Value, Refused> {
    let text = fs::read_to_string(path)
        .map_err(|_| Refused(14, format!("open {}: no such file or directory", path.display())))?;
    let invalid = |why: String| Refused(15, format!("failed to parse {}: yaml: {why}", path.display()));
    let mut document: serde_yaml::Value = serde_yaml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    document.apply_merge().map_err(|error| invalid(error.to_string()))?;
    let document = serde_json::to_value(document).map_err(|error| invalid(error.to_string()))?;
    match document {
        Value::Null => Ok(json!({})),
        Value::Object(map) => Ok(Value::Object(map)),
        _ => Err(Refused(15, "top-level object must be a mapping".to_owned())),
    }
}

/// Later files add to earlier ones: maps key by key, labels and environments whichever way they are written, mounts by
/// where they are in the container.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(old) if matches!(key.as_str(), "labels" | "environment") => {
                        let mut both = pairs(old);
                        both.extend(pairs(&value));
                        *old = both.into_iter().map(|(name, value)| Value::String(format!("{name}={value}"))).collect();
                    }
                    Some(Value::Array(old)) if key == "volumes" => {
                        let more = list(&json!({ "volumes": value }), "volumes");
                        old.retain(|old| !more.iter().any(|new| target(new) == target(old)));
                        old.extend(more);
                    }
                    Some(old) => merge(old, value),
                    None => {
                        into.insert(key, value);
                    }
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// Where a mount of either form is in the container.
fn target(mount: &Value) -> String {
    let short = scalar(mount);
    let mut parts = short.split(':');
    let first = parts.next().unwrap_or_default();
    let given = mount.get("target").and_then(Value::as_str).unwrap_or_else(|| parts.next().unwrap_or(first));
    given.trim_end_matches('/').to_owned()
}

/// `{A: b}` or `["A=b"]`.
pub fn pairs(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), scalar(value))).collect(),
        Value::Array(all) => all
            .iter()
            .map(|item| {
                let item = scalar(item);
                let (key, value) = item.split_once('=').unwrap_or((&item, ""));
                (key.to_owned(), value.to_owned())
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn list(service: &Value, key: &str) -> Vec<Value> {
    match service.get(key) {
        Some(Value::Array(all)) => all.clone(),
        Some(Value::Null) | None => Vec::new(),
        Some(one) => vec![one.clone()],
    }
}

/// A path as seen from the project's folder, `.` and `..` worked out.
fn absolute(folder: &Path, path: &str) -> String {
    let mut out = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.display().to_string()
}

fn normal(mut model: Value, common: &Common, interpolate: bool) -> Result<Value, Refused> {
    let named = |key: &str| json!({ "name": format!("{}_{key}", common.project) });
    let Some(top) = model.as_object_mut() else { return Ok(model) };
    top.insert("name".to_owned(), json!(common.project));
    for section in ["volumes", "networks", "configs", "secrets"] {
        if section == "networks"
            && let Some(all) = top.entry(section).or_insert_with(|| json!({})).as_object_mut()
        {
            all.entry("default").or_insert(Value::Null);
        }
        for (key, value) in top.get_mut(section).and_then(Value::as_object_mut).into_iter().flatten() {
            let mut named = named(key);
            merge(&mut named, std::mem::take(value));
            if named.is_null() {
                named = json!({ "name": format!("{}_{key}", common.project) });
            }
            if let Some(file) = named.get("file").and_then(Value::as_str).map(|file| absolute(&common.folder, file)) {
                merge(&mut named, json!({ "file": file }));
            }
            *value = named;
        }
    }
    let file = common.files.first().map(|path| path.display().to_string()).unwrap_or_default();
    for (name, service) in top.entry("services").or_insert_with(|| json!({})).as_object_mut().into_iter().flatten() {
        let Some(map) = service.as_object() else {
            return Err(Refused(15, format!("validating {file}: services.{name} must be a mapping")));
        };
        if let Some(key) = map.keys().find(|key| !SERVICE_KEYS.contains(&key.as_str()) && !key.starts_with("x-")) {
            return Err(Refused(
                15,
                format!("validating {file}: services.{name} additional properties '{key}' not allowed"),
            ));
        }
        normal_service(service, &common.folder, interpolate);
    }
    Ok(model)
}

fn normal_service(service: &mut Value, folder: &Path, interpolate: bool) {
    let mut set = json!({});
    let mut put = |key: &str, value: Value| merge(&mut set, json!({ key: value }));
    // Without interpolation Compose leaves these as they are written.
    if interpolate {
        for key in ["environment", "labels"] {
            if let Some(value) = service.get(key) {
                put(key, pairs(value).into_iter().map(|(name, value)| (name, Value::String(value))).collect());
            }
        }
        for key in ["command", "entrypoint"] {
            if let Some(Value::String(line)) = service.get(key) {
                put(key, line.split_whitespace().map(|word| json!(word)).collect());
            }
        }
    }
    let env_files = list(service, "env_file").into_iter().map(|item| match item {
        Value::Object(map) => {
            let path = map.get("path").map(scalar).unwrap_or_default();
            json!({"path": absolute(folder, &path), "required": map.get("required").and_then(Value::as_bool).unwrap_or(true)})
        }
        path => json!({"path": absolute(folder, &scalar(&path)), "required": true}),
    });
    put("env_file", env_files.collect());
    put("volumes", list(service, "volumes").into_iter().map(|item| volume(item, folder)).collect());
    put("ports", list(service, "ports").into_iter().map(port).collect());
    put("configs", list(service, "configs").into_iter().map(|item| mounted(item, None)).collect());
    put("secrets", list(service, "secrets").into_iter().map(|item| mounted(item, Some("/run/secrets"))).collect());
    if let Some(Value::Array(names)) = service.get("depends_on") {
        let long = |name: &Value| (scalar(name), json!({"condition": "service_started", "required": true}));
        put("depends_on", names.iter().map(long).collect());
    }
    if service.get("network_mode").is_none() && service.get("networks").is_none() {
        put("networks", json!({ "default": null }));
    }
    if let (Some(service), Value::Object(set)) = (service.as_object_mut(), set) {
        for (key, value) in set {
            if value.as_array().is_some_and(Vec::is_empty) {
                service.remove(&key);
            } else {
                service.insert(key, value);
            }
        }
    }
}

fn mounted(item: Value, folder: Option<&str>) -> Value {
    match (item, folder) {
        (Value::String(source), Some(folder)) => json!({"target": format!("{folder}/{source}"), "source": source}),
        (Value::String(source), None) => json!({ "source": source }),
        (long, _) => long,
    }
}

fn volume(item: Value, folder: &Path) -> Value {
    let Value::String(short) = item else {
        let mut long = item;
        if long.get("type").and_then(Value::as_str) == Some("bind")
            && let Some(source) = long.get("source").and_then(Value::as_str).map(|source| absolute(folder, source))
        {
            merge(&mut long, json!({ "source": source }));
        }
        return long;
    };
    // A colon inside of `${V:-x}` separates nothing.
    let mut parts = vec![String::new()];
    let mut depth = 0_u32;
    for c in short.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ':' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    let mut parts = parts.into_iter();
    let (first, second, mode) = (parts.next().unwrap_or_default(), parts.next(), parts.next().unwrap_or_default());
    let Some(target) = second else { return json!({"type": "volume", "target": first, "volume": {}}) };
    let mut long = if first.starts_with(['.', '/', '~']) {
        json!({"type": "bind", "source": absolute(folder, &first), "target": target, "bind": {"create_host_path": true}})
    } else {
        json!({"type": "volume", "source": first, "target": target, "volume": {}})
    };
    if mode.split(',').any(|word| word == "ro") {
        merge(&mut long, json!({ "read_only": true }));
    }
    long
}

fn port(item: Value) -> Value {
    let short = match item {
        Value::Object(_) => return item,
        Value::String(short) if short.contains('$') => return Value::String(short),
        other => scalar(&other),
    };
    let (rest, protocol) = short.rsplit_once('/').unwrap_or((&short, "tcp"));
    let (host, target) = rest.rsplit_once(':').unwrap_or(("", rest));
    let (host_ip, published) = host.rsplit_once(':').unwrap_or(("", host));
    let mut long = json!({"mode": "ingress", "protocol": protocol});
    merge(&mut long, json!({ "target": target.parse::<u16>().map_or_else(|_| json!(target), |number| json!(number)) }));
    for (key, value) in [("published", published), ("host_ip", host_ip)] {
        if !value.is_empty() {
            merge(&mut long, json!({ key: value }));
        }
    }
    long
}

fn resolve_env_file(service: &mut Value) -> Result<(), Refused> {
    let files = list(service, "env_file");
    if files.is_empty() {
        return Ok(());
    }
    let mut environment = Map::new();
    for file in files {
        let path = file.get("path").map(scalar).unwrap_or_default();
        if Path::new(&path).exists() {
            environment.extend(env_file(Path::new(&path))?.into_iter().map(|(key, value)| (key, Value::String(value))));
        } else if file.get("required").and_then(Value::as_bool).unwrap_or(true) {
            return Err(Refused(14, format!("env file {path} not found: stat {path}: no such file or directory")));
        }
    }
    for (key, value) in service.get("environment").map(pairs).unwrap_or_default() {
        environment.insert(key, Value::String(value));
    }
    if let Some(service) = service.as_object_mut() {
        service.remove("env_file");
        service.insert("environment".to_owned(), Value::Object(environment));
    }
    Ok(())
}

fn check(model: &Value) -> Result<(), Refused> {
    let defined = |section: &str, name: &str| model.get(section).and_then(|all| all.get(name)).is_some();
    for (name, service) in model.get("services").and_then(Value::as_object).into_iter().flatten() {
        let invalid = |why: String| Err(Refused(15, format!("service \"{name}\" {why}: invalid compose project")));
        if service.get("image").is_none() && service.get("build").is_none() {
            return invalid("has neither an image nor a build context specified".to_owned());
        }
        for other in service.get("depends_on").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !defined("services", other) {
                return invalid(format!("depends on undefined service \"{other}\""));
            }
        }
        for (section, word) in [("configs", "config"), ("secrets", "secret")] {
            for used in list(service, section).iter().filter_map(|item| item.get("source")).map(scalar) {
                if !defined(section, &used) {
                    return invalid(format!("refers to undefined {word} {used}"));
                }
            }
        }
        for volume in list(service, "volumes") {
            let source = volume.get("source").map(scalar).unwrap_or_default();
            let is_volume = volume.get("type").and_then(Value::as_str) == Some("volume");
            if is_volume && !source.is_empty() && !defined("volumes", &source) {
                return invalid(format!("refers to undefined volume {source}"));
            }
        }
    }
    Ok(())
}

/// Reads a file of `KEY=VALUE` lines: double quotes with escapes, single quotes without, or bare.
fn env_file(path: &Path) -> Result<BTreeMap<String, String>, Refused> {
    let text =
        fs::read_to_string(path).map_err(|_| Refused(14, format!("couldn't find env file: {}", path.display())))?;
    let mut all = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let value = value.trim();
        let inner = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
        let value = match (inner('"'), inner('\'')) {
            (Some(quoted), _) => unescaped(quoted),
            (None, Some(quoted)) => quoted.to_owned(),
            (None, None) => value.split(" #").next().unwrap_or_default().trim_end().to_owned(),
        };
        all.insert(key.trim().to_owned(), value);
    }
    Ok(all)
}

fn unescaped(quoted: &str) -> String {
    let mut out = String::with_capacity(quoted.len());
    let mut chars = quoted.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => {}
            },
            '$' => {
                chars.next_if_eq(&'$');
                out.push('$');
            }
            c => out.push(c),
        }
    }
    out
}

/// The values for `${V}`.
struct Variables {
    values: BTreeMap<String, String>,
    unset: Vec<String>,
}

impl Variables {
    /// The process environment beats `.env`.
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().or_else(|| self.values.get(name).cloned())
    }

    fn fill(&mut self, value: &mut Value, at: &str) -> Result<(), Refused> {
        match value {
            Value::String(text) => *text = self.filled(text, at)?,
            Value::Array(all) => {
                for (index, item) in all.iter_mut().enumerate() {
                    self.fill(item, &format!("{at}.[{index}]"))?;
                }
            }
            Value::Object(map) => {
                for (key, item) in map.iter_mut() {
                    let dot = if at.is_empty() { "" } else { "." };
                    self.fill(item, &format!("{at}{dot}{key}"))?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn filled(&mut self, text: &str, at: &str) -> Result<String, Refused> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            out.push_str(rest.get(..dollar).unwrap_or_default());
            rest = rest.get(dollar + 1..).unwrap_or_default();
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let invalid = || {
                    Refused(
                        15,
                        format!("invalid interpolation format for {at}.\nYou may need to escape any $ with another $"),
                    )
                };
                let end = closing(after).ok_or_else(invalid)?;
                let inside = after.get(..end).unwrap_or_default();
                let (name, how) = split_name(inside);
                if name.is_empty() {
                    return Err(invalid());
                }
                out.push_str(&self.value(name, how, at)?);
                rest = after.get(end + 1..).unwrap_or_default();
            } else {
                let (name, after) = split_name(rest);
                if name.is_empty() {
                    out.push('$');
                } else {
                    out.push_str(&self.value(name, "", at)?);
                }
                rest = after;
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn value(&mut self, name: &str, how: &str, at: &str) -> Result<String, Refused> {
        let value = self.get(name);
        let (filled, how) = match how.strip_prefix(':') {
            Some(how) => (value.clone().filter(|value| !value.is_empty()), how),
            None => (value.clone(), how),
        };
        if let Some(default) = how.strip_prefix('-') {
            return filled.map_or_else(|| self.filled(default, at), Ok);
        }
        if let Some(other) = how.strip_prefix('+') {
            return if filled.is_some() { self.filled(other, at) } else { Ok(String::new()) };
        }
        if let Some(message) = how.strip_prefix('?') {
            return filled.ok_or_else(|| {
                let missing = format!("required variable {name} is missing a value: {message}");
                Refused(15, format!("error while interpolating {at}: {missing}"))
            });
        }
        if value.is_none() && !self.unset.iter().any(|known| known == name) {
            self.unset.push(name.to_owned());
        }
        Ok(value.unwrap_or_default())
    }
}

/// Where the brace that was opened before a text closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()))
}
