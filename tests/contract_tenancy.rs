//! The protocol documents against the reference tenancy and against themselves.
//!
//! Invariant: nothing in `docs/tenancy.openapi.yaml` and `docs/bundle.md` that a program can check is unchecked: schemas,
//! examples, codes, the recipe for the content sha and the bundle that it is shown on.
#![cfg(feature = "sandbox")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use monky_deployd::effects::failure::{Class, Code};
use monky_deployd::effects::{CheckinRequest, Sha};
use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::tenancy::{BundleFiles, Call, Tenancy, content_sha, files};
use serde_json::{Value, json};

#[path = "common/openapi.rs"]
mod openapi;

const BUNDLE_DOC: &str = include_str!("../docs/bundle.md");

// ---------------------------------------------------------------- traffic

fn call(tenancy: &Tenancy, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
    let url = format!("{}{path}", tenancy.url());
    let answer = match method {
        "GET" => agent.get(&url).call(),
        _ => agent.post(&url).header("Content-Type", "application/json").send(body.to_string()),
    };
    let mut answer = answer.unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
}

// What the agent sends, as its own types write it.
fn first_checkin() -> Value {
    let request = CheckinRequest {
        agent_version: "0.2.0".to_owned(),
        site: String::new(),
        applied_sha: None,
        last_result: None,
        last_error: None,
        token_source: None,
        docker_version: None,
        compose_version: None,
    };
    serde_json::to_value(request).unwrap()
}

fn later_checkin() -> Value {
    let request = CheckinRequest {
        agent_version: "0.2.0".to_owned(),
        site: "berlin-2".to_owned(),
        applied_sha: Some(Sha::of(b"")),
        last_result: Some("failed".to_owned()),
        last_error: Some("PULL_FAILED: compose pull: manifest unknown".to_owned()),
        token_source: Some(monky_deployd::effects::state::TokenSource::Bootstrap),
        docker_version: Some("28.2.2".to_owned()),
        compose_version: Some("2.40.3".to_owned()),
    };
    serde_json::to_value(request).unwrap()
}

fn report() -> Value {
    json!({
        "report_id": "0f8fad5bd9cb469fa16570867728950e", "result": "failed", "sha": Sha::of(b""), "code": "UNHEALTHY",
        "detail": "UNHEALTHY: web is unhealthy", "phase": "healthy", "attempt": 2, "rolled_back": true,
        "duration_ms": 90_000, "at": "2026-01-01T00:00:00Z", "agent_version": "0.2.0",
        "containers": [
            {"service": "web", "name": "p-web-1", "state": "running", "health": "unhealthy", "exit_code": null},
            {"service": "job", "name": "p-job-1", "state": "exited", "health": null, "exit_code": 1},
        ],
    })
}

#[test]
fn everything_the_reference_tenancy_says_and_hears_is_as_documented() {
    let tenancy = Tenancy::start().unwrap();
    let mut bundle =
        files([("compose.yaml", "services: {}\n"), ("meta.json", "{}"), ("manifest.json", "{}"), ("sub/ü x", "é")]);
    bundle.insert("bytes".to_owned(), vec![0, 0xff]);
    let sha = tenancy.publish("e4", &bundle);
    let lease = json!({"reason": "apply"});
    let mut statuses = Vec::new();
    let mut post = |path: &str, body: &Value| statuses.push((path.to_owned(), call(&tenancy, "POST", path, body).0));

    post("/v1/envs/e4/checkin", &first_checkin());
    tenancy.desire("e4", Some(&sha));
    tenancy.hold("e4", Some("moving"));
    post("/v1/envs/e4/checkin", &later_checkin());
    post("/v1/envs/nobody/checkin", &first_checkin());
    tenancy.legacy_leases(true);
    post("/v1/envs/e4/leases", &lease);
    tenancy.legacy_leases(false);
    for _ in 0..5 {
        post("/v1/envs/e4/leases", &lease);
    }
    tenancy.deny_leases(true);
    post("/v1/envs/e4/leases", &lease);
    post("/v1/envs/e4/reports", &report());
    post("/v1/envs/e4/reports", &report());
    assert_eq!(
        statuses.iter().map(|(_, status)| *status).collect::<Vec<_>>(),
        [200, 200, 404, 201, 201, 201, 201, 201, 429, 403, 201, 200]
    );
    let got = call(&tenancy, "GET", &format!("/v1/envs/e4/bundles/{sha}"), &Value::Null);
    assert_eq!((got.0, &got.1["files"]["bytes"]), (200, &json!({"base64": "AP8="})));
    assert_eq!(call(&tenancy, "GET", &format!("/v1/envs/e5/bundles/{sha}"), &Value::Null).0, 404);
    assert_eq!(call(&tenancy, "GET", &format!("/v1/envs/e4/bundles/{}", Sha::of(b"")), &Value::Null).0, 404);

    let log = tenancy.requests();
    assert_eq!(log.len(), 15);
    for logged in log {
        openapi::validate_request(&logged.method, &logged.path, &logged.body).unwrap();
        openapi::validate_answer(&logged.method, &logged.path, logged.status.unwrap(), &logged.answer).unwrap();
    }
}

#[test]
fn what_is_not_to_the_document_is_refused_in_the_documents_words() {
    let tenancy = Tenancy::start().unwrap();
    tenancy.add_env("e4");
    let mut without_at = report();
    without_at.as_object_mut().unwrap().remove("at");
    for (path, body) in [
        ("/v1/envs/e4/checkin", json!({})),
        ("/v1/envs/e4/leases", json!({"reason": "fun"})),
        ("/v1/envs/e4/reports", without_at),
    ] {
        let (status, answer) = call(&tenancy, "POST", path, &body);
        assert_eq!(status, 400, "{path} {answer}");
        openapi::validate_request("POST", path, &body).unwrap_err();
        openapi::validate_answer("POST", path, status, &answer).unwrap();
    }
    let error = &openapi::document()["components"]["schemas"]["Error"];
    for (method, path, status) in [("GET", "/v1/envs/e4/leases", 405), ("POST", "/v1/x", 404)] {
        let (got, answer) = call(&tenancy, method, path, &Value::Null);
        assert_eq!(got, status);
        openapi::validate(&openapi::document(), error, &answer).unwrap();
    }
    assert!(tenancy.reports().is_empty() && tenancy.checkins().is_empty());
}

#[test]
fn a_lost_answer_is_in_the_log_without_a_status() {
    let tenancy = Tenancy::start().unwrap();
    tenancy.add_env("e4");
    tenancy.fail_next(Call::Lease, Fault::LoseAnswer);
    assert!(ureq::post(format!("{}/v1/envs/e4/leases", tenancy.url())).send(r#"{"reason": "apply"}"#).is_err());
    assert_eq!(tenancy.requests()[0].status, None);
    assert_eq!(tenancy.leases_granted("e4"), 1);
}

// ---------------------------------------------------------------- schemas

// For each schema a value that is right, and changes that make it wrong: (JSON pointer, new value; none takes it away).
type Broken = (&'static str, Option<Value>);

fn schemas() -> Vec<(&'static str, Value, Vec<Broken>)> {
    let sha = json!(Sha::of(b""));
    let container = report()["containers"][0].clone();
    let whole = "";
    vec![
        (
            "EnvId",
            json!("e-4"),
            vec![(whole, Some(json!("-e4"))), (whole, Some(json!("E4"))), (whole, Some(json!("")))],
        ),
        (
            "Sha",
            sha.clone(),
            vec![
                (whole, Some(json!("A".repeat(64)))),
                (whole, Some(json!("a".repeat(63)))),
                (whole, Some(json!("a".repeat(65)))),
            ],
        ),
        (
            "Checkin",
            later_checkin(),
            vec![
                ("/agent_version", None),
                ("/agent_version", Some(json!(""))),
                ("/site", Some(Value::Null)),
                ("/applied_sha", None),
                ("/applied_sha", Some(json!("latest"))),
                ("/last_result", Some(json!(1))),
                ("/last_error", None),
                ("/token_source", Some(json!("approle"))),
                ("/docker_version", None),
                ("/compose_version", Some(json!(2))),
            ],
        ),
        (
            "Desired",
            json!({"desired_sha": sha, "hold": {"reason": "r"}}),
            vec![
                ("/desired_sha", None),
                ("/desired_sha", Some(json!("latest"))),
                ("/hold", Some(json!("r"))),
                ("/hold", Some(Value::Null)),
                ("/hold/reason", None),
            ],
        ),
        (
            "Bundle",
            json!({"files": {"compose.yaml": "", "meta.json": "", "manifest.json": "", "a/b": ""}}),
            vec![
                ("/files", None),
                ("/files/compose.yaml", None),
                ("/files/meta.json", None),
                ("/files/manifest.json", None),
                ("/files/a~1b", Some(json!(1))),
                ("/files/..~1b", Some(json!(""))),
            ],
        ),
        (
            "BundlePath",
            json!("a/.b/..c/d.e/...f"),
            [
                "", "/a", "a/", "a//b", ".", "..", "a/./b", "a/..", "../a", "a\\b", "a\u{0}", "a\nb", "a\u{7f}",
                "a\u{85}",
            ]
            .map(|path| (whole, Some(json!(path))))
            .to_vec(),
        ),
        (
            "BundleFile",
            json!({"base64": "AP8="}),
            vec![
                ("/base64", None),
                ("/base64", Some(json!("AP8"))),
                ("/base64", Some(json!("A_8="))),
                ("/mode", Some(json!("0755"))),
                (whole, Some(json!("x".repeat(1024 * 1024 + 1)))),
                (whole, Some(json!(["x"]))),
            ],
        ),
        ("LeaseRequest", json!({"reason": "apply"}), vec![("/reason", None), ("/reason", Some(json!("renew")))]),
        (
            "Lease",
            json!({"lease_id": "l", "type": "jwt", "grant": "a.b.c", "role": "env-e4", "expires_at": "2026-01-01T00:00:00Z"}),
            vec![
                ("/lease_id", None),
                ("/type", None),
                ("/type", Some(json!("password"))),
                ("/grant", None),
                ("/grant", Some(json!("a.b"))),
                ("/grant", Some(json!("a.b.c\n"))),
                ("/role", Some(json!(""))),
                ("/expires_at", Some(json!("tomorrow"))),
            ],
        ),
        (
            "Report",
            report(),
            vec![
                ("/report_id", None),
                ("/report_id", Some(json!("1"))),
                ("/result", Some(json!("ok"))),
                // A success has no code.
                ("/result", Some(json!("applied"))),
                ("/sha", None),
                // A failure has a code and says what happened.
                ("/code", None),
                ("/code", Some(json!("pull failed"))),
                ("/detail", None),
                ("/detail", Some(json!("x".repeat(901)))),
                ("/phase", None),
                ("/attempt", Some(json!(0))),
                ("/rolled_back", None),
                ("/duration_ms", Some(json!(-1))),
                ("/at", Some(json!(1_767_225_600_000_i64))),
                ("/at", Some(json!("2026-01-01 00:00"))),
                ("/agent_version", None),
                ("/containers", None),
                ("/containers/0/state", Some(json!("fine"))),
            ],
        ),
        (
            "Container",
            container,
            vec![
                ("/service", None),
                ("/name", Some(json!(""))),
                ("/state", Some(json!("Up 2 minutes"))),
                ("/health", None),
                ("/health", Some(json!(""))),
                ("/exit_code", None),
                ("/exit_code", Some(json!("0"))),
            ],
        ),
        ("ReportReceipt", json!({"report_id": "x", "new": true}), vec![("/new", Some(json!("yes")))]),
        (
            "Error",
            json!({"error": {"code": "X", "message": "m"}}),
            vec![
                ("/error", None),
                ("/error", Some(json!("X"))),
                ("/error/code", None),
                ("/error/code", Some(json!("not found"))),
                ("/error/message", None),
            ],
        ),
    ]
}

fn broken(value: &Value, (pointer, new): &Broken) -> Value {
    let mut value = value.clone();
    let Some((parent, key)) = pointer.rsplit_once('/') else { return new.clone().unwrap() };
    let key = key.replace("~1", "/");
    let parent = value.pointer_mut(parent).unwrap();
    match (parent, new) {
        (Value::Object(object), Some(new)) => drop(object.insert(key, new.clone())),
        (Value::Object(object), None) => drop(object.remove(&key).unwrap()),
        (Value::Array(array), Some(new)) => array[key.parse::<usize>().unwrap()] = new.clone(),
        (other, _) => panic!("{pointer} in {other}"),
    }
    value
}

#[test]
fn each_schema_takes_what_is_right_and_refuses_what_is_wrong() {
    let document = openapi::document();
    for (name, right, wrong) in schemas() {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        openapi::validate(&document, &schema, &right).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(!wrong.is_empty(), "{name} has nothing wrong to refuse");
        for change in wrong {
            let value = broken(&right, &change);
            assert!(
                openapi::validate(&document, &schema, &value).is_err(),
                "{name} takes {:?} at {}",
                change.1,
                change.0
            );
        }
    }
}

#[test]
fn no_schema_is_left_out() {
    let document = openapi::document();
    let documented: BTreeSet<&String> = document["components"]["schemas"].as_object().unwrap().keys().collect();
    let tried: Vec<String> = schemas().into_iter().map(|(name, ..)| name.to_owned()).collect();
    assert_eq!(documented, tried.iter().collect());
}

// Every example in the document, with the schema beside it.
fn examples<'a>(value: &'a Value, found: &mut Vec<(&'a Value, &'a Value)>) {
    if let (Some(schema), Some(Value::Object(examples))) = (value.get("schema"), value.get("examples")) {
        found.extend(examples.values().map(|example| (schema, &example["value"])));
    }
    match value {
        Value::Object(object) => object.values().for_each(|value| examples(value, found)),
        Value::Array(array) => array.iter().for_each(|value| examples(value, found)),
        _ => {}
    }
}

#[test]
fn the_documents_examples_are_right() {
    let document = openapi::document();
    let mut found = Vec::new();
    examples(&document, &mut found);
    assert!(found.len() >= 12, "{}", found.len());
    for (schema, example) in found {
        openapi::validate(&document, schema, example).unwrap_or_else(|why| panic!("{example}: {why}"));
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    fn walk(document: &Value, value: &Value) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            assert!(document.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference}");
        }
        match value {
            Value::Object(object) => object.values().for_each(|value| walk(document, value)),
            Value::Array(array) => array.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    let document = openapi::document();
    walk(&document, &document);
}

#[test]
fn every_failure_code_is_documented_where_it_belongs() {
    let text = openapi::document()["components"]["schemas"]["Report"]["properties"]["code"]["description"].to_string();
    for code in Code::ALL {
        assert!(text.contains(&format!("`{code}`")), "tenancy.openapi.yaml does not name {code}");
        let row = format!("| `{code}` |");
        assert_eq!(BUNDLE_DOC.contains(&row), code.class() == Class::Refused, "bundle.md, refusals: {code}");
    }
}

// ---------------------------------------------------------------- bundle.md

// The bundle that the page shows: a bold path, then its content in a fence.
fn shown_bundle() -> BundleFiles {
    let (_, part) = BUNDLE_DOC.split_once("## A whole bundle").unwrap();
    let mut files = BundleFiles::new();
    for piece in part.split("**`").skip(1) {
        let (path, rest) = piece.split_once("`**\n\n```").unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        let (content, _) = rest.split_once("```").unwrap();
        files.insert(path.to_owned(), content.as_bytes().to_vec());
    }
    files
}

// The recipe as it is printed, run in an unpacked bundle.
fn recipe(files: &BundleFiles) -> String {
    let (_, part) = BUNDLE_DOC.split_once("## Content sha").unwrap();
    let (_, part) = part.split_once("```sh\n").unwrap();
    let (script, _) = part.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let output = Command::new("sh").arg("-c").arg(script).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn the_recipe_prints_the_content_sha() {
    assert_eq!(recipe(&shown_bundle()), content_sha(&shown_bundle()));
    let mut odd = files([
        ("a", "1"),
        ("a.b", "2"),
        ("a/b", "3"),
        ("A", "4"),
        ("-", "5"),
        ("--help", "6"),
        (" blank  twice ", "7"),
        ("ü/é", "8"),
        (".hidden", "9"),
        ("sub/.  ./x", "10"),
        ("quote'\"$(x)", "11"),
    ]);
    // `a` is a file and a folder: no bundle.
    odd.remove("a");
    odd.insert("z".to_owned(), vec![0, 0xff, b'\r', b'\n']);
    assert_eq!(recipe(&odd), content_sha(&odd));
}

#[test]
fn the_bundle_that_the_page_shows_has_the_sha_that_the_page_says() {
    let bundle = shown_bundle();
    assert_eq!(
        bundle.keys().collect::<Vec<_>>(),
        ["compose.yaml", "env.template", "manifest.json", "meta.json", "www/index.html"]
    );
    let sha = content_sha(&bundle);
    assert!(BUNDLE_DOC.contains(&format!("The content sha is `{sha}`.")), "bundle.md should say {sha}");
}
