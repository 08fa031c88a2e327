//! The verbs against a real engine, a real registry with password, and each Compose version.
//!
//! They need the stack that `make stack-up` brings up, and say so if it is not there; `STACK=off` leaves them out.
//! Everything they make on the engine has a name of its own, and is removed.

mod docker_shared;
#[path = "common/stack_env.rs"]
mod stack_env;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use monky_deployd::drivers::docker::cli::{Call, Docker};
use monky_deployd::effects::containers::ContainerState;
use monky_deployd::effects::{Pull, ReadLogs, RemoveImages, RunFault, Up};

use docker_shared::{NO_SECRET, failed, of, promote, pull, stage, until, up};

/// What `make stack-up` brought up.
struct Stack(BTreeMap<String, String>);

impl Stack {
    /// None if it is left out on purpose.
    fn find() -> Option<Stack> {
        stack_env::stack().map(Stack)
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).unwrap_or_else(|| panic!("the stack's env file has no {key}"))
    }

    fn image(&self, name: &str) -> String {
        format!("{}/monky/{name}", self.get("STACK_REGISTRY"))
    }
}

/// One agent on the engine, with a project of its own, which goes with it.
struct Agent<'a> {
    stack: &'a Stack,
    dir: tempfile::TempDir,
    docker: Docker,
}

impl<'a> Agent<'a> {
    /// With each Compose version in turn.
    fn each(stack: &'a Stack, name: &str, then: impl Fn(&Agent<'a>)) {
        let versions: Vec<&str> = stack.get("STACK_COMPOSE_VERSIONS").split_whitespace().collect();
        assert!(!versions.is_empty());
        for version in versions {
            eprintln!("Compose {version}");
            let bin = Path::new(stack.get("STACK_DIR")).join(format!("bin/docker-{version}"));
            let dir = tempfile::tempdir().unwrap();
            let project = format!("mdt-{name}-{}-{}", version.replace('.', "-"), std::process::id());
            let host = OsString::from(stack.get("STACK_DOCKER_HOST"));
            let get = |name: &str| match name {
                "PATH" => std::env::var_os("PATH"),
                "DOCKER_HOST" => Some(host.clone()),
                _ => None,
            };
            let docker = docker_shared::docker(&bin, dir.path(), &project, &get);
            let agent = Agent { stack, dir, docker };
            agent.log_in(&format!("{}:{}", stack.get("STACK_REGISTRY_USER"), stack.get("STACK_REGISTRY_PASSWORD")));
            then(&agent);
        }
    }

    fn state(&self) -> &Path {
        self.dir.path()
    }

    fn log_in(&self, login: &str) {
        let auth = base64::engine::general_purpose::STANDARD.encode(login);
        let config = serde_json::json!({"auths": {self.stack.get("STACK_REGISTRY"): {"auth": auth}}});
        fs::create_dir_all(self.state().join("docker")).unwrap();
        fs::write(self.state().join("docker/config.json"), config.to_string()).unwrap();
    }

    /// A release of one service.
    fn one_service(&self, image: &str, more: &str) -> monky_deployd::effects::Sha {
        let yaml = format!("services:\n  web:\n    image: {image}\n{more}");
        let sha = stage(self.state(), &yaml, &[("compose.yaml", &yaml), (".env", "")], &[]);
        promote(self.state(), &sha);
        sha
    }

    /// A call of the plain client, which has to succeed.
    fn plain(&self, args: &[&str]) -> String {
        let output = self.docker.run(&Call::new(args, Duration::from_secs(60))).unwrap();
        assert!(output.status.success(), "docker {args:?}: {}", *output.stderr.text());
        output.stdout.text().trim().to_owned()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.docker.run(&Call::new(
            ["compose", "-p", self.docker.project(), "down", "-v", "--remove-orphans", "--timeout", "1"],
            Duration::from_secs(60),
        ));
    }
}

#[test]
fn versions_are_read() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "probe", |agent| {
        let versions = agent.docker.probe(&NO_SECRET).unwrap();
        assert!(
            agent.docker.bin().to_string_lossy().ends_with(versions.compose.split('-').next().unwrap()),
            "{versions:?}"
        );
        assert!(versions.engine.split('.').count() >= 2, "{versions:?}");
    });
}

#[test]
fn the_model_is_complete_and_without_values() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "model", |agent| {
        docker_shared::the_model_is_complete_and_without_values(&agent.docker, agent.state());
    });
}

#[test]
fn what_compose_will_not_take_is_told_in_its_words() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "check", |agent| docker_shared::what_compose_will_not_take(&agent.docker, agent.state()));
}

#[test]
fn a_deploy_touches_only_what_changed() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "deploy", |agent| {
        let (web, tool) = (stack.image("web:1"), stack.image("tool:1"));
        docker_shared::a_deploy_touches_only_what_changed(&agent.docker, agent.state(), &web, &tool);
        // What is recreated mounts the new content; what is not keeps what it had.
        let all = agent.docker.inspect(&NO_SECRET).unwrap();
        assert_eq!(agent.plain(&["exec", &of(&all, "web").id, "cat", "/conf/a"]), "2");
        assert_eq!(agent.plain(&["exec", &of(&all, "web").id, "sh", "-c", "echo \"$GREETING\""]), "other");
        assert_eq!(agent.plain(&["exec", &of(&all, "db").id, "cat", "/init/a"]), "1");
    });
}

#[test]
fn values_arrive_exactly() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "values", |agent| {
        docker_shared::values_arrive_exactly(&agent.docker, agent.state(), &stack.image("tool:1"), &|id| {
            let json = agent.plain(&["inspect", "--format", "{{json .Config.Env}}", id]);
            let all: Vec<String> = serde_json::from_str(&json).unwrap();
            all.iter().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
        });
    });
}

#[test]
fn a_failed_pull_is_told_in_the_registrys_words_and_nothing_else() {
    let Some(stack) = Stack::find() else { return };
    let registry = stack.get("STACK_REGISTRY");
    Agent::each(&stack, "pull", |agent| {
        let words = |image: &str| failed(pull(&agent.docker, &agent.one_service(image, "")));
        let absent = stack.image("tool:no-such-tag");
        assert_eq!(
            words(&absent),
            format!("Error response from daemon: manifest for {absent} not found: manifest unknown: manifest unknown")
        );
        assert!(
            words("no-such-host.invalid/a/b:1").contains("dial tcp: lookup no-such-host.invalid"),
            "{}",
            words("no-such-host.invalid/a/b:1")
        );
        assert_eq!(
            words("127.0.0.1:1/a/b:1"),
            "Error response from daemon: Get \"http://127.0.0.1:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused"
        );
        agent.log_in("puller:wrong");
        assert_eq!(words(&absent), "Error response from daemon: unauthorized: authentication required");
        fs::remove_file(agent.state().join("docker/config.json")).unwrap();
        let anonymous = format!(
            "Error response from daemon: Head \"http://{registry}/v2/monky/tool/manifests/no-such-tag\": no basic auth credentials"
        );
        assert_eq!(words(&absent), anonymous);
        fs::write(agent.state().join("docker/config.json"), "{\"auths\": {\"a\": {\"auth\": \"@\"}}}").unwrap();
        let with_cause = words(&absent);
        assert!(with_cause.starts_with(&anonymous), "{with_cause}");
        assert!(
            with_cause.contains("rror parsing config file") || with_cause.contains("rror loading config file"),
            "{with_cause}"
        );
    });
}

#[test]
fn an_engine_that_is_not_there_makes_docker_unavailable() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "away", |agent| {
        let nowhere = agent.state().join("no.sock");
        let get = |name: &str| (name == "DOCKER_HOST").then(|| format!("unix://{}", nowhere.display()).into());
        let away = docker_shared::docker(agent.docker.bin(), agent.state(), "mdt-away", &get);
        let sha = agent.one_service(&stack.image("tool:1"), "");
        let request = Up { sha: sha.clone(), timeout_s: 20 };
        let faults = [
            away.probe(&NO_SECRET).map(|_| ()),
            pull(&away, &sha),
            away.up(&request, &NO_SECRET).map(|_| ()),
            away.inspect(&NO_SECRET).map(|_| ()),
            away.remove_images(&RemoveImages { ids: vec!["sha256:0".into()] }, &NO_SECRET).map(|_| ()),
        ];
        for fault in faults {
            let Err(RunFault::Unavailable { detail }) = fault else { panic!("{fault:?}") };
            assert!(detail.as_str().contains("Cannot connect to the Docker daemon at unix://"), "{detail}");
        }
        away.check(&sha, &NO_SECRET).unwrap();
    });
}

#[test]
fn an_engine_that_never_answers_is_given_up_at_the_deadline() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "mute", |agent| {
        let path = agent.state().join("mute.sock");
        let _mute = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let get = |name: &str| (name == "DOCKER_HOST").then(|| format!("unix://{}", path.display()).into());
        let mute = docker_shared::docker(agent.docker.bin(), agent.state(), "mdt-mute", &get);
        let request = Pull { sha: agent.one_service(&stack.image("tool:1"), ""), timeout_s: 2 };
        let fault = mute.pull(&request, &NO_SECRET).unwrap_err();
        assert!(matches!(fault, RunFault::TimedOut { after_s: 2, .. }), "{fault:?}");
        // Nobody who was started for it is left: the socket's path is in their environment.
        let mark = path.display().to_string();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let is_ours = String::from_utf8_lossy(&environment).contains(&mark);
            assert!(!is_ours, "{} is still there", process.path().display());
        }
    });
}

#[test]
fn nothing_comes_up_that_was_not_pulled() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "absent", |agent| {
        let image = stack.image("never-pulled:1");
        let words = failed(up(&agent.docker, &agent.one_service(&image, "")));
        assert!(words.to_lowercase().contains(&format!("no such image: {image}")), "{words}");
        assert_eq!(agent.docker.inspect(&NO_SECRET).unwrap(), []);
    });
}

#[test]
fn what_goes_wrong_with_a_container_is_seen() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "wrong", |agent| {
        let yaml = format!(
            "services:
  flaps: {{image: '{tool}', command: [sh, -c, 'echo no >&2; exit 4'], restart: always}}
  ends: {{image: '{tool}', command: [sh, -c, 'exit 3']}}
  waits: {{image: '{tool}', command: [sleep, '1000'], healthcheck: {{test: [CMD, 'false'], interval: 1s, retries: 1}}}}
",
            tool = stack.image("tool:1")
        );
        let sha = stage(agent.state(), "wrong", &[("compose.yaml", &yaml), (".env", "")], &[]);
        promote(agent.state(), &sha);
        pull(&agent.docker, &sha).unwrap();
        up(&agent.docker, &sha).unwrap();
        let all = until(&agent.docker, "all of it is seen", |all| {
            use monky_deployd::effects::containers::Health;
            of(all, "flaps").restart_count >= 2
                && of(all, "ends").state == ContainerState::Exited
                && of(all, "waits").health == Some(Health::Unhealthy)
        });
        assert_eq!(of(&all, "ends").exit_code, 3);
        let logs = ReadLogs { containers: vec![("flaps".into(), of(&all, "flaps").id.clone())], lines: 2 };
        assert_eq!(agent.docker.read_logs(&logs, &NO_SECRET).unwrap()[0].text.as_str(), "no\nno");

        let missing = agent.one_service(&stack.image("tool:1"), "    command: [no-such-program]\n");
        assert!(failed(up(&agent.docker, &missing)).contains("no-such-program"));
        let all = agent.docker.inspect(&NO_SECRET).unwrap();
        assert_eq!(all.len(), 1, "the orphans are gone: {all:?}");
        assert_eq!((of(&all, "web").state, of(&all, "web").exit_code), (ContainerState::Created, 127));
        assert!(of(&all, "web").error.as_str().contains("no-such-program"), "{all:?}");
    });
}

#[test]
fn a_port_that_is_taken_is_told_and_the_next_up_recovers() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "port", |agent| {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let more = format!("    command: [sleep, '1000']\n    ports: ['127.0.0.1:{port}:80']\n");
        let sha = agent.one_service(&stack.image("tool:1"), &more);
        pull(&agent.docker, &sha).unwrap();
        let words = failed(up(&agent.docker, &sha));
        assert!(words.contains("address already in use") || words.contains("port is already allocated"), "{words}");
        assert_eq!(agent.docker.inspect(&NO_SECRET).unwrap()[0].state, ContainerState::Created);
        drop(taken);
        up(&agent.docker, &sha).unwrap();
        assert_eq!(agent.docker.inspect(&NO_SECRET).unwrap()[0].state, ContainerState::Running);
    });
}

/// A container as a killed Compose leaves it, made to replace the `web` of a project: its id.
fn left_behind(agent: &Agent, image: &str, project: &str, name: &str, more: &[&str]) -> String {
    let label = |key: &str, value: &str| format!("--label=com.docker.compose.{key}={value}");
    let labels = [
        label("project", project),
        label("service", "web"),
        label("oneoff", "False"),
        label("container-number", "1"),
        label("config-hash", "x"),
        label("replace", &format!("{project}-web-1")),
    ];
    let mut args = vec!["create", "--pull", "never", "--name", name];
    args.extend(more);
    args.extend(labels.iter().map(String::as_str));
    args.extend([image, "sleep", "1000"]);
    agent.plain(&args)
}

#[test]
fn leftovers_of_an_interrupted_up_are_cleared_and_others_stay() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "left", |agent| {
        let sha = agent.one_service(&stack.image("tool:1"), "    command: [sleep, '1000']\n");
        pull(&agent.docker, &sha).unwrap();
        let project = agent.docker.project();
        let create = |name: &str, project: &str| left_behind(agent, &stack.image("tool:1"), project, name, &[]);
        create(&format!("0123456789ab_{project}-web-1"), project);
        let other = create(&format!("0123456789ab_{project}-other-web-1"), &format!("{project}-other"));
        up(&agent.docker, &sha).unwrap();
        let all = agent.docker.inspect(&NO_SECRET).unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(
            (all[0].name.as_str(), all[0].state),
            (format!("{project}-web-1").as_str(), ContainerState::Running)
        );
        // It is another project's, so it is still there to be removed.
        assert!(agent.plain(&["ps", "-aq", "--no-trunc"]).contains(&other));
        agent.plain(&["rm", "-f", &other]);
    });
}

#[test]
fn what_is_left_of_what_it_was_to_replace_hands_its_anonymous_volumes_on() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "heir", |agent| {
        let sha = agent.one_service(&stack.image("tool:1"), "    command: [sleep, '1000']\n    volumes: [/kept]\n");
        pull(&agent.docker, &sha).unwrap();
        up(&agent.docker, &sha).unwrap();
        let old = agent.docker.inspect(&NO_SECRET).unwrap().remove(0).id;
        agent.plain(&["exec", &old, "sh", "-c", "echo precious >/kept/file"]);
        let project = agent.docker.project();
        let name = format!("{}_{project}-web-1", &old[..12]);
        let leave = || left_behind(agent, &stack.image("tool:1"), project, &name, &["--volumes-from", &old]);
        // Killed before the removal of the old one, which is still as it is to be.
        leave();
        up(&agent.docker, &sha).unwrap();
        let ids: Vec<String> = agent.docker.inspect(&NO_SECRET).unwrap().into_iter().map(|c| c.id).collect();
        assert_eq!(ids, [old.as_str()]);
        // Killed between the removal of the old one and the new one's name.
        leave();
        agent.plain(&["rm", "-f", &old]);
        up(&agent.docker, &sha).unwrap();
        let all = agent.docker.inspect(&NO_SECRET).unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].name, format!("{project}-web-1"));
        assert_eq!(agent.plain(&["exec", &all[0].id, "cat", "/kept/file"]).trim(), "precious");
    });
}

#[test]
fn a_container_that_the_engine_lost_is_made_anew_with_its_anonymous_volumes() {
    let Some(stack) = Stack::find() else { return };
    let engine = Path::new(stack.get("STACK_DIR")).join("engine/exec");
    Agent::each(&stack, "lost", |agent| {
        let sha = agent.one_service(&stack.image("tool:1"), "    command: [sleep, '1000']\n    volumes: [/kept]\n");
        pull(&agent.docker, &sha).unwrap();
        up(&agent.docker, &sha).unwrap();
        let only = || {
            let mut all = agent.docker.inspect(&NO_SECRET).unwrap();
            assert_eq!(all.len(), 1, "{all:?}");
            all.remove(0)
        };
        let first = only().id;
        agent.plain(&["exec", &first, "sh", "-c", "echo precious >/kept/file"]);
        // What an engine that is killed in the middle of a start may leave: its runtime's folder, or its shim's.
        for left in ["runtime-runc/moby", "containerd/daemon/io.containerd.runtime.v2.task/moby"] {
            let lost = only().id;
            agent.plain(&["stop", "-t", "0", &lost]);
            let left = engine.join(left).join(&lost);
            fs::create_dir(&left).unwrap();
            let done = agent.docker.up(&Up { sha: sha.clone(), timeout_s: 60 }, &NO_SECRET);
            // The engine may have cleared it with its container.
            let _ = fs::remove_dir_all(&left);
            let warnings = done.unwrap().warnings;
            assert!(warnings.iter().any(|warning| warning.as_str().starts_with("web was made anew")), "{warnings:?}");
            let now = only();
            assert_eq!((now.name, now.state), (format!("{}-web-1", agent.docker.project()), ContainerState::Running));
            assert_ne!(now.id, lost);
            assert_eq!(agent.plain(&["exec", &now.id, "cat", "/kept/file"]).trim(), "precious");
        }
    });
}

#[test]
fn an_image_goes_when_nothing_needs_it() {
    let Some(stack) = Stack::find() else { return };
    Agent::each(&stack, "image", |agent| {
        let name = format!("{}:1", agent.docker.project());
        let id = import(agent, &name);
        let remove = || agent.docker.remove_images(&RemoveImages { ids: vec![id.clone()] }, &NO_SECRET).unwrap().gone;
        let container = agent.plain(&["create", "--pull", "never", &name, "/x"]);
        assert_eq!(remove(), Vec::<String>::new(), "a container uses it");
        agent.plain(&["rm", "-f", &container]);
        agent.plain(&["tag", &name, &format!("{}-someone:1", agent.docker.project())]);
        assert_eq!(remove(), Vec::<String>::new(), "someone else named it");
        agent.plain(&["image", "rm", &format!("{}-someone:1", agent.docker.project())]);
        assert_eq!(remove(), std::slice::from_ref(&id));
        assert_eq!(remove(), std::slice::from_ref(&id), "gone already");
    });
}

/// Makes an image that no one else has, from an archive of one file.
fn import(agent: &Agent<'_>, name: &str) -> String {
    let folder = agent.state().join("image");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("x"), name).unwrap();
    let tar = Command::new("tar").arg("-C").arg(&folder).args(["-c", "x"]).output().unwrap();
    assert!(tar.status.success());
    // The driver gives no child a stdin, so this one is started here.
    let mut child = Command::new(agent.docker.bin())
        .args(["import", "-", name])
        .env("DOCKER_HOST", agent.stack.get("STACK_DOCKER_HOST"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
