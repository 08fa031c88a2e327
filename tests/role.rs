//! The Ansible role knows every key of the configuration: its variables, their types and words, and its README are those of the table.
//!
//! Invariant: what stands between `keys:begin` and `keys:end` in the role's files is made from the table in the code. After a
//! change there: `UPDATE_ROLE=1 cargo test --test role`, and look at the difference.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use monky_deployd::config::Config;
use monky_deployd::config::keys::{Absent, KEYS, Key, Kind};
use serde_yaml::Value;

/// Defaults that follow from another variable of the role: with a CA given as text, the key names the file it is written to.
const DERIVED: [(&str, &str); 2] = [
    ("tenancy.ca_file", "{{ '/etc/monky-deployd/tenancy-ca.pem' if monky_deployd_tenancy_ca | length > 0 else '' }}"),
    ("bao.ca_file", "{{ '/etc/monky-deployd/bao-ca.pem' if monky_deployd_bao_ca | length > 0 else '' }}"),
];

fn role(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ansible/roles/monky_deployd").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(role(file)).unwrap()
}

fn yaml(file: &str) -> Value {
    serde_yaml::from_str(&read(file)).unwrap()
}

/// The variable of a key.
fn variable(key: &Key) -> String {
    format!("monky_deployd_{}", key.name.replace('.', "_"))
}

/// Ansible's name for what a value may be, and the words it must be one of.
fn kind(kind: Kind) -> (&'static str, &'static [&'static str]) {
    match kind {
        Kind::Number(_) | Kind::Seconds(_) => ("int", &[]),
        Kind::Flag => ("bool", &[]),
        Kind::Paths => ("list", &[]),
        Kind::OneOf(words) | Kind::AnyCase(words) => ("str", words),
        Kind::EnvId
        | Kind::Project
        | Kind::Text
        | Kind::Name
        | Kind::Mount
        | Kind::Path
        | Kind::Program
        | Kind::Host
        | Kind::HostPort
        | Kind::Registry
        | Kind::Url => ("str", &[]),
    }
}

/// The default of a key's variable, as YAML; none if it must be given. Where the agent itself works the value out, the
/// variable is empty and the key left out of the file.
fn default(key: &Key) -> Option<String> {
    let bare = matches!(kind(key.kind).0, "int" | "bool" | "list");
    if let Some((_, derived)) = DERIVED.iter().find(|(name, _)| *name == key.name) {
        return Some(format!("{derived:?}"));
    }
    match key.default {
        Absent::Required => None,
        Absent::Is(value) if bare => Some(value.to_owned()),
        Absent::Is(value) => Some(format!("{value:?}")),
        Absent::Unset | Absent::ThenEnvId(_) if bare => Some("null".to_owned()),
        Absent::Unset | Absent::ThenEnvId(_) => Some("\"\"".to_owned()),
    }
}

/// What a key's variable is for, with the agent's own default where the role has none.
fn meaning(key: &Key) -> String {
    match key.default {
        Absent::ThenEnvId(start) => format!("{} Empty: {start}<env_id>.", key.doc),
        Absent::Required | Absent::Unset | Absent::Is(_) => key.doc.to_owned(),
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn defaults() -> String {
    KEYS.iter().filter_map(|key| Some(format!("{}: {}\n", variable(key), default(key)?))).collect()
}

fn list_of_keys() -> String {
    let row = |key: &Key| {
        // What the agent takes by itself; never a value of Ansible's.
        let default = match default(key) {
            Some(value) if value != "null" && value != "\"\"" && !value.contains("{{") => format!(", default: {value}"),
            _ => String::new(),
        };
        format!("  - {{name: {}, type: {}{default}}}\n", key.name, kind(key.kind).0)
    };
    KEYS.iter().map(row).collect()
}

fn argument_specs() -> String {
    let option = |key: &Key| {
        let (kind, words) = kind(key.kind);
        let mut lines = vec![format!("{}:", variable(key)), "  description: >-".to_owned()];
        lines.extend(wrap(&meaning(key), 100).iter().map(|line| format!("    {line}")));
        lines.push(format!("  type: {kind}"));
        if kind == "list" {
            lines.push("  elements: str".to_owned());
        }
        if !words.is_empty() {
            lines.push(format!("  choices: [{}]", words.join(", ")));
        }
        match default(key) {
            None => lines.push("  required: true".to_owned()),
            // An empty default is none: what is empty is left out, whatever its type.
            Some(value) if matches!(value.as_str(), "null" | "\"\"") || value.contains("{{") => {}
            Some(value) => lines.push(format!("  default: {value}")),
        }
        lines.iter().map(|line| format!("      {line}\n")).collect::<String>()
    };
    KEYS.iter().map(option).collect()
}

fn readme() -> String {
    let row = |key: &Key| {
        let (kind, words) = kind(key.kind);
        let kind = if words.is_empty() { kind.to_owned() } else { format!("`{}`", words.join("`, `")) };
        let default = match default(key) {
            None => "required".to_owned(),
            Some(value) if value == "null" || value == "\"\"" => "empty".to_owned(),
            Some(value) if value.contains("{{") => "where the CA is written to".to_owned(),
            Some(value) => format!("`{}`", value.trim_matches('"')),
        };
        let meaning = meaning(key).replace('|', "\\|").replace("<env_id>", "`env_id`");
        format!("| `{}` | {kind} | {default} | `{}`: {meaning} |\n", variable(key), key.name)
    };
    let head = "| variable | type | default | meaning |\n|---|---|---|---|\n";
    format!("{head}{}", KEYS.iter().map(row).collect::<String>())
}

/// Compares what stands between the marks with `made`, or with `UPDATE_ROLE` puts it there.
fn compare(file: &str, made: &str) {
    let text = read(file);
    let begin = text.find("keys:begin").and_then(|at| Some(at + text[at..].find('\n')? + 1)).unwrap();
    let end = text[..text.find("keys:end").unwrap()].rfind('\n').unwrap() + 1;
    if std::env::var_os("UPDATE_ROLE").is_some() {
        fs::write(role(file), format!("{}{made}{}", &text[..begin], &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[begin..end], made, "{file}: UPDATE_ROLE=1 cargo test --test role");
}

#[test]
fn the_defaults_are_those_of_the_table() {
    compare("defaults/main.yml", &defaults());
}

#[test]
fn the_template_is_given_every_key_in_the_order_of_the_table() {
    compare("vars/main.yml", &list_of_keys());
}

#[test]
fn the_types_and_words_of_the_arguments_are_those_of_the_table() {
    compare("meta/argument_specs.yml", &argument_specs());
}

#[test]
fn the_readme_has_every_key_with_its_type_default_and_meaning() {
    compare("README.md", &readme());
}

#[test]
fn no_two_keys_share_a_variable_and_none_takes_one_of_the_roles_own() {
    let keys: BTreeSet<String> = KEYS.iter().map(variable).collect();
    assert_eq!(keys.len(), KEYS.len());
    let own = yaml("defaults/main.yml").as_mapping().unwrap().len() + required().len() - KEYS.len();
    let all = yaml("meta/argument_specs.yml")["argument_specs"]["main"]["options"].as_mapping().unwrap().len();
    assert_eq!(all, keys.len() + own);
}

fn required() -> Vec<String> {
    KEYS.iter().filter(|key| key.default == Absent::Required).map(variable).collect()
}

#[test]
fn every_argument_has_a_default_or_is_required_and_a_row_in_the_readme() {
    let defaults = yaml("defaults/main.yml");
    let options = yaml("meta/argument_specs.yml")["argument_specs"]["main"]["options"].clone();
    let readme = read("README.md");
    let mut arguments = BTreeSet::new();
    for (name, option) in options.as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        let required = option.get("required").and_then(Value::as_bool).unwrap_or_default();
        assert_eq!(defaults.get(name).is_none(), required, "{name}");
        if let Some(default) = option.get("default") {
            assert_eq!(defaults.get(name), Some(default), "{name}");
        }
        assert_eq!(readme.matches(&format!("| `{name}` |")).count(), 1, "README.md: {name}");
        arguments.insert(name.to_owned());
    }
    for name in defaults.as_mapping().unwrap().keys() {
        assert!(arguments.contains(name.as_str().unwrap()), "{name:?} is no argument");
    }
}

#[test]
fn the_roles_version_is_the_packages() {
    let version = yaml("defaults/main.yml")["monky_deployd_version"].clone();
    assert_eq!(version.as_str(), Some(env!("CARGO_PKG_VERSION")), "packaging/versions.sh writes it");
}

/// A value for a key that is not its default.
fn other(key: &Key) -> String {
    match key.kind {
        Kind::Number(_) | Kind::Seconds(_) => "77".to_owned(),
        Kind::Flag => if key.default == Absent::Is("false") { "true" } else { "false" }.to_owned(),
        // Nothing that YAML would take for something else may be lost on the way.
        Kind::Text => "ö: \"#1\" 'yes' \\ {x} 🦀".to_owned(),
        Kind::AnyCase(_) => "WARN".to_owned(),
        Kind::OneOf(words) => words.last().unwrap().to_string(),
        Kind::EnvId | Kind::Project => "007".to_owned(),
        Kind::Name | Kind::Mount => "1e3".to_owned(),
        Kind::Registry => "registry.example:5000".to_owned(),
        _ => key.example.to_owned() + if key.example.is_empty() { "/bin/true" } else { "" },
    }
}

/// What the template makes of these variables.
fn rendered(variables: &serde_json::Map<String, serde_json::Value>) -> String {
    let playbook = std::env::var_os("ANSIBLE_PLAYBOOK")
        .expect("ANSIBLE_PLAYBOOK names ansible-playbook: tests/install/cases/60-role-static.sh sets it");
    let dir = tempfile::tempdir().unwrap();
    let play = serde_json::json!([{
        "hosts": "localhost",
        "gather_facts": false,
        "vars": {"ansible_python_interpreter": "{{ ansible_playbook_python }}"},
        "vars_files": [role("defaults/main.yml"), role("vars/main.yml"), dir.path().join("given.json")],
        "tasks": [{"ansible.builtin.template": {"src": role("templates/config.yaml.j2"), "dest": dir.path().join("config.yaml"), "mode": "0644"}}],
    }]);
    fs::write(dir.path().join("given.json"), serde_json::to_vec(variables).unwrap()).unwrap();
    fs::write(dir.path().join("play.yml"), serde_json::to_vec(&play).unwrap()).unwrap();
    let ran = Command::new(playbook)
        .args(["--inventory", "localhost,", "--connection", "local"])
        .arg(dir.path().join("play.yml"))
        .env("ANSIBLE_LOCALHOST_WARNING", "false")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    fs::read_to_string(dir.path().join("config.yaml")).unwrap()
}

fn least() -> serde_json::Map<String, serde_json::Value> {
    let required = KEYS.iter().filter(|key| key.default == Absent::Required);
    required.map(|key| (variable(key), serde_json::Value::from(key.example))).collect()
}

#[test]
#[ignore = "needs ansible: tests/install/cases/60-role-static.sh"]
fn without_more_than_what_is_required_the_template_writes_no_more_than_that() {
    let mut given = least();
    // As Ansible has it from a command line.
    given.insert("monky_deployd_tenancy_port".to_owned(), "443".into());
    given.insert("monky_deployd_laptop_mode".to_owned(), "no".into());
    let text = rendered(&given);
    let written: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let wanted = [
        "env_id: \"plant-7\"",
        "tenancy:",
        "  host: \"tenancy.example\"",
        "bao:",
        "  addr: \"https://bao.example:8200\"",
    ];
    assert_eq!(written, wanted);
    Config::parse("made", &text).unwrap();
}

#[test]
#[ignore = "needs ansible: tests/install/cases/60-role-static.sh"]
fn every_key_reaches_the_agent_as_it_was_given() {
    let mut given = least();
    let (mut plain, mut section) = (String::new(), "");
    for key in KEYS {
        let value = other(key);
        let (here, last) = key.name.split_once('.').unwrap_or(("", key.name));
        if here != section && !here.is_empty() {
            plain += &format!("{here}:\n");
        }
        section = here;
        let indent = if here.is_empty() { "" } else { "  " };
        let (value, written) = match kind(key.kind).0 {
            "int" | "bool" => (value.clone().into(), value),
            "list" => {
                let items = serde_json::Value::from(value.lines().collect::<Vec<_>>());
                (items.clone(), items.to_string())
            }
            _ => (serde_json::Value::from(&*value), serde_json::Value::from(&*value).to_string()),
        };
        plain += &format!("{indent}{last}: {written}\n");
        given.insert(variable(key), value);
    }
    let text = rendered(&given);
    let made = Config::parse("made", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(made, Config::parse("plain", &plain).unwrap(), "{text}");
}

#[test]
#[ignore = "needs ansible: tests/install/cases/60-role-static.sh"]
fn a_list_is_written_item_by_item_also_an_empty_one_and_an_absent_one_is_left_out() {
    let mut given = least();
    let keys = ["a.none", "a.empty", "a.two", "last"].map(|name| serde_json::json!({"name": name, "type": "list"}));
    given.insert("__monky_deployd_keys".to_owned(), keys.to_vec().into());
    given.insert("monky_deployd_a_none".to_owned(), serde_json::Value::Null);
    given.insert("monky_deployd_a_empty".to_owned(), serde_json::json!([]));
    given.insert("monky_deployd_a_two".to_owned(), serde_json::json!(["/srv/x", "yes # \"no\""]));
    given.insert("monky_deployd_last".to_owned(), serde_json::json!(["1"]));
    let read: Value = serde_yaml::from_str(&rendered(&given)).unwrap();
    let wanted: Value = serde_yaml::from_str("{a: {empty: [], two: [/srv/x, 'yes # \"no\"']}, last: ['1']}").unwrap();
    assert_eq!(read, wanted);
}
