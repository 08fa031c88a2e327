//! The requests and answers that are not a subject of their own: small, plain, and free of secrets.
//!
//! Invariant: a request says everything its driver needs, so that printing it is an honest plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::containers::Container;
use super::failure::Refusal;
use super::manifest::Manifest;
use super::meta::Meta;
use super::model::{Closed, is_false};
use super::report::Report;
use super::state::{State, TokenSource};
use super::{Scrubbed, Sha, Stamp};

/// Body of `POST /v1/envs/{env_id}/checkin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckinRequest {
    /// This agent's version.
    pub agent_version: String,
    /// Where the box is, for people; may be empty.
    pub site: String,
    /// What runs and is healthy.
    pub applied_sha: Option<Sha>,
    /// Outcome of the last tick that did something, e.g. `applied`.
    pub last_result: Option<String>,
    /// `CODE: detail` of the last failure, none after a success.
    pub last_error: Option<String>,
    /// Where the saved token came from.
    pub token_source: Option<TokenSource>,
    /// Engine version as last seen.
    pub docker_version: Option<String>,
    /// Compose version as last seen.
    pub compose_version: Option<String>,
}

/// What tenancy wants of this box.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    /// The bundle to run; none: leave the box as it is.
    pub desired_sha: Option<Sha>,
    /// Set while tenancy wants nothing touched: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
}

/// How a call over HTTP failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum CallFault {
    /// No complete answer: refused, reset, timed out, no such name, TLS.
    Unreachable {
        /// What the network said.
        detail: Scrubbed,
        /// No connection came about, so not a byte of the request left this box.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_sent: bool,
    },
    /// A complete answer with a status that is not a success.
    Status {
        /// The HTTP status.
        status: u16,
        /// The server's own code and message.
        detail: Scrubbed,
        /// Seconds from its `Retry-After`, if it sent one that makes sense.
        retry_after_s: Option<u32>,
    },
    /// A success that says something else than the protocol allows.
    Nonsense {
        /// What was wrong with it.
        detail: Scrubbed,
    },
}

/// `GET /v1/envs/{env_id}/bundles/{sha}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FetchBundle {
    /// Which bundle.
    pub sha: Sha,
}

/// What the machine needs to know of a bundle; the content stays with the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BundleFacts {
    /// What the content hashes to.
    pub content_sha: Sha,
    /// What the `X-Bundle-Sha` header said.
    pub header_sha: Option<String>,
    /// `meta.json`.
    pub meta: Meta,
    /// `manifest.json`, or why it is refused.
    pub manifest: Result<Manifest, Refusal>,
    /// The variables that `env.template` uses, in order, each once; none without the file.
    pub template: Option<Result<Vec<String>, Refusal>>,
    /// What `compose.yaml` asks for that is never allowed, seen before Compose is called at all.
    pub compose: Result<(), Refusal>,
    /// How many files, and how many bytes they hold.
    pub size: (usize, u64),
}

/// Why there is no bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", content = "why", rename_all = "snake_case")]
pub enum BundleFault {
    /// The call failed.
    Call(CallFault),
    /// The content is no bundle.
    Refused(Refusal),
}

/// Asks for the versions of engine and Compose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeDocker {}

/// Versions as Docker tells them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DockerVersions {
    /// The engine's.
    pub engine: String,
    /// The Compose plugin's.
    pub compose: String,
}

/// Unpacks a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageBundle {
    /// Which bundle.
    pub sha: Sha,
}

/// Writing failed; nothing is half-written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreFault {
    /// No space or quota left.
    pub disk_full: bool,
    /// Which file, and what the system said.
    pub detail: Scrubbed,
}

/// Resolves a staged compose file (`config --format json --no-interpolate`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadModel {
    /// Which staged bundle.
    pub sha: Sha,
}

/// How Compose's own reading of the file failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", content = "why", rename_all = "snake_case")]
pub enum ComposeFault {
    /// It asks for what is never allowed.
    Refused(Refusal),
    /// Compose would not take it, or could not be run.
    Run(RunFault),
}

/// How a call of `docker` failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum RunFault {
    /// Not there, not executable, or its daemon does not answer.
    Unavailable {
        /// What the system or Docker said.
        detail: Scrubbed,
    },
    /// It ran longer than allowed and was ended with all its children.
    TimedOut {
        /// After so many seconds.
        after_s: u64,
        /// What it had said until then.
        words: Scrubbed,
    },
    /// It ended with an error.
    Failed {
        /// Its exit status; none when a signal ended it.
        status: Option<i32>,
        /// Its own words, cleaned up.
        words: Scrubbed,
        /// They say that a disk is full.
        disk_full: bool,
    },
}

/// Which token is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenName {
    /// The one in `token.json`.
    Saved,
    /// The one that the last login gave.
    Candidate,
}

/// `GET auth/token/lookup-self`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupToken {
    /// Which token.
    pub token: TokenName,
}

/// What OpenBao says of a token; never the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFacts {
    /// Its accessor, by which an operator finds it.
    pub accessor: Option<String>,
    /// Seconds it has left; none: it never expires.
    pub ttl_s: Option<u64>,
    /// It can be renewed.
    pub renewable: bool,
}

/// How a call to OpenBao failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum BaoFault {
    /// 400: it understood and says no.
    Rejected {
        /// Its words.
        detail: Scrubbed,
    },
    /// 403: not with this token, or not from here.
    Denied {
        /// Its words.
        detail: Scrubbed,
    },
    /// 404: there is no such thing.
    NotFound {
        /// Its words.
        detail: Scrubbed,
    },
    /// 500 `past the max TTL`: a renewal that can never work again.
    PastMaxTtl,
    /// Anything that says nothing about the token: 5xx, 429, time-out, nonsense.
    Unavailable {
        /// What happened.
        detail: Scrubbed,
    },
}

/// `POST auth/token/renew-self`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RenewToken {}

/// `POST /v1/envs/{env_id}/leases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskLease {}

/// What tenancy leased; the grant itself is in the vault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Tenancy's name for it.
    pub lease_id: String,
    /// The role it is for, when tenancy names one.
    pub role: Option<String>,
    /// When the grant ends, as the grant itself says (`exp`).
    pub expires_at: Option<Stamp>,
}

/// How asking for a lease failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", content = "why", rename_all = "snake_case")]
pub enum LeaseFault {
    /// The call failed.
    Call(CallFault),
    /// Tenancy leased something of a scheme that this agent does not speak (its `type`).
    Legacy(String),
}

/// Which grant is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantName {
    /// The one in `bootstrap.jwt`.
    Bootstrap,
    /// The one in `grant.json`.
    Lease,
}

/// Writes the leased grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveGrant {
    /// Of this lease.
    pub lease: Lease,
}

/// Removes a grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropGrant {
    /// Which one.
    pub grant: GrantName,
}

/// `POST auth/<mount>/login`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Login {
    /// With this grant.
    pub grant: GrantName,
    /// As this role.
    pub role: String,
}

/// Makes the candidate the saved token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveToken {
    /// Where it came from.
    pub source: TokenSource,
}

/// `POST auth/token/revoke-self` with the token that was just replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RevokeToken {}

/// What one value of a secret is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "for", content = "name", rename_all = "snake_case")]
pub enum ValueUse {
    /// The value of this variable.
    Env(String),
    /// The registry's pull credential.
    RegistryAuth,
}

/// One value wanted from a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The field of the secret.
    pub key: String,
    /// What for.
    pub usage: ValueUse,
}

/// `GET <kv_mount>/data/<env_id>/…[?version=N]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSecret {
    /// `<kv_mount>/<env_id>/…`, as the manifest spells it (without `data/`).
    pub path: String,
    /// The pinned version.
    pub version: Option<u64>,
    /// The values wanted from it.
    pub wanted: Vec<Wanted>,
}

/// What is known of one value; never the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ValueFact {
    /// A string fit for an environment variable.
    Text,
    /// Usable as a registry credential.
    Credential {
        /// For this registry (`host[:port]`).
        registry: String,
        /// As this user.
        username: String,
    },
    /// No usable registry credential.
    NoCredential {
        /// Why, without a word of the value.
        why: String,
    },
    /// The secret has no such field.
    Absent,
    /// The field is there, but no string, or one that holds a NUL.
    Unfit {
        /// What it is instead.
        why: String,
    },
}

/// What is known of a secret that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretFacts {
    /// The version that was read; none: the engine keeps none (KV v1).
    pub version: Option<u64>,
    /// One for each wanted value, in that order.
    pub values: Vec<ValueFact>,
}

/// Why a secret could not be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", content = "why", rename_all = "snake_case")]
pub enum SecretFault {
    /// 404, and there never was one.
    Missing,
    /// 404 of a version that was deleted (or destroyed).
    Deleted(String),
    /// Any other answer.
    Bao(BaoFault),
}

/// Completes a staged release. The values come from the vault, by variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteRelease {
    /// Which staged bundle.
    pub sha: Sha,
    /// The variables of `.env`, in the order of the manifest, when there is no `env.template`.
    pub variables: Vec<String>,
    /// Each service's digest of the bundle content that it mounts, for the override.
    pub mounts: Vec<(String, String)>,
    /// The registry to log in at, and as whom; none: no credential.
    pub registry: Option<(String, String)>,
    /// The mounts that the override makes read-only (`Model::closed`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub closed: BTreeMap<String, Vec<Closed>>,
}

/// `docker compose config -q`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckCompose {
    /// Which staged release.
    pub sha: Sha,
    /// Before: look where its mounts lead (`config --format json`), for a variable decides (`Model::decided`), or some must
    /// be read-only (`Model::closed`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub look: bool,
}

/// `docker compose --progress quiet pull`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pull {
    /// Which staged release.
    pub sha: Sha,
    /// Seconds until it is ended.
    pub timeout_s: u64,
}

/// What a successful run left to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunDone {
    /// Its warnings, each once.
    pub warnings: Vec<Scrubbed>,
}

/// Switches `current`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Promote {
    /// To this release.
    pub sha: Sha,
}

/// `docker compose up -d --remove-orphans --no-build --pull never`, from `current`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Up {
    /// Which release `current` is.
    pub sha: Sha,
    /// Seconds until it is ended.
    pub timeout_s: u64,
}

/// Lists and inspects the project's containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspect {}

/// Reads logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadLogs {
    /// Of these containers (service, id).
    pub containers: Vec<(String, String)>,
    /// So many lines of each.
    pub lines: u32,
}

/// The end of a service's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogTail {
    /// Whose.
    pub service: String,
    /// Its last lines.
    pub text: Scrubbed,
}

/// Lets time pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitUntil {
    /// Until then.
    pub until: Stamp,
    /// What for.
    pub reason: String,
}

/// Writes the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveState {
    /// All of it.
    pub state: Arc<State>,
}

/// Puts a report into the outbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveReport {
    /// The report.
    pub report: Box<Report>,
}

/// Sends a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendReport {
    /// By its id in the outbox.
    pub report_id: String,
}

/// Removes a report from the outbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropReport {
    /// By its id in the outbox.
    pub report_id: String,
}

/// Removes release folders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PruneReleases {
    /// All but these.
    pub keep: Vec<Sha>,
}

/// Removes images by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoveImages {
    /// These.
    pub ids: Vec<String>,
}

/// What became of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovedImages {
    /// The ids that are gone now (also those that were gone already).
    pub gone: Vec<String>,
}

/// Containers by service, for whoever needs them sorted.
pub fn by_service(containers: &[Container]) -> Vec<&Container> {
    let mut sorted: Vec<&Container> = containers.iter().collect();
    sorted.sort_by(|a, b| (&a.service, &a.name).cmp(&(&b.service, &b.name)));
    sorted
}
