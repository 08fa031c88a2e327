//! A deploy touches only what changed, and what runs keeps what it mounts.

use serde_json::json;

use crate::common::rig::{Rig, on_each, on_one};

/// A database that mounts a file of the bundle, and beside it something that changes.
const SITE: &str = "
services:
  db:
    image: '@tool:1'
    command: [sleep, '1000']
    volumes: ['./db.conf:/db.conf:ro', 'data:/data']
  web:
    image: '@web:1'
    volumes: ['./site:/www:ro', './web.conf:/web.conf:ro']
volumes:
  data: {}
";

#[test]
fn a_changed_file_recreates_its_service_and_no_other() {
    on_each(|rig| {
        let site = |generation: i64, page: &str, conf: &str| {
            let files =
                [("db.conf", "db\n"), ("site/index.html", page), ("site/a/b.txt", "deep\n"), ("web.conf", conf)];
            rig.simple(generation, SITE, &files)
        };
        rig.deploy(&site(1, "page 1\n", "conf 1\n"));
        let (db, web) = (rig.life("db"), rig.life("web"));
        assert_eq!(rig.shell("web", "cat /www/index.html /www/a/b.txt /web.conf"), b"page 1\ndeep\nconf 1\n");
        rig.shell("db", "echo precious >/data/rows");

        // Nothing changed but the generation.
        rig.deploy(&site(2, "page 1\n", "conf 1\n"));
        assert_eq!((rig.life("db"), rig.life("web")), (db.clone(), web.clone()));

        // A file in a mounted folder.
        rig.deploy(&site(3, "page 2\n", "conf 1\n"));
        assert_ne!(rig.id("web"), web.0);
        assert_eq!(rig.shell("web", "cat /www/index.html /web.conf"), b"page 2\nconf 1\n");
        let web = rig.life("web");

        // A mounted file.
        rig.deploy(&site(4, "page 2\n", "conf 2\n"));
        assert_ne!(rig.id("web"), web.0);
        assert_eq!(rig.shell("web", "cat /www/index.html /web.conf"), b"page 2\nconf 2\n");

        assert_eq!(rig.life("db"), db, "the database was never touched");
        assert_eq!(rig.shell("db", "cat /data/rows /db.conf"), b"precious\ndb\n");
    });
}

#[test]
fn a_changed_file_of_configs_and_secrets_recreates_its_service_and_no_other() {
    on_each(|rig| {
        let compose = "
services:
  one: {image: '@web:1', configs: [{source: setup, target: /setup}]}
  two: {image: '@web:1', secrets: [key]}
  three: {image: '@web:1'}
configs: {setup: {file: ./setup.txt}}
secrets: {key: {file: ./key.txt}}
";
        let bundle = |generation: i64, setup: &str, key: &str| {
            rig.simple(generation, compose, &[("setup.txt", setup), ("key.txt", key)])
        };
        let lives = |rig: &Rig| (rig.life("one"), rig.life("two"), rig.life("three"));
        rig.deploy(&bundle(1, "setup 1", "key 1"));
        let first = lives(rig);
        rig.deploy(&bundle(2, "setup 1", "key 1"));
        assert_eq!(lives(rig), first);
        rig.deploy(&bundle(3, "setup 2", "key 1"));
        let second = lives(rig);
        assert_eq!(rig.shell("one", "cat /setup"), b"setup 2");
        assert!(second.0 != first.0 && second.1 == first.1 && second.2 == first.2, "{first:?} {second:?}");
        rig.deploy(&bundle(4, "setup 2", "key 2"));
        let third = lives(rig);
        assert_eq!(rig.shell("two", "cat /run/secrets/key"), b"key 2");
        assert!(third.0 == second.0 && third.1 != second.1 && third.2 == second.2, "{second:?} {third:?}");
    });
}

#[test]
fn a_secret_that_is_mounted_is_renewed_when_its_value_changes() {
    on_each(|rig| {
        rig.registry_secret();
        rig.secret("key", json!({"value": "key 1"}));
        let compose = "
services:
  one: {image: '@web:1', secrets: [key]}
  two: {image: '@web:1'}
secrets: {key: {environment: KEY}}
";
        let bundle =
            |generation: i64| rig.bundle(generation, compose, &[rig.entry("KEY", "key"), rig.registry_entry()], &[]);
        rig.deploy(&bundle(1));
        assert_eq!(rig.shell("one", "cat /run/secrets/key"), b"key 1");
        let (one, two) = (rig.life("one"), rig.life("two"));
        rig.deploy(&bundle(2));
        assert_eq!((rig.life("one"), rig.life("two")), (one, two.clone()));
        rig.secret("key", json!({"value": "key 2"}));
        rig.deploy(&bundle(3));
        assert_eq!(rig.shell("one", "cat /run/secrets/key"), b"key 2");
        assert_eq!(rig.life("two"), two);
    });
}

#[test]
fn the_data_of_a_volume_whose_definition_changed_is_kept() {
    on_each(|rig| {
        let compose = |n: i64| {
            format!(
                "services: {{db: {{image: '@tool:1', command: [sleep, '1000'], volumes: ['data:/data']}}}}\nvolumes: {{data: {{labels: {{n: 'v{n}'}}}}}}\n"
            )
        };
        rig.deploy(&rig.simple(1, &compose(1), &[]));
        rig.shell("db", "echo precious >/data/rows");
        rig.desire(&rig.simple(2, &compose(2), &[]));
        let ran = rig.tick();
        assert!(ran.status == 0 || ran.status == 1, "{ran:?}");
        assert_eq!(rig.shell("db", "cat /data/rows"), b"precious\n");
    });
}

#[test]
fn a_rollback_brings_the_old_files_back() {
    on_one(|rig| {
        rig.set("on_unhealthy", "rollback");
        let compose = |command: &str| {
            format!(
                "services: {{web: {{image: '@web:1', volumes: ['./site:/www:ro']}}, job: {{image: '@tool:1', command: {command}}}}}\n"
            )
        };
        rig.deploy(&rig.simple(1, &compose("[sleep, '1000']"), &[("site/index.html", "good\n")]));
        rig.desire(&rig.simple(2, &compose("['false']"), &[("site/index.html", "bad\n")]));
        rig.tick_fails("UNHEALTHY");
        assert_eq!(rig.shell("web", "cat /www/index.html"), b"good\n");
    });
}

#[test]
fn what_compose_reads_is_read_only_to_its_containers_and_a_rollback_to_it_works() {
    on_each(|rig| {
        rig.set("on_unhealthy", "rollback");
        let compose = |more: &str| {
            format!(
                "include: [inc/a.yaml]
services:
  web: {{image: '@web:1', volumes: ['.:/m', './site:/www']}}
  slash: {{image: '@tool:1', command: [sleep, '1000'], env_file: conf/a.env, volumes: ['./conf:/m/']}}
  long: {{image: '@tool:1', command: [sleep, '1000'], volumes: [{{type: bind, source: ./inc, target: '/m/${{T:-t}}', bind: {{propagation: private}}}}]}}
  ext: {{extends: {{file: sub/e.yaml, service: x}}}}
{more}"
            )
        };
        let files = [
            ("site/index.html", "page\n"),
            ("conf/a.env", "A=1\n"),
            (
                "inc/a.yaml",
                "services: {inc: {image: '@tool:1', command: [sleep, '1000'], volumes: ['./a.yaml:/m/a.yaml']}}\n",
            ),
            ("sub/e.yaml", "services: {x: {image: '@tool:1', command: [sleep, '1000'], volumes: ['..:/m:rw']}}\n"),
        ];
        let files = files.map(|(path, text)| (path, text.replace("@tool:", &rig.image("tool:"))));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        let good = rig.desire(&rig.simple(1, &compose(""), &files));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stderr.matches("so it is mounted read-only").count(), 5, "{}", ran.stderr);
        let lies =
            |path: &str| std::fs::read_to_string(rig.state_dir().join(format!("releases/{good}/{path}"))).unwrap();
        let before = [lies("compose.yaml"), lies(".env"), lies(".monky-deployd.yaml")];
        let tries = |service: &str, path: &str| {
            let tries = format!("(echo 'services: {{}}' >>{path}; rm -f {path}; mount -o remount,rw /m) 2>&1; true");
            let says = String::from_utf8(rig.shell(service, &tries)).unwrap();
            assert!(
                says.contains("Read-only file system") || says.contains("resource busy"),
                "{service} {path}: {says}"
            );
        };
        for (service, path) in [
            ("web", "/m/compose.yaml"),
            ("web", "/m/.env"),
            ("web", "/m/.monky-deployd.yaml"),
            ("web", "/m/new"),
            ("slash", "/m/a.env"),
            ("long", "/m/t/a.yaml"),
            ("inc", "/m/a.yaml"),
            ("ext", "/m/compose.yaml"),
        ] {
            tries(service, path);
        }
        assert_eq!([lies("compose.yaml"), lies(".env"), lies(".monky-deployd.yaml")], before);
        // Its other options are kept, and what Compose does not read stays writable.
        let long =
            rig.docker_says(&["inspect", "-f", "{{range .Mounts}}{{.RW}} {{.Propagation}}{{end}}", &rig.id("long")]);
        assert_eq!(long, "false private");
        rig.shell("web", "echo more >>/www/index.html");
        // The others mount the whole bundle, which the second one changes.
        let lives = ["slash", "long", "inc"].map(|service| rig.life(service));

        rig.desire(&rig.simple(2, &compose("  job: {image: '@tool:1', command: ['false']}\n"), &files));
        rig.tick_fails("UNHEALTHY");
        assert_eq!(rig.report()["rolled_back"], json!(true));
        assert_eq!(["slash", "long", "inc"].map(|service| rig.life(service)), lives, "nothing of it changed");
        tries("web", "/m/compose.yaml");
    });
}

#[test]
fn a_release_goes_when_nothing_needs_it_and_stays_while_a_container_mounts_it() {
    on_one(|rig| {
        rig.set("keep_releases", "2");
        let compose = |n: i64| {
            format!("{SITE}x-nothing: {n}\n").replace("'@web:1'", &format!("'@web:1'\n    environment: {{N: {n}}}"))
        };
        let files = [("db.conf", "db\n"), ("site/index.html", "page\n"), ("web.conf", "conf\n")];
        let mut shas = Vec::new();
        let mut db = None;
        for generation in 1..=4 {
            shas.push(rig.deploy(&rig.simple(generation, &compose(generation), &files)));
            let life = rig.life("db");
            assert_eq!(db.get_or_insert_with(|| life.clone()), &life);
            assert_eq!(String::from_utf8_lossy(&rig.environment("web")["N"]), generation.to_string());
        }
        let kept: Vec<bool> = shas.iter().map(|sha| rig.has(&format!("releases/{sha}"))).collect();
        assert_eq!(kept, [true, false, true, true], "the database's, and the last two");
        assert_eq!(rig.shell("db", "cat /db.conf"), b"db\n");

        // Restarted by hand, it mounts what is current.
        rig.docker_says(&["restart", &rig.id("db")]);
        assert_eq!(rig.shell("db", "cat /db.conf"), b"db\n");
        shas.push(rig.deploy(&rig.simple(5, &compose(5), &files)));
        let kept: Vec<bool> = shas.iter().map(|sha| rig.has(&format!("releases/{sha}"))).collect();
        assert_eq!(kept, [false, false, false, true, true], "it needs the first one no more");
    });
}

#[test]
fn only_the_agents_own_images_are_ever_removed() {
    on_one(|rig| {
        rig.set("keep_releases", "1");
        rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        // Images of this test's own, so that nobody else uses them.
        let made =
            Made(rig, ["first", "second", "strangers"].map(|name| format!("rig/{}:{name}", rig.env_id)).to_vec());
        for name in &made.1 {
            let change = format!("LABEL rig={name}");
            rig.docker_says(&["commit", "--change", &change, &rig.id("web"), name]);
        }
        let known = |name: &str| rig.docker(&["image", "inspect", name]).status.success();
        let compose = |name: &str| format!("services: {{web: {{image: '{name}', pull_policy: never}}}}\n");
        rig.deploy(&rig.simple(2, &compose(&made.1[0]), &[]));
        rig.deploy(&rig.simple(3, &compose(&made.1[1]), &[]));
        assert!(known(&made.1[0]), "without --prune nothing goes");
        let ran = rig.run(&["tick", "--prune"]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!([0, 1, 2].map(|n| known(&made.1[n])), [false, true, true]);
        rig.life("web");
    });
}

/// Images that go with the test.
struct Made<'a>(&'a Rig, Vec<String>);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let ids =
            self.0.docker(&["ps", "-aq", "--filter", &format!("label=com.docker.compose.project={}", self.0.project)]);
        for id in String::from_utf8_lossy(&ids.stdout).split_whitespace() {
            self.0.docker(&["rm", "-f", "-v", id]);
        }
        for name in &self.1 {
            self.0.docker(&["image", "rm", "-f", name]);
        }
    }
}
