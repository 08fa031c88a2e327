//! The control plane: check-in, bundles, leases and reports (contract §4).
//!
//! Invariant: what is sent and what is understood is exactly the protocol's; a lease is asked for once, and
//! its grant goes into a [`Secret`] and nowhere else.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::http::{Ask, BODY_CAP, Http, Keep, Repeat, one_line, wiped};
use super::vault::Secret;
use crate::effects::failure::Code;
use crate::effects::report::{Outcome, Report, ReportedContainer};
use crate::effects::{CallFault, CheckinRequest, Desired, Lease, LeaseFault, Scrub, Scrubbed, Sha, Stamp};

/// Bytes of a bundle on the wire: 16 MiB of content, base64 and JSON escapes included.
pub const BUNDLE_CAP: u64 = 40 << 20;
/// Bytes of a grant.
const GRANT_CAP: usize = 16 << 10;

/// Tenancy, for one environment.
#[derive(Debug)]
pub struct Tenancy {
    http: Http,
    /// `/v1/envs/{env_id}`.
    root: String,
}

/// Answer of a check-in, on the wire.
#[derive(Deserialize)]
struct WireDesired {
    /// Must be there; may be null.
    #[serde(deserialize_with = "Option::deserialize")]
    desired_sha: Option<String>,
    #[serde(default)]
    hold: Option<WireHold>,
}

#[derive(Deserialize)]
struct WireHold {
    #[serde(default)]
    reason: Option<String>,
}

/// Answer of a lease, on the wire.
#[derive(Deserialize)]
struct WireLease {
    #[serde(default)]
    lease_id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "wiped")]
    grant: Option<Secret>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    expires_at: Option<Value>,
}

/// A report, on the wire.
#[derive(Serialize)]
struct WireReport<'a> {
    report_id: &'a str,
    result: Outcome,
    sha: &'a Sha,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    phase: &'a str,
    attempt: u32,
    rolled_back: bool,
    duration_ms: u64,
    at: String,
    agent_version: &'a str,
    containers: &'a [ReportedContainer],
}

/// What tenancy answered to somebody who only wanted to know whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The HTTP status.
    pub status: u16,
    /// The code, if the answer has tenancy's own form.
    pub code: Option<String>,
    /// The words of an error.
    pub words: Scrubbed,
    /// Its time, in seconds since the epoch.
    pub date_s: Option<i64>,
}

impl Tenancy {
    /// Tenancy behind `http`, for this environment (`env_id` as the configuration allows it).
    pub fn new(http: Http, env_id: &str) -> Tenancy {
        Tenancy { http, root: format!("/v1/envs/{env_id}") }
    }

    /// Tells how the box is and asks what it should run.
    ///
    /// # Errors
    ///
    /// Any [`CallFault`]; nonsense also if `desired_sha` is missing or no sha.
    pub fn checkin(&self, scrub: &dyn Scrub, request: &CheckinRequest) -> Result<Desired, CallFault> {
        let body = self.encode(scrub, request)?;
        let answer = self.post(scrub, "/checkin", &body, Repeat::Safe, Keep::Whole(BODY_CAP))?;
        let wire: WireDesired = self.http.json(scrub, &answer)?;
        let desired_sha = match wire.desired_sha.map(Sha::try_from).transpose() {
            Ok(sha) => sha,
            Err(error) => return Err(self.http.nonsense(scrub, &format!("answered a desired_sha that is {error}"))),
        };
        let hold = wire.hold.map(|hold| match hold.reason.map(|reason| one_line(&scrub.scrub(&reason), 300)) {
            Some(reason) if !reason.is_empty() => reason,
            _ => "no reason given".to_owned(),
        });
        Ok(Desired { desired_sha, hold })
    }

    /// Asks for a bundle that cannot be: it is the one call that only reads, so tenancy knows nothing new afterwards (a
    /// check-in would tell it of a box that is just being looked at). Whatever comes back proves the way and TLS, and
    /// tenancy's own 404 that it is tenancy.
    ///
    /// # Errors
    ///
    /// Any [`CallFault`] but a status.
    pub fn reach(&self, scrub: &dyn Scrub) -> Result<Reached, CallFault> {
        let path = format!("{}/bundles/{}", self.root, "0".repeat(64));
        let ask = Ask { path: &path, body: None, headers: &[], repeat: Repeat::Safe, keep: Keep::Nothing };
        let answer = self.http.call(scrub, &ask)?;
        let (code, date_s) = (answer.error_code(), answer.date_s());
        Ok(Reached { status: answer.status, code, words: answer.words(scrub), date_s })
    }

    /// Fetches a bundle and lends its body to `read` as it arrives; gives what that made of it, and the header
    /// `X-Bundle-Sha`.
    ///
    /// # Errors
    ///
    /// Any [`CallFault`]. A body that was cut off is unreachable and one above [`BUNDLE_CAP`] nonsense, whatever
    /// `read` made of it.
    pub fn bundle<T>(
        &self,
        scrub: &dyn Scrub,
        sha: &Sha,
        read: impl Fn(&mut dyn Read) -> T,
    ) -> Result<(T, Option<String>), CallFault> {
        let path = format!("{}/bundles/{sha}", self.root);
        let ask = Ask { path: &path, body: None, headers: &[], repeat: Repeat::Safe, keep: Keep::Whole(BUNDLE_CAP) };
        let (made, headers) = self.http.stream(scrub, &ask, BUNDLE_CAP, read)?;
        let header = headers.get("x-bundle-sha").map(|value| one_line(&String::from_utf8_lossy(value.as_bytes()), 80));
        Ok((made, header))
    }

    /// Asks for a lease, once: it costs one of the hour's.
    ///
    /// # Errors
    ///
    /// [`LeaseFault::Legacy`] for any `type` but `jwt`; nonsense if the grant cannot be a JWT.
    pub fn lease(&self, scrub: &dyn Scrub) -> Result<(Lease, Secret), LeaseFault> {
        let keep = Keep::Whole(BODY_CAP);
        let answer =
            self.post(scrub, "/leases", br#"{"reason":"apply"}"#, Repeat::Never, keep).map_err(LeaseFault::Call)?;
        let wire: WireLease = self.http.json(scrub, &answer).map_err(LeaseFault::Call)?;
        if wire.kind != "jwt" {
            let kind: String = wire.kind.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
            return Err(LeaseFault::Legacy(one_line(&kind, 40)));
        }
        let grant = wire.grant.map(|grant| Secret::new(grant.expose().trim().to_owned()));
        let Some(grant) = grant.filter(|grant| is_jwt(grant.expose())) else {
            return Err(LeaseFault::Call(self.http.nonsense(scrub, "leased a grant that is no JWT")));
        };
        let expires_at = ends(grant.expose()).or_else(|| wire.expires_at.as_ref().and_then(moment));
        let plain = |text: &str| one_line(&scrub.scrub(text), 128);
        let lease = Lease { lease_id: plain(&wire.lease_id), role: wire.role.as_deref().map(plain), expires_at };
        Ok((lease, grant))
    }

    /// Delivers a report. Its id makes a second delivery a repetition.
    ///
    /// # Errors
    ///
    /// Any [`CallFault`] but nonsense: every 2xx is a delivery.
    pub fn report(&self, scrub: &dyn Scrub, report: &Report) -> Result<(), CallFault> {
        let body = self.encode(scrub, &wire_report(report))?;
        let answer = self.post(scrub, "/reports", &body, Repeat::Safe, Keep::Nothing)?;
        if answer.is_success() { Ok(()) } else { Err(self.http.status_fault(scrub, &answer)) }
    }

    fn post(
        &self,
        scrub: &dyn Scrub,
        path: &str,
        body: &[u8],
        repeat: Repeat,
        keep: Keep,
    ) -> Result<super::http::Answer, CallFault> {
        let path = format!("{}{path}", self.root);
        self.http.call(scrub, &Ask { path: &path, body: Some(body), headers: &[], repeat, keep })
    }

    fn encode(&self, scrub: &dyn Scrub, body: &impl Serialize) -> Result<Vec<u8>, CallFault> {
        serde_json::to_vec(body).map_err(|error| self.http.nonsense(scrub, &format!("was not asked: {error}")))
    }
}

fn wire_report(report: &Report) -> WireReport<'_> {
    let Report {
        report_id,
        result,
        sha,
        code,
        detail,
        phase,
        attempt,
        rolled_back,
        duration_ms,
        at,
        agent_version,
        containers,
    } = report;
    WireReport {
        report_id,
        result: *result,
        sha,
        code: *code,
        detail: detail.as_deref(),
        phase,
        attempt: *attempt,
        rolled_back: *rolled_back,
        duration_ms: *duration_ms,
        at: rfc3339(*at),
        agent_version,
        containers,
    }
}

/// A moment as RFC 3339 in UTC. One that no calendar knows (state from a box with a mad clock) is the epoch.
fn rfc3339(at: Stamp) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

/// It looks like a JWT: three parts of base64url. Only OpenBao can tell more.
fn is_jwt(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    text.len() <= GRANT_CAP && text.split('.').count() == 3 && text.split('.').all(part)
}

/// When a JWT says that it ends (`exp`). Its signature is not looked at.
pub fn ends(jwt: &str) -> Option<Stamp> {
    epoch(claims(jwt)?.get("exp")?)
}

/// The environment that a grant says it is for (`env_id`). Its signature is not looked at.
pub fn environment(jwt: &str) -> Option<String> {
    Some(claims(jwt)?.get("env_id")?.as_str()?.to_owned())
}

fn claims(jwt: &str) -> Option<Value> {
    let payload = URL_SAFE_NO_PAD.decode(jwt.split('.').nth(1)?.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// Seconds since the epoch as a moment. A claim may have a fraction.
fn epoch(seconds: &Value) -> Option<Stamp> {
    if let Some(whole) = seconds.as_i64() {
        return Some(Stamp(0).plus_s(whole));
    }
    // A float beyond the range of i64 saturates.
    #[expect(clippy::cast_possible_truncation, reason = "saturates; a fraction of a millisecond is of no matter")]
    seconds.as_f64().filter(|seconds| seconds.is_finite()).map(|seconds| Stamp((seconds * 1000.0) as i64))
}

/// A moment in a JSON answer: RFC 3339, or seconds since the epoch.
fn moment(value: &Value) -> Option<Stamp> {
    let Some(text) = value.as_str() else { return epoch(value) };
    let time = OffsetDateTime::parse(text.trim(), &Rfc3339).ok()?;
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok().map(Stamp)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::effects::containers::{ContainerState, Health};

    #[test]
    fn a_report_on_the_wire_has_the_contracts_names_and_a_readable_time() {
        let report = Report {
            report_id: "ab".repeat(16),
            result: Outcome::Failed,
            sha: Sha::of(b""),
            code: Some(Code::PullFailed),
            detail: Some("compose pull: no".into()),
            phase: "pull".into(),
            attempt: 2,
            rolled_back: false,
            duration_ms: 1234,
            at: Stamp(1_700_000_000_123),
            agent_version: "0.2.0".into(),
            containers: vec![ReportedContainer {
                service: "web".into(),
                name: "p-web-1".into(),
                state: ContainerState::Running,
                health: Some(Health::Healthy),
                exit_code: None,
            }],
        };
        let wire = serde_json::to_value(wire_report(&report)).unwrap();
        assert_eq!(
            wire,
            json!({
                "report_id": "ab".repeat(16), "result": "failed", "sha": Sha::of(b"").as_str(), "code": "PULL_FAILED",
                "detail": "compose pull: no", "phase": "pull", "attempt": 2, "rolled_back": false, "duration_ms": 1234,
                "at": "2023-11-14T22:13:20.123Z", "agent_version": "0.2.0",
                "containers": [
                    {"service": "web", "name": "p-web-1", "state": "running", "health": "healthy", "exit_code": null}
                ],
            })
        );
    }

    #[test]
    fn a_time_that_no_calendar_knows_does_not_stop_a_report() {
        assert_eq!(rfc3339(Stamp(i64::MAX)), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(Stamp(0)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn only_three_parts_of_base64url_can_be_a_grant() {
        assert!(is_jwt("eyJ.eyJ_-9.c2ln"));
        for wrong in ["", "a.b", "a.b.c.d", "a..c", "a.b.c\n", "a.b .c", "a.b+.c", "..", "a.b.ü"] {
            assert!(!is_jwt(wrong), "{wrong:?}");
        }
        assert!(!is_jwt(&format!("a.{}.c", "b".repeat(GRANT_CAP))));
    }

    #[test]
    fn a_grant_ends_when_it_says_so_itself() {
        let jwt = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(ends(&jwt(r#"{"exp":1700000000}"#)), Some(Stamp(1_700_000_000_000)));
        assert_eq!(ends(&jwt(r#"{"exp":1700000000.5}"#)), Some(Stamp(1_700_000_000_500)));
        assert_eq!(ends(&jwt(r#"{"exp":1e300}"#)), Some(Stamp(i64::MAX)));
        for without in [jwt("{}"), jwt(r#"{"exp":"soon"}"#), jwt("no json"), "a.b".into(), "e30.%%.c".into()] {
            assert_eq!(ends(&without), None, "{without}");
        }
    }

    #[test]
    fn a_grant_names_its_environment_or_nothing_is_known_of_it() {
        let jwt = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(environment(&jwt(r#"{"env_id":"plant-7"}"#)).as_deref(), Some("plant-7"));
        for without in [jwt("{}"), jwt(r#"{"env_id":7}"#), jwt("no json"), "a.b".into(), "e30.%%.c".into()] {
            assert_eq!(environment(&without), None, "{without}");
        }
    }

    #[test]
    fn an_expiry_is_understood_as_a_date_and_as_seconds() {
        assert_eq!(moment(&json!("2023-11-14T22:13:20Z")), Some(Stamp(1_700_000_000_000)));
        assert_eq!(moment(&json!("2023-11-15T00:13:20.5+02:00")), Some(Stamp(1_700_000_000_500)));
        assert_eq!(moment(&json!(1_700_000_000)), Some(Stamp(1_700_000_000_000)));
        assert_eq!(moment(&json!("tomorrow")), None);
        assert_eq!(moment(&json!(null)), None);
    }
}
