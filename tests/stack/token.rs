//! Tokens and secrets on the real OpenBao: reused, swapped once, healed, and never leased for without need.

use std::net::TcpListener;

use monky_deployd::sandbox::tenancy::BundleFiles;
use serde_json::{Value, json};

use crate::common::rig::{Rig, compose_versions, on_one, wait_until};
use crate::common::stack_env::stack;

const WEB: &str = "services: {web: {image: '@web:1', environment: {PASSWORD: '${PASSWORD}'}}}\n";

fn with_password(rig: &Rig, generation: i64) -> BundleFiles {
    rig.registry_secret();
    rig.bundle(generation, WEB, &[rig.entry("PASSWORD", "db"), rig.registry_entry()], &[])
}

#[test]
fn without_a_lease_the_bootstrap_token_deploys_and_is_swapped_once_there_is_one() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.tenancy.lease_budget(Some(0));
        rig.bootstrap();
        rig.deploy(&with_password(rig, 1));
        let bootstrap_token = rig.token();
        assert_eq!((rig.calls("POST", "/leases"), &rig.status()["token"]["source"]), (1, &json!("bootstrap")));
        assert!(!rig.has("bootstrap.jwt"), "its grant is used up");

        // The next deploy knows that the answer is no, and does not even ask.
        rig.secret("db", json!({"value": "two"}));
        rig.deploy(&with_password(rig, 2));
        assert_eq!((rig.calls("POST", "/leases"), rig.token()), (1, bootstrap_token.clone()));
        assert!(rig.status()["next_lease_at"].is_string());

        // The hour is over.
        rig.tenancy.lease_budget(Some(5));
        rig.change_state(|state| state["lease_not_before"] = Value::Null);
        rig.secret("db", json!({"value": "three"}));
        rig.deploy(&with_password(rig, 3));
        assert_eq!((rig.tenancy.leases_granted(&rig.env_id), &rig.status()["token"]["source"]), (1, &json!("lease")));
        assert!(!rig.token_lives(&bootstrap_token), "the swapped token is revoked");
        assert_eq!(rig.living_tokens().len(), 1);
        assert_eq!(rig.environment("web")["PASSWORD"], b"three");
    });
}

#[test]
fn without_a_lease_and_a_token_nothing_comes_up_and_tenancy_is_not_asked_again() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.tenancy.lease_budget(Some(0));
        let sha = rig.desire(&with_password(rig, 1));
        rig.tick_waits("LEASE_RATE_LIMITED");
        rig.tick_waits("LEASE_RATE_LIMITED");
        assert_eq!((rig.calls("POST", "/leases"), rig.all_ids().len(), rig.reports().len()), (1, 0, 0));
        // The next check-in tells tenancy why nothing happens.
        let checkins = rig.tenancy.checkins();
        assert!(checkins[1].1["last_error"].as_str().unwrap().starts_with("LEASE_RATE_LIMITED: "), "{checkins:?}");

        rig.tenancy.lease_budget(Some(5));
        rig.change_state(|state| state["lease_not_before"] = Value::Null);
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &sha[..12]));
        assert_eq!(rig.status()["trouble"], Value::Null);
    });
}

#[test]
fn a_lease_of_the_retired_scheme_is_refused_loudly() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.tenancy.legacy_leases(true);
        rig.desire(&with_password(rig, 1));
        let ran = rig.tick_fails("LEGACY_LEASE");
        assert!(ran.stderr.contains("approle"), "{}", ran.stderr);
        assert_eq!(rig.all_ids().len(), 0);
        assert!(!rig.has("token.json") && !rig.has("grant.json"));

        // Also with a token that would do.
        rig.bootstrap();
        rig.backoff_is_over();
        rig.tick_fails("LEGACY_LEASE");
        assert_eq!(rig.all_ids().len(), 0);
        assert!(rig.token_lives(&rig.token()), "the bootstrap token is kept for when tenancy is mended");
    });
}

#[test]
fn a_denied_lease_fails_and_is_told() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.tenancy.deny_leases(true);
        rig.desire(&with_password(rig, 1));
        rig.tick_fails("LEASE_DENIED");
        assert_eq!(rig.all_ids().len(), 0);
    });
}

#[test]
fn a_token_that_was_revoked_behind_the_agents_back_is_replaced_by_one_login() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.deploy(&with_password(rig, 1));
        let dead = rig.token();
        rig.bao("POST", "auth/token/revoke", &json!({ "token": dead }));
        rig.secret("db", json!({"value": "two"}));
        rig.deploy(&with_password(rig, 2));
        assert_ne!(rig.token(), dead);
        assert_eq!(rig.calls("POST", "/leases"), 1, "the grant of the first lease still lives, and logs in again");
        assert_eq!(rig.living_tokens().len(), 1);

        // Without that grant it takes one lease.
        rig.bao("POST", "auth/token/revoke", &json!({"token": rig.token()}));
        std::fs::remove_file(rig.state_dir().join("grant.json")).unwrap();
        rig.secret("db", json!({"value": "three"}));
        rig.deploy(&with_password(rig, 3));
        assert_eq!(rig.calls("POST", "/leases"), 2);
        assert_eq!(rig.environment("web")["PASSWORD"], b"three");
    });
}

#[test]
fn a_grant_that_openbao_rejects_is_dropped_and_one_lease_is_tried() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.bootstrap();
        // The role wants another environment's grants.
        rig.role(json!({"bound_claims": {"env_id": "another"}}));
        rig.desire(&with_password(rig, 1));
        let ran = rig.tick_fails("GRANT_REJECTED");
        assert!(ran.stderr.contains("claim \"env_id\""), "OpenBao's own words: {}", ran.stderr);
        assert_eq!((rig.calls("POST", "/leases"), rig.all_ids().len()), (1, 0));
        assert!(!rig.has("bootstrap.jwt") && !rig.has("grant.json") && !rig.has("token.json"));
        rig.role(json!({}));
        rig.backoff_is_over();
        rig.tick_ends(0);
        assert_eq!(rig.calls("POST", "/leases"), 2);
    });
}

#[test]
fn a_living_token_that_may_not_read_is_no_reason_to_lease() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.deploy(&with_password(rig, 1));
        let (token, life) = (rig.token(), rig.life("web"));
        rig.policy(false);
        let denied = with_password(rig, 2);
        rig.desire(&denied);
        let ran = rig.tick_fails("SECRET_DENIED");
        assert!(ran.stderr.contains(&format!("{}/{}/db", rig.kv, rig.env_id)), "{}", ran.stderr);
        assert_eq!((rig.calls("POST", "/leases"), rig.token(), rig.life("web")), (1, token, life));
        rig.policy(true);
        rig.backoff_is_over();
        rig.tick_ends(0);
    });
}

#[test]
fn a_secret_that_cannot_be_had_is_named_and_nothing_is_touched() {
    on_one(|rig| {
        rig.registry_secret();
        rig.secret("db", json!({"value": "first"}));
        rig.secret("db", json!({"value": "second"}));
        let mut pinned = rig.entry("PASSWORD", "db");
        pinned["version"] = json!(1);
        rig.deploy(&rig.bundle(1, WEB, &[pinned.clone(), rig.registry_entry()], &[]));
        assert_eq!(rig.environment("web")["PASSWORD"], b"first", "a pinned version is that version");
        let life = rig.life("web");

        let mut generation = 1;
        let mut fails = |entry: Value, code: &str, says: &str| {
            generation += 1;
            rig.desire(&rig.bundle(generation, WEB, &[entry, rig.registry_entry()], &[]));
            let ran = rig.tick_fails(code);
            assert!(ran.stderr.contains(says), "{says:?}: {}", ran.stderr);
            assert_eq!(rig.life("web"), life, "{code}");
        };
        let path = format!("{}/{}", rig.kv, rig.env_id);
        let metadata = |verb: &str| format!("{}/{verb}/{}/db", rig.kv, rig.env_id);
        fails(rig.entry("PASSWORD", "nowhere"), "SECRET_MISSING", &format!("{path}/nowhere"));
        let mut key = rig.entry("PASSWORD", "db");
        key["key"] = json!("other");
        fails(key, "SECRET_MISSING", "\"other\"");
        let mut version = rig.entry("PASSWORD", "db");
        version["version"] = json!(7);
        fails(version, "SECRET_MISSING", &format!("{path}/db"));
        rig.secret("number", json!({"value": 12}));
        fails(rig.entry("PASSWORD", "number"), "SECRET_INVALID", "a number");
        rig.bao("POST", &metadata("delete"), &json!({"versions": [2]}));
        fails(rig.entry("PASSWORD", "db"), "SECRET_DELETED", &format!("{path}/db"));
        rig.bao("PUT", &metadata("destroy"), &json!({"versions": [1]}));
        fails(pinned.clone(), "SECRET_DELETED", "destroyed");
        assert_eq!(rig.calls("POST", "/leases"), 1);
    });
}

#[test]
fn an_openbao_out_of_reach_says_nothing_about_a_token() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.deploy(&with_password(rig, 1));
        let (token, life, addr) = (rig.token(), rig.life("web"), rig.setting("bao.addr"));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        rig.set("bao.addr", &format!("http://{closed}"));
        rig.secret("db", json!({"value": "two"}));
        let sha = rig.desire(&with_password(rig, 2));
        let ran = rig.tick_waits("BAO_UNAVAILABLE");
        assert!(ran.stderr.to_lowercase().contains("refused"), "{}", ran.stderr);
        assert_eq!((rig.token(), rig.calls("POST", "/leases"), rig.life("web")), (token, 1, life));
        assert_eq!(rig.reports().len(), 1, "what is temporary is no outcome");
        rig.set("bao.addr", &addr);
        assert_eq!(rig.tick_ends(0).stdout.trim(), format!("applied {}", &sha[..12]), "and there is no backoff");
    });
}

#[test]
fn an_openbao_behind_an_own_ca_is_trusted_with_that_ca_alone() {
    let Some(stack) = stack() else { return };
    let mut rig = Rig::with_tls(&stack, compose_versions(&stack).last().unwrap());
    rig.secret("db", json!({"value": "over TLS"}));
    rig.deploy(&with_password(&rig, 1));
    assert_eq!(rig.environment("web")["PASSWORD"], b"over TLS");

    let (token, ca) = (rig.token(), rig.setting("bao.ca_file"));
    rig.unset("bao.ca_file");
    rig.desire(&with_password(&rig, 2));
    let ran = rig.tick_waits("BAO_UNAVAILABLE");
    assert!(ran.stderr.to_lowercase().contains("certificate"), "{}", ran.stderr);
    assert_eq!((rig.token(), rig.calls("POST", "/leases")), (token, 1));
    rig.set("bao.ca_file", &ca);
    rig.tick_ends(0);
    rig.the_protocol_was_kept();
}

#[test]
fn a_registry_credential_that_is_none_is_a_warning() {
    on_one(|rig| {
        let nothing_private = "services: {web: {image: '@web:1', pull_policy: if_not_present}}\n";
        // The image is here already.
        rig.deploy(&rig.simple(1, "services: {web: {image: '@web:1'}}\n", &[]));
        rig.secret("registry", json!({"value": "no colon in it"}));
        let sha = rig.desire(&rig.bundle(2, nothing_private, &[rig.registry_entry()], &[]));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]));
        assert!(ran.stderr.contains("WARN") && ran.stderr.contains("is not usable"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("no colon in it"), "its value is not told");
    });
}

#[test]
fn a_token_that_runs_low_is_renewed_and_not_replaced() {
    on_one(|rig| {
        rig.secret("db", json!({"value": "one"}));
        rig.deploy(&with_password(rig, 1));
        let token = rig.token();
        let lookup = |rig: &Rig| rig.bao("POST", "auth/token/lookup", &json!({ "token": token }))["data"].clone();
        let renewed = |rig: &Rig| lookup(rig)["last_renewal_time"].as_i64();
        rig.tick_ends(0);
        assert_eq!(renewed(rig), None, "it has nearly an hour left");
        // In a minute that deploys nothing, shortly before the limit.
        rig.set("bao.renew_below_s", "3550");
        assert!(rig.tick_ends(0).stdout.starts_with("unchanged "));
        let first = renewed(rig).unwrap();
        // In a deploy, below it.
        rig.set("bao.renew_below_s", "3599");
        wait_until("the token has less than that left", || lookup(rig)["ttl"].as_i64().unwrap() < 3598);
        rig.secret("db", json!({"value": "two"}));
        rig.deploy(&with_password(rig, 2));
        assert!(renewed(rig).unwrap() > first);
        assert_eq!((rig.token(), rig.calls("POST", "/leases")), (token.clone(), 1));
    });
}

#[test]
fn a_token_that_cannot_be_revoked_is_no_reason_to_fail() {
    on_one(|rig| {
        // Batch tokens can be neither renewed nor revoked.
        rig.role(json!({"token_type": "batch"}));
        rig.secret("db", json!({"value": "one"}));
        rig.bootstrap();
        let sha = rig.desire(&with_password(rig, 1));
        let ran = rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]));
        assert!(ran.stderr.contains("WARN the replaced token could not be revoked"), "{}", ran.stderr);
        rig.secret("db", json!({"value": "two"}));
        rig.deploy(&with_password(rig, 2));
        assert_eq!((rig.calls("POST", "/leases"), &rig.status()["token"]["source"]), (1, &json!("lease")));
    });
}
