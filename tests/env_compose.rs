//! Whatever a secret holds, the real Compose gets exactly it out of `.env`, on both versions.
//!
//! Invariant: the reader is Compose itself; `tests/env_round_trip.rs` has the rules that were measured of it.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use common::rig::compose_versions;
use common::stack_env::stack;
use monky_deployd::effects::env_template::EnvTemplate;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use zeroize::Zeroizing;

/// So many values go through one call of Compose.
const AT_ONCE: usize = 200;
const CALLS: usize = 3;

/// Values with many of the characters that matter.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        r#"[\\"'$\n\r\t #={}a-nré%`!]{0,40}"#,
        r#"[^\x00]{0,40}"#,
        r#"(\\|\\\\|\\n|\\"|"|'|\$\{?A\}?|\$\$|\$\(x\)|#| |\n|\r\n|é){0,12}"#,
        Just(String::new()),
    ]
}

#[test]
fn the_real_compose_reads_every_secret_back_exactly() {
    let Some(stack) = stack() else { return };
    let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    for _ in 0..CALLS {
        let values: BTreeMap<String, String> =
            (0..AT_ONCE).map(|n| (format!("V{n:03}"), value().new_tree(&mut runner).unwrap().current())).collect();
        let template = EnvTemplate::of_variables(values.keys().map(String::as_str));
        let env = template.render(|name| values.get(name).cloned().map(Zeroizing::new)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".env"), env.as_bytes()).unwrap();
        let lines: String = values.keys().map(|name| format!("      {name}: ${{{name}}}\n")).collect();
        let compose = format!("services:\n  web:\n    image: none\n    environment:\n{lines}");
        fs::write(dir.path().join("compose.yaml"), compose).unwrap();
        for version in compose_versions(&stack) {
            let output = Command::new(format!("{}/bin/docker-{version}", stack["STACK_DIR"]))
                .env_clear()
                .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                .current_dir(dir.path())
                .args([
                    "compose",
                    "-p",
                    "env",
                    "-f",
                    "compose.yaml",
                    "--env-file",
                    ".env",
                    "config",
                    "--format",
                    "json",
                ])
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert!(output.status.success(), "{version}: {}", String::from_utf8_lossy(&output.stderr));
            let model: Value = serde_json::from_slice(&output.stdout).unwrap();
            for (name, value) in &values {
                // What Compose prints can be read by it again: there a `$` is written `$$`.
                let read = model["services"]["web"]["environment"][name].as_str().unwrap().replace("$$", "$");
                assert_eq!(&read, value, "{name} on Compose {version}");
            }
        }
    }
}
