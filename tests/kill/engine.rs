//! The box's Docker engine killed in the middle of a pull and of an `up`, and stopped so that it hangs.
//!
//! Invariant: the engine that suffers is one that `tests/stack/up.sh` started in a network namespace of its own, which
//! is looked at before anything is done to it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::rig::wait_until;
use crate::site::{Settled, Site, delay};
use crate::watch::{Process, Watched, below};

/// An engine that may be harmed.
struct Engine {
    stack: PathBuf,
    host: String,
}

impl Engine {
    fn of(site: &Site) -> Engine {
        let interfaces = fs::read_to_string("/proc/self/net/dev").unwrap();
        let names = interfaces.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
        let others: Vec<&str> =
            names.filter(|name| !["lo", "docker", "br-", "veth"].iter().any(|own| name.starts_with(own))).collect();
        assert!(others.is_empty(), "this kills an engine, so only one in a network of its own ({others:?}): make soak");
        let engine = Engine {
            stack: site.rig.stack["STACK_DIR"].clone().into(),
            host: site.rig.stack["STACK_DOCKER_HOST"].clone(),
        };
        let dockerd = engine.dockerd();
        let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_eq!(network("self"), network(&dockerd.pid.to_string()), "the engine is in this network: make soak");
        engine
    }

    fn dockerd(&self) -> Process {
        let written =
            fs::read_to_string(self.stack.join("run/engine.pid")).expect("an engine that up.sh started: make soak");
        Process::of(written.split(' ').next().unwrap().parse().unwrap()).expect("the engine runs")
    }

    /// Kills dockerd and its containerd with -9. What runs in containers goes on, as it does on a box.
    fn kill(&self) {
        let dockerd = self.dockerd();
        dockerd.signal(Signal::STOP);
        let children = below(dockerd.pid);
        assert!(!children.is_empty(), "dockerd has a containerd");
        for process in [&dockerd].into_iter().chain(&children) {
            process.signal(Signal::KILL);
        }
        wait_until("the engine is dead", || !dockerd.lives() && children.iter().all(|child| !child.lives()));
    }

    /// Starts it again, as the box's systemd does.
    fn start(&self) {
        let output = Command::new("tests/stack/up.sh")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("STACK_DIR", &self.stack)
            .env("DOCKER_HOST", &self.host)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Site {
    /// Forgets an image under all its names, so that the next pull has something to fetch.
    fn has_to_pull(&self, image: &str) {
        let listed = self.rig.docker_says(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
        for name in listed.lines().filter(|name| name.ends_with(&format!("/monky/{image}"))) {
            self.rig.docker(&["rmi", "-f", name]);
        }
    }

    /// The image of the newest bundle's `web`.
    fn web(&self) -> String {
        format!("web:{}", 1 + self.generation.get() % 2)
    }

    /// Children of an agent of this box: everyone who was given its `DOCKER_CONFIG`.
    fn children(&self) -> Vec<String> {
        let ours = format!("DOCKER_CONFIG={}", self.rig.state_dir().join("docker").display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|line| line == ours.as_bytes()) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push(String::from_utf8_lossy(&line).replace('\0', " "));
            }
        }
        found
    }
}

/// When the engine goes away: its name, at which request a pull waits, and how it is known from outside.
type Cut = (&'static str, Option<&'static str>, fn(&Watched<'_>) -> bool, u64);

const CUTS: &[Cut] = &[
    ("in the pull, a manifest was asked for", Some("/manifests/"), |w| w.site.registry.holds_one(), 0),
    ("in the pull, a layer was asked for", Some("/blobs/"), |w| w.site.registry.holds_one(), 0),
    ("in the pull, at some time", None, |w| w.children("pull") > 0, 300),
    ("in up, at once", None, |w| w.children("up") > 0, 0),
    ("in up, at some time", None, |w| w.children("up") > 0, 700),
    ("in up, later", None, |w| w.children("up") > 0, 2500),
    ("in up, a new container is there", None, |w| w.created(w.site.generation.get()), 0),
    ("in up, a new container was there for some time", None, |w| w.created(w.site.generation.get()), 1500),
    ("while it waits for health", None, |w| w.children("up") > 0 && w.children("inspect") > 1, 0),
];

#[test]
#[ignore = "minutes long, and kills an engine: make soak"]
fn an_engine_that_is_killed_in_the_middle_leaves_what_the_next_ticks_finish() {
    let Some(site) = Site::new() else { return };
    let engine = Engine::of(&site);
    site.rig.deploy(&site.bundle());
    let (mut ticks, mut ends, mut at_work) = (Vec::new(), Vec::new(), 0);
    // Every second time the tick after it finds no engine at all.
    for (n, (what, held, has_come, most)) in CUTS.iter().chain(CUTS).enumerate() {
        let away = n % 2 == 1;
        let what = format!("{what}{}", if away { ", and away for a tick" } else { "" });
        let bundle = site.bundle();
        site.has_to_pull(&site.web());
        let sha = site.rig.desire(&bundle);
        if let Some(held) = held {
            site.registry.close(held);
        }
        let watched = Watched::new(&site, &sha);
        let mut agent = watched.until(&what, has_come);
        thread::sleep(delay(n as u64 + 400, *most));
        let in_time = agent.0.try_wait().unwrap().is_none();
        at_work += usize::from(in_time);
        engine.kill();
        site.registry.open();
        let ran = agent.ended();
        // It says that Docker is away, or what Compose made of it, or that it is applied, if it needed neither any more.
        assert!([0, 1, 75].contains(&ran.status), "{what}: {ran:?}");
        ends.push(format!("{} ({what}{})", ran.stdout.trim(), if in_time { "" } else { ": too late" }));
        if away {
            let ran = site.rig.tick();
            let expected = if site.rig.status()["applied"]["sha"] == json!(sha) { 0 } else { 75 };
            assert_eq!(ran.status, expected, "{what}: {ran:?}");
        }
        assert_eq!(site.children(), Vec::<String>::new(), "{what}: children that were left");
        engine.start();
        let settled =
            Settled { runs: (&sha, site.generation.get()), says: format!("unchanged {}", &sha[..12]), exit: 0 };
        ticks.push(site.settles(&what, &settled));
        site.is_whole(&what, &settled, &[]);
        let told = site.told(&what, &sha);
        assert_eq!(told.last().unwrap()["result"], json!("applied"), "{what}: {told:?}");
    }
    for end in &ends {
        println!("  {end}");
    }
    println!(
        "kill: engine: {at_work} kills of dockerd and containerd that found the agent at work, {} came too late; \
         {} ticks to settle, at most {} a kill; lost: nothing",
        ends.len() - at_work,
        ticks.iter().sum::<usize>(),
        ticks.iter().max().unwrap(),
    );
    assert!(at_work >= 15, "{at_work} kills found the agent at work, 15 are claimed");
}

/// When the engine hangs: its name, when it is stopped, what the tick ends with, and within how many seconds.
type Pause = (&'static str, fn(&Watched<'_>) -> bool, i32, &'static str, u64);

const PAUSES: &[Pause] = &[
    ("before it is asked for its version", |_| true, 75, "DOCKER_UNAVAILABLE", 30),
    ("in the pull", |w| w.site.registry.holds_one(), 1, "PULL_TIMEOUT", 60),
    ("in up", |w| w.children("up") > 0, 1, "UP_TIMEOUT", 60),
    (
        "when containers are looked at",
        |w| w.children("up") > 0 && w.children("inspect") > 1,
        75,
        "DOCKER_UNAVAILABLE",
        90,
    ),
];

#[test]
#[ignore = "minutes long, and stops an engine: make soak"]
fn an_engine_that_hangs_costs_each_call_its_deadline_and_leaves_no_child() {
    let Some(mut site) = Site::new() else { return };
    let engine = Engine::of(&site);
    site.rig.deploy(&site.bundle());
    site.rig.set("pull_timeout_s", "8");
    site.rig.set("healthy_timeout_s", "10");
    site.rig.set("stable_s", "4");
    for (what, has_come, exit, code, within_s) in PAUSES {
        let bundle = site.bundle();
        site.has_to_pull(&site.web());
        let sha = site.rig.desire(&bundle);
        site.registry.close(if *what == "in the pull" { "/blobs/" } else { "nothing" });
        // Versions are remembered; this one asks for them.
        site.rig.change_state(|state| state["docker"] = Value::Null);
        let dockerd = engine.dockerd();
        if *code == "DOCKER_UNAVAILABLE" && *exit == 75 && *within_s == 30 {
            dockerd.signal(Signal::STOP);
        }
        let watched = Watched::new(&site, &sha);
        let began = Instant::now();
        let agent = watched.until(what, has_come);
        dockerd.signal(Signal::STOP);
        let ran = agent.ended();
        let took = began.elapsed();
        site.registry.open();
        let left = site.children();
        dockerd.signal(Signal::CONT);
        wait_until("the engine answers again", || site.rig.docker(&["version"]).status.success());
        assert_eq!(ran.status, *exit, "{what}: {ran:?}");
        assert!(ran.stdout.trim().ends_with(code), "{what}: {code} expected: {ran:?}");
        assert!(took < Duration::from_secs(*within_s), "{what}: {took:?}");
        assert_eq!(left, Vec::<String>::new(), "{what}: children that were left");
        let settled =
            Settled { runs: (&sha, site.generation.get()), says: format!("unchanged {}", &sha[..12]), exit: 0 };
        let ticks = site.settles(what, &settled);
        site.is_whole(what, &settled, &[]);
        println!(
            "kill: engine stopped {what}: {code} (exit {exit}) after {} s, no child left, settled after {ticks} ticks",
            took.as_secs()
        );
    }
}
