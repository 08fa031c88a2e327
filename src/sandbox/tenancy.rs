//! The reference tenancy: the whole protocol of `docs/tenancy.openapi.yaml`, in this process, with knobs for everything
//! that a control plane or the way to it can do wrong.
//!
//! Invariant: it shares no code with the agent, so that the two check each other. Content shas, grants and the lease
//! budget are computed here anew.
//!
//! ```
//! # use monky_deployd::sandbox::tenancy::{Tenancy, files};
//! let tenancy = Tenancy::start()?;
//! let sha = tenancy.publish("e4", &files([
//!     ("compose.yaml", "services: {}\n"),
//!     ("manifest.json", r#"{"entries": []}"#),
//!     ("meta.json", r#"{"env_id": "e4"}"#),
//! ]));
//! tenancy.desire("e4", Some(&sha));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

use super::grants::{GrantKey, without_signature};
use super::http::{Answer, Fault, Reply, Request, Server, lock};
use super::mishaps::Mishaps;

/// The files of a bundle: content by path.
pub type BundleFiles = BTreeMap<String, Vec<u8>>;

/// Leases that an environment gets in any hour.
pub const LEASES_AN_HOUR: usize = 5;
/// The window of the lease budget, in seconds.
const HOUR_S: i64 = 3600;

/// A call of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `POST …/checkin`
    Checkin,
    /// `GET …/bundles/{sha}`
    Bundle,
    /// `POST …/leases`
    Lease,
    /// `POST …/reports`
    Report,
}

/// One request and what came of it, as the log keeps it: no headers, grants without their signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// In capitals.
    pub method: String,
    /// Path and query, raw.
    pub path: String,
    /// The body; null without one, a string if it was no JSON.
    pub body: Value,
    /// The answer's status; none if no answer was sent.
    pub status: Option<u16>,
    /// The answer's body, in the same manner.
    pub answer: Value,
}

#[derive(Default)]
struct Env {
    desired: Option<String>,
    hold: Option<String>,
    bundles: BTreeMap<String, Served>,
    // Seconds at which leases were granted: all of them, oldest first.
    leases: Vec<i64>,
}

struct Served {
    body: Value,
    header: Option<String>,
}

struct State {
    offset_s: i64,
    envs: BTreeMap<String, Env>,
    rate_limit: Option<usize>,
    retry_after: bool,
    legacy: bool,
    deny: bool,
    grant_ttl_s: i64,
    minted: u64,
    mishaps: Mishaps<Call, Fault>,
    checkins: Vec<(String, Value)>,
    reports: Vec<(String, Value)>,
    deliveries: usize,
    log: Vec<Logged>,
}

struct Shared {
    key: GrantKey,
    // Makes lease and grant ids of different instances differ.
    instance: String,
    state: Mutex<State>,
}

/// A running tenancy; dropping it stops it.
pub struct Tenancy {
    server: Server,
    shared: Arc<Shared>,
}

/// Bundle files from texts.
pub fn files<const N: usize>(files: [(&str, &str); N]) -> BundleFiles {
    files.into_iter().map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).collect()
}

/// The content sha of files: sha256 of the lines `hex(sha256(content))␠␠PATH\n` in byte order of PATH.
pub fn content_sha(files: &BundleFiles) -> String {
    let mut all = Sha256::new();
    for (path, content) in files {
        all.update(format!("{:x}  {path}\n", Sha256::digest(content)));
    }
    format!("{:x}", all.finalize())
}

/// The body that brings these files: text where it is UTF-8, base64 where it is not.
pub fn bundle_body(files: &BundleFiles) -> Value {
    let content = |bytes: &Vec<u8>| match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"base64": STANDARD.encode(bytes)}),
    };
    json!({"files": files.iter().map(|(path, bytes)| (path.clone(), content(bytes))).collect::<serde_json::Map<_, _>>()})
}

impl Tenancy {
    /// Starts one on a free loopback port, with a key of its own and no environments.
    ///
    /// # Errors
    /// If there is no port or no randomness to be had.
    pub fn start() -> io::Result<Tenancy> {
        let key = GrantKey::generate()?;
        let instance = format!("{:x}", Sha256::digest(key.public_key_pem())).chars().take(8).collect();
        let state = State {
            offset_s: 0,
            envs: BTreeMap::new(),
            rate_limit: Some(LEASES_AN_HOUR),
            retry_after: true,
            legacy: false,
            deny: false,
            grant_ttl_s: 600,
            minted: 0,
            mishaps: Mishaps::default(),
            checkins: Vec::new(),
            reports: Vec::new(),
            deliveries: 0,
            log: Vec::new(),
        };
        let shared = Arc::new(Shared { key, instance, state: Mutex::new(state) });
        let of_server = Arc::clone(&shared);
        Ok(Tenancy { server: Server::start(move |request| of_server.reply(request))?, shared })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.addr())
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The key that checks its grants, as SPKI PEM.
    pub fn public_key_pem(&self) -> String {
        self.shared.key.public_key_pem()
    }

    /// The `iss` of its grants.
    pub fn issuer(&self) -> String {
        "https://tenancy.sandbox".to_owned()
    }

    /// Makes an environment known. Publishing, desiring, holding and minting do it by themselves.
    pub fn add_env(&self, env_id: &str) {
        self.with_env(env_id, |_| ());
    }

    /// Puts a bundle into the store. Returns its content sha. It is not desired yet.
    pub fn publish(&self, env_id: &str, files: &BundleFiles) -> String {
        let sha = content_sha(files);
        self.serve(env_id, &sha, bundle_body(files), Some(&sha));
        sha
    }

    /// Puts the bundle in a folder into the store.
    ///
    /// # Errors
    /// If the folder can't be read, or holds something else than files and folders with UTF-8 names.
    pub fn publish_folder(&self, env_id: &str, folder: &Path) -> io::Result<String> {
        Ok(self.publish(env_id, &read_folder(folder)?))
    }

    /// Serves any body under any sha, with any `X-Bundle-Sha`: a bundle that was tampered with, or is none.
    pub fn serve(&self, env_id: &str, sha: &str, body: Value, header: Option<&str>) {
        let served = Served { body, header: header.map(str::to_owned) };
        self.with_env(env_id, |env| env.bundles.insert(sha.to_owned(), served));
    }

    /// Sets the desired bundle; none leaves the box as it is.
    pub fn desire(&self, env_id: &str, sha: Option<&str>) {
        self.with_env(env_id, |env| env.desired = sha.map(str::to_owned));
    }

    /// Holds an environment for a reason, or lets it go.
    pub fn hold(&self, env_id: &str, reason: Option<&str>) {
        self.with_env(env_id, |env| env.hold = reason.map(str::to_owned));
    }

    /// A one-time bootstrap grant, as an operator carries it to a new box. Costs no lease.
    pub fn mint_bootstrap_grant(&self, env_id: &str, ttl_s: i64) -> String {
        self.add_env(env_id);
        let (now, number) = {
            let mut state = lock(&self.shared.state);
            (state.now(), state.number())
        };
        self.shared.grant(env_id, now, ttl_s, number)
    }

    /// Signs claims of any kind: grants that are wrong on purpose.
    pub fn sign(&self, claims: &Value) -> String {
        self.shared.key.sign(claims)
    }

    /// The claims that it puts into a grant.
    pub fn claims(&self, env_id: &str, ttl_s: i64) -> Value {
        let mut state = lock(&self.shared.state);
        let (now, number) = (state.now(), state.number());
        self.shared.claims(env_id, now, ttl_s, number)
    }

    /// Moves its clock by so many seconds.
    pub fn advance(&self, seconds: i64) {
        self.set(|state| state.offset_s = state.offset_s.saturating_add(seconds));
    }

    /// Its time, in seconds since the Unix epoch.
    pub fn now(&self) -> i64 {
        lock(&self.shared.state).now()
    }

    /// How many leases an environment gets in an hour ([`LEASES_AN_HOUR`] at the start); none: as many as it asks for.
    pub fn lease_budget(&self, leases: Option<usize>) {
        self.set(|state| state.rate_limit = leases);
    }

    /// Whether a 429 says `Retry-After` (at the start it does).
    pub fn retry_after(&self, on: bool) {
        self.set(|state| state.retry_after = on);
    }

    /// Whether leases are of the retired `type: approle`.
    pub fn legacy_leases(&self, on: bool) {
        self.set(|state| state.legacy = on);
    }

    /// Whether leases are denied with 403.
    pub fn deny_leases(&self, on: bool) {
        self.set(|state| state.deny = on);
    }

    /// How long leased grants live, in seconds (600 at the start).
    pub fn grant_ttl(&self, seconds: i64) {
        self.set(|state| state.grant_ttl_s = seconds);
    }

    /// The next call of this kind fails so; several wait in line.
    pub fn fail_next(&self, call: Call, fault: Fault) {
        self.set(|state| state.mishaps.next(call, fault));
    }

    /// Every call of this kind fails so, until `None`.
    pub fn fail_always(&self, call: Call, fault: Option<Fault>) {
        self.set(|state| state.mishaps.always(call, fault));
    }

    /// `false`: every connection is closed without a byte.
    pub fn set_reachable(&self, reachable: bool) {
        self.server.set_reachable(reachable);
    }

    /// The reports in order of arrival, each `report_id` once.
    pub fn reports(&self) -> Vec<Value> {
        lock(&self.shared.state).reports.iter().map(|(_, report)| report.clone()).collect()
    }

    /// How often a report arrived, repetitions counted.
    pub fn report_deliveries(&self) -> usize {
        lock(&self.shared.state).deliveries
    }

    /// The check-ins in order, with their environment.
    pub fn checkins(&self) -> Vec<(String, Value)> {
        lock(&self.shared.state).checkins.clone()
    }

    /// How many leases an environment was ever granted.
    pub fn leases_granted(&self, env_id: &str) -> usize {
        lock(&self.shared.state).envs.get(env_id).map_or(0, |env| env.leases.len())
    }

    /// Every request that arrived, in order.
    pub fn requests(&self) -> Vec<Logged> {
        lock(&self.shared.state).log.clone()
    }

    fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.shared.state))
    }

    fn with_env<T>(&self, env_id: &str, change: impl FnOnce(&mut Env) -> T) -> T {
        self.set(|state| change(state.envs.entry(env_id.to_owned()).or_default()))
    }
}

impl State {
    fn now(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        i64::try_from(since).unwrap_or(i64::MAX).saturating_add(self.offset_s)
    }

    fn number(&mut self) -> u64 {
        self.minted += 1;
        self.minted
    }
}

/// A moment as the header `Date` has it.
fn date(seconds: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(seconds).ok().and_then(|at| at.format(&Rfc2822).ok());
    at.map(|at| at.replace("+0000", "GMT")).unwrap_or_default()
}

impl Shared {
    fn claims(&self, env_id: &str, now: i64, ttl_s: i64, number: u64) -> Value {
        json!({
            "iss": "https://tenancy.sandbox",
            "sub": format!("box:{env_id}"),
            "aud": "openbao",
            "env_id": env_id,
            "iat": now,
            "nbf": now,
            "exp": now.saturating_add(ttl_s),
            "jti": format!("{}-{number}", self.instance),
        })
    }

    fn grant(&self, env_id: &str, now: i64, ttl_s: i64, number: u64) -> String {
        self.key.sign(&self.claims(env_id, now, ttl_s, number))
    }

    fn reply(&self, request: &Request) -> Reply {
        let mut state = lock(&self.state);
        let route = route(request.path());
        let fault = route.as_ref().ok().and_then(|(_, resource)| state.mishaps.take(&resource.call()));
        let mut handle = || match &route {
            Ok((env_id, resource)) => self.handle(&mut state, request, env_id, resource),
            Err(refused) => refused.clone(),
        };
        let reply = match fault {
            Some(fault) => fault.reply(&mut handle),
            None => Reply::Answer(handle()),
        };
        let reply = match reply {
            Reply::Answer(answer) if answer.headers.iter().all(|(name, _)| name != "Date") => {
                Reply::Answer(answer.header("Date", date(state.now())))
            }
            other => other,
        };
        let (status, answer) = match &reply {
            Reply::Answer(answer) => (Some(answer.status), logged_body(&answer.body)),
            Reply::Close | Reply::Silence | Reply::Raw(_) => (None, Value::Null),
        };
        state.log.push(Logged {
            method: request.method.clone(),
            path: request.target.clone(),
            body: logged_body(&request.body),
            status,
            answer,
        });
        reply
    }

    fn handle(&self, state: &mut State, request: &Request, env_id: &str, resource: &Resource) -> Answer {
        let wanted = if resource.call() == Call::Bundle { "GET" } else { "POST" };
        if request.method != wanted {
            return refuse(405, "METHOD_NOT_ALLOWED", &format!("this path takes {wanted}")).header("Allow", wanted);
        }
        if !state.envs.contains_key(env_id) {
            return refuse(404, "ENV_NOT_FOUND", "there is no such environment");
        }
        let answer = match resource {
            Resource::Checkin => checkin(state, env_id, &request.body),
            Resource::Bundle(sha) => Ok(bundle(state, env_id, sha)),
            Resource::Leases => self.lease(state, env_id, &request.body),
            Resource::Reports => report(state, env_id, &request.body),
        };
        answer.unwrap_or_else(|why| refuse(400, "BAD_REQUEST", &why))
    }

    fn lease(&self, state: &mut State, env_id: &str, body: &[u8]) -> Result<Answer, String> {
        let asked: LeaseBody = read(body)?;
        if asked.reason != "apply" {
            return Err("reason must be `apply`".to_owned());
        }
        if state.deny {
            return Ok(refuse(403, "LEASE_DENIED", "this box may not lease for its environment"));
        }
        let (now, number, ttl_s) = (state.now(), state.number(), state.grant_ttl_s);
        let (budget, tell, legacy) = (state.rate_limit, state.retry_after, state.legacy);
        let Some(env) = state.envs.get_mut(env_id) else { return Err("no such environment".to_owned()) };
        let recent: Vec<i64> = env.leases.iter().copied().filter(|at| now.saturating_sub(*at) < HOUR_S).collect();
        if budget.is_some_and(|budget| recent.len() >= budget) {
            let limited = refuse(429, "LEASE_RATE_LIMITED", "the hour's leases of this environment are used up");
            // When enough of them will have left the window for one more.
            let over = recent.len() - budget.unwrap_or_default();
            let wait = recent.get(over).map_or(HOUR_S, |at| at.saturating_add(HOUR_S).saturating_sub(now));
            return Ok(if tell { limited.header("Retry-After", wait.max(1).to_string()) } else { limited });
        }
        env.leases.push(now);
        let lease_id = format!("lease-{}-{number}", self.instance);
        if legacy {
            let old = json!({"lease_id": lease_id, "type": "approle", "role_id": env_id, "secret_id": "retired"});
            return Ok(Answer::json(201, &old));
        }
        let lease = json!({
            "lease_id": lease_id,
            "type": "jwt",
            "grant": self.grant(env_id, now, ttl_s, number),
            "role": format!("env-{env_id}"),
            "expires_at": rfc3339(now.saturating_add(ttl_s)),
        });
        Ok(Answer::json(201, &lease))
    }
}

enum Resource {
    Checkin,
    Bundle(String),
    Leases,
    Reports,
}

impl Resource {
    fn call(&self) -> Call {
        match self {
            Resource::Checkin => Call::Checkin,
            Resource::Bundle(_) => Call::Bundle,
            Resource::Leases => Call::Lease,
            Resource::Reports => Call::Report,
        }
    }
}

fn route(path: &str) -> Result<(String, Resource), Answer> {
    let parts: Vec<&str> = path.split('/').collect();
    let (env_id, resource) = match parts.as_slice() {
        ["", "v1", "envs", env_id, "checkin"] => (env_id, Resource::Checkin),
        ["", "v1", "envs", env_id, "bundles", sha] => (env_id, Resource::Bundle((*sha).to_owned())),
        ["", "v1", "envs", env_id, "leases"] => (env_id, Resource::Leases),
        ["", "v1", "envs", env_id, "reports"] => (env_id, Resource::Reports),
        _ => return Err(refuse(404, "NOT_FOUND", "there is no such path; the protocol is under /v1/envs/{env_id}/")),
    };
    Ok(((*env_id).to_owned(), resource))
}

// What the agent must send. Fields that are not named here are ignored.
#[derive(Deserialize)]
#[expect(dead_code, reason = "the fields are there to be demanded, not to be used")]
struct CheckinBody {
    agent_version: String,
    site: String,
    #[serde(deserialize_with = "Option::deserialize")]
    applied_sha: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    last_result: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    last_error: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    token_source: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    docker_version: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    compose_version: Option<String>,
}

#[derive(Deserialize)]
struct LeaseBody {
    reason: String,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "the fields are there to be demanded, not to be used")]
struct ReportBody {
    report_id: String,
    result: String,
    sha: String,
    phase: String,
    attempt: u32,
    rolled_back: bool,
    duration_ms: u64,
    at: String,
    agent_version: String,
    containers: Vec<ContainerBody>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "the fields are there to be demanded, not to be used")]
struct ContainerBody {
    service: String,
    name: String,
    state: String,
    #[serde(deserialize_with = "Option::deserialize")]
    health: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    exit_code: Option<i64>,
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is not what this call takes: {error}"))
}

fn checkin(state: &mut State, env_id: &str, body: &[u8]) -> Result<Answer, String> {
    read::<CheckinBody>(body)?;
    state.checkins.push((env_id.to_owned(), read(body)?));
    let Some(env) = state.envs.get(env_id) else { return Err("no such environment".to_owned()) };
    let mut answer = json!({"desired_sha": env.desired});
    if let (Some(reason), Some(object)) = (&env.hold, answer.as_object_mut()) {
        object.insert("hold".to_owned(), json!({"reason": reason}));
    }
    Ok(Answer::json(200, &answer))
}

fn bundle(state: &State, env_id: &str, sha: &str) -> Answer {
    let Some(served) = state.envs.get(env_id).and_then(|env| env.bundles.get(sha)) else {
        return refuse(404, "BUNDLE_NOT_FOUND", "this environment has no such bundle");
    };
    let answer = Answer::json(200, &served.body);
    match &served.header {
        Some(header) => answer.header("X-Bundle-Sha", header.clone()),
        None => answer,
    }
}

fn report(state: &mut State, env_id: &str, body: &[u8]) -> Result<Answer, String> {
    let report: ReportBody = read(body)?;
    if !matches!(report.result.as_str(), "applied" | "failed") {
        return Err("result must be `applied` or `failed`".to_owned());
    }
    if OffsetDateTime::parse(&report.at, &Rfc3339).is_err() {
        return Err("at must be an RFC 3339 time".to_owned());
    }
    let whole: Value = read(body)?;
    state.deliveries += 1;
    let known = state.reports.iter().any(|(env, old)| env == env_id && old.get("report_id") == whole.get("report_id"));
    if known {
        return Ok(Answer::json(200, &json!({"report_id": report.report_id, "new": false})));
    }
    state.reports.push((env_id.to_owned(), whole));
    Ok(Answer::json(201, &json!({"report_id": report.report_id, "new": true})))
}

fn refuse(status: u16, code: &str, message: &str) -> Answer {
    Answer::json(status, &json!({"error": {"code": code, "message": message}}))
}

fn rfc3339(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds).ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

fn logged_body(bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    let mut body = serde_json::from_slice(bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(bytes)));
    if let Some(grant) = body.get_mut("grant") {
        *grant = json!(grant.as_str().map_or_else(String::new, without_signature));
    }
    body
}

fn read_folder(folder: &Path) -> io::Result<BundleFiles> {
    let mut files = BundleFiles::new();
    let mut folders = vec![(String::new(), folder.to_owned())];
    while let Some((prefix, folder)) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let odd = |what| io::Error::other(format!("{}: {what}", entry.path().display()));
            let name = entry.file_name().into_string().map_err(|_| odd("a bundle's names are UTF-8"))?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push((format!("{prefix}{name}/"), entry.path()));
            } else if kind.is_file() {
                files.insert(format!("{prefix}{name}"), fs::read(entry.path())?);
            } else {
                return Err(odd("a bundle holds only files and folders"));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::grants::GrantCheck;

    // One call: status, Retry-After, body.
    fn call(tenancy: &Tenancy, method: &str, path: &str, body: &Value) -> (u16, Option<String>, Value) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}/v1/envs/{path}", tenancy.url());
        let mut answer = if method == "GET" {
            agent.get(&url).call().unwrap()
        } else {
            agent.post(&url).send(body.to_string()).unwrap()
        };
        let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), retry_after, serde_json::from_str(&text).unwrap())
    }

    fn lease(tenancy: &Tenancy) -> (u16, Option<String>, Value) {
        call(tenancy, "POST", "e4/leases", &json!({"reason": "apply"}))
    }

    #[test]
    fn the_content_sha_is_that_of_the_lines_in_byte_order() {
        let one = files([("b", "two\n"), ("B", "one\n"), ("a/b", "")]);
        // printf 'one\n' >B; printf 'two\n' >b; mkdir a; : >a/b; sha256sum B a/b b | sha256sum
        assert_eq!(content_sha(&one), {
            let line = |text: &str, path: &str| format!("{:x}  {path}\n", Sha256::digest(text));
            format!("{:x}", Sha256::digest(line("one\n", "B") + &line("", "a/b") + &line("two\n", "b")))
        });
    }

    #[test]
    fn bytes_that_are_no_text_travel_as_base64() {
        let mut bundle = files([("a", "text")]);
        bundle.insert("b".to_owned(), vec![0xff, 0x00]);
        assert_eq!(bundle_body(&bundle), json!({"files": {"a": "text", "b": {"base64": "/wA="}}}));
    }

    #[test]
    fn the_sixth_lease_of_an_hour_is_refused_and_told_when_to_come_back() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        for _ in 0..5 {
            assert_eq!(lease(&tenancy).0, 201);
            tenancy.advance(60);
        }
        let (status, retry_after, body) = lease(&tenancy);
        assert_eq!((status, body["error"]["code"].as_str()), (429, Some("LEASE_RATE_LIMITED")));
        let wait: i64 = retry_after.unwrap().parse().unwrap();
        assert!((3295..=3300).contains(&wait), "{wait}");
        tenancy.retry_after(false);
        assert_eq!(lease(&tenancy).1, None);
        tenancy.advance(wait);
        assert_eq!(lease(&tenancy).0, 201);
        assert_eq!(lease(&tenancy).0, 429);
        assert_eq!(tenancy.leases_granted("e4"), 6);
    }

    #[test]
    fn a_grant_is_signed_and_names_the_environment_and_its_end() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        let grant = lease(&tenancy).2["grant"].as_str().unwrap().to_owned();
        let claims = GrantCheck::from_pem(&tenancy.public_key_pem()).unwrap().claims(&grant).unwrap();
        assert_eq!((claims["aud"].as_str(), claims["env_id"].as_str()), (Some("openbao"), Some("e4")));
        assert_eq!(claims["iss"], json!(tenancy.issuer()));
        assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 600);
    }

    #[test]
    fn the_log_holds_no_usable_grant() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        let grant = lease(&tenancy).2["grant"].as_str().unwrap().to_owned();
        let logged = tenancy.requests()[0].answer["grant"].as_str().unwrap().to_owned();
        assert!(!format!("{:?}", tenancy.requests()).contains(&grant));
        assert!(GrantCheck::from_pem(&tenancy.public_key_pem()).unwrap().claims(&logged).is_err());
    }

    #[test]
    fn a_report_whose_answer_was_lost_is_counted_twice_and_kept_once() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        let report = json!({
            "report_id": "0".repeat(32), "result": "applied", "sha": "0".repeat(64), "phase": "healthy", "attempt": 1,
            "rolled_back": false, "duration_ms": 5, "at": "2026-01-01T00:00:00Z", "agent_version": "0.2.0", "containers": [],
        });
        tenancy.fail_next(Call::Report, Fault::LoseAnswer);
        let lost = ureq::post(format!("{}/v1/envs/e4/reports", tenancy.url())).send(report.to_string());
        assert!(lost.is_err());
        assert_eq!(call(&tenancy, "POST", "e4/reports", &report).0, 200);
        assert_eq!((tenancy.report_deliveries(), tenancy.reports()), (2, vec![report]));
    }

    #[test]
    fn what_the_agent_must_send_is_demanded() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        let (status, _, body) = call(&tenancy, "POST", "e4/checkin", &json!({"agent_version": "0.2.0", "site": ""}));
        assert_eq!((status, body["error"]["code"].as_str()), (400, Some("BAD_REQUEST")));
        assert!(body["error"]["message"].as_str().unwrap().contains("applied_sha"), "{body}");
        assert!(tenancy.checkins().is_empty());
    }

    #[test]
    fn a_fault_hits_the_next_call_only_and_always_means_always() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        tenancy.fail_next(Call::Lease, Fault::Status(503, "{}".to_owned()));
        assert_eq!((lease(&tenancy).0, lease(&tenancy).0), (503, 201));
        tenancy.fail_always(Call::Lease, Some(Fault::Status(502, "{}".to_owned())));
        assert_eq!((lease(&tenancy).0, lease(&tenancy).0), (502, 502));
        tenancy.fail_always(Call::Lease, None);
        assert_eq!(lease(&tenancy).0, 201);
    }

    #[test]
    fn a_retired_lease_has_no_grant() {
        let tenancy = Tenancy::start().unwrap();
        tenancy.add_env("e4");
        tenancy.legacy_leases(true);
        let (status, _, body) = lease(&tenancy);
        assert_eq!((status, body["type"].as_str(), body.get("grant")), (201, Some("approle"), None));
        tenancy.deny_leases(true);
        assert_eq!(lease(&tenancy).0, 403);
    }
}
