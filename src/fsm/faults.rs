//! From what the world said to a code: how each fault of a driver becomes a [`Failure`].
//!
//! Invariant: a match here has no wildcard, so that a new fault forces a decision about its code.

use serde::{Deserialize, Serialize};

use super::edges::StageName;
use crate::effects::failure::{Class, Code, Refusal};
use crate::effects::{BaoFault, CallFault, ComposeFault, LeaseFault, RunFault, StoreFault};

/// How long a detail may be, in characters (contract §7).
pub const DETAIL: usize = 900;

/// A failure: code, stage, and what a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// Where it happened.
    pub phase: StageName,
    /// What happened and what to do, at most [`DETAIL`] characters.
    pub detail: String,
}

impl Failure {
    /// What happened, followed by what to do about it.
    pub fn new(code: Code, phase: StageName, what: impl AsRef<str>) -> Failure {
        let remedy = code.remedy();
        let room = DETAIL.saturating_sub(remedy.chars().count() + 4);
        let what = match code.class() {
            Class::Refused => format!("{code}: {}", what.as_ref()),
            Class::Failed | Class::Temporary => what.as_ref().to_owned(),
        };
        Failure { code, phase, detail: format!("{} -> {remedy}", clip(&what, room)) }
    }
}

/// The text, or its beginning and `…`, in so many characters.
pub fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut clipped: String = text.chars().take(most.saturating_sub(1)).collect();
    clipped.push('…');
    clipped
}

/// A bundle that may not be deployed.
pub fn refused(phase: StageName, refusal: &Refusal) -> Failure {
    Failure::new(refusal.code, phase, &refusal.detail)
}

/// Tenancy did not answer as it should.
pub fn tenancy(phase: StageName, call: &str, fault: &CallFault) -> Failure {
    match fault {
        CallFault::Unreachable { detail, never_sent: _ } => {
            Failure::new(Code::TenancyUnreachable, phase, format!("{call}: {detail}"))
        }
        CallFault::Status { status, detail, retry_after_s: _ } => {
            Failure::new(Code::TenancyError, phase, format!("{call}: HTTP {status}: {detail}"))
        }
        CallFault::Nonsense { detail } => Failure::new(Code::TenancyError, phase, format!("{call}: {detail}")),
    }
}

/// Tenancy gave no lease.
pub fn lease(phase: StageName, fault: &LeaseFault) -> Failure {
    match fault {
        LeaseFault::Legacy(scheme) => {
            Failure::new(Code::LegacyLease, phase, format!("tenancy leased a credential of type {scheme:?}"))
        }
        LeaseFault::Call(CallFault::Status { status: 429, detail, retry_after_s: _ }) => {
            Failure::new(Code::LeaseRateLimited, phase, format!("tenancy: {detail}"))
        }
        LeaseFault::Call(CallFault::Status { status: status @ (401 | 403), detail, retry_after_s: _ }) => {
            Failure::new(Code::LeaseDenied, phase, format!("tenancy: HTTP {status}: {detail}"))
        }
        LeaseFault::Call(fault) => tenancy(phase, "lease", fault),
    }
}

/// OpenBao said nothing that could be relied on.
pub fn bao(phase: StageName, call: &str, fault: &BaoFault) -> Failure {
    Failure::new(Code::BaoUnavailable, phase, format!("OpenBao {call}: {}", bao_words(fault)))
}

/// OpenBao's own words.
pub fn bao_words(fault: &BaoFault) -> String {
    match fault {
        BaoFault::Rejected { detail } => format!("HTTP 400: {detail}"),
        BaoFault::Denied { detail } => format!("HTTP 403: {detail}"),
        BaoFault::NotFound { detail } => format!("HTTP 404: {detail}"),
        BaoFault::PastMaxTtl => "past the max TTL".to_owned(),
        BaoFault::Unavailable { detail } => detail.to_string(),
    }
}

/// The disk would not take it.
pub fn store(phase: StageName, fault: &StoreFault) -> Failure {
    let code = if fault.disk_full { Code::DiskFull } else { Code::StageFailed };
    Failure::new(code, phase, fault.detail.as_str())
}

/// A call of Docker failed; `failed` and `timed_out` are the codes of its own failing.
pub fn run(phase: StageName, call: &str, fault: &RunFault, failed: Code, timed_out: Code) -> Failure {
    match fault {
        RunFault::Unavailable { detail } => Failure::new(Code::DockerUnavailable, phase, format!("{call}: {detail}")),
        RunFault::TimedOut { after_s, words } => {
            let said = if words.as_str().is_empty() { String::new() } else { format!(": {words}") };
            Failure::new(timed_out, phase, format!("{call}: no end after {after_s} s{said}"))
        }
        RunFault::Failed { status, words, disk_full } => {
            let code = if *disk_full { Code::DiskFull } else { failed };
            let words = match (words.as_str(), status) {
                ("", Some(status)) => format!("exit status {status}, and not a word"),
                ("", None) => "ended by a signal, and not a word".to_owned(),
                (words, _) => words.to_owned(),
            };
            Failure::new(code, phase, format!("{call}: {words}"))
        }
    }
}

/// Compose would not take the file.
pub fn compose(phase: StageName, call: &str, fault: &ComposeFault) -> Failure {
    match fault {
        ComposeFault::Refused(refusal) => refused(phase, refusal),
        ComposeFault::Run(fault) => run(phase, call, fault, Code::ComposeInvalid, Code::DockerUnavailable),
    }
}
