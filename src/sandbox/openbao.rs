//! A stand-in for OpenBao 2.7: JWT login, tokens and KV v2 as the real server answers, down to the texts of its errors.
//!
//! Invariant: for every request of the contract suite (`tests/contract_bao.rs`) it answers like the real server. What the
//! suite does not ask, nobody may rely on.
//!
//! ```
//! # use monky_deployd::sandbox::{openbao::{Auth, OpenBao}, tenancy::Tenancy};
//! # use serde_json::json;
//! let tenancy = Tenancy::start()?;
//! let bao = OpenBao::start(&Auth { issuer: tenancy.issuer(), public_key_pem: tenancy.public_key_pem() })?;
//! bao.put_secret("monky/e4/app/db", json!({"value": "not a real password"}));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::grants::{BadGrant, GrantCheck};
use super::http::{Answer, Fault, Reply, Request, Server, lock};
use super::mishaps::Mishaps;

/// The auth mount that [`OpenBao::start`] enables.
pub const AUTH_MOUNT: &str = "jwt";
/// The audience that every role demands.
pub const AUDIENCE: &str = "openbao";
/// What a server without an active node answers, with status 500.
pub const NO_LEADER: &str = r#"{"errors":["local node not active but active cluster node not found"]}"#;

/// Seconds by which clocks may differ (`clock_skew_leeway` of the roles).
const SKEW_S: i64 = 60;

/// Whose grants are accepted.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The `iss` they must carry (`bound_issuer`).
    pub issuer: String,
    /// The key that signs them, as Ed25519 SPKI PEM (`jwt_validation_pubkeys`).
    pub public_key_pem: String,
}

/// A role of a JWT mount.
#[derive(Clone, Debug)]
pub struct Role {
    /// The `env_id` that a grant must carry.
    pub env_id: String,
    /// The policies of its tokens.
    pub policies: Vec<String>,
    /// Life of a token, in seconds.
    pub ttl_s: i64,
    /// The longest that renewals can make it, in seconds from its creation.
    pub max_ttl_s: i64,
    /// After so many uses a token is dead; 0: no limit.
    pub num_uses: i64,
    /// Set: tokens are periodic, renewable for ever by so many seconds.
    pub period_s: Option<i64>,
    /// Tokens are batch tokens.
    pub batch: bool,
    /// Logins are bound to an address that no client here has.
    pub wrong_cidr: bool,
}

impl Role {
    /// The role that an environment's box has: tokens of an hour, at most four.
    pub fn of_env(env_id: &str) -> Role {
        Role {
            env_id: env_id.to_owned(),
            policies: vec![format!("env-{env_id}-read")],
            ttl_s: 3600,
            max_ttl_s: 4 * 3600,
            num_uses: 0,
            period_s: None,
            batch: false,
            wrong_cidr: false,
        }
    }
}

/// One permission of a policy.
#[derive(Clone, Debug)]
pub struct Rule {
    /// A path, or with `*` at its end everything that begins so.
    pub path: String,
    /// `read` or `update`.
    pub capability: &'static str,
}

/// The policy that an environment's box has.
pub fn env_policy(kv_mount: &str, env_id: &str) -> Vec<Rule> {
    let rule = |path: &str, capability| Rule { path: path.to_owned(), capability };
    vec![
        rule(&format!("{kv_mount}/data/{env_id}/*"), "read"),
        rule("auth/token/lookup-self", "read"),
        rule("auth/token/renew-self", "update"),
        rule("auth/token/revoke-self", "update"),
    ]
}

/// A call that the agent makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `POST auth/<mount>/login`
    Login,
    /// `GET auth/token/lookup-self`
    Lookup,
    /// `POST auth/token/renew-self`
    Renew,
    /// `POST auth/token/revoke-self`
    Revoke,
    /// Everything else: reads of secrets.
    Read,
}

/// One request as the log keeps it: no token, no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// In capitals.
    pub method: String,
    /// Path and query, raw.
    pub path: String,
    /// The accessor of the token that came along; none without a token or with one that is not known.
    pub accessor: Option<String>,
    /// The answer's status; none if no answer was sent.
    pub status: Option<u16>,
}

struct Mount {
    issuer: String,
    key: GrantCheck,
    roles: BTreeMap<String, Role>,
}

struct Kv {
    version: u8,
    secrets: BTreeMap<String, Vec<Version>>,
}

struct Version {
    data: Value,
    created_ms: i64,
    // When it is or will be deleted.
    deleted_ms: Option<i64>,
    destroyed: bool,
}

#[derive(Clone)]
struct Token {
    accessor: String,
    created_ms: i64,
    creation_ttl_s: i64,
    expires_ms: Option<i64>,
    explicit_max_ttl_s: i64,
    renewed_ms: Option<i64>,
    renewable: bool,
    // What is left; 0: no limit, -1: this is the last one.
    num_uses: i64,
    policies: Vec<String>,
    batch: bool,
    login: Option<LoginOrigin>,
}

#[derive(Clone)]
struct LoginOrigin {
    mount: String,
    role: String,
    env_id: String,
    subject: String,
    period_s: Option<i64>,
}

struct Quota {
    left: u32,
    retry_after_s: u32,
}

struct State {
    seed: [u8; 32],
    count: u64,
    offset_ms: i64,
    sealed: bool,
    auth: BTreeMap<String, Mount>,
    kv: BTreeMap<String, Kv>,
    policies: BTreeMap<String, Vec<Rule>>,
    tokens: BTreeMap<String, Token>,
    denied: BTreeSet<String>,
    quotas: BTreeMap<String, Quota>,
    mishaps: Mishaps<Call, Fault>,
    logins: usize,
    log: Vec<Logged>,
}

/// A running stand-in; dropping it stops it.
pub struct OpenBao {
    server: Server,
    state: Arc<Mutex<State>>,
    root: String,
}

impl OpenBao {
    /// Starts one on a free loopback port, unsealed, with the auth mount [`AUTH_MOUNT`] and no environments.
    ///
    /// # Errors
    /// If there is no port or no randomness to be had, or the key is no Ed25519 key.
    pub fn start(auth: &Auth) -> io::Result<OpenBao> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("the system gave no randomness"))?;
        let mut state = State {
            seed,
            count: 0,
            offset_ms: 0,
            sealed: false,
            auth: BTreeMap::new(),
            kv: BTreeMap::new(),
            policies: BTreeMap::new(),
            tokens: BTreeMap::new(),
            denied: BTreeSet::new(),
            quotas: BTreeMap::new(),
            mishaps: Mishaps::default(),
            logins: 0,
            log: Vec::new(),
        };
        let root = state.add_token(None, 0, false, vec!["root".to_owned()], None);
        let state = Arc::new(Mutex::new(state));
        let of_server = Arc::clone(&state);
        let server = Server::start(move |request| lock(&of_server).reply(request))?;
        let bao = OpenBao { server, state, root };
        bao.enable_jwt(AUTH_MOUNT, auth)?;
        Ok(bao)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("http://{}", self.server.addr())
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// A token that may do everything and never ends.
    pub fn root_token(&self) -> &str {
        &self.root
    }

    /// Adds a JWT auth mount.
    ///
    /// # Errors
    /// If the key is no Ed25519 key.
    pub fn enable_jwt(&self, mount: &str, auth: &Auth) -> io::Result<()> {
        let key = GrantCheck::from_pem(&auth.public_key_pem)?;
        let mount_state = Mount { issuer: auth.issuer.clone(), key, roles: BTreeMap::new() };
        self.set(|state| state.auth.insert(mount.to_owned(), mount_state));
        Ok(())
    }

    /// Adds a KV engine of version 1 or 2, if there is none of that name.
    pub fn enable_kv(&self, mount: &str, version: u8) {
        self.set(|state| {
            state.kv.entry(mount.to_owned()).or_insert_with(|| Kv { version, secrets: BTreeMap::new() });
        });
    }

    /// Adds or replaces a role.
    pub fn put_role(&self, mount: &str, name: &str, role: Role) {
        self.set(|state| state.auth.get_mut(mount).map(|mount| mount.roles.insert(name.to_owned(), role)));
    }

    /// Removes a role.
    pub fn delete_role(&self, mount: &str, name: &str) {
        self.set(|state| state.auth.get_mut(mount).and_then(|mount| mount.roles.remove(name)));
    }

    /// Adds or replaces a policy.
    pub fn put_policy(&self, name: &str, rules: Vec<Rule>) {
        self.set(|state| state.policies.insert(name.to_owned(), rules));
    }

    /// What a box of this environment needs: the role `env-<env_id>` and the policy to read `<kv_mount>/<env_id>/…`.
    /// An existing role is left as it is.
    pub fn add_env(&self, kv_mount: &str, env_id: &str) {
        self.enable_kv(kv_mount, 2);
        self.put_policy(&format!("env-{env_id}-read"), env_policy(kv_mount, env_id));
        self.set(|state| {
            if let Some(mount) = state.auth.get_mut(AUTH_MOUNT) {
                mount.roles.entry(format!("env-{env_id}")).or_insert_with(|| Role::of_env(env_id));
            }
        });
    }

    /// Writes a new version of the secret `<mount>/<env_id>/…` (as manifests spell it, without `data/`) and returns its
    /// number. Adds the engine and the environment if they are not there. In a KV v1 engine it replaces the secret.
    pub fn put_secret(&self, path: &str, data: Value) -> u64 {
        let (mount, rest) = split_path(path);
        if let Some((env_id, _)) = rest.split_once('/').filter(|_| self.kv_version(mount) != Some(1)) {
            self.add_env(mount, env_id);
        }
        let mut data = data;
        as_go_numbers(&mut data);
        self.set(|state| {
            let created_ms = state.now_ms();
            let Some(kv) = state.kv.get_mut(mount) else { return 0 };
            let versions = kv.secrets.entry(rest.to_owned()).or_default();
            if kv.version == 1 {
                versions.clear();
            }
            versions.push(Version { data, created_ms, deleted_ms: None, destroyed: false });
            u64::try_from(versions.len()).unwrap_or(u64::MAX)
        })
    }

    /// Deletes a version; it could be undeleted.
    pub fn delete_version(&self, path: &str, version: u64) {
        self.with_version(path, version, |version, now_ms| version.deleted_ms = Some(now_ms));
    }

    /// Undoes [`OpenBao::delete_version`].
    pub fn undelete_version(&self, path: &str, version: u64) {
        self.with_version(path, version, |version, _| version.deleted_ms = None);
    }

    /// Destroys a version for good.
    pub fn destroy_version(&self, path: &str, version: u64) {
        self.with_version(path, version, |version, _| {
            version.destroyed = true;
            version.data = Value::Null;
        });
    }

    /// A version will be deleted so many seconds from now (`delete_version_after`).
    pub fn delete_version_after(&self, path: &str, version: u64, seconds: i64) {
        self.with_version(path, version, |version, now_ms| version.deleted_ms = Some(now_ms + seconds * 1000));
    }

    /// Seals it, or unseals it: sealed, everything is 503.
    pub fn seal(&self, sealed: bool) {
        self.set(|state| state.sealed = sealed);
    }

    /// No token but root may read this secret (`<mount>/<env_id>/…`) any more, though it lives.
    pub fn deny(&self, path: &str) {
        let (mount, rest) = split_path(path);
        self.set(|state| state.denied.insert(format!("{mount}/data/{rest}")));
    }

    /// Undoes [`OpenBao::deny`].
    pub fn allow(&self, path: &str) {
        let (mount, rest) = split_path(path);
        self.set(|state| state.denied.remove(&format!("{mount}/data/{rest}")));
    }

    /// Ends every token but root's.
    pub fn revoke_all(&self) {
        self.set(|state| state.tokens.retain(|_, token| token.is_root()));
    }

    /// Sets how long tokens of an environment's role live, and how long at most, in seconds. As with the real server the
    /// life of tokens that are there stays, but their renewal obeys the new limits.
    pub fn token_ttl(&self, env_id: &str, ttl_s: i64, max_ttl_s: i64) {
        self.set(|state| {
            let role = state.auth.get_mut(AUTH_MOUNT).and_then(|mount| mount.roles.get_mut(&format!("env-{env_id}")));
            if let Some(role) = role {
                (role.ttl_s, role.max_ttl_s) = (ttl_s, max_ttl_s);
            }
        });
    }

    /// A token that was not got by a login.
    pub fn create_token(&self, ttl_s: i64, renewable: bool, policies: &[&str]) -> String {
        let policies = policies.iter().map(|name| (*name).to_owned()).collect();
        self.set(|state| state.add_token(Some(ttl_s), 0, renewable, policies, None))
    }

    /// Requests below a path prefix (without `/v1/`) are answered so many times, then with 429; none: no limit.
    pub fn quota(&self, prefix: &str, requests: Option<u32>) {
        self.set(|state| match requests {
            Some(left) => drop(state.quotas.insert(prefix.to_owned(), Quota { left, retry_after_s: 59 })),
            None => drop(state.quotas.remove(prefix)),
        });
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

    /// Moves its clock by so many seconds.
    pub fn advance(&self, seconds: i64) {
        self.set(|state| state.offset_ms = state.offset_ms.saturating_add(seconds.saturating_mul(1000)));
    }

    /// The accessors of the tokens that live, without root's.
    pub fn live_tokens(&self) -> Vec<String> {
        self.set(|state| {
            let now_ms = state.now_ms();
            let alive = state.tokens.values().filter(|token| !token.is_root() && token.lives(now_ms));
            alive.map(|token| token.accessor.clone()).collect()
        })
    }

    /// How many logins succeeded.
    pub fn logins(&self) -> usize {
        lock(&self.state).logins
    }

    /// Every request that arrived, in order.
    pub fn requests(&self) -> Vec<Logged> {
        lock(&self.state).log.clone()
    }

    fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.state))
    }

    fn kv_version(&self, mount: &str) -> Option<u8> {
        lock(&self.state).kv.get(mount).map(|kv| kv.version)
    }

    fn with_version(&self, path: &str, version: u64, change: impl FnOnce(&mut Version, i64)) {
        let (mount, rest) = split_path(path);
        self.set(|state| {
            let now_ms = state.now_ms();
            let versions = state.kv.get_mut(mount).and_then(|kv| kv.secrets.get_mut(rest));
            let index = usize::try_from(version).ok().and_then(|version| version.checked_sub(1));
            if let (Some(versions), Some(index)) = (versions, index)
                && let Some(version) = versions.get_mut(index)
            {
                change(version, now_ms);
            }
        });
    }
}

impl Token {
    fn lives(&self, now_ms: i64) -> bool {
        self.num_uses >= 0 && self.expires_ms.is_none_or(|at| now_ms < at)
    }

    fn is_root(&self) -> bool {
        self.policies.iter().any(|policy| policy == "root")
    }

    // Floored. The real server rounds its time to seconds first, so that its ttl is up to half a second more or less.
    fn ttl_s(&self, now_ms: i64) -> i64 {
        self.expires_ms.map_or(0, |at| (at - now_ms).max(0) / 1000)
    }

    fn kind(&self) -> &'static str {
        if self.batch { "batch" } else { "service" }
    }

    fn metadata(&self) -> Value {
        self.login.as_ref().map_or(Value::Null, |login| json!({"env_id": login.env_id, "role": login.role}))
    }
}

// The texts and shapes of the real server's errors.
fn errors(status: u16, texts: &[&str]) -> Answer {
    Answer::json(status, &json!({"errors": texts})).header("Cache-Control", "no-store")
}

fn dead_token() -> Answer {
    errors(403, &["permission denied"])
}

fn wrapped(status: u16, text: &str) -> Answer {
    errors(status, &[&format!("1 error occurred:\n\t* {text}\n\n")])
}

fn no_route(path: &str) -> Answer {
    errors(404, &[&format!("no handler for route \"{path}\". route entry not found.")])
}

impl State {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        i64::try_from(since).unwrap_or(i64::MAX).saturating_add(self.offset_ms)
    }

    // 24 characters that nobody can guess and that do not repeat.
    fn unique(&mut self, what: &str) -> String {
        self.count += 1;
        let digest =
            Sha256::new_with_prefix(self.seed).chain_update(what).chain_update(self.count.to_be_bytes()).finalize();
        format!("{digest:x}").chars().take(24).collect()
    }

    fn add_token(
        &mut self,
        ttl_s: Option<i64>,
        num_uses: i64,
        renewable: bool,
        policies: Vec<String>,
        login: Option<LoginOrigin>,
    ) -> String {
        let token = format!("s.{}", self.unique("token"));
        let created_ms = self.now_ms();
        let facts = Token {
            accessor: self.unique("accessor"),
            created_ms,
            creation_ttl_s: ttl_s.unwrap_or(0),
            expires_ms: ttl_s.map(|ttl_s| created_ms + ttl_s * 1000),
            explicit_max_ttl_s: 0,
            renewed_ms: None,
            renewable,
            num_uses,
            policies,
            batch: false,
            login,
        };
        self.tokens.insert(token.clone(), facts);
        token
    }

    fn reply(&mut self, request: &Request) -> Reply {
        let token = token_of(request);
        let accessor = token.and_then(|token| self.tokens.get(token)).map(|token| token.accessor.clone());
        let call = call_of(request.path());
        let reply = match self.mishaps.take(&call) {
            Some(fault) => fault.reply(|| self.answer(request)),
            None => Reply::Answer(self.answer(request)),
        };
        let status = match &reply {
            Reply::Answer(answer) => Some(answer.status),
            Reply::Close | Reply::Silence | Reply::Raw(_) => None,
        };
        self.log.push(Logged { method: request.method.clone(), path: request.target.clone(), accessor, status });
        reply
    }

    fn answer(&mut self, request: &Request) -> Answer {
        // First the path is looked at, whoever asks and in whatever state the server is.
        let cleaned = clean(request.path());
        if cleaned != request.path() {
            return redirect(request, &cleaned);
        }
        if request.path() == "/" {
            return redirect(request, "/ui/");
        }
        let Some(path) = percent_decoded(request.path()) else { return Answer::empty(400) };
        if path.chars().any(char::is_control) {
            return Answer::empty(400);
        }
        let Some(path) = path.strip_prefix("/v1/") else { return errors(404, &[]) };
        if path == "sys/health" {
            return self.health();
        }
        if self.sealed {
            return errors(503, &["Vault is sealed"]);
        }
        if path.split('/').any(|part| part == ".." || part == ".") {
            return errors(400, &["relative paths not supported"]);
        }
        if request.header("X-Vault-Namespace").is_some_and(|namespace| !namespace.is_empty()) {
            return errors(404, &["namespace not found"]);
        }
        if let Some(refused) = self.over_quota(path) {
            return refused;
        }
        if let Some(mount) = path.strip_prefix("auth/").and_then(|rest| rest.strip_suffix("/login"))
            && self.auth.contains_key(mount)
        {
            let (mount, now_ms) = (mount.to_owned(), self.now_ms());
            return self.login(request, &mount, now_ms).unwrap_or_else(|refused| refused);
        }
        self.with_token(request, path)
    }

    fn health(&self) -> Answer {
        let (status, standby) = if self.sealed { (503, true) } else { (200, false) };
        let body = json!({
            "initialized": true, "sealed": self.sealed, "standby": standby, "version": "2.7.2",
            "server_time_utc": self.now_ms() / 1000,
        });
        Answer::json(status, &body)
    }

    fn over_quota(&mut self, path: &str) -> Option<Answer> {
        let (_, quota) = self.quotas.iter_mut().find(|(prefix, _)| path.starts_with(prefix.as_str()))?;
        if quota.left > 0 {
            quota.left -= 1;
            return None;
        }
        let refused = errors(429, &[&format!("request path \"{path}\": rate limit quota exceeded")]);
        Some(refused.header("Retry-After", quota.retry_after_s.to_string()))
    }

    fn login(&mut self, request: &Request, mount: &str, now_ms: i64) -> Result<Answer, Answer> {
        let bad = |text: &str| errors(400, &[text]);
        if !is_write(request) {
            return Err(errors(405, &["unsupported operation"]));
        }
        let body = json_body(request)?;
        let field = |name: &str| body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let name = field("role").ok_or_else(|| bad("missing role"))?;
        let grant = field("jwt");
        let Some(auth) = self.auth.get(mount) else { return Err(dead_token()) };
        let Some(role) = auth.roles.get(name) else {
            return Err(bad(&format!("role \"{name}\" could not be found")));
        };
        let grant = grant.ok_or_else(|| bad("missing token"))?;
        if role.wrong_cidr {
            return Err(dead_token());
        }
        let claims = auth.key.claims(grant).map_err(|why| {
            bad(&format!("error validating token: error verifying token signature: {}", signature_text(why)))
        })?;
        let (env_id, subject) = judge(&claims, auth, role, now_ms / 1000).map_err(|why| bad(&why))?;

        let role = role.clone();
        let origin =
            LoginOrigin { mount: mount.to_owned(), role: name.to_owned(), env_id, subject, period_s: role.period_s };
        let ttl_s = role.period_s.unwrap_or(role.ttl_s.min(role.max_ttl_s));
        let mut token = self.add_token(Some(ttl_s), role.num_uses, !role.batch, role.policies.clone(), Some(origin));
        if role.batch
            && let Some(mut facts) = self.tokens.remove(&token)
        {
            facts.batch = true;
            facts.accessor = String::new();
            token = token.replacen("s.", "b.", 1);
            self.tokens.insert(token.clone(), facts);
        }
        self.logins += 1;
        Ok(self.token_answer(&token, now_ms, Value::Null))
    }

    // What login and renewal answer.
    fn token_answer(&self, token: &str, now_ms: i64, warnings: Value) -> Answer {
        let Some(facts) = self.tokens.get(token) else { return dead_token() };
        // The life that was just given, not what a millisecond has left of it.
        let since = facts.renewed_ms.unwrap_or(facts.created_ms);
        let auth = json!({
            "client_token": token,
            "accessor": facts.accessor,
            "policies": facts.policies,
            "token_policies": facts.policies,
            "metadata": facts.metadata(),
            "lease_duration": facts.ttl_s(since.min(now_ms)),
            "renewable": facts.renewable,
            "entity_id": "",
            "token_type": facts.kind(),
            "orphan": true,
            "mfa_requirement": null,
            "num_uses": facts.num_uses,
        });
        envelope(200, Value::Null, auth, warnings, 0)
    }

    fn with_token(&mut self, request: &Request, path: &str) -> Answer {
        let now_ms = self.now_ms();
        let Some(token) = token_of(request).map(str::to_owned) else { return dead_token() };
        let Some(facts) = self.tokens.get_mut(&token).filter(|facts| facts.lives(now_ms)) else { return dead_token() };
        // Each call costs a use, whatever it comes to.
        facts.num_uses = match facts.num_uses {
            0 => 0,
            1 => -1,
            left => left - 1,
        };
        let facts = facts.clone();
        if !self.allows(&facts, request, path) {
            return wrapped(403, "permission denied");
        }
        match (path, is_write(request)) {
            ("auth/token/lookup-self", false) => lookup(&token, &facts, now_ms),
            ("auth/token/renew-self", true) => self.renew(request, &token, facts, now_ms),
            ("auth/token/revoke-self", true) if facts.batch => errors(400, &["batch tokens cannot be revoked"]),
            ("auth/token/revoke-self", true) => {
                self.tokens.remove(&token);
                Answer::empty(204).header("Content-Type", "application/json")
            }
            ("auth/token/lookup-self" | "auth/token/renew-self" | "auth/token/revoke-self", _) => {
                errors(405, &["unsupported operation"])
            }
            _ => self.read(request, path, now_ms),
        }
    }

    fn allows(&self, token: &Token, request: &Request, path: &str) -> bool {
        if token.is_root() {
            return true;
        }
        if self.denied.contains(path) {
            return false;
        }
        let wanted = match request.method.as_str() {
            "GET" => "read",
            "POST" | "PUT" => "update",
            _ => return false,
        };
        token.policies.iter().filter_map(|name| self.policies.get(name)).flatten().any(|rule| {
            rule.capability == wanted
                && match rule.path.strip_suffix('*') {
                    Some(prefix) => path.starts_with(prefix),
                    None => path == rule.path,
                }
        })
    }

    fn renew(&mut self, request: &Request, token: &str, facts: Token, now_ms: i64) -> Answer {
        if facts.batch {
            return errors(400, &["batch tokens cannot be renewed"]);
        }
        if !facts.renewable || facts.expires_ms.is_none() {
            return errors(400, &["lease is not renewable"]);
        }
        let body = match json_body(request) {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let increment_s = body.get("increment").and_then(seconds).filter(|s| *s > 0);
        let (wanted_s, left_s) = match &facts.login {
            Some(login) => {
                let role = self.auth.get(&login.mount).and_then(|mount| mount.roles.get(&login.role));
                let Some(role) = role else {
                    let name = &login.role;
                    return wrapped(500, &format!("failed to renew entry: role {name} does not exist during renewal"));
                };
                match login.period_s {
                    Some(period_s) => (period_s, i64::MAX),
                    None => {
                        let left_ms = facts.created_ms + role.max_ttl_s * 1000 - now_ms;
                        if left_ms <= 0 {
                            return wrapped(500, "past the max TTL, cannot renew");
                        }
                        (increment_s.unwrap_or(role.ttl_s), left_ms / 1000)
                    }
                }
            }
            None => (increment_s.unwrap_or(facts.creation_ttl_s), i64::MAX),
        };
        let warnings = if wanted_s > left_s {
            json!([format!(
                "TTL of \"{}\" exceeded the effective max_ttl of \"{}\"; TTL value is capped accordingly",
                go_duration(wanted_s),
                go_duration(left_s)
            )])
        } else {
            Value::Null
        };
        if let Some(facts) = self.tokens.get_mut(token) {
            facts.expires_ms = Some(now_ms + wanted_s.min(left_s) * 1000);
            facts.renewed_ms = Some(now_ms);
        }
        self.token_answer(token, now_ms, warnings)
    }

    fn read(&self, request: &Request, path: &str, now_ms: i64) -> Answer {
        let (mount, rest) = split_path(path);
        let Some(kv) = self.kv.get(mount) else { return no_route(path) };
        if request.method != "GET" {
            return errors(405, &["unsupported operation"]);
        }
        if kv.version == 1 {
            return match kv.secrets.get(rest).and_then(|versions| versions.last()) {
                Some(version) => envelope(200, version.data.clone(), Value::Null, Value::Null, 2_764_800),
                None => errors(404, &[]),
            };
        }
        let Some(name) = rest.strip_prefix("data/") else {
            let warning = "Invalid path for a versioned K/V secrets engine. See the API docs for the appropriate API \
                           endpoints to use. If using the OpenBao CLI, use 'bao kv get' for this operation.";
            return envelope(404, Value::Null, Value::Null, json!([warning]), 0);
        };
        let wanted = match version_of(request.query()) {
            Ok(wanted) => wanted,
            Err(refused) => return refused,
        };
        let Some(versions) = kv.secrets.get(name.trim_end_matches('/')) else { return errors(404, &[]) };
        let number = wanted.unwrap_or(versions.len());
        let Some(version) = number.checked_sub(1).and_then(|index| versions.get(index)) else {
            return errors(404, &[]);
        };
        let gone = version.destroyed || version.deleted_ms.is_some_and(|at| at <= now_ms);
        if !gone && name.ends_with('/') {
            return wrapped(500, "could not find version data");
        }
        let body = json!({
            "data": if gone { Value::Null } else { version.data.clone() },
            "metadata": {
                "created_time": rfc3339(version.created_ms),
                "custom_metadata": null,
                "deletion_time": version.deleted_ms.map(rfc3339).unwrap_or_default(),
                "destroyed": version.destroyed,
                "version": number,
            },
        });
        envelope(if gone { 404 } else { 200 }, body, Value::Null, Value::Null, 0)
    }
}

fn lookup(token: &str, facts: &Token, now_ms: i64) -> Answer {
    let (path, name) = match &facts.login {
        Some(login) => (format!("auth/{}/login", login.mount), format!("{}-{}", login.mount, login.subject)),
        None => ("auth/token/create".to_owned(), "token".to_owned()),
    };
    let mut data = json!({
        "accessor": facts.accessor,
        "creation_time": facts.created_ms / 1000,
        "creation_ttl": facts.creation_ttl_s,
        "display_name": name,
        "entity_id": "",
        "expire_time": facts.expires_ms.map(rfc3339),
        "explicit_max_ttl": facts.explicit_max_ttl_s,
        "id": token,
        "issue_time": rfc3339(facts.created_ms),
        "meta": facts.metadata(),
        "num_uses": facts.num_uses,
        "orphan": true,
        "path": path,
        "policies": facts.policies,
        "renewable": facts.renewable,
        // Some of its life is over, also if it is less than this clock tells.
        "ttl": facts.ttl_s(now_ms + 1),
        "type": facts.kind(),
    });
    if let Some(object) = data.as_object_mut() {
        if let Some(renewed_ms) = facts.renewed_ms {
            object.insert("last_renewal".to_owned(), json!(rfc3339(renewed_ms)));
            object.insert("last_renewal_time".to_owned(), json!(renewed_ms / 1000));
        }
        if let Some(period_s) = facts.login.as_ref().and_then(|login| login.period_s) {
            object.insert("period".to_owned(), json!(period_s));
        }
    }
    envelope(200, data, Value::Null, Value::Null, 0)
}

// The claims against the mount and the role, in the real server's order and words. Returns env_id and subject.
fn judge(claims: &Value, auth: &Mount, role: &Role, now_s: i64) -> Result<(String, String), String> {
    let invalid = |text: &str| Err(format!("error validating token: {text}"));
    let time = |name: &str| claims.get(name).and_then(Value::as_i64);
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let (iat, nbf, exp) = (time("iat"), time("nbf"), time("exp"));
    if iat.is_none() && nbf.is_none() && exp.is_none() {
        return invalid("no issued at (iat), not before (nbf), or expiration time (exp) claims in token");
    }
    // Without leeway on either (`-1`) a missing `nbf` counts from `iat`, or else from `exp`.
    let not_before = nbf.or(iat).or(exp).unwrap_or(i64::MAX);
    if exp.is_some_and(|exp| now_s.saturating_sub(SKEW_S) > exp) {
        return invalid("invalid expiration time (exp) claim: token is expired");
    }
    if now_s.saturating_add(SKEW_S) < not_before {
        let why = if nbf.is_none() && iat.is_some() {
            "invalid issued at (iat) claim: token issued in the future"
        } else {
            "invalid not before (nbf) claim: token not yet valid"
        };
        return invalid(why);
    }
    if iat.is_some_and(|iat| now_s.saturating_add(SKEW_S) < iat) {
        return invalid("invalid issued at (iat) claim: token issued in the future");
    }
    if text("iss") != Some(auth.issuer.as_str()) {
        return invalid("invalid issuer (iss) claim");
    }
    let for_us = match claims.get("aud") {
        Some(Value::String(one)) => one == AUDIENCE,
        Some(Value::Array(several)) => several.iter().any(|one| one == AUDIENCE),
        _ => false,
    };
    if !for_us {
        return invalid("invalid audience (aud) claim: audience claim does not match any expected audience");
    }
    let Some(subject) = text("sub") else { return Err("claim \"sub\" not found in token".to_owned()) };
    match claims.get("env_id") {
        None => Err("error validating claims: claim \"env_id\" is missing".to_owned()),
        Some(env_id) if *env_id == json!(role.env_id) => Ok((role.env_id.clone(), subject.to_owned())),
        Some(_) => {
            Err("error validating claims: claim \"env_id\" does not match any associated bound claim values".to_owned())
        }
    }
}

fn signature_text(why: BadGrant) -> &'static str {
    match why {
        BadGrant::Parts => "go-jose/go-jose: compact JWS format must have three parts",
        BadGrant::Base64 => "illegal base64 data at input byte 0",
        BadGrant::Signature | BadGrant::Claims => "no known key successfully validated the token signature",
    }
}

fn envelope(status: u16, data: Value, auth: Value, warnings: Value, lease_duration: u64) -> Answer {
    let body = json!({
        "request_id": "00000000-0000-0000-0000-000000000000",
        "lease_id": "",
        "renewable": false,
        "lease_duration": lease_duration,
        "data": data,
        "wrap_info": null,
        "warnings": warnings,
        "auth": auth,
    });
    Answer::json(status, &body).header("Cache-Control", "no-store")
}

fn redirect(request: &Request, to: &str) -> Answer {
    let to = if request.query().is_empty() { to.to_owned() } else { format!("{to}?{}", request.query()) };
    let answer = Answer::empty(307).header("Location", to.clone());
    if request.method == "GET" {
        let body = format!("<a href=\"{to}\">Temporary Redirect</a>.\n\n");
        answer.header("Content-Type", "text/html; charset=utf-8").body(body)
    } else {
        answer
    }
}

fn call_of(path: &str) -> Call {
    match path {
        "/v1/auth/token/lookup-self" => Call::Lookup,
        "/v1/auth/token/renew-self" => Call::Renew,
        "/v1/auth/token/revoke-self" => Call::Revoke,
        _ if path.starts_with("/v1/auth/") && path.ends_with("/login") => Call::Login,
        _ => Call::Read,
    }
}

fn token_of(request: &Request) -> Option<&str> {
    let bearer = || request.header("Authorization").and_then(|value| value.strip_prefix("Bearer "));
    request.header("X-Vault-Token").or_else(bearer).filter(|token| !token.is_empty())
}

fn is_write(request: &Request) -> bool {
    matches!(request.method.as_str(), "POST" | "PUT")
}

fn json_body(request: &Request) -> Result<Map<String, Value>, Answer> {
    if request.body.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&request.body)
        .map_err(|error| errors(400, &[&format!("failed to decode JSON input: {error}")]))
}

fn version_of(query: &str) -> Result<Option<usize>, Answer> {
    let Some(text) = query.split('&').find_map(|pair| pair.strip_prefix("version=")) else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<i64>() {
        Ok(number) => Ok(usize::try_from(number).ok().filter(|number| *number > 0)),
        Err(_) => Err(errors(
            400,
            &[
                "Field validation failed: error converting input for field \"version\": '' cannot parse value as 'int': \
               strconv.ParseInt: invalid syntax",
            ],
        )),
    }
}

// The first part of a path, and the rest.
fn split_path(path: &str) -> (&str, &str) {
    path.split_once('/').unwrap_or((path, ""))
}

// A path as the real server's router cleans it: no `.`, no `..`, no `//`; a trailing slash stays.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    let slash = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{slash}", parts.join("/"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        bytes.push(digit()? * 16 + digit()?);
    }
    String::from_utf8(bytes).ok()
}

// `"60s"`, `"1h30m"`, `60` or `"60"`, in seconds.
fn seconds(value: &Value) -> Option<i64> {
    let Value::String(text) = value else { return value.as_i64() };
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    let (mut total, mut number) = (0_i64, 0_i64);
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number = number * 10 + i64::from(c.to_digit(10)?);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        total += number * unit;
        number = 0;
    }
    Some(total)
}

// As the real server prints a duration: `3h59m59s`, parts of zero left out.
fn go_duration(seconds: i64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let text: String = parts.iter().filter(|(n, _)| *n != 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

// The real server keeps numbers as 64-bit floats: large ones change.
fn as_go_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or_default();
            if float.fract() == 0.0
                && let Ok(whole) = serde_json::from_str(&float.to_string())
            {
                *number = whole;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(as_go_numbers),
        Value::Object(fields) => fields.values_mut().for_each(as_go_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn rfc3339(ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::tenancy::Tenancy;

    struct World {
        tenancy: Tenancy,
        bao: OpenBao,
    }

    impl World {
        fn start() -> World {
            let tenancy = Tenancy::start().unwrap();
            let auth = Auth { issuer: tenancy.issuer(), public_key_pem: tenancy.public_key_pem() };
            let bao = OpenBao::start(&auth).unwrap();
            bao.put_secret("monky/e4/app", json!({"value": "hidden-canary"}));
            World { tenancy, bao }
        }

        fn call(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> (u16, Value) {
            let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
            let url = format!("{}/v1/{path}", self.bao.addr());
            let mut answer = match (method, body) {
                ("GET", _) => agent.get(&url).header("X-Vault-Token", token).call().unwrap(),
                (_, body) => {
                    let text = body.unwrap_or(json!({})).to_string();
                    agent.post(&url).header("X-Vault-Token", token).send(text).unwrap()
                }
            };
            let text = answer.body_mut().read_to_string().unwrap();
            (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null))
        }

        fn login(&self) -> String {
            let grant = self.tenancy.mint_bootstrap_grant("e4", 600);
            let body = json!({"role": "env-e4", "jwt": grant});
            let (status, answer) = self.call("POST", "auth/jwt/login", "", Some(body));
            assert_eq!(status, 200, "{answer}");
            answer["auth"]["client_token"].as_str().unwrap().to_owned()
        }

        fn lookup(&self, token: &str) -> (u16, Option<i64>) {
            let (status, answer) = self.call("GET", "auth/token/lookup-self", token, None);
            (status, answer["data"]["ttl"].as_i64())
        }
    }

    #[test]
    fn a_token_ages_with_its_clock_and_a_renewal_stops_at_the_max_ttl() {
        let world = World::start();
        let token = world.login();
        world.bao.advance(3000);
        assert!(matches!(world.lookup(&token), (200, Some(598..=600))));
        for _ in 0..4 {
            assert_eq!(world.call("POST", "auth/token/renew-self", &token, None).0, 200);
            world.bao.advance(2800);
        }
        // 14200 of 14400 s are over: the last renewal gives the rest only.
        let (status, answer) = world.call("POST", "auth/token/renew-self", &token, None);
        assert_eq!(status, 200);
        assert!(answer["warnings"][0].as_str().unwrap().contains("exceeded the effective max_ttl"), "{answer}");
        world.bao.advance(201);
        assert_eq!(world.lookup(&token).0, 403);
        assert_eq!(world.bao.live_tokens(), Vec::<String>::new());
        assert_eq!(world.bao.logins(), 1);
    }

    #[test]
    fn a_denied_secret_is_a_403_of_a_live_token_and_a_revoked_token_one_of_a_dead_one() {
        let world = World::start();
        let token = world.login();
        assert_eq!(world.call("GET", "monky/data/e4/app", &token, None).0, 200);
        world.bao.deny("monky/e4/app");
        let denied = world.call("GET", "monky/data/e4/app", &token, None);
        assert_eq!(denied, (403, json!({"errors": ["1 error occurred:\n\t* permission denied\n\n"]})));
        world.bao.allow("monky/e4/app");
        world.bao.revoke_all();
        let dead = world.call("GET", "monky/data/e4/app", &token, None);
        assert_eq!(dead, (403, json!({"errors": ["permission denied"]})));
    }

    #[test]
    fn the_log_names_tokens_by_accessor_and_holds_no_value() {
        let world = World::start();
        let token = world.login();
        world.call("GET", "monky/data/e4/app", &token, None);
        let log = world.bao.requests();
        assert_eq!(log.last().unwrap().accessor, world.bao.live_tokens().first().cloned());
        let text = format!("{log:?}");
        assert!(!text.contains(&token) && !text.contains("hidden-canary"), "{text}");
    }

    #[test]
    fn a_lost_answer_of_a_login_leaves_a_token_behind() {
        let world = World::start();
        world.bao.fail_next(Call::Login, Fault::LoseAnswer);
        let body = json!({"role": "env-e4", "jwt": world.tenancy.mint_bootstrap_grant("e4", 600)});
        assert!(ureq::post(format!("{}/v1/auth/jwt/login", world.bao.addr())).send(body.to_string()).is_err());
        assert_eq!((world.bao.logins(), world.bao.live_tokens().len()), (1, 1));
    }

    #[test]
    fn a_server_without_a_leader_answers_500_for_a_while() {
        let world = World::start();
        let token = world.login();
        world.bao.fail_always(Call::Lookup, Some(Fault::Status(500, NO_LEADER.to_owned())));
        assert_eq!(world.lookup(&token).0, 500);
        world.bao.fail_always(Call::Lookup, None);
        assert_eq!(world.lookup(&token).0, 200);
    }

    #[test]
    fn durations_are_read_and_printed_as_the_real_server_does() {
        assert_eq!(seconds(&json!("1h30m")), Some(5400));
        assert_eq!((seconds(&json!(60)), seconds(&json!("60")), seconds(&json!("x"))), (Some(60), Some(60), None));
        assert_eq!(
            (go_duration(14399), go_duration(360_000), go_duration(0)),
            ("3h59m59s".into(), "100h".into(), "0s".into())
        );
    }
}
