//! Recordings: what is kept, that it replays, that a change shows, and that nothing else than a recording passes for one.
//!
//! Invariant: every recording here was made by the loop and the recorder that a tick uses; only then is it changed.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::fs;
use std::process::{Command, Output};

use common::driver::Scripted;
use common::script::*;
use monky_deployd::drivers::Driver as _;
use monky_deployd::drivers::record::{FORMAT, LARGEST, Line, Recorder};
use monky_deployd::drivers::replay::{Recording, ReplayError, Verdict, replay};
use monky_deployd::drivers::run_loop::{self, Ended};
use monky_deployd::effects::containers::{ContainerState, Health};
use monky_deployd::effects::state::TokenSource;
use monky_deployd::effects::*;
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Options, StageName};
use proptest::prelude::*;
use serde_json::Value;

/// A recorded tick.
struct Ticked {
    text: String,
    kept: bool,
    done: Option<Done>,
    state: state::State,
}

fn record_on(boot: Boot, driver: &Scripted, largest: usize) -> Ticked {
    let mut recorder = Recorder::new(largest);
    let mut state = boot.state.clone();
    let ended = run_loop::run(boot, driver, &mut recorder);
    let done = match &ended {
        Ended::Done(done) => Some(done),
        Ended::Interrupted => None,
    };
    let kept = recorder.is_worth_keeping(done);
    let text = recorder.finish(done, driver.now());
    for (_, line) in read(&text).lines {
        if let Line::Effect { effect: Effect { op: Op::SaveState(save), .. }, .. } = line {
            state = (*save.state).clone();
        }
    }
    Ticked { text, kept, done: done.cloned(), state }
}

fn record(boot: Boot, script: Script) -> Ticked {
    let driver = Scripted::new(boot.now, script);
    record_on(boot, &driver, LARGEST)
}

fn read(text: &str) -> Recording {
    Recording::read(text.as_bytes()).unwrap()
}

fn verdict(text: &str) -> Verdict {
    replay(&read(text))
}

fn bootstrapping() -> Boot {
    let mut boot = fresh();
    boot.local.bootstrap = true;
    boot
}

fn sick() -> Event {
    Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Unhealthy))]))
}

/// One of each kind of tick.
fn scenarios() -> Vec<(&'static str, Boot, Script)> {
    let script = Script::default;
    let with = |change: fn(&mut Boot)| {
        let mut boot = running_a();
        change(&mut boot);
        boot
    };
    let rollback = with(|boot| boot.settings.on_unhealthy = OnUnhealthy::Rollback);
    let pruning = with(|boot| {
        boot.options = Options { force: true, prune: true };
        boot.state.images.insert("sha256:old".to_owned());
    });
    let waiting = with(|boot| boot.local.outbox.push("r1".to_owned()));
    let dead = || Event::TokenLookedUp(Err(denied()));
    let sealed_read = Event::SecretRead(Err(SecretFault::Bao(sealed())));
    vec![
        ("first deploy", bootstrapping(), script()),
        ("second deploy", running_a(), script()),
        ("unchanged", running_a(), script().desired("a", 1)),
        ("a report waits", waiting, script().desired("a", 1)),
        ("dead token", running_a(), script().next(dead())),
        ("rate limited", bootstrapping(), script().next(Event::LeaseAnswered(Err(LeaseFault::Call(status(429, "")))))),
        ("sealed", running_a(), script().times(2, &sealed_read)),
        ("pull fails", running_a(), script().next(Event::Pulled(Err(refused_run("manifest unknown"))))),
        ("unhealthy", running_a(), script().times(9, &sick())),
        ("rolled back", rollback, script().next(Event::Inspected(Ok(vec![]))).next(sick())),
        ("older bundle", running_a(), script().desired("z", 0)),
        ("forced, pruned", pruning, script().desired("a", 1)),
        ("tenancy is away", running_a(), script().next(Event::CheckedIn(Err(unreachable())))),
        ("disk full", running_a(), script().next(Event::BundleStaged(Err(disk_full())))),
    ]
}

#[test]
fn a_recording_of_any_tick_replays_identically() {
    let mut words = std::collections::BTreeSet::new();
    for (name, boot, script) in scenarios() {
        let ticked = record(boot.clone(), script.clone());
        let recording = read(&ticked.text);
        assert_eq!((&recording.boot, recording.done()), (&boot, ticked.done.as_ref()), "{name}");
        let verdict = replay(&recording);
        assert_eq!((verdict.cut, &verdict.divergence), (false, &None), "{name}");
        // What was compared is the whole tick.
        assert_eq!(verdict.same, run(boot, script).ops.len(), "{name}");
        assert_eq!(verdict.same, verdict.events, "{name}");
        words.insert(ticked.done.unwrap().word);
    }
    assert_eq!(words.into_iter().collect::<Vec<_>>(), ["applied", "deferred", "failed", "rolled_back", "unchanged"]);
}

#[test]
fn a_line_reads_back_as_what_it_was() {
    for (name, boot, script) in scenarios() {
        let text = record(boot, script).text;
        let again: Vec<String> = text
            .lines()
            .map(|line| serde_json::to_string(&serde_json::from_str::<Line>(line).unwrap()).unwrap())
            .collect();
        assert_eq!(again, text.lines().collect::<Vec<_>>(), "{name}");
    }
}

/// The lines of the recording of a deploy that fails in the pull.
fn lines() -> Vec<Value> {
    let pull = Event::Pulled(Err(refused_run("manifest unknown")));
    let text = record(running_a(), Script::default().next(pull)).text;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn joined(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The place of the line that has this effect or event.
fn place(lines: &[Value], name: &str) -> usize {
    lines.iter().position(|line| line["effect"]["op"]["op"] == name || line["input"]["event"]["event"] == name).unwrap()
}

/// Where a changed recording differs, as line, stage, recorded and now; and in words.
fn diverges(lines: &[Value]) -> (usize, StageName, Option<Value>, Option<Value>, String) {
    let verdict = verdict(&joined(lines));
    let text = verdict.text();
    let divergence = verdict.divergence.unwrap();
    (divergence.line, divergence.stage, divergence.recorded, divergence.now, text)
}

#[test]
fn another_effect_shows_where_it_is_and_what_differs_in_it() {
    let mut lines = lines();
    let at = place(&lines, "pull");
    lines[at]["effect"]["op"]["with"]["timeout_s"] = 601.into();
    let (line, stage, recorded, now, text) = diverges(&lines);
    assert_eq!((line, stage), (at + 1, StageName::Pull));
    assert_eq!(recorded.unwrap()["op"]["with"]["timeout_s"], 601);
    assert_eq!(now.unwrap()["op"]["with"]["timeout_s"], 600);
    insta::assert_snapshot!(text, @r#"
    differs at line 22, in stage pull, after 10 identical effects
      after     event to effect 10: {"event":"compose_checked","data":{"Ok":null}}
      .op.with.timeout_s
        recorded  601
        now       600
    "#);
}

#[test]
fn another_answer_shows_where_the_machine_then_does_something_else() {
    let mut lines = lines();
    let at = place(&lines, "token_looked_up");
    lines[at]["input"]["event"] = serde_json::to_value(Event::TokenLookedUp(Err(denied()))).unwrap();
    let (line, stage, _, _, text) = diverges(&lines);
    assert_eq!((line, stage), (at + 2, StageName::Token));
    assert!(text.contains("token_looked_up") && text.contains("read_secret") && text.contains("save_state"), "{text}");
}

#[test]
fn another_outcome_shows_at_its_line() {
    let mut lines = lines();
    let at = lines.len() - 1;
    lines[at]["done"]["word"] = "applied".into();
    let (line, stage, _, _, text) = diverges(&lines);
    assert_eq!((line, stage), (at + 1, StageName::Done));
    insta::assert_snapshot!(text, @r#"
    differs at line 34, in stage done, after 16 identical effects
      after     event to effect 16: {"event":"report_dropped","data":{"Ok":null}}
      .word
        recorded  "applied"
        now       "failed"
    "#);
}

#[test]
fn an_effect_that_was_not_there_before_shows() {
    let mut lines = lines();
    let at = place(&lines, "pull");
    let event = place(&lines, "pulled");
    lines.remove(event);
    lines.remove(at);
    let (line, stage, recorded, now, _) = diverges(&lines);
    assert_eq!((line, stage), (at + 1, StageName::Pull));
    assert_eq!(recorded.unwrap()["op"]["op"], "save_state");
    assert_eq!(now.unwrap()["op"]["op"], "pull");

    // One of several that are asked for together: it shows before their answers are read.
    let mut lines = lines_of_the_secrets();
    let at = place(&lines, "read_secret");
    lines.remove(at + 1);
    let (line, stage, recorded, now, text) = diverges(&lines);
    assert_eq!((line, stage, recorded), (at + 2, StageName::Secrets, None));
    assert_eq!(now.unwrap()["op"]["op"], "read_secret");
    assert!(text.contains("recorded  nothing"), "{text}");
}

fn lines_of_the_secrets() -> Vec<Value> {
    let lines = lines();
    let at = place(&lines, "read_secret");
    assert_eq!(lines[at + 1]["effect"]["op"]["op"], "read_secret", "two are read together");
    lines
}

#[test]
fn an_effect_that_is_not_there_any_more_shows() {
    let mut lines = lines();
    let at = place(&lines, "pull");
    let extra = lines[at].clone();
    lines.insert(at, extra);
    let (line, stage, recorded, now, text) = diverges(&lines);
    assert_eq!((line, stage, now), (at + 2, StageName::Pull, None));
    assert_eq!(recorded.unwrap()["op"]["op"], "pull");
    assert!(text.contains("now       nothing"), "{text}");
}

#[test]
fn an_outcome_that_comes_too_early_shows() {
    let mut lines = lines();
    let at = place(&lines, "pull");
    let outcome = lines.last().unwrap().clone();
    lines.truncate(at);
    lines.push(outcome);
    let (line, stage, _, now, _) = diverges(&lines);
    assert_eq!((line, stage), (at + 1, StageName::Pull));
    assert_eq!(now.unwrap()["op"]["op"], "pull");
}

#[test]
fn a_newer_format_is_refused_by_its_number_and_the_first_stays_readable() {
    let mut lines = lines();
    lines[0]["format"] = (FORMAT + 1).into();
    // Nothing else is known of a newer format.
    lines[0]["boot"] = "something else".into();
    let error = Recording::read(joined(&lines).as_bytes()).unwrap_err();
    assert!(matches!(error, ReplayError::Newer { found } if found == u64::from(FORMAT) + 1));
    assert!(error.to_string().contains(&format!("format {}", FORMAT + 1)), "{error}");

    // tests/incidents.rs replays whole recordings of format 1; this is only the door.
    lines[0]["format"] = 1.into();
    lines[0]["boot"] = serde_json::to_value(running_a()).unwrap();
    assert_eq!(verdict(&joined(&lines)).divergence, None);
}

#[test]
fn the_version_of_the_agent_that_replays_is_of_no_matter() {
    let mut lines = lines();
    let other = joined(&lines).replace("\"0.2.0\"", "\"99.0.0\"");
    assert_ne!(other, joined(&lines));
    assert_eq!(verdict(&other).divergence, None);
    lines[0]["agent"] = "of another day".into();
    assert_eq!(verdict(&joined(&lines)).divergence, None);
}

#[test]
fn what_is_no_recording_is_told_by_its_line() {
    let good = joined(&lines());
    let mut lines: Vec<&str> = good.lines().collect();
    let says = |text: &[u8]| Recording::read(text).unwrap_err().to_string();
    assert_eq!(says(b""), "line 1: it is empty");
    assert!(says(b"{}\n").starts_with("line 1: it has no format"));
    assert!(says(b"hello\n").starts_with("line 1: "));
    assert!(says(b"\xff\xfe\n").starts_with("line 1: it is not UTF-8"));
    assert!(says(br#"{"line":"header","format":0}"#).starts_with("line 1: there is no format 0"));
    assert!(says(br#"{"line":"header","format":1}"#).starts_with("line 1: "));
    lines.insert(3, "{\"line\":\"whatever\"}");
    assert!(says(lines.join("\n").as_bytes()).starts_with("line 4: "));
    lines[3] = lines[0];
    assert_eq!(says(lines.join("\n").as_bytes()), "line 4: a second header");
    let mut bytes = good.clone().into_bytes();
    let second = good.find('\n').unwrap() + 2;
    bytes[second] = 0xff;
    assert_eq!(says(&bytes), "line 2: it is not UTF-8");
    // Cut off in the middle of a line.
    let half = good.len() / 2;
    assert!(says(&good.as_bytes()[..half]).starts_with("line "));
    // Cut off between lines: all that is there is compared, and it is told.
    let whole: String = good.lines().take(9).map(|line| format!("{line}\n")).collect();
    let verdict = verdict(&whole);
    assert_eq!((verdict.cut, verdict.divergence), (true, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_replay_panic(
        which in 0..14_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let (_, boot, script) = scenarios().swap_remove(which);
        let mut bytes = record(boot, script).text.into_bytes();
        for (at, byte, how) in changes {
            if bytes.is_empty() { break; }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.truncate(at),
                2 => bytes.insert(at, byte),
                // Digits for digits: still JSON, and times and numbers out of all reason.
                _ => for byte in bytes.iter_mut().skip(at).take(20).filter(|byte| byte.is_ascii_digit()) { *byte = b'9'; },
            }
        }
        match Recording::read(bytes.as_slice()) {
            Ok(recording) => {
                let verdict = replay(&recording);
                prop_assert_eq!(verdict.text().starts_with("identical"), verdict.divergence.is_none());
            }
            Err(error) => prop_assert!(error.to_string().starts_with("line ") || error.to_string().contains("format")),
        }
    }

    #[test]
    fn any_line_reads_back_as_what_it_was(n: u32, ms: i64, why in ".{0,40}", which in 0..14_usize, at: prop::sample::Index) {
        let (_, boot, script) = scenarios().swap_remove(which);
        let text = record(boot, script).text;
        let lines: Vec<&str> = text.lines().collect();
        let mut line: Line = serde_json::from_str(lines[at.index(lines.len())]).unwrap();
        match &mut line {
            Line::Header { agent, .. } => *agent = why.clone(),
            Line::Effect { n: a, ms: b, .. } | Line::Event { n: a, ms: b, .. } => (*a, *b) = (n, ms),
            Line::Outcome { n: a, ms: b, done } => (*a, *b, done.detail) = (n, ms, why.clone()),
            Line::Cut { n: a, why: b } => (*a, *b) = (n, why.clone()),
        }
        for line in [line, Line::Cut { n, why }] {
            let json = serde_json::to_string(&line).unwrap();
            prop_assert!(!json.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<Line>(&json).unwrap(), line);
        }
    }
}

#[test]
fn a_recording_that_grows_too_large_says_so_its_beginning_replays_and_its_outcome_is_known() {
    // Something that starts for an hour.
    let mut boot = running_a();
    boot.settings.healthy_timeout_s = 36_000;
    let starting = Event::Inspected(Ok(vec![container("web", ContainerState::Running, Some(Health::Starting))]));
    let driver = Scripted::new(boot.now, Script::default().times(30_000, &starting));
    let ticked = record_on(boot, &driver, LARGEST);
    assert!(ticked.text.len() <= LARGEST && ticked.text.len() > LARGEST / 2, "{}", ticked.text.len());
    assert!(ticked.kept);
    let recording = read(&ticked.text);
    assert!(recording.cut().unwrap().contains("larger than 1048576 bytes"), "{:?}", recording.cut());
    assert_eq!(recording.done().unwrap().word, "failed");
    let verdict = replay(&recording);
    assert_eq!((verdict.cut, &verdict.divergence), (true, &None));
    assert!(verdict.same > 1000 && verdict.text().contains("not complete"), "{}", verdict.text());
}

#[test]
fn no_recording_is_larger_than_it_may_be() {
    let boot = running_a();
    let whole = record_on(boot.clone(), &Scripted::new(boot.now, Script::default()), usize::MAX).text.len();
    for largest in (9_000..whole + 10_000).step_by(911) {
        let text = record_on_unread(boot.clone(), largest);
        assert!(text.len() <= largest, "{} of {largest}", text.len());
        match Recording::read(text.as_bytes()) {
            Ok(recording) => assert_eq!(replay(&recording).divergence, None),
            // Not even the header fitted.
            Err(error) => assert!(largest < 12_000, "{error}"),
        }
    }
}

fn record_on_unread(boot: Boot, largest: usize) -> String {
    let driver = Scripted::new(boot.now, Script::default());
    let mut recorder = Recorder::new(largest);
    let Ended::Done(done) = run_loop::run(boot, &driver, &mut recorder) else { panic!("interrupted") };
    recorder.finish(Some(&done), driver.now())
}

#[test]
fn an_interrupted_tick_leaves_a_recording_that_says_so() {
    let driver = Scripted::new(NOW, Script::default());
    driver.ends_after.set(9);
    let ticked = record_on(running_a(), &driver, LARGEST);
    assert!(ticked.done.is_none() && ticked.kept);
    let recording = read(&ticked.text);
    assert_eq!(recording.cut(), Some("the process was asked to end"));
    let verdict = replay(&recording);
    assert_eq!((verdict.cut, verdict.divergence), (true, None));
    // One that had only looked is not kept.
    let driver = Scripted::new(NOW, Script::default());
    driver.ends_after.set(1);
    assert!(!record_on(running_a(), &driver, LARGEST).kept);
}

#[test]
fn a_tick_that_only_looked_told_or_renewed_is_not_kept() {
    let unchanged = || Script::default().desired("a", 1);
    assert!(!record(running_a(), unchanged()).kept);
    let mut renewing = running_a();
    renewing.state.token.as_mut().unwrap().ttl_s = Some(700);
    let ticked = record(renewing, unchanged().next(Event::TokenLookedUp(Ok(token(650)))));
    assert!(ticked.text.contains("renew_token") && !ticked.kept);
    let mut telling = running_a();
    telling.local.outbox.push("r1".to_owned());
    let away = unchanged().next(Event::ReportSent(Err(status(503, "busy"))));
    assert!(!record(telling.clone(), away).kept, "it is sent again every minute");
    assert!(!record(telling, unchanged()).kept, "what was to be told has a recording of its own");
    let mut quarantined = running_a();
    let tried = state::Attempts { count: 1, next_at: None, quarantined: true };
    quarantined.state.attempts.insert(sha("b"), tried);
    assert!(!record(quarantined, Script::default()).kept);
    assert!(record(running_a(), Script::default()).kept);
}

/// Ticks a box again and again in the same world, a minute apart; how many recordings are kept of it.
fn kept_of(ticks: usize, mut boot: Boot, script: &Script, code: &str) -> usize {
    let mut kept = 0;
    for _ in 0..ticks {
        let ticked = record(boot.clone(), script.clone());
        assert_eq!(ticked.done.unwrap().code.unwrap().as_str(), code);
        kept += usize::from(ticked.kept);
        boot.state = ticked.state;
        boot.now = boot.now.plus_s(60);
    }
    kept
}

#[test]
fn a_trouble_that_goes_on_leaves_one_recording() {
    let script = Script::default;
    let away = script().next(Event::CheckedIn(Err(unreachable())));
    assert_eq!(kept_of(9, running_a(), &away, "TENANCY_UNREACHABLE"), 1);
    // With all the work before it that is done anew each time: staging, looking the token up, reading.
    let sealed_read = Event::SecretRead(Err(SecretFault::Bao(sealed())));
    assert_eq!(kept_of(9, running_a(), &script().times(2, &sealed_read), "BAO_UNAVAILABLE"), 1);
    let no_docker = RunFault::Unavailable { detail: said("no daemon") };
    assert_eq!(kept_of(9, running_a(), &script().next(Event::Pulled(Err(no_docker))), "DOCKER_UNAVAILABLE"), 1);
    // Tenancy refuses a lease; for a while it is not asked again, and then it is.
    let full = Event::LeaseAnswered(Err(LeaseFault::Call(status(429, "no more"))));
    let mut tokenless = running_a();
    tokenless.local.token = None;
    tokenless.state.token = None;
    assert_eq!(kept_of(9, tokenless.clone(), &script().next(full), "LEASE_RATE_LIMITED"), 1);
    // But a lease that was granted is worth knowing of, whatever the trouble.
    let sealed_login = script().next(Event::LoggedIn(Err(sealed())));
    assert_eq!(kept_of(1, tokenless.clone(), &sealed_login, "BAO_UNAVAILABLE"), 1);
    let mut troubled = tokenless;
    troubled.state.trouble = record(troubled.clone(), sealed_login.clone()).state.trouble;
    assert!(troubled.state.trouble.is_some());
    assert_eq!(kept_of(1, troubled, &sealed_login, "BAO_UNAVAILABLE"), 1);
    assert_eq!(running_a().local.token, Some(TokenSource::Lease));
}

#[test]
fn replay_takes_many_files_and_its_exit_status_is_that_of_the_worst() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut changed = lines();
    let at = place(&changed, "pull");
    changed[at]["effect"]["op"]["with"]["timeout_s"] = 601.into();
    let good = file("good", &joined(&lines()));
    let (other, garbage) = (file("other", &joined(&changed)), file("garbage", "hello"));
    let absent = dir.path().join("absent").to_str().unwrap().to_owned();
    let run = |args: &[&str]| -> Output {
        // Neither a configuration nor anything of the environment is needed.
        Command::new(env!("CARGO_BIN_EXE_monky-deployd")).env_clear().arg("replay").args(args).output().unwrap()
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    let fine = run(&[&good, &good]);
    assert_eq!(fine.status.code(), Some(0));
    assert_eq!(said(&fine.stdout).matches("identical: 16 effects").count(), 2, "{fine:?}");
    let worst = run(&[&good, &garbage, &absent, &other]);
    assert_eq!(worst.status.code(), Some(1));
    let (out, err) = (said(&worst.stdout), said(&worst.stderr));
    assert!(out.contains("good: identical") && out.contains(&format!("other: differs at line {}", at + 1)), "{out}");
    assert!(err.contains("garbage: line 1: ") && err.contains("absent: it cannot be read"), "{err}");
    for alone in [&garbage, &absent, &other] {
        assert_eq!(run(&[alone]).status.code(), Some(1), "{alone}");
    }
    let json = run(&["--format", "json", &other]);
    let answer: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(answer["verdict"]["divergence"]["line"], at + 1);
    assert_eq!(answer["verdict"]["divergence"]["stage"], "pull");
}
