//! `check` on the real stack: a box that deployed has no failure, and each thing that breaks is exactly one.

use std::fs;
use std::os::unix::fs::chown;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::forms::forms_of;
use crate::common::rig::{Rig, compose_versions, on_each, on_one};
use crate::common::stack_env::stack;

const WEB: &str = "services: {web: {image: '@web:1', environment: {PASSWORD: '${PASSWORD}'}}}\n";
const PASSWORD: &str = "db-c4n4ry-0f3e";

fn deployed(rig: &Rig) {
    rig.secret("db", json!({"value": PASSWORD}));
    rig.registry_secret();
    rig.deploy(&rig.bundle(1, WEB, &[rig.entry("PASSWORD", "db"), rig.registry_entry()], &[]));
}

/// Runs it with more in its environment; it must change nothing, ask nobody to change anything, and tell no secret.
/// Gives the facts that fail (systemd's aside, which may have units of this name or none), and the lines by fact.
fn check_with(rig: &Rig, environment: &[(&str, &str)]) -> (Vec<String>, Vec<Value>) {
    let (before, containers, asked) = (rig.everything(), rig.all_ids(), rig.tenancy.requests().len());
    let mut command = rig.command(&["check", "--format", "json"]);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(rig.everything(), before, "the state directory changed");
    assert_eq!(rig.all_ids(), containers);
    assert!(rig.tenancy.requests()[asked..].iter().all(|request| request.method == "GET"));
    let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let secrets = [rig.token(), rig.grant(), PASSWORD.to_owned(), rig.stack["STACK_REGISTRY_PASSWORD"].clone()];
    for form in secrets.iter().flat_map(|secret| forms_of(secret)) {
        assert!(!all.contains(&form), "{form:?} is in {all}");
    }
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {all}"));
    let lines = json["lines"].as_array().unwrap().clone();
    let ours = |line: &&Value| !["timer", "service", "service.limit"].contains(&line["fact"].as_str().unwrap());
    let failed: Vec<String> = lines
        .iter()
        .filter(ours)
        .filter(|line| line["level"] == "failure")
        .map(|line| line["fact"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(output.status.code(), Some(i32::from(json["failures"] != 0)), "{text}");
    (failed, lines)
}

fn check(rig: &Rig) -> (Vec<String>, Vec<Value>) {
    check_with(rig, &[])
}

fn fails(rig: &Rig, expected: &[&str]) -> Vec<Value> {
    let (failed, lines) = check(rig);
    assert_eq!(failed, expected, "{lines:#?}");
    lines
}

fn line<'a>(lines: &'a [Value], fact: &str) -> &'a Value {
    lines.iter().find(|line| line["fact"] == fact).unwrap_or_else(|| panic!("no {fact}: {lines:#?}"))
}

#[test]
fn a_box_that_deployed_has_no_failure() {
    on_each(|rig| {
        deployed(rig);
        let lines = fails(rig, &[]);
        for fact in
            ["config", "docker_bin", "state_dir", "lock", "state", "docker", "compose", "project", "tenancy", "clock"]
        {
            assert_eq!(line(&lines, fact)["level"], "ok", "{lines:#?}");
        }
        for fact in ["openbao", "token"] {
            assert_eq!(line(&lines, fact)["level"], "ok", "{lines:#?}");
        }
        let registry = &line(&lines, "registry")["what"];
        assert_eq!(*registry, json!(format!("{} takes the credential", rig.stack["STACK_REGISTRY"])));
        assert!(line(&lines, "docker.disk")["what"].as_str().unwrap().contains(" MiB"), "{lines:#?}");
    });
}

#[test]
fn what_breaks_around_the_box_is_exactly_one_failure_each() {
    on_one(|rig| {
        deployed(rig);

        let (failed, lines) = check_with(rig, &[("DOCKER_HOST", "unix:///run/nobody-listens-here.sock")]);
        assert_eq!(failed, ["docker"], "{lines:#?}");
        assert!(line(&lines, "project")["what"].as_str().unwrap().starts_with("not checked"));

        let bao = rig.setting("bao.addr");
        rig.set("bao.addr", "http://127.0.0.1:1");
        let lines = fails(rig, &["openbao"]);
        assert!(line(&lines, "token")["what"].as_str().unwrap().starts_with("not checked"));
        rig.set("bao.addr", "http://nobody.invalid:8200");
        fails(rig, &["bao.dns"]);
        rig.set("bao.addr", &bao);

        rig.tenancy.set_reachable(false);
        let lines = fails(rig, &["tenancy"]);
        assert!(line(&lines, "clock")["what"].as_str().unwrap().starts_with("not checked"));
        rig.tenancy.set_reachable(true);

        // Somebody else's containers under the same project name.
        let project = format!("com.docker.compose.project={}", rig.project);
        let folder = "com.docker.compose.project.working_dir=/home/somebody/shop";
        let stranger = rig.docker_says(&["create", "--label", &project, "--label", folder, &rig.image("web:1")]);
        let lines = fails(rig, &["project"]);
        assert!(line(&lines, "project")["what"].as_str().unwrap().contains("/home/somebody/shop"));
        rig.docker_says(&["rm", "-f", &stranger]);

        fails(rig, &[]);
    });
}

#[test]
fn what_breaks_in_the_state_directory_is_exactly_one_failure_each() {
    on_one(|rig| {
        deployed(rig);

        let config = rig.state_dir().join("docker/config.json");
        let right = fs::read(&config).unwrap();
        let (registry, user) = (&rig.stack["STACK_REGISTRY"], &rig.stack["STACK_REGISTRY_USER"]);
        let auth = STANDARD.encode(format!("{user}:wr0ng-c4n4ry"));
        fs::write(&config, json!({"auths": {registry: {"auth": auth}}}).to_string()).unwrap();
        let lines = fails(rig, &["registry"]);
        let text = format!("{lines:?}");
        assert!(forms_of("wr0ng-c4n4ry").iter().all(|form| !text.contains(form)), "{text}");
        assert!(line(&lines, "registry")["what"].as_str().unwrap().contains("does not take the credential"));
        fs::write(&config, "{\"auths\":{}}").unwrap();
        let lines = fails(rig, &["registry"]);
        assert!(line(&lines, "registry")["what"].as_str().unwrap().contains("has none for it"));
        fs::write(&config, right).unwrap();

        // What only root can do, and root runs the stack.
        chown(rig.state_dir(), Some(1), None).unwrap();
        let lines = fails(rig, &["state_dir"]);
        assert!(line(&lines, "token")["what"].as_str().unwrap().starts_with("not checked"));
        chown(rig.state_dir(), Some(0), None).unwrap();

        rig.bao("POST", "auth/token/revoke", &json!({"token": rig.token()}));
        let lines = fails(rig, &["token"]);
        assert!(line(&lines, "token")["what"].as_str().unwrap().contains("revoked"));
    });
}

#[test]
fn a_wrong_ca_is_told_by_the_handshake_and_a_missing_one_by_its_file() {
    let Some(stack) = stack() else { return };
    let mut rig = Rig::with_tls(&stack, compose_versions(&stack).last().unwrap());
    deployed(&rig);
    let lines = fails(&rig, &[]);
    assert_ne!(line(&lines, "bao.ca_file")["level"], "failure");

    let other = rcgen::CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
    let pem = other.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let file = rig.dir.path().join("other-ca.pem");
    fs::write(&file, pem).unwrap();
    rig.set("bao.ca_file", file.to_str().unwrap());
    let lines = fails(&rig, &["openbao"]);
    assert!(line(&lines, "openbao")["what"].as_str().unwrap().contains("TLS failed"), "{lines:#?}");

    rig.set("bao.ca_file", "/nowhere/ca.pem");
    let lines = fails(&rig, &["bao.ca_file"]);
    assert!(line(&lines, "openbao")["what"].as_str().unwrap().starts_with("not checked"));
}
