//! From a grant to running containers: the first deploy, the next one, and the minutes in which nothing changes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::common::rig::{on_each, on_one};

const WEB: &str = "services: {web: {image: '@web:1', environment: {PASSWORD: '${PASSWORD}'}}}\n";

#[test]
fn the_first_deploy_needs_nothing_but_a_bootstrap_grant() {
    on_each(|rig| {
        let value = "a'b\"c$d#e \\ f\nsecond line\ttab \u{fc}\\";
        rig.secret("db", json!({ "value": value }));
        rig.registry_secret();
        let bundle = rig.bundle(1, WEB, &[rig.entry("PASSWORD", "db"), rig.registry_entry()], &[]);
        let sha = rig.desire(&bundle);
        rig.bootstrap();
        assert!(rig.has("bootstrap.jwt"));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        assert_eq!(String::from_utf8_lossy(&rig.environment("web")["PASSWORD"]), value);

        // The bootstrap token was swapped once, and only the new one lives.
        assert!(!rig.has("bootstrap.jwt"));
        assert_eq!((rig.tenancy.leases_granted(&rig.env_id), rig.calls("POST", "/leases")), (1, 1));
        let status = rig.status();
        assert_eq!(status["token"]["source"], "lease");
        assert_eq!(rig.living_tokens(), [status["token"]["accessor"].as_str().unwrap()]);
        assert!(rig.token_lives(&rig.token()));

        // What is told.
        assert!(ran.stderr.contains("1 secret read: PASSWORD + registry credential"), "{}", ran.stderr);
        let report = rig.report();
        assert_eq!((&report["result"], &report["sha"]), (&json!("applied"), &json!(sha)));
        assert_eq!((&report["attempt"], &report["rolled_back"]), (&json!(1), &json!(false)));
        assert_eq!(report["containers"][0]["service"], "web");
        assert_eq!(status["applied"]["sha"], json!(sha));
        assert_eq!((&status["last_result"], &status["last_error"]), (&json!("applied"), &Value::Null));
        let link = fs::read_link(rig.state_dir().join("current")).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("releases/{sha}"));
    });
}

#[test]
fn what_is_kept_is_closed_to_others_and_docker_is_given_credentials_and_nothing_else() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "x"}));
        rig.registry_secret();
        rig.deploy(&rig.bundle(1, WEB, &[rig.entry("PASSWORD", "db"), rig.registry_entry()], &[]));
        let state_dir = rig.state_dir();
        let mode = |path: &std::path::Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&state_dir), 0o700);
        for (path, (mode, ..)) in rig.everything() {
            let inside = path.strip_prefix(&state_dir).unwrap();
            let of_bundle = inside.starts_with("releases") && inside.components().count() > 2;
            let own = inside.file_name().unwrap().to_str().unwrap().starts_with('.');
            // Services mount a bundle's files, as whatever user they run; what is around is closed.
            match mode & 0o170_000 {
                0o040_000 if inside.components().count() == 1 => assert_eq!(mode & 0o7777, 0o700, "{path:?}"),
                0o100_000 if !of_bundle || own => assert_eq!(mode & 0o7777, 0o600, "{path:?}"),
                _ => {}
            }
        }
        let docker: Value = serde_json::from_slice(&rig.file("docker/config.json")).unwrap();
        assert_eq!(docker.as_object().unwrap().keys().collect::<Vec<_>>(), ["auths"]);
        assert_eq!(
            docker["auths"].as_object().unwrap().keys().collect::<Vec<_>>(),
            [&rig.stack["STACK_REGISTRY"]],
            "for the one registry"
        );
    });
}

#[test]
fn the_next_deploy_uses_the_same_token_again() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.registry_secret();
        let entries = [rig.entry("PASSWORD", "db"), rig.registry_entry()];
        rig.deploy(&rig.bundle(1, WEB, &entries, &[]));
        let (token, life) = (rig.token(), rig.life("web"));
        rig.secret("db", json!({"value": "two"}));
        rig.deploy(&rig.bundle(2, WEB, &entries, &[]));
        assert_eq!((rig.token(), rig.calls("POST", "/leases")), (token, 1));
        assert_eq!(rig.environment("web")["PASSWORD"], b"two");
        assert_ne!(rig.life("web"), life, "another value is another environment");
    });
}

#[test]
fn an_unchanged_minute_costs_one_call_to_tenancy_and_nothing_else() {
    on_one(|rig| {
        let sha = rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        let life = rig.life("web");
        // A Docker that would leave a trace, and an OpenBao that counts its callers.
        let (program, trace) = (rig.dir.path().join("docker"), rig.dir.path().join("trace"));
        fs::write(&program, format!("#!/bin/sh\necho \"$@\" >>{}\nexit 1\n", trace.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        rig.set("docker_bin", program.to_str().unwrap());
        let bao = TcpListener::bind("127.0.0.1:0").unwrap();
        bao.set_nonblocking(true).unwrap();
        rig.set("bao.addr", &format!("http://{}", bao.local_addr().unwrap()));

        let (before, requests) = (rig.everything(), rig.tenancy.requests().len());
        for _ in 0..3 {
            assert_eq!(rig.tick_ends(0).stdout.trim(), format!("unchanged {}", &sha[..12]));
        }
        assert_eq!(rig.everything(), before, "the state directory is not written to");
        let asked = rig.tenancy.requests().split_off(requests);
        let asked: Vec<(&str, &str)> = asked.iter().map(|r| (r.method.as_str(), r.path.as_str())).collect();
        let checkin = format!("/v1/envs/{}/checkin", rig.env_id);
        assert_eq!(asked, [("POST", checkin.as_str()); 3]);
        assert!(!trace.exists(), "no child process: {:?}", fs::read_to_string(&trace));
        assert_eq!(bao.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "OpenBao was called");
        assert_eq!(rig.life("web"), life);
    });
}

#[test]
fn secrets_of_every_kind_arrive_byte_for_byte_in_both_ways() {
    on_each(|rig| {
        let values = [
            "plain",
            " leading and trailing ",
            "a$b",
            "$$",
            "$$$",
            "${X}",
            "$${X}",
            "${X:-default}",
            "it's",
            "\"quoted\"",
            "'single'",
            "a # comment",
            "#",
            "=",
            "a=b",
            "two\nlines",
            "line end\n",
            "\n",
            "\r\n",
            "\t",
            "back\\slash",
            "\\",
            "trailing\\",
            "\\n",
            "\\\"",
            "\\$",
            "`id`",
            "$(id)",
            "!!",
            "%s",
            "\u{fc}\u{df}\u{20ac}\u{1f511}",
            "-----BEGIN KEY-----\nabc/+=\n-----END KEY-----\n",
            "{\"json\": [1, \"$two\"]}",
            "a: b",
            "- x",
            "*",
            "&x",
            "~",
            "null",
            "true",
            "",
            " ",
        ];
        let data: serde_json::Map<String, Value> =
            values.iter().enumerate().map(|(n, value)| (format!("k{n}"), json!(value))).collect();
        rig.secret("all", Value::Object(data));
        rig.registry_secret();
        let mut entries = vec![rig.registry_entry()];
        let mut environment = String::new();
        for n in 0..values.len() {
            let mut entry = rig.entry(&format!("V{n}"), "all");
            entry["key"] = json!(format!("k{n}"));
            entries.push(entry);
            environment.push_str(&format!("      E{n}: ${{V{n}}}\n"));
        }
        let compose = format!(
            "services:\n  one:\n    image: '@web:1'\n    environment:\n{environment}  two: {{image: '@web:1', env_file: .env}}\n"
        );
        rig.deploy(&rig.bundle(1, &compose, &entries, &[]));
        let (one, two) = (rig.environment("one"), rig.environment("two"));
        for (n, value) in values.iter().enumerate() {
            assert_eq!(String::from_utf8_lossy(&one[&format!("E{n}")]), *value, "environment: of {value:?}");
            assert_eq!(String::from_utf8_lossy(&two[&format!("V{n}")]), *value, "env_file: of {value:?}");
        }
    });
}

#[test]
fn a_service_that_the_bundle_no_longer_has_goes() {
    on_each(|rig| {
        rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}, old: {image: '@web:1'}}\n", &[]));
        let (web, old) = (rig.life("web"), rig.id("old"));
        rig.deploy(&rig.simple(2, "services: {web: {image: '@web:1'}}\n", &[]));
        assert_eq!(rig.life("web"), web, "its neighbour is not touched");
        assert_eq!(rig.all_ids(), [web.0]);
        assert!(!rig.docker(&["inspect", &old]).status.success());
    });
}

#[test]
fn by_force_what_is_applied_is_applied_again() {
    on_one(|rig| {
        let sha = rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        rig.docker_says(&["rm", "-f", &rig.id("web")]);
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "), "a minute does not look at the containers");
        let ran = rig.run(&["tick", "--force"]);
        assert_eq!((ran.status, ran.stdout.trim()), (0, format!("applied {}", &sha[..12]).as_str()), "{ran:?}");
        rig.life("web");
    });
}

#[test]
fn every_container_of_a_service_counts() {
    on_each(|rig| {
        let compose = "services: {web: {image: '@web:1', scale: 2}, more: {image: '@web:1', deploy: {replicas: 2}}}\n";
        rig.deploy(&rig.simple(1, compose, &[]));
        assert_eq!((rig.ids("web").len(), rig.ids("more").len()), (2, 2));
        let services: Vec<Value> =
            rig.report()["containers"].as_array().unwrap().iter().map(|c| c["service"].clone()).collect();
        assert_eq!(services, ["more", "more", "web", "web"]);
        rig.deploy(&rig.simple(2, "services: {web: {image: '@web:1'}, more: {image: '@web:1'}}\n", &[]));
        assert_eq!((rig.ids("web").len(), rig.ids("more").len()), (1, 1));
    });
}
