//! The configuration as an operator meets it: what is taken, what is refused, and with which words.

use std::path::{Path, PathBuf};

use monky_deployd::config::keys::{self, Absent, KEYS};
use monky_deployd::config::{Config, HostPort, Scheme, Transport};
use monky_deployd::effects::OnUnhealthy;
use monky_deployd::effects::policy::{Rule, Stance};
use proptest::prelude::*;

const LEAST: &str = "env_id: plant-7\ntenancy:\n  host: tenancy.example\nbao:\n  addr: https://bao.example:8200\n";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("c.yaml", text).map_err(|e| e.to_string())
}

fn with(more: &str) -> Result<Config, String> {
    parse(&format!("{LEAST}{more}"))
}

/// The least configuration with one key more, wherever it belongs.
fn with_key(name: &str, value: &str) -> String {
    match name.split_once('.') {
        Some((section @ ("tenancy" | "bao"), key)) => {
            LEAST.replace(&format!("{section}:\n"), &format!("{section}:\n  {key}: {value}\n"))
        }
        Some((section, key)) => format!("{LEAST}{section}:\n  {key}: {value}\n"),
        None => format!("{LEAST}{name}: {value}\n"),
    }
}

#[test]
fn the_least_configuration_gets_every_default_of_the_contract() {
    let c = parse(LEAST).unwrap();
    let s = &c.settings;
    assert_eq!((s.env_id.as_str(), s.site.as_str(), s.role.as_str()), ("plant-7", "", "env-plant-7"));
    assert_eq!((s.kv_mount.as_str(), s.renew_below_s, s.project.as_str()), ("monky", 600, "monky-plant-7"));
    assert_eq!((s.healthy_timeout_s, s.pull_timeout_s, s.stable_s, s.keep_releases), (300, 600, 5, 3));
    assert_eq!((s.on_unhealthy, s.laptop_mode), (OnUnhealthy::Keep, false));
    for rule in Rule::ALL {
        assert_eq!(s.policy.rules.get(rule), Some(&rule.usual()), "the table and the code differ in {rule:?}");
    }
    assert_eq!(s.policy.bind_roots, [] as [&str; 0]);
    assert_eq!((c.transport.clone(), c.tenancy.scheme, c.tenancy.port), (Transport::System, Scheme::Https, 443));
    assert_eq!(
        (c.tenancy.timeout_s, c.tenancy.ca_file.clone(), c.tenancy.addr()),
        (15, None, "https://tenancy.example:443".into())
    );
    assert_eq!(
        (c.bao.addr(), c.bao.auth_mount.as_str(), c.bao.timeout_s),
        ("https://bao.example:8200".into(), "jwt", 15)
    );
    assert_eq!((c.bao.namespace.clone(), c.bao.ca_file.clone()), (None, None));
    assert_eq!(
        (c.state_dir.as_path(), c.docker_bin.as_path()),
        (Path::new("/var/lib/monky-deployd"), Path::new("docker"))
    );
    assert_eq!((c.registry_host.as_str(), c.prod, c.log_level), ("harbor.tikali.net", false, tracing::Level::INFO));
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_the_nearest_key() {
    assert_eq!(with("stable: 3\n").unwrap_err(), "c.yaml:6: stable: no such key; did you mean `stable_s`?");
    assert_eq!(
        parse(&with_key("tenancy.hots", "x")).unwrap_err(),
        "c.yaml:3: tenancy.hots: no such key; did you mean `tenancy.host`?"
    );
    assert_eq!(with("tenency:\n  host: x\n").unwrap_err(), "c.yaml:6: tenency: no such key; did you mean `tenancy`?");
    // In the wrong section, and with everything below it said once.
    assert_eq!(with("port: 1\n").unwrap_err(), "c.yaml:6: port: no such key; did you mean `tenancy.port`?");
    assert_eq!(with("foo:\n  bar:\n    baz: 1\n").unwrap_err().lines().count(), 1);
    assert!(with("<<: 1\n").unwrap_err().contains("no such key"));
}

#[test]
fn everything_wrong_is_said_at_once_in_the_order_of_the_file() {
    let text = "env_id: Plant\nstable_s: 5s\nbao:\n  addr: bao.example\nlog_level: LOUD\n";
    assert_eq!(
        parse(text).unwrap_err(),
        "c.yaml:1: env_id: must be [a-z0-9][a-z0-9-]*\n\
         c.yaml:2: stable_s: must be whole seconds from 1 to 86400, without a unit\n\
         c.yaml:4: bao.addr: must be https://host:port, with the port and without a path\n\
         c.yaml:5: log_level: must be one of TRACE, DEBUG, INFO, WARN, ERROR\n\
         c.yaml: tenancy.host: is missing, and required"
    );
}

#[test]
fn yaml_beyond_the_subset_is_refused_with_its_line() {
    for (text, line, word) in [
        ("site: &a x\n", 6, "anchor"),
        ("site: &a x\ncompose_project: *a\n", 7, "alias"),
        ("site: *a\n", 6, ""),
        ("site: !!str x\n", 6, "tag"),
        ("site: !x x\n", 6, "tag"),
        ("---\nsite: x\n", 6, "second document"),
        ("site: a\nsite: b\n", 7, "given twice, first in line 6"),
        ("env_id: b\n", 6, "given twice, first in line 1"),
        ("site:\tx\n", 6, "a tab"),
        ("proxy:\n\tbao: x:1\n", 7, "a tab"),
        ("site: \"a\u{1}\"\n", 6, "control character"),
        ("%YAML 1.2\n", 6, "directive"),
        ("site: |\n  x\n", 6, "one line"),
        ("site: a\n  b\n", 6, "one line"),
        ("site: \"a\n  b\"\n", 6, "one line"),
        ("? [a]\n: b\n", 6, "one word"),
        ("site: [a, b]\n", 6, "takes one value"),
        ("site:\n- a\n- b\n", 6, "takes one value"),
        ("site: {a: b}\n", 6, "takes one value"),
        ("proxy: x\n", 6, "is a section: indented below it go tenancy, bao"),
        ("proxy: [x]\n", 6, "is a section"),
        ("site: 'x\n", 6, "not YAML"),
        ("  site: x\n", 6, ""),
        ("proxy.bao: x:1\n", 6, "a dot does not nest"),
        ("\"a\\nb\": 1\n", 6, "no such key"),
    ] {
        let said = with(text).unwrap_err();
        assert!(
            said.lines().any(|l| l.starts_with(&format!("c.yaml:{line}:")) && l.contains(word)),
            "{text:?}: {said}"
        );
        assert!(said.lines().all(|l| l.starts_with("c.yaml:")), "{text:?}: {said}");
    }
    for text in ["- a\n", "x\n", "[]", "'", "{", "*a", "--- a\n--- b", "\u{0}"] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_policy_is_read_rule_by_rule() {
    let c = with("policy:\n  privileged: refuse\n  images: warn\n  docker_socket: allow\n").unwrap();
    let stance = |rule| c.settings.policy.stance(rule);
    assert_eq!((stance(Rule::Privileged), stance(Rule::Images)), (Stance::Refuse, Stance::Warn));
    assert_eq!((stance(Rule::DockerSocket), stance(Rule::Binds)), (Stance::Allow, Stance::Allow));
    for (text, said) in [
        (
            "policy:\n  privileged: refused\n",
            "c.yaml:7: policy.privileged: must be one of allow, warn, refuse; did you mean `refuse`?",
        ),
        ("policy:\n  cap_add: refuse\n", "c.yaml:7: policy.cap_add: no such key; did you mean"),
        (
            "policy:\n  docker_sock: refuse\n",
            "c.yaml:7: policy.docker_sock: no such key; did you mean `policy.docker_socket`?",
        ),
        ("policy: refuse\n", "c.yaml:6: policy: is a section: indented below it go privileged, host_namespaces"),
        ("policy:\n  privileged: [refuse]\n", "c.yaml:7: policy.privileged: takes one value"),
    ] {
        let error = with(text).unwrap_err();
        assert!(error.starts_with(said), "{text:?}: {error}");
    }
}

#[test]
fn a_list_is_taken_in_both_forms_and_shown_as_it_reads_back() {
    let roots = |text: &str| with(&format!("policy:\n  bind_roots:{text}\n")).map(|c| c.settings.policy.bind_roots);
    for text in [
        " [/srv, \"/mnt/a, b\"]",
        " [/srv/,\n    '/mnt/a, b', # the second\n  ]",
        "\n    - /srv # the first\n    - \"/mnt/a, b\"",
        "\n  - /srv//\n  - '/mnt/a, b'",
    ] {
        assert_eq!(roots(text).unwrap(), ["/srv", "/mnt/a, b"], "{text:?}");
    }
    for none in ["", " []", " null"] {
        assert_eq!(roots(none).unwrap(), [] as [&str; 0], "{none:?}");
    }
    assert_eq!(roots(" [/]").unwrap(), ["/"]);
    let c = with("policy:\n  bind_roots: [/srv, \"/mnt/a, b\", '/x: y', \"/[z]\", /a#b]\n").unwrap();
    assert!(c.show().contains("  bind_roots: [/srv, \"/mnt/a, b\", "), "{}", c.show());
    assert_eq!(parse(&c.show()).unwrap(), c);
}

#[test]
fn what_is_wrong_in_a_list_is_said_with_its_line_and_item() {
    for (text, line, said) in [
        (" /srv", 7, "policy.bind_roots: takes a list: [a, b]"),
        (" {a: b}", 7, "policy.bind_roots: takes a list"),
        ("\n    a: /srv", 7, "policy.bind_roots: takes a list"),
        ("\n    - /srv\n    - srv", 9, "policy.bind_roots: item 2 must be an absolute path"),
        ("\n    - /srv\n    -", 9, "policy.bind_roots: item 2 must be an absolute path"),
        (" [/srv/../etc]", 7, "policy.bind_roots: item 1 must be an absolute path without"),
        (" [/srv, ~]", 7, "policy.bind_roots: item 2 must be"),
        ("\n    - [/srv]", 8, "policy.bind_roots: item 1 must be one value, no list or map"),
        ("\n    - /a\n    - b: /srv", 9, "policy.bind_roots: item 2 must be one value, no list or map"),
        ("\n    - /a\n    - &x /b", 9, "anchor"),
        ("\n    - !x /a", 8, "tag"),
        ("\n    - |\n      /a", 9, "policy.bind_roots: a text of several lines"),
    ] {
        let error = with(&format!("policy:\n  bind_roots:{text}\n")).unwrap_err();
        let fits = |l: &str| l.starts_with(&format!("c.yaml:{line}:")) && l.contains(said);
        assert!(error.lines().any(fits), "{text:?}: {error}");
    }
}

#[test]
fn maps_scalars_comments_quotes_and_one_document_marker_are_taken() {
    let text = "\u{feff}--- # opening\r\nenv_id: 'plant-7' # here\r\ntenancy: {host: \"tenancy.example\"}\r\nbao:\r\n    addr: https://bao.example:8200\r\nsite: Hall 3 # rack\r\nproxy:\r\n...\r\n";
    let c = parse(text).unwrap();
    assert_eq!(c.settings.site, "Hall 3");
    assert_eq!(parse(&with_key("site", "Hall 3")).unwrap(), c);
}

#[test]
fn values_that_are_not_what_the_key_takes_are_refused() {
    for (key, bad) in [
        ("site", "\"\\u0000\""),
        ("transport", "sytem"),
        ("proxy.tenancy", "127.0.0.1"),
        ("proxy.tenancy", "::1:80"),
        ("proxy.bao", "a:0"),
        ("proxy.bao", "a:65536"),
        ("sdk.identity_file", "id.json"),
        ("tenancy.scheme", "ftp"),
        ("tenancy.port", "0"),
        ("tenancy.port", "\"443\""),
        ("tenancy.port", "+443"),
        ("tenancy.port", "0443"),
        ("tenancy.port", "0x1bb"),
        ("tenancy.timeout_s", "1.5"),
        ("tenancy.timeout_s", "-1"),
        ("tenancy.timeout_s", "99999999999999999999999"),
        ("bao.auth_mount", "/jwt"),
        ("bao.auth_mount", "a/../b"),
        ("bao.kv_mount", "monky/"),
        ("bao.role", "a b"),
        ("state_dir", "relative"),
        ("compose_project", "Monky"),
        ("compose_project", "-x"),
        ("docker_bin", "./docker"),
        ("registry_host", "https://harbor.example"),
        ("registry_host", "harbor.example/x"),
        ("keep_releases", "0"),
        ("prod", "yes"),
        ("prod", "\"true\""),
        ("laptop_mode", "True"),
        ("log_level", "OFF"),
        ("on_unhealthy", "rolback"),
    ] {
        let said = parse(&with_key(key, bad)).expect_err(&format!("{key}: {bad}"));
        assert!(said.contains(&format!(" {key}: must be ")), "{key}: {bad}: {said}");
    }
    assert!(with("on_unhealthy: rolback\n").unwrap_err().ends_with("did you mean `rollback`?"));
    for host in [
        "https://tenancy.example",
        "tenancy.example/",
        "tenancy.example:443",
        "a..b",
        "-a",
        "a b",
        "\"[tenancy]\"",
        "\"[1.2.3.4]\"",
        "\"\"",
    ] {
        let said = parse(&LEAST.replace("tenancy.example", host)).unwrap_err();
        assert!(said.contains("tenancy.host: must be a host name or address"), "{host}: {said}");
    }
    for addr in [
        "bao.example:8200",
        "https://bao.example",
        "https://bao.example:8200/",
        "https://u@bao.example:1",
        "https://::1:1",
        "ftp://a:1",
        "https://:1",
    ] {
        let said = parse(&LEAST.replace("https://bao.example:8200", addr)).unwrap_err();
        assert!(said.contains("bao.addr: must be https://host:port"), "{addr}: {said}");
    }
    assert!(parse(&LEAST.replace("plant-7", "")).unwrap_err().contains("env_id: is empty, and required"));
}

#[test]
fn addresses_of_ipv6_hosts_stand_in_brackets() {
    let c =
        parse(&LEAST.replace("https://bao.example", "https://[2001:DB8::1]").replace("tenancy.example", "\"[::1]\""))
            .unwrap();
    assert_eq!(
        (c.bao.host.as_str(), c.bao.port, c.bao.addr()),
        ("2001:db8::1", 8200, "https://[2001:db8::1]:8200".into())
    );
    assert_eq!((c.tenancy.host.as_str(), c.tenancy.addr()), ("::1", "https://[::1]:443".into()));
    assert_eq!(parse(&c.show()).unwrap(), c);
}

#[test]
fn a_transport_needs_its_keys() {
    assert_eq!(with("transport: proxy\n").unwrap_err(), "c.yaml: proxy.tenancy: is required with transport: proxy");
    let c = with("transport: proxy\nproxy:\n  tenancy: 127.0.0.1:8441\n").unwrap();
    let tenancy = HostPort { host: "127.0.0.1".into(), port: 8441 };
    assert_eq!(c.transport, Transport::Proxy { tenancy, bao: None });

    let said = with("transport: sdk\nsdk:\n  service: t\n").unwrap_err();
    assert!(said.contains("sdk.identity_file: is required") && said.contains("sdk.library: is required"), "{said}");
    let c = with("transport: sdk\nsdk:\n  service: t\n  identity_file: /i\n  library: /l\n").unwrap();
    let (identity_file, library) = (PathBuf::from("/i"), PathBuf::from("/l"));
    assert_eq!(c.transport, Transport::Sdk { identity_file, service: "t".into(), library });
}

#[test]
fn prod_follows_from_the_env_id_unless_it_is_given() {
    for (env_id, given, prod) in [
        ("plant-7", "", false),
        ("prod", "", true),
        ("plant-prod-7", "", true),
        ("production", "", false),
        ("reprod-1", "", false),
        ("plant-prod", "prod: false\n", false),
        ("plant-7", "prod: true\n", true),
        ("plant-7-prod", "prod:\n", true),
    ] {
        let c = parse(&format!("{}{given}", LEAST.replace("plant-7", env_id))).unwrap();
        assert_eq!(c.prod, prod, "{env_id} {given:?}");
    }
}

#[test]
fn prod_refuses_laptop_mode_and_plain_http_to_another_host() {
    let prod = |text: &str| parse(&format!("{text}prod: true\n"));
    assert!(
        prod(&format!("{LEAST}laptop_mode: true\n")).unwrap_err().starts_with("c.yaml:6: laptop_mode: is not for prod")
    );
    let plain = LEAST.replace("https://bao", "http://bao").replace("  host:", "  scheme: http\n  host:");
    let said = prod(&plain).unwrap_err();
    assert!(
        said.contains("c.yaml:3: tenancy.scheme: plain http") && said.contains("c.yaml:6: bao.addr: plain http"),
        "{said}"
    );
    assert!(parse(&plain).is_ok());
    for near in ["localhost", "127.0.0.1", "127.9.9.9"] {
        assert!(prod(&plain.replace("bao.example", near).replace("tenancy.example", near)).is_ok(), "{near}");
    }
    assert!(
        prod(
            &plain
                .replace("bao.example", "[::1]")
                .replace("tenancy.example", "::1")
                .replace("host: ::1", "host: \"::1\"")
        )
        .is_ok()
    );
    for far in ["10.0.0.1", "localhost.example", "127.0.0.1.example", "0.0.0.0"] {
        assert!(prod(&plain.replace("bao.example", far).replace("tenancy.example", far)).is_err(), "{far}");
    }
}

#[test]
fn log_levels_are_taken_in_any_case() {
    for (word, level) in
        [("trace", tracing::Level::TRACE), ("Warn", tracing::Level::WARN), ("ERROR", tracing::Level::ERROR)]
    {
        assert_eq!(parse(&with_key("log_level", word)).unwrap().log_level, level);
    }
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let load = |name: &str, content: Option<&[u8]>| {
        let path = dir.path().join(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let said = Config::load(&path).map_err(|e| e.to_string());
        said.map_err(|said| said.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&said).to_owned())
    };
    assert!(load("none", None).unwrap_err().starts_with("no such file"));
    assert!(load("", None).unwrap_err().starts_with("is a directory"));
    assert_eq!(load("latin", Some(b"site: x\nsite: \xe9\n")).unwrap_err(), "not UTF-8 text (line 2)");
    assert!(load("big", Some(&vec![b'#'; 1024 * 1024 + 1])).unwrap_err().starts_with("larger than 1 MiB"));
    assert!(load("empty", Some(b"")).unwrap_err().contains("env_id: is missing"));
    assert!(load("good", Some(LEAST.as_bytes())).is_ok());
}

/// The example with every `#` taken away that has no space after it.
fn uncommented() -> String {
    let bare = |line: &str| match line.split_once('#') {
        Some((indent, rest)) if indent.trim().is_empty() && !rest.starts_with(' ') => format!("{indent}{rest}\n"),
        _ => format!("{line}\n"),
    };
    keys::example().lines().map(bare).collect()
}

/// `config.example.yaml` is made from the table: `UPDATE_EXAMPLE=1 cargo test --test config` writes it anew.
#[test]
fn the_example_file_is_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.yaml");
    if std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(&path, keys::example()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), keys::example());
    assert_eq!(Config::load(&path).unwrap(), parse(LEAST).unwrap());
}

#[test]
fn the_example_names_every_key_with_its_default() {
    let text = uncommented();
    // An independent reader, so that the table is not its own judge.
    let yaml: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    for key in KEYS {
        let value = key.name.split('.').try_fold(&yaml, |at, part| at.get(part));
        let value = value.unwrap_or_else(|| panic!("{} is not in the example", key.name));
        let shown = value
            .as_str()
            .map(str::to_owned)
            .unwrap_or_else(|| serde_yaml::to_string(value).unwrap().trim().to_owned());
        if key.kind.is_list() {
            let items: Vec<&str> = value.as_sequence().unwrap().iter().map(|item| item.as_str().unwrap()).collect();
            assert_eq!(items.join("\n"), key.example, "{}", key.name);
        }
        if let Absent::Is(default) = key.default {
            let expected = if default.is_empty() { key.example } else { default };
            assert_eq!(shown, expected, "{}", key.name);
        }
    }
    let c = parse(&text).unwrap();
    assert_eq!((c.prod, c.bao.namespace.as_deref()), (true, Some("plants")));
}

/// Random words for every kind of value, so that `show` meets quoting.
fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "\\[(/[a-z ~:.]{0,6}(, )?){0,3}\\]",
        "[a-z0-9-]{1,8}",
        "/[ -~äß€😀]{0,12}",
        "[0-9]{1,6}",
        Just("true".to_owned()),
        Just("null".to_owned()),
        Just("~".to_owned()),
        Just("[::1]:80".to_owned()),
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_show_prints_reads_back_as_the_same_configuration(
        values in proptest::collection::vec((0..KEYS.len(), scalar()), 0..6),
    ) {
        let mut text = LEAST.to_owned();
        for (index, value) in values {
            let value = serde_json::to_string(&value).unwrap();
            let name = KEYS[index].name;
            for value in [value.clone(), value.trim_matches('"').to_owned()] {
                let more = match name.split_once('.') {
                    Some((section @ ("tenancy" | "bao"), key)) => {
                        text.replace(&format!("{section}:\n"), &format!("{section}:\n  {key}: {value}\n"))
                    }
                    Some((section, key)) => format!("{text}{section}:\n  {key}: {value}\n"),
                    None => format!("{text}{name}: {value}\n"),
                };
                if parse(&more).is_ok() {
                    text = more;
                    break;
                }
            }
        }
        let config = parse(&text).unwrap();
        let shown = config.show();
        prop_assert_eq!(parse(&shown), Ok(config), "{}", shown);
    }

    #[test]
    fn no_text_makes_it_panic(text in prop_oneof![any::<String>(), "[-&*!|>'\"%@`{}\\[\\],:#? \na-c\t]{0,60}"]) {
        let _ = parse(&text);
    }

    #[test]
    fn no_change_of_the_example_makes_it_panic(
        at in 0usize..6000, cut in 0usize..40, put in prop_oneof![any::<String>(), "[-&*!|>'\"%{}\\[\\],:#? \n\t]{0,8}"], open in any::<bool>(),
    ) {
        let text: Vec<char> = if open { uncommented() } else { keys::example() }.chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        let changed: String = text[..at].iter().copied().chain(put.chars()).chain(text[end..].iter().copied()).collect();
        if let Err(said) = parse(&changed) {
            prop_assert!(said.lines().all(|line| line.starts_with("c.yaml:")), "{}", said);
        }
    }
}

#[test]
fn deep_and_long_texts_end_soon() {
    for text in [
        "[".repeat(500_000),
        "{a: ".repeat(200_000),
        "- ".repeat(500_000),
        "a: b\n".repeat(200_000),
        "\"".repeat(1_000_000),
        "? ".repeat(500_000),
    ] {
        let start = std::time::Instant::now();
        assert!(parse(&text).is_err());
        assert!(start.elapsed().as_secs() < 10, "{:?}… took {:?}", &text[..5], start.elapsed());
    }
}
