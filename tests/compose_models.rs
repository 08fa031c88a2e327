//! What Docker Compose really said (`fixtures/compose/record.sh`), read as a model, for each version alike.

use std::collections::BTreeMap;
use std::path::Path;

use monky_deployd::effects::bundle::Bundle;
use monky_deployd::effects::compose_file;
use monky_deployd::effects::failure::{Code, Refusal};
use monky_deployd::effects::model::Model;
use monky_deployd::effects::policy::{Policy, Rule, Stance};

const VERSIONS: [&str; 2] = ["2.26.1", "2.40.3"];
const ENGINE: &str = "unix:///run/engine/own.sock";

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/compose")
}

fn bundle(case: &str) -> Bundle {
    let root = fixtures().join(case);
    let mut files = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    Bundle::read(serde_json::json!({ "files": files }).to_string().as_bytes()).unwrap()
}

/// The model, which must be the same whatever version of Compose was asked.
fn model(case: &str) -> Result<Model, Refusal> {
    let [a, b] = VERSIONS.map(|version| {
        let json = std::fs::read(fixtures().join(format!("{case}.{version}.json"))).unwrap();
        Model::parse(&json, &bundle(case), "/state/releases/r", "/state", ENGINE)
    });
    assert_eq!(a, b, "the versions of Compose differ in {case}");
    a
}

fn refused(case: &str) -> String {
    let Refusal { code, detail } = model(case).unwrap_err();
    assert_eq!(code, Code::ComposeRefused);
    detail
}

#[test]
fn mounts_of_every_form_are_told_from_each_other() {
    assert_eq!(compose_file::check(&bundle("mounts")), Ok(()));
    let model = model("mounts").unwrap();
    let web = &model.services["web"];
    assert_eq!(web.mounted, ["conf", "conf/app.toml", "conf/other.toml"]);
    assert!(web.mounts.is_some());
    assert_eq!((model.services["db"].mounts.as_ref(), model.services["db"].scale), (None, 1));
    let [writable, inline, from_env] = model.warnings.as_slice() else { panic!("{:?}", model.warnings) };
    assert!(writable.contains("/etc/app.toml") && writable.contains("writable"), "{writable}");
    assert!(inline.contains("\"inline\"") && from_env.contains("\"from_env\""), "{inline} {from_env}");
}

#[test]
fn variables_stay_what_they_are_and_stop_nothing() {
    let model = model("variables").unwrap();
    let web = &model.services["web"];
    assert_eq!(web.image.as_deref(), Some("${REGISTRY:-harbor.example.com}/web:${TAG}"));
    assert_eq!((web.scale, web.mounted.as_slice()), (1, ["conf".to_owned()].as_slice()));
    assert_eq!(model.services["job"].scale, 1);
    // Compose writes `${DATA_DIR}/more` as a path below the release, which it is not in the end.
    assert!(asked(&model).contains(" mounts \"${DATA_DIR}/more\": a variable decides"), "{}", asked(&model));
    assert!(model.decided && model.closed.is_empty(), "where they lead is looked at once they have their values");
}

#[test]
fn services_that_up_does_not_start_are_left_out() {
    let model = model("profiles").unwrap();
    assert_eq!(model.services.keys().collect::<Vec<_>>(), ["many", "web"]);
    assert_eq!(model.services["many"].scale, 3);
}

#[test]
fn included_and_extended_files_mount_from_their_own_folder() {
    assert_eq!(compose_file::check(&bundle("includes")), Ok(()));
    let model = model("includes").unwrap();
    assert_eq!(model.services["helper"].mounted, ["sub/conf"]);
    assert_eq!(model.services["web"].mounted, ["base/conf/b"]);
}

#[test]
fn data_that_the_next_release_would_lose_is_refused() {
    assert!(refused("not-in-bundle").contains("/state/releases/r/data"));
    assert!(refused("climbs").contains("/state/releases/data"));
    assert!(refused("disguised").contains("volume \"data\""));
    let before_compose = compose_file::check(&bundle("climbs")).unwrap_err();
    assert_eq!(before_compose.code, Code::ComposeRefused);
}

#[test]
fn the_whole_release_may_be_mounted_with_a_warning() {
    let model = model("whole").unwrap();
    assert_eq!(model.services["web"].mounted, ["."]);
    let [one] = &model.warnings[..] else { panic!("{:?}", model.warnings) };
    assert!(one.contains(".env") && !model.decided, "{one}");
    assert_eq!(model.closed.keys().collect::<Vec<_>>(), [""; 0], "it is mounted read-only already");
}

#[test]
fn nothing_to_start_is_told_before_anything_is_leased() {
    assert_eq!(model("nothing").unwrap_err().code, Code::ComposeInvalid);
}

/// Everything that a model asks for, one a line.
fn asked(model: &Model) -> String {
    let line = |demand: &monky_deployd::effects::policy::Demand| {
        let path = demand.path.as_ref().map_or_else(String::new, |path| format!(" [{path}]"));
        format!("{}: {} {} {}{path}\n", demand.service, demand.rule.as_str(), demand.key, demand.what)
    };
    model.demands.iter().map(line).collect()
}

/// The rules that a service's demands are for.
fn rules(model: &Model, service: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = model.demands.iter().filter(|d| d.service == service).map(|d| d.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

#[test]
fn what_a_compose_file_asks_of_the_box_is_seen_in_each_form() {
    let model = model("policy-asks").unwrap();
    for (service, expected) in [
        ("privileged", vec![Rule::Privileged]),
        ("privileged-by-word", vec![Rule::Privileged]),
        ("privileged-by-variable", vec![Rule::Privileged]),
        ("hidden-by-an-empty-profile", vec![Rule::Privileged]),
        ("hidden-by-a-variable-profile", vec![Rule::Privileged]),
        ("behind-a-profile", vec![]),
        ("scaled-to-nothing", vec![]),
        ("namespaces", vec![Rule::HostNamespaces]),
        ("namespaces-by-variable", vec![Rule::HostNamespaces]),
        ("network-host", vec![Rule::HostNamespaces]),
        ("network-by-variable", vec![Rule::HostNamespaces]),
        ("devices", vec![Rule::Devices]),
        ("capabilities", vec![Rule::Capabilities]),
        ("security", vec![Rule::SecurityOpt]),
        ("runtime", vec![Rule::Runtime]),
        ("socket", vec![Rule::DockerSocket, Rule::Binds]),
        ("socket-of-a-config", vec![Rule::DockerSocket]),
        ("socket-of-another", vec![Rule::DockerSocket, Rule::Binds]),
        ("binds", vec![Rule::DockerSocket, Rule::Binds]),
        ("volumes-in-disguise", vec![Rule::Devices, Rule::DockerSocket, Rule::Binds]),
        ("files", vec![Rule::Binds]),
        ("images", vec![Rule::Images]),
        ("images-by-variable", vec![Rule::Images]),
    ] {
        assert_eq!(rules(&model, service), expected, "{service}: {}", asked(&model));
    }
    // What a variable hides is judged, and not waited for; what an empty profile hides is started, and so waited for.
    assert!(model.services.contains_key("hidden-by-an-empty-profile"));
    assert!(!model.services.contains_key("hidden-by-a-variable-profile"));
    insta::assert_snapshot!("policy_asks", asked(&model));
}

#[test]
fn what_only_newer_versions_know_is_seen_too() {
    let json = std::fs::read(fixtures().join("policy-newer.2.40.3.json")).unwrap();
    let model = Model::parse(&json, &bundle("policy-newer"), "/state/releases/r", "/state", "").unwrap();
    insta::assert_snapshot!("policy_newer", asked(&model));
}

#[test]
fn what_only_looks_as_if_it_were_much_is_no_demand() {
    assert_eq!(asked(&model("policy-harmless").unwrap()), "");
}

#[test]
fn each_rule_refuses_what_asks_for_it_and_names_all_of_it() {
    let model = model("policy-asks").unwrap();
    for rule in Rule::ALL {
        let all = Rule::ALL.iter().map(|other| (*other, if other == rule { Stance::Refuse } else { Stance::Allow }));
        let policy = Policy { rules: all.collect(), bind_roots: vec!["/srv".to_owned()] };
        let judgement = policy.judge(&model.demands);
        let Refusal { code, detail } = judgement.refusal.unwrap();
        assert_eq!(code, Code::PolicyRefused);
        let of_rule = model.demands.iter().filter(|demand| demand.rule == *rule);
        let told = |text: &str| detail.contains(text) || judgement.warnings.iter().any(|line| line.contains(text));
        for demand in of_rule.filter(|demand| !demand.path.as_ref().is_some_and(|path| path.starts_with("/srv"))) {
            assert!(told(&format!("{} {}", demand.key, demand.what)), "{rule:?}: {demand:?}: {detail}");
        }
        assert!(detail.chars().count() < 800, "{detail}");
    }
}
