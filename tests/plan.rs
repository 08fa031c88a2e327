//! `tick --dry-run` on the real stack: an honest plan, and nothing changed.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::fs;
use std::path::Path;

use common::rig::{Rig, compose_versions, on_each};
use common::stack_env::stack;
use serde_json::{Value, json};

/// Every path below a folder with its content, mode, link target and change time.
fn fingerprint(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(list) = fs::read_dir(&folder) else { continue };
        for entry in list.map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let at = fs::symlink_metadata(&path).unwrap();
            let content = if kind.is_file() { format!("{:?}", fs::read(&path).unwrap()) } else { String::new() };
            let link = fs::read_link(&path).ok();
            all.push(format!(
                "{} {:?} {:?} {link:?} {content}",
                path.display(),
                at.permissions(),
                at.modified().unwrap()
            ));
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    all.sort();
    all
}

fn containers(rig: &Rig) -> String {
    rig.docker_says(&[
        "ps",
        "-a",
        "--no-trunc",
        "--filter",
        &format!("label=com.docker.compose.project={}", rig.project),
    ])
}

/// A plan, after a check that making it changed nothing.
fn plan(rig: &Rig, status: i32) -> Value {
    let (state, run, asked) = (fingerprint(&rig.state_dir()), containers(rig), rig.tenancy.requests().len());
    let ran = rig.run(&["tick", "--dry-run", "--format", "json"]);
    assert_eq!(ran.status, status, "{ran:?}");
    assert_eq!(fingerprint(&rig.state_dir()), state, "the state directory changed");
    let strip = |ps: &str| ps.split_whitespace().map(str::to_owned).filter(|w| w.len() > 60).collect::<Vec<_>>();
    assert_eq!(strip(&containers(rig)), strip(&run), "the containers changed");
    for request in &rig.tenancy.requests()[asked..] {
        let reads = request.method == "GET" || request.path.ends_with("/checkin");
        assert!(reads, "a dry run must not send {} {}", request.method, request.path);
    }
    serde_json::from_str(&ran.stdout).unwrap()
}

fn ops(plan: &Value) -> Vec<String> {
    let effects = plan["effects"].as_array().unwrap().iter();
    effects.map(|step| step["op"].as_str().unwrap().to_owned()).filter(|op| op != "wait_until").collect()
}

/// The operations of a recorded tick; looking at the containers again and again counts once.
fn recorded(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut ops: Vec<String> = lines
        .filter(|line| line["line"] == "effect")
        .map(|line| line["effect"]["op"]["op"].as_str().unwrap().to_owned())
        .filter(|op| op != "wait_until")
        .collect();
    ops.dedup_by(|a, b| a == b && a == "inspect");
    ops
}

fn real_tick_does_what_was_planned(rig: &Rig, planned: &Value) {
    let file = rig.dir.path().join("tick.jsonl");
    let ran = rig.run(&["tick", "--record", file.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let mut planned = ops(planned);
    planned.dedup_by(|a, b| a == b && a == "inspect");
    assert_eq!(recorded(&file), planned);
    let replayed = rig.run(&["replay", file.to_str().unwrap()]);
    assert_eq!(replayed.status, 0, "{replayed:?}");
    assert!(replayed.stdout.contains("identical"), "{replayed:?}");
}

fn compose(rig: &Rig, web: &str, more: &str) -> String {
    format!(
        "services:\n  web:\n    image: {}\n    volumes: [\"./conf:/conf:ro\"]\n  db:\n    image: {}\n    \
         command: [\"sleep\", \"1000\"]\n    environment:\n      PASSWORD: ${{PASSWORD}}\n{more}",
        rig.image(web),
        rig.image("tool:1"),
    )
}

#[test]
fn a_plan_is_what_a_tick_does_and_changes_nothing() {
    on_each(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.registry_secret();
        let entries = [rig.entry("PASSWORD", "db"), rig.registry_entry()];
        let old = "  old:\n    image: ".to_owned() + &rig.image("tool:1") + "\n    command: [\"sleep\", \"1000\"]\n";
        rig.desire(&rig.bundle(1, &compose(rig, "web:1", &old), &entries, &[("conf/a", "1")]));
        rig.bootstrap();

        let first = plan(rig, 0);
        assert!(ops(&first).contains(&"ask_lease".to_owned()));
        assert_eq!(first["services"]["web"]["fate"], "created");
        assert_eq!(first["secrets"]["PASSWORD"]["change"], "added");
        real_tick_does_what_was_planned(rig, &first);

        let same = plan(rig, 0);
        assert_eq!(ops(&same), ["checkin"]);

        let new = "  new:\n    image: ".to_owned() + &rig.image("tool:1") + "\n    command: [\"sleep\", \"1000\"]\n";
        rig.desire(&rig.bundle(2, &compose(rig, "web:1", &new), &entries, &[("conf/a", "2")]));
        let second = plan(rig, 0);
        let text = rig.run(&["tick", "--dry-run"]).stdout;
        assert!(text.contains(": new sha; applied is ") && text.contains("report into the outbox: Applied"), "{text}");
        assert!(!ops(&second).contains(&"ask_lease".to_owned()), "the token is reused");
        let fate = |name: &str| second["services"][name]["fate"].as_str().unwrap().to_owned();
        assert_eq!([fate("web"), fate("db"), fate("new"), fate("old")], ["recreated", "kept", "created", "removed"]);
        assert_eq!(second["services"]["db"]["unless_newer"], json!(["PASSWORD"]));
        assert_eq!(second["secrets"]["PASSWORD"], json!({"change": "latest", "applied": 1}));
        let (web, db) = (rig.id("web"), rig.id("db"));
        real_tick_does_what_was_planned(rig, &second);
        assert_ne!(rig.id("web"), web, "planned: recreated");
        assert_eq!(rig.id("db"), db, "planned: kept");
        assert!(rig.ids("old").is_empty() && rig.ids("new").len() == 1);
    });
}

#[test]
fn a_plan_tells_what_goes_along_with_another_service_and_what_only_compose_decides() {
    on_each(|rig| {
        let compose = |v: u8, scale: u8, waits: &str| {
            let service = "image: '@tool:1', command: [sleep, '1000']";
            format!(
                "services:
  db: {{{service}, labels: {{v: '{v}'}}}}
  side: {{{service}, network_mode: 'service:db'}}
  from: {{{service}, volumes_from: [db]}}
  waits: {{{service}, depends_on: [db]}}
  more: {{{service}, scale: {scale}}}
  lone: {{{service}, depends_on: [{waits}]}}
  same: {{{service}, depends_on: [more]}}
"
            )
        };
        rig.deploy(&rig.simple(1, &compose(1, 1, ""), &[]));
        rig.desire(&rig.simple(2, &compose(2, 2, "more"), &[]));
        let planned = plan(rig, 0);
        let fate = |name: &str| planned["services"][name]["fate"].as_str().unwrap().to_owned();
        assert_eq!([fate("db"), fate("side"), fate("from")], ["recreated", "recreated", "recreated"], "{planned}");
        assert_eq!([fate("waits"), fate("lone")], ["not_known", "not_known"], "{planned}");
        assert_eq!(planned["services"]["more"], json!({"fate": "scaled", "from": 1, "to": 2}));
        assert_eq!(planned["services"]["same"], json!({"fate": "kept"}));
        let text = rig.run(&["tick", "--dry-run"]).stdout;
        assert!(text.contains("  scale     more: 1 of 2 there\n"), "{text}");

        let before = ["db", "side", "from", "more", "same"].map(|name| rig.id(name));
        real_tick_does_what_was_planned(rig, &planned);
        for (name, was) in ["db", "side", "from"].iter().zip(&before) {
            assert_ne!(rig.id(name), *was, "{name} was planned to be recreated");
        }
        let more = rig.ids("more");
        assert!(more.len() == 2 && more.contains(&before[3]), "{more:?}");
        assert_eq!(rig.id("same"), before[4], "planned: kept");
    });
}

#[test]
fn a_plan_of_a_refused_bundle_says_so_and_ends_like_the_tick() {
    let Some(stack) = stack() else { return };
    let rig = Rig::new(&stack, &compose_versions(&stack)[0]);
    let compose = format!("services:\n  web:\n    image: {}\n    build: .\n", rig.image("web:1"));
    rig.desire(&rig.bundle(1, &compose, &[], &[]));
    let refused = plan(&rig, 1);
    assert_eq!(refused["outcome"]["code"], "COMPOSE_REFUSED");
    let text = rig.run(&["tick", "--dry-run"]);
    assert!(text.stdout.contains("COMPOSE_REFUSED") && !text.stdout.contains('\u{1b}'), "{text:?}");
}

#[test]
fn history_tells_what_was_done_and_why() {
    let Some(stack) = stack() else { return };
    let rig = Rig::new(&stack, &compose_versions(&stack)[0]);
    rig.registry_secret();
    let compose = format!("services:\n  web:\n    image: {}\n", rig.image("nothing:1"));
    rig.desire(&rig.bundle(1, &compose, &[rig.registry_entry()], &[]));
    rig.bootstrap();
    rig.tick_ends(1);
    rig.backoff_is_over();
    rig.tick_ends(1);
    let ran = rig.run(&["history", "--format", "json"]);
    let entries: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let why: Vec<&Value> = entries.iter().map(|entry| &entry["why"]).collect();
    assert_eq!(why, ["new sha", "retry 1"]);
    assert!(
        entries.iter().all(|entry| entry["code"] == "PULL_FAILED" && !entry["stages"].as_array().unwrap().is_empty())
    );
    let text = rig.run(&["history"]);
    assert!(text.stdout.contains("PULL_FAILED") && text.stdout.contains("(retry 1)"), "{text:?}");
}
