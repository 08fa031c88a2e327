//! What can be seen of a tick from outside while it works, and its violent end.
//!
//! Invariant: a moment is an event that stays seen once it happened (a request, a file, a line of the trace), never a
//! state that a slow look could miss.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use serde_json::{Value, json};

use crate::common::rig::{Running, wait_until};
use crate::site::Site;

/// A tick under watch: what happened before it does not count.
pub struct Watched<'a> {
    pub site: &'a Site,
    /// The bundle that it is to deploy.
    pub sha: String,
    since_requests: usize,
    since_lines: usize,
    since_logins: usize,
    since_reads: usize,
    credential: Option<u64>,
}

impl Watched<'_> {
    /// Begins to watch.
    pub fn new<'a>(site: &'a Site, sha: &str) -> Watched<'a> {
        Watched {
            site,
            sha: sha.to_owned(),
            since_requests: site.rig.tenancy.requests().len(),
            since_lines: site.trace().len(),
            since_logins: site.bao.asked("/login"),
            since_reads: site.bao.asked("/data/"),
            credential: inode(site, "docker/config.json"),
        }
    }

    /// Tenancy was called.
    pub fn called(&self, path_part: &str) -> bool {
        self.site
            .rig
            .tenancy
            .requests()
            .iter()
            .skip(self.since_requests)
            .any(|request| request.path.contains(path_part))
    }

    /// How many children with this word among their arguments were started.
    pub fn children(&self, word: &str) -> usize {
        let lines = self.site.trace();
        lines.iter().skip(self.since_lines).filter(|line| line.split(' ').any(|part| part == word)).count()
    }

    /// OpenBao was asked to let somebody in.
    pub fn logged_in(&self) -> bool {
        self.site.bao.asked("/login") > self.since_logins
    }

    /// OpenBao was asked for a secret.
    pub fn read(&self) -> bool {
        self.site.bao.asked("/data/") > self.since_reads
    }

    /// The release folder has it, and not empty.
    pub fn released(&self, file: &str) -> bool {
        let path = self.site.rig.state_dir().join("releases").join(&self.sha).join(file);
        fs::metadata(path).is_ok_and(|found| found.len() > 0)
    }

    /// The registry credential was written anew.
    pub fn credential(&self) -> bool {
        inode(self.site, "docker/config.json") != self.credential
    }

    /// `current` leads to this release.
    pub fn promoted(&self, sha: &str) -> bool {
        fs::read_link(self.site.rig.state_dir().join("current")).is_ok_and(|link| link.ends_with(sha))
    }

    /// `state.json`, whole at every moment; null before there is one.
    pub fn state(&self) -> Value {
        let text = fs::read(self.site.rig.state_dir().join("state.json"));
        text.map_or(Value::Null, |text| serde_json::from_slice(&text).expect("state.json is whole at every moment"))
    }

    /// A container of this release is there.
    pub fn created(&self, generation: i64) -> bool {
        let rig = &self.site.rig;
        let label = format!("label=rig.generation={generation}");
        let project = format!("label=com.docker.compose.project={}", rig.project);
        !rig.docker_says(&["ps", "-aq", "--filter", &project, "--filter", &label]).is_empty()
    }

    /// A report is in the outbox, or it was there: it arrived.
    pub fn put_out(&self) -> bool {
        self.called("/reports") || !self.site.outbox().is_empty()
    }

    /// The report arrived and left the outbox.
    pub fn taken(&self) -> bool {
        self.called("/reports") && self.site.outbox().is_empty()
    }

    /// Runs a tick until a moment of it has come.
    pub fn until(&self, moment: &str, has_come: impl Fn(&Self) -> bool) -> Running {
        let mut agent = self.site.rig.start(&["tick"]);
        let deadline = Instant::now() + Duration::from_secs(300);
        while !has_come(self) {
            let ended = agent.0.try_wait().unwrap().is_some();
            // What it did last is looked at once more.
            if ended && !has_come(self) || Instant::now() > deadline {
                agent.signal(Signal::KILL);
                panic!("waited in vain until {moment}: {:?}\n{:#?}", agent.ended(), self.site.trace());
            }
            // What happened stays seen, and a machine that is busy with looking is a slow one.
            std::thread::sleep(Duration::from_millis(2));
        }
        agent
    }
}

fn inode(site: &Site, file: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(fs::metadata(site.rig.state_dir().join(file)).ok()?.ino())
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The agent: its children go on beside the next tick.
    Alone,
    /// The agent and all that it started, as a unit's `KillMode=control-group` does.
    WithChildren,
}

/// What a kill met.
pub struct Killed {
    /// The agent was alive.
    pub alive: bool,
    /// How many of those that it had started, and that those had started, were alive with it.
    pub children: usize,
    /// What it had started and runs on.
    pub orphans: Vec<Process>,
}

/// Kills with -9.
pub fn kill(mut agent: Running, victim: Victim) -> Killed {
    let pid = agent.0.id();
    // Stopped first, so that nobody is started while its children are looked for.
    agent.signal(Signal::STOP);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !matches!(stat(pid).as_deref().and_then(|stat| stat.first()).map(String::as_str), Some("T" | "Z") | None) {
        assert!(Instant::now() < deadline, "the agent cannot be stopped");
        std::thread::yield_now();
    }
    let below: Vec<Process> = below(pid).into_iter().filter(Process::lives).collect();
    let children = below.len();
    agent.signal(Signal::KILL);
    if victim == Victim::WithChildren {
        for process in &below {
            // One that was only just started is still in our own group.
            if process.group != getpgrp() {
                let _ = kill_process_group(process.group, Signal::KILL);
            }
            process.signal(Signal::KILL);
        }
    }
    let status = agent.0.wait().unwrap();
    if victim == Victim::WithChildren {
        wait_until("the children are dead", || !below.iter().any(Process::lives));
    }
    let orphans = below.into_iter().filter(Process::lives).collect();
    Killed { alive: status.signal() == Some(9), children, orphans }
}

/// A process, and no later one of the same number.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    group: Pid,
    started: String,
}

impl Process {
    /// The process of this number.
    pub fn of(pid: u32) -> Option<Process> {
        let stat = stat(pid)?;
        let group = Pid::from_raw(stat.get(2)?.parse().ok()?)?;
        Some(Process { pid, group, started: stat.get(19)?.clone() })
    }

    /// It still runs.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat[19] == self.started && !["Z", "X"].contains(&stat[0].as_str()))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), signal);
    }
}

/// The fields of `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect())
}

/// Everything that a process started, and that those started.
pub fn below(pid: u32) -> Vec<Process> {
    let mut found = Vec::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().map(|child| child.parse().unwrap()) {
            found.extend(Process::of(child));
            found.extend(below(child));
        }
    }
    found
}

/// What a moment is called, whether it has come, and how many milliseconds later a kill may still be (at most).
pub type Moment = (&'static str, fn(&Watched<'_>) -> bool, u64);

/// The moments of a deploy, in their order.
pub const DEPLOY: &[Moment] = &[
    ("the check-in arrived", |w| w.called("/checkin"), 20),
    ("the bundle was asked for", |w| w.called("/bundles/"), 20),
    ("the release is staged", |w| w.released("compose.yaml"), 20),
    ("Compose resolves the model", |w| w.children("--no-interpolate") > 0, 200),
    ("a lease was asked for", |w| w.called("/leases"), 20),
    ("the grant is saved", |w| w.site.rig.has("grant.json"), 20),
    ("OpenBao was asked to let it in", |w| w.logged_in(), 20),
    ("the token is saved", |w| w.site.rig.has("token.json"), 20),
    ("a secret was asked for", |w| w.read(), 20),
    ("the credential is written", |w| w.credential(), 20),
    ("the values are written", |w| w.released(".env"), 20),
    ("Compose checks the release", |w| w.children("-q") > 0, 200),
    ("Compose pulls", |w| w.children("pull") > 0, 400),
    ("the goal is saved", |w| w.state()["unfinished"]["sha"] == json!(w.sha), 20),
    ("the release is promoted", |w| w.promoted(&w.sha), 20),
    ("Compose brings it up", |w| w.children("up") > 0, 1500),
    ("its first container is there", |w| w.created(w.site.generation.get()), 1500),
    ("its containers are looked at", |w| w.children("up") > 0 && w.children("inspect") > 0, 400),
    ("its outcome is saved", |w| w.state()["good"].to_string().contains(&w.sha), 10),
    ("the outcome is in the outbox", |w| w.put_out(), 10),
    ("the report arrived", |w| w.called("/reports"), 10),
    ("the report left the outbox", |w| w.taken(), 5),
];
