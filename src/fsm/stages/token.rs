//! Token: awaits a token that works, and spends a lease only when nothing else gives one.
//!
//! Invariants: a token that is alive with enough life never leases; a lease is written down before it is asked for;
//! a new token is proven and saved before the old one is revoked; nobody asks tenancy while the answer is known to be no.

use serde::{Deserialize, Serialize};

use super::{Conclusion, Deploy, Report, Secrets, answer};
use crate::effects::failure::Code;
use crate::effects::state::{TokenRecord, TokenSource};
use crate::effects::{
    AskLease, BaoFault, CallFault, DropGrant, Event, GrantFacts, GrantName, Lease, LeaseFault, Login, LookupToken,
    RenewToken, RevokeToken, SaveGrant, SaveState, SaveToken, StoreFault, TokenFacts, TokenName,
};
use crate::fsm::edges::Leads;
use crate::fsm::event::Note;
use crate::fsm::faults::{self, Failure};
use crate::fsm::flow::{Core, Flow};
use crate::fsm::machine::Transition;
use crate::fsm::{StageName, retry};

const PHASE: StageName = StageName::Token;

/// An unchanged tick renews a token that would fall below `renew_below_s` within so many seconds.
const CARE_AHEAD_S: i64 = 120;

/// What the token is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "for", content = "what", rename_all = "snake_case")]
pub enum Purpose {
    /// A deploy.
    Deploy(Box<Deploy>),
    /// Nothing but its own life; the tick ends like this afterwards.
    Care(Conclusion),
}

/// Awaits a token that works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Token {
    purpose: Purpose,
    /// The saved token, if it is known to live: its source.
    working: Option<TokenSource>,
    awaits: Awaits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "await", content = "of", rename_all = "snake_case")]
enum Awaits {
    Lookup,
    Renewal,
    LeaseNoted,
    Lease,
    GrantSaved(Lease),
    Login(GrantName),
    GrantDropped { grant: GrantName, words: String },
    Proof(GrantName),
    TokenSaved { grant: GrantName, facts: TokenFacts },
    CleanUp,
}

impl Token {
    /// Whether a tick that deploys nothing should look after the token.
    pub fn needs_care(core: &Core) -> bool {
        // Whether OpenBao is back shows only when somebody asks.
        let silent = core.state.troubles().any(|trouble| trouble.code == Code::BaoUnavailable);
        (silent && core.local.token.is_some()) || Token::is_due(core)
    }

    /// Whether its life asks for care.
    fn is_due(core: &Core) -> bool {
        if core.local.bootstrap {
            return true;
        }
        let Some(token) = core.state.token.as_ref().filter(|_| core.local.token == Some(TokenSource::Lease)) else {
            return false;
        };
        let (Some(ttl_s), true) = (token.ttl_s, token.renewable) else { return false };
        if token.seen_at > core.now {
            // The clock went back: what is left is not known before OpenBao is asked.
            return true;
        }
        let ttl_s = i64::try_from(ttl_s).unwrap_or(i64::MAX);
        let gone_s = core.now.since_ms(token.seen_at) / 1000;
        let left_s = ttl_s.saturating_sub(gone_s);
        let below_s = i64::try_from(core.settings.renew_below_s).unwrap_or(i64::MAX).saturating_add(CARE_AHEAD_S);
        // Below 0 too: a clock that went forward makes it look dead, and OpenBao alone knows. It is asked once.
        left_s <= below_s
    }

    /// Looks for a token that works, the cheapest first: one that needs no lease.
    pub fn begin<S: Leads<Token>>(flow: Flow<S>, purpose: Purpose) -> Transition {
        let needless = match &purpose {
            Purpose::Deploy(deploy) => deploy.manifest.entries.is_empty() && !flow.core().local.bootstrap,
            Purpose::Care(_) => false,
        };
        let flow = flow.to(Token { purpose, working: None, awaits: Awaits::Lookup });
        if needless {
            return flow.ready();
        }
        if flow.core().local.bootstrap {
            flow.login(GrantName::Bootstrap)
        } else if flow.core().local.token.is_some() {
            flow.then(LookupToken { token: TokenName::Saved })
        } else {
            flow.replace()
        }
    }

    /// The saved token is dead, as OpenBao said: gets another one, once a tick.
    pub fn relogin<S: Leads<Token>>(flow: Flow<S>, deploy: Box<Deploy>) -> Transition {
        let mut flow = flow.to(Token { purpose: Purpose::Deploy(deploy), working: None, awaits: Awaits::Lookup });
        flow.core_mut().relogged = true;
        flow.core_mut().state.token = None;
        // So that nobody revokes it when another one is saved.
        flow.core_mut().local.token = None;
        flow.note(Note::warn("the token died behind the agent's back; logging in again"));
        flow.replace()
    }
}

impl Flow<Token> {
    pub(in crate::fsm) fn on(self, event: Event) -> Transition {
        match &self.stage.awaits {
            Awaits::Lookup => {
                let found = answer!(self, event, LookupToken);
                self.looked_up(found)
            }
            Awaits::Renewal => {
                let renewed = answer!(self, event, RenewToken);
                self.renewed(renewed)
            }
            Awaits::LeaseNoted => match answer!(self, event, SaveState) {
                Ok(()) => {
                    let mut flow = self;
                    flow.state_is_saved();
                    flow.awaiting(Awaits::Lease).then(AskLease {})
                }
                Err(fault) => self.unwritable(&fault),
            },
            Awaits::Lease => {
                let answered = answer!(self, event, AskLease);
                self.leased(answered)
            }
            Awaits::GrantSaved(lease) => {
                let lease = lease.clone();
                match answer!(self, event, SaveGrant) {
                    Ok(()) => {
                        let mut flow = self;
                        flow.core_mut().local.grant =
                            Some(GrantFacts { expires_at: lease.expires_at, role: lease.role });
                        flow.login(GrantName::Lease)
                    }
                    Err(fault) => self.unwritable(&fault),
                }
            }
            Awaits::Login(grant) => {
                let grant = *grant;
                let logged_in = answer!(self, event, Login);
                self.logged_in(grant, logged_in)
            }
            Awaits::GrantDropped { grant, words } => {
                let (grant, words) = (*grant, words.clone());
                let dropped = answer!(self, event, DropGrant);
                self.dropped(grant, &words, dropped)
            }
            Awaits::Proof(grant) => {
                let grant = *grant;
                let proof = answer!(self, event, LookupToken);
                self.proven(grant, proof)
            }
            Awaits::TokenSaved { grant, facts } => {
                let (grant, facts) = (*grant, facts.clone());
                match answer!(self, event, SaveToken) {
                    Ok(()) => self.saved(grant, facts),
                    Err(fault) => self.unwritable(&fault),
                }
            }
            Awaits::CleanUp => self.cleaned_up(event),
        }
    }

    fn awaiting(self, awaits: Awaits) -> Flow<Token> {
        self.stay(|token| Token { awaits, ..token })
    }

    /// Writes down what OpenBao said of the saved token.
    fn remember(&mut self, source: TokenSource, facts: &TokenFacts) {
        let core = self.core_mut();
        core.local.token = Some(source);
        core.state.token = Some(TokenRecord {
            source,
            accessor: facts.accessor.clone(),
            seen_at: core.now,
            ttl_s: facts.ttl_s,
            renewable: facts.renewable,
        });
    }

    fn enough(&self, facts: &TokenFacts) -> bool {
        facts.ttl_s.is_none_or(|ttl_s| ttl_s > self.core().settings.renew_below_s)
    }

    fn looked_up(mut self, found: Result<TokenFacts, BaoFault>) -> Transition {
        match found {
            Ok(facts) => {
                let source = self.core().local.token.unwrap_or(TokenSource::Lease);
                self.remember(source, &facts);
                self.stage.working = Some(source);
                match source {
                    TokenSource::Bootstrap => self.replace(),
                    TokenSource::Lease if self.enough(&facts) && !self.care_is_due(&facts) => self.ready(),
                    TokenSource::Lease if facts.renewable => self.awaiting(Awaits::Renewal).then(RenewToken {}),
                    TokenSource::Lease => self.replace(),
                }
            }
            Err(BaoFault::Denied { detail: _ }) => {
                self.core_mut().state.token = None;
                self.core_mut().local.token = None;
                self.note(Note::warn("OpenBao no longer knows the saved token"));
                self.replace()
            }
            Err(fault) => self.fail(faults::bao(PHASE, "lookup-self", &fault)),
        }
    }

    /// A tick without a deploy renews a little before the limit, so that no deploy finds the token below it.
    fn care_is_due(&self, facts: &TokenFacts) -> bool {
        let below = self.core().settings.renew_below_s.saturating_add(CARE_AHEAD_S.unsigned_abs());
        matches!(self.stage.purpose, Purpose::Care(_)) && facts.ttl_s.is_some_and(|ttl_s| ttl_s <= below)
    }

    fn renewed(mut self, renewed: Result<TokenFacts, BaoFault>) -> Transition {
        match renewed {
            Ok(facts) => {
                self.remember(TokenSource::Lease, &facts);
                if self.enough(&facts) { self.ready() } else { self.replace() }
            }
            Err(fault @ BaoFault::Unavailable { detail: _ }) => self.fail(faults::bao(PHASE, "renew-self", &fault)),
            Err(
                fault @ (BaoFault::Rejected { .. }
                | BaoFault::Denied { .. }
                | BaoFault::NotFound { .. }
                | BaoFault::PastMaxTtl),
            ) => {
                // Still alive, but this token will not be renewed again.
                if let Some(token) = &mut self.core_mut().state.token {
                    token.renewable = false;
                }
                self.note(Note::info(format!("the token cannot be renewed: {}", faults::bao_words(&fault))));
                self.replace()
            }
        }
    }

    /// The saved token is none, dead, a bootstrap token, or too short-lived: another one is wanted.
    fn replace(self) -> Transition {
        let deploying = match &self.stage.purpose {
            Purpose::Deploy(_) => true,
            Purpose::Care(_) => false,
        };
        let core = self.core();
        let grant_lives =
            core.local.grant.as_ref().is_some_and(|grant| grant.expires_at.is_none_or(|end| end > core.now));
        if !deploying {
            // A tick that deploys nothing never leases.
            self.ready()
        } else if grant_lives {
            self.login(GrantName::Lease)
        } else {
            self.lease()
        }
    }

    fn lease(mut self) -> Transition {
        let core = self.core_mut();
        let now = core.now;
        if let Some(free_at) = retry::lease_free_at(&core.state.leases, core.state.lease_not_before, now) {
            let wait_s = free_at.since_ms(now).div_euclid(1000).saturating_add(1);
            let told = core.state.lease_not_before.is_some_and(|limit| limit == free_at);
            let what = if told {
                format!("tenancy asked to wait; not asking for a lease for {wait_s} s")
            } else {
                format!("the hour's {} leases are used up; not asking for {wait_s} s", retry::LEASES_AN_HOUR)
            };
            return self.without_lease(Failure::new(Code::LeaseRateLimited, PHASE, what));
        }
        // Written down before it is asked for: an answer that gets lost has still been counted by tenancy.
        core.state.leases.push(now);
        self.awaiting(Awaits::LeaseNoted).then_save()
    }

    fn leased(mut self, answered: Result<Lease, LeaseFault>) -> Transition {
        match answered {
            Ok(lease) => {
                self.core_mut().leased = true;
                self.note(Note::info(format!("leased {}", faults::clip(&lease.lease_id, 100))));
                self.awaiting(Awaits::GrantSaved(lease.clone())).then(SaveGrant { lease })
            }
            Err(fault) => {
                let failure = faults::lease(PHASE, &fault);
                if let LeaseFault::Call(CallFault::Unreachable { never_sent: true, detail: _ }) = fault {
                    // Nobody can have counted what never left this box.
                    self.core_mut().state.leases.pop();
                }
                if let LeaseFault::Call(CallFault::Status { status, retry_after_s, detail: _ }) = fault {
                    let core = self.core_mut();
                    // Tenancy's own no did not count. A gateway's (502, 504) says nothing about what is behind it.
                    if !matches!(status, 502 | 504) {
                        core.state.leases.pop();
                    }
                    if status == 429 || (status >= 500 && retry_after_s.is_some()) {
                        core.state.lease_not_before = Some(retry::after_rate_limit(core.now, retry_after_s, core.seed));
                    }
                }
                match failure.code.class() {
                    crate::effects::failure::Class::Temporary => self.without_lease(failure),
                    crate::effects::failure::Class::Failed | crate::effects::failure::Class::Refused => {
                        self.fail(failure)
                    }
                }
            }
        }
    }

    /// No lease now: the deploy goes on with a token that works, or waits.
    fn without_lease(mut self, failure: Failure) -> Transition {
        match self.stage.working {
            Some(source) => {
                let which = match source {
                    TokenSource::Bootstrap => "the bootstrap token works; its swap is put off",
                    TokenSource::Lease => "the old token still works; a new one is put off",
                };
                let what = failure.code.bare(&failure.detail);
                self.note(Note::warn(format!("{}: {what}; {which}", failure.code)));
                self.ready()
            }
            None => self.fail(failure),
        }
    }

    fn login(self, grant: GrantName) -> Transition {
        let core = self.core();
        let leased_role = match grant {
            GrantName::Bootstrap => None,
            GrantName::Lease => core.local.grant.as_ref().and_then(|facts| facts.role.clone()),
        };
        let role = leased_role.unwrap_or_else(|| core.settings.role.clone());
        self.awaiting(Awaits::Login(grant)).then(Login { grant, role })
    }

    fn logged_in(mut self, grant: GrantName, logged_in: Result<TokenFacts, BaoFault>) -> Transition {
        match logged_in {
            Ok(_) => self.awaiting(Awaits::Proof(grant)).then(LookupToken { token: TokenName::Candidate }),
            Err(BaoFault::Rejected { detail }) => {
                self.note(Note::warn(format!("OpenBao rejected the {}: {detail}", called(grant))));
                let words = detail.to_string();
                self.awaiting(Awaits::GrantDropped { grant, words }).then(DropGrant { grant })
            }
            Err(fault @ (BaoFault::Denied { .. } | BaoFault::NotFound { .. })) => {
                let what = format!("OpenBao login with the {}: {}", called(grant), faults::bao_words(&fault));
                if grant == GrantName::Bootstrap && self.core().local.token.is_some() {
                    // It may work another time; until then the token that is there does.
                    self.note(Note::warn(format!("{}: {what}; going on with the saved token", Code::GrantRejected)));
                    return self.awaiting(Awaits::Lookup).then(LookupToken { token: TokenName::Saved });
                }
                self.fail(Failure::new(Code::GrantRejected, PHASE, what))
            }
            Err(fault @ (BaoFault::PastMaxTtl | BaoFault::Unavailable { .. })) => {
                self.fail(faults::bao(PHASE, "login", &fault))
            }
        }
    }

    fn dropped(mut self, grant: GrantName, words: &str, dropped: Result<(), StoreFault>) -> Transition {
        if let Err(fault) = dropped {
            self.note(Note::warn(format!("the rejected {} could not be removed: {}", called(grant), fault.detail)));
        }
        match grant {
            GrantName::Bootstrap => {
                self.core_mut().local.bootstrap = false;
                if self.core().local.token.is_some() {
                    self.awaiting(Awaits::Lookup).then(LookupToken { token: TokenName::Saved })
                } else {
                    self.rejected(grant, words)
                }
            }
            GrantName::Lease => {
                self.core_mut().local.grant = None;
                self.rejected(grant, words)
            }
        }
    }

    /// A grant was rejected for good: one more lease, unless this tick's own was the one.
    fn rejected(self, grant: GrantName, words: &str) -> Transition {
        let deploying = match &self.stage.purpose {
            Purpose::Deploy(_) => true,
            Purpose::Care(_) => false,
        };
        if deploying && !self.core().leased {
            return self.replace();
        }
        let what = format!("OpenBao rejected the {}: {words}", called(grant));
        self.fail(Failure::new(Code::GrantRejected, PHASE, what))
    }

    fn proven(self, grant: GrantName, proof: Result<TokenFacts, BaoFault>) -> Transition {
        let source = match grant {
            GrantName::Bootstrap => TokenSource::Bootstrap,
            GrantName::Lease => TokenSource::Lease,
        };
        match proof {
            Ok(facts) => self.awaiting(Awaits::TokenSaved { grant, facts }).then(SaveToken { source }),
            Err(fault @ BaoFault::Unavailable { detail: _ }) => self.fail(faults::bao(PHASE, "lookup-self", &fault)),
            Err(
                fault @ (BaoFault::Rejected { .. }
                | BaoFault::Denied { .. }
                | BaoFault::NotFound { .. }
                | BaoFault::PastMaxTtl),
            ) => {
                let what = format!("a new token may not even look itself up: {}", faults::bao_words(&fault));
                self.fail(Failure::new(Code::GrantRejected, PHASE, what))
            }
        }
    }

    fn saved(mut self, grant: GrantName, facts: TokenFacts) -> Transition {
        let replaced = self.core().local.token.is_some();
        let source = match grant {
            GrantName::Bootstrap => TokenSource::Bootstrap,
            GrantName::Lease => TokenSource::Lease,
        };
        let instead = if replaced { ", in place of the token that was saved" } else { "" };
        self.note(Note::info(format!("logged in to OpenBao with the {}{instead}", called(grant))));
        self.remember(source, &facts);
        self.stage.working = Some(source);
        let mut flow = self.awaiting(Awaits::CleanUp);
        if replaced {
            flow.ask(RevokeToken {});
        }
        match grant {
            GrantName::Bootstrap => {
                flow.core_mut().local.bootstrap = false;
                flow.ask(DropGrant { grant });
            }
            // A leased grant stays until it ends: it logs in again without a lease, should the token die.
            GrantName::Lease => {}
        }
        if flow.settled() { flow.swapped() } else { flow.into() }
    }

    fn cleaned_up(mut self, event: Event) -> Transition {
        match event {
            Event::TokenRevoked(Ok(())) | Event::GrantDropped(Ok(())) => {}
            Event::TokenRevoked(Err(fault)) => {
                let words = faults::bao_words(&fault);
                self.note(Note::warn(format!("the replaced token could not be revoked: {words}; it ends by itself")));
            }
            Event::GrantDropped(Err(fault)) => {
                self.note(Note::warn(format!("the used bootstrap grant could not be removed: {}", fault.detail)));
            }
            other => return self.unexpected(&other),
        }
        if self.settled() { self.swapped() } else { self.into() }
    }

    /// A new token is saved. A bootstrap token is to be swapped at once, if there is something to deploy.
    fn swapped(self) -> Transition {
        match self.stage.working {
            Some(TokenSource::Bootstrap) => self.replace(),
            Some(TokenSource::Lease) | None => self.ready(),
        }
    }

    fn ready(mut self) -> Transition {
        match self.stage.purpose.clone() {
            Purpose::Deploy(deploy) => Secrets::read(self, deploy),
            Purpose::Care(conclusion) => {
                // Whatever it said of the token, it spoke.
                self.core_mut().state.forget_trouble(Code::BaoUnavailable);
                Report::conclude(self, conclusion)
            }
        }
    }

    fn unwritable(self, fault: &StoreFault) -> Transition {
        self.fail(faults::store(PHASE, fault))
    }

    fn fail(mut self, failure: Failure) -> Transition {
        if failure.code == Code::GrantRejected {
            // A rejection is an answer.
            self.core_mut().state.forget_trouble(Code::BaoUnavailable);
        }
        match self.stage.purpose.clone() {
            Purpose::Deploy(deploy) => Report::fail(self, failure, deploy.attempt),
            // It was asked only whether it is back, and it is not.
            Purpose::Care(conclusion) if failure.code == Code::BaoUnavailable && !Token::is_due(self.core()) => {
                Report::conclude(self, conclusion)
            }
            Purpose::Care(_) => Report::conclude(self, Conclusion::Deferred { failure, attempt: None }),
        }
    }
}

fn called(grant: GrantName) -> &'static str {
    match grant {
        GrantName::Bootstrap => "bootstrap grant",
        GrantName::Lease => "leased grant",
    }
}
