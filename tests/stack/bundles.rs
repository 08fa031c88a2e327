//! What a bundle can be made of, as it arrives in the containers.

use serde_json::json;

use crate::common::rig::{on_each, on_one};

#[test]
fn a_bundle_of_several_files_is_one_project_and_each_of_them_counts() {
    on_each(|rig| {
        let compose = "
include: [more/compose.yaml]
services:
  web:
    extends: {file: base/web.yaml, service: base}
    environment: {OWN: '1'}
";
        let more = "
services:
  side:
    image: 'IMAGE'
    env_file: side.env
    volumes: ['./side.txt:/side.txt:ro']
";
        let base =
            "services: {base: {image: 'IMAGE', volumes: ['./base.txt:/base.txt:ro'], environment: {BASE: '1'}}}\n";
        let (more, base) = (more.replace("IMAGE", &rig.image("web:1")), base.replace("IMAGE", &rig.image("web:1")));
        let bundle = |generation: i64, side: &str, of_base: &str, env: &str| {
            let files = [
                ("more/compose.yaml", more.as_str()),
                ("more/side.txt", side),
                ("more/side.env", env),
                ("base/web.yaml", base.as_str()),
                ("base/base.txt", of_base),
            ];
            rig.simple(generation, compose, &files)
        };
        rig.deploy(&bundle(1, "side 1", "base 1", "SIDE=1\n"));
        assert_eq!(rig.shell("side", "cat /side.txt; echo $SIDE"), b"side 11\n");
        assert_eq!(rig.shell("web", "cat /base.txt; echo $OWN $BASE"), b"base 11 1\n");
        let (web, side) = (rig.life("web"), rig.life("side"));
        rig.deploy(&bundle(2, "side 2", "base 1", "SIDE=1\n"));
        assert_eq!((rig.life("web"), rig.shell("side", "cat /side.txt")), (web.clone(), b"side 2".to_vec()));
        let second = rig.life("side");
        assert_ne!(second, side);
        rig.deploy(&bundle(3, "side 2", "base 2", "SIDE=1\n"));
        assert_eq!((rig.life("side"), rig.shell("web", "cat /base.txt")), (second, b"base 2".to_vec()));
        let web = rig.life("web");
        rig.deploy(&bundle(4, "side 2", "base 2", "SIDE=4\n"));
        assert_eq!((rig.life("web"), rig.shell("side", "echo $SIDE")), (web, b"4\n".to_vec()));
    });
}

#[test]
fn bytes_arrive_as_they_are_under_whatever_name() {
    on_one(|rig| {
        let compose = "services: {web: {image: '@web:1', volumes: ['./files:/files:ro']}}\n";
        let blob: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut bundle = rig.simple(
            1,
            compose,
            &[("files/empty", ""), ("files/\u{fc} b$c.txt", "named\n"), ("files/a/b/c/d", "deep")],
        );
        bundle.insert("files/blob".to_owned(), blob.clone());
        rig.deploy(&bundle);
        assert_eq!(rig.shell("web", "cat /files/blob"), blob);
        assert_eq!(rig.shell("web", "cat /files/empty '/files/\u{fc} b$c.txt' /files/a/b/c/d"), b"named\ndeep");
    });
}

#[test]
fn a_template_makes_the_env_of_it_and_fills_in_the_compose_file() {
    on_each(|rig| {
        rig.registry_secret();
        rig.secret("db", json!({"user": "ad\"min", "password": "p$a's\\s #1"}));
        let template = "# what the services get\nURL=db://${USER}:${PASS}@db/\n\nQUOTED=\"${PASS}\"\nPRICE=$$5 # each\nTAG=1\nEMPTY=\n";
        let compose = "services: {web: {image: '@web:${TAG}', env_file: .env, environment: {ALSO: '${URL}'}}}\n";
        let entry = |var: &str, key: &str| {
            let mut entry = rig.entry(var, "db");
            entry["key"] = json!(key);
            entry
        };
        let entries = [entry("USER", "user"), entry("PASS", "password"), rig.registry_entry()];
        rig.deploy(&rig.bundle(1, compose, &entries, &[("env.template", template)]));
        let env = rig.environment("web");
        let is = |name: &str, value: &str| assert_eq!(String::from_utf8_lossy(&env[name]), value, "{name}");
        is("URL", "db://ad\"min:p$a's\\s #1@db/");
        is("ALSO", "db://ad\"min:p$a's\\s #1@db/");
        is("QUOTED", "p$a's\\s #1");
        is("PRICE", "$5 # each");
        is("EMPTY", "");
        assert!(!env.contains_key("USER") && !env.contains_key("PASS"), "only what the template names");
    });
}
