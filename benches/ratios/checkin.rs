//! An unchanged tick against the shortest Python program that makes the same check-in.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::rig::{Rig, compose_versions};
use crate::sample::{Goals, Sample, ms};

const ROUNDS: usize = 100;
const LOOKS: usize = 15;
const FASTER: f64 = 20.0;
const PEAK_KIB: f64 = 10.0 * 1024.0;

pub fn run(stack: &BTreeMap<String, String>, goals: &mut Goals) {
    let rig = Rig::new(stack, compose_versions(stack).last().unwrap());
    rig.bootstrap();
    let compose = "services:\n  web:\n    image: @web:1\n";
    let sha = rig.deploy(&rig.simple(1, compose, &[]));
    let unchanged = rig.tick_ends(0);
    assert_eq!(unchanged.stdout.trim(), format!("unchanged {}", &sha[..12]), "{unchanged:?}");

    // The very body that the agent sends, and the very address.
    let (_, body) = rig.tenancy.checkins().pop().unwrap();
    let (url, body) = (format!("/v1/envs/{}/checkin", rig.env_id), body.to_string());
    let python = python();
    let mut agent = rig.command(&["tick"]);
    let mut rival = Command::new(&python);
    rival.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/checkin.py"));
    rival.args([&rig.tenancy.port().to_string(), &url, &body]);
    let mut bare = Command::new(&python);
    bare.args(["-c", "pass"]);
    for command in [&mut agent, &mut rival, &mut bare] {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    let run = |command: &mut Command| ms(|| assert!(command.status().unwrap().success()));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(run(&mut agent));
        times[1].push(run(&mut rival));
        times[2].push(run(&mut bare));
    }
    let ratio = Sample::new(times[1].iter().zip(&times[0]).map(|(rival, agent)| rival / agent));
    let [agent_ms, rival_ms, bare_ms] = times.map(Sample::new);
    let peak = |command: &mut Command| Sample::new((0..LOOKS).map(|_| peak_kib(command)));
    let (agent_kib, rival_kib) = (peak(&mut agent), peak(&mut rival));

    println!("\nan unchanged tick, against the same check-in in Python (ms, wall)");
    println!("  agent                {agent_ms}");
    println!("  Python               {rival_ms}");
    println!("  Python, doing naught {bare_ms}");
    println!("  Python / agent       {ratio}");
    println!("  peak KiB, agent      {agent_kib}");
    println!("  peak KiB, Python     {rival_kib}");
    let median = ratio.median();
    goals.note(median >= FASTER, format!("an unchanged tick is {median:.1} times as fast as Python (goal {FASTER})"));
    let peak = agent_kib.median();
    goals.note(peak <= PEAK_KIB, format!("its peak memory is {:.1} MiB (goal 10)", peak / 1024.0));
}

/// The interpreter itself: what is called `python3` may be a script that looks for it.
fn python() -> String {
    let said = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

/// The peak resident size that the kernel shows for a running child, looked at until it is gone. (What the kernel
/// adds up for children that were waited for includes the size of the process that started them.)
fn peak_kib(command: &mut Command) -> f64 {
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    while child.try_wait().unwrap().is_none() {
        let Ok(text) = fs::read_to_string(&status) else { continue };
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kib) = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()) {
            peak = kib;
        }
    }
    peak
}
