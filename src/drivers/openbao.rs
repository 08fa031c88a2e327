//! OpenBao: login, the life of a token, and reading KV v2 secrets (contract §5).
//!
//! Invariant: an answer counts as OpenBao's verdict on a grant, a token or a path only if it is in OpenBao's
//! own shape; whatever else comes (a 5xx, a 429, a redirect, another server's page) is `Unavailable` and says
//! nothing about them. Values and tokens leave as return values only, never in a text.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zeroize::Zeroize as _;

use super::http::{Answer, Ask, BODY_CAP, Http, Keep, Repeat, one_line, wiped};
use super::vault::{Secret, Wiped};
use crate::effects::{BaoFault, CallFault, ReadSecret, Scrub, Scrubbed, SecretFault, TokenFacts};

/// Bytes of a token that may go into a header.
const TOKEN_CAP: usize = 16 << 10;

/// An OpenBao server.
#[derive(Debug)]
pub struct OpenBao {
    http: Http,
    kv_mount: String,
    namespace: Option<String>,
}

/// Body of a login, on the wire.
#[derive(Serialize)]
struct WireGrant<'a> {
    role: &'a str,
    jwt: &'a str,
}

/// Answer of login and renewal, on the wire. The top level's own `lease_duration` means nothing here.
#[derive(Deserialize)]
struct WireLogin {
    #[serde(default)]
    auth: Option<WireAuth>,
}

#[derive(Deserialize)]
struct WireAuth {
    #[serde(default, deserialize_with = "wiped")]
    client_token: Option<Secret>,
    #[serde(default)]
    accessor: Option<String>,
    #[serde(default)]
    lease_duration: Option<u64>,
    #[serde(default)]
    renewable: bool,
}

/// Answer of lookup-self, on the wire, without its `id`, which is the token itself.
#[derive(Deserialize)]
struct WireLookup {
    #[serde(default)]
    data: Option<WireToken>,
}

#[derive(Deserialize)]
struct WireToken {
    #[serde(default)]
    accessor: Option<String>,
    #[serde(default)]
    ttl: Option<u64>,
    #[serde(default)]
    expire_time: Option<Value>,
    #[serde(default)]
    renewable: Option<bool>,
    #[serde(default)]
    num_uses: Option<Value>,
    #[serde(default, rename = "type")]
    kind: Option<Value>,
}

/// Answer of a KV read, on the wire.
#[derive(Deserialize)]
struct WireSecret {
    #[serde(default)]
    data: Option<Fields>,
}

/// The fields of a secret; their values are wiped when dropped.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        self.0.values_mut().for_each(wipe);
    }
}

fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(all) => all.iter_mut().for_each(wipe),
        Value::Object(all) => all.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[derive(Default, Deserialize)]
struct WireMetadata {
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    deletion_time: Option<String>,
    #[serde(default)]
    destroyed: bool,
}

/// What a server says of itself (`sys/health`). It is for people and never a gate: only the call itself tells whether a
/// call works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Health {
    /// It has keys.
    pub initialized: bool,
    /// It cannot read its own storage before somebody unseals it.
    pub sealed: bool,
    /// Another node leads; it answers reads all the same.
    #[serde(default)]
    pub standby: bool,
}

/// What makes a token an odd one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// A batch token: it can be neither renewed nor revoked.
    pub batch: bool,
    /// It dies after so many more calls.
    pub uses_left: Option<u64>,
}

impl OpenBao {
    /// OpenBao behind `http`; secrets are below `kv_mount`, which may have slashes.
    pub fn new(http: Http, kv_mount: &str, namespace: Option<String>) -> OpenBao {
        OpenBao { http, kv_mount: kv_mount.trim_matches('/').to_owned(), namespace }
    }

    /// Trades a grant for a token, once.
    ///
    /// # Errors
    ///
    /// [`BaoFault::Rejected`] for a grant that OpenBao does not take (it says 400, never 401), also for one that
    /// cannot be sent; [`BaoFault::Denied`] if the mount is missing or the address not allowed.
    pub fn login(
        &self,
        scrub: &dyn Scrub,
        mount: &str,
        role: &str,
        grant: &str,
    ) -> Result<(TokenFacts, Secret), BaoFault> {
        let grant = grant.trim();
        if grant.is_empty() || grant.chars().any(char::is_control) {
            let detail = Scrubbed::new(scrub, "the grant is empty or has control characters; it was not sent");
            return Err(BaoFault::Rejected { detail });
        }
        let body = Wiped::json(&WireGrant { role, jwt: grant }, false)
            .map_err(|error| self.nonsense(scrub, &format!("was not asked: {error}")))?;
        let path = format!("/v1/auth/{}/login", encoded(mount.trim_matches('/')));
        let answer = self.call(scrub, &path, Some(&body), None, Repeat::Never)?;
        let auth = self.auth(scrub, &answer)?;
        let facts = facts(&auth);
        match auth.client_token.as_ref().map(|token| token.expose().trim()) {
            Some(token) if fits_header(token) => Ok((facts, Secret::new(token.to_owned()))),
            _ => Err(self.nonsense(scrub, "gave a token that is empty or has characters that no token has")),
        }
    }

    /// Asks whether a token lives, and how long.
    ///
    /// # Errors
    ///
    /// [`BaoFault::Denied`]: it is dead (or was never one).
    pub fn lookup(&self, scrub: &dyn Scrub, token: &str) -> Result<TokenFacts, BaoFault> {
        self.look_closely(scrub, token).map(|(facts, _)| facts)
    }

    /// The same, and what is odd about it. (Of a token with a number of uses each call takes one, this one too.)
    ///
    /// # Errors
    ///
    /// As [`OpenBao::lookup`].
    pub fn look_closely(&self, scrub: &dyn Scrub, token: &str) -> Result<(TokenFacts, Oddities), BaoFault> {
        let answer = self.call(scrub, "/v1/auth/token/lookup-self", None, Some(token), Repeat::Safe)?;
        let wire: WireLookup = self.json(scrub, &answer)?;
        let Some(WireToken { accessor, ttl: Some(ttl), expire_time, renewable, num_uses, kind }) = wire.data else {
            return Err(self.nonsense(scrub, "looked a token up without telling its ttl"));
        };
        // A token in its last second has ttl 0 as well, but an end.
        let never_ends = ttl == 0 && expire_time.is_none_or(|time| time.is_null());
        let odd = Oddities {
            batch: kind.as_ref().and_then(Value::as_str) == Some("batch"),
            uses_left: num_uses.as_ref().and_then(Value::as_u64).filter(|uses| *uses > 0),
        };
        let facts = TokenFacts { accessor, ttl_s: (!never_ends).then_some(ttl), renewable: renewable.unwrap_or(false) };
        Ok((facts, odd))
    }

    /// Asks the server how it is.
    ///
    /// # Errors
    ///
    /// Any [`CallFault`]; a status is one only if its body tells nothing.
    pub fn health(&self, scrub: &dyn Scrub) -> Result<Health, CallFault> {
        let keep = Keep::Whole(BODY_CAP);
        let ask = Ask { path: "/v1/sys/health", body: None, headers: &[], repeat: Repeat::Safe, keep };
        let answer = self.http.call(scrub, &ask)?;
        serde_json::from_slice(&answer.body).map_err(|_| self.http.status_fault(scrub, &answer))
    }

    /// Renews a token, by as much as OpenBao gives: an increment could shorten it.
    ///
    /// # Errors
    ///
    /// [`BaoFault::PastMaxTtl`] and [`BaoFault::Rejected`] (not renewable): it will not work another time either.
    pub fn renew(&self, scrub: &dyn Scrub, token: &str) -> Result<TokenFacts, BaoFault> {
        let answer = self.call(scrub, "/v1/auth/token/renew-self", Some(b"{}"), Some(token), Repeat::Never)?;
        Ok(facts(&self.auth(scrub, &answer)?))
    }

    /// Ends a token.
    ///
    /// # Errors
    ///
    /// [`BaoFault::Denied`]: it was dead already.
    pub fn revoke(&self, scrub: &dyn Scrub, token: &str) -> Result<(), BaoFault> {
        self.call(scrub, "/v1/auth/token/revoke-self", Some(b"{}"), Some(token), Repeat::Never).map(drop)
    }

    /// Reads a secret: its version (none: the engine keeps none) and its fields.
    ///
    /// # Errors
    ///
    /// [`SecretFault`]; a path outside of the KV mount is [`BaoFault::Rejected`] and is not sent.
    pub fn read_secret(
        &self,
        scrub: &dyn Scrub,
        token: &str,
        read: &ReadSecret,
    ) -> Result<(Option<u64>, Fields), SecretFault> {
        let Some(path) = self.kv_path(read) else {
            let words = format!("{} is no path below {}/; it was not asked for", read.path, self.kv_mount);
            return Err(SecretFault::Bao(BaoFault::Rejected { detail: Scrubbed::new(scrub, &words) }));
        };
        let answer = self.send(scrub, &path, None, Some(token), Repeat::Safe).map_err(SecretFault::Bao)?;
        if answer.status == 404 {
            return Err(self.not_there(scrub, &answer));
        }
        let answer = self.accept(scrub, answer).map_err(SecretFault::Bao)?;
        let wire: WireSecret = self.json(scrub, &answer).map_err(SecretFault::Bao)?;
        let nonsense = |what: &str| SecretFault::Bao(self.nonsense(scrub, what));
        let Some(mut outer) = wire.data else { return Err(nonsense("answered a secret without data")) };
        let Some(metadata) = outer.0.get("metadata").cloned() else {
            // KV v1 knows neither metadata nor versions: the fields are right here.
            return Ok((None, outer));
        };
        let metadata: WireMetadata =
            serde_json::from_value(metadata).map_err(|_| nonsense("answered a secret with strange metadata"))?;
        let Some(Value::Object(data)) = outer.0.remove("data") else {
            return Err(match gone(&metadata) {
                Some(how) => SecretFault::Deleted(how),
                None => nonsense("answered a secret whose data is no object"),
            });
        };
        let data = Fields(data);
        match (read.version, metadata.version) {
            (Some(pinned), Some(got)) if pinned != got => {
                Err(nonsense(&format!("was asked for version {pinned} and answered version {got}")))
            }
            (_, version) => Ok((version, data)),
        }
    }

    /// `/v1/<kv_mount>/data/<rest>[?version=N]`. A climbing segment would be answered with a redirect into another
    /// environment, so none is sent.
    fn kv_path(&self, read: &ReadSecret) -> Option<String> {
        let rest = read.path.strip_prefix(&self.kv_mount)?.strip_prefix('/')?;
        if rest.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return None;
        }
        let version = read.version.map(|version| format!("?version={version}")).unwrap_or_default();
        Some(format!("/v1/{}/data/{}{version}", encoded(&self.kv_mount), encoded(rest)))
    }

    /// A 404 of a KV read: never there, deleted, or another thing altogether.
    fn not_there(&self, scrub: &dyn Scrub, answer: &Answer) -> SecretFault {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let metadata = body.get("data").and_then(|data| data.get("metadata")).cloned();
        if let Some(how) = metadata.and_then(|found| serde_json::from_value(found).ok()).as_ref().and_then(gone) {
            return SecretFault::Deleted(how);
        }
        match body.get("errors").and_then(Value::as_array) {
            Some(errors) if errors.is_empty() => SecretFault::Missing,
            _ => SecretFault::Bao(self.verdict(scrub, answer)),
        }
    }

    /// Sends a request; gives the answer if it is a success.
    fn call(
        &self,
        scrub: &dyn Scrub,
        path: &str,
        body: Option<&[u8]>,
        token: Option<&str>,
        repeat: Repeat,
    ) -> Result<Answer, BaoFault> {
        let answer = self.send(scrub, path, body, token, repeat)?;
        self.accept(scrub, answer)
    }

    fn send(
        &self,
        scrub: &dyn Scrub,
        path: &str,
        body: Option<&[u8]>,
        token: Option<&str>,
        repeat: Repeat,
    ) -> Result<Answer, BaoFault> {
        let mut headers = Vec::with_capacity(2);
        if let Some(token) = token.map(str::trim) {
            if !fits_header(token) {
                // No server ever gave such a token, so it is as dead as one that was denied.
                let words = "the token is empty or has characters that no token has; it was not sent";
                return Err(BaoFault::Denied { detail: Scrubbed::new(scrub, words) });
            }
            headers.push(("x-vault-token", token));
        }
        if let Some(namespace) = &self.namespace {
            headers.push(("x-vault-namespace", namespace));
        }
        let keep = Keep::Whole(BODY_CAP);
        self.http
            .call(scrub, &Ask { path, body, headers: &headers, repeat, keep })
            .map_err(|fault| unavailable(scrub, fault))
    }

    fn accept(&self, scrub: &dyn Scrub, answer: Answer) -> Result<Answer, BaoFault> {
        if answer.is_success() { Ok(answer) } else { Err(self.verdict(scrub, &answer)) }
    }

    /// What a status that is no success says.
    fn verdict(&self, scrub: &dyn Scrub, answer: &Answer) -> BaoFault {
        let detail = answer.words(scrub);
        let errors = serde_json::from_slice::<Value>(&answer.body).ok();
        let by_openbao = errors.is_some_and(|body| body.get("errors").is_some_and(Value::is_array));
        match answer.status {
            400 if by_openbao => BaoFault::Rejected { detail },
            403 if by_openbao => BaoFault::Denied { detail },
            404 if by_openbao => BaoFault::NotFound { detail },
            500 if by_openbao && detail.as_str().contains("past the max TTL") => BaoFault::PastMaxTtl,
            _ => unavailable(scrub, self.http.status_fault(scrub, answer)),
        }
    }

    fn auth(&self, scrub: &dyn Scrub, answer: &Answer) -> Result<WireAuth, BaoFault> {
        let wire: WireLogin = self.json(scrub, answer)?;
        match wire.auth {
            Some(auth) if auth.lease_duration.is_some() => Ok(auth),
            Some(_) => Err(self.nonsense(scrub, "gave a token without telling its life")),
            None => Err(self.nonsense(scrub, "answered without a token (`auth`)")),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&self, scrub: &dyn Scrub, answer: &Answer) -> Result<T, BaoFault> {
        self.http.json(scrub, answer).map_err(|fault| unavailable(scrub, fault))
    }

    fn nonsense(&self, scrub: &dyn Scrub, what: &str) -> BaoFault {
        unavailable(scrub, self.http.nonsense(scrub, what))
    }
}

/// A token that never expires shows in lookup-self only; a login tells 0 then.
fn facts(auth: &WireAuth) -> TokenFacts {
    TokenFacts { accessor: auth.accessor.clone(), ttl_s: auth.lease_duration, renewable: auth.renewable }
}

/// What a fault of the call says: nothing about grant, token or path.
pub(super) fn unavailable(scrub: &dyn Scrub, fault: CallFault) -> BaoFault {
    let detail = match fault {
        CallFault::Unreachable { detail, never_sent: _ } | CallFault::Nonsense { detail } => detail,
        CallFault::Status { status, detail, .. } => Scrubbed::new(scrub, &format!("status {status}: {detail}")),
    };
    BaoFault::Unavailable { detail }
}

/// How a version ceased to be; none: it is there.
fn gone(metadata: &WireMetadata) -> Option<String> {
    if metadata.destroyed {
        return Some("destroyed for good".to_owned());
    }
    let when = metadata.deletion_time.as_deref().filter(|when| !when.is_empty())?;
    let version = metadata.version.map(|version| format!("version {version} ")).unwrap_or_default();
    Some(format!("{version}deleted at {}", one_line(when, 40)))
}

/// It can go into a header as it is.
fn fits_header(token: &str) -> bool {
    !token.is_empty() && token.len() <= TOKEN_CAP && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A path with whatever could change its meaning percent-encoded; slashes stay.
pub fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
