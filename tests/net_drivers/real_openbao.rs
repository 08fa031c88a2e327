//! The same driver against a real OpenBao of its own, started from the program that the real stack brings.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use monky_deployd::drivers::http::{Ask, Http};
use monky_deployd::drivers::openbao::OpenBao;
use monky_deployd::drivers::transport::Transport;
use monky_deployd::effects::{BaoFault, ReadSecret, SecretFault};
use rcgen::{KeyPair, PKCS_ED25519, SigningKey};
use serde_json::{Value, json};

use crate::stack_env::stack;
use crate::support::{Closed, PLAIN, client, get};

struct Bao {
    child: Child,
    base: String,
    key: KeyPair,
    _home: tempfile::TempDir,
}

impl Drop for Bao {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bao {
    fn start() -> Option<Bao> {
        let program = format!("{}/opt/bao", stack()?["STACK_DIR"]);
        let (at, home) = (Closed::new().at, tempfile::tempdir().unwrap());
        let child = Command::new(program)
            .args(["server", "-dev", "-dev-no-store-token", "-dev-root-token-id=root"])
            .arg(format!("-dev-listen-address={at}"))
            .env("HOME", home.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let bao = Bao { child, base: format!("http://{at}"), key, _home: home };
        for _ in 0..200 {
            if TcpStream::connect(at).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        bao.set("sys/mounts/monky", &json!({"type": "kv", "options": {"version": "2"}}));
        bao.set("sys/mounts/old", &json!({"type": "kv", "options": {"version": "1"}}));
        bao.set("sys/auth/jwt", &json!({"type": "jwt"}));
        bao.set(
            "auth/jwt/config",
            &json!({"jwt_validation_pubkeys": [bao.key.public_key_pem()], "jwt_supported_algs": ["EdDSA"]}),
        );
        bao.set(
            "auth/jwt/role/env-e1",
            &json!({"role_type": "jwt", "user_claim": "sub", "bound_audiences": ["openbao"], "token_policies": ["read"],
                "token_no_default_policy": true, "token_ttl": "1h", "token_max_ttl": "4h", "expiration_leeway": -1,
                "not_before_leeway": -1, "bound_claims": {"env_id": "e1"}}),
        );
        let policy = r#"path "monky/data/e1/*" { capabilities = ["read"] } path "old/*" { capabilities = ["read"] }
            path "auth/token/lookup-self" { capabilities = ["read"] }
            path "auth/token/renew-self" { capabilities = ["update"] }
            path "auth/token/revoke-self" { capabilities = ["update"] }"#;
        bao.set("sys/policies/acl/read", &json!({"policy": policy}));
        Some(bao)
    }

    fn http(&self) -> Http {
        client(&self.base, Transport::System, 5000)
    }

    /// What an operator does with the root token.
    fn set(&self, path: &str, body: &Value) -> Value {
        let (path, body) = (format!("/v1/{path}"), body.to_string());
        let headers = [("x-vault-token", "root")];
        let ask = Ask { body: Some(body.as_bytes()), headers: &headers, ..get(&path) };
        let answer = self.http().call(&PLAIN, &ask).unwrap();
        assert!(answer.is_success(), "{path}: {} {}", answer.status, answer.words(&PLAIN));
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    fn grant(&self, env_id: &str, life_s: i64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed();
        let claims = json!({"sub": "box", "aud": "openbao", "env_id": env_id, "iat": now - 5, "nbf": now - 5,
            "exp": now + life_s});
        let text =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA"}"#), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

#[test]
fn a_real_openbao_is_understood_from_login_to_revocation() {
    let Some(server) = Bao::start() else { return };
    let bao = OpenBao::new(server.http(), "monky", None);
    let (facts, token) = bao.login(&PLAIN, "jwt", "env-e1", &server.grant("e1", 600)).unwrap();
    assert!(facts.ttl_s == Some(3600) && facts.renewable && facts.accessor.is_some(), "{facts:?}");
    let token = token.expose();
    let seen = bao.lookup(&PLAIN, token).unwrap();
    assert!(seen.ttl_s.is_some_and(|ttl| (3500..=3600).contains(&ttl)) && seen.renewable, "{seen:?}");
    assert_eq!(seen.accessor, facts.accessor);
    assert_eq!(bao.lookup(&PLAIN, "root").unwrap().ttl_s, None);
    assert!(bao.renew(&PLAIN, token).unwrap().ttl_s.is_some_and(|ttl| ttl >= 3599));
    bao.revoke(&PLAIN, token).unwrap();
    assert!(matches!(bao.lookup(&PLAIN, token), Err(BaoFault::Denied { .. })));
    assert!(matches!(bao.revoke(&PLAIN, token), Err(BaoFault::Denied { .. })));
}

#[test]
fn a_real_openbaos_refusals_are_told_apart() {
    let Some(server) = Bao::start() else { return };
    let bao = OpenBao::new(server.http(), "monky", None);
    let login = |mount, role, grant: &str| bao.login(&PLAIN, mount, role, grant).map(|_| ()).unwrap_err();
    for (role, grant) in [
        ("env-e1", server.grant("e1", -60)),
        ("env-e1", server.grant("e2", 600)),
        ("env-e9", server.grant("e1", 600)),
        ("env-e1", "a.b.c".to_owned()),
    ] {
        let fault = login("jwt", role, &grant);
        assert!(matches!(fault, BaoFault::Rejected { .. }), "{fault:?}");
    }
    assert!(matches!(login("nowhere", "env-e1", "a.b.c"), BaoFault::Denied { .. }));
    assert!(matches!(bao.renew(&PLAIN, "root"), Err(BaoFault::Rejected { .. })));

    let made = server.set("auth/token/create", &json!({"ttl": "2s", "explicit_max_ttl": "2s", "policies": ["read"]}));
    let short = made["auth"]["client_token"].as_str().unwrap().to_owned();
    let renewed = bao.renew(&PLAIN, &short).unwrap();
    assert!(renewed.ttl_s.is_some_and(|ttl| ttl <= 2), "{renewed:?}");
    thread::sleep(Duration::from_millis(3100));
    assert!(matches!(bao.lookup(&PLAIN, &short), Err(BaoFault::Denied { .. })));

    server.set("sys/seal", &json!({}));
    match bao.lookup(&PLAIN, "root") {
        Err(BaoFault::Unavailable { detail }) => assert!(detail.as_str().contains("503"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn secrets_of_a_real_openbao_are_read_and_their_absence_is_told() {
    let Some(server) = Bao::start() else { return };
    let bao = OpenBao::new(server.http(), "monky", None);
    let (_, token) = bao.login(&PLAIN, "jwt", "env-e1", &server.grant("e1", 600)).unwrap();
    for value in ["one", "two", "three"] {
        server.set("monky/data/e1/a/db", &json!({"data": {"value": value}}));
    }
    server.set("monky/delete/e1/a/db", &json!({"versions": [2]}));
    server.set("monky/destroy/e1/a/db", &json!({"versions": [1]}));
    server.set("old/e1/db", &json!({"value": "v1"}));
    server.set("old/data/e1/db", &json!({"value": "v1"}));
    let read = |bao: &OpenBao, path: &str, version| {
        let ask = ReadSecret { path: path.into(), version, wanted: vec![] };
        bao.read_secret(&PLAIN, token.expose(), &ask).map(|(version, data)| {
            let fields = ["value"].into_iter().filter_map(|name| Some((name.to_owned(), data.get(name)?.clone())));
            (version, Value::Object(fields.collect()))
        })
    };
    assert_eq!(read(&bao, "monky/e1/a/db", None).unwrap(), (Some(3), json!({"value": "three"})));
    assert_eq!(read(&bao, "monky/e1/a/db", Some(3)).unwrap().0, Some(3));
    match read(&bao, "monky/e1/a/db", Some(2)) {
        Err(SecretFault::Deleted(how)) => assert!(how.starts_with("version 2 deleted at 2"), "{how}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&bao, "monky/e1/a/db", Some(1)), Err(SecretFault::Deleted("destroyed for good".into())));
    assert_eq!(read(&bao, "monky/e1/a/db", Some(9)), Err(SecretFault::Missing));
    assert_eq!(read(&bao, "monky/e1/none", None), Err(SecretFault::Missing));
    let denied = read(&bao, "monky/e2/db", None);
    assert!(matches!(denied, Err(SecretFault::Bao(BaoFault::Denied { .. }))), "{denied:?}");
    let old = OpenBao::new(server.http(), "old", None);
    assert_eq!(read(&old, "old/e1/db", None).unwrap(), (None, json!({"value": "v1"})));
    assert_eq!(read(&old, "old/e1/none", None), Err(SecretFault::Missing));
}
