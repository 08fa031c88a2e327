//! Whole ticks of the built binary with a `docker` that behaves as badly as a program can.
//!
//! Invariant: whatever the child does, the tick ends by its deadline with the code of that call, nobody of the child is
//! left, the agent's memory stays below [`PEAK_KB`], and the next tick with a sound `docker` applies the bundle.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::stand::{Secrets, Stand};
use monky_deployd::sandbox::docker::Behaviour;
use serde_json::{Value, json};

/// The most memory that the agent may ever have taken, in KiB: twice the largest output that it keeps.
const PEAK_KB: u64 = 64 << 10;

/// A way to behave badly.
struct Bad {
    what: &'static str,
    /// The call that it is about, by a word among its arguments.
    word: &'static str,
    /// What is run instead of it, in a shell; `real` runs the call as it should be.
    script: &'static str,
    exit: i32,
    code: &'static str,
    /// What the journal says about it.
    says: &'static str,
    /// It ends within so many seconds, on a machine that has other things to do.
    within_s: u64,
}

const fn bad(
    what: &'static str,
    word: &'static str,
    script: &'static str,
    code: &'static str,
    says: &'static str,
) -> Bad {
    Bad { what, word, script, exit: 1, code, says, within_s: if is_timeout(code) { 60 } else { 1000 } }
}

/// The deadline of this call is waited for. (A constant function knows no `ends_with`.)
const fn is_timeout(code: &str) -> bool {
    matches!(code.as_bytes(), [.., b'T', b'I', b'M', b'E', b'O', b'U', b'T'])
}

const fn waits(bad: Bad) -> Bad {
    Bad { exit: 75, ..bad }
}

const fn is_fine(bad: Bad) -> Bad {
    Bad { exit: 0, ..bad }
}

const GIB_OUT: &str = "head -c 1073741824 /dev/zero; peak; exit 1";
const GIB_ERR: &str = "head -c 1073741824 /dev/zero >&2; peak; exit 1";
const HANGS: &str = "echo $$ >>pids; exec sleep 1000";
/// More than is kept of any call, and soon written: these calls have seconds.
const MUCH: &str = "head -c 67108864 /dev/zero; peak; exit 0";
const LEAVES_ONE: &str = "real; sleep 1000 & echo $! >>pids; exit 0";

const ALL: &[Bad] = &[
    bad("hangs", "pull", "sleep 1000 & echo $! >>pids; wait", "PULL_TIMEOUT", "compose pull"),
    bad(
        "ignores TERM",
        "pull",
        "trap '' TERM; echo $$ >>pids; while :; do sleep 1; done",
        "PULL_TIMEOUT",
        "compose pull",
    ),
    is_fine(bad("leaves a grandchild on the pipe", "pull", LEAVES_ONE, "", "applied")),
    bad(
        "fails, and leaves a grandchild on the pipe",
        "pull",
        "echo oh >&2; sleep 1000 & echo $! >>pids; exit 7",
        "PULL_FAILED",
        "oh",
    ),
    bad("floods stdout", "pull", GIB_OUT, "PULL_FAILED", "compose pull"),
    bad("floods stderr", "pull", GIB_ERR, "PULL_FAILED", "compose pull"),
    bad("writes without a newline for ever", "pull", "tr '\\0' a </dev/zero >&2", "PULL_TIMEOUT", "compose pull"),
    bad("writes lines for ever", "pull", "yes", "PULL_TIMEOUT", "compose pull"),
    bad(
        "no UTF-8",
        "pull",
        "printf 'Error: caf\\351 \\377\\n' >&2; exit 1",
        "PULL_FAILED",
        "Error: caf\u{fffd} \u{fffd}",
    ),
    is_fine(bad(
        "exits 0 with an error text",
        "pull",
        "real; echo 'Error response from daemon: denied' >&2; exit 0",
        "",
        "applied",
    )),
    bad("exits 0 and did nothing", "pull", "echo 'Error: denied' >&2; exit 0", "UP_FAILED", "No such image"),
    bad("exits 125", "pull", "exit 125", "PULL_FAILED", "docker ended with status 125 and said nothing"),
    bad("exits 126", "pull", "echo no >&2; exit 126", "PULL_FAILED", "compose pull: no"),
    bad("exits 127", "pull", "exit 127", "PULL_FAILED", "status 127"),
    bad("exits 137", "pull", "exit 137", "PULL_FAILED", "status 137"),
    bad("is killed", "pull", "kill -9 $$", "PULL_FAILED", "docker was ended by signal 9"),
    bad("crashes", "pull", "ulimit -c 0; kill -SEGV $$", "PULL_FAILED", "docker was ended by signal 11"),
    bad("closes its streams early", "pull", "exec >&- 2>&-; sleep 1; exit 3", "PULL_FAILED", "status 3"),
    bad(
        "closes its streams and hangs",
        "pull",
        "exec >&- 2>&-; echo $$ >>pids; exec sleep 1000",
        "PULL_TIMEOUT",
        "compose pull",
    ),
    bad("hangs", "up", "sleep 1000 & echo $! >>pids; wait", "UP_TIMEOUT", "compose up"),
    bad("floods stderr", "up", GIB_ERR, "UP_FAILED", "compose up"),
    bad("exits 137", "up", "exit 137", "UP_FAILED", "status 137"),
    bad("floods stdout", "--no-interpolate", MUCH, "COMPOSE_INVALID", "larger than 32 MiB"),
    bad("says nothing", "--no-interpolate", "exit 0", "COMPOSE_INVALID", "config"),
    bad("says no JSON", "--no-interpolate", "echo '{\"services\": '", "COMPOSE_INVALID", "config"),
    bad("floods stderr", "-q", "head -c 67108864 /dev/zero >&2; peak; exit 1", "COMPOSE_INVALID", "config"),
    waits(bad("floods stdout", "inspect", MUCH, "DOCKER_UNAVAILABLE", "no list of containers")),
    waits(bad("says no JSON", "inspect", "echo '[{'", "DOCKER_UNAVAILABLE", "no list of containers")),
    waits(bad("is killed", "inspect", "kill -9 $$", "DOCKER_UNAVAILABLE", "signal 9")),
    waits(bad("floods stdout", "ps", "head -c 67108864 /dev/zero; peak; exit 1", "DOCKER_UNAVAILABLE", "docker")),
    waits(bad("hangs", "version", HANGS, "DOCKER_UNAVAILABLE", "15 s")),
    waits(bad("floods stdout", "version", MUCH, "DOCKER_UNAVAILABLE", "said no version")),
    waits(bad("hangs", "--no-interpolate", HANGS, "DOCKER_UNAVAILABLE", "no end after 60 s")),
    waits(bad("hangs", "-q", HANGS, "DOCKER_UNAVAILABLE", "no end after 60 s")),
    waits(bad("hangs", "ps", HANGS, "DOCKER_UNAVAILABLE", "no end after 30 s")),
    waits(bad("hangs", "inspect", HANGS, "DOCKER_UNAVAILABLE", "no end after 30 s")),
];

/// A box whose `docker` can be made to behave badly.
fn stand(dir: &Path, timeout_s: u32) -> Stand {
    let secrets = Secrets { db_password: "s3cret-db".into(), pull_password: "s3cret-pull".into() };
    let exe = Path::new(env!("CARGO_BIN_EXE_monky-deployd"));
    let stand = Stand::new(exe, "env-worst", secrets, &format!("pull_timeout_s: {timeout_s}\n"));
    let real = stand.docker.bin();
    let script = format!(
        "#!/bin/sh\ncd '{}'\nreal() {{ '{real}' \"$@\"; }}\npeak() {{ grep VmHWM /proc/$PPID/status >>peak; }}\n\
         if [ -e word ]; then case \" $* \" in *\" $(cat word) \"*) . ./bad;; esac; fi\nexec '{real}' \"$@\"\n",
        dir.display(),
        real = real.display(),
    );
    // Written by a child: see `executable` of the rig.
    let mut child = Command::new("/bin/sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(dir.join("docker"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let yaml = fs::read_to_string(stand.config_file()).unwrap();
    let yaml = yaml.replace(&real.display().to_string(), &dir.join("docker").display().to_string());
    fs::write(stand.config_file(), yaml.replace("healthy_timeout_s: 30", &format!("healthy_timeout_s: {timeout_s}")))
        .unwrap();
    stand.image("shop/web:1", Behaviour::Runs, &[]);
    stand.desire(1, "web:1", &[]);
    stand.bootstrap();
    stand
}

/// Runs a tick; gives exit status, stdout, stderr, and the most memory that was seen, in KiB.
fn tick(stand: &Stand) -> (i32, String, String, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_monky-deployd"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .arg("--config")
        .arg(stand.config_file())
        .arg("tick")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        // Of the few megabytes that a tick says nothing is lost meanwhile: it says a few lines.
        peak = peak.max(hwm(&fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default()));
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr), peak)
}

/// The largest `VmHWM` in a text, in KiB.
fn hwm(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix("VmHWM:"));
    lines.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).max().unwrap_or(0)
}

fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// One of them: a tick with it, and one after it. Gives the agent's peak in KiB.
fn behaves(bad: &Bad) -> u64 {
    let Bad { what, word, script, exit, code, says, within_s } = bad;
    let what = format!("`docker … {word}` {what}");
    let dir = tempfile::tempdir().unwrap();
    // Short where it is waited for, long where a gibibyte has to get through.
    let stand = stand(dir.path(), if is_timeout(code) { 4 } else { 900 });
    fs::write(dir.path().join("bad"), script.replace("real;", "real \"$@\";")).unwrap();
    fs::write(dir.path().join("word"), word).unwrap();
    let began = Instant::now();
    let (status, stdout, stderr, seen) = tick(&stand);
    let took = began.elapsed();
    assert_eq!(status, *exit, "{what}: {stdout}{stderr}");
    assert!(stdout.trim().ends_with(code), "{what}: {code} expected: {stdout}{stderr}");
    assert!(stderr.contains(says), "{what}: {says:?} expected: {stderr}");
    assert!(took < Duration::from_secs(*within_s), "{what}: {took:?}");
    let told = fs::read_to_string(dir.path().join("peak")).unwrap_or_default();
    assert!(!script.contains("peak") || hwm(&told) > 0, "{what}: the flood was not read to its end");
    let peak = seen.max(hwm(&told));
    assert!(peak < PEAK_KB, "{what}: {peak} KiB");
    let pids = fs::read_to_string(dir.path().join("pids")).unwrap_or_default();
    assert_eq!(script.contains("pids"), !pids.is_empty(), "{what}");
    let until = Instant::now() + Duration::from_secs(5);
    while let Some(pid) = pids.lines().find(|pid| runs(pid)) {
        assert!(Instant::now() < until, "{what}: {pid} runs on");
        thread::sleep(Duration::from_millis(20));
    }
    // Sound again, and a minute later.
    fs::remove_file(dir.path().join("word")).unwrap();
    let yaml = fs::read_to_string(stand.config_file()).unwrap();
    fs::write(stand.config_file(), yaml.replace("timeout_s: 4\n", "timeout_s: 900\n")).unwrap();
    let file = stand.config.state_dir.join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    if let Some(attempts) = state["attempts"].as_object_mut() {
        attempts.values_mut().for_each(|attempt| attempt["next_at"] = json!(null));
    }
    fs::write(&file, state.to_string()).unwrap();
    let (status, stdout, stderr, _) = tick(&stand);
    let expected = if *exit == 0 { "unchanged" } else { "applied" };
    assert!(status == 0 && stdout.starts_with(expected), "{what}: {stdout}{stderr}");
    peak
}

#[test]
fn whatever_docker_does_the_tick_ends_with_its_code_and_the_next_one_applies() {
    let mut peaks = Vec::new();
    for some in ALL.chunks(4) {
        thread::scope(|scope| {
            let all: Vec<_> = some.iter().map(|bad| scope.spawn(|| behaves(bad))).collect();
            peaks.extend(all.into_iter().map(|one| one.join().ok()));
        });
    }
    assert!(peaks.iter().all(Option::is_some), "what failed is told above");
    let peak = peaks.into_iter().flatten().max().unwrap();
    println!(
        "docker: {} ways to behave badly, each with its code by its deadline, no child left, applied by the next tick; \
         the agent's peak was {:.1} MiB (bound {} MiB) with 1 GiB floods",
        ALL.len(),
        peak as f64 / 1024.0,
        PEAK_KB >> 10,
    );
}
