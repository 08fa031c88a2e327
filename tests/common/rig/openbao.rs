//! The box's part of OpenBao: its mounts, policy, role, tokens and secrets.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::Rig;

impl Rig {
    pub(super) fn set_up_openbao(&self) {
        let (kv, jwt) = (&self.kv, &self.jwt);
        self.bao("POST", &format!("sys/mounts/{kv}"), &json!({"type": "kv", "options": {"version": "2"}}));
        self.bao("POST", &format!("sys/auth/{jwt}"), &json!({"type": "jwt"}));
        self.bao(
            "POST",
            &format!("auth/{jwt}/config"),
            &json!({
                "jwt_validation_pubkeys": [self.tenancy.public_key_pem()],
                "jwt_supported_algs": ["EdDSA"],
                "bound_issuer": self.tenancy.issuer(),
            }),
        );
        self.policy(true);
        self.role(json!({}));
    }

    /// (Re)writes the policy of the box's tokens.
    pub fn policy(&self, may_read: bool) {
        let (env, kv) = (&self.env_id, &self.kv);
        let read = if may_read { "read" } else { "deny" };
        let policy = format!(
            "path \"{kv}/data/{env}/*\" {{ capabilities = [\"{read}\"] }}\n\
             path \"auth/token/lookup-self\" {{ capabilities = [\"read\"] }}\n\
             path \"auth/token/renew-self\" {{ capabilities = [\"update\"] }}\n\
             path \"auth/token/revoke-self\" {{ capabilities = [\"update\"] }}\n"
        );
        self.bao("PUT", &format!("sys/policies/acl/{env}-read"), &json!({ "policy": policy }));
    }

    /// (Re)writes the role, with changes.
    pub fn role(&self, changes: Value) {
        let mut role = json!({
            "role_type": "jwt", "user_claim": "sub", "bound_audiences": ["openbao"],
            "bound_claims": {"env_id": self.env_id}, "claim_mappings": {"env_id": "env_id"},
            "token_type": "service", "token_ttl": "1h", "token_max_ttl": "4h", "token_no_default_policy": true,
            "token_policies": [format!("{}-read", self.env_id)],
            "clock_skew_leeway": 60, "expiration_leeway": -1, "not_before_leeway": -1,
        });
        for (key, value) in changes.as_object().unwrap() {
            role[key] = value.clone();
        }
        self.bao("POST", &format!("auth/{}/role/env-{}", self.jwt, self.env_id), &role);
    }

    /// A call to OpenBao as root; a failure is the test's.
    pub fn bao(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask_bao(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// The same; a failure is an answer.
    pub fn ask_bao(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}/v1/{path}", self.stack["STACK_BAO_ADDR"]);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("X-Vault-Token", &self.stack["STACK_BAO_TOKEN"])
            .body(body.to_string())
            .unwrap();
        let ca = fs::read(&self.stack["STACK_BAO_TLS_CA"]).unwrap();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(vec![Certificate::from_pem(&ca).unwrap()]))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .tls_config(tls)
            .build();
        let mut response = ureq::Agent::new_with_config(config).run(request).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// The accessors of the living tokens that this box logged in for.
    pub fn living_tokens(&self) -> Vec<String> {
        let all = self.bao("LIST", "auth/token/accessors", &Value::Null);
        let ours = |accessor: &&str| {
            let (status, found) = self.ask_bao("POST", "auth/token/lookup-accessor", &json!({ "accessor": accessor }));
            // The accessors of other boxes come and go meanwhile.
            status == 200 && found["data"]["path"] == json!(format!("auth/{}/login", self.jwt))
        };
        let accessors = all["data"]["keys"].as_array().unwrap();
        accessors.iter().filter_map(Value::as_str).filter(ours).map(str::to_owned).collect()
    }

    /// Whether OpenBao knows this token.
    pub fn token_lives(&self, token: &str) -> bool {
        self.ask_bao("POST", "auth/token/lookup", &json!({ "token": token })).0 == 200
    }

    /// Writes a secret of this environment and gives its version.
    pub fn secret(&self, name: &str, data: Value) -> u64 {
        let answer = self.bao("POST", &format!("{}/data/{}/{name}", self.kv, self.env_id), &json!({ "data": data }));
        answer["data"]["version"].as_u64().unwrap()
    }

    /// Writes the registry's pull credential.
    pub fn registry_secret(&self) {
        self.secret(
            "registry",
            json!({"value": format!("{}:{}", self.stack["STACK_REGISTRY_USER"], self.stack["STACK_REGISTRY_PASSWORD"])}),
        );
    }

    /// A manifest entry.
    pub fn entry(&self, var: &str, name: &str) -> Value {
        json!({"var": var, "path": format!("{}/{}/{name}", self.kv, self.env_id)})
    }

    /// The manifest entry of the registry credential.
    pub fn registry_entry(&self) -> Value {
        json!({"use": "registry-auth", "path": format!("{}/{}/registry", self.kv, self.env_id)})
    }
}
