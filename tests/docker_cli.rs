//! How children are run, against small scripts that behave badly, and the verbs against the stand-in for Docker.

#[cfg_attr(not(feature = "sandbox"), expect(dead_code, reason = "the stories are told by the stand-in"))]
mod docker_shared;

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use monky_deployd::drivers::docker::cli::{Call, Docker, Environment, Keep, RunError};
use monky_deployd::effects::{Pull, ReadLogs, RunFault, Sha, Up};

use docker_shared::{Hide, NO_SECRET};

/// A script in the place of `docker`.
struct Script {
    dir: tempfile::TempDir,
    cancel: Arc<AtomicBool>,
}

impl Script {
    fn new(text: &str) -> Script {
        let dir = tempfile::tempdir().unwrap();
        // Written by a child: a descriptor that is open for writing here would be in whatever child another test starts at
        // that moment, and a file that someone may write cannot be executed.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .arg(dir.path().join("docker"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(format!("#!/bin/sh\ncd '{}'\n{text}\n", dir.path().display()).as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
        fs::create_dir(dir.path().join("state")).unwrap();
        docker_shared::next(&dir.path().join("state"), &Sha::of(b"x"));
        Script { dir, cancel: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn docker(&self) -> Docker {
        let environment =
            Environment::from_own(&self.path("state"), &|name| (name == "PATH").then(|| "/usr/bin:/bin".into()));
        Docker::new(&self.path("docker"), &self.path("state"), "shop", environment, Arc::clone(&self.cancel))
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn pids(&self) -> Vec<u32> {
        self.lines("pids").iter().map(|line| line.parse().unwrap()).collect()
    }
}

fn call(deadline_ms: u64) -> Call {
    Call::new(["x"], Duration::from_millis(deadline_ms))
}

/// It does not run any more. Its parent may not have asked for its end yet.
fn is_dead(pid: u32) -> bool {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        if matches!(state, None | Some('Z' | 'X')) {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn pull(docker: &Docker, hide: &Hide) -> Result<(), RunFault> {
    docker.pull(&Pull { sha: Sha::of(b"x"), timeout_s: 20 }, hide).map(|_| ())
}

fn up(docker: &Docker) -> Result<(), RunFault> {
    docker.up(&Up { sha: Sha::of(b"x"), timeout_s: 20 }, &NO_SECRET).map(|_| ())
}

#[test]
fn a_child_that_hangs_is_ended_with_its_children() {
    let script = Script::new("echo $$ >pids; echo why >&2; sleep 1000 & echo $! >>pids; wait");
    let started = Instant::now();
    let error = script.docker().run(&call(500)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(4), "TERM was enough: {:?}", started.elapsed());
    let RunError::TimedOut { after, said } = error else { panic!("{error:?}") };
    assert_eq!(after, Duration::from_millis(500));
    assert_eq!(*said.text(), "why\n");
    let pids = script.pids();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    assert!(!Path::new(&format!("/proc/{}", pids[0])).exists(), "no zombie is left");
}

#[test]
fn a_child_that_ignores_term_is_killed_with_its_children() {
    let script =
        Script::new("trap '' TERM; echo $$ >pids; (trap '' TERM; while :; do sleep 1; done) & echo $! >>pids; wait");
    let started = Instant::now();
    let error = script.docker().run(&call(500)).unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error:?}");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(9), "{took:?}");
    let pids = script.pids();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn a_grandchild_that_holds_the_pipe_delays_the_end_by_two_seconds_and_is_ended() {
    let script = Script::new("echo said; sleep 1000 & echo $! >pids; exit 7");
    let started = Instant::now();
    let output = script.docker().run(&call(60_000)).unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(4), "{took:?}");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(*output.stdout.text(), "said\n");
    assert!(is_dead(script.pids()[0]));
}

#[test]
fn a_grandchild_that_left_the_group_with_the_pipe_is_left_behind() {
    let script = Script::new("setsid sleep 6 & exit 0");
    let started = Instant::now();
    assert!(script.docker().run(&call(60_000)).unwrap().status.success());
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_flood_is_read_to_its_end_and_kept_within_the_caps() {
    let script = Script::new(
        "head -c 67108864 /dev/zero | tr '\\0' a; head -c 67108864 /dev/zero | tr '\\0' b >&2; printf '\\nend\\n' >&2; exit 3",
    );
    let output = script.docker().run(&call(120_000)).unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.cut && output.stderr.cut);
    assert_eq!(output.stdout.bytes.len(), 1 << 20);
    assert_eq!(output.stderr.bytes.len(), 64 << 10);
    assert!(output.stderr.bytes.ends_with(b"bbb\nend\n"), "of stderr the end is kept");
    assert_eq!(*output.stderr.text(), "end\n", "half a line is not shown");
}

#[test]
fn a_flood_that_never_ends_is_ended_at_the_deadline() {
    let script = Script::new("yes >&2");
    let started = Instant::now();
    let error = script.docker().run(&call(500)).unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[test]
fn what_fits_the_caps_exactly_is_not_cut() {
    let script = Script::new("printf abcd; printf efgh >&2");
    let call = Call { stdout: Keep::First(4), stderr: Some(Keep::Last(4)), ..call(20_000) };
    let output = script.docker().run(&call).unwrap();
    assert!(!output.stdout.cut && !output.stderr.cut);
    assert_eq!((&*output.stdout.bytes, &*output.stderr.bytes), (&b"abcd"[..], &b"efgh"[..]));
}

#[test]
fn invalid_utf8_is_shown_as_far_as_it_can_be() {
    let script = Script::new("printf 'Error: caf\\351 \\377\\n' >&2; exit 1");
    let RunFault::Failed { words, .. } = pull(&script.docker(), &NO_SECRET).unwrap_err() else { panic!() };
    assert_eq!(words.as_str(), "Error: caf\u{fffd} \u{fffd}");
}

#[test]
fn every_status_but_0_is_a_failure_with_its_words() {
    for status in [1, 2, 18, 125, 126, 127, 128, 143, 255] {
        let script = Script::new(&format!("echo 'Error response from daemon: denied' >&2; exit {status}"));
        let fault = pull(&script.docker(), &NO_SECRET).unwrap_err();
        let RunFault::Failed { status: seen, words, disk_full } = fault else { panic!("{fault:?}") };
        assert_eq!((seen, words.as_str(), disk_full), (Some(status), "Error response from daemon: denied", false));
    }
    let silent = pull(&Script::new("exit 9").docker(), &NO_SECRET).unwrap_err();
    let RunFault::Failed { words, .. } = silent else { panic!("{silent:?}") };
    assert_eq!(words.as_str(), "docker ended with status 9 and said nothing");
}

#[test]
fn an_end_by_signal_is_told_apart_from_an_exit_status() {
    let fault = pull(&Script::new("echo oh >&2; kill -9 $$").docker(), &NO_SECRET).unwrap_err();
    let RunFault::Failed { status, words, .. } = fault else { panic!("{fault:?}") };
    assert_eq!((status, words.as_str()), (None, "docker was ended by signal 9, after these words: oh"));
}

#[test]
fn a_program_that_is_missing_or_not_executable_makes_docker_unavailable() {
    let script = Script::new("exit 0");
    fs::write(script.path("plain"), "no program").unwrap();
    let environment = || Environment::from_own(&script.path("state"), &|_| None);
    for (bin, expected) in [
        (script.path("missing"), "No such file or directory"),
        (PathBuf::from("monky-deployd-there-is-no-such-program"), "No such file or directory"),
        (script.path("plain"), "Permission denied"),
        (script.path("docker/below-a-file"), "Not a directory"),
    ] {
        let docker = Docker::new(&bin, &script.path("state"), "shop", environment(), Arc::default());
        let fault = docker.probe(&NO_SECRET).unwrap_err();
        let RunFault::Unavailable { detail } = fault else { panic!("{fault:?}") };
        assert!(detail.as_str().contains(expected), "{detail}");
        assert!(detail.as_str().contains(&bin.display().to_string()), "{detail}");
    }
}

#[test]
fn the_environment_is_exactly_the_allow_list() {
    let script = Script::new("tr '\\0' '\\n' <\"/proc/$$/environ\"");
    let own = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/someone"),
        ("DOCKER_HOST", "unix:///run/user/1000/docker.sock"),
        ("XDG_RUNTIME_DIR", "/run/user/1000"),
        ("DOCKER_CONFIG", "/home/someone/.docker"),
        ("DOCKER_AUTH_CONFIG", "{}"),
        ("DOCKER_CONTEXT", "other"),
        ("COMPOSE_FILE", "evil.yaml"),
        ("COMPOSE_PROJECT_NAME", "evil"),
        ("LD_PRELOAD", "evil.so"),
        ("DB_PASSWORD", "theirs"),
        ("LANG", "de_DE"),
        ("DOCKER_API_VERSION", ""),
    ];
    let get = |name: &str| own.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    let environment = Environment::from_own(&script.path("state"), &get);
    let docker = Docker::new(&script.path("docker"), &script.path("state"), "shop", environment, Arc::default());
    let output = docker.run(&call(20_000)).unwrap();
    let text = output.stdout.text();
    let mut seen: Vec<&str> = text.lines().collect();
    seen.sort_unstable();
    let config = format!("DOCKER_CONFIG={}", script.path("state/docker").display());
    assert_eq!(
        seen,
        [
            "COMPOSE_INTERACTIVE_NO_CLI=1",
            &config,
            "DOCKER_HOST=unix:///run/user/1000/docker.sock",
            "LANG=C.UTF-8",
            "PATH=/usr/bin:/bin",
            "XDG_RUNTIME_DIR=/run/user/1000",
        ]
    );
}

#[test]
fn the_host_of_the_context_in_use_is_handed_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(".docker");
    let meta = folder.join("contexts/meta").join(Sha::of(b"rootless").as_str());
    fs::create_dir_all(&meta).unwrap();
    fs::write(meta.join("meta.json"), r#"{"Name":"rootless","Endpoints":{"docker":{"Host":"unix:///x.sock"}}}"#)
        .unwrap();
    let home = |name: &str| (name == "HOME").then(|| dir.path().as_os_str().to_owned());
    let host = |get: &dyn Fn(&str) -> Option<OsString>| {
        Environment::from_own(dir.path(), get).get("DOCKER_HOST").map(|host| host.to_string_lossy().into_owned())
    };
    assert_eq!(host(&home), None, "no configuration: the client's own default");
    fs::write(folder.join("config.json"), r#"{"currentContext":"rootless"}"#).unwrap();
    assert_eq!(host(&home).as_deref(), Some("unix:///x.sock"));
    let named = |name: &str| if name == "DOCKER_HOST" { Some("tcp://a:1".into()) } else { home(name) };
    assert_eq!(host(&named).as_deref(), Some("tcp://a:1"), "the variable wins");
    let other = |name: &str| if name == "DOCKER_CONTEXT" { Some("default".into()) } else { home(name) };
    assert_eq!(host(&other), None);
}

#[test]
fn stdin_is_null_the_group_is_its_own_and_the_folder_is_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let docker = docker_shared::docker(Path::new("/bin/sh"), dir.path(), "shop", &|_| None);
    let ask = "readlink /proc/$$/fd/0; [ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] && echo own; pwd";
    let output = docker.run(&Call::new(["-c", ask], Duration::from_secs(20))).unwrap();
    assert_eq!(*output.stdout.text(), "/dev/null\nown\n/\n");
}

#[test]
fn an_order_to_stop_ends_the_child_and_no_other_is_started() {
    let script = Script::new("echo $$ >pids.new; mv pids.new pids; sleep 1000");
    let cancel = Arc::clone(&script.cancel);
    let pids = script.path("pids");
    let order = thread::spawn(move || {
        while !pids.exists() {
            thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
    });
    let started = Instant::now();
    let docker = script.docker();
    let error = docker.run(&call(60_000)).unwrap_err();
    order.join().unwrap();
    assert!(matches!(error, RunError::Cancelled { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(is_dead(script.pids()[0]));
    fs::remove_file(script.path("pids")).unwrap();
    assert!(matches!(docker.run(&call(60_000)), Err(RunError::Cancelled { .. })));
    assert!(!script.path("pids").exists());
}

#[test]
fn words_are_scrubbed_and_cleaned() {
    let script = Script::new(
        r#"printf '\033[31mtime="x" level=warning msg="deprecated"\033[0m\nError response from daemon: bad hunter2\rError response from daemon: bad hunter2\nmore\n' >&2; exit 1"#,
    );
    let RunFault::Failed { words, .. } = pull(&script.docker(), &Hide("hunter2")).unwrap_err() else { panic!() };
    assert_eq!(words.as_str(), "Error response from daemon: bad *** | more");
}

#[test]
fn a_daemon_that_does_not_answer_makes_docker_unavailable() {
    for text in [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "unable to get image 'web': Cannot connect to the Docker daemon at tcp://127.0.0.1:1. Is the docker daemon running?",
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: connect: permission denied",
        "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
        "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct and if the daemon is running",
        "error during connect: Get \"http://x\": EOF",
        "Get \"http://%2Fx\": dial unix /x: connect: no such file or directory",
    ] {
        let script = Script::new(&format!("cat >&2 <<'END'\n{text}\nEND\nexit 1"));
        let fault = pull(&script.docker(), &NO_SECRET).unwrap_err();
        let RunFault::Unavailable { detail } = fault else { panic!("{fault:?}") };
        assert_eq!(detail.as_str(), text);
    }
}

#[test]
fn a_full_disk_is_recognised() {
    let script = Script::new("echo 'failed to register layer: write /x: no space left on device' >&2; exit 18");
    let fault = pull(&script.docker(), &NO_SECRET).unwrap_err();
    assert!(matches!(fault, RunFault::Failed { disk_full: true, status: Some(18), .. }), "{fault:?}");
}

#[test]
fn a_missing_compose_plugin_is_named_whatever_the_client_calls_it() {
    for text in [
        "docker: 'compose' is not a docker command.",
        "docker: unknown command: docker compose",
        "unknown flag: --short",
        "unknown shorthand flag: 'p' in -p",
    ] {
        let script = Script::new(&format!(
            "[ \"$1\" = version ] && echo 28.2.2 && exit; cat >&2 <<'END'\n{text}\nEND\nexit 125"
        ));
        let fault = script.docker().probe(&NO_SECRET).unwrap_err();
        let RunFault::Failed { words, .. } = fault else { panic!("{fault:?}") };
        assert!(
            words.as_str().starts_with("this Docker has no Compose plugin: install Docker Compose 2.21"),
            "{words}"
        );
    }
}

#[test]
fn versions_are_asked_for_at_the_same_time() {
    // Each waits for the other.
    let script = Script::new(
        "touch \"$1\"; for i in $(seq 500); do [ -e version ] && [ -e compose ] && break; sleep 0.01; done
         [ -e version ] && [ -e compose ] || exit 1; [ \"$1\" = compose ] && echo v2.40.3 || echo 28.2.2",
    );
    let versions = script.docker().probe(&NO_SECRET).unwrap();
    assert_eq!((versions.engine.as_str(), versions.compose.as_str()), ("28.2.2", "2.40.3"));
}

#[test]
fn every_call_is_made_with_exactly_these_arguments() {
    let id = "c".repeat(64);
    let script = Script::new(&format!(
        "echo \"$*\" >>calls; case \"$*\" in *.Names*) echo 0123456789ab_shop-web-1;; ps*) echo {id};; rename*) exit 1;; esac; [ \"$1\" = inspect ] && echo '[]'; exit 0"
    ));
    let docker = script.docker();
    let sha = Sha::of(b"x");
    docker.model(&sha, &NO_SECRET).unwrap();
    docker.check(&sha, &NO_SECRET).unwrap();
    pull(&docker, &NO_SECRET).unwrap();
    up(&docker).unwrap();
    docker.inspect(&NO_SECRET).unwrap();
    docker.read_logs(&ReadLogs { containers: vec![("web".into(), id.clone())], lines: 20 }, &NO_SECRET).unwrap();
    let state = script.path("state").display().to_string();
    let compose = |folder: &str| {
        format!(
            "compose -p shop --project-directory {folder} -f {folder}/compose.yaml -f {folder}/.monky-deployd.yaml --env-file {folder}/.env"
        )
    };
    let staged = compose(&format!("{state}/next"));
    let current = compose(&format!("{state}/current"));
    let project = "--filter label=com.docker.compose.project=shop";
    assert_eq!(
        script.lines("calls"),
        [
            format!("{staged} config --format json --no-interpolate"),
            format!("{staged} config -q"),
            format!("{staged} --progress quiet pull"),
            format!(
                "ps -a --no-trunc {project} --filter status=created --filter label=com.docker.compose.replace --filter name=^/?[0-9a-f]{{12}}_ --format {{{{.Names}}}}"
            ),
            "rename 0123456789ab_shop-web-1 shop-web-1".to_owned(),
            "rm -f 0123456789ab_shop-web-1".to_owned(),
            format!("{current} --progress quiet up -d --remove-orphans --no-build --pull never"),
            format!("ps -a -q --no-trunc {project} --filter label=com.docker.compose.oneoff=False"),
            format!("inspect --type container {id}"),
            format!("logs --tail 20 --timestamps=false {id}"),
        ]
    );
}

#[test]
fn what_is_staged_is_what_compose_is_told_of_or_nothing_is() {
    let script = Script::new("echo \"$*\" >>calls");
    let docker = script.docker();
    for other in [Sha::of(b"y"), Sha::of(b"z")] {
        for failed in [docker.model(&other, &NO_SECRET).map(drop), docker.check(&other, &NO_SECRET)] {
            let RunFault::Failed { words, .. } = failed.unwrap_err() else { panic!("another fault") };
            assert!(words.as_str().contains("next does not point to release"), "{words}");
        }
    }
    assert_eq!(script.lines("calls").len(), 0);
}

#[test]
fn a_name_in_use_is_tried_a_second_time_and_no_third() {
    let conflict =
        "Error response from daemon: Conflict. The container name \"/a\" is already in use by container \"b\".";
    let text = |times: u32| {
        format!(
            "[ \"$1\" = ps ] && exit 0; echo >>ups; [ $(wc -l <ups) -gt {times} ] && exit 0; cat >&2 <<'END'\n{conflict}\nEND\nexit 1"
        )
    };
    let once = Script::new(&text(1));
    up(&once.docker()).unwrap();
    assert_eq!(once.lines("ups").len(), 2);
    let always = Script::new(&text(9));
    assert!(docker_shared::failed(up(&always.docker())).contains("already in use"));
    assert_eq!(always.lines("ups").len(), 2);
}

#[test]
fn what_the_engine_lost_in_a_crash_is_made_anew_and_only_once() {
    let id = "6".repeat(64);
    let one = |id: &str, service: &str, error: &str| {
        let labels = format!(r#"{{"com.docker.compose.service": "{service}"}}"#);
        let state = format!(r#"{{"Status": "created", "Error": "{error}"}}"#);
        format!(
            r#"{{"Id": "{}", "Name": "/shop-{service}-{id}", "State": {state}, "Config": {{"Labels": {labels}}}}}"#,
            id.repeat(64)
        )
    };
    // So often it says so of `up`, whatever is made anew; and of which containers.
    let script = |says: &str, times: u32, whose: &str| {
        Script::new(&format!(
            "echo \"$*\" >>calls
             case \"$*\" in
               ps*oneoff*) echo {id};;
               inspect*) cat <<'END'
[{whose}]
END
               ;;
               *--remove-orphans*) echo >>ups; [ $(wc -l <ups) -gt {times} ] && exit 0; echo 'Error response from daemon: {says}' >&2; exit 1;;
             esac"
        ))
    };
    let ups = |script: &Script| -> Vec<String> {
        let ups = |call: &String| call.split_once(" up -d ").map(|(_, rest)| rest.to_owned());
        script.lines("calls").iter().filter_map(ups).collect()
    };
    let (plain, anew) =
        ("--remove-orphans --no-build --pull never", "--force-recreate --no-deps --no-build --pull never web");
    for says in [
        format!("task {id}: already exists"),
        "OCI runtime create failed: runc create failed: container with given ID already exists: unknown".to_owned(),
        format!("OCI runtime create failed: container with id exists: {id}: unknown"),
        format!("failed to start shim: mkdir /run/io.containerd.runtime.v2.task/moby/{id}: file exists: unknown"),
    ] {
        let whose = [one("1", "web", &says), one("2", "job", "driver failed"), one("3", "db", "")].join(",");
        let once = script(&says, 1, &whose);
        let done = once.docker().up(&Up { sha: Sha::of(b"x"), timeout_s: 20 }, &NO_SECRET).unwrap();
        assert_eq!(ups(&once), [plain, anew, plain]);
        let words = "web was made anew: the engine had lost its container in a crash";
        assert_eq!(done.warnings.iter().map(|warning| warning.as_str()).collect::<Vec<_>>(), [words]);
        let always = script(&says, 9, &whose);
        assert_eq!(docker_shared::failed(up(&always.docker())), format!("Error response from daemon: {says}"));
        assert_eq!(ups(&always), [plain, anew, plain]);
        // Two of one service, and one of another, in one call.
        let three = [whose, one("4", "web", &says), one("5", "api", &says)].join(",");
        let several = script(&says, 1, &three);
        let done = several.docker().up(&Up { sha: Sha::of(b"x"), timeout_s: 20 }, &NO_SECRET).unwrap();
        let both = anew.replace(" web", " api web");
        assert_eq!(ups(&several), [plain, both.as_str(), plain]);
        assert_eq!(done.warnings.len(), 2);
    }
    let other = script("network shop_default: already exists", 9, &one("1", "web", ""));
    assert!(up(&other.docker()).is_err());
    assert_eq!(ups(&other), [plain]);
}

#[test]
fn a_listing_that_fails_once_is_made_again_and_no_third_time() {
    let text = |times: u32| format!("echo >>calls; [ $(wc -l <calls) -gt {times} ] && exit 0; echo broken >&2; exit 1");
    let once = Script::new(&text(1));
    assert_eq!(once.docker().inspect(&NO_SECRET).unwrap(), []);
    let always = Script::new(&text(9));
    assert!(docker_shared::failed(always.docker().inspect(&NO_SECRET).map(|_| ())).contains("broken"));
    assert_eq!(always.lines("calls").len(), 2);
}

#[test]
fn what_is_no_id_never_becomes_an_argument() {
    let script = Script::new("echo \"$*\" >>calls; printf -- '--help\\n../x\\nshort1\\n'");
    assert_eq!(script.docker().inspect(&NO_SECRET).unwrap(), []);
    assert_eq!(script.lines("calls").len(), 1, "only the listing");
}

#[test]
fn logs_keep_the_order_of_writing_and_lose_their_colours() {
    let script = Script::new("echo 1; echo 2 >&2; printf '\\033[2K\\033[31m3\\033[0m\\r\\n'; echo hunter2 >&2; echo 5");
    let request = ReadLogs { containers: vec![("web".into(), "c".repeat(64))], lines: 9 };
    let tails = script.docker().read_logs(&request, &Hide("hunter2")).unwrap();
    assert_eq!(tails[0].text.as_str(), "1\n2\n3\n***\n5");
}

#[test]
fn a_log_that_cannot_be_read_says_why_and_the_others_are_read() {
    let script = Script::new(
        "case $5 in a*) echo 'configured logging driver does not support reading' >&2; exit 1;; esac; echo fine",
    );
    let request = ReadLogs { containers: vec![("a".into(), "a".repeat(64)), ("b".into(), "b".repeat(64))], lines: 9 };
    let tails = script.docker().read_logs(&request, &NO_SECRET).unwrap();
    assert_eq!(tails[0].text.as_str(), "(no log: configured logging driver does not support reading)");
    assert_eq!(tails[1].text.as_str(), "fine");
}

#[cfg(feature = "sandbox")]
mod stand_in {
    use super::*;
    use monky_deployd::effects::RemoveImages;
    use monky_deployd::effects::containers::{ContainerState, Health};
    use monky_deployd::sandbox::docker::{Behaviour, Daemon, DockerStandIn, Fault, Image, Pace};

    const WEB: &str = "r.example:5000/shop/web:1";
    const TOOL: &str = "r.example:5000/shop/tool:1";

    struct Box {
        dir: tempfile::TempDir,
        stand_in: DockerStandIn,
    }

    impl Box {
        fn new() -> Box {
            let dir = tempfile::tempdir().unwrap();
            let exe = Path::new(env!("CARGO_BIN_EXE_monky-deployd"));
            let stand_in = DockerStandIn::install(&dir.path().join("bin"), exe).unwrap();
            fs::create_dir_all(dir.path().join("state")).unwrap();
            Box { dir, stand_in }
        }

        fn state(&self) -> PathBuf {
            self.dir.path().join("state")
        }

        fn docker(&self) -> Docker {
            docker_shared::docker(&self.stand_in.bin(), &self.state(), "shop", &|_| None)
        }

        /// A release of one service, of an image that behaves like this.
        fn one_service(&self, behaviour: Behaviour, more: &str) -> Sha {
            self.stand_in.edit(|world| world.publish(WEB, Image::new("web", behaviour))).unwrap();
            let yaml = format!("services:\n  web:\n    image: {WEB}\n{more}");
            let sha = docker_shared::stage(&self.state(), &yaml, &[("compose.yaml", &yaml), (".env", "")], &[]);
            docker_shared::promote(&self.state(), &sha);
            sha
        }

        fn brought_up(behaviour: Behaviour, more: &str) -> Box {
            let this = Box::new();
            let sha = this.one_service(behaviour, more);
            docker_shared::pull(&this.docker(), &sha).unwrap();
            docker_shared::up(&this.docker(), &sha).unwrap();
            this
        }
    }

    #[test]
    fn it_tells_the_story_of_two_releases_like_the_real_one() {
        let this = Box::new();
        this.stand_in
            .edit(|world| {
                world.publish(WEB, Image::new("web", Behaviour::GetsHealthy(Pace { looks: 2, ms: 0 })));
                let mut tool = Image::new("tool", Behaviour::Runs);
                tool.logs = vec!["started".into(), "odd".into()];
                world.publish(TOOL, tool);
                world.behaves("job", Behaviour::Exits { code: 0, after: Pace::default() });
            })
            .unwrap();
        docker_shared::a_deploy_touches_only_what_changed(&this.docker(), &this.state(), WEB, TOOL);
    }

    #[test]
    fn it_refuses_what_compose_refuses() {
        let this = Box::new();
        docker_shared::what_compose_will_not_take(&this.docker(), &this.state());
    }

    #[test]
    fn its_values_arrive_like_those_of_the_real_one() {
        let this = Box::new();
        this.stand_in.edit(|world| world.publish(TOOL, Image::new("tool", Behaviour::Runs))).unwrap();
        docker_shared::values_arrive_exactly(&this.docker(), &this.state(), TOOL, &|id| {
            let world = this.stand_in.world().unwrap();
            let container = world.containers.iter().find(|it| it.id == id).unwrap();
            container.environment.clone().into_iter().collect()
        });
    }

    #[test]
    fn its_model_is_the_model_of_the_real_one() {
        let this = Box::new();
        docker_shared::the_model_is_complete_and_without_values(&this.docker(), &this.state());
    }

    #[test]
    fn its_versions_are_those_of_the_world() {
        let this = Box::new();
        this.stand_in.edit(|world| world.compose = Some("2.20.3".into())).unwrap();
        assert_eq!(this.docker().probe(&NO_SECRET).unwrap().compose, "2.20.3");
        this.stand_in.edit(|world| world.compose = None).unwrap();
        assert!(docker_shared::failed(this.docker().probe(&NO_SECRET).map(|_| ())).contains("no Compose plugin"));
        this.stand_in.edit(|world| world.daemon = Daemon::Down).unwrap();
        assert!(matches!(this.docker().probe(&NO_SECRET), Err(RunFault::Unavailable { .. })));
    }

    #[test]
    fn its_registry_answers_in_the_words_of_a_registry() {
        let this = Box::new();
        let sha = this.one_service(Behaviour::Runs, "");
        let words = || docker_shared::failed(docker_shared::pull(&this.docker(), &sha));
        let login = Some(("puller".to_owned(), "right".to_owned()));
        this.stand_in.edit(|world| world.registries.get_mut("r.example:5000").unwrap().login = login).unwrap();
        assert_eq!(
            words(),
            "Error response from daemon: Head \"https://r.example:5000/v2/shop/web/manifests/1\": no basic auth credentials"
        );
        let auth = |text: &str| {
            use base64::Engine as _;
            let auth = base64::engine::general_purpose::STANDARD.encode(text);
            fs::create_dir_all(this.state().join("docker")).unwrap();
            let json = format!("{{\"auths\":{{\"r.example:5000\":{{\"auth\":\"{auth}\"}}}}}}");
            fs::write(this.state().join("docker/config.json"), json).unwrap();
        };
        auth("puller:wrong");
        assert_eq!(words(), "Error response from daemon: unauthorized: authentication required");
        fs::write(this.state().join("docker/config.json"), "{\"auths\":{\"r.example:5000\":{\"auth\":\"@\"}}}")
            .unwrap();
        assert!(words().contains("no basic auth credentials | Error parsing config file"), "{}", words());
        auth("puller:right");
        docker_shared::pull(&this.docker(), &sha).unwrap();
        this.stand_in.edit(|world| world.registries.get_mut("r.example:5000").unwrap().images.clear()).unwrap();
        assert_eq!(
            words(),
            format!("Error response from daemon: manifest for {WEB} not found: manifest unknown: manifest unknown")
        );
        this.stand_in.edit(|world| world.registries.clear()).unwrap();
        assert!(words().ends_with("no such host"), "{}", words());
    }

    #[test]
    fn a_full_disk_stops_the_pull() {
        let this = Box::new();
        let sha = this.one_service(Behaviour::Runs, "");
        this.stand_in.edit(|world| world.disk_full = true).unwrap();
        let fault = docker_shared::pull(&this.docker(), &sha).unwrap_err();
        assert!(matches!(fault, RunFault::Failed { disk_full: true, .. }), "{fault:?}");
    }

    #[test]
    fn nothing_comes_up_that_was_not_pulled() {
        let this = Box::new();
        let sha = this.one_service(Behaviour::Runs, "");
        let words = docker_shared::failed(docker_shared::up(&this.docker(), &sha));
        assert_eq!(words, format!("Error response from daemon: No such image: {WEB}"));
    }

    #[test]
    fn a_port_that_is_taken_leaves_a_container_that_never_ran() {
        let this = Box::new();
        let sha = this.one_service(Behaviour::Runs, "    ports: ['8080:80']\n");
        this.stand_in.edit(|world| world.busy_ports.insert(8080)).unwrap();
        docker_shared::pull(&this.docker(), &sha).unwrap();
        assert!(docker_shared::failed(docker_shared::up(&this.docker(), &sha)).contains("port is already allocated"));
        let all = this.docker().inspect(&NO_SECRET).unwrap();
        assert_eq!(all[0].state, ContainerState::Created);
        assert!(all[0].error.as_str().contains("port is already allocated"));
        this.stand_in.edit(|world| world.busy_ports.clear()).unwrap();
        docker_shared::up(&this.docker(), &sha).unwrap();
        assert_eq!(this.docker().inspect(&NO_SECRET).unwrap()[0].state, ContainerState::Running);
    }

    #[test]
    fn containers_behave_as_their_image_says() {
        let once = Pace { looks: 1, ms: 0 };
        let this = Box::brought_up(Behaviour::GetsUnhealthy(once), "");
        let health = || this.docker().inspect(&NO_SECRET).unwrap()[0].health;
        assert_eq!([health(), health()], [Some(Health::Starting), Some(Health::Unhealthy)]);

        let this = Box::brought_up(Behaviour::Exits { code: 4, after: once }, "");
        let look = || {
            let all = this.docker().inspect(&NO_SECRET).unwrap();
            (all[0].state, all[0].exit_code, all[0].restart_count)
        };
        assert_eq!([look(), look()], [(ContainerState::Running, 0, 0), (ContainerState::Exited, 4, 0)]);

        let this = Box::brought_up(Behaviour::Exits { code: 4, after: once }, "    restart: always\n");
        let look = || this.docker().inspect(&NO_SECRET).unwrap().remove(0);
        let all = [look(), look(), look()];
        assert_eq!(all[2].state, ContainerState::Restarting);
        assert!(all[2].restart_count > all[1].restart_count);
        assert_ne!(all[2].started_at, all[1].started_at);
    }

    #[test]
    fn what_is_left_of_what_it_was_to_replace_gets_its_name() {
        let this = Box::brought_up(Behaviour::Runs, "");
        let mut made = String::new();
        this.stand_in
            .edit(|world| {
                let left = &mut world.containers[0];
                left.name = "0123456789ab_shop-web-1".into();
                left.started_ms = None;
                left.labels.insert("com.docker.compose.replace".into(), "shop-web-1".into());
                made.clone_from(&left.id);
            })
            .unwrap();
        docker_shared::up(&this.docker(), &Sha::of(b"x")).unwrap();
        let all = this.docker().inspect(&NO_SECRET).unwrap();
        assert_eq!(all.iter().map(|it| (&*it.name, &it.id)).collect::<Vec<_>>(), [("shop-web-1", &made)]);
    }

    #[test]
    fn leftovers_of_an_interrupted_up_are_cleared_and_what_has_its_name_is_started() {
        let this = Box::brought_up(Behaviour::Runs, "");
        let sha = Sha::of(b"x");
        let mut named = String::new();
        this.stand_in
            .edit(|world| {
                let made = &mut world.containers[0];
                made.started_ms = None;
                made.labels.insert("com.docker.compose.replace".into(), "shop-web-1".into());
                named.clone_from(&made.id);
                let mut left = made.clone();
                left.id = "f".repeat(64);
                left.name = "0123456789ab_shop-web-1".into();
                world.containers.push(left);
            })
            .unwrap();
        docker_shared::up(&this.docker(), &sha).unwrap();
        let all = this.docker().inspect(&NO_SECRET).unwrap();
        assert_eq!(all.iter().map(|it| (&*it.name, &it.id)).collect::<Vec<_>>(), [("shop-web-1", &named)]);
    }

    #[test]
    fn a_verb_goes_wrong_as_often_as_it_was_told_to() {
        let this = Box::brought_up(Behaviour::Runs, "");
        let words = "Error response from daemon: broken";
        this.stand_in.edit(|world| world.go_wrong("ps", Some(1), Fault::Fail(1, words.into()))).unwrap();
        assert_eq!(this.docker().inspect(&NO_SECRET).unwrap().len(), 1, "the driver asks twice");
        this.stand_in.edit(|world| world.go_wrong("ps", None, Fault::Fail(1, words.into()))).unwrap();
        assert_eq!(docker_shared::failed(this.docker().inspect(&NO_SECRET).map(|_| ())), words);
        this.stand_in.edit(|world| world.go_wrong("pull", None, Fault::Hang)).unwrap();
        let request = Pull { sha: this.one_service(Behaviour::Runs, ""), timeout_s: 1 };
        let fault = this.docker().pull(&request, &NO_SECRET).unwrap_err();
        assert!(matches!(fault, RunFault::TimedOut { after_s: 1, .. }), "{fault:?}");
    }

    #[test]
    fn an_image_goes_when_no_container_needs_it() {
        let this = Box::brought_up(Behaviour::Runs, "");
        let id = Image::new("web", Behaviour::Runs).id;
        let remove = || this.docker().remove_images(&RemoveImages { ids: vec![id.clone()] }, &NO_SECRET).unwrap().gone;
        assert_eq!(remove(), Vec::<String>::new());
        this.stand_in.edit(|world| world.containers.clear()).unwrap();
        assert_eq!(remove(), std::slice::from_ref(&id));
        assert_eq!(remove(), std::slice::from_ref(&id), "gone already");
    }

    #[test]
    fn every_call_is_logged_and_a_strange_one_is_refused() {
        let this = Box::new();
        let output = this.docker().run(&Call::new(["system", "prune"], Duration::from_secs(20))).unwrap();
        assert_eq!(output.status.code(), Some(64));
        assert!(output.stderr.text().contains("a call that the agent does not make"));
        let calls = this.stand_in.calls().unwrap();
        assert_eq!(calls.iter().map(|call| call.args.join(" ")).collect::<Vec<_>>(), ["system prune"]);
    }
}
