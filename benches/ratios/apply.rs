//! An apply on the real stack against bare `docker compose pull && docker compose up -d` of the same project.
//!
//! Both pull from the registry with the password, and both begin without containers and networks, with the images on the
//! engine: the case in which the agent's own work weighs most. The agent is measured from its start to the end of its
//! `up`, as its recording tells; what comes after, the wait for health, bare Compose does not do.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use monky_deployd::drivers::record::Line;
use monky_deployd::effects::{Event, OpName};

use crate::common::rig::{Rig, compose_versions};
use crate::sample::{Goals, Sample, ms};

const ROUNDS: usize = 15;
const MOST: f64 = 1.10;

const COMPOSE: &str = "\
services:
  web:
    image: @web:1
    environment: {ROUND: '#'}
    volumes: ['./site:/www:ro']
  api:
    image: @web:2
    environment: {ROUND: '#'}
  worker:
    image: @tool:1
    command: [sleep, '100000']
    environment: {ROUND: '#'}
";

pub fn run(stack: &BTreeMap<String, String>, goals: &mut Goals) {
    let mut rig = Rig::new(stack, compose_versions(stack).last().unwrap());
    // The machine's own client: the stack's wrappers would cost each call a few milliseconds more.
    rig.set("docker_bin", "docker");
    rig.bootstrap();
    let bundle = |generation: i64| {
        let compose = COMPOSE.replace('#', &generation.to_string());
        rig.simple(generation, &compose, &[("site/index.html", "bench\n")])
    };
    // The bootstrap token is swapped and the images are there from here on.
    rig.deploy(&bundle(1));
    let bare = Bare::new(&rig);
    let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let mut spent: BTreeMap<OpName, Vec<f64>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let generation = i64::try_from(round).unwrap() + 2;
        clear(&rig, &rig.project);
        rig.desire(&bundle(generation));
        let our_ms = apply(&rig, &mut spent);
        clear(&rig, &rig.project);
        let their_ms = bare.apply(&rig, &COMPOSE.replace('#', &generation.to_string()));
        clear(&rig, BARE);
        ratios.push(our_ms / their_ms);
        ours.push(our_ms);
        theirs.push(their_ms);
    }
    let ratio = Sample::new(ratios);
    println!("\nan apply to the end of `up`, against bare `docker compose pull && docker compose up -d` (ms, wall)");
    println!("  agent                {}", Sample::new(ours));
    println!("  Compose              {}", Sample::new(theirs));
    println!("  agent / Compose      {ratio}");
    println!("  where the agent's time goes (effects of one step run at the same time)");
    for (name, times) in spent {
        println!("    {:<18} {}", name.as_str(), Sample::new(times));
    }
    let median = ratio.median();
    goals.note(median <= MOST, format!("an apply takes {median:.2} times as long as bare Compose (goal {MOST})"));
}

/// A tick that applies; milliseconds from its start to the end of its `up`.
fn apply(rig: &Rig, spent: &mut BTreeMap<OpName, Vec<f64>>) -> f64 {
    let file = rig.dir.path().join("recording.jsonl");
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1000.0;
    let ran = rig.run(&["tick", "--record", &file.display().to_string()]);
    assert!(ran.stdout.starts_with("applied"), "{ran:?}");
    let mut began = 0.0;
    let mut asked = BTreeMap::new();
    for line in fs::read_to_string(&file).unwrap().lines() {
        match serde_json::from_str(line).unwrap() {
            Line::Header { boot, .. } => began = float(boot.now.0),
            Line::Effect { ms, effect, .. } => {
                asked.insert(effect.id, (effect.op.name(), ms));
            }
            Line::Event { ms, input, .. } => {
                let (name, since) = asked[&input.answers];
                spent.entry(name).or_default().push(float(ms - since));
                if matches!(input.event, Event::CameUp(_)) {
                    return began + float(ms) - start;
                }
            }
            Line::Outcome { .. } | Line::Cut { .. } => {}
        }
    }
    panic!("no `up` in the recording");
}

fn float(ms: i64) -> f64 {
    ms as f64
}

/// Removes a project's containers and networks.
fn clear(rig: &Rig, project: &str) {
    let label = format!("label=com.docker.compose.project={project}");
    for (list, remove) in
        [(&["ps", "-aq"][..], &["rm", "-f", "-v"][..]), (&["network", "ls", "-q"], &["network", "rm"])]
    {
        let ids = rig.docker_says(&[list, &["--filter", &label]].concat());
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            rig.docker_says(&[remove, &ids].concat());
        }
    }
}

const BARE: &str = "monky-bench-bare";

/// The same project without an agent.
struct Bare {
    folder: tempfile::TempDir,
}

impl Bare {
    fn new(rig: &Rig) -> Bare {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("site")).unwrap();
        fs::write(folder.path().join("site/index.html"), "bench\n").unwrap();
        // The agent made this from the registry credential: the same login.
        fs::create_dir(folder.path().join("docker")).unwrap();
        fs::write(folder.path().join("docker/config.json"), rig.file("docker/config.json")).unwrap();
        Bare { folder }
    }

    fn apply(&self, rig: &Rig, compose: &str) -> f64 {
        let images = format!("{}/monky/", rig.stack["STACK_REGISTRY"]);
        fs::write(self.folder.path().join("compose.yaml"), compose.replace('@', &images)).unwrap();
        let compose = |verb: &[&str]| {
            let mut command = Command::new("docker");
            command.env_clear().current_dir(self.folder.path()).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
            command.env("DOCKER_HOST", &rig.stack["STACK_DOCKER_HOST"]);
            command.env("DOCKER_CONFIG", self.folder.path().join("docker"));
            command.args(["compose", "-p", BARE]).args(verb);
            assert!(command.status().unwrap().success());
        };
        ms(|| {
            compose(&["pull"]);
            compose(&["up", "-d"]);
        })
    }
}
