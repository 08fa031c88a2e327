//! Tenancy's protocol.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use monky_deployd::drivers::tenancy::Tenancy;
use monky_deployd::effects::report::{Outcome, Report};
use monky_deployd::effects::{CallFault, CheckinRequest, LeaseFault, Sha, Stamp};

use crate::support::{Knows, PLAIN, Reply, Wire, answer, nonsense, ok, unreachable};

fn tenancy(wire: &Wire) -> Tenancy {
    Tenancy::new(wire.client(), "e1-prod")
}

fn checkin() -> CheckinRequest {
    CheckinRequest {
        agent_version: "0.2.0".into(),
        site: String::new(),
        applied_sha: None,
        last_result: None,
        last_error: None,
        token_source: None,
        docker_version: None,
        compose_version: None,
    }
}

fn report() -> Report {
    Report {
        report_id: "k".repeat(32),
        result: Outcome::Applied,
        sha: Sha::of(b""),
        code: None,
        detail: None,
        phase: "healthy".into(),
        attempt: 1,
        rolled_back: false,
        duration_ms: 5,
        at: Stamp(0),
        agent_version: "0.2.0".into(),
        containers: vec![],
    }
}

fn says(body: impl Into<String>) -> Wire {
    let body = body.into();
    Wire::http(move |_, _| ok(&body))
}

#[test]
fn a_checkin_tells_everything_and_learns_what_is_desired() {
    let sha = Sha::of(b"x");
    let wire = says(format!(r#"{{"desired_sha":"{sha}","new_key":[1]}}"#));
    let desired = tenancy(&wire).checkin(&PLAIN, &checkin()).unwrap();
    assert_eq!((desired.desired_sha, desired.hold), (Some(sha), None));
    let request = &wire.requests()[0];
    assert!(request.starts_with("POST /v1/envs/e1-prod/checkin HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(r#""applied_sha":null"#), "{request}");
}

#[test]
fn nothing_desired_and_a_hold_without_a_reason_are_fine() {
    let desired = tenancy(&says(r#"{"desired_sha":null,"hold":null}"#)).checkin(&PLAIN, &checkin()).unwrap();
    assert_eq!((desired.desired_sha, desired.hold), (None, None));
    let hold = |body: &str| tenancy(&says(body)).checkin(&Knows("s3cret"), &checkin()).unwrap().hold.unwrap();
    assert_eq!(hold(r#"{"desired_sha":null,"hold":{}}"#), "no reason given");
    assert_eq!(hold(r#"{"desired_sha":null,"hold":{"reason":"for\ns3cret"}}"#), "for ***");
}

#[test]
fn a_checkin_without_a_sha_or_null_is_nonsense() {
    let upper = Sha::of(b"x").as_str().to_uppercase();
    for body in [
        "{}".to_owned(),
        r#"{"desired_sha":"../../etc"}"#.into(),
        r#"{"desired_sha":7}"#.into(),
        r#"{"desired_sha":""}"#.into(),
        format!(r#"{{"desired_sha":"{upper}"}}"#),
        "[]".into(),
        String::new(),
    ] {
        nonsense(tenancy(&says(body)).checkin(&PLAIN, &checkin()));
    }
}

#[test]
fn a_checkin_is_repeated_after_a_reset() {
    let wire = Wire::http(|n, _| if n == 0 { Reply::Reset } else { ok(r#"{"desired_sha":null}"#) });
    tenancy(&wire).checkin(&PLAIN, &checkin()).unwrap();
    assert_eq!(wire.requests().len(), 2);
}

#[test]
fn a_bundle_comes_with_its_header() {
    let wire = Wire::http(|_, _| answer(200, "X-Bundle-Sha: abc\r\n", "{}"));
    let sha = Sha::of(b"x");
    let read = |body: &mut dyn Read| {
        let mut text = String::new();
        body.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(tenancy(&wire).bundle(&PLAIN, &sha, read).unwrap(), ("{}".into(), Some("abc".into())));
    assert!(wire.requests()[0].starts_with(&format!("GET /v1/envs/e1-prod/bundles/{sha} HTTP/1.1\r\n")));
    assert_eq!(tenancy(&says("{}")).bundle(&PLAIN, &sha, read).unwrap().1, None);
}

fn lease(body: String) -> (Wire, Result<(monky_deployd::effects::Lease, String), LeaseFault>) {
    let wire = Wire::http(move |_, _| answer(201, "", &body));
    let got = tenancy(&wire).lease(&PLAIN).map(|(lease, grant)| (lease, grant.expose().to_owned()));
    (wire, got)
}

fn jwt(claims: &str) -> String {
    format!("eyJhbGciOiJFZERTQSJ9.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

#[test]
fn a_lease_ends_when_its_grant_says_so() {
    let grant = jwt(r#"{"exp":1700000000}"#);
    let (wire, got) = lease(format!(
        r#"{{"lease_id":"l1","type":"jwt","grant":"{grant}","role":"env-e1","expires_at":"2030-01-01T00:00:00Z"}}"#
    ));
    let (facts, kept) = got.unwrap();
    assert_eq!(kept, grant);
    assert_eq!((facts.lease_id.as_str(), facts.role.as_deref()), ("l1", Some("env-e1")));
    assert_eq!(facts.expires_at, Some(Stamp(1_700_000_000_000)));
    assert!(wire.requests()[0].ends_with("\r\n\r\n{\"reason\":\"apply\"}"));
}

#[test]
fn a_grant_without_an_end_takes_the_leases() {
    for at in [r#""2023-11-14T22:13:20Z""#, "1700000000"] {
        let (_, got) = lease(format!(r#"{{"lease_id":"l","type":"jwt","grant":"{}","expires_at":{at}}}"#, jwt("{}")));
        assert_eq!(got.unwrap().0.expires_at, Some(Stamp(1_700_000_000_000)));
    }
    let (_, got) = lease(format!(r#"{{"lease_id":"l","type":"jwt","grant":"{}"}}"#, jwt("{}")));
    assert_eq!(got.unwrap().0.expires_at, None);
}

#[test]
fn a_lease_of_another_type_is_legacy_with_or_without_a_grant() {
    for body in [
        r#"{"lease_id":"l","type":"approle","secret_id":"s3cret","role_id":"r"}"#,
        r#"{"lease_id":"l","type":"approle","grant":"a.b.c"}"#,
    ] {
        let (_, got) = lease(body.into());
        assert_eq!(got.unwrap_err(), LeaseFault::Legacy("approle".into()));
    }
}

#[test]
fn a_grant_that_is_no_jwt_is_nonsense_and_not_told() {
    for grant in [r#""s3cret""#, r#""a.b.s3cret\u0000""#, "null", "7", r#""""#] {
        let (wire, got) = lease(format!(r#"{{"lease_id":"l","type":"jwt","grant":{grant}}}"#));
        match got {
            Err(LeaseFault::Call(fault @ CallFault::Nonsense { .. })) => {
                assert!(!format!("{fault:?}").contains("s3cret"), "{fault:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(wire.requests().len(), 1);
    }
}

#[test]
fn a_rate_limited_lease_is_asked_for_once_and_tells_when_to_come_back() {
    let wire = Wire::http(|_, _| {
        answer(429, "Retry-After: 1800\r\n", r#"{"error":{"code":"LEASE_RATE_LIMITED","message":"5 an hour"}}"#)
    });
    match tenancy(&wire).lease(&PLAIN).map(|_| ()) {
        Err(LeaseFault::Call(CallFault::Status { status: 429, detail, retry_after_s: Some(1800) })) => {
            assert_eq!(detail.as_str(), "LEASE_RATE_LIMITED: 5 an hour");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(wire.requests().len(), 1);
}

#[test]
fn a_lease_that_may_have_been_granted_is_not_asked_for_again() {
    let wire = Wire::http(|_, _| Reply::Reset);
    assert!(matches!(tenancy(&wire).lease(&PLAIN), Err(LeaseFault::Call(CallFault::Unreachable { .. }))));
    assert_eq!(wire.requests().len(), 1);
}

#[test]
fn a_report_is_delivered_by_any_success_whatever_its_body() {
    for reply in ["", "not json", r#"{"ok":true}"#] {
        tenancy(&says(reply)).report(&PLAIN, &report()).unwrap();
    }
    tenancy(&says("x".repeat(1 << 20))).report(&PLAIN, &report()).unwrap();
    let wire = Wire::http(|_, _| Reply::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    tenancy(&wire).report(&PLAIN, &report()).unwrap();
    let conflict = Wire::http(|_, _| answer(409, "", ""));
    assert!(matches!(tenancy(&conflict).report(&PLAIN, &report()), Err(CallFault::Status { status: 409, .. })));
}

#[test]
fn a_report_is_sent_again_with_its_key() {
    let wire = Wire::http(|_, _| Reply::Reset);
    unreachable(tenancy(&wire).report(&PLAIN, &report()));
    assert_eq!(wire.requests().len(), 3);
    assert!(wire.requests().iter().all(|request| request.contains(&"k".repeat(32))));
}
