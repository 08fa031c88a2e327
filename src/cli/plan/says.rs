//! Each effect of a plan, in the operator's words.
//!
//! Invariant: a match over every operation, without a wildcard: a new effect has to be given its words.

use crate::cli::words::moment;
use crate::effects::state::TokenSource;
use crate::effects::{GrantName, Op, Sha, Stamp, TokenName, counted};
use crate::fsm::{Machine, retry};

pub(super) fn short(sha: &Sha) -> &str {
    sha.short()
}

/// An effect in the operator's words.
pub(super) fn says(op: &Op, machine: &Machine, now: Stamp) -> String {
    let core = machine.core();
    match op {
        Op::Checkin(checkin) => {
            let applied = checkin.applied_sha.as_ref().map_or("nothing applied", |sha| sha.short());
            format!("check in with tenancy ({applied})")
        }
        Op::FetchBundle(fetch) => format!("fetch bundle {}", short(&fetch.sha)),
        Op::ProbeDocker(_) => "ask Docker and Compose for their versions".to_owned(),
        Op::StageBundle(stage) => format!("unpack {} into releases/ (here: into a scratch folder)", short(&stage.sha)),
        Op::ReadModel(read) => format!("have Compose resolve {} without its variables", short(&read.sha)),
        Op::LookupToken(lookup) => match lookup.token {
            TokenName::Saved => "ask OpenBao about the saved token".to_owned(),
            TokenName::Candidate => "have the new token look itself up, as a proof".to_owned(),
        },
        Op::RenewToken(_) => "renew the saved token (no lease)".to_owned(),
        Op::AskLease(_) => {
            let used = core.state.leases.len();
            let left = retry::LEASES_AN_HOUR.saturating_sub(used);
            format!("spend a lease; {left} of {} would be left in this hour", retry::LEASES_AN_HOUR)
        }
        Op::SaveGrant(_) => "write grant.json".to_owned(),
        Op::DropGrant(drop) => match drop.grant {
            GrantName::Bootstrap => "remove bootstrap.jwt".to_owned(),
            GrantName::Lease => "remove grant.json".to_owned(),
        },
        Op::Login(login) => {
            let with = match login.grant {
                GrantName::Bootstrap => "the bootstrap grant",
                GrantName::Lease => "the leased grant",
            };
            format!("log in to OpenBao as {} with {with}", login.role)
        }
        Op::SaveToken(save) => match save.source {
            TokenSource::Bootstrap => "write token.json (from the bootstrap grant)".to_owned(),
            TokenSource::Lease => "write token.json (from a lease)".to_owned(),
        },
        Op::RevokeToken(_) => "revoke the replaced token".to_owned(),
        Op::ReadSecret(read) => {
            let version = read.version.map_or("the latest version".to_owned(), |version| format!("version {version}"));
            format!("read {} ({version})", read.path)
        }
        Op::WriteRelease(write) => {
            let registry = if write.registry.is_some() { ", with a registry credential" } else { "" };
            format!(
                ".env with {}, the override, docker/config.json{registry}",
                counted(write.variables.len(), "variable")
            )
        }
        Op::CheckCompose(_) => "have Compose check the complete release".to_owned(),
        Op::Pull(pull) => format!("pull the images of {} (at most {} s)", short(&pull.sha), pull.timeout_s),
        Op::Promote(promote) => format!("point `current` at {}", short(&promote.sha)),
        Op::Up(up) => format!("bring {} up (at most {} s, health included)", short(&up.sha), up.timeout_s),
        Op::Inspect(_) => "look at the project's containers".to_owned(),
        Op::ReadLogs(logs) => format!("read the end of {}", counted(logs.containers.len(), "log")),
        Op::WaitUntil(wait) => format!("wait {} ms: {}", wait.until.since_ms(now), wait.reason),
        Op::SaveState(save) => {
            let until = save.state.attempts.values().filter_map(|tried| tried.next_at).filter(|at| *at > now).max();
            let next = until.map(|at| format!("; next attempt not before {}", moment(at))).unwrap_or_default();
            format!("write state.json{next}")
        }
        Op::SaveReport(save) => {
            let code = save.report.code.map(|code| format!(" {code}")).unwrap_or_default();
            format!("put a report into the outbox: {:?}{code} {}", save.report.result, short(&save.report.sha))
        }
        Op::SendReport(send) => format!("send report {}", send.report_id),
        Op::DropReport(drop) => format!("take report {} out of the outbox", drop.report_id),
        Op::PruneReleases(prune) => {
            let keep: Vec<&str> = prune.keep.iter().map(short).collect();
            format!("remove release folders but {}", keep.join(", "))
        }
        Op::RemoveImages(remove) => {
            format!("remove {} of this agent that nothing needs", counted(remove.ids.len(), "image"))
        }
    }
}
