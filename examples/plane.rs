//! The control plane of one box, for the tests of the installation: the reference tenancy on a loopback port, the box's mounts,
//! policy and secrets in the stack's real OpenBao, a bundle with an image of its real registry.
//!
//! `tests/install/plane.sh` starts and asks it; what it answers is written there. It is told by HTTP on a loopback port:
//!
//! | path | does |
//! |---|---|
//! | `/deploy?generation=N&web=V` | desires a bundle with image `monky/web:V`; a body is its `compose.yaml`, with `@web:` and `@tool:` for the registry's images |
//! | `/hold?reason=R`, `/release` | holds the environment, lets it go |
//! | `/reachable?is=no` | tenancy is away, or back |
//! | `/grant` | another bootstrap grant |
//! | `/reports`, `/checkins`, `/leases` | what arrived, a JSON value a line; the number of leases |
//!
//! SIGTERM ends it.
//!
//! Invariant: whatever it made in OpenBao and Docker carries its environment's name, and goes when it ends.

#![expect(clippy::unwrap_used, reason = "a control plane of tests that cannot go on has failed")]

#[path = "../tests/common"]
#[expect(dead_code, reason = "the tests use the rest")]
mod common {
    pub mod openapi;
    pub mod rig;
    pub mod stack_env;
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::rig::{self, Rig};
use monky_deployd::sandbox::http::{Answer, Reply, Request, Server, lock};
use serde_json::{Value, json};

/// Nobody waits longer; a test that was killed leaves no plane behind.
const LIFE: Duration = Duration::from_secs(3600);

/// The one service: it needs a secret, and is healthy when it answers with it in its environment.
const COMPOSE: &str = "\
services:
  web:
    image: @web:VERSION
    environment:
      GREETING: ${GREETING}
    healthcheck:
      test: [CMD, wget, -q, -O, /dev/null, 'http://127.0.0.1:8080/']
      interval: 1s
      retries: 30
";

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: plane FOLDER");
        return ExitCode::from(2);
    };
    let stack = common::stack_env::stack().expect("the plane is of no use without the real stack");
    let compose = rig::compose_versions(&stack).pop().expect("the stack has a Compose");
    let mut rig = Rig::with_tls(&stack, &compose);
    // The box has its own.
    for key in ["docker_bin", "state_dir"] {
        rig.unset(key);
    }
    rig.set("bao.ca_file", "/etc/monky-deployd/bao-ca.pem");
    rig.set("site", "\"Hall 3, rack 2\"");
    rig.registry_secret();
    rig.secret("greeting", json!({"value": "hello from OpenBao"}));

    let told = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&told)).unwrap();
    }
    let rig = Arc::new(Mutex::new(Some(rig)));
    let of_server = Arc::clone(&rig);
    let server = Server::start(move |request| {
        Reply::Answer(lock(&of_server).as_ref().map_or_else(|| Answer::empty(503), |rig| answer(rig, request)))
    });
    let server = server.unwrap();
    if let Some(rig) = lock(&rig).as_ref() {
        write_down(rig, &folder, server.port());
    }
    let started = Instant::now();
    while !told.load(Ordering::Relaxed) && started.elapsed() < LIFE {
        thread::sleep(Duration::from_millis(100));
    }
    // Threads of the server may hold the rig still: what it made goes now, with it.
    drop(lock(&rig).take());
    let _ = fs::remove_file(folder.join("env"));
    ExitCode::SUCCESS
}

/// What a box needs to know, for shells; `env` last, and whole.
fn write_down(rig: &Rig, folder: &Path, admin: u16) {
    fs::create_dir_all(folder).unwrap();
    fs::copy(rig.config_file(), folder.join("config.yaml")).unwrap();
    fs::copy(&rig.stack["STACK_BAO_TLS_CA"], folder.join("bao-ca.pem")).unwrap();
    fs::write(folder.join("bootstrap.jwt"), rig.tenancy.mint_bootstrap_grant(&rig.env_id, 600)).unwrap();
    let env = format!(
        "PLANE_PID='{}'\nPLANE_ADMIN='http://127.0.0.1:{admin}'\nPLANE_ENV_ID='{}'\nPLANE_PROJECT='{}'\n\
         PLANE_TENANCY_PORT='{}'\nPLANE_BAO_ADDR='{}'\nPLANE_BAO_AUTH_MOUNT='{}'\nPLANE_BAO_KV_MOUNT='{}'\nPLANE_REGISTRY='{}'\n",
        std::process::id(),
        rig.env_id,
        rig.project,
        rig.tenancy.port(),
        rig.stack["STACK_BAO_ADDR"],
        rig.jwt,
        rig.kv,
        rig.stack["STACK_REGISTRY"],
    );
    fs::write(folder.join(".env"), env).unwrap();
    fs::rename(folder.join(".env"), folder.join("env")).unwrap();
}

fn answer(rig: &Rig, request: &Request) -> Answer {
    let asked = |name: &str| {
        request
            .query()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    };
    let text = |text: String| Answer::empty(200).header("Content-Type", "text/plain").body(text + "\n");
    let lines = |values: Vec<Value>| {
        Answer::empty(200)
            .header("Content-Type", "application/jsonl")
            .body(values.iter().map(|value| format!("{value}\n")).collect::<String>())
    };
    match request.path() {
        "/deploy" => {
            let Some(generation) = asked("generation").and_then(|n| n.parse().ok()) else {
                return Answer::empty(400).body("generation=N is missing\n");
            };
            let compose = match String::from_utf8_lossy(&request.body) {
                body if body.trim().is_empty() => {
                    COMPOSE.replace("VERSION", &asked("web").unwrap_or_else(|| "1".to_owned()))
                }
                body => body.into_owned(),
            };
            let entries = [rig.registry_entry(), rig.entry("GREETING", "greeting")];
            text(rig.desire(&rig.bundle(generation, &compose, &entries, &[])))
        }
        "/hold" => {
            rig.tenancy.hold(&rig.env_id, Some(&asked("reason").unwrap_or_else(|| "held by a test".to_owned())));
            text("held".to_owned())
        }
        "/release" => {
            rig.tenancy.hold(&rig.env_id, None);
            text("released".to_owned())
        }
        "/reachable" => {
            rig.tenancy.set_reachable(asked("is").as_deref() != Some("no"));
            text("ok".to_owned())
        }
        "/grant" => text(rig.tenancy.mint_bootstrap_grant(&rig.env_id, 600)),
        "/reports" => lines(rig.tenancy.reports()),
        "/checkins" => lines(rig.tenancy.checkins().into_iter().map(|(_, checkin)| checkin).collect()),
        "/leases" => text(rig.tenancy.leases_granted(&rig.env_id).to_string()),
        _ => Answer::empty(404),
    }
}
