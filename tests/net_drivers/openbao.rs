//! OpenBao's protocol, in the words that the real server was heard to say.

use monky_deployd::drivers::openbao::OpenBao;
use monky_deployd::effects::{BaoFault, ReadSecret, SecretFault, TokenFacts};
use serde_json::json;

use crate::support::{PLAIN, Reply, Wire, answer, ok};

fn bao(wire: &Wire) -> OpenBao {
    OpenBao::new(wire.client(), "monky", None)
}

fn replies(status: u16, body: &'static str) -> Wire {
    Wire::http(move |_, _| answer(status, "", body))
}

fn read(wire: &Wire, path: &str, version: Option<u64>) -> Result<(Option<u64>, serde_json::Value), SecretFault> {
    let read = ReadSecret { path: path.into(), version, wanted: vec![] };
    bao(wire).read_secret(&PLAIN, "tok", &read).map(|(version, data)| {
        let fields = ["value", "n"].into_iter().filter_map(|name| Some((name.to_owned(), data.get(name)?.clone())));
        (version, serde_json::Value::Object(fields.collect()))
    })
}

const LOGIN: &str = r#"{"lease_duration":0,"renewable":false,"auth":{"client_token":" hvs.tok\n","accessor":"acc",
    "lease_duration":3600,"renewable":true,"metadata":{"env_id":"e1"},"token_type":"service"}}"#;

#[test]
fn a_login_gives_the_trimmed_token_and_its_facts() {
    let wire = replies(200, LOGIN);
    let (facts, token) = bao(&wire).login(&PLAIN, "jwt", "env-e1", "a.b.c\n").unwrap();
    assert_eq!(token.expose(), "hvs.tok");
    assert_eq!(facts, TokenFacts { accessor: Some("acc".into()), ttl_s: Some(3600), renewable: true });
    let request = &wire.requests()[0];
    assert!(request.starts_with("POST /v1/auth/jwt/login HTTP/1.1\r\n"), "{request}");
    let body: serde_json::Value = serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body, json!({"role": "env-e1", "jwt": "a.b.c"}));
    assert!(!request.to_lowercase().contains("x-vault"), "{request}");
}

#[test]
fn a_login_is_never_sent_twice() {
    for reply in [|| Reply::Reset, || answer(503, "", "")] {
        let wire = Wire::http(move |_, _| reply());
        assert!(matches!(bao(&wire).login(&PLAIN, "jwt", "r", "a.b.c"), Err(BaoFault::Unavailable { .. })));
        assert_eq!(wire.requests().len(), 1);
    }
}

#[test]
fn a_strange_token_is_not_taken_and_not_told() {
    for token in [r#""s3\u0000cret""#, r#""s3 cret""#, r#""s3cr\u00e9t""#, r#""""#, "null"] {
        let body = format!(r#"{{"auth":{{"client_token":{token},"lease_duration":1}}}}"#);
        let wire = Wire::http(move |_, _| ok(&body));
        match bao(&wire).login(&PLAIN, "jwt", "r", "a.b.c") {
            Err(BaoFault::Unavailable { detail }) => assert!(!detail.as_str().contains("s3"), "{detail}"),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("took {token}"),
        }
    }
}

#[test]
fn a_grant_that_cannot_be_sent_is_rejected_without_a_call() {
    let wire = replies(200, LOGIN);
    for grant in ["", " \n", "a.b\0.c"] {
        assert!(matches!(bao(&wire).login(&PLAIN, "jwt", "r", grant), Err(BaoFault::Rejected { .. })));
    }
    assert_eq!(wire.connections(), 0);
}

#[test]
fn openbaos_own_no_is_a_verdict() {
    let login = |status, body| bao(&replies(status, body)).login(&PLAIN, "jwt", "r", "a.b.c").map(|_| ()).unwrap_err();
    match login(400, r#"{"errors":["error validating token: invalid expiration time (exp) claim: token is expired"]}"#)
    {
        BaoFault::Rejected { detail } => assert!(detail.as_str().contains("token is expired"), "{detail}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(login(403, r#"{"errors":["permission denied"]}"#), BaoFault::Denied { .. }));
    assert!(matches!(login(404, r#"{"errors":["no handler for route"]}"#), BaoFault::NotFound { .. }));
}

#[test]
fn a_no_that_is_not_openbaos_says_nothing_about_grant_or_token() {
    for (status, body) in [
        (400, "Client sent an HTTP request to an HTTPS server.\n"),
        (403, "<html>Forbidden</html>"),
        (404, "404 page not found"),
        (401, r#"{"errors":["who knows"]}"#),
        (429, r#"{"errors":["request path exceeded quota"]}"#),
        (500, r#"{"errors":["internal error"]}"#),
        (503, r#"{"errors":["Vault is sealed"]}"#),
        (307, ""),
        (200, "<html>"),
        (200, "{}"),
        (200, r#"{"auth":null,"data":null}"#),
        (200, r#"{"auth":{"client_token":"t"}}"#),
    ] {
        let wire = replies(status, body);
        let fault = |result: Result<TokenFacts, BaoFault>| result.unwrap_err();
        let unavailable = |fault| matches!(fault, BaoFault::Unavailable { .. });
        assert!(bao(&wire).login(&PLAIN, "jwt", "r", "a.b.c").is_err_and(unavailable), "login {status} {body}");
        assert!(unavailable(fault(bao(&wire).lookup(&PLAIN, "tok"))), "lookup {status} {body}");
        assert!(unavailable(fault(bao(&wire).renew(&PLAIN, "tok"))), "renew {status} {body}");
        assert!(
            matches!(read(&wire, "monky/e1/db", None), Err(SecretFault::Bao(fault)) if unavailable(fault.clone())),
            "read {status} {body}"
        );
    }
}

#[test]
fn an_unavailable_server_is_told_with_its_status_and_words() {
    match bao(&replies(503, r#"{"errors":["Vault is sealed"]}"#)).lookup(&PLAIN, "tok") {
        Err(BaoFault::Unavailable { detail }) => assert_eq!(detail.as_str(), "status 503: Vault is sealed"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lookup_tells_the_life_and_never_the_token() {
    let look = |data: &'static str| bao(&replies(200, data)).lookup(&PLAIN, "tok");
    let facts = look(
        r#"{"data":{"id":"tok","accessor":"acc","ttl":42,"expire_time":"2030-01-01T00:00:00Z","renewable":true}}"#,
    );
    assert_eq!(facts.unwrap(), TokenFacts { accessor: Some("acc".into()), ttl_s: Some(42), renewable: true });
    let root = look(r#"{"data":{"id":"tok","ttl":0,"expire_time":null}}"#).unwrap();
    assert_eq!(root, TokenFacts { accessor: None, ttl_s: None, renewable: false });
    let last_second = look(r#"{"data":{"ttl":0,"expire_time":"2030-01-01T00:00:00Z"}}"#).unwrap();
    assert_eq!(last_second.ttl_s, Some(0));
    for strange in ["{}", r#"{"data":{}}"#, r#"{"data":{"ttl":-1}}"#, r#"{"data":{"ttl":"1h"}}"#] {
        assert!(matches!(look(strange), Err(BaoFault::Unavailable { .. })), "{strange}");
    }
}

#[test]
fn a_lookup_sends_the_token_and_the_namespace_and_is_repeated() {
    let wire = Wire::http(|n, _| if n == 0 { answer(503, "", "") } else { ok(r#"{"data":{"ttl":1}}"#) });
    let bao = OpenBao::new(wire.client(), "monky", Some("team/a".into()));
    bao.lookup(&PLAIN, " tok\n").unwrap();
    let request = wire.requests()[1].to_lowercase();
    assert!(request.starts_with("get /v1/auth/token/lookup-self http/1.1\r\n"), "{request}");
    assert!(
        request.contains("x-vault-token: tok\r\n") && request.contains("x-vault-namespace: team/a\r\n"),
        "{request}"
    );
}

#[test]
fn a_token_that_no_server_gave_is_dead_without_a_call() {
    let wire = replies(200, "{}");
    for token in ["", "s3cret\r\nX-Evil: 1", "s3 cret", "sécret"] {
        match bao(&wire).lookup(&PLAIN, token) {
            Err(BaoFault::Denied { detail }) => assert!(!detail.as_str().contains("cret"), "{detail}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(wire.connections(), 0);
}

#[test]
fn a_renewal_asks_for_no_increment_and_knows_its_ends() {
    let wire = replies(200, LOGIN);
    assert_eq!(bao(&wire).renew(&PLAIN, "tok").unwrap().ttl_s, Some(3600));
    assert!(wire.requests()[0].ends_with("\r\n\r\n{}"), "{:?}", wire.requests());
    let past = replies(500, r#"{"errors":["1 error occurred:\n\t* past the max TTL, cannot renew\n\n"]}"#);
    assert_eq!(bao(&past).renew(&PLAIN, "tok"), Err(BaoFault::PastMaxTtl));
    let never = replies(400, r#"{"errors":["lease is not renewable"]}"#);
    assert!(matches!(bao(&never).renew(&PLAIN, "tok"), Err(BaoFault::Rejected { .. })));
    let reset = Wire::http(|_, _| Reply::Reset);
    assert!(matches!(bao(&reset).renew(&PLAIN, "tok"), Err(BaoFault::Unavailable { .. })));
    assert_eq!(reset.requests().len(), 1);
}

#[test]
fn a_revocation_is_an_empty_204_and_a_dead_token_is_denied() {
    let wire = Wire::http(|_, _| Reply::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    bao(&wire).revoke(&PLAIN, "tok").unwrap();
    assert!(wire.requests()[0].starts_with("POST /v1/auth/token/revoke-self HTTP/1.1\r\n"));
    let dead = replies(403, r#"{"errors":["permission denied"]}"#);
    assert!(matches!(bao(&dead).revoke(&PLAIN, "tok"), Err(BaoFault::Denied { .. })));
}

const SECRET: &str =
    r#"{"data":{"data":{"value":"v","n":7},"metadata":{"version":3,"deletion_time":"","destroyed":false}}}"#;

#[test]
fn a_secret_is_read_below_data_with_its_pinned_version() {
    let wire = replies(200, SECRET);
    assert_eq!(read(&wire, "monky/e1/a/db", Some(3)).unwrap(), (Some(3), json!({"value": "v", "n": 7})));
    assert!(wire.requests()[0].starts_with("GET /v1/monky/data/e1/a/db?version=3 HTTP/1.1\r\n"));
    read(&wire, "monky/e1/db", None).unwrap();
    assert!(wire.requests()[1].starts_with("GET /v1/monky/data/e1/db HTTP/1.1\r\n"));

    let deep = OpenBao::new(wire.client(), "kv/apps", None);
    let ask = ReadSecret { path: "kv/apps/e1/d b?x#%".into(), version: None, wanted: vec![] };
    deep.read_secret(&PLAIN, "tok", &ask).unwrap();
    assert!(wire.requests()[2].starts_with("GET /v1/kv/apps/data/e1/d%20b%3Fx%23%25 HTTP/1.1\r\n"));
}

#[test]
fn another_version_than_the_pinned_one_is_nonsense() {
    assert!(matches!(
        read(&replies(200, SECRET), "monky/e1/db", Some(2)),
        Err(SecretFault::Bao(BaoFault::Unavailable { .. }))
    ));
}

#[test]
fn a_path_that_climbs_or_leaves_the_mount_is_not_asked_for() {
    let wire = replies(200, SECRET);
    for path in ["monky/e1/../e2/db", "monky/./e1", "monky//e1", "monky/e1/", "monkey/e1/db", "other/e1", "monky"] {
        assert!(matches!(read(&wire, path, None), Err(SecretFault::Bao(BaoFault::Rejected { .. }))), "{path}");
    }
    assert_eq!(wire.connections(), 0);
}

#[test]
fn missing_deleted_and_denied_are_told_apart() {
    let fault = |status, body| read(&replies(status, body), "monky/e1/db", None).unwrap_err();
    assert_eq!(fault(404, r#"{"errors":[]}"#), SecretFault::Missing);
    let deleted = r#"{"data":{"data":null,"metadata":{"version":2,"deletion_time":"2026-01-01T00:00:00Z"}}}"#;
    assert_eq!(fault(404, deleted), SecretFault::Deleted("version 2 deleted at 2026-01-01T00:00:00Z".into()));
    let destroyed = r#"{"data":{"data":null,"metadata":{"version":2,"deletion_time":"","destroyed":true}}}"#;
    assert_eq!(fault(404, destroyed), SecretFault::Deleted("destroyed for good".into()));
    let namespace = r#"{"errors":["no handler for route \"x\""]}"#;
    assert!(matches!(fault(404, namespace), SecretFault::Bao(BaoFault::NotFound { .. })));
    let denied = r#"{"errors":["1 error occurred:\n\t* permission denied\n\n"]}"#;
    assert!(matches!(fault(403, denied), SecretFault::Bao(BaoFault::Denied { .. })));
}

#[test]
fn a_version_that_will_be_deleted_later_is_read() {
    let body = r#"{"data":{"data":{"value":"v"},"metadata":{"version":1,"deletion_time":"2999-01-01T00:00:00Z"}}}"#;
    assert_eq!(read(&replies(200, body), "monky/e1/db", None).unwrap(), (Some(1), json!({"value": "v"})));
}

#[test]
fn an_engine_without_versions_says_so_by_none() {
    let body = r#"{"data":{"value":"v"}}"#;
    assert_eq!(read(&replies(200, body), "monky/e1/db", None).unwrap(), (None, json!({"value": "v"})));
}
