//! An agent that is killed, at whatever moment, leaves a box that the next tick puts right.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::rig::{Rig, on_one, wait_until};

/// One deploy, as it can be watched from outside.
struct Watched<'a> {
    rig: &'a Rig,
    sha: String,
    generation: i64,
    /// The requests before it.
    since: usize,
}

impl Watched<'_> {
    fn called(&self, path_part: &str) -> bool {
        self.rig.tenancy.requests().iter().skip(self.since).any(|request| request.path.contains(path_part))
    }

    fn released(&self, file: &str) -> bool {
        let path = self.rig.state_dir().join("releases").join(&self.sha).join(file);
        fs::metadata(path).is_ok_and(|found| found.len() > 0)
    }

    fn promoted(&self) -> bool {
        fs::read_link(self.rig.state_dir().join("current")).is_ok_and(|link| link.ends_with(&self.sha))
    }

    fn created(&self) -> bool {
        let label = format!("label=rig.generation={}", self.generation);
        let project = format!("label=com.docker.compose.project={}", self.rig.project);
        !self.rig.docker_says(&["ps", "-aq", "--filter", &project, "--filter", &label]).is_empty()
    }
}

/// What the moment is called, and whether it has come.
type Moment = (&'static str, fn(&Watched<'_>) -> bool);

/// Moments of a deploy in their order, each by its first trace outside of the process.
const MOMENTS: &[Moment] = &[
    ("the check-in arrived", |w| w.called("/checkin")),
    ("the bundle was fetched", |w| w.called("/bundles/")),
    ("the release is staged", |w| w.released("compose.yaml")),
    ("a lease was granted", |w| w.called("/leases")),
    ("the grant is saved", |w| w.rig.has("grant.json")),
    ("the token is saved", |w| w.rig.has("token.json")),
    ("the values are written", |w| w.released(".env")),
    ("the release is promoted", |w| w.promoted()),
    ("its container is there", |w| w.created()),
    ("the outcome is in the outbox", |w| !w.rig.outbox().is_empty()),
    ("the report arrived", |w| w.called("/reports")),
];

#[test]
fn an_agent_that_is_killed_at_any_moment_leaves_what_the_next_tick_finishes_and_tells_once() {
    on_one(|rig| {
        rig.tenancy.lease_budget(None);
        rig.registry_secret();
        let bundle = |generation: i64| {
            rig.secret("db", json!({"value": format!("value {generation}")}));
            let compose = format!(
                "services: {{web: {{image: '@web:1', environment: {{P: '${{P}}'}}, labels: {{rig.generation: '{generation}'}}}}, db: {{image: '@tool:1', command: [sleep, '1000']}}}}\n"
            );
            rig.bundle(generation, &compose, &[rig.entry("P", "db"), rig.registry_entry()], &[])
        };
        rig.deploy(&bundle(0));
        let db = rig.life("db");
        for (generation, (moment, has_come)) in (1..).zip(MOMENTS) {
            // Each deploy leases and logs in anew.
            for file in ["token.json", "grant.json"] {
                let _ = fs::remove_file(rig.state_dir().join(file));
            }
            // And has forgotten the leases of the one before.
            rig.change_state(|state| state["leases"] = json!([]));
            let sha = rig.desire(&bundle(generation));
            let watched = Watched { rig, sha: sha.clone(), generation, since: rig.tenancy.requests().len() };
            let agent = rig.start(&["tick"]);
            let deadline = Instant::now() + Duration::from_secs(60);
            while !has_come(&watched) {
                assert!(Instant::now() < deadline, "waited in vain until {moment}");
                std::thread::yield_now();
            }
            agent.signal(Signal::KILL);
            drop(agent);

            let ran = rig.tick_ends(0);
            assert_eq!(
                String::from_utf8_lossy(&rig.environment("web")["P"]),
                format!("value {generation}"),
                "{moment}"
            );
            assert_eq!((rig.all_ids().len(), rig.life("db")), (2, db.clone()), "{moment}: {ran:?}");
            let status = rig.status();
            assert_eq!((&status["applied"]["sha"], &status["unfinished"]), (&json!(sha), &Value::Null), "{moment}");
            let reports = rig.reports();
            let of_sha: Vec<&Value> = reports.iter().filter(|report| report["sha"] == json!(sha)).collect();
            assert_eq!(of_sha.len(), 1, "{moment}: {of_sha:?}");
            assert_eq!(of_sha[0]["result"], "applied");
            assert!(rig.outbox().is_empty(), "{moment}");
            assert_eq!(rig.tick_ends(0).stdout.trim(), format!("unchanged {}", &sha[..12]), "{moment}");
            for path in rig.everything().keys() {
                let name = path.file_name().unwrap().to_str().unwrap();
                let known = !name.starts_with(".") || [".env", ".monky-deployd.yaml"].contains(&name);
                assert!(known && !name.contains("corrupt"), "{moment}: {path:?} was left behind");
            }
        }
    });
}

#[test]
fn a_rollback_that_was_interrupted_is_finished_and_told_as_one() {
    on_one(|rig| {
        rig.set("on_unhealthy", "rollback");
        let good = rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        let crashes = "services: {web: {image: '@web:2'}, job: {image: '@tool:1', command: ['false']}}\n";
        let bad = rig.desire(&rig.simple(2, crashes, &[]));
        let agent = rig.start(&["tick"]);
        let current = |sha: &str| fs::read_link(rig.state_dir().join("current")).is_ok_and(|link| link.ends_with(sha));
        wait_until("the bad release is promoted", || current(&bad));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !current(&good) {
            assert!(Instant::now() < deadline, "it was not rolled back");
            std::thread::yield_now();
        }
        agent.signal(Signal::KILL);
        drop(agent);
        let ran = rig.tick_ends(1);
        assert_eq!(ran.stdout.trim(), format!("rolled_back {} UNHEALTHY", &bad[..12]), "{ran:?}");
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 1\n");
        let reports = rig.reports();
        let told: Vec<&Value> = reports.iter().filter(|report| report["sha"] == json!(bad)).collect();
        assert_eq!((told.len(), &told[0]["rolled_back"], &told[0]["attempt"]), (1, &json!(true), &json!(1)));
        assert_eq!(rig.tick_ends(1).stdout.trim(), format!("quarantined {}", &bad[..12]));
    });
}

#[test]
fn a_full_disk_is_told_and_the_next_attempt_finds_the_room() {
    on_one(|rig| {
        let sha = rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        let life = rig.life("web");
        let room = Room::small(&rig.state_dir().join("releases"));
        let large = "x".repeat(1_000_000);
        let files = [("large", large.as_str())];
        let next = rig.desire(&rig.simple(2, "services: {web: {image: '@web:2'}}\n", &files));
        let ran = rig.tick_fails("DISK_FULL");
        assert!(ran.stderr.contains("releases") && ran.stderr.contains("free space"), "{}", ran.stderr);
        assert_eq!((rig.life("web"), rig.status()["applied"]["sha"].clone()), (life, json!(sha)));
        drop(room);
        rig.backoff_is_over();
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &next[..12]));
    });
}

/// A folder on a disk of its own that holds 300 KB.
struct Room(std::path::PathBuf);

impl Room {
    fn small(folder: &std::path::Path) -> Room {
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=300k,mode=0700", "none"])
            .arg(folder)
            .status()
            .unwrap();
        assert!(mount.success(), "the real stack needs root, and this a mount");
        Room(folder.to_owned())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}
