//! When to try again: backoff per bundle, the budget of leases, and jitter from a seed.
//!
//! Invariant: every function here is a plain function of its arguments; a wait is never shorter than the server
//! asked for, and jitter is never zero for a whole fleet, not even at the cap.

use crate::effects::Stamp;

/// First wait after a failure, in milliseconds (contract §8).
const FIRST_MS: i64 = 30_000;
/// Longest wait, in milliseconds (contract §8).
const LONGEST_MS: i64 = 15 * 60_000;
/// Leases that tenancy grants an hour (contract §4).
pub const LEASES_AN_HOUR: usize = 5;
/// The hour that leases count in, in seconds.
const LEASE_HOUR_S: i64 = 3600;
/// How long at least to leave tenancy alone when it rate-limits without saying for how long, in seconds.
const SILENT_LIMIT_S: i64 = 300;

/// A number from a seed and a salt, the same for the same two (SplitMix64).
fn mix(seed: u64, salt: u64) -> u64 {
    let mut z = seed.wrapping_add(salt.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number from `low` to `high`, both included.
fn between(low: i64, high: i64, seed: u64, salt: u64) -> i64 {
    let span = u64::try_from(high.saturating_sub(low)).unwrap_or(0).saturating_add(1);
    low.saturating_add(i64::try_from(mix(seed, salt) % span.max(1)).unwrap_or(0))
}

/// How long to wait after the n-th failure (from 1), in milliseconds: 30 s · 2^(n−1), ±20 %, at most 15 min.
pub fn backoff_ms(n: u32, seed: u64) -> i64 {
    let doubled = FIRST_MS.saturating_mul(1_i64 << n.saturating_sub(1).min(20));
    let base = doubled.min(LONGEST_MS);
    let high = (base / 5).saturating_add(base).min(LONGEST_MS);
    between(base - base / 5, high, seed, u64::from(n))
}

/// The moment of the next attempt may lie so far ahead at most; later means that the clock went back.
pub fn clamp_next(next: Stamp, now: Stamp) -> Stamp {
    next.min(now.plus_ms(LONGEST_MS))
}

/// When the next lease may be asked for, if not now: five an hour, and not before tenancy's own word. `leases` are in order.
pub fn lease_free_at(leases: &[Stamp], not_before: Option<Stamp>, now: Stamp) -> Option<Stamp> {
    let fifth_last = leases.len().checked_sub(LEASES_AN_HOUR).and_then(|at| leases.get(at));
    let budget = fifth_last.map(|at| at.plus_s(LEASE_HOUR_S));
    budget.max(not_before).filter(|free| *free > now)
}

/// The moment before which tenancy is not to be asked for a lease again after a 429: never before its
/// `Retry-After`, and a little later on every box.
pub fn after_rate_limit(now: Stamp, retry_after_s: Option<u32>, seed: u64) -> Stamp {
    let (asked_s, later_ms) = match retry_after_s.map(|s| i64::from(s).clamp(1, LEASE_HOUR_S)) {
        Some(s) => (s, s.saturating_mul(100)),
        // Over several ticks: timers of a fleet may fire in the same second.
        None => (SILENT_LIMIT_S, SILENT_LIMIT_S.saturating_mul(1000)),
    };
    now.plus_s(asked_s).plus_ms(between(1, later_ms, seed, 0x1ea5e))
}

/// Times that an agent with the right clock cannot have written: what lies ahead is pulled to now.
pub fn clamp_leases(leases: &mut Vec<Stamp>, not_before: &mut Option<Stamp>, now: Stamp) {
    for at in leases.iter_mut() {
        *at = (*at).min(now);
    }
    leases.sort_unstable();
    if let Some(limit) = not_before {
        *limit = (*limit).min(now.plus_s(LEASE_HOUR_S + LEASE_HOUR_S / 10));
    }
    forget_leases(leases, not_before, now);
}

/// Forgets what does not matter any more. This alone is no reason to write the state.
pub fn forget_leases(leases: &mut Vec<Stamp>, not_before: &mut Option<Stamp>, now: Stamp) {
    leases.retain(|at| now.since_ms(*at) < LEASE_HOUR_S * 1000);
    *not_before = not_before.filter(|limit| *limit > now);
}

/// How long to wait before looking at the containers for the n-th time again (from 0), in milliseconds.
pub fn look_again_ms(n: u32) -> i64 {
    (250_i64 << n.min(2)).min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_from_30_s_and_stays_within_20_percent_and_15_minutes() {
        for seed in 0..500 {
            for n in 1..60 {
                let doubled = 30_000_i64.checked_shl(n - 1).filter(|ms| *ms > 0 && n < 20).unwrap_or(i64::MAX);
                let base = doubled.min(900_000);
                let ms = backoff_ms(n, seed);
                assert!(ms >= base - base / 5 && ms <= (base + base / 5).min(900_000), "n {n}: {ms}");
            }
        }
    }

    #[test]
    fn a_fleet_at_the_cap_does_not_come_back_at_once() {
        let waits: std::collections::BTreeSet<i64> = (0..40).map(|box_seed| backoff_ms(12, box_seed)).collect();
        assert!(waits.len() > 35, "40 boxes share {} waits", waits.len());
    }

    #[test]
    fn the_sixth_lease_in_an_hour_is_not_asked_for() {
        let now = Stamp(10_000_000);
        let leases: Vec<Stamp> = (1..=5).map(|m| now.plus_s(-60 * m)).rev().collect();
        assert_eq!(lease_free_at(&leases[1..], None, now), None);
        assert_eq!(lease_free_at(&leases, None, now), Some(now.plus_s(3300)));
        assert_eq!(lease_free_at(&leases, None, now.plus_s(3299)), Some(now.plus_s(3300)));
        assert_eq!(lease_free_at(&leases, None, now.plus_s(3300)), None);
        let older: Vec<Stamp> = [now.plus_s(-7200), now.plus_s(-400)].into_iter().chain(leases).collect();
        assert_eq!(lease_free_at(&older, None, now), Some(now.plus_s(3300)));
    }

    #[test]
    fn tenancys_own_word_is_over_when_its_time_has_come_and_the_later_of_both_counts() {
        let now = Stamp(10_000_000);
        let leases: Vec<Stamp> = (1..=5).map(|m| now.plus_s(-60 * m)).rev().collect();
        assert_eq!(lease_free_at(&[], Some(now), now), None);
        assert_eq!(lease_free_at(&[], Some(now.plus_s(1)), now), Some(now.plus_s(1)));
        assert_eq!(lease_free_at(&leases, Some(now.plus_s(3299)), now), Some(now.plus_s(3300)));
        assert_eq!(lease_free_at(&leases, Some(now.plus_s(3301)), now), Some(now.plus_s(3301)));
    }

    #[test]
    fn a_lease_is_forgotten_after_an_hour_and_a_word_when_its_time_has_come() {
        let now = Stamp(10_000_000);
        let (mut leases, mut word) = (vec![now.plus_s(-3600), now.plus_s(-3599)], Some(now));
        forget_leases(&mut leases, &mut word, now);
        assert_eq!((leases, word), (vec![now.plus_s(-3599)], None));
        let mut word = Some(now.plus_s(1));
        forget_leases(&mut Vec::new(), &mut word, now);
        assert_eq!(word, Some(now.plus_s(1)));
    }

    #[test]
    fn a_wait_is_never_shorter_than_retry_after() {
        for seed in 0..200 {
            for s in [0, 1, 7, 60, 3600, u32::MAX] {
                let until = after_rate_limit(Stamp(0), Some(s), seed);
                let asked = i64::from(s).min(3600);
                assert!(until > Stamp(0).plus_s(asked) && until <= Stamp(0).plus_s(asked.max(1) * 11 / 10 + 1));
            }
        }
    }

    #[test]
    fn a_lease_wait_is_what_was_asked_for_and_up_to_a_tenth_more_or_five_to_ten_minutes() {
        let asked: Vec<Option<u32>> = (0..32).map(|bit| Some(u32::MAX >> bit)).chain([None, Some(0)]).collect();
        for retry_after_s in asked.into_iter().chain((1..4000).step_by(7).map(Some)) {
            let asked_ms = retry_after_s.map_or(300, i64::from).min(3600) * 1000;
            for seed in 0..100 {
                let wait_ms = after_rate_limit(Stamp(0), retry_after_s, mix(seed, 1)).since_ms(Stamp(0));
                // At least a millisecond later than was asked for. No wait at all counts as one of a second.
                let longest_ms = retry_after_s.map_or(600_000, |_| asked_ms.max(1000) * 11 / 10);
                assert!(wait_ms > asked_ms && wait_ms <= longest_ms, "{retry_after_s:?}: {wait_ms}");
            }
        }
    }

    /// So many boxes hear the same no in the same second.
    const BOXES: u64 = 1000;

    /// How many come back in each second of six hours, if the n-th wait of a box is this one. A box comes the moment that
    /// it is over: what a try takes, and the minute of its timer, are left out.
    fn arrivals(wait_ms: impl Fn(u64, u32) -> i64) -> Vec<u32> {
        arrivals_at(|_, ends_ms| ends_ms, wait_ms)
    }

    /// The same, but a box comes only at a moment that follows from the end of its wait.
    fn arrivals_at(comes_ms: impl Fn(u64, i64) -> i64, wait_ms: impl Fn(u64, u32) -> i64) -> Vec<u32> {
        let mut seconds = vec![0; 6 * 3600];
        for number in 0..BOXES {
            let (mut at_ms, mut n) = (0_i64, 0);
            loop {
                n += 1;
                at_ms = comes_ms(number, at_ms + wait_ms(number, n));
                let Some(second) = usize::try_from(at_ms / 1000).ok().and_then(|at| seconds.get_mut(at)) else { break };
                *second += 1;
            }
        }
        seconds
    }

    /// The fullest second from the second hour on, and how many come in an average one.
    fn fullest(seconds: &[u32]) -> (u32, f64) {
        let later = &seconds[3600..];
        (later.iter().copied().max().unwrap(), f64::from(later.iter().sum::<u32>()) / later.len() as f64)
    }

    #[test]
    fn boxes_that_heard_a_no_in_the_same_second_do_not_come_back_in_one() {
        type Wait = fn(u32, u64) -> i64;
        let waits: [(&str, Wait); 3] = [
            ("a rate limit without Retry-After", |_, seed| after_rate_limit(Stamp(0), None, seed).since_ms(Stamp(0))),
            ("failures from the first on", backoff_ms),
            ("failures from the twelfth on", |n, seed| backoff_ms(n + 11, seed)),
        ];
        for (what, wait) in waits {
            // A tick has a seed of its own.
            let (fullest_second, average) = fullest(&arrivals(|number, n| wait(n, mix(number, n.into()))));
            // 7 to 8 times as many, most of it by chance: at one or three a second some second has more.
            assert!(f64::from(fullest_second) < 10.0 * average, "{what}: {fullest_second}, on average {average:.2}");
            // The control: boxes that draw the same jitter stay together.
            let (fullest_second, _) = fullest(&arrivals(|_, n| wait(n, mix(0, n.into()))));
            assert!(fullest_second >= 900, "{what}: {fullest_second}");
        }
    }

    #[test]
    fn boxes_whose_timers_fire_together_are_spread_over_minutes_by_a_rate_limit_that_does_not_say_for_how_long() {
        // Each timer fires once a minute, all within five seconds. A tick before the wait is over asks for nothing.
        let tick_ms = |number: u64, ends_ms: i64| {
            let offset_ms = (number % 5) as i64 * 1000;
            (ends_ms - offset_ms + 59_999).div_euclid(60_000) * 60_000 + offset_ms
        };
        let fullest_of = |seed: fn(u64, u32) -> u64| {
            let wait_ms = |number, n| after_rate_limit(Stamp(0), None, seed(number, n)).since_ms(Stamp(0));
            fullest(&arrivals_at(tick_ms, wait_ms)).0
        };
        // A thousand boxes that come every 7.5 minutes are 133 a minute, and those come in five seconds.
        let (spread, together) = (fullest_of(|number, n| mix(number, n.into())), fullest_of(|_, n| mix(0, n.into())));
        assert!(spread < 60, "{spread}");
        assert_eq!(together, 200, "all that fire in that second");
    }

    #[test]
    fn a_clock_that_went_back_does_not_make_the_agent_mute() {
        let now = Stamp(1_000_000_000);
        let ten_years = 10 * 365 * 86_400;
        assert_eq!(clamp_next(now.plus_s(ten_years), now), now.plus_ms(900_000));
        let mut leases = vec![now.plus_s(ten_years), now.plus_s(-ten_years), now.plus_s(-10)];
        let mut limit = Some(now.plus_s(ten_years));
        clamp_leases(&mut leases, &mut limit, now);
        assert_eq!(leases, [now.plus_s(-10), now]);
        assert_eq!(limit, Some(now.plus_s(3960)));
    }
}
