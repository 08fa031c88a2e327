//! What the tests against the stand-in and those against the real engine have in common: releases on disk, and the
//! story of a project that both must tell alike.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use monky_deployd::drivers::docker::cli::{Docker, Environment};
use monky_deployd::effects::containers::{Container, ContainerState, Health};
use monky_deployd::effects::{Pull, ReadLogs, RemoveImages, RunFault, Scrub, Sha, Up};

/// Hides one value.
pub struct Hide(pub &'static str);

impl Scrub for Hide {
    fn scrub(&self, text: &str) -> String {
        text.replace(self.0, "***")
    }
}

/// Nothing that any test says.
pub const NO_SECRET: Hide = Hide("\u{0}");

/// A `docker` with the environment that `get` gives.
pub fn docker(bin: &Path, state_dir: &Path, project: &str, get: &dyn Fn(&str) -> Option<OsString>) -> Docker {
    Docker::new(bin, state_dir, project, Environment::from_own(state_dir, get), Arc::new(AtomicBool::new(false)))
}

/// Writes a release as the agent does, with `next` pointing to it, and gives its sha.
pub fn stage(state_dir: &Path, name: &str, files: &[(&str, &str)], labels: &[(&str, &str)]) -> Sha {
    let sha = Sha::of(name.as_bytes());
    let folder = state_dir.join("releases").join(sha.as_str());
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut over = String::from("services:\n");
    for (service, digest) in labels {
        over.push_str(&format!("  {service}:\n    labels:\n      monky-deployd.mounts: {digest}\n"));
    }
    fs::write(folder.join(".monky-deployd.yaml"), if labels.is_empty() { "{}\n" } else { &over }).unwrap();
    next(state_dir, &sha);
    sha
}

/// Points `next` at a release.
pub fn next(state_dir: &Path, sha: &Sha) {
    point(state_dir, "next", sha);
}

/// Points `current` at a release.
pub fn promote(state_dir: &Path, sha: &Sha) {
    point(state_dir, "current", sha);
}

fn point(state_dir: &Path, link: &str, sha: &Sha) {
    let (link, new) = (state_dir.join(link), state_dir.join(format!("{link}.new")));
    symlink(Path::new("releases").join(sha.as_str()), &new).unwrap();
    fs::rename(new, link).unwrap();
}

pub fn pull(docker: &Docker, sha: &Sha) -> Result<(), RunFault> {
    docker.pull(&Pull { sha: sha.clone(), timeout_s: 60 }, &NO_SECRET).map(|_| ())
}

pub fn up(docker: &Docker, sha: &Sha) -> Result<(), RunFault> {
    docker.up(&Up { sha: sha.clone(), timeout_s: 60 }, &NO_SECRET).map(|_| ())
}

/// The container of a service.
pub fn of<'a>(all: &'a [Container], service: &str) -> &'a Container {
    all.iter().find(|it| it.service == service).unwrap_or_else(|| panic!("no container of {service} in {all:?}"))
}

/// Looks until something is true of the containers.
pub fn until(docker: &Docker, what: &str, is_so: impl Fn(&[Container]) -> bool) -> Vec<Container> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let all = docker.inspect(&NO_SECRET).unwrap();
        if is_so(&all) {
            return all;
        }
        assert!(Instant::now() < end, "not so after 30 s: {what}: {all:?}");
        sleep(Duration::from_millis(100));
    }
}

/// The words of a call that failed by itself.
pub fn failed(result: Result<(), RunFault>) -> String {
    match result {
        Err(RunFault::Failed { words, .. }) => words.as_str().to_owned(),
        other => panic!("not a failure: {other:?}"),
    }
}

/// A project of four services: `web` mounts `conf`, `db` mounts `init`, `job` ends at once, `old` is in the first release only.
pub fn compose_yaml(web: &str, tool: &str, with_old: bool) -> String {
    let old =
        if with_old { format!("  old:\n    image: {tool}\n    command: [sleep, '1000']\n") } else { String::new() };
    format!(
        "services:
  web:
    image: {web}
    environment:
      GREETING: ${{GREETING}}
    volumes: ['./conf:/conf:ro']
    healthcheck:
      test: [CMD, 'true']
      interval: 1s
  db:
    image: {tool}
    command: [sh, -c, 'echo started; echo odd >&2; exec sleep 1000']
    volumes: ['./init:/init:ro', 'data:/data']
  job:
    image: {tool}
    command: ['true']
{old}volumes:
  data: {{}}
"
    )
}

/// Two releases of a project, from the first pull to the last image: told alike by the stand-in and by the real thing.
pub fn a_deploy_touches_only_what_changed(docker: &Docker, state_dir: &Path, web: &str, tool: &str) {
    let env = ".env";
    let one = stage(
        state_dir,
        "one",
        &[
            ("compose.yaml", &compose_yaml(web, tool, true)),
            (env, "GREETING=\"a $$1 \\\"b\\\"\"\n"),
            ("conf/a", "1"),
            ("init/a", "1"),
        ],
        &[("web", "w1"), ("db", "d1")],
    );
    docker.check(&one, &NO_SECRET).unwrap();
    pull(docker, &one).unwrap();
    promote(state_dir, &one);
    up(docker, &one).unwrap();
    let first = until(docker, "web is healthy, the job is done, the rest runs", |all| {
        all.len() == 4
            && of(all, "web").health == Some(Health::Healthy)
            && of(all, "job").state == ContainerState::Exited
            && of(all, "db").state == ContainerState::Running
    });
    assert_eq!(of(&first, "job").exit_code, 0);
    assert_eq!(of(&first, "db").health, None);
    assert_eq!(of(&first, "web").name, format!("{}-web-1", docker.project()));
    assert!(of(&first, "web").image_id.starts_with("sha256:"));

    let tails = docker
        .read_logs(
            &ReadLogs { containers: vec![("db".to_owned(), of(&first, "db").id.clone())], lines: 10 },
            &Hide("started"),
        )
        .unwrap();
    assert_eq!(tails[0].service, "db");
    let mut lines: Vec<&str> = tails[0].text.as_str().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["***", "odd"], "both streams, scrubbed");

    // The second release changes what `web` mounts, and has no `old`.
    let two = stage(
        state_dir,
        "two",
        &[
            ("compose.yaml", &compose_yaml(web, tool, false)),
            (env, "# another comment\nGREETING=\"a $$1 \\\"b\\\"\"\n"),
            ("conf/a", "2"),
            ("init/a", "1"),
        ],
        &[("web", "w2"), ("db", "d1")],
    );
    docker.check(&two, &NO_SECRET).unwrap();
    pull(docker, &two).unwrap();
    promote(state_dir, &two);
    up(docker, &two).unwrap();
    let second = until(docker, "web is healthy again", |all| {
        all.len() == 3
            && of(all, "web").health == Some(Health::Healthy)
            && of(all, "job").state == ContainerState::Exited
    });
    assert_ne!(of(&first, "web").id, of(&second, "web").id, "what it mounts has changed");
    assert_eq!(of(&first, "db").id, of(&second, "db").id, "nothing of it has changed");
    assert_eq!(of(&first, "db").started_at, of(&second, "db").started_at, "it was not even started again");

    // The third one changes a value only.
    let three = stage(
        state_dir,
        "three",
        &[
            ("compose.yaml", &compose_yaml(web, tool, false)),
            (env, "GREETING=other\n"),
            ("conf/a", "2"),
            ("init/a", "1"),
        ],
        &[("web", "w2"), ("db", "d1")],
    );
    promote(state_dir, &three);
    up(docker, &three).unwrap();
    let third = docker.inspect(&NO_SECRET).unwrap();
    assert_ne!(of(&second, "web").id, of(&third, "web").id);
    assert_eq!(of(&second, "db").id, of(&third, "db").id);

    // Images: what is used stays, what is not there is gone.
    let never = format!("sha256:{}", "0".repeat(64));
    let ids = vec![of(&third, "db").image_id.clone(), never.clone()];
    assert_eq!(docker.remove_images(&RemoveImages { ids }, &NO_SECRET).unwrap().gone, [never]);
}

/// What Compose will not take is told in its own words.
pub fn what_compose_will_not_take(docker: &Docker, state_dir: &Path) {
    let check = |yaml: &str| {
        let sha = stage(state_dir, yaml, &[("compose.yaml", yaml), (".env", "")], &[]);
        docker.check(&sha, &NO_SECRET)
    };
    let words =
        failed(check("services:\n  web:\n    image: a/${ONE}:${TWO}\n    command: [\"$ONE\", \"${THREE:-x}\"]\n"));
    assert!(words.contains("no value: ONE, TWO;"), "{words}");
    let words = failed(check("services:\n  web: {}\n"));
    assert!(words.starts_with("service \"web\" has neither an image nor a build context specified"), "{words}");
    let words = failed(check("services:\n  web: {image: x, depends_on: [db]}\n"));
    assert!(words.starts_with("service \"web\" depends on undefined service \"db\""), "{words}");
    let words = failed(check("services:\n  web: {image: x, imag: y}\n"));
    assert!(words.contains("services.web") && words.contains("imag") && words.contains("not allowed"), "{words}");
    let words = failed(check("services:\n  web: [\n"));
    assert!(words.contains("yaml: "), "{words}");
    let words = failed(check("services:\n  web: {image: \"${A:?must be there}\"}\n"));
    assert_eq!(
        words,
        "error while interpolating services.web.image: required variable A is missing a value: must be there"
    );
}

/// The model names what is mounted by its real path, and holds no value.
pub fn the_model_is_complete_and_without_values(docker: &Docker, state_dir: &Path) {
    let yaml = "services:
  web:
    image: r.example/web:${TAG:-1}
    environment: [\"PASSWORD=${PASSWORD}\", PLAIN=b]
    env_file: .env
    volumes: ['./conf:/conf:ro', data:/data]
    configs: [c]
    depends_on: [job]
  job:
    image: r.example/job
    command: a b
    deploy: {replicas: 2}
    profiles: [debug]
volumes: {data: {}}
configs: {c: {file: ./conf/c}}
";
    let files = [("compose.yaml", yaml), (".env", "PASSWORD=hunter2\n"), ("conf/c", "x")];
    let sha = stage(state_dir, "model", &files, &[]);
    let bytes = docker.model(&sha, &NO_SECRET).unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(!text.contains("hunter2"));
    let folder = state_dir.join("next").display().to_string();
    let model: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = serde_json::json!({
        "name": docker.project(),
        "configs": {"c": {"file": format!("{folder}/conf/c"), "name": format!("{}_c", docker.project())}},
        "networks": {"default": {"name": format!("{}_default", docker.project())}},
        "volumes": {"data": {"name": format!("{}_data", docker.project())}},
        "services": {
            "job": {
                "command": "a b",
                "deploy": {"replicas": 2},
                "image": "r.example/job",
                "networks": {"default": null},
                "profiles": ["debug"],
            },
            "web": {
                "configs": [{"source": "c"}],
                "depends_on": {"job": {"condition": "service_started", "required": true}},
                "env_file": [{"path": format!("{folder}/.env"), "required": true}],
                "environment": ["PASSWORD=${PASSWORD}", "PLAIN=b"],
                "image": "r.example/web:${TAG:-1}",
                "networks": {"default": null},
                "volumes": [
                    {
                        "type": "bind",
                        "source": format!("{folder}/conf"),
                        "target": "/conf",
                        "read_only": true,
                        "bind": {"create_host_path": true},
                    },
                    {"type": "volume", "source": "data", "target": "/data", "volume": {}},
                ],
            },
        },
    });
    assert_eq!(model, expected);
}

/// Values come into the container as they are, through `${V}` and through `env_file`; `environment_of` looks into one.
pub fn values_arrive_exactly(
    docker: &Docker,
    state_dir: &Path,
    image: &str,
    environment_of: &dyn Fn(&str) -> Vec<(String, String)>,
) {
    let yaml = format!(
        "services:
  web:
    image: {image}
    command: [sleep, '1000']
    env_file: .env
    environment:
      WHOLE: \"${{A}}\"
      DEFAULT: \"${{NONE:-d}}\"
      EMPTY: \"${{NOTHING:-d}}/${{NOTHING-d}}\"
      DOLLAR: \"$$A\"
      OTHER: \"${{NONE:+x}}/${{A:+set}}\"
      NESTED: \"pre-${{NONE:-${{A:+in}}}}-post\"
"
    );
    let env = "# a comment\nA=\"x\\\"y\\\\z$$w #\\nl2\\r'\"\nB=plain\nNOTHING=\n";
    let sha = stage(state_dir, "values", &[("compose.yaml", &yaml), (".env", env)], &[]);
    docker.check(&sha, &NO_SECRET).unwrap();
    pull(docker, &sha).unwrap();
    promote(state_dir, &sha);
    up(docker, &sha).unwrap();
    let all = docker.inspect(&NO_SECRET).unwrap();
    let environment = environment_of(&of(&all, "web").id);
    let value = |name: &str| {
        environment.iter().find(|(key, _)| key == name).map_or_else(|| panic!("no {name}"), |(_, value)| value.as_str())
    };
    let a = "x\"y\\z$w #\nl2\r'";
    assert_eq!([value("A"), value("WHOLE"), value("B")], [a, a, "plain"]);
    assert_eq!([value("DEFAULT"), value("EMPTY"), value("DOLLAR")], ["d", "d/", "$A"]);
    assert_eq!([value("OTHER"), value("NESTED")], ["/set", "pre-in-post"]);
}
