//! `check`, the doctor: what it says of a box on the stand-ins, how it ends, and that it only reads.
//!
//! Where systemd runs, this machine has its own opinion of the agent's units: it is left out of what is compared.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::forms::forms_of;
use common::root::root;
use common::stand::{REGISTRY, Secrets, Stand};
use monky_deployd::sandbox::docker::Daemon;
use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::openbao;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const EXE: &str = env!("CARGO_BIN_EXE_monky-deployd");
const PASSWORD: &str = "pull-c4n4ry-7d1f";

/// A registry that sends to a token service, as Harbor does: `puller` with the password gets a token, and with it in.
fn registry() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let good = format!("Basic {}", STANDARD.encode(format!("puller:{PASSWORD}")));
    let expired = format!("Basic {}", STANDARD.encode("expired:an0ther-c4n4ry"));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let header = |line: &&String| line.to_lowercase().starts_with("authorization: ");
            let has = head.iter().find(header).map(|line| line["authorization: ".len()..].to_owned());
            let challenge =
                format!("Www-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"reg\"\r\n");
            let no = r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#;
            let (status, more, body) = match (first.split(' ').nth(1).unwrap(), has) {
                ("/v2/", Some(bearer)) if bearer.starts_with("Bearer t0ken") => (200, "", "{}"),
                (path, Some(bearer)) if path.starts_with("/v2/shop/") && bearer == "Bearer t0ken" => (200, "", ""),
                (path, Some(_)) if path.starts_with("/v2/shop/") => (403, "", ""),
                // What a service gives that knows the user no more, and lets anybody look around.
                (path, Some(basic)) if path.starts_with("/token?") && basic == expired => {
                    (200, "", r#"{"token":"t0ken-worth-nothing"}"#)
                }
                ("/v2/", _) => (401, challenge.as_str(), no),
                ("/token?service=reg&scope=repository%3Ashop/db%3Apull", Some(basic)) if basic == good => {
                    (200, "", r#"{"token":"t0ken"}"#)
                }
                _ => (401, "", no),
            };
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

/// A box that has deployed. Its registry is one that answers.
fn deployed() -> Stand {
    let secrets = Secrets { db_password: "db-c4n4ry-99aa".to_owned(), pull_password: PASSWORD.to_owned() };
    let mut stand = Stand::new(Path::new(EXE), "env-lab-01", secrets, "");
    stand.image("shop/web:1", monky_deployd::sandbox::docker::Behaviour::Runs, &[]);
    stand.bootstrap();
    stand.desire(1, "web:1", &[]);
    let ticked = stand.tick();
    assert_eq!(ticked.done.word, "applied", "{:?}", ticked.done);
    let port = registry();
    for name in ["state.json", "docker/config.json"] {
        change(&stand.config.state_dir.join(name), REGISTRY, &format!("127.0.0.1:{port}"));
    }
    stand
}

fn change(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{}: {text}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

fn command(stand: &Stand, format: &str) -> Command {
    let mut command = Command::new(EXE);
    command.arg("--config").arg(stand.config_file()).args(["check", "--format", format]).stdin(Stdio::null());
    command
}

struct Said {
    status: i32,
    out: String,
    /// By fact; of several lines of one fact the worst.
    levels: BTreeMap<String, String>,
    json: Value,
}

impl Said {
    fn of(output: &Output) -> Said {
        let out = String::from_utf8(output.stdout.clone()).unwrap();
        let json: Value = serde_json::from_str(&out)
            .unwrap_or_else(|error| panic!("{error}: {out} {}", String::from_utf8_lossy(&output.stderr)));
        let mut levels = BTreeMap::new();
        for line in json["lines"].as_array().unwrap() {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            assert_eq!(line["remedy"].is_null(), text("level") == "ok", "{line}");
            let worst: &mut String = levels.entry(text("fact")).or_default();
            // In this order they are in the alphabet too, but for `failure`.
            if *worst != "failure" && (text("level") == "failure" || text("level") > *worst) {
                *worst = text("level");
            }
        }
        Said { status: output.status.code().unwrap_or(-1), out, levels, json }
    }

    /// The facts that fail, less what this machine's systemd says.
    fn failed(&self) -> Vec<&str> {
        let ours = |fact: &&str| !matches!(*fact, "timer" | "service" | "service.limit");
        self.levels
            .iter()
            .filter(|(_, level)| *level == "failure")
            .map(|(fact, _)| fact.as_str())
            .filter(ours)
            .collect()
    }

    fn what(&self, fact: &str) -> &str {
        let lines = self.json["lines"].as_array().unwrap();
        lines.iter().find(|line| line["fact"] == fact).unwrap_or_else(|| panic!("no {fact}: {}", self.out))["what"]
            .as_str()
            .unwrap()
    }
}

/// Every path of the state directory with mode, time of change and content.
fn everything(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let at = fs::symlink_metadata(&path).unwrap();
            let content = if at.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if at.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, format!("{:?} {:?} {content:?}", at.permissions(), at.modified().unwrap()));
        }
    }
    found
}

/// Runs it, after a check that nobody's state is another one than before.
fn check(stand: &Stand) -> Said {
    let before = everything(&stand.config.state_dir);
    let (asked, calls) = (stand.tenancy.requests().len(), stand.docker.calls().unwrap().len());
    let to_bao = stand.bao.requests().len();
    let said = Said::of(&command(stand, "json").output().unwrap());
    assert_eq!(everything(&stand.config.state_dir), before, "the state directory changed");
    for request in &stand.tenancy.requests()[asked..] {
        assert_eq!(request.method, "GET", "{}", request.path);
    }
    for request in &stand.bao.requests()[to_bao..] {
        let reads = request.path == "/v1/sys/health" || request.path == "/v1/auth/token/lookup-self";
        assert!(request.method == "GET" && reads, "{} {}", request.method, request.path);
    }
    for call in &stand.docker.calls().unwrap()[calls..] {
        let verb = if call.args[0] == "compose" { &call.args[1] } else { &call.args[0] };
        assert!(["version", "ps", "info"].contains(&verb.as_str()), "{:?}", call.args);
    }
    for secret in ["db-c4n4ry-99aa", PASSWORD, "t0ken"] {
        assert!(forms_of(secret).iter().all(|form| !said.out.contains(form)), "{}", said.out);
    }
    said
}

#[test]
fn a_box_that_can_deploy_has_no_failure_and_nothing_is_changed() {
    let stand = deployed();
    let said = check(&stand);
    assert_eq!(said.failed(), [""; 0], "{}", said.out);
    for fact in [
        "config",
        "docker_bin",
        "state_dir",
        "lock",
        "state",
        "docker",
        "compose",
        "project",
        "tenancy",
        "clock",
        "openbao",
        "token",
        "registry",
    ] {
        assert_eq!(said.levels.get(fact).map(String::as_str), Some("ok"), "{fact}: {}", said.out);
    }
    assert_eq!(said.levels["docker.disk"], "warning", "the stand-in's engine is elsewhere");
    assert_eq!(said.status, if said.json["failures"] == 0 { 0 } else { 1 });
    let counted: i64 = ["failures", "warnings", "ok"].iter().map(|key| said.json[key].as_i64().unwrap()).sum();
    assert_eq!(usize::try_from(counted).unwrap(), said.json["lines"].as_array().unwrap().len());
    assert_eq!(said.json["env_id"], "env-lab-01");
}

#[test]
fn for_people_it_is_a_line_a_fact_and_a_verdict() {
    let stand = deployed();
    stand.docker.edit(|world| world.compose = Some("2.20.0".to_owned())).unwrap();
    let output = command(&stand, "text").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("\nFAILURE  compose      ") && text.contains("to do: install the Docker Compose plugin"),
        "{text}"
    );
    assert!(text.contains("\nok       openbao      "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("this box cannot deploy as it is: "), "{text}");
    assert!(!text.contains('\x1b'), "no colour where nobody looks");
}

#[test]
fn a_new_box_is_told_what_it_lacks_and_nothing_is_made() {
    let secrets = Secrets { db_password: "x".to_owned(), pull_password: PASSWORD.to_owned() };
    let stand = Stand::new(Path::new(EXE), "env-lab-02", secrets, "");
    let said = check(&stand);
    assert!(!stand.config.state_dir.exists(), "nothing was made");
    assert_eq!((said.failed(), said.status), (vec!["token"], 1), "{}", said.out);
    assert_eq!(said.levels["state_dir"], "warning");
    stand.bootstrap();
    let said = check(&stand);
    assert_eq!(said.failed(), [""; 0], "{}", said.out);
    assert!(said.what("token").contains("a bootstrap grant waits"), "{}", said.out);
    stand.store_is_older_than_the_grant();
}

impl Stand {
    /// A grant that has ended is no way in.
    fn store_is_older_than_the_grant(&self) {
        let over = self.tenancy.mint_bootstrap_grant(&self.env_id, -10);
        fs::write(self.config.state_dir.join("bootstrap.jwt"), over).unwrap();
        assert_eq!(check(self).failed(), ["token"]);
    }
}

/// What breaks, and the facts that may fail by it.
#[test]
fn each_thing_that_breaks_is_one_failure_and_what_hangs_on_it_is_not_checked() {
    let stand = deployed();
    let fails = |expected: &[&str], unchecked: &[&str]| {
        let said = check(&stand);
        assert_eq!((said.failed(), said.status), (expected.to_vec(), 1), "{}", said.out);
        for fact in unchecked {
            assert!(said.what(fact).starts_with("not checked: "), "{fact}: {}", said.out);
        }
    };

    stand.docker.edit(|world| world.daemon = Daemon::Down).unwrap();
    fails(&["docker"], &["project", "docker.disk"]);
    stand.docker.edit(|world| world.daemon = Daemon::Up).unwrap();

    stand.tenancy.set_reachable(false);
    fails(&["tenancy"], &["clock"]);
    stand.tenancy.set_reachable(true);

    stand.bao.seal(true);
    fails(&["openbao"], &["token"]);
    stand.bao.seal(false);

    stand.bao.fail_always(openbao::Call::Lookup, Some(Fault::Status(502, "bad gateway".to_owned())));
    let said = check(&stand);
    assert!(said.failed().is_empty() && said.what("token").starts_with("not checked: "), "{}", said.out);
    stand.bao.fail_always(openbao::Call::Lookup, None);

    let config = stand.config.state_dir.join("docker/config.json");
    let right = fs::read(&config).unwrap();
    let wrong = STANDARD.encode("puller:an0ther-c4n4ry");
    change(&config, &STANDARD.encode(format!("puller:{PASSWORD}")), &wrong);
    fails(&["registry"], &[]);
    let said = check(&stand);
    assert!(said.what("registry").contains("does not take the credential: who are you"), "{}", said.out);
    assert!(!said.out.contains(&wrong) && !said.out.contains("an0ther"), "{}", said.out);
    fs::write(&config, &right).unwrap();
    change(&config, &STANDARD.encode(format!("puller:{PASSWORD}")), &STANDARD.encode("expired:an0ther-c4n4ry"));
    fails(&["registry"], &[]);
    let said = check(&stand);
    assert!(said.what("registry").contains("does not take the credential: shop/"), "{}", said.out);
    fs::write(&config, r#"{"auths":{}}"#).unwrap();
    fails(&["registry"], &[]);
    fs::remove_file(&config).unwrap();
    let said = check(&stand);
    assert!(said.failed().is_empty() && said.levels["registry"] == "warning", "each deploy writes it: {}", said.out);
    fs::write(&config, right).unwrap();

    stand
        .docker
        .edit(|world| {
            let label = "com.docker.compose.project.working_dir".to_owned();
            world.containers[0].labels.insert(label, "/home/somebody/shop".to_owned());
        })
        .unwrap();
    fails(&["project"], &[]);
    let said = check(&stand);
    assert!(said.what("project").contains("/home/somebody/shop"), "{}", said.out);
}

#[test]
fn a_clock_is_compared_with_tenancys() {
    let stand = deployed();
    stand.tenancy.advance(60);
    let said = check(&stand);
    assert!(said.failed().is_empty() && said.levels["clock"] == "warning", "{}", said.out);
    assert!(said.what("clock").contains("behind tenancy's"), "{}", said.out);
    stand.tenancy.advance(600);
    assert_eq!(check(&stand).failed(), ["clock"]);
}

#[test]
fn a_token_that_was_revoked_fails_and_one_that_came_to_its_end_does_not() {
    let stand = deployed();
    stand.bao.revoke_all();
    let said = check(&stand);
    assert_eq!(said.failed(), ["token"], "{}", said.out);
    assert!(said.what("token").contains("revoked"), "{}", said.out);

    let stand = deployed();
    // The same moments, seen from two hours later.
    stand.age(7200);
    let said = check(&stand);
    assert!(!said.failed().contains(&"token"), "{}", said.out);
    assert!(said.levels["token"] == "warning" && said.what("token").contains("came to its end"), "{}", said.out);
}

#[test]
fn root_is_told_to_run_it_as_the_agents_user_and_nothing_else() {
    if !root() {
        return;
    }
    let stand = deployed();
    std::os::unix::fs::chown(&stand.config.state_dir, Some(54321), None).unwrap();
    let asked = stand.tenancy.requests().len();
    for format in ["text", "json"] {
        let output = command(&stand, format).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{told}");
        assert!(
            told.contains("sudo -u '#54321' monky-deployd --config ")
                && told.contains(" check (")
                && told.lines().count() == 1,
            "{told}"
        );
    }
    assert_eq!(stand.tenancy.requests().len(), asked, "nobody was asked");
}

#[test]
fn a_user_that_is_not_the_agents_is_told_how_to_run_it_and_what_it_cannot_see() {
    if !root() {
        return;
    }
    let stand = deployed();
    let copy = stand.dir().join("agent");
    fs::copy(EXE, &copy).unwrap();
    for dir in [stand.dir().to_owned(), stand.dir().join("bin")] {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&copy);
    std::os::unix::process::CommandExt::uid(&mut command, 54321);
    command.arg("--config").arg(stand.config_file()).args(["check", "--format", "json"]).stdin(Stdio::null());
    let said = Said::of(&command.output().unwrap());
    assert!(said.failed().contains(&"state_dir") && said.out.contains("chown -hR monky-deployd: "), "{}", said.out);
    for fact in ["lock", "state", "docker", "token", "registry"] {
        assert!(said.what(fact).starts_with("not checked: "), "{fact}: {}", said.out);
    }
}

#[test]
fn a_state_directory_that_a_tick_cannot_mend_fails_and_one_that_it_mends_is_a_warning() {
    let stand = deployed();
    let dir = stand.config.state_dir.clone();
    let mode = |mode: u32| fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    for mends in [0o500, 0o755, 0o666] {
        mode(mends);
        let said = check(&stand);
        mode(0o700);
        assert!(said.failed().is_empty() && said.levels["state_dir"] == "warning", "{mends:o}: {}", said.out);
    }
    mode(0o300);
    let said = check(&stand);
    mode(0o700);
    assert_eq!(said.failed(), ["state_dir"], "{}", said.out);
    assert!(said.out.contains("chmod u+rwx "), "{}", said.out);
    assert_eq!(check(&stand).failed(), [""; 0]);
}

#[test]
fn a_hold_and_what_was_in_the_way_are_told_until_they_are_over() {
    let mut stand = deployed();
    assert!(!check(&stand).levels.contains_key("hold"));
    stand.tenancy.hold(&stand.env_id, Some("freeze until Monday"));
    stand.tick();
    let said = check(&stand);
    assert!(said.levels["hold"] == "warning" && said.what("hold").ends_with(": freeze until Monday"), "{}", said.out);
    stand.tenancy.hold(&stand.env_id, None);
    stand.tenancy.set_reachable(false);
    stand.tick();
    stand.tenancy.set_reachable(true);
    let said = check(&stand);
    assert!(said.levels["trouble"] == "warning" && said.levels["hold"] == "warning", "{}", said.out);
    assert!(said.what("trouble").starts_with("TENANCY_UNREACHABLE since "), "{}", said.out);
    stand.tick();
    let said = check(&stand);
    assert!(!said.levels.contains_key("trouble") && !said.levels.contains_key("hold"), "{}", said.out);
}

#[test]
fn a_tick_at_work_is_fine_and_keeps_its_lock() {
    let stand = deployed();
    let lock = fs::File::open(stand.config.state_dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let said = check(&stand);
    assert!(said.failed().is_empty() && said.what("lock").contains("a tick is at work"), "{}", said.out);
}

#[test]
fn asked_to_end_it_ends() {
    let stand = deployed();
    stand.bao.fail_always(openbao::Call::Lookup, Some(Fault::Silence));
    let before = stand.bao.requests().len();
    let mut child = command(&stand, "json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while stand.bao.requests().len() < before + 2 {
        assert!(Instant::now() < until, "OpenBao was never asked");
        thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

#[test]
fn a_configuration_that_is_none_ends_with_78() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    fs::write(&file, "env_id: a\n").unwrap();
    let output = Command::new(EXE).arg("--config").arg(&file).arg("check").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
}
