//! Incidents as assets: every recording in `fixtures/incidents` is decided today as it was recorded, or otherwise in
//! exactly the way that was accepted; and one more is added by one command.
//!
//! Invariant: no recording is written or changed by hand. `examples/incidents.rs` makes those that are ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use monky_deployd::drivers::record::Line;
use monky_deployd::drivers::replay::{Recording, replay};
use monky_deployd::effects::state::State;
use monky_deployd::effects::{Effect, EffectId, Event, GrantName, Op, TokenName, ValueUse};
use monky_deployd::fsm::StageName;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/incidents")
}

/// `<yyyy-mm>-<what-happened>`.
fn is_a_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let digits = |part: &str, n: usize| part.len() == n && part.chars().all(|c| c.is_ascii_digit());
    parts.len() > 2
        && digits(parts[0], 4)
        && digits(parts[1], 2)
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()))
}

fn file(folder: &Path, name: &str) -> Result<String, String> {
    fs::read_to_string(folder.join(name)).map_err(|error| format!("{name}: {error}"))
}

/// The recording of an incident.
fn recorded(folder: &Path) -> Result<Recording, String> {
    Recording::read(file(folder, "incident.jsonl")?.as_bytes()).map_err(|error| format!("incident.jsonl: {error}"))
}

/// Whether an incident is all that it has to be; the error says what it is not.
fn holds(folder: &Path) -> Result<(), String> {
    let verdict = replay(&recorded(folder)?);
    // A bug that was recorded and mended: what is done instead was accepted, and must stay like that.
    let accepted = file(folder, "otherwise.txt").ok();
    match (&verdict.divergence, accepted) {
        (None, None) => {}
        (Some(_), Some(accepted)) if verdict.text().trim_end() == accepted.trim_end() => {}
        (Some(_), None) => return Err(format!("today's machine decides otherwise\n{}", verdict.text())),
        (Some(_), Some(accepted)) => {
            let text = verdict.text();
            return Err(format!("today's machine decides otherwise than accepted\n{text}\naccepted was\n{accepted}"));
        }
        (None, Some(_)) => {
            return Err("it is decided as recorded again, though otherwise.txt says that it is not".to_owned());
        }
    }
    let notes = file(folder, "NOTES.md")?;
    for heading in ["# ", "## How it was made", "## What was wrong", "## The rule"] {
        if !notes.lines().any(|line| line.starts_with(heading)) {
            return Err(format!("NOTES.md has no `{heading}`"));
        }
    }
    if notes.contains("TODO") { Err("NOTES.md still has a TODO".to_owned()) } else { Ok(()) }
}

#[test]
fn every_incident_is_decided_as_it_was_recorded() {
    let mut folders: Vec<PathBuf> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    assert!(folders.len() >= 10, "{folders:?}");
    let mut wrong = String::new();
    for folder in &folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(is_a_name(name), "{name} is no name for an incident: 2026-09-what-happened");
        if let Err(error) = holds(folder) {
            writeln!(wrong, "\n{name}: {error}").unwrap();
        }
    }
    // Told now, since a snapshot that differs ends the test.
    eprintln!("{wrong}");
    for folder in &folders {
        if let Ok(recording) = recorded(folder) {
            insta::assert_snapshot!(folder.file_name().unwrap().to_str().unwrap(), decisions(&recording));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The decisions of a tick, for a reader: each operation with what matters of it, and answers that are not just fine.
fn decisions(recording: &Recording) -> String {
    let answers: BTreeMap<EffectId, &Event> = recording
        .lines
        .iter()
        .filter_map(|(_, line)| match line {
            Line::Event { input, .. } => Some((input.answers, &input.event)),
            _ => None,
        })
        .collect();
    let mut text = String::new();
    let mut stage: Option<StageName> = None;
    let mut state = recording.boot.state.clone();
    let mut last = String::new();
    for (_, line) in &recording.lines {
        match line {
            Line::Effect { stage: at, effect: Effect { id, op }, .. } => {
                if stage != Some(*at) {
                    writeln!(text, "{at}").unwrap();
                    stage = Some(*at);
                }
                let name = serde_json::to_value(op.name()).unwrap();
                let answer = answers.get(id).map(|event| answer(event)).unwrap_or_default();
                let line = format!("  {} {}{answer}", name.as_str().unwrap(), fact(op, &mut state));
                let line = line.trim_end().to_owned();
                if line != last {
                    writeln!(text, "{line}").unwrap();
                }
                last = line;
            }
            Line::Outcome { done, .. } => {
                let code = done.code.map(|code| format!(" {code}")).unwrap_or_default();
                let cause = done.cause.map(|cause| format!(" ({cause:?})")).unwrap_or_default();
                writeln!(text, "= exit {}: {}{code}{cause}", done.exit.status(), done.word).unwrap();
                if !done.detail.is_empty() {
                    writeln!(text, "  {}", done.detail).unwrap();
                }
            }
            Line::Cut { why, .. } => writeln!(text, "= cut: {why}").unwrap(),
            Line::Header { .. } | Line::Event { .. } => {}
        }
    }
    text
}

/// What matters of an operation.
fn fact(op: &Op, before: &mut State) -> String {
    match op {
        Op::Checkin(it) => {
            let applied = it.applied_sha.as_ref().map_or("nothing", |sha| sha.short());
            let error = it.last_error.as_ref().and_then(|error| error.split(':').next());
            format!("{applied} applied{}", error.map(|error| format!(", {error}")).unwrap_or_default())
        }
        Op::FetchBundle(it) => it.sha.short().to_owned(),
        Op::LookupToken(it) => match it.token {
            TokenName::Saved => "saved".to_owned(),
            TokenName::Candidate => "new".to_owned(),
        },
        Op::Login(it) => format!("{} as {}", grant(it.grant), it.role),
        Op::DropGrant(it) => grant(it.grant).to_owned(),
        Op::SaveToken(it) => format!("{:?}", it.source),
        Op::ReadSecret(it) => {
            let uses = it.wanted.iter().map(|wanted| match &wanted.usage {
                ValueUse::Env(name) => name.as_str(),
                ValueUse::RegistryAuth => "registry credential",
            });
            format!("{} for {}", it.path, uses.collect::<Vec<_>>().join(", "))
        }
        Op::WriteRelease(it) => {
            let registry = it.registry.as_ref().map(|(host, user)| format!("; {user} at {host}"));
            format!("{}{}", it.variables.join(", "), registry.unwrap_or_default())
        }
        Op::Pull(it) => it.sha.short().to_owned(),
        Op::Promote(it) => it.sha.short().to_owned(),
        Op::Up(it) => it.sha.short().to_owned(),
        Op::ReadLogs(it) => it.containers.iter().map(|(service, _)| service.as_str()).collect::<Vec<_>>().join(", "),
        Op::WaitUntil(it) => it.reason.clone(),
        Op::SaveState(it) => {
            let json = |state: &State| serde_json::to_value(state).unwrap();
            let (old, new) = (json(before), json(&it.state));
            before.clone_from(&it.state);
            let keys = new.as_object().unwrap().iter().filter(|(key, value)| old[key.as_str()] != **value);
            keys.map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ")
        }
        Op::SaveReport(it) => {
            let report = &it.report;
            let code = report.code.map(|code| format!(" {code}")).unwrap_or_default();
            let back = if report.rolled_back { ", rolled back" } else { "" };
            format!("{:?}{code}{back}, phase {}, attempt {}", report.result, report.phase, report.attempt)
        }
        _ => String::new(),
    }
}

fn grant(grant: GrantName) -> &'static str {
    match grant {
        GrantName::Bootstrap => "bootstrap grant",
        GrantName::Lease => "leased grant",
    }
}

/// What matters of an answer.
fn answer(event: &Event) -> String {
    if let Event::Inspected(Ok(containers)) = event {
        let state = |c: &monky_deployd::effects::containers::Container| {
            let health = c.health.map(|health| format!(" {health:?}")).unwrap_or_default();
            format!("{} {:?}{health}", c.service, c.state)
        };
        let seen = containers.iter().map(state).collect::<Vec<_>>().join("; ");
        return format!(" => {}", if seen.is_empty() { "nothing" } else { &seen });
    }
    let json = serde_json::to_value(event).unwrap();
    json["data"].get("Err").map(|fault| format!(" => {fault}")).unwrap_or_default()
}

/// A copy of the folder's script, and a recording that replays; gives their paths.
fn workshop(dir: &Path) -> (PathBuf, PathBuf) {
    let folder = dir.join("fixtures/incidents");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(fixtures().join("add.sh"), folder.join("add.sh")).unwrap();
    (folder.join("add.sh"), fixtures().join("2026-09-rc-1/incident.jsonl"))
}

/// Runs the script. Not as a program: it was just written, and a child that another test is starting may still hold it open.
fn add(script: &Path, args: &[&str]) -> (Option<i32>, String) {
    let run = Command::new("bash")
        .arg(script)
        .args(args)
        .env("MONKY_DEPLOYD", env!("CARGO_BIN_EXE_monky-deployd"))
        .output()
        .unwrap();
    (run.status.code(), String::from_utf8([run.stdout, run.stderr].concat()).unwrap())
}

#[test]
fn a_field_recording_becomes_an_incident_with_one_command() {
    let dir = tempfile::tempdir().unwrap();
    let (script, from) = workshop(dir.path());
    let from = from.to_str().unwrap();
    let (status, said) = add(&script, &[from, "2026-12-a-new-one"]);
    assert_eq!(status, Some(0), "{said}");
    let folder = script.parent().unwrap().join("2026-12-a-new-one");
    assert_eq!(fs::read(folder.join("incident.jsonl")).unwrap(), fs::read(from).unwrap());
    assert!(said.contains("NOTES.md") && said.contains("decides as recorded"), "{said}");
    // Its notes are to be written before it counts.
    assert_eq!(holds(&folder).unwrap_err(), "NOTES.md still has a TODO");
    let notes = fs::read_to_string(folder.join("NOTES.md")).unwrap().replace("TODO", "Done");
    fs::write(folder.join("NOTES.md"), notes).unwrap();
    holds(&folder).unwrap();
    // What is there stays.
    fs::write(folder.join("NOTES.md"), "mine").unwrap();
    let (status, said) = add(&script, &[from, "2026-12-a-new-one"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(fs::read_to_string(folder.join("NOTES.md")).unwrap(), "mine");
}

#[test]
fn a_recording_that_is_decided_otherwise_becomes_a_failing_test_until_that_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (script, from) = workshop(dir.path());
    let other = dir.path().join("other.jsonl");
    let text = fs::read_to_string(from).unwrap();
    // As if the agent that recorded it had given a pull another deadline.
    let changed = text.replacen(r#""op":"pull","with":{"sha":"#, r#""op":"pull","with":{"timeout_s":601,"sha":"#, 1);
    let changed = changed.replacen(r#","timeout_s":600}}}"#, "}}}", 1);
    assert_ne!(text, changed);
    fs::write(&other, changed).unwrap();
    let (status, said) = add(&script, &[other.to_str().unwrap(), "2026-12-otherwise"]);
    assert_eq!(status, Some(0), "{said}");
    for words in ["decides otherwise", "timeout_s", "recorded  601", "fails until", "--mended 2026-12-otherwise"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let folder = script.parent().unwrap().join("2026-12-otherwise");
    let notes = fs::read_to_string(folder.join("NOTES.md")).unwrap().replace("TODO", "Done");
    fs::write(folder.join("NOTES.md"), notes).unwrap();
    let error = holds(&folder).unwrap_err();
    assert!(error.contains("decides otherwise") && error.contains("recorded  601"), "{error}");
    let (status, said) = add(&script, &["--mended", "2026-12-otherwise"]);
    assert_eq!(status, Some(0), "{said}");
    holds(&folder).unwrap();
    // Should the old decision come back, that fails too.
    fs::write(folder.join("incident.jsonl"), text).unwrap();
    assert!(holds(&folder).unwrap_err().contains("as recorded again"));
}

#[test]
fn what_is_no_recording_or_has_no_proper_name_is_refused_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (script, from) = workshop(dir.path());
    let from = from.to_str().unwrap();
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, "hello\n").unwrap();
    let garbage = garbage.to_str().unwrap();
    let wrong: [(&[&str], &str, i32); 9] = [
        (&[], "usage", 2),
        (&[from], "usage", 2),
        (&[from, ""], "usage", 2),
        (&["", "2026-12-x"], "usage", 2),
        (&[from, "2026-13-x"], "2026-13-x", 2),
        (&[from, "2026-12-../../x"], "no name", 2),
        (&[from, "2026-12-Über"], "no name", 2),
        (&["absent.jsonl", "2026-12-x"], "absent.jsonl", 1),
        (&[garbage, "2026-12-x"], "line 1", 1),
    ];
    for (args, words, status) in wrong {
        let (ended, said) = add(&script, args);
        assert_eq!(ended, Some(status), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(fs::read_dir(script.parent().unwrap()).unwrap().count(), 1, "only the script is there");
}

#[test]
fn no_recording_names_a_path_of_the_machine_it_was_made_on() {
    for entry in fs::read_dir(fixtures()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        let text = fs::read_to_string(entry.path().join("incident.jsonl")).unwrap();
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            for path in ["/home/", "/root/", "/Users/", "/usr/local/"] {
                assert!(!value.to_string().contains(path), "{}: {line}", entry.path().display());
            }
        }
    }
}
