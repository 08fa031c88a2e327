//! The way to secrets: a token that lives, or something to get one with.
//!
//! Invariant: nothing is logged in with and nothing leased; the saved token is looked up and nothing else.

use super::super::words::moment;
use super::line::Line;
use crate::drivers::openbao::Oddities;
use crate::effects::{BaoFault, Stamp, TokenFacts};

/// What is known without asking.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// When the saved token was to end, as it was last seen; none: it never does, or nobody asked yet.
    pub was_to_end: Option<Stamp>,
    /// A bootstrap grant waits, and ends then (none: it does not say).
    pub bootstrap: Option<Option<Stamp>>,
    /// Until when the last leased grant logs in again.
    pub grant: Option<Option<Stamp>>,
    /// Something is applied, so this box had a token before.
    pub applied: bool,
}

/// What OpenBao said of the saved token; none: there is none.
pub type Asked = Option<Result<(TokenFacts, Oddities), BaoFault>>;

const BOOTSTRAP: &str =
    "get a bootstrap grant from tenancy: sudo -u monky-deployd monky-deployd bootstrap --grant-file - < grant.jwt";

/// Judges it.
pub fn judge(asked: &Asked, held: &Held, renew_below_s: u64, now: Stamp) -> Line {
    match asked {
        Some(Ok((facts, odd))) => alive(facts, *odd, renew_below_s),
        Some(Err(BaoFault::Denied { .. })) => without("the saved token is dead", held, true, now),
        Some(Err(BaoFault::Unavailable { detail })) => {
            Line::unchecked("token", &format!("OpenBao says nothing of it: {detail}"), "mend `openbao` first")
        }
        Some(Err(BaoFault::Rejected { detail } | BaoFault::NotFound { detail })) => {
            let what = format!("OpenBao does not look it up: {detail}");
            Line::failure("token", what, "look at `bao.addr` and `bao.namespace`")
        }
        Some(Err(BaoFault::PastMaxTtl)) => without("the saved token is past its longest life", held, true, now),
        None => without("there is no token", held, false, now),
    }
}

fn alive(facts: &TokenFacts, odd: Oddities, renew_below_s: u64) -> Line {
    let Some(ttl_s) = facts.ttl_s else {
        let what = "it lives, and never ends".to_owned();
        return Line::warning(
            "token",
            what,
            "give the role a `token_ttl`: this one is as good as a root token for a thief",
        );
    };
    let left = format!("it lives, {} min left", ttl_s / 60);
    if let Some(uses) = odd.uses_left {
        let what = format!("{left}, and dies after {uses} more calls");
        return Line::warning("token", what, "let the role give tokens without a number of uses (`token_num_uses: 0`)");
    }
    if odd.batch {
        let what = format!("{left}; a batch token can be neither renewed nor revoked");
        return Line::warning("token", what, "let the role give `token_type: service`");
    }
    if ttl_s <= renew_below_s && !facts.renewable {
        let what = format!("{left}, and it cannot be renewed");
        return Line::warning("token", what, "nothing: the next deploy asks tenancy for a lease");
    }
    Line::ok("token", left)
}

/// There is no token that works: is there something to get one with?
fn without(what: &str, held: &Held, was_one: bool, now: Stamp) -> Line {
    let lives = |grant: Option<Option<Stamp>>| grant.filter(|end| end.is_none_or(|end| end > now));
    let until = |end: Option<Stamp>| end.map(|end| format!(" until {}", moment(end))).unwrap_or_default();
    if let Some(end) = lives(held.bootstrap) {
        return Line::ok("token", format!("{what}; a bootstrap grant waits, good{}", until(end)));
    }
    if let Some(end) = held.bootstrap {
        return Line::failure(
            "token",
            format!("{what}, and the bootstrap grant ended{}", until(end).replace("until", "at")),
            BOOTSTRAP,
        );
    }
    // A box that has nothing to deploy lets its token come to its end: the next deploy leases another one.
    if was_one && held.was_to_end.is_some_and(|end| end <= now) {
        let what = format!("{what}: it came to its end at {}", moment(held.was_to_end.unwrap_or(now)));
        return Line::warning("token", what, "nothing: the next deploy asks tenancy for a lease");
    }
    if was_one {
        let again = if lives(held.grant).is_some() { "; the last grant still logs in" } else { "" };
        let what = format!("{what} before its time: it was revoked, or OpenBao lost it{again}");
        return Line::failure("token", what, "find out who revoked it; `monky-deployd tick --force` gets another one");
    }
    if held.applied || lives(held.grant).is_some() {
        return Line::warning(
            "token",
            what.to_owned(),
            "nothing: the next deploy that needs one asks tenancy for a lease",
        );
    }
    Line::failure("token", format!("{what}, and no bootstrap grant"), BOOTSTRAP)
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;
    use crate::drivers::vault::Vault;
    use crate::effects::Scrubbed;

    const NOW: Stamp = Stamp(1_000_000_000_000);

    fn facts(ttl_s: Option<u64>, renewable: bool) -> TokenFacts {
        TokenFacts { accessor: None, ttl_s, renewable }
    }

    fn living(facts: TokenFacts, odd: Oddities) -> Level {
        judge(&Some(Ok((facts, odd))), &Held::default(), 600, NOW).level
    }

    fn detail() -> Scrubbed {
        Scrubbed::new(&Vault::default(), "words")
    }

    fn dead() -> Asked {
        Some(Err(BaoFault::Denied { detail: detail() }))
    }

    #[test]
    fn a_token_that_lives_is_fine_and_an_odd_one_is_told() {
        let plain = Oddities::default();
        assert_eq!(living(facts(Some(3600), true), plain), Level::Ok);
        assert_eq!(living(facts(Some(60), true), plain), Level::Ok, "it will be renewed");
        assert_eq!(living(facts(Some(60), false), plain), Level::Warning);
        assert_eq!(living(facts(Some(3600), false), plain), Level::Ok);
        assert_eq!(living(facts(None, false), plain), Level::Warning, "a root token");
        assert_eq!(living(facts(Some(3600), false), Oddities { batch: true, uses_left: None }), Level::Warning);
        assert_eq!(living(facts(Some(3600), true), Oddities { batch: false, uses_left: Some(3) }), Level::Warning);
    }

    #[test]
    fn a_token_that_came_to_its_end_is_no_failure_and_one_that_was_revoked_is() {
        let held = |seconds: i64| Held { was_to_end: Some(NOW.plus_s(seconds)), applied: true, ..Held::default() };
        assert_eq!(judge(&dead(), &held(-1), 600, NOW).level, Level::Warning);
        assert_eq!(judge(&dead(), &held(1), 600, NOW).level, Level::Failure);
        assert_eq!(judge(&dead(), &Held::default(), 600, NOW).level, Level::Failure);
        assert_eq!(judge(&Some(Err(BaoFault::PastMaxTtl)), &held(-1), 600, NOW).level, Level::Warning);
    }

    #[test]
    fn a_bootstrap_grant_counts_while_it_is_good() {
        let held = |end| Held { bootstrap: Some(end), ..Held::default() };
        for asked in [&None, &dead()] {
            assert_eq!(judge(asked, &held(Some(NOW.plus_s(1))), 600, NOW).level, Level::Ok);
            assert_eq!(judge(asked, &held(None), 600, NOW).level, Level::Ok);
            let over = judge(asked, &held(Some(NOW)), 600, NOW);
            assert!(over.level == Level::Failure && over.remedy.unwrap().contains("bootstrap --grant-file"));
        }
    }

    #[test]
    fn with_neither_a_new_box_fails_and_one_that_deployed_before_does_not() {
        assert_eq!(judge(&None, &Held::default(), 600, NOW).level, Level::Failure);
        assert_eq!(judge(&None, &Held { applied: true, ..Held::default() }, 600, NOW).level, Level::Warning);
        let grant = |seconds| Held { grant: Some(Some(NOW.plus_s(seconds))), ..Held::default() };
        assert_eq!(judge(&None, &grant(1), 600, NOW).level, Level::Warning);
        assert_eq!(judge(&None, &grant(-1), 600, NOW).level, Level::Failure);
    }

    #[test]
    fn what_says_nothing_about_the_token_is_no_second_failure() {
        let asked = Some(Err(BaoFault::Unavailable { detail: detail() }));
        assert_eq!(judge(&asked, &Held::default(), 600, NOW).level, Level::Warning);
        let asked = Some(Err(BaoFault::NotFound { detail: detail() }));
        assert_eq!(judge(&asked, &Held::default(), 600, NOW).level, Level::Failure);
    }
}
