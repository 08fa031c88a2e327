//! Recordings and history of a box: what the built binary keeps, what it tells of it, and what must never be in it.
//!
//! Invariant: every recording here was written by the binary, on the stand-ins or on the real stack.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::forms::forms_of;
use common::rig::on_each;
use common::stand::{Secrets, Stand};
use monky_deployd::drivers::record::LARGEST;
use monky_deployd::sandbox::docker::{Behaviour, Fault, Pace};
use serde_json::{Value, json};

const EXE: &str = env!("CARGO_BIN_EXE_monky-deployd");

/// A value that nobody can have written down before, with the characters that are written differently in JSON, URLs and base64.
fn canary(what: &str) -> String {
    let random = |n: u8| RandomState::new().hash_one(n);
    format!("{what}/{:016x}+\"é&%{:016x}", random(1), random(2))
}

fn run(stand: &Stand, args: &[&str]) -> Output {
    Command::new(EXE).env_clear().arg("--config").arg(stand.config_file()).args(args).output().unwrap()
}

fn says(stand: &Stand, args: &[&str]) -> String {
    let output = run(stand, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A tick with `--record`; its exit status and recording.
fn tick(stand: &Stand, args: &[&str]) -> (Option<i32>, String) {
    let file = stand.dir().join("tick.jsonl");
    let output = run(stand, &[&["tick", "--record", file.to_str().unwrap()], args].concat());
    (output.status.code(), fs::read_to_string(file).unwrap())
}

fn kept(state_dir: &Path) -> Vec<PathBuf> {
    let folder = state_dir.join("recordings");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn new_box(secrets: &Secrets, more: &str) -> Stand {
    let stand = Stand::new(Path::new(EXE), "env-lab-01", secrets.clone(), more);
    stand.image("shop/web:1.0", Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 }), &[]);
    stand
}

fn secrets() -> Secrets {
    Secrets { db_password: canary("db"), pull_password: canary("pull") }
}

/// The field of a file in the state directory, if it is there.
fn field(state_dir: &Path, file: &str, name: &str) -> Option<String> {
    let text = fs::read(state_dir.join(file)).ok()?;
    let content: Value = serde_json::from_slice(&text).unwrap();
    Some(content[name].as_str().unwrap().to_owned())
}

/// Fails if a secret is in a text in whatever form.
fn holds_none_of(text: &str, secrets: &[String]) {
    for secret in secrets {
        for form in forms_of(secret) {
            assert!(!text.contains(&form), "{form} (of {secret}) is in {text}");
        }
    }
}

#[test]
fn no_recording_on_the_stand_ins_holds_a_secret_in_any_form() {
    let secrets = secrets();
    let stand = new_box(&secrets, "on_unhealthy: rollback\n");
    let state_dir = stand.config.state_dir.clone();
    let grant = stand.bootstrap();
    let mut known = vec![secrets.db_password.clone(), secrets.pull_password.clone(), grant];
    let mut recordings = Vec::new();
    let mut go = |stand: &Stand, known: &mut Vec<String>, status: i32| {
        let (ended, recording) = tick(stand, &[]);
        assert_eq!(ended, Some(status), "{recording}");
        known.extend(field(&state_dir, "token.json", "client_token"));
        known.extend(field(&state_dir, "grant.json", "grant"));
        recordings.push(recording);
    };
    // Bootstrap, swap, first deploy.
    stand.desire(1, "web:1.0", &[]);
    go(&stand, &mut known, 0);
    // A registry and a container that say what they know.
    let (pull, db) = (&secrets.pull_password, &secrets.db_password);
    let fault = Fault::Fail(1, format!("denied: puller:{pull} may not pull; {}", forms_of(pull).join(" | ")));
    stand.docker.edit(|world| world.go_wrong("pull", Some(1), fault)).unwrap();
    stand.desire(2, "web:9.9", &[]);
    go(&stand, &mut known, 1);
    let logs = [vec![format!("connecting with {db}")], forms_of(db)].concat();
    stand.image("shop/web:1.2", Behaviour::GetsUnhealthy(Pace { looks: 1, ms: 0 }), &logs);
    stand.desire(3, "web:1.2", &[]);
    go(&stand, &mut known, 1);
    // A token that dies behind its back: another login.
    stand.bao.revoke_all();
    stand.image("shop/web:1.3", Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 }), &[]);
    stand.desire(4, "web:1.3", &[]);
    go(&stand, &mut known, 0);
    known.sort();
    known.dedup();
    assert!(known.len() >= 6, "password, credential, two grants, at least two tokens: {}", known.len());
    let all: Vec<PathBuf> = kept(&stand.config.state_dir);
    assert_eq!(all.len(), 4);
    recordings.extend(all.iter().map(|file| fs::read_to_string(file).unwrap()));
    assert!(recordings.iter().any(|text| text.contains("[secret:DB_PASSWORD]")), "the log's tail was looked at");
    for recording in &recordings {
        holds_none_of(recording, &known);
    }
    // And what is made of them for people.
    for args in [["history", "--format=json"], ["history", "--format=text"], ["status", "--format=json"]] {
        holds_none_of(&says(&stand, &args), &known);
    }
}

#[test]
fn no_recording_on_the_real_stack_holds_a_secret_in_any_form() {
    on_each(|rig| {
        let password = canary("db");
        rig.secret("db", json!({ "value": password }));
        let entries = [rig.entry("PASSWORD", "db"), rig.registry_entry()];
        rig.registry_secret();
        let compose = |image: &str, command: &str| {
            format!(
                "services:\n  web:\n    image: {image}\n    environment:\n      PASSWORD: ${{PASSWORD}}\n    command: [\"sh\", \"-c\", \"{command}\"]\n"
            )
        };
        let mut known = vec![password, rig.bootstrap(), rig.stack["STACK_REGISTRY_PASSWORD"].clone()];
        let file = rig.dir.path().join("tick.jsonl");
        let mut texts = Vec::new();
        let ticks =
            [("@tool:1", "sleep 1000", 0), ("@nothing:1", "sleep 1000", 1), ("@tool:1", "echo $$PASSWORD; exit 3", 1)];
        for (generation, (image, command, status)) in (1..).zip(ticks) {
            rig.desire(&rig.bundle(generation, &compose(image, command), &entries, &[]));
            let ran = rig.run(&["tick", "--record", file.to_str().unwrap()]);
            assert_eq!(ran.status, status, "{ran:?}");
            known.extend([rig.token(), rig.grant()]);
            texts.push(fs::read_to_string(&file).unwrap());
        }
        assert!(texts.last().unwrap().contains("[secret:PASSWORD]"), "the container printed it: {texts:?}");
        let kept = kept(&rig.state_dir());
        assert_eq!(kept.len(), 3);
        for file in &kept {
            let replayed = rig.run(&["replay", file.to_str().unwrap()]);
            assert_eq!(replayed.status, 0, "{replayed:?}");
            texts.push(fs::read_to_string(file).unwrap());
        }
        for text in &texts {
            holds_none_of(text, &known);
        }
    });
}

#[test]
fn the_last_twenty_recordings_are_kept_and_none_of_a_tick_that_changed_nothing() {
    let stand = new_box(&secrets(), "");
    stand.bootstrap();
    stand.desire(1, "web:9.9", &[]);
    for _ in 0..22 {
        assert_eq!(run(&stand, &["tick", "--force"]).status.code(), Some(1));
    }
    let before = kept(&stand.config.state_dir);
    assert_eq!(before.len(), 20);
    stand.desire(2, "web:1.0", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let after = kept(&stand.config.state_dir);
    assert_eq!((after.len(), &after[..19]), (20, &before[1..]), "the oldest went");
    assert!(after.iter().all(|file| fs::metadata(file).unwrap().len() <= LARGEST as u64));
    // A tick with nothing to do leaves none, unless it is asked for.
    let (status, recording) = tick(&stand, &[]);
    assert_eq!(status, Some(0));
    assert!(recording.contains(r#""word":"unchanged""#), "{recording}");
    assert_eq!(kept(&stand.config.state_dir), after);
    // Nor does one that only sends what waited.
    let call = monky_deployd::sandbox::tenancy::Call::Report;
    stand.tenancy.fail_always(call, Some(monky_deployd::sandbox::http::Fault::Drop));
    stand.desire(3, "web:1.0", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let after = kept(&stand.config.state_dir);
    stand.tenancy.fail_always(call, None);
    assert!(says(&stand, &["status"]).contains("\nreports     1 waiting\n"));
    assert_eq!(says(&stand, &["tick"]).split(' ').next(), Some("unchanged"));
    assert!(says(&stand, &["status"]).contains("\nreports     0 waiting\n"));
    assert_eq!(kept(&stand.config.state_dir), after);
    let names: Vec<&str> = after.iter().map(|file| file.to_str().unwrap()).collect();
    let replayed = says(&stand, &[&["replay"], &names[..]].concat());
    assert_eq!(replayed.matches("identical").count(), 20);
}

#[test]
fn history_and_status_tell_a_tired_person_what_was_done_and_why() {
    let stand = new_box(&secrets(), "on_unhealthy: rollback\n");
    assert_eq!(says(&stand, &["history"]), "no tick has done anything yet\n");
    stand.bootstrap();
    stand.desire(1, "web:1.0", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    stand.desire(2, "web:9.9", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(1));
    assert_eq!(run(&stand, &["tick", "--force"]).status.code(), Some(1));
    let logs = ["starting", "cannot migrate: column orders.total is missing"].map(str::to_owned);
    stand.image("shop/web:1.2", Behaviour::GetsUnhealthy(Pace { looks: 1, ms: 0 }), &logs);
    stand.desire(3, "web:1.2", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(1));
    assert_eq!(run(&stand, &["tick", "--force"]).status.code(), Some(1));
    stand.desire(4, "web:1.0", &[]);
    stand
        .tenancy
        .fail_always(monky_deployd::sandbox::tenancy::Call::Report, Some(monky_deployd::sandbox::http::Fault::Drop));
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    stand.bao.seal(true);
    stand.desire(5, "web:9.9", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(75));
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(75));

    let json = says(&stand, &["history", "--format", "json"]);
    let entries: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<[&str; 3]> =
        entries.iter().map(|entry| ["outcome", "code", "why"].map(|key| entry[key].as_str().unwrap_or("-"))).collect();
    assert_eq!(
        told,
        [
            ["applied", "-", "new sha"],
            ["failed", "PULL_FAILED", "new sha"],
            ["failed", "PULL_FAILED", "retry 1"],
            ["rolled_back", "UNHEALTHY", "new sha"],
            ["rolled_back", "UNHEALTHY", "retry 1"],
            ["applied", "-", "new sha"],
            // The next tick met the same trouble.
            ["deferred", "BAO_UNAVAILABLE", "new sha"],
        ]
    );
    let column = |key: &str| entries.iter().map(|entry| entry[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(column("leases"), [1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(column("exit"), [0, 1, 1, 1, 1, 0, 75]);
    let text = says(&stand, &["history"]);
    for words in [
        "7 ticks that did something, oldest first",
        "what       compose pull: Error response from daemon: manifest for registry.example/shop/web:9.9 not found",
        "what       web: unhealthy; web says: starting | cannot migrate: column orders.total is missing; ",
        "to do      look at what is named here: the CA file, the network, or OpenBao itself (sealed, standby, overloaded)",
        "leases     1 was spent",
        "recording  00",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains(" -> "), "the remedy stands by itself: {text}");

    let status = says(&stand, &["status"]);
    for words in [
        "applied     ",
        " s ago), generation 4",
        "trouble     BAO_UNAVAILABLE since ",
        "lookup-self: status 503: Vault is sealed\n            to do: look at what is named here",
        "token       lease, 59 min left",
        "leases      1 of 5",
        "reports     1 waiting",
    ] {
        assert!(status.contains(words), "{words}: {status}");
    }
    let json: Value = serde_json::from_str(&says(&stand, &["status", "--format", "json"])).unwrap();
    assert_eq!(
        json["trouble"]["remedy"],
        "look at what is named here: the CA file, the network, or OpenBao itself (sealed, standby, overloaded)"
    );
    assert!(json["applied"]["since"].as_str().unwrap().ends_with('Z'), "{json}");
    // Another bundle that fails is an error with its time, and attempts with the next one's.
    stand.bao.seal(false);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(1));
    let status = says(&stand, &["status"]);
    let failed: Value = serde_json::from_str(&says(&stand, &["status", "--format", "json"])).unwrap();
    let sha = failed["last_error"]["sha"].as_str().unwrap();
    assert!(failed["attempts"][sha]["failed"] == 1, "{failed}");
    assert!(
        status.contains(&format!("error       PULL_FAILED of {} in pull at 20", &sha[..12]))
            && status.contains("1 failed; next attempt not before 20"),
        "{status}"
    );
    assert!(!status.contains("trouble"), "{status}");
}

fn last_entry(stand: &Stand) -> (usize, Value) {
    let json = says(stand, &["history", "--format", "json"]);
    let entries: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (entries.len(), entries.last().unwrap().clone())
}

fn status(stand: &Stand) -> (String, Value) {
    let json = says(stand, &["status", "--format", "json"]);
    (says(stand, &["status"]), serde_json::from_str(&json).unwrap())
}

/// A box that has deployed.
fn deployed() -> Stand {
    let stand = new_box(&secrets(), "");
    stand.bootstrap();
    stand.desire(1, "web:1.0", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    stand
}

#[test]
fn a_hold_is_told_by_status_while_it_lasts_and_by_history_from_when_it_began() {
    let stand = deployed();
    assert!(says(&stand, &["history"]).starts_with("1 tick that did something, "));
    stand.tenancy.hold(&stand.env_id, Some("freeze until Monday"));
    for _ in 0..3 {
        assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    }
    let (count, last) = last_entry(&stand);
    assert_eq!((count, &last["outcome"], &last["detail"]), (2, &json!("held"), &json!("freeze until Monday")));
    let (text, json) = status(&stand);
    assert!(text.contains("\nhold        since 20") && text.contains(" ago): freeze until Monday\n"), "{text}");
    assert_eq!(json["hold"]["reason"], "freeze until Monday");
    assert!(json["hold"]["since"].as_str().unwrap().ends_with('Z'), "{json}");

    stand.tenancy.hold(&stand.env_id, None);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let (text, json) = status(&stand);
    assert!(!text.contains("hold") && json["hold"].is_null(), "{text}");
    assert_eq!(last_entry(&stand).0, 2, "that it went is seen by what was done then");
}

/// A grant that OpenBao rejects.
fn store_a_bad_grant(stand: &Stand) {
    let mut claims = stand.tenancy.claims(&stand.env_id, 600);
    claims["aud"] = json!("somebody-else");
    fs::write(stand.config.state_dir.join("bootstrap.jwt"), stand.tenancy.sign(&claims)).unwrap();
}

#[test]
fn a_tick_that_went_on_after_its_grant_was_rejected_says_so_in_the_history() {
    let stand = deployed();
    store_a_bad_grant(&stand);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let (_, last) = last_entry(&stand);
    assert_eq!(last["outcome"], "unchanged");
    assert!(last["detail"].as_str().unwrap().contains("OpenBao rejected the bootstrap grant"), "{last}");
    assert!(says(&stand, &["history"]).contains("what       OpenBao rejected the bootstrap grant"));
}

#[test]
fn a_box_with_no_way_to_its_secrets_does_not_look_well_a_tick_later() {
    let stand = new_box(&secrets(), "");
    stand.bootstrap();
    store_a_bad_grant(&stand);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(75));
    for _ in 0..2 {
        let ran = run(&stand, &["tick"]);
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(0), &b"idle\n"[..]));
        let (text, json) = status(&stand);
        assert_eq!(json["trouble"]["code"], "GRANT_REJECTED", "{text}");
    }
    // Another tick that fails for another reason hides nothing.
    stand.tenancy.set_reachable(false);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(75));
    stand.tenancy.set_reachable(true);
    let (text, json) = status(&stand);
    assert_eq!(
        (&json["trouble"]["code"], &json["unsolved"][0]["code"]),
        (&json!("TENANCY_UNREACHABLE"), &json!("GRANT_REJECTED"))
    );
    assert_eq!(text.matches("\ntrouble     ").count(), 2, "{text}");
    // A grant that is taken ends it.
    stand.bootstrap();
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let (text, json) = status(&stand);
    assert!(json["trouble"].is_null() && json["unsolved"] == json!([]) && !text.contains("trouble"), "{text}");
}

#[test]
fn no_next_attempt_lies_in_the_past_and_what_is_over_is_not_told_as_if_it_were_not() {
    let stand = deployed();
    let fault = Fault::Fail(1, "no route to the registry".to_owned());
    stand.docker.edit(|world| world.go_wrong("pull", Some(1), fault)).unwrap();
    assert_eq!(run(&stand, &["tick", "--force"]).status.code(), Some(1));
    let (text, json) = status(&stand);
    assert!(text.contains("next attempt not before 20") && text.contains("PULL_FAILED of "), "{text}");
    let attempt = |json: &Value| json["attempts"].as_object().unwrap().values().next().unwrap().clone();
    assert!(attempt(&json)["next_at"].is_string(), "{json}");
    stand.age(3600);
    let (text, json) = status(&stand);
    assert!(text.contains("1 failed; next attempt with the next tick"), "{text}");
    assert!(attempt(&json)["next_at"].is_null(), "{json}");
    // The applied release runs: nothing is tried again, and the failure is over.
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(0));
    let (text, json) = status(&stand);
    assert!(!text.contains("PULL_FAILED") && !text.contains("attempt"), "{text}");
    assert!(text.contains("last        failed at 20") && text.contains("is over"), "{text}");
    assert_eq!((&json["last_error"], &json["attempts"]), (&Value::Null, &json!({})));
}

#[test]
fn a_code_is_told_once_and_one_remedy_too() {
    let stand = deployed();
    stand.desire(0, "web:1.0", &[]);
    assert_eq!(run(&stand, &["tick"]).status.code(), Some(1));
    let last = last_entry(&stand).1;
    assert!(!last["detail"].as_str().unwrap().contains(last["remedy"].as_str().unwrap()), "{last}");
    for text in [says(&stand, &["history"]), says(&stand, &["status"])] {
        assert_eq!(text.matches("ROLLBACK_REFUSED").count(), 1, "{text}");
        assert_eq!(text.matches("agent.allow_rollback").count(), 1, "{text}");
    }
}
