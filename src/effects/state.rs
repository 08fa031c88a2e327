//! What the agent remembers between ticks: the content of `state.json`.
//!
//! Invariants: there is no secret in it; every field has a default, so that an older file is readable; a
//! newer format is refused by [`State::FORMAT`], set aside, and never guessed at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::failure::Code;
use super::model::Service;
use super::report::Report;
use super::{DockerVersions, Sha, Stamp};

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// From the one-time bootstrap grant; to be swapped for a leased one.
    Bootstrap,
    /// From a lease.
    Lease,
}

/// What is remembered of the saved token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Where it came from.
    pub source: TokenSource,
    /// Its accessor.
    #[serde(default)]
    pub accessor: Option<String>,
    /// When OpenBao was last asked about it.
    pub seen_at: Stamp,
    /// Seconds it had left then; none: it never expires.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// It could be renewed.
    #[serde(default)]
    pub renewable: bool,
}

/// A release that became healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Its sha.
    pub sha: Sha,
    /// When it became healthy.
    pub at: Stamp,
    /// Its `meta.json` generation.
    #[serde(default)]
    pub generation: Option<i64>,
    /// The version of every secret it was given, by path.
    #[serde(default)]
    pub secrets: BTreeMap<String, u64>,
    /// The ids of its images.
    #[serde(default)]
    pub images: BTreeSet<String>,
    /// The services it is made of.
    #[serde(default)]
    pub services: BTreeMap<String, Service>,
}

/// When a release became `current`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// Which.
    pub sha: Sha,
    /// When.
    pub at: Stamp,
}

/// Why a deploy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", content = "n", rename_all = "snake_case")]
pub enum Cause {
    /// Tenancy wants a bundle that was not tried before.
    NewSha,
    /// The n-th try at a bundle that failed before.
    Retry(u32),
    /// What runs is not the applied release (a failed one was left, or the target went back).
    Drift,
    /// An operator said `--force`.
    Forced,
    /// A tick was interrupted after promotion.
    Interrupted,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NewSha => f.write_str("new sha"),
            Cause::Retry(n) => write!(f, "retry {n}"),
            Cause::Drift => f.write_str("drift"),
            Cause::Forced => f.write_str("forced"),
            Cause::Interrupted => f.write_str("finishing an interrupted apply"),
        }
    }
}

/// A release on its way from promotion to healthy: all that is needed to finish it, without tenancy and OpenBao.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// Which release.
    pub sha: Sha,
    /// Its `meta.json` generation.
    pub generation: Option<i64>,
    /// The how-manieth attempt this is, from 1.
    pub attempt: u32,
    /// Why.
    pub cause: Cause,
    /// When its tick began.
    pub since: Stamp,
    /// The services it is made of.
    pub services: BTreeMap<String, Service>,
    /// The version of every secret it was given, by path.
    pub secrets: BTreeMap<String, u64>,
    /// What to do if it does not become healthy.
    pub on_unhealthy: super::OnUnhealthy,
    /// How long `up` and the wait for health may take together (seconds).
    pub healthy_timeout_s: u64,
    /// Set while this release is brought back because another one failed.
    pub instead_of: Option<Box<FailedDeploy>>,
}

/// A deploy that failed and is being rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDeploy {
    /// Which release.
    pub sha: Sha,
    /// The how-manieth attempt it was.
    pub attempt: u32,
    /// Why it was made.
    pub cause: Cause,
    /// When its tick began.
    pub since: Stamp,
    /// How it failed.
    pub error: LastError,
}

/// What is remembered of attempts at a bundle that is not applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// How many were made.
    pub count: u32,
    /// When the next one may be made.
    #[serde(default)]
    pub next_at: Option<Stamp>,
    /// It was rolled back: no further attempt by itself.
    #[serde(default)]
    pub quarantined: bool,
}

/// The last failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// Its code.
    pub code: Code,
    /// In which stage.
    pub phase: String,
    /// What happened.
    pub detail: String,
    /// When.
    pub at: Stamp,
}

/// Tenancy wants nothing touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Why, in its words.
    pub reason: String,
    /// When this was first heard.
    pub since: Stamp,
}

/// How the last tick that did something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastResult {
    /// A release became healthy.
    Applied,
    /// It was refused or failed.
    Failed,
    /// It failed, and the last good release was brought back.
    RolledBack,
}

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The format; see [`State::FORMAT`].
    pub format: u32,
    /// What runs and is healthy, newest last: the applied release and the good ones before it.
    pub good: Vec<Applied>,
    /// Shas that were applied before and are not kept any more (newest last, at most [`State::EARLIER`]).
    pub earlier: Vec<Sha>,
    /// Promotions, newest last.
    pub promotions: Vec<Promotion>,
    /// An apply that went past promotion and whose outcome is not known yet.
    pub unfinished: Option<Goal>,
    /// Something was promoted since a release was last seen healthy: what runs is not known to be fine.
    pub in_doubt: bool,
    /// The saved token.
    pub token: Option<TokenRecord>,
    /// When leases were asked for (the last hour's).
    pub leases: Vec<Stamp>,
    /// Tenancy said not to ask for a lease before this.
    pub lease_not_before: Option<Stamp>,
    /// Attempts by sha.
    pub attempts: BTreeMap<Sha, Attempts>,
    /// How the last tick that did something ended.
    pub last_result: Option<LastResult>,
    /// When that was.
    pub last_at: Option<Stamp>,
    /// The last failure of a deploy; none after a success, or when the box runs what is desired.
    pub last_error: Option<LastError>,
    /// What keeps the agent from doing its work at the moment, with the time since when.
    pub trouble: Option<LastError>,
    /// Troubles before that one, of which it is not known that they are over; at most one of a code.
    pub unsolved: Vec<LastError>,
    /// Tenancy said hold, and did not take it back.
    pub hold: Option<Hold>,
    /// Versions of engine and Compose as last seen.
    pub docker: Option<DockerVersions>,
    /// The ids of all images that releases of this agent used and that were not removed.
    pub images: BTreeSet<String>,
    /// An outcome that may not have reached the outbox yet.
    pub outcome: Option<Report>,
}

impl State {
    /// The format this agent writes.
    ///
    /// 1: the first one of the Rust line.
    pub const FORMAT: u32 = 1;

    /// How many earlier shas are remembered.
    pub const EARLIER: usize = 50;

    /// All that keeps the agent from its work, the newest first.
    pub fn troubles(&self) -> impl Iterator<Item = &LastError> {
        self.trouble.iter().chain(&self.unsolved)
    }

    /// A trouble of this code is over.
    pub fn forget_trouble(&mut self, code: Code) {
        self.trouble.take_if(|trouble| trouble.code == code);
        self.unsolved.retain(|trouble| trouble.code != code);
    }

    /// What runs and is healthy.
    pub fn applied(&self) -> Option<&Applied> {
        self.good.last()
    }
}

impl Default for State {
    fn default() -> State {
        State {
            format: State::FORMAT,
            good: Vec::new(),
            earlier: Vec::new(),
            promotions: Vec::new(),
            unfinished: None,
            in_doubt: false,
            token: None,
            leases: Vec::new(),
            lease_not_before: None,
            attempts: BTreeMap::new(),
            last_result: None,
            last_at: None,
            last_error: None,
            trouble: None,
            unsolved: Vec::new(),
            hold: None,
            docker: None,
            images: BTreeSet::new(),
            outcome: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_before_holds_and_unsolved_troubles_is_read_and_theirs_is_readable_before() {
        let old = r#"{"format":1,"trouble":{"code":"BAO_UNAVAILABLE","phase":"token","detail":"sealed","at":7}}"#;
        let state: State = serde_json::from_str(old).unwrap();
        assert_eq!((state.troubles().count(), &state.hold), (1, &None));
        // An agent that knows nothing of a field leaves it out, as this one does.
        let newer = old.replacen('{', r#"{"of_a_later_agent":[1],"#, 1);
        assert_eq!(serde_json::from_str::<State>(&newer).unwrap(), state);
    }

    #[test]
    fn a_trouble_that_is_over_is_forgotten_wherever_it_stands() {
        let trouble = |code| LastError { code, phase: "token".to_owned(), detail: String::new(), at: Stamp(0) };
        let mut state = State {
            trouble: Some(trouble(Code::BaoUnavailable)),
            unsolved: vec![trouble(Code::BaoUnavailable), trouble(Code::LeaseRateLimited)],
            ..State::default()
        };
        state.forget_trouble(Code::BaoUnavailable);
        assert_eq!(state.troubles().map(|trouble| trouble.code).collect::<Vec<_>>(), [Code::LeaseRateLimited]);
    }
}
