//! The verdict on what came up, and what follows from it.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::common::rig::{Rig, on_each, on_one};

const GOOD: &str = "services: {web: {image: '@web:1'}}\n";
const CRASHES: &str = "
services:
  web:
    image: '@web:1'
  worker:
    image: '@tool:1'
    command: [sh, -c, 'echo the moon is missing; exit 3']
";

fn applied(rig: &Rig) -> Value {
    rig.status()["applied"]["sha"].clone()
}

#[test]
fn what_is_unhealthy_is_kept_to_be_looked_at_and_does_not_count_as_applied() {
    on_each(|rig| {
        let good = rig.deploy(&rig.simple(1, GOOD, &[]));
        let web = rig.life("web");
        let bad = rig.desire(&rig.simple(2, CRASHES, &[]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stderr.contains("worker: exited with 3"), "{}", ran.stderr);
        let report = rig.report();
        let detail = report["detail"].as_str().unwrap();
        assert!(
            detail.contains("worker: exited with 3") && detail.contains("worker says: the moon is missing"),
            "{detail}"
        );
        assert_eq!(
            (&report["sha"], &report["rolled_back"], &report["phase"]),
            (&json!(bad), &json!(false), &json!("healthy"))
        );
        let worker =
            report["containers"].as_array().unwrap().iter().find(|c| c["service"] == "worker").unwrap().clone();
        assert_eq!((&worker["state"], &worker["exit_code"]), (&json!("exited"), &json!(3)));
        assert_eq!((applied(rig), rig.status()["current"].clone()), (json!(good), json!(bad)));
        assert_eq!(rig.ids("worker").len(), 1, "it is left as it is");
        assert_eq!(rig.life("web"), web);

        assert_eq!(rig.status()["last_error"]["sha"], json!(bad));

        // Going back to what is applied repairs the box.
        rig.tenancy.desire(&rig.env_id, Some(&good));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &good[..12]), "{ran:?}");
        assert_eq!((rig.ids("worker").len(), rig.life("web")), (0, web));
    });
}

#[test]
fn with_rollback_the_last_good_release_comes_back_and_the_failed_one_is_left_alone() {
    on_each(|rig| {
        rig.set("on_unhealthy", "rollback");
        let good = rig.deploy(&rig.simple(1, GOOD, &[]));
        let crashes = CRASHES.replace("web:1", "web:2");
        let bad = rig.desire(&rig.simple(2, &crashes, &[]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert_eq!(ran.stdout.trim(), format!("rolled_back {} UNHEALTHY", &bad[..12]));
        let report = rig.report();
        assert_eq!((&report["sha"], &report["rolled_back"]), (&json!(bad), &json!(true)));
        assert!(report["detail"].as_str().unwrap().contains("the moon is missing"), "{report}");
        let status = rig.status();
        assert_eq!(
            (applied(rig), &status["current"], &status["last_result"]),
            (json!(good), &json!(good), &json!("rolled_back"))
        );
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 1\n");
        assert_eq!(rig.ids("worker").len(), 0);

        // Quarantined: nothing happens any more, however long it is desired.
        let life = rig.life("web");
        let (requests, reports) = (rig.tenancy.requests().len(), rig.reports().len());
        for _ in 0..2 {
            let ran = rig.tick_ends(1);
            assert_eq!(ran.stdout.trim(), format!("quarantined {}", &bad[..12]));
        }
        assert_eq!((rig.tenancy.requests().len(), rig.reports().len(), rig.life("web")), (requests + 2, reports, life));
        assert_eq!(rig.status()["attempts"][&bad]["quarantined"], json!(true));

        // By force it is tried again, and rolled back again.
        let ran = rig.run(&["tick", "--force"]);
        assert_eq!((ran.status, rig.report()["attempt"].clone()), (1, json!(2)), "{ran:?}");
        assert!(ran.stdout.starts_with("rolled_back"), "{ran:?}");
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 1\n");

        // Another bundle lifts it, even back and forth.
        rig.deploy(&rig.simple(3, "services: {web: {image: '@web:2'}}\n", &[]));
        assert_eq!(rig.status()["attempts"], json!({}));
    });
}

#[test]
fn a_bundle_may_ask_for_a_rollback_itself_and_a_first_deploy_has_nothing_to_go_back_to() {
    on_one(|rig| {
        let meta = |generation: i64| {
            json!({"env_id": rig.env_id, "generation": generation, "agent": {"on_unhealthy": "rollback"}}).to_string()
        };
        rig.desire(&rig.simple(1, CRASHES, &[("meta.json", &meta(1))]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stdout.starts_with("failed"), "{ran:?}");
        assert_eq!((rig.report()["rolled_back"].clone(), applied(rig)), (json!(false), Value::Null));
        rig.deploy(&rig.simple(2, GOOD, &[]));
        rig.desire(&rig.simple(3, CRASHES, &[("meta.json", &meta(3))]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stdout.starts_with("rolled_back"), "{ran:?}");
    });
}

#[test]
fn a_service_with_a_healthcheck_is_waited_for() {
    on_one(|rig| {
        let compose = "
services:
  slow:
    image: '@tool:1'
    command: [sh, -c, 'sleep 2; touch /tmp/ready; sleep 1000']
    healthcheck: {test: [CMD, test, -f, /tmp/ready], interval: 1s, timeout: 5s, retries: 20}
";
        rig.deploy(&rig.simple(1, compose, &[]));
        let report = rig.report();
        assert_eq!(report["containers"][0]["health"], "healthy", "{report}");
        assert!(report["duration_ms"].as_u64().unwrap() > 2000, "{report}");
    });
}

#[test]
fn a_healthcheck_that_fails_is_unhealthy_and_one_that_never_decides_is_late() {
    on_one(|rig| {
        let compose = |check: &str| {
            format!(
                "services: {{web: {{image: '@web:1', healthcheck: {{test: [CMD, sh, -c, '{check}'], interval: 1s, retries: 1, timeout: 90s}}}}}}\n"
            )
        };
        rig.desire(&rig.simple(1, &compose("echo no heart; exit 1"), &[]));
        let ran = rig.tick_fails("UNHEALTHY");
        let told = "web: unhealthy; web's check exited with 1: no heart";
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
        assert!(rig.report()["detail"].as_str().unwrap().contains(told), "{}", rig.report());

        let late = json!({"env_id": rig.env_id, "generation": 2, "agent": {"healthy_timeout_s": 12}}).to_string();
        rig.desire(&rig.simple(2, &compose("sleep 100"), &[("meta.json", &late)]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stderr.contains("web: not healthy within 12 s"), "{}", ran.stderr);
    });
}

#[test]
fn a_deploy_that_is_forced_after_its_cause_was_mended_waits_for_the_next_check() {
    on_one(|rig| {
        let compose = "
services:
  web:
    image: '@web:1'
    healthcheck: {test: [CMD, test, -e, /tmp/mended], interval: 8s, retries: 1}
";
        let sha = rig.desire(&rig.simple(1, compose, &[]));
        rig.tick_fails("UNHEALTHY");
        let web = rig.life("web");
        rig.shell("web", "touch /tmp/mended");
        let ran = rig.run(&["tick", "--force"]);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        assert_eq!(rig.life("web"), web, "Compose had nothing to recreate");
    });
}

/// Until Docker says so of the service's only container.
fn is_called(rig: &Rig, service: &str, health: &str) {
    let id = rig.id(service);
    for _ in 0..200 {
        if rig.docker_says(&["inspect", "--format", "{{.State.Health.Status}}", &id]) == health {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    panic!("{service} does not get {health}");
}

#[test]
fn the_same_holds_when_another_service_waits_for_what_was_unhealthy() {
    on_each(|rig| {
        let compose = |of: &str| {
            format!(
                "
services:
  db:
    image: '@web:1'
    healthcheck: {{test: [CMD, sh, -c, 'test -e /tmp/mended || {{ echo no disk; exit 1; }}'], interval: 1s, retries: 6}}
  web:
    image: '@web:1'
    volumes: [/kept]
    environment: {{OF: '{of}'}}
    depends_on: {{db: {{condition: service_healthy}}}}
"
            )
        };
        let waiting = "is unhealthy; it was unhealthy before: waiting for it";
        let mended_in_the_wait = |args: &[&str], sha: &str| {
            let mut tick = rig.start(args);
            tick.says(waiting);
            rig.shell("db", "touch /tmp/mended");
            let ran = tick.ended();
            assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        };
        let sha = rig.desire(&rig.simple(1, &compose("1"), &[]));
        let ran = rig.tick_fails("UP_FAILED");
        assert!(ran.stderr.contains("dependency failed to start"), "{}", ran.stderr);
        let db = rig.life("db");
        mended_in_the_wait(&["tick", "--force"], &sha);
        assert_eq!((rig.life("db"), rig.ids("web").len()), (db, 1));

        // What is replaced hands its anonymous volumes on, however often `up` is asked.
        rig.shell("web", "echo precious >/kept/file");
        rig.shell("db", "rm /tmp/mended");
        is_called(rig, "db", "unhealthy");
        let web = rig.ids("web");
        let sha = rig.desire(&rig.simple(2, &compose("2"), &[]));
        mended_in_the_wait(&["tick"], &sha);
        assert_ne!(rig.ids("web"), web);
        rig.shell("web", "test \"$(cat /kept/file)\" = precious");

        // What goes on failing is not waited for until the deadline.
        rig.shell("db", "rm /tmp/mended");
        is_called(rig, "db", "unhealthy");
        rig.desire(&rig.simple(3, &compose("3"), &[]));
        let ran = rig.tick_fails("UP_FAILED");
        assert!(ran.stderr.contains(waiting), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("is unhealthy; then db: unhealthy; db's check exited with 1: no disk"),
            "{}",
            ran.stderr
        );
    });
}

#[test]
fn a_crash_loop_that_looks_running_for_a_moment_is_no_health() {
    on_each(|rig| {
        rig.set("stable_s", "4");
        let compose = "
services:
  looper:
    image: '@tool:1'
    restart: always
    command: [sh, -c, 'echo up we go; sleep 1; exit 4']
";
        rig.desire(&rig.simple(1, compose, &[]));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stderr.contains("looper: restart"), "{}", ran.stderr);
        assert!(ran.stderr.contains("up we go"), "{}", ran.stderr);
    });
}

#[test]
fn a_one_shot_that_ends_well_is_fine_and_one_that_does_not_fails_the_deploy() {
    on_each(|rig| {
        let migrate = |generation: i64, exit: u8, waits: bool| {
            let depends = if waits { "depends_on: {migrate: {condition: service_completed_successfully}}" } else { "" };
            let compose = format!(
                "services:\n  migrate: {{image: '@tool:1', command: [sh, -c, 'echo migrating; exit {exit}']}}\n  web:\n    image: '@web:1'\n    {depends}\n"
            );
            rig.simple(generation, &compose, &[])
        };
        rig.deploy(&migrate(1, 0, true));
        let report = rig.report();
        let of =
            |service: &str| report["containers"].as_array().unwrap().iter().find(|c| c["service"] == service).unwrap();
        assert_eq!((&of("migrate")["state"], &of("migrate")["exit_code"]), (&json!("exited"), &json!(0)));
        assert_eq!((&of("web")["state"], &of("web")["exit_code"]), (&json!("running"), &Value::Null));

        rig.desire(&migrate(2, 7, false));
        let ran = rig.tick_fails("UNHEALTHY");
        assert!(ran.stderr.contains("migrate: exited with 7") && ran.stderr.contains("migrating"), "{}", ran.stderr);

        rig.desire(&migrate(3, 7, true));
        let ran = rig.tick_fails("UP_FAILED");
        assert!(ran.stderr.contains("didn't complete successfully: exit 7"), "{}", ran.stderr);
        assert!(rig.report()["detail"].as_str().unwrap().starts_with("compose up: "), "{}", rig.report());

        rig.deploy(&migrate(4, 0, true));
    });
}

#[test]
fn a_port_that_is_taken_fails_with_dockers_words_and_the_next_attempt_recovers() {
    on_each(|rig| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let compose = format!("services: {{web: {{image: '@web:1', ports: ['127.0.0.1:{port}:8080']}}}}\n");
        let sha = rig.desire(&rig.simple(1, &compose, &[]));
        let ran = rig.tick_fails("UP_FAILED");
        let says = |text: &str| text.contains("already in use") || text.contains("already allocated");
        assert!(says(&ran.stderr) && ran.stderr.contains(&port.to_string()), "{}", ran.stderr);
        assert!(says(rig.report()["detail"].as_str().unwrap()), "{}", rig.report());
        drop(taken);
        rig.backoff_is_over();
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &sha[..12]));
        let answer =
            ureq::get(format!("http://127.0.0.1:{port}/")).call().unwrap().body_mut().read_to_string().unwrap();
        assert_eq!(answer, "web 1\n");
    });
}

#[test]
fn with_rollback_a_release_that_does_not_even_come_up_is_taken_back_too() {
    on_one(|rig| {
        rig.set("on_unhealthy", "rollback");
        let good = rig.deploy(&rig.simple(1, GOOD, &[]));
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let clash = format!("services: {{web: {{image: '@web:2', ports: ['127.0.0.1:{port}:8080']}}}}\n");
        let bad = rig.desire(&rig.simple(2, &clash, &[]));
        let ran = rig.tick_fails("UP_FAILED");
        assert_eq!(ran.stdout.trim(), format!("rolled_back {} UP_FAILED", &bad[..12]), "{ran:?}");
        assert_eq!((applied(rig), rig.report()["rolled_back"].clone()), (json!(good), json!(true)));
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 1\n");
        assert_eq!(rig.all_ids().len(), 1);
    });
}

#[test]
fn whatever_a_failing_service_logs_its_end_is_told_readably_and_in_short() {
    on_each(|rig| {
        let compose = r#"
services:
  loud:
    image: '@tool:1'
    command: [sh, -c, 'yes 0123456789 | head -c 300000; printf "\033[31mred\033[0m \377\000 \r the very end"; exit 1']
"#;
        rig.desire(&rig.simple(1, compose, &[]));
        rig.tick_fails("UNHEALTHY");
        let report = rig.report();
        let detail = report["detail"].as_str().unwrap();
        assert!(detail.contains("loud: exited with 1") && detail.contains("the very end"), "{detail}");
        assert!(detail.chars().count() <= 900 && !detail.contains(char::is_control), "{detail:?}");
    });
}

#[test]
fn an_up_that_does_not_return_is_ended_and_the_next_attempt_recovers() {
    on_one(|rig| {
        let compose = |check: &str| {
            format!(
                "services:
  gate:
    image: '@web:1'
    healthcheck: {{test: [CMD, '{check}'], interval: 1s, timeout: 5s, retries: 1000}}
  web: {{image: '@web:1', depends_on: {{gate: {{condition: service_healthy}}}}}}
"
            )
        };
        let short = json!({"env_id": rig.env_id, "generation": 1, "agent": {"healthy_timeout_s": 10}}).to_string();
        rig.desire(&rig.simple(1, &compose("false"), &[("meta.json", &short)]));
        let ran = rig.tick_fails("UP_TIMEOUT");
        assert!(ran.stderr.contains("compose up: no end after 10 s"), "{}", ran.stderr);
        rig.deploy(&rig.simple(2, &compose("true"), &[]));
        rig.life("web");
    });
}
