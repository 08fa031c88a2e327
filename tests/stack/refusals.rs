//! What is refused is refused before anything is leased, written or run; and what runs is not touched.

use std::fs;

use monky_deployd::sandbox::tenancy::bundle_body;
use serde_json::json;

use crate::common::rig::{Rig, executable, on_each, on_one};

const WEB: &str = "services: {web: {image: '@web:1'}}\n";

fn meta(rig: &Rig, generation: Option<i64>, agent: serde_json::Value) -> String {
    let mut meta = json!({"env_id": rig.env_id, "agent": agent});
    if let Some(generation) = generation {
        meta["generation"] = json!(generation);
    }
    meta.to_string()
}

#[test]
fn an_older_generation_is_refused_unless_it_is_asked_for() {
    on_one(|rig| {
        rig.deploy(&rig.simple(5, WEB, &[]));
        let life = rig.life("web");
        let older = "services: {web: {image: '@web:2'}}\n";
        rig.desire(&rig.simple(4, older, &[]));
        let ran = rig.tick_fails("ROLLBACK_REFUSED");
        assert!(ran.stderr.contains("ROLLBACK_REFUSED: ") && ran.stderr.contains("allow_rollback"), "{}", ran.stderr);
        assert!(rig.report()["detail"].as_str().unwrap().starts_with("ROLLBACK_REFUSED: "));
        assert_eq!((rig.life("web"), rig.calls("POST", "/leases")), (life, 1));
        let allowed = meta(rig, Some(4), json!({"allow_rollback": true}));
        rig.deploy(&rig.simple(4, older, &[("meta.json", &allowed)]));
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 2\n");
    });
}

#[test]
fn without_generations_a_bundle_that_was_applied_before_is_refused_unless_it_asks_for_it() {
    on_one(|rig| {
        let plain = meta(rig, None, json!({}));
        let first = rig.simple(0, WEB, &[("meta.json", &plain)]);
        let sha = rig.deploy(&first);
        rig.deploy(&rig.simple(0, "services: {web: {image: '@web:2'}}\n", &[("meta.json", &plain)]));
        let life = rig.life("web");
        assert_eq!(rig.desire(&first), sha);
        rig.tick_fails("ROLLBACK_REFUSED");
        assert_eq!(rig.life("web"), life);
        let allowed = meta(rig, None, json!({"allow_rollback": true}));
        rig.deploy(&rig.simple(0, WEB, &[("meta.json", &allowed)]));
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"web 1\n");
    });
}

#[test]
fn what_is_remote_is_refused_before_compose_reads_it() {
    on_one(|rig| {
        let (called, docker) = (rig.dir.path().join("called"), rig.dir.path().join("docker"));
        let note = format!("echo \"$@\" >>'{}'\nexec '{}' \"$@\"", called.display(), rig.setting("docker_bin"));
        executable(&docker, &note);
        rig.set("docker_bin", docker.to_str().unwrap());
        let reads = || fs::read_to_string(&called).unwrap_or_default().contains(" config ");
        let include = "include: ['https://registry.invalid/compose.yaml']\n";
        let extends = "services: {web: {extends: {file: 'git@registry.invalid:x.git', service: web}}}\n";
        for (n, compose) in [(1, &format!("{include}{WEB}")), (2, &extends.to_owned())] {
            rig.desire(&rig.simple(n, compose, &[]));
            rig.tick_fails("COMPOSE_REFUSED");
            assert!(!reads(), "{compose}");
        }
        rig.deploy(&rig.simple(3, WEB, &[]));
        assert!(reads());
    });
}

#[test]
fn what_a_bundle_may_not_do_is_refused_before_anything_is_spent() {
    on_each(|rig| {
        let mut generation = 0;
        let mut refused = |compose: &str, files: &[(&str, &str)], code: &str, says: &[&str]| {
            generation += 1;
            rig.desire(&rig.simple(generation, compose, files));
            let ran = rig.tick_fails(code);
            for says in says {
                assert!(ran.stderr.contains(says), "{code}, {says:?}: {}", ran.stderr);
            }
            assert_eq!((rig.calls("POST", "/leases"), rig.all_ids().len()), (0, 0), "{code}");
            assert_eq!((rig.has("current"), rig.has("token.json")), (false, false));
        };
        let build = "services: {web: {image: '@web:1', build: .}}\n";
        refused(build, &[], "COMPOSE_REFUSED", &["\"web\"", "build"]);
        let remote = "include: ['https://registry.invalid/compose.yaml']\nservices: {web: {image: '@web:1'}}\n";
        refused(remote, &[], "COMPOSE_REFUSED", &["include", "remote"]);
        let extends = "services: {web: {extends: {file: 'git@registry.invalid:x.git', service: web}}}\n";
        refused(extends, &[], "COMPOSE_REFUSED", &["extends", "remote"]);
        let bind = "services: {db: {image: '@web:1', volumes: ['./data:/data']}}\n";
        refused(bind, &[], "COMPOSE_REFUSED", &["/data", "not in the bundle", "named volume"]);
        let climbs = "services: {db: {image: '@web:1', volumes: ['../data:/data']}}\n";
        refused(climbs, &[], "COMPOSE_REFUSED", &["leaves the bundle"]);
        let invalid = "services: {web: {image: '@web:1', ports: {a: b}}}\n";
        refused(invalid, &[], "COMPOSE_INVALID", &["services.web.ports"]);
        let unknown = "services: {web: {image: '@web:1', imagge: x}}\n";
        refused(unknown, &[], "COMPOSE_INVALID", &["imagge"]);
        refused("services: [\n", &[], "COMPOSE_INVALID", &["compose.yaml"]);
        refused("services: {web: {image: '@web:1', profiles: [x]}}\n", &[], "COMPOSE_INVALID", &["no service"]);
        refused(
            WEB,
            &[("env.template", "A=${NOWHERE}\nB=${ELSEWHERE}\n")],
            "ENV_UNRESOLVED",
            &["NOWHERE", "ELSEWHERE"],
        );
        refused(WEB, &[("manifest.json", "{\"entries\": 1}")], "MANIFEST_INVALID", &["manifest.json"]);
        let path = json!({"entries": [{"var": "A", "path": format!("{}/another/x", rig.kv)}]}).to_string();
        refused(WEB, &[("manifest.json", &path)], "MANIFEST_PATH", &["another"]);
        let other = json!({"env_id": "another"}).to_string();
        refused(WEB, &[("meta.json", &other)], "ENV_MISMATCH", &["another"]);
        let new = meta(rig, Some(1), json!({"min_version": "99.0"}));
        refused(WEB, &[("meta.json", &new)], "AGENT_TOO_OLD", &["99.0"]);
    });
}

#[test]
fn content_that_is_not_what_was_asked_for_is_refused() {
    on_one(|rig| {
        let asked = rig.simple(1, WEB, &[]);
        let sha = rig.desire(&asked);
        let other = rig.simple(1, "services: {web: {image: '@web:2'}}\n", &[]);
        rig.tenancy.serve(&rig.env_id, &sha, bundle_body(&other), Some(&sha));
        rig.tick_fails("BUNDLE_SHA_MISMATCH");
        assert_eq!((rig.all_ids().len(), rig.calls("POST", "/leases")), (0, 0));

        // A header that disagrees is only worth a warning.
        rig.tenancy.serve(&rig.env_id, &sha, bundle_body(&asked), Some(&"0".repeat(64)));
        rig.backoff_is_over();
        let ran = rig.tick_ends(0);
        assert!(ran.stderr.contains("X-Bundle-Sha"), "{}", ran.stderr);
    });
}

#[test]
fn a_variable_without_a_value_fails_before_the_pull() {
    on_each(|rig| {
        rig.desire(&rig.simple(1, "services: {web: {image: '@web:1', environment: {A: '${NOWHERE}'}}}\n", &[]));
        let ran = rig.tick_fails("COMPOSE_INVALID");
        assert!(ran.stderr.contains("NOWHERE"), "{}", ran.stderr);
        assert_eq!(rig.all_ids().len(), 0);
        rig.deploy(&rig.simple(
            2,
            "services: {web: {image: '@web:1', environment: {A: '${NOWHERE:-default}'}}}\n",
            &[],
        ));
        assert_eq!(rig.environment("web")["A"], b"default");
    });
}

/// For each rule: the service that asks for it, one that nearly does, and the key that is named.
const POLICY: &[(&str, &str, &str, &str)] = &[
    ("privileged", "privileged: '${P:-true}'", "privileged: false", "services.web.privileged"),
    ("host_namespaces", "pid: host", "ipc: shareable", "services.web.pid"),
    ("host_namespaces", "networks: [box]", "networks: [own]", "networks.box.name"),
    ("host_namespaces", "networks: [wide]", "networks: {}", "networks.wide.driver"),
    ("devices", "devices: ['/dev/null:/dev/x']", "devices: []", "services.web.devices[0]"),
    ("capabilities", "cap_add: [NET_ADMIN]", "cap_drop: [ALL], cap_add: [SETUID]", "services.web.cap_add[0]"),
    (
        "security_opt",
        "security_opt: ['seccomp:unconfined']",
        "security_opt: ['no-new-privileges:true']",
        "services.web.security_opt[0]",
    ),
    ("runtime", "runtime: another", "runtime: runc", "services.web.runtime"),
    ("docker_socket", "volumes: ['/var/run:/x']", "volumes: ['data:/x']", "services.web.volumes[0]"),
    ("docker_socket", "volumes: ['@socket:/x']", "volumes: ['./conf:/x:ro']", "services.web.volumes[0]"),
    ("binds", "volumes: ['/etc:/x:ro']", "volumes: ['@root/fine:/x', './conf:/y:ro']", "services.web.volumes[0]"),
    ("binds", "volumes: ['${DIR-@root}:/x:ro']", "volumes: ['data:/x']", "services.web.volumes[0]"),
    ("binds", "volumes: ['bound:/x:ro']", "volumes: ['memory:/x']", "volumes.bound.driver_opts"),
    ("images", "hostname: a", "image: '@digest'", "services.web.image"),
];

#[test]
fn what_the_owner_forbids_is_refused_and_what_is_near_it_is_deployed() {
    on_each(|rig| {
        let socket = rig.stack["STACK_DOCKER_HOST"].replace("unix://", "");
        let root = rig.dir.path().join("data");
        std::fs::create_dir_all(root.join("fine")).unwrap();
        let root = root.display().to_string();
        rig.set("policy.bind_roots", &format!("[{root}]"));
        rig.deploy(&rig.simple(0, WEB, &[]));
        let digests =
            rig.docker_says(&["image", "inspect", "-f", "{{join .RepoDigests \"\\n\"}}", &rig.image("web:1")]);
        let digest = digests.lines().find(|digest| digest.starts_with(&rig.image("web@"))).unwrap().to_owned();
        let before = (rig.calls("POST", "/leases"), rig.all_ids());
        let bundle = |rig: &Rig, generation: i64, services: &str| {
            let compose = format!(
                "services:\n{services}\
                 networks: {{box: {{external: true, name: host}}, own: {{}}, wide: {{driver: macvlan}}}}\n\
                 volumes:\n  data: {{}}\n  memory: {{driver_opts: {{type: tmpfs, device: tmpfs}}}}\n  \
                 bound: {{driver_opts: {{type: none, o: bind, device: /etc}}}}\n"
            );
            let compose = compose.replace("@socket", &socket).replace("@root", &root).replace("@digest", &digest);
            rig.simple(generation, &compose, &[("conf/a", "a\n")])
        };
        for (n, (rule, asks, _, key)) in (1..).zip(POLICY) {
            rig.set(&format!("policy.{rule}"), "refuse");
            rig.desire(&bundle(rig, n, &format!("  web: {{image: '@web:1', {asks}}}\n")));
            let planned = rig.run(&["tick", "--dry-run"]);
            let ran = rig.tick_fails("POLICY_REFUSED");
            let detail = rig.report()["detail"].as_str().unwrap().to_owned();
            for says in [*key, format!("(policy.{rule})").as_str()] {
                assert!(detail.starts_with("POLICY_REFUSED: ") && detail.contains(says), "{says}: {detail}");
                assert!(planned.stdout.contains(says), "{says}: {planned:?}");
            }
            assert_eq!((rig.calls("POST", "/leases"), rig.all_ids()), before, "{ran:?}");
            assert_eq!(planned.status, 1, "{planned:?}");
            rig.unset(&format!("policy.{rule}"));
        }
        // All that is only near it at once, with every rule on.
        let mut all = String::new();
        for (n, (rule, _, nearly, _)) in (1..).zip(POLICY) {
            rig.set(&format!("policy.{rule}"), "refuse");
            let image = if nearly.contains("image:") { "" } else { "image: '@digest', " };
            all.push_str(&format!("  near{n}: {{{image}{nearly}}}\n"));
        }
        rig.desire(&bundle(rig, 100, &all));
        let planned = rig.run(&["tick", "--dry-run"]);
        assert_eq!(planned.status, 0, "{planned:?}");
        rig.deploy(&bundle(
            rig,
            101,
            "  web: {image: '@digest', volumes: ['@root/fine:/x', './conf:/y:ro', 'memory:/z']}\n",
        ));
    });
}

#[test]
fn the_default_network_that_is_the_boxs_own_is_seen_whatever_a_service_says_of_networks() {
    on_each(|rig| {
        rig.set("policy.host_namespaces", "refuse");
        for (n, networks) in (1..).zip(["", ", networks: {}", ", networks: []", ", networks: [default]"]) {
            let compose = format!(
                "services: {{web: {{image: '@web:1'{networks}}}}}\nnetworks: {{default: {{name: host, external: true}}}}\n"
            );
            rig.desire(&rig.simple(n, &compose, &[]));
            let ran = rig.tick_fails("POLICY_REFUSED");
            assert!(ran.stderr.contains("networks.default.name is host"), "{networks}: {}", ran.stderr);
        }
        assert_eq!((rig.calls("POST", "/leases"), rig.all_ids().len()), (0, 0));
    });
}

#[test]
fn no_variable_leads_a_mount_into_the_state_directory() {
    on_each(|rig| {
        let state = rig.state_dir().display().to_string();
        let (above, last) = state.rsplit_once('/').unwrap();
        let web = |more: &str| format!("services: {{web: {{image: '@web:1', {more}}}}}\n");
        let refused = |n: i64, compose: &str, files: &[(&str, &str)], leases: usize| {
            rig.desire(&rig.simple(n, compose, files));
            // What comes after a lease is no refusal.
            let ran = rig.tick_fails(if leases == 0 { "COMPOSE_REFUSED" } else { "COMPOSE_INVALID" });
            let says = ["the agent's state directory", "without `..`", "name the file itself", "leaves the bundle"];
            assert!(says.iter().any(|says| ran.stderr.contains(says)), "{compose}: {}", ran.stderr);
            assert_eq!((rig.calls("POST", "/leases"), rig.all_ids().len(), rig.has("current")), (leases, 0, false));
        };
        // What it says itself is refused before a lease is asked for.
        refused(1, &web(&format!("volumes: ['{above}/${{Z:-{last}}}/token.json:/x']")), &[], 0);
        refused(2, &web(&format!("env_file: ['{above}/${{Z:-{last}}}/docker/config.json']")), &[], 0);
        let volume =
            format!("volumes: {{vol: {{driver_opts: {{type: none, o: bind, device: '{above}/${{Z:-{last}}}'}}}}}}\n");
        refused(3, &format!("{}{volume}", web("volumes: ['vol:/x']")), &[], 0);
        // Compose's cleaning of paths eats half of the variable: `b}` is in the bundle.
        let eaten = web("volumes: [{type: bind, source: '${WHOLE:-a/../b}', target: /u}]");
        refused(40, &eaten, &[("b}", "b"), ("env.template", &format!("WHOLE={state}/token.json\n"))], 0);
        // No later look tells which file this becomes.
        refused(41, &web("env_file: ['${WHOLE}']"), &[("env.template", &format!("WHOLE={state}/token.json\n"))], 0);
        let climbs = format!("env_file: [{{path: '../{last}/token.json', required: false}}]");
        refused(42, &web(&climbs), &[], 0);
        // What only a value says, by whichever way it comes.
        let env =
            format!("Z={last}\nWHOLE={state}/token.json\nSPEC={state}:/x\nUP=..\nCLIMB=../../{last}/token.json\n");
        let env = [("env.template", env.as_str())];
        for (n, (volume, leases)) in (4..).zip([
            (format!("volumes: ['{above}/${{Z}}/token.json:/x']"), 1),
            ("volumes: ['${WHOLE}:/x:ro']".to_owned(), 1),
            ("volumes: ['${SPEC}']".to_owned(), 1),
            ("volumes: ['./${UP}/docker:/x']".to_owned(), 1),
            ("volumes: ['./${CLIMB}:/x']".to_owned(), 1),
            ("volumes: [{type: bind, source: '${CLIMB}', target: /x}]".to_owned(), 1),
            ("volumes: ['${DOCKER_CONFIG}:/x']".to_owned(), 1),
            ("secrets: [s]}}\nsecrets: {s: {file: '${WHOLE}'}}\nx-a: {a: {".to_owned(), 1),
            ("volumes: ['vol:/x']}}\nvolumes: {vol: {driver_opts: {type: none, o: bind, device: '${WHOLE}'}}}\nx-a: {a: {".to_owned(), 1),
        ]) {
            refused(n, &web(&volume), &env, leases);
        }
        // A file that is included has variables of its own.
        let included =
            [("sub/.env", env[0].1), ("sub/a.yaml", "services: {db: {image: '@web:1', volumes: ['${WHOLE}:/x']}}\n")];
        refused(20, &format!("include: [sub/a.yaml]\n{}", web("hostname: a")), &included, 1);
        // And what an honest bundle has is deployed, what it is asked for told in one line.
        let data = rig.dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let env = format!("DATA={}\nAPP=data\n", data.display());
        let volumes = format!(
            "volumes: ['${{DATA}}:/a', '{}/${{APP}}:/b', {{type: bind, source: '${{NO:-./conf}}', target: /c, read_only: true}}]",
            rig.dir.path().display()
        );
        rig.desire(&rig.simple(30, &web(&volumes), &[("env.template", &env), ("conf/a", "a\n")]));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stderr.matches("nobody can tell that it is harmless").count(), 1, "{}", ran.stderr);
        assert_eq!(rig.shell("web", "cat /c/a"), b"a\n");
    });
}

#[test]
fn what_cannot_be_closed_is_refused_by_look() {
    on_each(|rig| {
        // Compose merges mounts by the text of their target, and tells of this one without its slash.
        let slash = "services: {web: {image: '@web:1', volumes: [{type: bind, source: ., target: /m/}]}}\n";
        // Only the value says that it is what Compose reads.
        let value = "services: {web: {image: '@web:1', volumes: ['./conf/${X}:/m']}}\n";
        let env = [("env.template", "X=inc.yaml\n"), ("conf/inc.yaml", "services: {}\n")];
        let included = format!("include: [conf/inc.yaml]\n{value}");
        for (n, compose) in (1..).zip([slash, &included]) {
            rig.desire(&rig.simple(n, compose, &env));
            let ran = rig.tick_fails("COMPOSE_INVALID");
            assert!(ran.stdout.starts_with("failed "), "{ran:?}");
            assert_eq!((rig.all_ids().len(), rig.has("current")), (0, false), "{ran:?}");
        }
        rig.deploy(&rig.simple(3, &included.replace(":/m", ":/m:ro"), &env));
        // And what has no containers mounts nothing.
        let none =
            "services: {web: {image: '@web:1'}, off: {image: '@web:1', scale: 0, volumes: ['.:/m', '${S}:/s']}}\n";
        let env = format!("S={}\n", rig.state_dir().display());
        rig.deploy(&rig.simple(4, none, &[("env.template", &env)]));
    });
}

#[test]
fn what_the_owner_warns_of_is_deployed_with_a_warning() {
    on_each(|rig| {
        rig.set("policy.images", "warn");
        rig.desire(&rig.simple(1, "services: {web: {image: '@web:1', cap_add: [NET_ADMIN]}}\n", &[]));
        let ran = rig.tick_ends(0);
        for says in ["services.web.cap_add[0] is \"NET_ADMIN\" (policy.capabilities)", "services.web.image"] {
            assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
        }
        rig.set("policy.capabilities", "allow");
        rig.desire(&rig.simple(2, "services: {web: {image: '@web:2', cap_add: [NET_ADMIN]}}\n", &[]));
        let ran = rig.tick_ends(0);
        assert!(!ran.stderr.contains("cap_add"), "{}", ran.stderr);
    });
}
