//! The configuration: a YAML subset, every value checked, everything unknown refused with its line and the nearest key.
//!
//! Invariant: a [`Config`] is complete and obeys every rule of the table ([`keys`]) and between keys; the only way to
//! one is [`Config::parse`], and [`Config::show`] reads back as the same one. There is no secret in it.

pub mod keys;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::effects::policy::{Policy, Rule, Stance};
use crate::effects::{OnUnhealthy, Settings};
use crate::plain;
use keys::{Absent, KEYS};
use yaml::Value;

/// The largest file that is read (bytes).
pub const MAX_FILE: u64 = 1024 * 1024;

/// After so many problems the rest is only counted.
const MAX_PROBLEMS: usize = 20;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain.
    Http,
    /// Over TLS.
    Https,
}

/// `host:port` to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name, or an address; an IPv6 one without brackets.
    pub host: String,
    /// From 1.
    pub port: u16,
}

/// How connections are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP; the box's tunneler intercepts.
    System,
    /// TCP to local listeners; `Host` and TLS name stay those of the servers.
    Proxy {
        /// Instead of tenancy.
        tenancy: HostPort,
        /// Instead of OpenBao; none: dialled directly.
        bao: Option<HostPort>,
    },
    /// In-process OpenZiti.
    Sdk {
        /// The identity.
        identity_file: PathBuf,
        /// Tenancy's service.
        service: String,
        /// The C library.
        library: PathBuf,
    },
}

/// The control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// A name, or an address; an IPv6 one without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How long a call may take (seconds).
    pub timeout_s: u64,
    /// PEM certificates that replace the system's roots.
    pub ca_file: Option<PathBuf>,
}

/// OpenBao.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bao {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// A name, or an address; an IPv6 one without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Where its JWT login is mounted.
    pub auth_mount: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// PEM certificates that replace the system's roots.
    pub ca_file: Option<PathBuf>,
    /// How long a call may take (seconds).
    pub timeout_s: u64,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Scheme::Http { "http" } else { "https" })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&keys::join(&self.host, self.port))
    }
}

impl Tenancy {
    /// `scheme://host:port`.
    pub fn addr(&self) -> String {
        format!("{}://{}", self.scheme, keys::join(&self.host, self.port))
    }
}

impl Bao {
    /// `scheme://host:port`.
    pub fn addr(&self) -> String {
        format!("{}://{}", self.scheme, keys::join(&self.host, self.port))
    }
}

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What decisions depend on.
    pub settings: Settings,
    /// How connections are made.
    pub transport: Transport,
    /// The control plane.
    pub tenancy: Tenancy,
    /// OpenBao.
    pub bao: Bao,
    /// Where state, secrets and releases are kept; absolute.
    pub state_dir: PathBuf,
    /// A name to look up in `PATH`, or an absolute path.
    pub docker_bin: PathBuf,
    /// The registry of a credential that names none (`host` or `host:port`).
    pub registry_host: String,
    /// The stricter rules hold.
    pub prod: bool,
    /// The least important level that is logged.
    pub log_level: tracing::Level,
    /// Every key that has a value, in its normal form: what `show` prints.
    values: Values,
}

/// Why there is no configuration: everything that is wrong with the file, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    /// Which file.
    pub file: String,
    /// What is wrong with it; never empty.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// In this line, from 1; 0: nowhere in particular.
    pub line: usize,
    /// With this key; empty if with none.
    pub key: String,
    /// What is wrong, and what it must be.
    pub what: String,
}

impl Problem {
    fn at(line: usize, key: &str, what: impl Into<String>) -> Problem {
        // A key comes from the file: what can't be printed, or would fill the journal, does not get into the message.
        let key = key.chars().map(|c| if yaml::printable(c) { c } else { '?' }).take(120).collect();
        Problem { line, key, what: what.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(MAX_PROBLEMS).enumerate() {
            let line = if problem.line == 0 { String::new() } else { format!("{}:", problem.line) };
            let key = if problem.key.is_empty() { String::new() } else { format!(" {}:", problem.key) };
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{line}{key} {}", self.file, problem.what)?;
        }
        match self.problems.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.file),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let file = path.display().to_string();
        match read_capped(path) {
            Ok(text) => Config::parse(&file, &text),
            Err(what) => Err(ConfigError { file, problems: vec![Problem::at(0, "", what)] }),
        }
    }

    /// Checks a text; `file` is what errors call it.
    pub fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        let entries = yaml::read(text, &mut problems);
        // A file that was not read to its end does not lack keys.
        let whole = problems.is_empty();
        let (mut values, lines) = collect(entries, &mut problems);
        if whole {
            complete(&mut values, &lines, &mut problems);
        }
        if problems.is_empty() {
            between(&mut values, &lines, &mut problems);
        }
        match values.build() {
            Some(config) if problems.is_empty() => Ok(config),
            _ => {
                problems.sort_by_key(|problem| if problem.line == 0 { usize::MAX } else { problem.line });
                if problems.is_empty() {
                    problems.push(Problem::at(
                        0,
                        "",
                        "cannot be used, though no key is wrong: please report this file",
                    ));
                }
                Err(ConfigError { file: file.to_owned(), problems })
            }
        }
    }

    /// The required keys that still have the example's value. An `env_id` alone may well be called so.
    pub fn examples(&self) -> Vec<&'static str> {
        let required = keys::KEYS.iter().filter(|key| key.default == keys::Absent::Required);
        let still = |key: &&keys::Key| self.values.0.get(key.name).is_some_and(|value| value == key.example);
        let all: Vec<&str> = required.filter(still).map(|key| key.name).collect();
        if all == ["env_id"] { Vec::new() } else { all }
    }

    /// The effective configuration, every key that has a value, as a file that reads back as the same configuration.
    pub fn show(&self) -> String {
        keys::sheet(
            |key, last| {
                let value = self.values.0.get(key.name);
                value.map(|value| format!("{last}: {}", keys::quoted(key.kind, value))).into_iter().collect()
            },
            |section| if section.is_empty() { String::new() } else { format!("{section}:\n") },
        )
    }
}

fn read_capped(path: &Path) -> Result<String, String> {
    let told = |e: io::Error| {
        match e.kind() {
        io::ErrorKind::NotFound => "no such file; write one, or name another with --config".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "may not be read by this user: run this as the agent's user, or give the file, and each folder above it, the right to be read".to_owned()
        }
        io::ErrorKind::IsADirectory => "is a directory; the configuration is one file".to_owned(),
        io::ErrorKind::FileTooLarge => "larger than 1 MiB; that is no configuration of this agent".to_owned(),
        _ => format!("cannot be read: {e}"),
    }
    };
    let bytes = plain::read(path, MAX_FILE).map_err(told)?;
    String::from_utf8(bytes).map_err(|e| {
        let good = e.as_bytes().get(..e.utf8_error().valid_up_to()).unwrap_or_default();
        format!("not UTF-8 text (line {})", good.iter().filter(|b| **b == b'\n').count() + 1)
    })
}

type Lines = BTreeMap<&'static str, usize>;

/// Checks each entry by itself. A key with a wrong value is in the lines, not in the values.
fn collect(entries: Vec<yaml::Entry>, problems: &mut Vec<Problem>) -> (Values, Lines) {
    let (mut values, mut lines) = (Values::default(), Lines::new());
    let mut unknown: Option<String> = None;
    for entry in entries {
        if unknown.as_deref().is_some_and(|above| entry.path.starts_with(above)) {
            continue;
        }
        let mut wrong = |what: String| problems.push(Problem::at(entry.line, &entry.path, what));
        let unset = matches!(&entry.value, Value::Scalar(text, true) if matches!(text.as_str(), "" | "~" | "null"));
        let below = keys::below(&entry.path);
        // `a.b: x` is one key with a dot in it, not `b` below `a`.
        let nested = entry.path.matches('.').count() == entry.depth;
        match (keys::find(&entry.path).filter(|_| nested), &entry.value) {
            (Some(key), value) => {
                lines.insert(key.name, entry.line);
                match value {
                    _ if unset && key.default == Absent::Required => wrong("is empty, and required".to_owned()),
                    _ if unset => {}
                    Value::List(items) if key.kind.is_list() => {
                        let mut checked = Vec::new();
                        for (index, item) in items.iter().enumerate() {
                            let one = item.scalar.as_ref().map(|(text, plain)| key.kind.check(text, *plain));
                            let one = one.unwrap_or_else(|| Err("must be one value, no list or map".to_owned()));
                            let told = |must| Problem::at(item.line, &entry.path, format!("item {} {must}", index + 1));
                            match one {
                                Ok(value) => checked.push(value),
                                Err(must) => problems.push(told(must)),
                            }
                        }
                        values.0.insert(key.name, checked.join(LIST));
                    }
                    Value::Scalar(..) | Value::Map if key.kind.is_list() => {
                        wrong("takes a list: [a, b], or each on a line of its own behind `- `".to_owned());
                    }
                    Value::Scalar(text, plain) => match key.kind.check(text, *plain) {
                        Ok(value) => drop(values.0.insert(key.name, value)),
                        Err(must) => wrong(must),
                    },
                    Value::Map | Value::List(_) => wrong("takes one value".to_owned()),
                }
            }
            (None, value) if !below.is_empty() => {
                if *value != Value::Map && !unset {
                    wrong(format!("is a section: indented below it go {}", below.join(", ")));
                }
            }
            (None, _) => {
                let near = keys::nearest(&entry.path);
                let hint = if nested { "" } else { " (a dot does not nest: put one key below the other, indented)" };
                wrong(format!("no such key{hint}; did you mean `{near}`?"));
                unknown = Some(format!("{}.", entry.path));
            }
        }
    }
    (values, lines)
}

/// Fills in what was not given.
fn complete(values: &mut Values, lines: &Lines, problems: &mut Vec<Problem>) {
    let env_id = values.0.get("env_id").cloned();
    for key in KEYS {
        if values.0.contains_key(key.name) {
            continue;
        }
        match (key.default, &env_id) {
            (Absent::Required, _) if !lines.contains_key(key.name) => {
                problems.push(Problem::at(0, key.name, "is missing, and required"));
            }
            (Absent::Is(value), _) => drop(values.0.insert(key.name, value.to_owned())),
            (Absent::ThenEnvId(start), Some(env_id)) => drop(values.0.insert(key.name, format!("{start}{env_id}"))),
            (Absent::Required | Absent::Unset | Absent::ThenEnvId(_), _) => {}
        }
    }
    if !values.0.contains_key("prod") {
        let prod = env_id.is_some_and(|env_id| env_id.split('-').any(|part| part == "prod"));
        values.0.insert("prod", prod.to_string());
    }
}

/// The rules between keys.
fn between(values: &mut Values, lines: &Lines, problems: &mut Vec<Problem>) {
    let mut wrong = |key: &'static str, what: String| {
        problems.push(Problem::at(lines.get(key).copied().unwrap_or_default(), key, what));
    };
    let transport = values.text("transport");
    let needs: &[&'static str] = match transport.as_str() {
        "proxy" => &["proxy.tenancy"],
        "sdk" => &["sdk.identity_file", "sdk.service", "sdk.library"],
        _ => &[],
    };
    for key in needs.iter().filter(|key| values.text(key).is_empty()) {
        wrong(key, format!("is required with transport: {transport}"));
    }
    if !values.flag("prod") {
        return;
    }
    let why = "(prod: true, or a part of env_id is `prod`)";
    if values.flag("laptop_mode") {
        wrong("laptop_mode", format!("is not for prod {why}"));
    }
    if values.text("tenancy.scheme") == "http" && !keys::loopback(&values.text("tenancy.host")) {
        wrong("tenancy.scheme", format!("plain http to another host is not for prod {why}: use https"));
    }
    if let Some(("http", host, _)) = keys::url(&values.text("bao.addr"))
        && !keys::loopback(&host)
    {
        wrong("bao.addr", format!("plain http to another host is not for prod {why}: use https"));
    }
}

/// Between the items of a list in its normal form; no item can have it in it.
const LIST: &str = "\n";

/// Every key that has a value, in its normal form. Getters are for keys whose kind was checked.
#[derive(Clone, Debug, Default, PartialEq)]
struct Values(BTreeMap<&'static str, String>);

impl Values {
    fn text(&self, key: &str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }

    fn list(&self, key: &str) -> Vec<String> {
        self.text(key).split(LIST).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.0.get(key).map(PathBuf::from)
    }

    fn host_port(&self, key: &str) -> Option<HostPort> {
        keys::host_port(self.0.get(key)?).map(|(host, port)| HostPort { host, port })
    }

    fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.0.get(key)?.parse().ok()
    }

    fn flag(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| value == "true")
    }

    /// The configuration; none while a required value is absent, which has been said already.
    fn build(self) -> Option<Config> {
        let scheme = |text: &str| if text == "http" { Scheme::Http } else { Scheme::Https };
        let addr = self.text("bao.addr");
        let (bao_scheme, bao_host, bao_port) = keys::url(&addr)?;
        Some(Config {
            settings: Settings {
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                env_id: self.text("env_id"),
                site: self.text("site"),
                role: self.text("bao.role"),
                kv_mount: self.text("bao.kv_mount"),
                renew_below_s: self.number("bao.renew_below_s")?,
                project: self.text("compose_project"),
                healthy_timeout_s: self.number("healthy_timeout_s")?,
                pull_timeout_s: self.number("pull_timeout_s")?,
                stable_s: self.number("stable_s")?,
                on_unhealthy: if self.text("on_unhealthy") == "rollback" {
                    OnUnhealthy::Rollback
                } else {
                    OnUnhealthy::Keep
                },
                keep_releases: self.number("keep_releases")?,
                laptop_mode: self.flag("laptop_mode"),
                policy: Policy {
                    rules: Rule::ALL
                        .iter()
                        .filter_map(|rule| Some((*rule, Stance::of(&self.text(&format!("policy.{}", rule.as_str())))?)))
                        .collect(),
                    bind_roots: self.list("policy.bind_roots"),
                },
            },
            transport: match self.text("transport").as_str() {
                "proxy" => {
                    Transport::Proxy { tenancy: self.host_port("proxy.tenancy")?, bao: self.host_port("proxy.bao") }
                }
                "sdk" => Transport::Sdk {
                    identity_file: self.path("sdk.identity_file")?,
                    service: self.text("sdk.service"),
                    library: self.path("sdk.library")?,
                },
                _ => Transport::System,
            },
            tenancy: Tenancy {
                scheme: scheme(&self.text("tenancy.scheme")),
                host: self.text("tenancy.host"),
                port: self.number("tenancy.port")?,
                timeout_s: self.number("tenancy.timeout_s")?,
                ca_file: self.path("tenancy.ca_file"),
            },
            bao: Bao {
                scheme: scheme(bao_scheme),
                host: bao_host,
                port: bao_port,
                auth_mount: self.text("bao.auth_mount"),
                namespace: self.0.get("bao.namespace").cloned(),
                ca_file: self.path("bao.ca_file"),
                timeout_s: self.number("bao.timeout_s")?,
            },
            state_dir: self.path("state_dir")?,
            docker_bin: self.path("docker_bin")?,
            registry_host: self.text("registry_host"),
            prod: self.flag("prod"),
            log_level: self.number("log_level")?,
            values: self,
        })
    }
}
