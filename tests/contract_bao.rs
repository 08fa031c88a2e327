//! One contract for OpenBao, asked of the stand-in and of the real server.
//!
//! Invariant: the cases know nothing of whom they ask. A case that fails on the stand-in alone is a fault of the stand-in;
//! one that fails on the real server is a wrong belief of the agent.
//!
//! The real half needs the stack (`make stack-up`); `STACK=off` leaves it out, `STACK_ENV` names another file than
//! `target/stack/env`.
#![cfg(feature = "sandbox")]

#[path = "common/stack_env.rs"]
mod stack_env;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use monky_deployd::sandbox::grants::GrantKey;
use monky_deployd::sandbox::openbao::{Auth, OpenBao, Role, env_policy};
use serde_json::{Value, json};
use stack_env::stack;

const ISSUER: &str = "https://contract.test";

// ---------------------------------------------------------------- what a case is

/// One thing to do, in order.
enum Step {
    /// A request and what must come back.
    Case { name: &'static str, ask: Ask, status: u16, checks: Vec<Check> },
    /// Something an operator does.
    Operator(Operator),
}

enum Operator {
    PutSecret(&'static str, Value),
    DeleteVersion(&'static str, u64),
    DestroyVersion(&'static str, u64),
    DeleteVersionAfter(&'static str, u64, i64),
    PutRole(&'static str, fn(&mut Role)),
    DeleteRole(&'static str),
    CreateToken {
        name: &'static str,
        renewable: bool,
    },
    Quota(&'static str, bool),
    /// So many seconds go by.
    Pass(u64),
    /// The real server takes the time rounded to seconds off a token's end, and floors that: only in the second half of a
    /// second a token of one second shows a ttl of 0. This waits for one.
    SecondHalf,
}

/// A request. In texts `{kv}`, `{env}`, `{auth}` are the run's own names.
struct Ask {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    token: Token,
    body: Body,
    /// Keep the answer's `auth.client_token` under this name.
    keep: Option<&'static str>,
}

enum Token {
    None,
    Root,
    /// One that was kept, or these characters if none was.
    Kept(&'static str),
    Bearer(&'static str),
}

enum Body {
    None,
    Json(Value),
    Raw(&'static str),
    /// A login: role, changes of the claims (null takes one away; numbers of `iat`, `nbf`, `exp` are relative to now),
    /// and whether the right key signs.
    Login(&'static str, Vec<(&'static str, Value)>, bool),
}

/// What must be true of an answer. The first text is a JSON pointer.
enum Check {
    Is(&'static str, Value),
    Text(&'static str),
    Between(&'static str, i64, i64),
    Contains(&'static str, &'static str),
    Absent(&'static str),
    /// The body, whole.
    Whole(Value),
    /// No body at all.
    Empty,
    /// A header is there and contains this.
    Header(&'static str, &'static str),
    /// The value is the kept token.
    KeptToken(&'static str, &'static str),
}

// ---------------------------------------------------------------- the cases

fn case(name: &'static str, ask: Ask, status: u16, checks: Vec<Check>) -> Step {
    Step::Case { name, ask, status, checks }
}

fn get(path: &str, token: Token) -> Ask {
    Ask { method: "GET", path: path.to_owned(), headers: vec![], token, body: Body::None, keep: None }
}

fn post(path: &str, token: Token, body: Value) -> Ask {
    Ask { method: "POST", body: Body::Json(body), ..get(path, token) }
}

fn login(role: &'static str, changes: &[(&'static str, Value)]) -> Ask {
    Ask { method: "POST", body: Body::Login(role, changes.to_vec(), true), ..get("/v1/auth/{auth}/login", Token::None) }
}

fn keep(name: &'static str, ask: Ask) -> Ask {
    Ask { keep: Some(name), ..ask }
}

fn secret(path: &str, token: Token) -> Ask {
    get(&format!("/v1/{{kv}}/data/{{env}}/{path}"), token)
}

fn says(text: &str) -> Vec<Check> {
    vec![Check::Whole(json!({ "errors": [text] }))]
}

fn denied_alive() -> Vec<Check> {
    says("1 error occurred:\n\t* permission denied\n\n")
}

const LOOKUP: &str = "/v1/auth/token/lookup-self";
const RENEW: &str = "/v1/auth/token/renew-self";
const REVOKE: &str = "/v1/auth/token/revoke-self";

fn logins() -> Vec<Step> {
    use Check::*;
    let rejected =
        |name, changes: &[(&'static str, Value)], text: &str| case(name, login("env-{env}", changes), 400, says(text));
    let accepted = |name, changes: &[(&'static str, Value)]| {
        case(name, login("env-{env}", changes), 200, vec![Text("/auth/client_token")])
    };
    let raw = |name, body, text: &str| case(name, post("/v1/auth/{auth}/login", Token::None, body), 400, says(text));
    vec![
        case(
            "a grant gives a token",
            keep("main", login("env-{env}", &[])),
            200,
            vec![
                Text("/auth/client_token"),
                Text("/auth/accessor"),
                Is("/auth/lease_duration", json!(3600)),
                Is("/auth/renewable", json!(true)),
                Is("/auth/token_type", json!("service")),
                Is("/auth/num_uses", json!(0)),
                Is("/auth/token_policies", json!(["env-{env}-read"])),
                Is("/auth/metadata", json!({"env_id": "{env}", "role": "env-{env}"})),
                // The outer ones never say anything of the token.
                Is("/renewable", json!(false)),
                Is("/lease_duration", json!(0)),
                Is("/data", Value::Null),
                Header("content-type", "application/json"),
            ],
        ),
        accepted("a grant is not one-time", &[("jti", json!("the-same"))]),
        accepted("a grant is not one-time, again", &[("jti", json!("the-same"))]),
        accepted(
            "clocks may differ by a minute: exp",
            &[("iat", json!(-600)), ("nbf", json!(-600)), ("exp", json!(-30))],
        ),
        accepted("clocks may differ by a minute: nbf", &[("nbf", json!(30))]),
        accepted("clocks may differ by a minute: iat", &[("iat", json!(30))]),
        accepted("an audience may be one of several", &[("aud", json!(["other", "openbao"]))]),
        rejected(
            "expired",
            &[("iat", json!(-900)), ("nbf", json!(-900)), ("exp", json!(-300))],
            "error validating token: invalid expiration time (exp) claim: token is expired",
        ),
        rejected(
            "not yet valid",
            &[("nbf", json!(300))],
            "error validating token: invalid not before (nbf) claim: token not yet valid",
        ),
        rejected(
            "issued in the future",
            &[("iat", json!(300))],
            "error validating token: invalid issued at (iat) claim: token issued in the future",
        ),
        rejected(
            "a grant needs times",
            &[("iat", Value::Null), ("nbf", Value::Null), ("exp", Value::Null)],
            "error validating token: no issued at (iat), not before (nbf), or expiration time (exp) claims in token",
        ),
        rejected(
            "exp alone is not enough",
            &[("iat", Value::Null), ("nbf", Value::Null)],
            "error validating token: invalid not before (nbf) claim: token not yet valid",
        ),
        rejected(
            "wrong audience",
            &[("aud", json!("other"))],
            "error validating token: invalid audience (aud) claim: audience claim does not match any expected audience",
        ),
        rejected(
            "no audience",
            &[("aud", Value::Null)],
            "error validating token: invalid audience (aud) claim: audience claim does not match any expected audience",
        ),
        rejected("wrong issuer", &[("iss", json!("other"))], "error validating token: invalid issuer (iss) claim"),
        rejected("no issuer", &[("iss", Value::Null)], "error validating token: invalid issuer (iss) claim"),
        rejected("no subject", &[("sub", Value::Null)], "claim \"sub\" not found in token"),
        rejected(
            "another environment",
            &[("env_id", json!("other"))],
            "error validating claims: claim \"env_id\" does not match any associated bound claim values",
        ),
        rejected("no environment", &[("env_id", Value::Null)], "error validating claims: claim \"env_id\" is missing"),
        case(
            "another key's signature",
            Ask { body: Body::Login("env-{env}", vec![], false), ..login("env-{env}", &[]) },
            400,
            says(
                "error validating token: error verifying token signature: no known key successfully validated the token signature",
            ),
        ),
        case("unknown role", login("nope", &[]), 400, says("role \"nope\" could not be found")),
        raw(
            "no JWT at all",
            json!({"role": "env-{env}", "jwt": "garbage"}),
            "error validating token: error verifying token signature: go-jose/go-jose: compact JWS format must have three parts",
        ),
        raw("an empty grant", json!({"role": "env-{env}", "jwt": ""}), "missing token"),
        raw("no role", json!({"jwt": "garbage"}), "missing role"),
        case(
            "a body that is no JSON",
            Ask { body: Body::Raw("nonsense"), ..login("env-{env}", &[]) },
            400,
            vec![Contains("/errors/0", "failed to decode JSON input")],
        ),
        case("a login is no GET", get("/v1/auth/{auth}/login", Token::None), 405, says("unsupported operation")),
        case(
            "a missing auth mount",
            post("/v1/auth/nope/login", Token::None, json!({"role": "r", "jwt": "j"})),
            403,
            says("permission denied"),
        ),
        case(
            "a missing namespace",
            Ask { headers: vec![("X-Vault-Namespace", "nope".to_owned())], ..login("env-{env}", &[]) },
            404,
            says("namespace not found"),
        ),
        Step::Operator(Operator::PutRole("cidr", |role| role.wrong_cidr = true)),
        case("a login from elsewhere than bound", login("cidr", &[]), 403, says("permission denied")),
    ]
}

fn tokens() -> Vec<Step> {
    use Check::*;
    vec![
        case(
            "lookup tells all that the agent needs",
            get(LOOKUP, Token::Kept("main")),
            200,
            vec![
                KeptToken("/data/id", "main"),
                Text("/data/accessor"),
                Between("/data/ttl", 3500, 3600),
                Text("/data/expire_time"),
                Is("/data/renewable", json!(true)),
                Is("/data/num_uses", json!(0)),
                Is("/data/policies", json!(["env-{env}-read"])),
                Is("/data/type", json!("service")),
                Absent("/data/period"),
                Is("/auth", Value::Null),
            ],
        ),
        case(
            "a token that never ends has no expire_time, and ttl 0",
            get(LOOKUP, Token::Root),
            200,
            vec![Is("/data/expire_time", Value::Null), Is("/data/ttl", json!(0)), Is("/data/renewable", json!(false))],
        ),
        case(
            "a token may also come as bearer",
            get(LOOKUP, Token::Bearer("main")),
            200,
            vec![KeptToken("/data/id", "main")],
        ),
        case("no token", get(LOOKUP, Token::None), 403, says("permission denied")),
        case("a token that never was", get(LOOKUP, Token::Kept("s.never")), 403, says("permission denied")),
        case("lookup is no POST", post(LOOKUP, Token::Kept("main"), json!({})), 403, denied_alive()),
        case(
            "a token in a missing namespace",
            Ask { headers: vec![("X-Vault-Namespace", "nope".to_owned())], ..get(LOOKUP, Token::Kept("main")) },
            404,
            says("namespace not found"),
        ),
        case(
            "a renewal answers like a login",
            post(RENEW, Token::Kept("main"), json!({})),
            200,
            vec![
                KeptToken("/auth/client_token", "main"),
                Is("/auth/lease_duration", json!(3600)),
                Is("/auth/renewable", json!(true)),
                Is("/auth/metadata", json!({"env_id": "{env}", "role": "env-{env}"})),
                Is("/warnings", Value::Null),
                Is("/lease_duration", json!(0)),
            ],
        ),
        case(
            "a small increment shortens the token",
            post(RENEW, Token::Kept("main"), json!({"increment": "60s"})),
            200,
            vec![Is("/auth/lease_duration", json!(60))],
        ),
        case("and lookup agrees", get(LOOKUP, Token::Kept("main")), 200, vec![Between("/data/ttl", 30, 60)]),
        case(
            "a large one is capped, with a warning",
            post(RENEW, Token::Kept("main"), json!({"increment": "100h"})),
            200,
            vec![
                Between("/auth/lease_duration", 14300, 14400),
                Contains("/warnings/0", "exceeded the effective max_ttl"),
            ],
        ),
        case("root is not renewable", post(RENEW, Token::Root, json!({})), 400, says("lease is not renewable")),
        Step::Operator(Operator::CreateToken { name: "fixed", renewable: false }),
        case(
            "nor is a token made so",
            post(RENEW, Token::Kept("fixed"), json!({})),
            400,
            says("lease is not renewable"),
        ),
        case(
            "and lookup says so beforehand",
            get(LOOKUP, Token::Kept("fixed")),
            200,
            vec![Is("/data/renewable", json!(false)), Is("/data/meta", Value::Null), Text("/data/expire_time")],
        ),
        case(
            "a dead token is not renewed",
            post(RENEW, Token::Kept("s.never"), json!({})),
            403,
            says("permission denied"),
        ),
        // Batch tokens.
        Step::Operator(Operator::PutRole("batch", |role| role.batch = true)),
        case(
            "a batch token has no accessor",
            keep("batch", login("batch", &[])),
            200,
            vec![
                Is("/auth/accessor", json!("")),
                Is("/auth/renewable", json!(false)),
                Is("/auth/token_type", json!("batch")),
            ],
        ),
        case(
            "nor in lookup",
            get(LOOKUP, Token::Kept("batch")),
            200,
            vec![Is("/data/accessor", json!("")), Is("/data/type", json!("batch"))],
        ),
        case(
            "it is not renewed",
            post(RENEW, Token::Kept("batch"), json!({})),
            400,
            says("batch tokens cannot be renewed"),
        ),
        case("nor revoked", post(REVOKE, Token::Kept("batch"), json!({})), 400, says("batch tokens cannot be revoked")),
        // Counted tokens.
        Step::Operator(Operator::PutRole("counted", |role| role.num_uses = 3)),
        case("uses are counted", keep("counted", login("counted", &[])), 200, vec![Is("/auth/num_uses", json!(3))]),
        case("a lookup costs one", get(LOOKUP, Token::Kept("counted")), 200, vec![Is("/data/num_uses", json!(2))]),
        case("and another", get(LOOKUP, Token::Kept("counted")), 200, vec![Is("/data/num_uses", json!(1))]),
        case(
            "the last one shows as -1",
            get(LOOKUP, Token::Kept("counted")),
            200,
            vec![Is("/data/num_uses", json!(-1))],
        ),
        case("then it is dead", get(LOOKUP, Token::Kept("counted")), 403, says("permission denied")),
        // Periodic tokens.
        Step::Operator(Operator::PutRole("periodic", |role| role.period_s = Some(1800))),
        case(
            "a periodic token",
            keep("periodic", login("periodic", &[])),
            200,
            vec![Is("/auth/lease_duration", json!(1800))],
        ),
        case(
            "lookup tells its period",
            get(LOOKUP, Token::Kept("periodic")),
            200,
            vec![Is("/data/period", json!(1800))],
        ),
        // The end of life, by time.
        Step::Operator(Operator::PutRole("late", |_| ())),
        case("a token whose role changes later", keep("late", login("late", &[])), 200, vec![]),
        case("a token whose role goes away later", keep("orphan", login("late", &[])), 200, vec![]),
        Step::Operator(Operator::PutRole("short", |role| (role.ttl_s, role.max_ttl_s) = (1, 1))),
        Step::Operator(Operator::PutRole("late", |role| (role.ttl_s, role.max_ttl_s) = (1, 1))),
        Step::Operator(Operator::SecondHalf),
        case(
            "a token of one second",
            keep("short", login("short", &[])),
            200,
            vec![Is("/auth/lease_duration", json!(1))],
        ),
        case(
            "in its last second its ttl is 0, but it has an expire_time",
            get(LOOKUP, Token::Kept("short")),
            200,
            vec![Is("/data/ttl", json!(0)), Text("/data/expire_time")],
        ),
        Step::Operator(Operator::Pass(2)),
        case("an expired token is dead", get(LOOKUP, Token::Kept("short")), 403, says("permission denied")),
        case(
            "a renewal past the max ttl is a 500",
            post(RENEW, Token::Kept("late"), json!({})),
            500,
            says("1 error occurred:\n\t* past the max TTL, cannot renew\n\n"),
        ),
        case(
            "which says nothing about the token: it lives",
            get(LOOKUP, Token::Kept("late")),
            200,
            vec![Between("/data/ttl", 3500, 3600)],
        ),
        Step::Operator(Operator::DeleteRole("late")),
        case(
            "a renewal whose role is gone is a 500 too",
            post(RENEW, Token::Kept("orphan"), json!({})),
            500,
            says("1 error occurred:\n\t* failed to renew entry: role late does not exist during renewal\n\n"),
        ),
        // Revocation.
        case("a token to revoke", keep("revoked", login("env-{env}", &[])), 200, vec![]),
        case("a revocation says nothing", post(REVOKE, Token::Kept("revoked"), json!({})), 204, vec![Empty]),
        case(
            "a second one is refused",
            post(REVOKE, Token::Kept("revoked"), json!({})),
            403,
            says("permission denied"),
        ),
        case("a revoked token is dead for lookup", get(LOOKUP, Token::Kept("revoked")), 403, says("permission denied")),
        case("and for reading", secret("app", Token::Kept("revoked")), 403, says("permission denied")),
    ]
}

fn secrets() -> Vec<Step> {
    use Check::*;
    let main = || Token::Kept("main");
    let latest = || vec![Is("/data/data", json!({"value": "two"})), Is("/data/metadata/version", json!(2))];
    let missing = || vec![Whole(json!({"errors": []}))];
    vec![
        Step::Operator(Operator::PutSecret(
            "app",
            json!({"value": "one", "large": 12_345_678_901_234_567_890_u64, "b": true, "z": null}),
        )),
        Step::Operator(Operator::PutSecret("app", json!({"value": "two"}))),
        case(
            "a read gives the latest version",
            secret("app", main()),
            200,
            vec![
                Is("/data/data", json!({"value": "two"})),
                Is("/data/metadata/version", json!(2)),
                Is("/data/metadata/deletion_time", json!("")),
                Is("/data/metadata/destroyed", json!(false)),
                Text("/data/metadata/created_time"),
                Header("content-type", "application/json"),
            ],
        ),
        case(
            "a pinned version is that version",
            secret("app?version=1", main()),
            200,
            vec![
                Is("/data/data/value", json!("one")),
                Is("/data/metadata/version", json!(1)),
                // Numbers are floats in there: only strings come back as they went in.
                Is("/data/data/large", json!(12_345_678_901_234_567_000_u64)),
                Is("/data/data/b", json!(true)),
                Is("/data/data/z", Value::Null),
            ],
        ),
        case("version 0 is the latest", secret("app?version=0", main()), 200, latest()),
        case("version -1 is the latest", secret("app?version=-1", main()), 200, latest()),
        case("an empty version is the latest", secret("app?version=", main()), 200, latest()),
        case("a version that is not there yet", secret("app?version=9", main()), 404, missing()),
        case(
            "a version that is no number",
            secret("app?version=x", main()),
            400,
            vec![Contains("/errors/0", "Field validation failed")],
        ),
        case("a secret that never was", secret("nope", main()), 404, missing()),
        case("nor a folder of it", secret("a/b/c?version=1", main()), 404, missing()),
        case(
            "a trailing slash is a 500",
            secret("app/", main()),
            500,
            says("1 error occurred:\n\t* could not find version data\n\n"),
        ),
        case("the environment itself is not in the policy", get("/v1/{kv}/data/{env}", main()), 403, denied_alive()),
        case("another environment", get("/v1/{kv}/data/other/app", main()), 403, denied_alive()),
        case("one whose name only begins the same", get("/v1/{kv}/data/{env}4/app", main()), 403, denied_alive()),
        case("a missing engine", get("/v1/nope-{kv}/data/{env}/app", main()), 403, denied_alive()),
        case("a forgotten data/", get("/v1/{kv}/{env}/app", main()), 403, denied_alive()),
        case(
            "a missing engine, for root",
            get("/v1/nope-{kv}/data/{env}/app", Token::Root),
            404,
            vec![Contains("/errors/0", "no handler for route")],
        ),
        case(
            "a forgotten data/, for root",
            get("/v1/{kv}/{env}/app", Token::Root),
            404,
            vec![Is("/data", Value::Null), Contains("/warnings/0", "Invalid path for a versioned K/V secrets engine")],
        ),
        case("a read without a token", secret("app", Token::None), 403, says("permission denied")),
        case(
            "a read with a token that never was",
            secret("app", Token::Kept("s.never")),
            403,
            says("permission denied"),
        ),
        // The end of versions.
        Step::Operator(Operator::DeleteVersionAfter("fading", 1, 10_800)),
        case(
            "a version with an end ahead is there",
            secret("fading", main()),
            200,
            vec![
                Text("/data/metadata/deletion_time"),
                Is("/data/data/value", json!("fading")),
                Is("/data/metadata/destroyed", json!(false)),
            ],
        ),
        Step::Operator(Operator::DeleteVersion("app", 2)),
        case(
            "a deleted version is a 404 that tells when",
            secret("app", main()),
            404,
            vec![
                Is("/data/data", Value::Null),
                Text("/data/metadata/deletion_time"),
                Is("/data/metadata/destroyed", json!(false)),
                Is("/data/metadata/version", json!(2)),
                Absent("/errors"),
            ],
        ),
        case(
            "an older one still lives",
            secret("app?version=1", main()),
            200,
            vec![Is("/data/data/value", json!("one"))],
        ),
        Step::Operator(Operator::DestroyVersion("app", 1)),
        case(
            "a destroyed one is a 404 that says so",
            secret("app?version=1", main()),
            404,
            vec![
                Is("/data/data", Value::Null),
                Is("/data/metadata/deletion_time", json!("")),
                Is("/data/metadata/destroyed", json!(true)),
                Is("/data/metadata/version", json!(1)),
            ],
        ),
        // KV v1.
        case(
            "an engine of version 1 has no metadata",
            get("/v1/{kv}-v1/data/{env}/app", Token::Root),
            200,
            vec![Is("/data", json!({"value": "old"})), Absent("/data/metadata")],
        ),
    ]
}

fn paths() -> Vec<Step> {
    use Check::*;
    let main = || Token::Kept("main");
    let cleaned = |to: &'static str| vec![Header("location", to)];
    vec![
        case(
            ".. leads into another environment",
            secret("../other/app", main()),
            307,
            cleaned("/v1/{kv}/data/other/app"),
        ),
        case("even without a token", secret("../other/app", Token::None), 307, cleaned("/v1/{kv}/data/other/app")),
        case(
            "and for a POST",
            post("/v1/{kv}/data/{env}/../other/app", main(), json!({})),
            307,
            cleaned("/v1/{kv}/data/other/app"),
        ),
        case(". is left out", secret("./app", main()), 307, cleaned("/v1/{kv}/data/{env}/app")),
        case("// is one", secret("/app", main()), 307, cleaned("/v1/{kv}/data/{env}/app")),
        case("an encoded .. is refused", secret("%2e%2e/other/app", main()), 400, says("relative paths not supported")),
        case("an encoded . too", secret("%2e/app", main()), 400, says("relative paths not supported")),
        case("and an encoded slash after ..", secret("..%2fapp", main()), 400, says("relative paths not supported")),
        case("two dots in a name are a name", secret("x..y", main()), 404, vec![Whole(json!({"errors": []}))]),
        case(
            "an encoded letter is the letter",
            secret("f%61ding", main()),
            200,
            vec![Is("/data/data/value", json!("fading"))],
        ),
        case("an encoded NUL is refused without a word", secret("app%00", main()), 400, vec![Empty]),
        case("and a line feed", secret("a%0ab", main()), 400, vec![Empty]),
        case("what is not below /v1", get("/nope", Token::Root), 404, vec![Whole(json!({"errors": []}))]),
        case(
            "what no engine takes",
            get("/v1/nope", Token::Root),
            404,
            vec![Contains("/errors/0", "no handler for route \"nope\"")],
        ),
        case(
            "health needs no token",
            get("/v1/sys/health", Token::None),
            200,
            vec![Is("/sealed", json!(false)), Is("/standby", json!(false))],
        ),
        Step::Operator(Operator::Quota("{kv}/", true)),
        case("the quota's only request", secret("fading", main()), 200, vec![]),
        case(
            "the one after it",
            secret("fading", main()),
            429,
            vec![Contains("/errors/0", "rate limit quota exceeded"), Header("retry-after", "")],
        ),
        Step::Operator(Operator::Quota("{kv}/", false)),
        case("without the quota all is well", secret("fading", main()), 200, vec![]),
    ]
}

fn sealed() -> Vec<Step> {
    let sealed = || says("Vault is sealed");
    vec![
        case("lookup", get(LOOKUP, Token::Root), 503, sealed()),
        case("renewal", post(RENEW, Token::Root, json!({})), 503, sealed()),
        case("revocation", post(REVOKE, Token::Root, json!({})), 503, sealed()),
        case("login", post("/v1/auth/jwt/login", Token::None, json!({"role": "r", "jwt": "j"})), 503, sealed()),
        case("read", get("/v1/secret/data/e4/app", Token::Root), 503, sealed()),
        case("health", get("/v1/sys/health", Token::None), 503, vec![Check::Is("/sealed", json!(true))]),
        case("a path is cleaned all the same", get("/v1/secret/data/e4/../app", Token::Root), 307, vec![]),
    ]
}

// ---------------------------------------------------------------- whom they are asked of

/// A server that can be set up.
trait Server {
    fn addr(&self) -> String;
    fn root(&self) -> String;
    fn operate(&self, names: &Names, operator: &Operator) -> Option<(String, String)>;
}

/// The names of one run.
#[derive(Clone)]
struct Names {
    env: String,
    kv: String,
    auth: String,
}

impl Names {
    fn fill(&self, text: &str) -> String {
        text.replace("{env}", &self.env).replace("{kv}", &self.kv).replace("{auth}", &self.auth)
    }

    fn fill_json(&self, value: &Value) -> Value {
        serde_json::from_str(&self.fill(&value.to_string())).unwrap()
    }
}

struct StandIn(OpenBao);

impl StandIn {
    fn start(key: &GrantKey, names: &Names) -> StandIn {
        let auth = Auth { issuer: ISSUER.to_owned(), public_key_pem: key.public_key_pem() };
        let bao = OpenBao::start(&auth).unwrap();
        bao.enable_jwt(&names.auth, &auth).unwrap();
        bao.enable_kv(&names.kv, 2);
        bao.put_policy(&format!("env-{}-read", names.env), env_policy(&names.kv, &names.env));
        bao.put_role(&names.auth, &format!("env-{}", names.env), Role::of_env(&names.env));
        bao.enable_kv(&format!("{}-v1", names.kv), 1);
        bao.put_secret(&format!("{}-v1/data/{}/app", names.kv, names.env), json!({"value": "old"}));
        StandIn(bao)
    }
}

impl Server for StandIn {
    fn addr(&self) -> String {
        self.0.addr()
    }

    fn root(&self) -> String {
        self.0.root_token().to_owned()
    }

    fn operate(&self, names: &Names, operator: &Operator) -> Option<(String, String)> {
        let path = |name: &str| format!("{}/{}/{name}", names.kv, names.env);
        match operator {
            Operator::PutSecret(name, data) => drop(self.0.put_secret(&path(name), data.clone())),
            Operator::DeleteVersion(name, version) => self.0.delete_version(&path(name), *version),
            Operator::DestroyVersion(name, version) => self.0.destroy_version(&path(name), *version),
            Operator::DeleteVersionAfter(name, version, seconds) => {
                self.0.put_secret(&path(name), json!({"value": name}));
                self.0.delete_version_after(&path(name), *version, *seconds);
            }
            Operator::PutRole(name, change) => {
                let mut role = Role::of_env(&names.env);
                change(&mut role);
                self.0.put_role(&names.auth, name, role);
            }
            Operator::DeleteRole(name) => self.0.delete_role(&names.auth, name),
            Operator::CreateToken { name, renewable } => {
                let token = self.0.create_token(3600, *renewable, &[&format!("env-{}-read", names.env)]);
                return Some(((*name).to_owned(), token));
            }
            Operator::Quota(prefix, on) => self.0.quota(&names.fill(prefix), on.then_some(1)),
            Operator::Pass(seconds) => self.0.advance(i64::try_from(*seconds).unwrap()),
            // It floors what is really left.
            Operator::SecondHalf => {}
        }
        None
    }
}

/// The real one; what the run made is taken away at its end.
struct Real {
    addr: String,
    root: String,
    names: Names,
}

impl Real {
    fn set_up(addr: &str, root: &str, key: &GrantKey, names: &Names) -> Real {
        let real = Real { addr: addr.to_owned(), root: root.to_owned(), names: names.clone() };
        let Names { env, kv, auth } = names;
        real.write(&format!("sys/mounts/{kv}"), &json!({"type": "kv", "options": {"version": "2"}}));
        real.write(&format!("sys/mounts/{kv}-v1"), &json!({"type": "kv"}));
        real.write(&format!("{kv}-v1/data/{env}/app"), &json!({"value": "old"}));
        real.write(&format!("sys/auth/{auth}"), &json!({"type": "jwt"}));
        real.write(
            &format!("auth/{auth}/config"),
            &json!({
                "jwt_validation_pubkeys": [key.public_key_pem()], "jwt_supported_algs": ["EdDSA"], "bound_issuer": ISSUER,
            }),
        );
        let rules: String = env_policy(kv, env)
            .iter()
            .map(|rule| format!("path \"{}\" {{ capabilities = [\"{}\"] }}\n", rule.path, rule.capability))
            .collect();
        real.write(&format!("sys/policies/acl/env-{env}-read"), &json!({"policy": rules}));
        // Without it a 429 has no Retry-After.
        real.write("sys/quotas/config", &json!({"enable_rate_limit_response_headers": true}));
        real.operate(names, &Operator::PutRole("env-{env}", |_| ()));
        // A fresh KV v2 engine upgrades itself first and refuses writes meanwhile.
        let deadline = Instant::now() + Duration::from_secs(10);
        while real.call("POST", &format!("{kv}/data/{env}/ready"), Some(&json!({"data": {}}))).status != 200 {
            assert!(Instant::now() < deadline, "the KV engine {kv} does not take writes after 10 s");
            std::thread::sleep(Duration::from_millis(50));
        }
        real
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let headers = [("X-Vault-Token", self.root.clone())];
        send(&self.addr, method, &format!("/v1/{path}"), &headers, body.map(Value::to_string).as_deref())
    }

    fn write(&self, path: &str, body: &Value) -> Value {
        let response = self.call("POST", path, Some(body));
        assert!(matches!(response.status, 200 | 204), "set-up: POST {path}: {} {}", response.status, response.text);
        response.json()
    }
}

impl Server for Real {
    fn addr(&self) -> String {
        self.addr.clone()
    }

    fn root(&self) -> String {
        self.root.clone()
    }

    fn operate(&self, names: &Names, operator: &Operator) -> Option<(String, String)> {
        let Names { env, kv, auth } = names;
        let data = |name: &str| format!("{kv}/data/{env}/{name}");
        match operator {
            Operator::PutSecret(name, secret) => drop(self.write(&data(name), &json!({"data": secret}))),
            Operator::DeleteVersion(name, version) => {
                self.write(&format!("{kv}/delete/{env}/{name}"), &json!({"versions": [version]}));
            }
            Operator::DestroyVersion(name, version) => {
                self.write(&format!("{kv}/destroy/{env}/{name}"), &json!({"versions": [version]}));
            }
            Operator::DeleteVersionAfter(name, _, seconds) => {
                let after = json!({"delete_version_after": format!("{seconds}s")});
                self.write(&format!("{kv}/metadata/{env}/{name}"), &after);
                self.write(&data(name), &json!({"data": {"value": name}}));
            }
            Operator::PutRole(name, change) => {
                let mut role = Role::of_env(env);
                change(&mut role);
                self.write(&format!("auth/{auth}/role/{}", names.fill(name)), &role_json(&role));
            }
            Operator::DeleteRole(name) => {
                assert_eq!(self.call("DELETE", &format!("auth/{auth}/role/{name}"), None).status, 204);
            }
            Operator::CreateToken { name, renewable } => {
                let made = self.write(
                    "auth/token/create",
                    &json!({
                        "renewable": renewable, "ttl": "1h", "policies": [format!("env-{env}-read")], "no_default_policy": true,
                    }),
                );
                return Some(((*name).to_owned(), made["auth"]["client_token"].as_str().unwrap().to_owned()));
            }
            Operator::Quota(prefix, true) => {
                let quota = json!({"rate": 1, "interval": "60s", "path": names.fill(prefix)});
                self.write(&format!("sys/quotas/rate-limit/{env}"), &quota);
            }
            Operator::Quota(_, false) => {
                assert_eq!(self.call("DELETE", &format!("sys/quotas/rate-limit/{env}"), None).status, 204);
            }
            Operator::Pass(seconds) => std::thread::sleep(Duration::from_secs(*seconds)),
            Operator::SecondHalf => {
                let ms = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis());
                std::thread::sleep(Duration::from_millis((1520 - ms) % 1000));
            }
        }
        None
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let Names { env, kv, auth } = &self.names;
        for path in [
            format!("sys/quotas/rate-limit/{env}"),
            format!("sys/mounts/{kv}"),
            format!("sys/mounts/{kv}-v1"),
            format!("sys/auth/{auth}"),
            format!("sys/policies/acl/env-{env}-read"),
        ] {
            self.call("DELETE", &path, None);
        }
    }
}

// A role in the words of the API, with the settings that an operator is told to use.
fn role_json(role: &Role) -> Value {
    let mut json = json!({
        "role_type": "jwt", "user_claim": "sub", "bound_audiences": ["openbao"], "bound_claims": {"env_id": role.env_id},
        "claim_mappings": {"env_id": "env_id"}, "token_type": if role.batch { "batch" } else { "service" },
        "token_ttl": role.ttl_s, "token_max_ttl": role.max_ttl_s, "token_no_default_policy": true,
        "token_policies": role.policies, "clock_skew_leeway": 60, "expiration_leeway": -1, "not_before_leeway": -1,
    });
    if role.num_uses > 0 {
        json["token_num_uses"] = json!(role.num_uses);
    }
    if let Some(period_s) = role.period_s {
        json["token_period"] = json!(period_s);
    }
    if role.wrong_cidr {
        json["token_bound_cidrs"] = json!(["10.9.9.9/32"]);
    }
    json
}

// ---------------------------------------------------------------- running them

struct Response {
    status: u16,
    headers: BTreeMap<String, String>,
    text: String,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

fn send(addr: &str, method: &str, target: &str, headers: &[(&str, String)], body: Option<&str>) -> Response {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(Duration::from_secs(15)))
        .build()
        .into();
    let mut request = ureq::http::Request::builder().method(method).uri(format!("{addr}{target}"));
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let answer = match body {
        Some(body) => agent.run(request.body(body.to_owned()).unwrap()),
        None => agent.run(request.body(()).unwrap()),
    };
    let mut answer = answer.unwrap_or_else(|error| panic!("{method} {target}: {error}"));
    Response {
        status: answer.status().as_u16(),
        headers: answer
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap_or_default().to_owned()))
            .collect(),
        text: answer.body_mut().read_to_string().unwrap(),
    }
}

fn now_s() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

struct Run<'a> {
    server: &'a dyn Server,
    names: Names,
    key: &'a GrantKey,
    other_key: GrantKey,
    kept: BTreeMap<String, String>,
}

impl Run<'_> {
    fn token(&self, name: &str) -> String {
        self.kept.get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    fn grant(&self, changes: &[(&'static str, Value)], right_key: bool) -> String {
        let now = now_s();
        let mut claims = json!({
            "iss": ISSUER, "sub": "box", "aud": "openbao", "env_id": self.names.env,
            "iat": now, "nbf": now, "exp": now + 600, "jti": "contract",
        });
        let object = claims.as_object_mut().unwrap();
        for (name, value) in changes {
            match value.as_i64() {
                _ if value.is_null() => drop(object.remove(*name)),
                Some(relative) => drop(object.insert((*name).to_owned(), json!(now + relative))),
                None => drop(object.insert((*name).to_owned(), value.clone())),
            }
        }
        if right_key { self.key.sign(&claims) } else { self.other_key.sign(&claims) }
    }

    fn ask(&self, ask: &Ask) -> Response {
        let mut headers = ask.headers.clone();
        match &ask.token {
            Token::None => {}
            Token::Root => headers.push(("X-Vault-Token", self.server.root())),
            Token::Kept(name) => headers.push(("X-Vault-Token", self.token(name))),
            Token::Bearer(name) => headers.push(("Authorization", format!("Bearer {}", self.token(name)))),
        }
        let body = match &ask.body {
            Body::None => None,
            Body::Json(value) => Some(self.names.fill_json(value).to_string()),
            Body::Raw(text) => Some((*text).to_owned()),
            Body::Login(role, changes, right_key) => {
                let role = self.names.fill(role);
                Some(json!({"role": role, "jwt": self.grant(changes, *right_key)}).to_string())
            }
        };
        send(&self.server.addr(), ask.method, &self.names.fill(&ask.path), &headers, body.as_deref())
    }

    fn check(&self, response: &Response, check: &Check) -> Result<(), String> {
        let body = response.json();
        let at = |pointer: &str| body.pointer(pointer).cloned();
        let (fine, wanted) = match check {
            Check::Is(pointer, value) => {
                let value = self.names.fill_json(value);
                (at(pointer) == Some(value.clone()), format!("{pointer} is {value}"))
            }
            Check::Text(pointer) => {
                let fine = at(pointer).is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty()));
                (fine, format!("{pointer} is a text"))
            }
            Check::Between(pointer, low, high) => {
                let fine = at(pointer).and_then(|v| v.as_i64()).is_some_and(|n| (*low..=*high).contains(&n));
                (fine, format!("{pointer} is from {low} to {high}"))
            }
            Check::Contains(pointer, part) => {
                let fine = at(pointer).is_some_and(|value| value.as_str().is_some_and(|text| text.contains(part)));
                (fine, format!("{pointer} contains `{part}`"))
            }
            Check::Absent(pointer) => (at(pointer).is_none(), format!("{pointer} is not there")),
            Check::Whole(value) => (body == *value, format!("the body is {value}")),
            Check::Empty => (response.text.is_empty(), "there is no body".to_owned()),
            Check::Header(name, part) => {
                let part = self.names.fill(part);
                let fine = response.headers.get(*name).is_some_and(|value| value.contains(&part));
                (fine, format!("the header {name} contains `{part}`"))
            }
            Check::KeptToken(pointer, name) => {
                (at(pointer) == Some(json!(self.token(name))), format!("{pointer} is the token `{name}`"))
            }
        };
        if fine { Ok(()) } else { Err(format!("expected that {wanted}")) }
    }

    /// Runs all of them and returns what was wrong.
    fn all(&mut self, steps: Vec<Step>) -> Vec<String> {
        let mut wrong = Vec::new();
        for step in steps {
            match step {
                Step::Operator(operator) => self.kept.extend(self.server.operate(&self.names, &operator)),
                Step::Case { name, ask, status, checks } => {
                    let response = self.ask(&ask);
                    if let (Some(keep), Some(token)) = (ask.keep, response.json().pointer("/auth/client_token")) {
                        self.kept.insert(keep.to_owned(), token.as_str().unwrap_or_default().to_owned());
                    }
                    let mut faults: Vec<String> =
                        checks.iter().filter_map(|check| self.check(&response, check).err()).collect();
                    if response.status != status {
                        faults.insert(0, format!("expected status {status}"));
                    }
                    if !faults.is_empty() {
                        let Response { status, headers, text } = &response;
                        wrong.push(format!("{name}: {}\n    got {status} {headers:?}\n    {text}", faults.join("; ")));
                    }
                }
            }
        }
        wrong
    }
}

fn keeps_the_contract(server: &dyn Server, names: Names, key: &GrantKey, steps: Vec<Step>) {
    let other_key = GrantKey::generate().unwrap();
    let mut run = Run { server, names, key, other_key, kept: BTreeMap::new() };
    let cases = steps.iter().filter(|step| matches!(step, Step::Case { .. })).count();
    let wrong = run.all(steps);
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
    println!("{cases} cases");
}

fn the_cases() -> Vec<Step> {
    [logins(), tokens(), secrets(), paths()].into_iter().flatten().collect()
}

// Names of their own for each run: the real server is shared and outlives it.
fn names() -> Names {
    let unique = format!("c{:x}{:x}", std::process::id(), now_s());
    Names { kv: format!("kv-{unique}"), auth: format!("jwt-{unique}"), env: unique }
}

#[test]
fn the_stand_in_keeps_the_contract() {
    let (key, names) = (GrantKey::generate().unwrap(), names());
    keeps_the_contract(&StandIn::start(&key, &names), names, &key, the_cases());
}

#[test]
fn the_real_server_keeps_the_contract() {
    let Some(stack) = stack() else { return };
    let (key, names) = (GrantKey::generate().unwrap(), names());
    let real = Real::set_up(&stack["STACK_BAO_ADDR"], &stack["STACK_BAO_TOKEN"], &key, &names);
    keeps_the_contract(&real, names, &key, the_cases());
}

#[test]
fn a_sealed_stand_in_keeps_the_contract() {
    let (key, names) = (GrantKey::generate().unwrap(), names());
    let stand_in = StandIn::start(&key, &names);
    stand_in.0.seal(true);
    keeps_the_contract(&stand_in, names, &key, sealed());
}

// The stack's own server is shared, so this one is started for the test alone.
#[test]
fn a_sealed_real_server_keeps_the_contract() {
    let Some(stack) = stack() else { return };
    let (key, names) = (GrantKey::generate().unwrap(), names());
    let own = OwnServer::start(&PathBuf::from(&stack["STACK_DIR"]).join("opt/bao"));
    let sealed_now =
        send(&own.addr, "PUT", "/v1/sys/seal", &[("X-Vault-Token", OwnServer::ROOT.to_owned())], Some("{}"));
    assert_eq!(sealed_now.status, 204, "{}", sealed_now.text);
    keeps_the_contract(&own, names, &key, sealed());
}

// The stand-in speaks no TLS, so there is only the real server to ask.
#[test]
fn a_real_server_answers_plain_http_on_its_tls_port_with_a_400_that_is_no_json() {
    let Some(stack) = stack() else { return };
    let plain = stack["STACK_BAO_TLS_ADDR"].replacen("https://", "http://", 1);
    let answer = send(&plain, "GET", LOOKUP, &[], None);
    assert_eq!((answer.status, answer.json()), (400, Value::Null));
    assert!(answer.text.contains("HTTP request to an HTTPS server"), "{}", answer.text);
}

/// A real server of the test's own, ended with it.
struct OwnServer {
    addr: String,
    child: Child,
    _home: tempfile::TempDir,
}

impl OwnServer {
    const ROOT: &str = "own-root-token";

    fn start(program: &std::path::Path) -> OwnServer {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let home = tempfile::tempdir().unwrap();
        let child = Command::new(program)
            .args(["server", "-dev", "-dev-no-store-token"])
            .arg(format!("-dev-root-token-id={}", OwnServer::ROOT))
            .arg(format!("-dev-listen-address=127.0.0.1:{port}"))
            .env_clear()
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; install the stack with `make stack-up`", program.display()));
        let own = OwnServer { addr: format!("http://127.0.0.1:{port}"), child, _home: home };
        let deadline = Instant::now() + Duration::from_secs(20);
        // It knows its root token only some time after it listens.
        while !own.is_ready() {
            assert!(Instant::now() < deadline, "OpenBao does not answer after 20 s");
            std::thread::sleep(Duration::from_millis(50));
        }
        own
    }

    fn is_ready(&self) -> bool {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
        let asked = agent.get(format!("{}{LOOKUP}", self.addr)).header("X-Vault-Token", OwnServer::ROOT).call();
        asked.is_ok_and(|answer| answer.status() == 200)
    }
}

impl Server for OwnServer {
    fn addr(&self) -> String {
        self.addr.clone()
    }

    fn root(&self) -> String {
        OwnServer::ROOT.to_owned()
    }

    fn operate(&self, _: &Names, _: &Operator) -> Option<(String, String)> {
        unreachable!("the cases of a sealed server have no operator")
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
