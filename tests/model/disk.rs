//! The state directory of a box, as far as the machine can tell: what an operation leaves on the disk.
//!
//! Invariant: only [`Disk::done`] changes it, and only for an operation that was carried out.

use std::collections::BTreeMap;

use monky_deployd::effects::report::Report;
use monky_deployd::effects::state::{State, TokenSource};
use monky_deployd::effects::*;

/// What would be there after the power came back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disk {
    pub state: State,
    pub token: Option<TokenSource>,
    pub grant: Option<GrantFacts>,
    pub bootstrap: bool,
    /// Each release, and whether it is complete.
    pub releases: BTreeMap<Sha, bool>,
    pub current: Option<Sha>,
    /// Oldest first.
    pub outbox: Vec<Report>,
}

impl Disk {
    /// What the agent finds when it starts.
    pub fn local(&self) -> LocalFacts {
        LocalFacts {
            token: self.token,
            grant: self.grant.clone(),
            bootstrap: self.bootstrap,
            releases: self.releases.iter().filter(|(_, complete)| **complete).map(|(sha, _)| sha.clone()).collect(),
            current: self.current.clone(),
            outbox: self.outbox.iter().map(|report| report.report_id.clone()).collect(),
            disk_full: false,
        }
    }

    /// An operation was carried out.
    pub fn done(&mut self, op: &Op) {
        match op {
            Op::StageBundle(stage) => {
                self.releases.entry(stage.sha.clone()).or_insert(false);
            }
            Op::WriteRelease(write) => {
                self.releases.insert(write.sha.clone(), true);
            }
            Op::SaveGrant(save) => {
                let Lease { lease_id: _, role, expires_at } = save.lease.clone();
                self.grant = Some(GrantFacts { expires_at, role });
            }
            Op::DropGrant(DropGrant { grant: GrantName::Lease }) => self.grant = None,
            Op::DropGrant(DropGrant { grant: GrantName::Bootstrap }) => self.bootstrap = false,
            Op::SaveToken(save) => self.token = Some(save.source),
            Op::Promote(promote) => self.current = Some(promote.sha.clone()),
            Op::SaveState(save) => self.state = (*save.state).clone(),
            Op::SaveReport(save) => {
                self.outbox.retain(|report| report.report_id != save.report.report_id);
                self.outbox.push((*save.report).clone());
                self.outbox.sort_by(|a, b| (a.at, &a.report_id).cmp(&(b.at, &b.report_id)));
            }
            Op::DropReport(drop) => self.outbox.retain(|report| report.report_id != drop.report_id),
            Op::PruneReleases(prune) => {
                let current = self.current.clone();
                self.releases.retain(|sha, _| prune.keep.contains(sha) || Some(sha) == current.as_ref());
            }
            Op::Checkin(_)
            | Op::FetchBundle(_)
            | Op::ProbeDocker(_)
            | Op::ReadModel(_)
            | Op::LookupToken(_)
            | Op::RenewToken(_)
            | Op::AskLease(_)
            | Op::Login(_)
            | Op::RevokeToken(_)
            | Op::ReadSecret(_)
            | Op::CheckCompose(_)
            | Op::Pull(_)
            | Op::Up(_)
            | Op::Inspect(_)
            | Op::ReadLogs(_)
            | Op::WaitUntil(_)
            | Op::SendReport(_)
            | Op::RemoveImages(_) => {}
        }
    }
}
