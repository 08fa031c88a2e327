//! `demo`: what an operator sees first. It tells eight steps, leaves nothing behind, and every claim in it can fail.

#![cfg(feature = "sandbox")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use monky_deployd::drivers::clock::Cancel;
use monky_deployd::fsm::stages::Exit;
use monky_deployd::sandbox::demo::print::{Paint, WIDTH};
use monky_deployd::sandbox::demo::set::{OnDisk, Running, Seen};
use monky_deployd::sandbox::demo::story::{Act, Claim, FIRST, Part, STEPS, Step};
use monky_deployd::sandbox::demo::{Played, play, status};

const EXE: &str = env!("CARGO_BIN_EXE_monky-deployd");

fn demo(tmp: &Path, args: &[&str]) -> Output {
    Command::new(EXE)
        .args(args)
        .arg("demo")
        .env("TMPDIR", tmp)
        // Whoever reads a pipe wants no colours, whatever the terminal can do.
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// The story, played once for all tests that only look at it.
static PLAYED: LazyLock<Played> = LazyLock::new(|| {
    play(STEPS, Path::new(EXE), Cancel::default(), &mut Vec::new(), Paint::Plain).expect("it goes on to its end")
});

fn parts() -> impl Iterator<Item = &'static Part> {
    STEPS.iter().flat_map(|step| step.parts)
}

#[test]
fn eight_steps_are_told_all_claims_hold_and_nothing_is_left() {
    let tmp = tempfile::tempdir().unwrap();
    let out = demo(tmp.path(), &[]);
    let told = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{told}\n{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(STEPS.len(), 8);
    for (number, step) in (1..).zip(STEPS) {
        assert!(told.lines().any(|line| line == format!("{number}. {}", step.title)), "{number}: {told}");
    }
    assert!(!told.contains('✗') && told.contains("claims hold."), "{told}");
    assert!(!told.contains('\x1b'), "no colours in a pipe: {told}");
    let wide: Vec<&str> = told.lines().filter(|line| line.chars().count() > WIDTH).collect();
    assert!(wide.is_empty(), "{wide:#?}");
    assert_eq!(String::from_utf8_lossy(&out.stderr), "", "the journal is for those who ask");
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
}

#[test]
fn the_journal_goes_to_stderr_for_those_who_ask() {
    let tmp = tempfile::tempdir().unwrap();
    let out = demo(tmp.path(), &["--log-level", "warn"]);
    let journal = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{journal}");
    for words in ["its swap is put off", "PULL_FAILED", "ROLLBACK_REFUSED"] {
        assert!(journal.contains(words), "{words}: {journal}");
    }
}

#[test]
fn a_claim_that_does_not_hold_is_told_and_the_status_is_1() {
    fn false_claim(_: &Seen) -> Vec<Claim> {
        vec![
            Claim { says: "two and two are four".to_owned(), differs: None },
            Claim { says: "no file was written".to_owned(), differs: Some("found bootstrap.jwt".to_owned()) },
        ]
    }
    static PARTS: [Part; 1] =
        [Part { words: "w", env_id: FIRST, act: Act::Alone(|set| set.bootstrap(FIRST)), claims: false_claim }];
    let mut out = Vec::new();
    let steps = [Step { title: "t", parts: &PARTS }];
    let played = play(&steps, Path::new(EXE), Cancel::default(), &mut out, Paint::Plain).unwrap();
    let told = String::from_utf8(out).unwrap();
    assert!(told.contains("✗ no file was written: DIFFERS: found bootstrap.jwt"), "{told}");
    assert!(told.contains("1 of 2 claims do not hold"), "{told}");
    assert_eq!((played.tally.held, played.tally.broken, status(played.tally)), (1, 1, Exit::Failed));
    assert_eq!(status(Default::default()), Exit::Failed, "nothing claimed is nothing shown");
}

#[test]
fn what_is_claimed_of_one_part_holds_of_no_other() {
    for (at, part) in parts().enumerate() {
        for (other, seen) in PLAYED.seen.iter().enumerate() {
            let broken = (part.claims)(seen).iter().filter(|claim| claim.differs.is_some()).count();
            assert_eq!(broken == 0, at == other, "claims of part {at}, seen in part {other}");
        }
    }
}

/// Ways in which a world could have gone that no part tells of.
const CORRUPTIONS: &[fn(&mut Seen)] = &[
    |seen| seen.tick = None,
    |seen| {
        if let Some(tick) = &mut seen.tick {
            tick.notes.clear();
        }
    },
    |seen| {
        if let Some(tick) = &mut seen.tick {
            tick.effects.clear();
        }
    },
    |seen| seen.docker.clear(),
    |seen| seen.docker.push(["compose", "up"].map(str::to_owned).to_vec()),
    |seen| seen.docker.push(vec!["ps".to_owned()]),
    |seen| {
        let lease = seen.tenancy.first().cloned().map(|it| {
            let path = "/v1/envs/e/leases".to_owned();
            monky_deployd::sandbox::tenancy::Logged { path, status: Some(201), ..it }
        });
        seen.tenancy.extend(lease);
    },
    |seen| {
        for logged in &mut seen.tenancy {
            logged.status = Some(500);
        }
    },
    |seen| {
        let login = monky_deployd::sandbox::openbao::Logged {
            method: "POST".to_owned(),
            path: "/v1/auth/jwt/login".to_owned(),
            accessor: None,
            status: Some(200),
        };
        seen.tenancy.push(monky_deployd::sandbox::tenancy::Logged {
            method: "GET".to_owned(),
            path: "/v1/other".to_owned(),
            body: Default::default(),
            status: Some(200),
            answer: Default::default(),
        });
        seen.bao.push(login);
    },
    |seen| seen.leaks.extend(["the journal"]),
    |seen| seen.desired = None,
    |seen| seen.after.applied = None,
    |seen| seen.after.token = None,
    |seen| seen.after.bootstrap_waits = true,
    |seen| seen.after.leases += 1,
    |seen| seen.after.quarantined.clear(),
    |seen| seen.after.registries.clear(),
    |seen| seen.after.tokens.extend(["another".to_owned()]),
    |seen| {
        seen.after.files.insert("new".to_owned(), OnDisk { written: (1, 1, 1), mode: 0o644 });
    },
    |seen| {
        for it in seen.after.containers.values_mut() {
            *it = Running { id: "x".into(), image: "y".into(), state: "exited".into(), has_secret: false };
        }
    },
];

#[test]
fn every_claim_can_be_broken() {
    for (part, seen) in parts().zip(&PLAYED.seen) {
        let claims = (part.claims)(seen);
        for (at, claim) in claims.iter().enumerate() {
            let breaks = |corrupt: &&fn(&mut Seen)| {
                let mut seen = seen.clone();
                corrupt(&mut seen);
                (part.claims)(&seen)[at].differs.is_some()
            };
            assert!(CORRUPTIONS.iter().any(|corrupt| breaks(&corrupt)), "nothing breaks: {}", claim.says);
        }
    }
}

#[test]
fn someone_who_stops_reading_ends_it_quietly_and_nothing_is_left() {
    let tmp = tempfile::tempdir().unwrap();
    let mut child = Command::new(EXE)
        .arg("demo")
        .env("TMPDIR", tmp.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(1), ""));
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
}
