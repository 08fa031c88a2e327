//! The built binary against the real stack: real engine, both Compose versions, real registry, real OpenBao.

#![cfg(feature = "sandbox")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::rig::{Rig, compose_versions, stack};
use serde_json::json;

/// Runs a test on each Compose version.
fn on_each(test: impl Fn(&mut Rig)) {
    let Some(stack) = stack() else { return };
    for version in compose_versions(&stack) {
        eprintln!("-- Compose {version}");
        test(&mut Rig::new(&stack, &version));
    }
}

fn web(rig: &Rig, tag: &str) -> String {
    format!("services:\n  web:\n    image: {}\n    environment:\n      PASSWORD: ${{PASSWORD}}\n", rig.image(tag))
}

#[test]
fn first_deploy_from_a_bootstrap_grant_with_registry_credential_and_secrets_byte_for_byte() {
    on_each(|rig| {
        let value = "a'b\"c$d#e \\ f\nsecond line\ttab \u{fc}\\";
        rig.secret("db", json!({ "value": value }));
        rig.registry_secret();
        let bundle = rig.bundle(1, &web(rig, "web:1"), &[rig.entry("PASSWORD", "db"), rig.registry_entry()], &[]);
        let sha = rig.desire(&bundle);
        rig.bootstrap();
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
        assert_eq!(String::from_utf8_lossy(&rig.shell("web", "printf %s \"$PASSWORD\"")), value);
        assert_eq!(rig.tenancy.leases_granted(&rig.env_id), 1);
        assert_eq!(rig.reports()[0]["result"], "applied");
        assert_eq!(rig.status()["applied"]["sha"], json!(sha));
    });
}
