//! What an agent that was killed left running: its `docker` goes on by itself, and two `up` at the same time leave
//! containers under half-made names.
//!
//! Invariant: only a process of this state directory's agent is ended, known by the environment that it was given, and
//! never one that a living agent waits for.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long the end of those that were killed is waited for.
const WAIT: Duration = Duration::from_secs(5);

/// More ancestors than anybody has.
const ANCESTORS: usize = 64;

/// Ends every such process. Only for the holder of the state directory's lock, before it starts a child: whoever is found
/// then belongs to an agent that is dead. (Under the packaged unit there is none: systemd ends the whole control group.)
pub fn end(state_dir: &Path) {
    let mut left = kill_all(state_dir);
    let until = Instant::now() + WAIT;
    // Looked for anew, since one may have started another in between.
    while left > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
        left = kill_all(state_dir);
    }
}

/// Kills those that are there; gives how many were.
fn kill_all(state_dir: &Path) -> usize {
    let config = [b"DOCKER_CONFIG=", state_dir.join("docker").as_os_str().as_encoded_bytes()].concat();
    let given: [&[u8]; 2] = [&config, b"COMPOSE_INTERACTIVE_NO_CLI=1"];
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|pid| kill_if_ours(*pid, &given).is_some()).count()
}

/// Kills a process if it was given all of this, and no living agent is above it.
fn kill_if_ours(pid: i32, given: &[&[u8]]) -> Option<()> {
    // Held before it is looked at, so that no other process of this number is meant.
    let held = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // Of other users' processes this cannot be read.
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let has = |line: &&[u8]| environment.split(|byte| *byte == 0).any(|other| other == *line);
    if !given.iter().all(has) || below_an_agent(pid) {
        return None;
    }
    pidfd_send_signal(&held, Signal::KILL).ok()
}

/// One of its ancestors runs this program.
fn below_an_agent(pid: i32) -> bool {
    let Ok(own) = fs::read_to_string("/proc/self/comm") else { return true };
    let mut at = pid;
    for _ in 0..ANCESTORS {
        match parent(at) {
            Some(parent) if parent > 1 => at = parent,
            Some(_) | None => return false,
        }
        if fs::read_to_string(format!("/proc/{at}/comm")).is_ok_and(|comm| comm == own) {
            return true;
        }
    }
    true
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the program's name, which may hold blanks and parentheses: state, parent.
    stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A process that was given this, below a shell (whose name is not ours) or directly below this program.
    fn started(folder: &Path, marked: bool, below_us: bool) -> Child {
        let mut command = Command::new("/bin/sh");
        // The shell that is waited for ends at once; what it leaves is an orphan.
        let line = if below_us { "exec sleep 1000" } else { "sleep 1000 & echo $! >\"$0\"" };
        command.args(["-c", line]).arg(folder.join("pid")).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("DOCKER_CONFIG", folder.join("docker"));
        if marked {
            command.env("COMPOSE_INTERACTIVE_NO_CLI", "1");
        }
        command.spawn().unwrap()
    }

    fn orphan(folder: &Path, marked: bool) -> i32 {
        started(folder, marked, false).wait().unwrap();
        fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap()
    }

    fn runs(pid: i32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn only_orphans_of_this_state_directory_are_ended() {
        let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (orphaned, others, persons) = (orphan(ours.path(), true), orphan(other.path(), true), {
            let folder = ours.path().join("person");
            fs::create_dir(&folder).unwrap();
            orphan(&folder, false)
        });
        let mut waited_for = started(ours.path(), true, true);
        end(ours.path());
        let after = (runs(orphaned), runs(others), runs(persons), waited_for.try_wait().unwrap().is_none());
        waited_for.kill().unwrap();
        waited_for.wait().unwrap();
        for pid in [others, persons] {
            let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        assert_eq!(after, (false, true, true, true));
    }
}
