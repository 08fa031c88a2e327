//! What can go wrong, by its stable code.
//!
//! A code is part of the product: tests, reports, dashboards and people's notes hold on to it. Each belongs to
//! one [`Class`], and the class alone decides the exit status, the backoff and whether tenancy is told.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a failure means for the tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The bundle may not be deployed as it is: nothing was leased, written or run. Exit 1, reported.
    Refused,
    /// The deploy failed. Exit 1, reported.
    Failed,
    /// Nothing is wrong with the bundle; the timer tries again. Exit 75, told with the next check-in.
    Temporary,
}

macro_rules! codes {
    ($( $class:ident { $( $code:ident = $text:literal, $remedy:literal; )* } )*) => {
        /// A stable failure code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code { $( $(
            #[doc = concat!("`", $text, "`: ", $remedy)]
            #[serde(rename = $text)]
            $code,
        )* )* }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Code] = &[ $( $( Code::$code, )* )* ];

            /// As it is written in reports.
            pub const fn as_str(self) -> &'static str { match self { $( $( Code::$code => $text, )* )* } }

            /// What it means for the tick.
            pub const fn class(self) -> Class { match self { $( $( Code::$code => Class::$class, )* )* } }

            /// What a person should do about it.
            pub const fn remedy(self) -> &'static str { match self { $( $( Code::$code => $remedy, )* )* } }
        }
    };
}

codes! {
    Refused {
        BundleInvalid = "BUNDLE_INVALID", "render the bundle again: its shape, a path or its meta.json is not acceptable";
        BundleShaMismatch = "BUNDLE_SHA_MISMATCH", "the content is not what was asked for: look at tenancy's bundle store or whatever stands between";
        EnvMismatch = "ENV_MISMATCH", "the bundle was rendered for another environment: look at tenancy's target for this box";
        AgentTooOld = "AGENT_TOO_OLD", "upgrade monky-deployd on this box, then it deploys by itself";
        RollbackRefused = "ROLLBACK_REFUSED", "to go back on purpose, render the bundle with agent.allow_rollback";
        ManifestInvalid = "MANIFEST_INVALID", "mend manifest.json and render again";
        ManifestPath = "MANIFEST_PATH", "a secret's path must be <bao.kv_mount>/<env_id>/…";
        EnvUnresolved = "ENV_UNRESOLVED", "add the named variables to manifest.json or take them out of env.template";
        ComposeRefused = "COMPOSE_REFUSED", "change compose.yaml as the detail says";
        PolicyRefused = "POLICY_REFUSED", "take it out of compose.yaml, or have the box's owner allow it (`policy` in the configuration)";
    }
    Failed {
        ComposeTooOld = "COMPOSE_TOO_OLD", "install the Docker Compose plugin 2.21 or newer on this box";
        ComposeInvalid = "COMPOSE_INVALID", "mend compose.yaml as the detail says; `docker compose config --no-interpolate` beside it shows it, without values";
        LeaseDenied = "LEASE_DENIED", "allow this box to lease for its environment in tenancy";
        LegacyLease = "LEGACY_LEASE", "tenancy issues approle leases, the retired scheme: switch the environment to jwt grants";
        GrantRejected = "GRANT_REJECTED", "OpenBao does not accept the grant: look at the role, audience, issuer, key and clock; an old grant needs a new one (`bootstrap`)";
        SecretMissing = "SECRET_MISSING", "write the secret, or mend its path or key in manifest.json";
        SecretDeleted = "SECRET_DELETED", "undelete the secret's version, or pin one that lives";
        SecretDenied = "SECRET_DENIED", "the token lives but may not read this: mend the policy of the role";
        SecretInvalid = "SECRET_INVALID", "a secret's value must be a string without NUL, in a KV v2 engine";
        StageFailed = "STAGE_FAILED", "look at the state directory's owner, mode and mount";
        PullFailed = "PULL_FAILED", "mend what the registry says: image, tag, credential or network";
        PullTimeout = "PULL_TIMEOUT", "the pull took too long: look at the registry's speed or raise pull_timeout_s";
        UpFailed = "UP_FAILED", "mend what Compose says";
        UpTimeout = "UP_TIMEOUT", "`up` did not return in time: look at depends_on conditions or raise healthy_timeout_s";
        Unhealthy = "UNHEALTHY", "mend the named services; `docker logs` tells more of those that are still there";
        DiskFull = "DISK_FULL", "free space on the state directory's or Docker's disk";
    }
    Temporary {
        DockerUnavailable = "DOCKER_UNAVAILABLE", "look at docker_bin, at Docker itself, and at the right of the agent's user to its socket";
        TenancyUnreachable = "TENANCY_UNREACHABLE", "look at what is named here: the CA file, the mesh tunneler, DNS, or tenancy itself";
        TenancyError = "TENANCY_ERROR", "look at env_id on this box, and at tenancy's log";
        LeaseRateLimited = "LEASE_RATE_LIMITED", "wait (`status` tells until when), or store a bootstrap grant: a deploy goes on with it without a lease";
        BaoUnavailable = "BAO_UNAVAILABLE", "look at what is named here: the CA file, the network, or OpenBao itself (sealed, standby, overloaded)";
    }
}

impl Code {
    /// A detail without this code before it and without its remedy: for where the two are told by themselves.
    pub fn bare(self, detail: &str) -> String {
        let detail = detail.strip_prefix(self.as_str()).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(detail);
        detail.replace(&format!(" -> {}", self.remedy()), "")
    }

    /// A detail with this code before it, once: the detail of a refusal begins with it already (contract §3).
    pub fn before(self, detail: &str) -> String {
        let told = detail.strip_prefix(self.as_str()).is_some_and(|rest| rest.starts_with(':'));
        if told { detail.to_owned() } else { format!("{self}: {detail}") }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a bundle may not be deployed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    /// Which rule it breaks.
    pub code: Code,
    /// Where and how, for a person.
    pub detail: String,
}

impl Refusal {
    /// A refusal by `code`.
    pub fn new(code: Code, detail: impl Into<String>) -> Refusal {
        Refusal { code, detail: detail.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_detail_has_neither_the_code_nor_the_remedy() {
        let code = Code::RollbackRefused;
        let told = format!("ROLLBACK_REFUSED: it is older -> {}; a is back up", code.remedy());
        assert_eq!(code.bare(&told), "it is older; a is back up");
        assert_eq!(code.bare("it is older"), "it is older");
        assert_eq!(Code::PullFailed.bare("ROLLBACK_REFUSED: it is older"), "ROLLBACK_REFUSED: it is older");
    }

    #[test]
    fn a_code_stands_before_a_detail_once() {
        let code = Code::RollbackRefused;
        assert_eq!(code.before("it is older"), "ROLLBACK_REFUSED: it is older");
        assert_eq!(code.before("ROLLBACK_REFUSED: it is older"), "ROLLBACK_REFUSED: it is older");
        assert_eq!(code.before("ROLLBACK_REFUSEDLY"), "ROLLBACK_REFUSED: ROLLBACK_REFUSEDLY");
    }
}
