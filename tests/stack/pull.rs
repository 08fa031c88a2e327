//! What a registry says reaches the people who have to mend it, and nothing that runs is touched before the pull succeeded.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::json;

use crate::common::rig::{Rig, on_each, on_one, wait_until};

/// The bundle cannot be pulled: its words are everywhere, nothing was touched, and there is no `up`.
fn cannot_be_pulled(rig: &Rig, says: &str) {
    let before: Vec<_> = rig.all_ids();
    let life = rig.life("web");
    let applied = rig.status()["applied"].clone();
    let ran = rig.tick_fails("PULL_FAILED");
    assert!(ran.stderr.contains(says), "{says:?} in the journal: {}", ran.stderr);
    let status = rig.status();
    let in_status = status["last_error"]["detail"].as_str().unwrap();
    assert!(in_status.contains(says), "{says:?} in the status: {in_status}");
    assert!(rig.run(&["status"]).stdout.contains(says));
    let report = rig.report();
    let detail = report["detail"].as_str().unwrap();
    assert!(detail.starts_with("compose pull: ") && detail.contains(says), "{detail}");
    assert!(detail.chars().count() <= 900 && !detail.contains("exit status"), "{detail}");
    assert_eq!(report["phase"], "pull");
    assert_eq!((rig.all_ids(), rig.life("web"), &status["applied"]), (before, life, &applied));
    // It waits before it tries again.
    assert!(rig.tick_ends(75).stdout.contains("too_early"));
}

#[test]
fn a_registrys_own_words_reach_journal_status_and_report_and_what_runs_is_not_touched() {
    on_each(|rig| {
        let web = "services: {web: {image: '@web:1'}}\n";
        rig.deploy(&rig.simple(1, web, &[]));

        // No credential.
        let private = rig.bundle(2, "services: {web: {image: '@web:2'}, more: {image: '@tool:1'}}\n", &[], &[]);
        rig.desire(&private);
        cannot_be_pulled(rig, "no basic auth credentials");

        // A tag that is not there.
        rig.desire(&rig.simple(3, "services: {web: {image: '@web:nowhere'}}\n", &[]));
        cannot_be_pulled(rig, "manifest unknown");

        // A host that is not there.
        rig.desire(&rig.simple(4, "services: {web: {image: 'registry.invalid/web:1'}}\n", &[]));
        cannot_be_pulled(rig, "no such host");
    });
}

#[test]
fn a_mended_credential_is_used_by_the_next_attempt() {
    on_one(|rig| {
        rig.secret("registry", json!({"value": "puller:wrong"}));
        let sha = rig.desire(&rig.bundle(1, "services: {web: {image: '@web:1'}}\n", &[rig.registry_entry()], &[]));
        let ran = rig.tick_fails("PULL_FAILED");
        assert!(ran.stderr.contains("unauthorized") || ran.stderr.contains("no basic auth"), "{}", ran.stderr);
        assert_eq!(rig.all_ids().len(), 0);
        rig.registry_secret();
        rig.backoff_is_over();
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &sha[..12]));
        assert_eq!((&rig.report()["attempt"], &rig.report()["result"]), (&json!(2), &json!("applied")));
        assert_eq!(rig.calls("POST", "/leases"), 1);
    });
}

#[test]
fn a_docker_out_of_reach_costs_no_lease() {
    on_one(|rig| {
        let sha = rig.desire(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        let gone = format!("unix://{}/nobody.sock", rig.dir.path().display());
        let real = rig.stack.insert("STACK_DOCKER_HOST".to_owned(), gone).unwrap();
        let ran = rig.tick_waits("DOCKER_UNAVAILABLE");
        assert!(ran.stderr.contains("nobody.sock"), "{}", ran.stderr);
        rig.stack.insert("STACK_DOCKER_HOST".to_owned(), real);

        let docker = rig.setting("docker_bin");
        rig.set("docker_bin", "/nowhere/docker");
        let ran = rig.tick_waits("DOCKER_UNAVAILABLE");
        assert!(ran.stderr.contains("/nowhere/docker"), "{}", ran.stderr);
        assert_eq!((rig.calls("POST", "/leases"), rig.reports().len()), (0, 0));

        rig.set("docker_bin", &docker);
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &sha[..12]));
    });
}

/// A registry that accepts, and then says nothing.
fn silent_registry() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// The processes that were called with this box's state directory: the agent's children, and theirs.
fn children(rig: &Rig) -> Vec<String> {
    let ours = format!("{}/", rig.state_dir().display());
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let argv = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        let argv = String::from_utf8_lossy(&argv).replace('\0', " ");
        argv.contains(&ours).then_some(argv)
    });
    processes.collect()
}

#[test]
fn an_agent_that_is_asked_to_end_during_a_pull_ends_at_once_and_takes_its_children_along() {
    on_each(|rig| {
        rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        let life = rig.life("web");
        let registry = silent_registry();
        let slow = format!("services: {{web: {{image: '{}/web:1'}}}}\n", registry.local_addr().unwrap());
        rig.desire(&rig.simple(2, &slow, &[]));
        let agent = rig.start(&["tick"]);
        let (_connection, _) = registry.accept().unwrap();
        assert!(!children(rig).is_empty());
        let asked = std::time::Instant::now();
        agent.signal(Signal::TERM);
        let ran = agent.ended();
        assert!(asked.elapsed().as_secs() < 15, "it took {:?}", asked.elapsed());
        assert_eq!(ran.status, 75, "{ran:?}");
        wait_until("its children are gone", || children(rig).is_empty());
        assert_eq!((rig.life("web"), rig.reports().len()), (life, 1));

        // The next tick goes on, with whatever is desired then.
        rig.deploy(&rig.simple(3, "services: {web: {image: '@web:2'}}\n", &[]));
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 2\n");
    });
}

#[test]
fn a_pull_that_takes_too_long_is_ended() {
    on_one(|rig| {
        rig.set("pull_timeout_s", "2");
        let registry = silent_registry();
        let slow = format!("services: {{web: {{image: '{}/web:1'}}}}\n", registry.local_addr().unwrap());
        rig.desire(&rig.simple(1, &slow, &[]));
        rig.tick_fails("PULL_TIMEOUT");
        assert!(children(rig).is_empty());
    });
}
