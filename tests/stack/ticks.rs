//! Ticks among other things that happen: two at once, one that is killed, tenancy out of reach, somebody at work on the box.

use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::tenancy::Call;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::rig::{Rig, Running, on_each, on_one, wait_until};

const WEB: &str = "services: {web: {image: '@web:1'}}\n";

/// A 503 as the protocol has it.
fn unavailable() -> Fault {
    Fault::Status(503, json!({"error": {"code": "BUSY", "message": "come back later"}}).to_string())
}

/// `up` waits for `gate` to be healthy, which the test decides.
const GATED: &str = "
services:
  gate:
    image: '@tool:1'
    command: [sleep, '1000']
    healthcheck: {test: [CMD, test, -f, /tmp/open], interval: 1s, timeout: 5s, retries: 100}
  web:
    image: '@web:1'
    depends_on: {gate: {condition: service_healthy}}
";

/// Starts a tick that hangs in `up`.
fn in_the_middle_of_up(rig: &Rig) -> Running {
    rig.desire(&rig.simple(1, GATED, &[]));
    let agent = rig.start(&["tick"]);
    let running = |rig: &Rig| {
        let ids = rig.ids("gate");
        ids.len() == 1 && rig.docker_says(&["inspect", "-f", "{{.State.Running}}", &ids[0]]) == "true"
    };
    wait_until("`up` has begun", || running(rig));
    agent
}

#[test]
fn an_agent_that_was_killed_during_up_is_finished_by_the_next_tick_with_one_report() {
    on_each(|rig| {
        let agent = in_the_middle_of_up(rig);
        agent.signal(Signal::KILL);
        drop(agent);
        assert_eq!((&rig.status()["applied"], rig.reports().len()), (&Value::Null, 0));
        assert!(rig.status()["unfinished"].is_string());
        rig.shell("gate", "touch /tmp/open");
        let ran = rig.tick_ends(0);
        assert!(ran.stdout.starts_with("applied "), "{ran:?}");
        assert!(ran.stderr.contains("interrupted"), "{}", ran.stderr);
        rig.life("web");
        assert_eq!((rig.reports().len(), &rig.report()["result"]), (1, &json!("applied")));
        assert_eq!((rig.calls("POST", "/leases"), rig.calls("GET", rig.report()["sha"].as_str().unwrap())), (1, 1));
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
        assert_eq!(rig.tenancy.report_deliveries(), 1);
    });
}

#[test]
fn an_interrupted_apply_is_finished_even_without_tenancy() {
    on_one(|rig| {
        let agent = in_the_middle_of_up(rig);
        agent.signal(Signal::KILL);
        drop(agent);
        rig.tenancy.set_reachable(false);
        rig.shell("gate", "touch /tmp/open");
        let ran = rig.tick_ends(0);
        assert!(ran.stdout.starts_with("applied "), "{ran:?}");
        rig.life("web");
        assert_eq!((rig.outbox().len(), rig.reports().len()), (1, 0));
        rig.tenancy.set_reachable(true);
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
        assert_eq!((rig.outbox().len(), rig.reports().len(), rig.tenancy.report_deliveries()), (0, 1, 1));
    });
}

#[test]
fn an_agent_that_is_asked_to_end_during_up_leaves_the_rest_to_the_next_tick() {
    on_one(|rig| {
        let agent = in_the_middle_of_up(rig);
        agent.signal(Signal::TERM);
        let ran = agent.ended();
        assert_eq!(ran.status, 75, "{ran:?}");
        // Something else is desired by now: what was interrupted is not finished first.
        let sha = rig.deploy(&rig.simple(2, WEB, &[]));
        assert_eq!(rig.all_ids(), [rig.life("web").0]);
        assert_eq!((rig.reports().len(), &rig.report()["sha"]), (1, &json!(sha)));
    });
}

#[test]
fn of_two_ticks_at_once_the_second_goes_away() {
    on_one(|rig| {
        let agent = in_the_middle_of_up(rig);
        let calls = rig.tenancy.requests().len();
        let ran = rig.tick_ends(75);
        assert!(ran.stderr.contains("another tick holds the lock"), "{}", ran.stderr);
        assert!(ran.stderr.contains(&agent.0.id().to_string()), "and which: {}", ran.stderr);
        assert_eq!((ran.stdout.as_str(), rig.tenancy.requests().len()), ("locked\n", calls));
        assert!(rig.status()["unfinished"].is_string(), "one may look all the same");
        let ran = rig.run(&["bootstrap", "--grant-file", "/dev/null"]);
        assert_eq!(ran.status, 1, "{ran:?}");
        let grant = rig.dir.path().join("grant");
        std::fs::write(&grant, rig.tenancy.mint_bootstrap_grant(&rig.env_id, 60)).unwrap();
        let ran = rig.run(&["bootstrap", "--grant-file", grant.to_str().unwrap()]);
        assert!(ran.status == 75 && ran.stderr.contains("another tick holds the lock"), "{ran:?}");
        rig.shell("gate", "touch /tmp/open");
        let ran = agent.ended();
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
    });
}

#[test]
fn a_held_box_is_left_alone_until_it_is_let_go() {
    on_one(|rig| {
        rig.deploy(&rig.simple(1, WEB, &[]));
        let life = rig.life("web");
        rig.tenancy.hold(&rig.env_id, Some("the database is being moved"));
        rig.desire(&rig.simple(2, "services: {web: {image: '@web:2'}}\n", &[]));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), "held");
        assert!(ran.stderr.contains("the database is being moved"), "{}", ran.stderr);
        assert_eq!((rig.life("web"), rig.reports().len()), (life, 1));
        rig.tenancy.hold(&rig.env_id, None);
        assert!(rig.tick_ends(0).stdout.starts_with("applied "));
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 2\n");
    });
}

#[test]
fn a_box_for_which_nothing_is_desired_does_nothing() {
    on_one(|rig| {
        assert_eq!(rig.tick_ends(0).stdout.trim(), "idle");
        rig.deploy(&rig.simple(1, WEB, &[]));
        let life = rig.life("web");
        rig.tenancy.desire(&rig.env_id, None);
        assert_eq!(rig.tick_ends(0).stdout.trim(), "idle");
        assert_eq!(rig.life("web"), life, "and nothing is taken away");
    });
}

#[test]
fn a_tenancy_out_of_reach_is_waited_for_and_for_a_laptop_it_is_normal() {
    on_one(|rig| {
        rig.deploy(&rig.simple(1, WEB, &[]));
        let life = rig.life("web");
        rig.tenancy.set_reachable(false);
        rig.tick_waits("TENANCY_UNREACHABLE");
        rig.set("laptop_mode", "true");
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), "offline");
        assert_eq!(rig.life("web"), life);
        rig.tenancy.set_reachable(true);
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
        assert_eq!(rig.status()["trouble"], Value::Null);
    });
}

#[test]
fn an_answer_that_is_no_answer_says_nothing_and_changes_nothing() {
    on_one(|rig| {
        rig.desire(&rig.simple(1, WEB, &[]));
        for fault in [unavailable(), Fault::Raw(b"nonsense\r\n".to_vec()), Fault::CutAnswer] {
            rig.tenancy.fail_always(Call::Checkin, Some(fault));
            let ran = rig.tick_ends(75);
            assert!(ran.stdout.contains("TENANCY_"), "{ran:?}");
        }
        rig.tenancy.fail_always(Call::Checkin, None);
        rig.tenancy.fail_always(Call::Bundle, Some(Fault::CutAnswer));
        let ran = rig.tick_ends(75);
        assert!(ran.stdout.contains("TENANCY_"), "{ran:?}");
        rig.tenancy.fail_always(Call::Bundle, None);
        assert_eq!((rig.all_ids().len(), rig.calls("POST", "/leases"), rig.reports().len()), (0, 0, 0));
        assert!(rig.tick_ends(0).stdout.starts_with("applied "), "and there is no backoff");
    });
}

#[test]
fn a_report_that_does_not_arrive_is_kept_and_told_once() {
    on_one(|rig| {
        rig.tenancy.fail_always(Call::Report, Some(Fault::Drop));
        rig.deploy(&rig.simple(1, WEB, &[]));
        rig.tenancy.fail_always(Call::Report, Some(unavailable()));
        rig.deploy(&rig.simple(2, WEB, &[]));
        let waiting = rig.outbox();
        assert_eq!((waiting.len(), rig.reports().len(), &rig.status()["reports_waiting"]), (2, 0, &json!(2)));
        rig.tenancy.fail_always(Call::Report, None);
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
        let told = rig.reports();
        assert_eq!((rig.outbox().len(), rig.tenancy.report_deliveries(), told.len()), (0, 2, 2));
        for report in &told {
            assert!(waiting.contains(&format!("{}.json", report["report_id"].as_str().unwrap())));
        }
        assert!(told[0]["at"].as_str().unwrap() < told[1]["at"].as_str().unwrap(), "the oldest first");
        rig.tick_ends(0);
        assert_eq!(rig.tenancy.report_deliveries(), 2);

        // An answer that was lost: told again under the same id.
        rig.tenancy.fail_always(Call::Report, Some(Fault::LoseAnswer));
        rig.deploy(&rig.simple(3, WEB, &[]));
        assert_eq!((rig.reports().len(), rig.outbox().len()), (3, 1));
        rig.tenancy.fail_always(Call::Report, None);
        rig.tick_ends(0);
        assert_eq!((rig.reports().len(), rig.outbox().len()), (3, 0));
    });
}

#[test]
fn what_somebody_broke_in_the_state_directory_does_not_stop_the_next_tick() {
    on_one(|rig| {
        let sha = rig.deploy(&rig.simple(1, WEB, &[]));
        let life = rig.life("web");
        for file in ["state.json", "token.json", "grant.json"] {
            std::fs::write(rig.state_dir().join(file), "{\"format\": 99, ").unwrap();
        }
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        assert!(ran.stderr.contains("set aside"), "{}", ran.stderr);
        let names: Vec<String> =
            rig.everything().into_keys().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        for file in ["state.json", "token.json", "grant.json"] {
            assert!(names.iter().any(|name| name.starts_with(&format!("{file}.corrupt-"))), "{file}: {names:?}");
        }
        assert_eq!(rig.life("web"), life, "what runs is as it should be");
    });
}

#[test]
fn through_local_listeners_the_names_stay_those_of_the_servers() {
    on_one(|rig| {
        let tenancy = format!("127.0.0.1:{}", rig.tenancy.port());
        let bao = rig.setting("bao.addr").trim_start_matches("http://").to_owned();
        for (key, value) in [
            ("transport", "proxy"),
            ("proxy.tenancy", tenancy.as_str()),
            ("proxy.bao", bao.as_str()),
            ("tenancy.host", "tenancy.invalid"),
            ("bao.addr", "http://bao.invalid:8200"),
        ] {
            rig.set(key, value);
        }
        rig.deploy(&rig.simple(1, WEB, &[]));
        // Nobody listens: it is said which listener, and for whom.
        rig.set("proxy.tenancy", "127.0.0.1:1");
        let ran = rig.tick_waits("TENANCY_UNREACHABLE");
        assert!(ran.stderr.contains("127.0.0.1:1") && ran.stderr.contains("tenancy.invalid"), "{}", ran.stderr);
    });
}
